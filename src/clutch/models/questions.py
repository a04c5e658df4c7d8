"""The questions a child of the scripted survey can answer about a folder.

A question is one or two rounds of tool calls, the second chosen from what the first gave, and what to
report of the answers. Nothing is reported that a tool did not return. Knows no children: see `survey`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from clutch.core.messages import Call
from clutch.models.evidence import Evidence, Finding, Listing, lines_read, listing, matched, written

READS_MAX = 4
PLACES_MAX = 4

LIST_ALL = Call("list", {"path": ".", "recursive": True})

_MARKERS = (
    r"\b(?:TODO|FIXME)\b",
    r"\b(?:XXX|HACK|BUG)\b",
    r"(?i)\b(?:deprecated|obsolete)\b",
    r"(?i)\b(?:workaround|not implemented|NotImplementedError)\b",
)
_REFERENCES = (
    r"https?://[^\s\"'<>)]+",
    r"^\s*(?:from \S+ import|import|#include|require|use|source)\b\s*\S+",
    r"(?i)\bsee (?:also )?[`'\"(\[]?\w",
)
_WORDS_AT_MARGIN = r"^[^\W\d_][^{}();=]{2,70}$"
_CODE = r"^\s*(?:(?:pub|public|private|static|export|async|abstract)\s+)*(?:{}) \w+"
_LONG = Call("search", {"pattern": r"^.{120}", "limit": 12, "per_file": 2})
_DEEP = Call("search", {"pattern": r"^(?: {20}|\t{5})\s*\S", "limit": 4, "per_file": 1})
#: What the outline of a file is made of, by the end of its name.
_OUTLINES: Mapping[str, str] = {
    ".md": r"^#{1,4} \S",
    ".py": _CODE.format("def|class"),
    ".js": _CODE.format("function|class|const"),
    ".ts": _CODE.format("function|class|interface|type|const"),
    ".tsx": _CODE.format("function|class|interface|type|const"),
    ".go": _CODE.format("func|type"),
    ".rs": _CODE.format("fn|struct|enum|trait|impl|mod"),
    ".java": _CODE.format("class|interface|enum"),
    ".c": r"^(?:typedef|struct|enum|[a-z]\w* \*?\w+\()",
    ".h": r"^(?:typedef|struct|enum|#define) ",
    ".sql": r"(?i)^\s*create ",
    ".toml": r"^\[[^\]]+\]",
    ".ini": r"^\[[^\]]+\]",
    ".cfg": r"^\[[^\]]+\]",
    ".yml": r"^[A-Za-z_][\w-]*:",
    ".yaml": r"^[A-Za-z_][\w-]*:",
    ".json": r'^\s{0,4}"[^"]+":',
    ".html": r"<(?:title|h[1-3])\b",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What a task asks for, read from lines like `question: markers` and `in: ["src"]`."""

    question: str
    places: tuple[str, ...] = (".",)
    types: tuple[str, ...] = ()
    closing: bool = False

    def __str__(self) -> str:
        lines = [f"question: {self.question}"]
        if self.places != (".",):
            lines.append(f"in: {json.dumps(self.places)}")
        if self.types:
            lines.append(f"types: {json.dumps(self.types)}")
        if self.closing:
            lines.append("part: closing")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Question:
    first: Callable[[Order], Sequence[Call]]
    second: Callable[[Order, Evidence], Sequence[Call]]
    findings: Callable[[Order, Evidence], Sequence[Finding]]
    summary: Callable[[Order, Evidence], str]


def order_in(task: str) -> Order | None:
    said = _said(task)
    if said.get("question") not in QUESTIONS:
        return None
    return Order(
        said["question"],
        _names(said.get("in")) or (".",),
        _names(said.get("types")),
        closing=said.get("part") == "closing",
    )


def places_in(task: str) -> tuple[str, ...]:
    """The part of a folder that a task is about; nothing when it does not say."""
    return _names(_said(task).get("in"))


def _said(task: str) -> dict[str, str]:
    return dict(re.findall(r"(?m)^(question|in|types|part): (.*)$", task))


def _names(text: str | None) -> tuple[str, ...]:
    try:
        names: Any = json.loads(text or "[]")
    except ValueError:
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _nothing(_: Order, __: Evidence) -> list[Call]:
    return []


def calls_of(order: Order, evidence: Evidence) -> tuple[Call, ...]:
    """What is still to be asked; nothing when the question can be answered."""
    question = QUESTIONS[order.question]
    return evidence.missing(question.first(order)) or evidence.missing(question.second(order, evidence))


# --- reading the answers ----------------------------------------------------------------------------------


def folder(evidence: Evidence, call: Call = LIST_ALL) -> Listing:
    return listing(evidence.text(call) or "")


def _hits(calls: Iterable[Call], evidence: Evidence) -> list[Finding]:
    """Taken in turn from each search, so that a rich one does not crowd out the others."""
    answers = [matched(evidence.text(call) or "") for call in calls if call.name == "search"]
    return _unique(hit for row in zip_longest(*answers) for hit in row if hit is not None)


def _unique(findings: Iterable[Finding]) -> list[Finding]:
    return list({(found.file, found.line): found for found in findings}.values())


def files_in(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(found.file for found in findings))


def _read(calls: Iterable[Call], evidence: Evidence) -> list[list[Finding]]:
    """The lines of each file that has any."""
    read = (lines_read(call.args["path"], evidence.text(call) or "") for call in calls if call.name == "read")
    return [lines for lines in read if lines]


def mentioned(files: Sequence[str], count: int = 3) -> str:
    names = ", ".join(written(file) for file in files[:count])
    return f"{names} and {len(files) - count} more" if len(files) > count else names or "none"


# --- searches: one round, and what was hit is reported ------------------------------------------------------


def _searching(searches: Callable[[Order], list[Call]], hit_is: str, hits_are: str) -> Question:
    def findings(order: Order, evidence: Evidence) -> list[Finding]:
        return _hits(searches(order), evidence)

    def summary(order: Order, evidence: Evidence) -> str:
        hits = findings(order, evidence)
        if not hits:
            return f"no {hits_are}"
        return f"{len(hits)} {hit_is if len(hits) == 1 else hits_are}, in {mentioned(files_in(hits))}"

    return Question(searches, _nothing, findings, summary)


def _marker_searches(_: Order) -> list[Call]:
    return [Call("search", {"pattern": pattern, "limit": 12, "per_file": 3}) for pattern in _MARKERS]


def _reference_searches(_: Order) -> list[Call]:
    return [Call("search", {"pattern": pattern, "limit": 10, "per_file": 1}) for pattern in _REFERENCES]


def _outline_searches(order: Order) -> list[Call]:
    if not order.types:
        return [Call("search", {"pattern": _WORDS_AT_MARGIN, "limit": 12, "per_file": 2})]
    patterns = {kind: _OUTLINES.get(kind, _WORDS_AT_MARGIN) for kind in order.types}
    return [
        Call("search", {"pattern": pattern, "glob": f"*{kind}", "limit": 12, "per_file": 2})
        for kind, pattern in patterns.items()
    ]


_MARKED = _searching(
    _marker_searches, "line with a marker of unfinished work", "lines with a marker of unfinished work"
)
_OUTLINE = _searching(_outline_searches, "heading or definition", "headings and definitions")
_POINTING = _searching(_reference_searches, "line that points elsewhere", "lines that point elsewhere")


# --- sizes ------------------------------------------------------------------------------------------------


def _size_calls(_: Order) -> list[Call]:
    return [LIST_ALL, _LONG, _DEEP]


def _largest_files(_: Order, evidence: Evidence) -> list[Call]:
    return [Call("read", {"path": path, "limit": 3}) for path, _ in folder(evidence).largest[:READS_MAX]]


def _sizes(order: Order, evidence: Evidence) -> list[Finding]:
    openings = [lines[0] for lines in _read(_largest_files(order, evidence), evidence)]
    return _unique([*openings, *_hits(_size_calls(order), evidence)])


def _sizes_summary(_: Order, evidence: Evidence) -> str:
    largest = [f"{written(path)} ({size} bytes)" for path, size in folder(evidence).largest[:3]]
    long_lines = len(_hits([_LONG], evidence))
    return f"largest: {', '.join(largest) or 'none'}; {long_lines} lines of 120 characters or more"


# --- reading ----------------------------------------------------------------------------------------------


def places_of(seen: Listing) -> list[str]:
    """The top of the folder: its subfolders, fullest first; `.` stands for the files beside them."""
    tops = [path.partition("/")[0] if "/" in path else "." for path, _ in seen.files]
    return sorted(set(tops), key=lambda top: (-tops.count(top), top))


def _place_searches(order: Order) -> list[Call]:
    return [
        Call(
            "search", {"pattern": r"\S", "path": place, "recursive": place != ".", "limit": 8, "per_file": 1}
        )
        for place in order.places[:PLACES_MAX]
    ]


def _look_at_places(order: Order) -> list[Call]:
    lists = [Call("list", {"path": place, "recursive": place != "."}) for place in order.places[:PLACES_MAX]]
    return [*lists, *_place_searches(order)]


def _ends_of_files(order: Order, evidence: Evidence) -> list[Call]:
    """How a file begins the search has told already."""
    files = files_in(_hits(_place_searches(order), evidence)) if order.closing else []
    return [Call("read", {"path": file, "start": -12, "limit": 12}) for file in files[:READS_MAX]]


def _reading(order: Order, evidence: Evidence) -> list[Finding]:
    if not order.closing:
        return _hits(_place_searches(order), evidence)
    return [lines[-1] for lines in _read(_ends_of_files(order, evidence), evidence)]


def _reading_summary(order: Order, evidence: Evidence) -> str:
    part = "last lines" if order.closing else "first lines"
    files = files_in(_reading(order, evidence))
    unread = len(order.places) - PLACES_MAX
    left_out = f"; {unread} more places were not looked at" if unread > 0 else ""
    return f"{part} of {len(files)} files: {mentioned(files)}{left_out}"


# --- alone: everything at once, when there is nobody to give it to ------------------------------------------


def _all_searches(order: Order) -> list[Call]:
    return [*_marker_searches(order), *_outline_searches(order), *_size_calls(order)]


def _everything(order: Order, evidence: Evidence) -> list[Finding]:
    return _unique(
        [*_MARKED.findings(order, evidence), *_OUTLINE.findings(order, evidence), *_sizes(order, evidence)]
    )


def _everything_summary(order: Order, evidence: Evidence) -> str:
    return f"{_MARKED.summary(order, evidence)}; {_sizes_summary(order, evidence)}"


QUESTIONS: Mapping[str, Question] = {
    "markers": _MARKED,
    "outline": _OUTLINE,
    "references": _POINTING,
    "sizes": Question(_size_calls, _largest_files, _sizes, _sizes_summary),
    "reading": Question(_look_at_places, _ends_of_files, _reading, _reading_summary),
    "alone": Question(_all_searches, _largest_files, _everything, _everything_summary),
}
