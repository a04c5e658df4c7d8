"""The work of the tool `search`, in a process of its own.

A regular expression written by a model can take forever, and the matching of Python neither yields to other threads nor
can be interrupted. So this runs as `python -m clutch.tools.search`: the request as JSON on stdin, the answer as JSON on
stdout, and an alarm that ends the process whatever the expression is doing. It imports little, because every search
pays for its imports.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import dataclass, field

from clutch.core.text.format import counted
from clutch.tools.workspace import (
    FILE_BYTES_MAX,
    FileAccessError,
    Kind,
    WalkLimit,
    content,
    lines_of,
    matches,
    opened,
    parts_of,
    shown,
    walk,
)

ALARM_S = 10  # more than the 8 seconds of a walk: only an expression that does not end reaches it
LINE_CHARS_MAX = 2000  # searched in one line; longer ones are data
SHOWN_CHARS_MAX = 300
OUTPUT_CHARS_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class SearchRequest:
    root: str
    pattern: str
    path: str = "."
    glob: str | None = None
    recursive: bool = True
    ignored: bool = False
    limit: int = 100
    per_file: int = 20
    alarm_s: int = ALARM_S


@dataclass(slots=True)
class SearchResult:
    lines: list[str] = field(default_factory=list)
    chars: int = 0
    files: int = 0
    binary: int = 0
    large: int = 0
    is_full: bool = False

    def add(self, line: str, limit: int) -> bool:
        """Add a line; return False where the answer is full."""
        if len(self.lines) >= limit or self.chars + len(line) > OUTPUT_CHARS_MAX:
            self.is_full = True
            return False
        self.lines.append(line)
        self.chars += len(line)
        return True


def scan(question: SearchRequest) -> str:
    expression = compiled(question.pattern)
    budget = WalkLimit()
    found = SearchResult()
    for parts in _files(question, budget):
        if found.is_full or not budget.allows_more():
            break
        _scan_file(question, parts, expression, found)
    return "\n".join([*found.lines, _notice(found, budget)])


def compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        at = "" if error.pos is None else f" at position {error.pos}"
        raise FileAccessError(f"pattern: is not a regular expression: {error.msg}{at}") from error
    except (OverflowError, RecursionError) as error:
        raise FileAccessError("pattern: is too large or too deeply nested") from error


def _files(question: SearchRequest, budget: WalkLimit) -> list[tuple[str, ...]]:
    top = parts_of(question.path)
    if top and _is_file(question.root, top):
        return [top]
    found = walk(question.root, top, budget, recursive=question.recursive, with_ignored=question.ignored)
    return [
        entry.parts
        for entry in found
        if entry.kind is Kind.FILE and (question.glob is None or matches(entry.parts, question.glob))
    ]


def _is_file(root: str, parts: tuple[str, ...]) -> bool:
    try:
        with opened(root, parts):
            return True
    except FileAccessError:
        return False


def _scan_file(
    question: SearchRequest, parts: tuple[str, ...], expression: re.Pattern[str], found: SearchResult
) -> None:
    try:
        with opened(question.root, parts) as (file, size):
            lines = lines_of(content(file))
    except FileAccessError:  # gone since the walk
        return
    found.files += 1
    found.large += size > FILE_BYTES_MAX
    if lines is None:
        found.binary += 1
        return
    left = question.per_file
    for number, line in enumerate(lines, 1):
        if left and expression.search(line[:LINE_CHARS_MAX]):
            left -= 1
            if not found.add(f"{shown(parts)}:{number}: {_cut(line)}", question.limit):
                return


def _cut(line: str) -> str:
    return line if len(line) <= SHOWN_CHARS_MAX else line[:SHOWN_CHARS_MAX] + "…"


def _notice(found: SearchResult, budget: WalkLimit) -> str:
    """Return the last line: what was searched, and what was not."""
    words = [f"{counted(len(found.lines), 'matching line')} in {counted(found.files, 'file')}"]
    if found.binary:
        words.append(f"{counted(found.binary, 'binary file')} skipped")
    if found.large:
        words.append(f"only the first {FILE_BYTES_MAX} bytes of {counted(found.large, 'large file')}")
    if budget.unreadable:
        words.append(f"{counted(budget.unreadable, 'folder')} could not be read")
    if budget.ignored:
        words.append(f"{counted(budget.ignored, 'ignored entry', 'ignored entries')} left out")
    if found.is_full:
        words.append("limit reached, more may match: narrow the search")
    if budget.is_cut:
        words.append("not every file was looked at: narrow the search")
    return f"({'; '.join(words)})"


def main() -> None:
    question = SearchRequest(**json.load(sys.stdin))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(question.alarm_s)
    try:
        answer = {"failed": False, "text": scan(question)}
    except FileAccessError as error:
        answer = {"failed": True, "text": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
