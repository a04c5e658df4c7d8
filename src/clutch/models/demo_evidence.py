"""What the demo model reads from a transcript: the results of its calls, and the reports of its children.

The results of tools are parsed in their documented form: `list` prints a kind or size, two spaces and a path; `search`
prints `path:line: text`; `read` a number, two spaces and the line; notices are in parentheses. A path that could be
misread is a JSON string."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

from clutch.core.messages import Answer, Call, Input, Message, Result, Results, Transcript
from clutch.core.text.results import parse_fences

TRIES_MAX = 2  #: a call without a result is made once more; a second failure is final
TEXT_CHARS_MAX = 160

Pair = tuple[Call, Result]

_PATH = r'"(?:[^"\\]|\\.)*"|[^":]+'
_LISTED = re.compile(r" *([a-z]+|\d+)  (.+)")
_MATCHED = re.compile(rf"({_PATH}):(\d+): (.*)", re.DOTALL)
_READ = re.compile(r" *(\d+)  (.*)", re.DOTALL)
_FINDING = re.compile(rf"FINDING ({_PATH}):(\d+): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of one file, as a tool returned it."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{written(self.file)}:{self.line}: {tidy(self.text)}"


@dataclass(frozen=True, slots=True)
class Listing:
    """The result of `list`. `others`: links, pipes, names that are not UTF-8, folders that are not listed."""

    files: tuple[tuple[str, int], ...] = ()
    folders: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    notice: str = ""

    @property
    def largest(self) -> list[tuple[str, int]]:
        return sorted(self.files, key=lambda file: (-file[1], file[0]))


@dataclass(frozen=True, slots=True)
class ChildReport:
    """What the runtime reported of one child. `text` is None when there was none or it was left out."""

    label: str
    task_id: str
    status: str
    text: str | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return findings_of(self.text or "")


def written(path: str) -> str:
    """Return the path for a line of text, as JSON if it could be misread."""
    is_plain = path.isprintable() and path == path.strip() and not set(path) & set(':"\\')
    return path if is_plain else json.dumps(path)


def named(text: str) -> str:
    """Return the path that `written` wrote."""
    return str(json.loads(text)) if text.startswith('"') else text


def tidy(text: str) -> str:
    """Return one line of visible characters: a file may contain control characters."""
    words = " ".join(text.split())
    visible = "".join(char if char.isprintable() else "\ufffd" for char in words[: TEXT_CHARS_MAX + 1])
    return visible if len(visible) <= TEXT_CHARS_MAX else visible[:TEXT_CHARS_MAX] + "…"


def findings_of(text: str) -> tuple[Finding, ...]:
    """Return the findings in a child's answer, one per line `FINDING file:line: text`."""
    found = (_FINDING.fullmatch(line) for line in text.split("\n"))
    return tuple(Finding(named(hit[1]), int(hit[2]), hit[3]) for hit in found if hit)


def listing(text: str) -> Listing:
    *lines, notice = text.split("\n")
    rows = [(hit[1], named(hit[2])) for line in lines if (hit := _LISTED.fullmatch(line))]
    return Listing(
        files=tuple((path, int(kind)) for kind, path in rows if kind.isdecimal()),
        folders=tuple(path for kind, path in rows if kind == "dir"),
        others=tuple(path for kind, path in rows if not kind.isdecimal() and kind != "dir"),
        notice=notice,
    )


def matched(text: str) -> list[Finding]:
    found = (_MATCHED.fullmatch(line) for line in text.split("\n"))
    return [Finding(named(hit[1]), int(hit[2]), hit[3]) for hit in found if hit]


def lines_read(path: str, text: str) -> list[Finding]:
    found = (_READ.fullmatch(line) for line in text.split("\n"))
    return [Finding(path, int(hit[1]), hit[2]) for hit in found if hit and hit[2].strip()]


@dataclass(frozen=True, slots=True)
class DemoEvidence:
    """One job and the messages after it."""

    job: Input
    after: tuple[Message, ...]

    @property
    def pairs(self) -> list[Pair]:
        return list(pairs(self.after))

    def text(self, call: Call) -> str | None:
        """Return the result of the call; None if it was not made or failed."""
        given = [result.text for made, result in self.pairs if _same(made, call) and not result.failed]
        return given[-1] if given else None

    def missing(self, wanted: Iterable[Call]) -> tuple[Call, ...]:
        """Return the calls without a result. Equal calls count once."""
        missing: list[Call] = []
        for call in wanted:
            tries = sum(_same(made, call) for made, _ in self.pairs)
            if self.text(call) is None and tries < TRIES_MAX and not any(_same(call, one) for one in missing):
                missing.append(call)
        return tuple(missing)

    @property
    def inputs(self) -> list[Input]:
        return [message for message in self.after if isinstance(message, Input)]

    @property
    def reports(self) -> dict[str, ChildReport]:
        """Return the newest report of each task, in the order of the first ones."""
        told: dict[str, ChildReport] = {}
        for text in self._told():
            told.update((report.task_id, report) for report in reports_in(text))
        return told

    def _told(self) -> Iterator[str]:
        for message in self.after:
            match message:
                case Input(text=text, source="announce"):
                    yield text
                case Results(results=results):
                    yield from (result.text for result in results if result.name == "sessions_yield")
                case _:
                    continue


def pairs(messages: Sequence[Message]) -> Iterator[Pair]:
    calls: tuple[Call, ...] = ()
    for message in messages:
        match message:
            case Answer():
                calls = message.calls
            case Results():
                known = (result for result in message.results if result.index < len(calls))
                yield from ((calls[result.index], result) for result in known)
            case Input():
                continue


def since(transcript: Transcript, job: Input) -> DemoEvidence:
    """Return the evidence after `job`, which is found by identity: an equal text may precede it."""
    at = next(index for index, message in enumerate(transcript) if message is job)
    return DemoEvidence(job, tuple(transcript[at + 1 :]))


def _same(one: Call, other: Call) -> bool:
    return one.name == other.name and dict(one.args) == dict(other.args)


_LABEL = r'"((?:[^"\\]|\\.)*)"'
_HEADER = re.compile(rf"\[Subagent\] {_LABEL} (.+)|--- Task \d+: {_LABEL} \((.+)\) ---")
_TASK = re.compile(r"task: (\S+) session: .*")
_OLDER = re.compile(rf"(t_\S+) {_LABEL} (.*)")
_ABSENT = re.compile(rf"Not among these: {_LABEL} \((\S+)\): (.*)")


def reports_in(message: str) -> Iterator[ChildReport]:
    """Yield the reports in one message of the runtime, with children that it only names."""
    body, _, older = message.partition("\nOlder results, one line each")
    for block in _blocks(body.split("\n")):
        yield from _report(block)
    for line in (line for fenced in parse_fences(older)[:1] for line in fenced.text.split("\n")):
        if hit := _OLDER.fullmatch(line):
            yield ChildReport(hit[2], hit[1], hit[3])
    for line in message.split("\n"):
        if hit := _ABSENT.fullmatch(line):
            yield ChildReport(hit[1], hit[2], f"did not report: {hit[3]}")


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Split at the headers. A child's text cannot imitate one: inside a fence every line begins with a bar."""
    starts = [at for at, line in enumerate(lines) if _HEADER.fullmatch(line)]
    for start, end in pairwise([*starts, len(lines)]):
        yield list(lines[start:end])


def _report(block: Sequence[str]) -> Iterator[ChildReport]:
    header = _HEADER.fullmatch(block[0])
    task = next((hit[1] for line in block if (hit := _TASK.fullmatch(line))), "")
    if header is None or not task:
        return
    fences = parse_fences("\n".join(block))
    is_whole = "Findings:" in block
    text = fences[0].text if fences else None
    status = header[2] or header[4]
    yield ChildReport(
        label=header[1] or header[3] or "",
        task_id=task,
        status=status if is_whole or text is None else f"{status}; only its summary was passed on",
        text=text,
    )


# --------------------------------------------------------------------------------------------------
# The questions that a child can answer about a folder.
#
# A question is one or two rounds of tool calls, the second chosen from the results of the first, and a report. A report
# contains only what a tool returned.

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
#: Patterns of outline lines, by suffix of the file name.
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
class DemoRequest:
    """The request of a task, written as lines like `question: markers` and `in: ["src"]`."""

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
class DemoQuestion:
    first: Callable[[DemoRequest], Sequence[Call]]
    second: Callable[[DemoRequest, DemoEvidence], Sequence[Call]]
    findings: Callable[[DemoRequest, DemoEvidence], Sequence[Finding]]
    summary: Callable[[DemoRequest, DemoEvidence], str]


def order_in(task: str) -> DemoRequest | None:
    said = _said(task)
    if said.get("question") not in QUESTIONS:
        return None
    return DemoRequest(
        said["question"],
        _names(said.get("in")) or (".",),
        _names(said.get("types")),
        closing=said.get("part") == "closing",
    )


def places_in(task: str) -> tuple[str, ...]:
    """Return the places that a task names."""
    return _names(_said(task).get("in"))


def _said(task: str) -> dict[str, str]:
    return dict(re.findall(r"(?m)^(question|in|types|part): (.*)$", task))


def _names(text: str | None) -> tuple[str, ...]:
    try:
        names: Any = json.loads(text or "[]")
    except ValueError:
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def _nothing(_: DemoRequest, __: DemoEvidence) -> list[Call]:
    return []


def calls_of(order: DemoRequest, evidence: DemoEvidence) -> tuple[Call, ...]:
    """Return the calls that are still to be made; none when the question can be answered."""
    question = QUESTIONS[order.question]
    return evidence.missing(question.first(order)) or evidence.missing(question.second(order, evidence))


# --- reading the answers ----------------------------------------------------------------------------------


def folder(evidence: DemoEvidence, call: Call = LIST_ALL) -> Listing:
    return listing(evidence.text(call) or "")


def _hits(calls: Iterable[Call], evidence: DemoEvidence) -> list[Finding]:
    """Return the hits in turn from each search, so that one search does not displace the others."""
    answers = [matched(evidence.text(call) or "") for call in calls if call.name == "search"]
    return _unique(hit for row in zip_longest(*answers) for hit in row if hit is not None)


def _unique(findings: Iterable[Finding]) -> list[Finding]:
    return list({(found.file, found.line): found for found in findings}.values())


def files_in(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(found.file for found in findings))


def _read(calls: Iterable[Call], evidence: DemoEvidence) -> list[list[Finding]]:
    """Return the lines of each file that is not empty."""
    read = (lines_read(call.args["path"], evidence.text(call) or "") for call in calls if call.name == "read")
    return [lines for lines in read if lines]


def mentioned(files: Sequence[str], count: int = 3) -> str:
    names = ", ".join(written(file) for file in files[:count])
    return f"{names} and {len(files) - count} more" if len(files) > count else names or "none"


# --- searches: one round, and the hits are reported ---------------------------------------------------------


def _searching(searches: Callable[[DemoRequest], list[Call]], hit_is: str, hits_are: str) -> DemoQuestion:
    def findings(order: DemoRequest, evidence: DemoEvidence) -> list[Finding]:
        return _hits(searches(order), evidence)

    def summary(order: DemoRequest, evidence: DemoEvidence) -> str:
        hits = findings(order, evidence)
        if not hits:
            return f"no {hits_are}"
        return f"{len(hits)} {hit_is if len(hits) == 1 else hits_are}, in {mentioned(files_in(hits))}"

    return DemoQuestion(searches, _nothing, findings, summary)


def _marker_searches(_: DemoRequest) -> list[Call]:
    return [Call("search", {"pattern": pattern, "limit": 12, "per_file": 3}) for pattern in _MARKERS]


def _reference_searches(_: DemoRequest) -> list[Call]:
    return [Call("search", {"pattern": pattern, "limit": 10, "per_file": 1}) for pattern in _REFERENCES]


def _outline_searches(order: DemoRequest) -> list[Call]:
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


def _size_calls(_: DemoRequest) -> list[Call]:
    return [LIST_ALL, _LONG, _DEEP]


def _largest_files(_: DemoRequest, evidence: DemoEvidence) -> list[Call]:
    return [Call("read", {"path": path, "limit": 3}) for path, _ in folder(evidence).largest[:READS_MAX]]


def _sizes(order: DemoRequest, evidence: DemoEvidence) -> list[Finding]:
    openings = [lines[0] for lines in _read(_largest_files(order, evidence), evidence)]
    return _unique([*openings, *_hits(_size_calls(order), evidence)])


def _sizes_summary(_: DemoRequest, evidence: DemoEvidence) -> str:
    largest = [f"{written(path)} ({size} bytes)" for path, size in folder(evidence).largest[:3]]
    long_lines = len(_hits([_LONG], evidence))
    return f"largest: {', '.join(largest) or 'none'}; {long_lines} lines of 120 characters or more"


# --- reading ----------------------------------------------------------------------------------------------


def places_of(seen: Listing) -> list[str]:
    """Return the subfolders by number of files, largest first; `.` stands for the files beside them."""
    tops = [path.partition("/")[0] if "/" in path else "." for path, _ in seen.files]
    return sorted(set(tops), key=lambda top: (-tops.count(top), top))


def _place_searches(order: DemoRequest) -> list[Call]:
    return [
        Call(
            "search", {"pattern": r"\S", "path": place, "recursive": place != ".", "limit": 8, "per_file": 1}
        )
        for place in order.places[:PLACES_MAX]
    ]


def _look_at_places(order: DemoRequest) -> list[Call]:
    lists = [Call("list", {"path": place, "recursive": place != "."}) for place in order.places[:PLACES_MAX]]
    return [*lists, *_place_searches(order)]


def _ends_of_files(order: DemoRequest, evidence: DemoEvidence) -> list[Call]:
    """Return the reads of the ends of files; the search has returned their beginnings."""
    files = files_in(_hits(_place_searches(order), evidence)) if order.closing else []
    return [Call("read", {"path": file, "start": -12, "limit": 12}) for file in files[:READS_MAX]]


def _reading(order: DemoRequest, evidence: DemoEvidence) -> list[Finding]:
    if not order.closing:
        return _hits(_place_searches(order), evidence)
    return [lines[-1] for lines in _read(_ends_of_files(order, evidence), evidence)]


def _reading_summary(order: DemoRequest, evidence: DemoEvidence) -> str:
    part = "last lines" if order.closing else "first lines"
    files = files_in(_reading(order, evidence))
    unread = len(order.places) - PLACES_MAX
    left_out = f"; {unread} more places were not looked at" if unread > 0 else ""
    return f"{part} of {len(files)} files: {mentioned(files)}{left_out}"


# --- alone: everything at once, without children ------------------------------------------------------------


def _all_searches(order: DemoRequest) -> list[Call]:
    return [*_marker_searches(order), *_outline_searches(order), *_size_calls(order)]


def _everything(order: DemoRequest, evidence: DemoEvidence) -> list[Finding]:
    return _unique(
        [*_MARKED.findings(order, evidence), *_OUTLINE.findings(order, evidence), *_sizes(order, evidence)]
    )


def _everything_summary(order: DemoRequest, evidence: DemoEvidence) -> str:
    return f"{_MARKED.summary(order, evidence)}; {_sizes_summary(order, evidence)}"


QUESTIONS: Mapping[str, DemoQuestion] = {
    "markers": _MARKED,
    "outline": _OUTLINE,
    "references": _POINTING,
    "sizes": DemoQuestion(_size_calls, _largest_files, _sizes, _sizes_summary),
    "reading": DemoQuestion(_look_at_places, _ends_of_files, _reading, _reading_summary),
    "alone": DemoQuestion(_all_searches, _largest_files, _everything, _everything_summary),
}
