r"""Which paths a `.gitignore` leaves out: git's own rules, without git.

    # comment          blank lines and comments say nothing
    name               a file or folder of that name, at any depth
    name/              only a folder
    /name, a/name      with a slash before the end: from the folder of this `.gitignore`
    *  ?  [a-z]        within one name; `**` as a whole name is any number of folders
    !name              taken back; the last rule that matches decides
    \!  \#  \          an escaped character stands for itself

Deeper files win over those above. What lies in a folder that is left out cannot be taken back, so nobody
need look into it; that is for the one who walks. Pure and without backtracking: rules are written by strangers.
git compares bytes; so does this, as characters of Latin-1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

Parts = tuple[str, ...]

RULES_MAX = 2000  # of one file: each is tried for each path
# fmt: off
_CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~", "space": " \\t\\n\\r\\x0b\\x0c",
    "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Rule:
    """`segments`: None stands for `**`. A rule with `by_name` looks at the last part of a path only."""

    segments: tuple[re.Pattern[str] | None, ...]
    is_negative: bool
    folders_only: bool
    by_name: bool

    def matches(self, parts: Parts, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        return _matches(self.segments, parts[-1:] if self.by_name else parts)


@dataclass(frozen=True, slots=True)
class Ignored:
    """The rules of one `.gitignore`, those that win first, and of the folders above it."""

    depth: int  #: how many parts the folder of this file has
    rules: tuple[Rule, ...]
    above: Ignored | None = None

    def leaves_out(self, parts: Parts, is_folder: bool) -> bool:
        """Whether this path itself is left out; its folders were looked at before."""
        encoded = tuple(_bytewise(part) for part in parts)
        here: Ignored | None = self
        while here is not None:
            for rule in here.rules:
                if rule.matches(encoded[here.depth :], is_folder):
                    return not rule.is_negative
            here = here.above
        return False


def rules_of(text: str) -> tuple[Rule, ...]:
    """The rules of a file, the last first: it decides."""
    lines = text.removeprefix("\ufeff").split("\n")[:RULES_MAX]
    rules = (_rule(line.removesuffix("\r")) for line in lines)
    return tuple(rule for rule in rules if rule is not None)[::-1]


def _rule(line: str) -> Rule | None:
    pattern = _without_trailing_spaces(line)
    if not pattern or line.startswith("#"):
        return None
    is_negative = pattern.startswith("!")
    pattern = pattern[is_negative:]
    folders_only = pattern.endswith("/")
    pattern = pattern[: len(pattern) - folders_only]
    by_name = "/" not in pattern
    segments = _segments(_bytewise(pattern).removeprefix("/"))
    return None if segments is None else Rule(segments, is_negative, folders_only, by_name)


def _without_trailing_spaces(line: str) -> str:
    kept = line.rstrip(" ")
    escapes = len(kept) - len(kept.rstrip("\\"))
    return kept + " " if escapes % 2 and kept != line else kept


def _bytewise(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


def _matches(segments: Sequence[re.Pattern[str] | None], parts: Parts) -> bool:
    """Which beginnings of the path each beginning of the rule can stand for."""
    reached = {0}
    for place, segment in enumerate(segments):
        if segment is None:
            # At the end it stands for something that is in the folder, not for the folder.
            least = min(reached, default=len(parts)) + (place == len(segments) - 1)
            reached = set(range(least, len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and segment.fullmatch(parts[at])}
    return len(parts) in reached


@lru_cache(maxsize=4096)
def _segments(pattern: str) -> tuple[re.Pattern[str] | None, ...] | None:
    """None: a pattern that can match nothing, such as one with an open bracket."""
    found: list[re.Pattern[str] | None] = []
    try:
        for symbols in _split(list(_symbols(pattern))):
            is_any_depth = len(symbols) >= 2 and all(symbol == "*" for symbol in symbols)
            found.append(None if is_any_depth else re.compile(_expression(symbols), re.DOTALL))
    except ValueError:
        return None
    return tuple(found)


def _split(symbols: list[str]) -> Iterator[list[str]]:
    at = 0
    for place, symbol in enumerate(symbols):
        if symbol == "/":
            yield symbols[at:place]
            at = place + 1
    yield symbols[at:]


def _expression(symbols: list[str]) -> str:
    """Every `*` but the last takes as little as it can and never thinks again: linear, whatever it says."""
    first, *rest = ("".join(piece) for piece in _pieces(symbols))
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + ".*" + last


def _pieces(symbols: list[str]) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    for symbol in symbols:
        if symbol == "*":
            pieces.append([])
        else:
            pieces[-1].append(symbol)
    return pieces


def _symbols(pattern: str) -> Iterator[str]:
    """`*` and `/` as they are, everything else as a regular expression for one character."""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        match char:
            case "*" | "/":
                yield char
            case "?":
                yield "."
            case "\\":
                if at == len(pattern):
                    raise ValueError("a backslash escapes nothing")
                escaped = pattern[at]
                yield escaped if escaped == "/" else re.escape(escaped)
                at += 1
            case "[":
                expression, at = _bracket(pattern, at)
                yield expression
            case _:
                yield re.escape(char)


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """What stands in brackets, and the place after it."""
    is_negative = pattern[at : at + 1] in ("!", "^")
    at += is_negative
    inside: list[str] = []
    start = at
    while pattern[at : at + 1] != "]" or at == start:
        piece, at = _class_or_range(pattern, at)
        inside.append(piece)
    return f"[{'^' if is_negative else ''}{''.join(inside)}]", at + 1


def _class_or_range(pattern: str, at: int) -> tuple[str, int]:
    if pattern.startswith("[:", at):
        end = pattern.find("]", at + 2)
        if end > 0 and pattern[end - 1] == ":" and end - 1 >= at + 2:
            return _class(pattern[at + 2 : end - 1]), end + 1
    low, at = _character(pattern, at)
    if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
        high, at = _character(pattern, at + 1)
        if low <= high:
            return f"{re.escape(low)}-{re.escape(high)}", at
    return re.escape(low), at


def _class(name: str) -> str:
    if name not in _CLASSES:
        raise ValueError("an unknown class")
    return _CLASSES[name]


def _character(pattern: str, at: int) -> tuple[str, int]:
    at += pattern[at : at + 1] == "\\"
    if at >= len(pattern):
        raise ValueError("a bracket is open")
    return pattern[at], at + 1
