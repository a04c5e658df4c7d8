"""Changing a text by naming what stands there: all edits or none, and a short diff of what became of it.

Pure. An `old` must be found exactly once in the result of the edits before it, unless all places are meant:
a model that looks at an old copy hears so instead of changing the wrong place.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

NEAREST_LINES_MAX = 2000  # compared with what was not found
LINE_CHARS_MAX = 160
PLACES_MAX = 100  # counted; more do not tell more
DIFF_LINES_MAX = 60  # shown; enough to recognise the change
CHANGED_LINES_MAX = 2000  # between the first and the last change; comparing more takes too long
CONTEXT_LINES = 2


@dataclass(frozen=True, slots=True)
class Edit:
    old: str
    new: str
    all: bool = False


class EditFailed(Exception):
    """An edit does not fit the text; the message names it and is for the model."""


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Raises EditFailed, with nothing changed, for the first edit that does not fit."""
    for number, edit in enumerate(edits, 1):
        problem = _problem(text, edit)
        if problem:
            raise EditFailed(f"edits: number {number} of {len(edits)} {problem}; nothing was written")
        text = text.replace(edit.old, edit.new)
    return text


def _problem(text: str, edit: Edit) -> str | None:
    if not edit.old:
        return "has an empty old; name the text to replace, or use write for a new file"
    if edit.old == edit.new:
        return "changes nothing: old and new are the same"
    found = _count(text, edit.old)
    if not found:
        return f"was found 0 times{_nearest(text, edit.old)}"
    if found > 1 and not edit.all:
        return f"was found {found} times; name more of the text around it, or set all"
    return None


def _count(text: str, old: str) -> int:
    """Places that overlap are two: either could be meant."""
    found = 0
    at = text.find(old)
    while at >= 0 and found < PLACES_MAX:
        found += 1
        at = text.find(old, at + 1)
    return found


def _nearest(text: str, old: str) -> str:
    wanted = next((line.strip() for line in old.split("\n") if line.strip()), "")[:LINE_CHARS_MAX]
    lines = [line.strip()[:LINE_CHARS_MAX] for line in text.split("\n")[:NEAREST_LINES_MAX]]
    close = difflib.get_close_matches(wanted, lines, n=1, cutoff=0.5)
    if not close:
        return "; no line is like it"
    number = lines.index(close[0]) + 1
    reason = " (the rest or the white space differs)" if close[0] == wanted else ""
    return f"; the nearest line is {number}: {close[0]}{reason}"


def diff(before: str, after: str) -> str:
    """The lines that changed, as a unified diff without its head."""
    old, new = before.split("\n"), after.split("\n")
    start = max(0, _common(old, new) - CONTEXT_LINES)
    end = max(0, min(_common(old[::-1], new[::-1]), len(old) - start, len(new) - start) - CONTEXT_LINES)
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    if len(old) + len(new) > CHANGED_LINES_MAX:
        return f"({len(old)} lines became {len(new)} from line {start + 1} on)"
    lines = list(difflib.unified_diff(old, new, n=CONTEXT_LINES, lineterm=""))[2:]
    shown = [_moved(line, start)[:LINE_CHARS_MAX] for line in lines[:DIFF_LINES_MAX]]
    left = len(lines) - len(shown)
    return "\n".join([*shown, *([f"({left} more lines of the diff)"] if left else [])])


def _common(one: list[str], other: list[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next(
        (count for count, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other))
    )


def _moved(line: str, lines: int) -> str:
    """A head of a hunk, counted from the beginning of the file."""
    if not line.startswith("@@"):
        return line
    return re.sub(r"([-+])(\d+)", lambda found: f"{found[1]}{int(found[2]) + lines}", line)
