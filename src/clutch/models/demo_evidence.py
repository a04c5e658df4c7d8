"""What the demo model can be asked, and what it reads from a transcript: the results of its calls, and the reports of
its subagents.

The results of tools are parsed in their documented form: `list` prints a kind or size, two spaces and a path; `search`
prints `path:line: text`; `read` a number, two spaces and the line; notices are in parentheses. A path that could be
misread is a JSON string."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

from clutch.core.messages import Answer, Call, Input, Message, Result, Results, Transcript
from clutch.core.text.format import size
from clutch.core.text.tasks import parse_fences

TRIES_MAX = 2  #: a call without a result is made once more; a second failure is final
TEXT_CHARS_MAX = 160

Pair = tuple[Call, Result]

_PATH = r'"(?:[^"\\]|\\.)*"|[^":]+'
_LISTED = re.compile(r" *([a-z]+|\d+)  (.+)")
_MATCHED = re.compile(rf"({_PATH}):(\d+): (.*)", re.DOTALL)
_READ = re.compile(r" *(\d+)  (.*)", re.DOTALL)
_FINDING = re.compile(rf"- ({_PATH}):(\d+): (.*)", re.DOTALL)


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
    """Return the findings in an answer, one per line `- file:line: text`."""
    return tuple(_found(_FINDING, text))


def _found(form: re.Pattern[str], text: str) -> Iterator[Finding]:
    hits = (form.fullmatch(line) for line in text.split("\n"))
    return (Finding(named(hit[1]), int(hit[2]), hit[3]) for hit in hits if hit)


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
    return list(_found(_MATCHED, text))


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
# The questions. Each is one or two rounds of tool calls, the second chosen from the results of the first, and a
# report. A report contains only what a tool returned.

READS_MAX = 4
PLACES_MAX = 4

LIST_ALL = Call("list", {"path": ".", "recursive": True})


def _search(pattern: str, limit: int = 12, per_file: int = 2, **where: Any) -> Call:
    return Call("search", {"pattern": pattern, "limit": limit, "per_file": per_file, **where})


_MARKERS = (
    _search(r"\b(?:TODO|FIXME)\b", per_file=3),
    _search(r"\b(?:XXX|HACK|BUG)\b", per_file=3),
    _search(r"(?i)\b(?:deprecated|obsolete)\b", per_file=3),
    _search(r"(?i)\b(?:workaround|not implemented|NotImplementedError)\b", per_file=3),
)
_OUTLINE = (
    _search(r"^#{1,4} \S", limit=20),
    _search(
        r"^\s*(?:(?:pub|public|private|static|export|async|abstract)\s+)*"
        r"(?:def|class|function|func|fn|struct|enum|trait|impl|interface|type|const) \w+",
        limit=20,
    ),
    _search(r"^\[[^\]]+\]|^[A-Za-z_][\w-]*:(?: |$)|^\s*(?i:create) |<(?:title|h[1-3])\b"),
    _search(r"^[^\W\d_][^{}();=:]{2,70}$", per_file=1),
)
_REFERENCES = (
    _search(r"https?://[^\s\"'<>)]+", 10, 1),
    _search(r"^\s*(?:from \S+ import|import|#include|require|use|source)\b\s*\S+", 10, 1),
    _search(r"(?i)\bsee (?:also )?[`'\"(\[]?\w", 10, 1),
)
_SIZES = (LIST_ALL, _search(r"^.{120}"), _search(r"^(?: {20}|\t{5})\s*\S", 4, 1))


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    hit: str  #: what one finding is
    hits: str
    steps: tuple[str, ...]  #: for a plan
    calls: tuple[Call, ...] = ()  #: the first round; empty: a search in each place of the request
    reads_largest: bool = False  #: the second round reads the largest files, and not those that were found


QUESTIONS: Mapping[str, DemoQuestion] = {
    "markers": DemoQuestion(
        "line marked as unfinished", "lines marked as unfinished",
        ("Search for TODO and FIXME.", "Search for XXX, HACK and BUG.", "Search for deprecated and obsolete.",
         "Search for workarounds and for what is not implemented."),
        _MARKERS,
    ),
    "outline": DemoQuestion(
        "heading or definition", "headings and definitions",
        ("Search for headings.", "Search for definitions of functions, classes and types.",
         "Search for sections and keys of config files.", "Search for lines that look like titles."),
        _OUTLINE,
    ),
    "references": DemoQuestion(
        "line that points elsewhere", "lines that point elsewhere",
        ("Search for web addresses.", "Search for imports and includes.", "Search for lines with \"see …\"."),
        _REFERENCES,
    ),
    "sizes": DemoQuestion(
        "large file or long line", "large files and long lines",
        ("List all files with their sizes.", "Search for lines of 120 characters and more.",
         "Search for deeply indented lines.", f"Read the first lines of the {READS_MAX} largest files."),
        _SIZES, reads_largest=True,
    ),
    "reading": DemoQuestion(
        "beginning of a file", "beginnings of files",
        (f"Search up to {PLACES_MAX} subfolders for the first line of each file.",
         f"Read the first lines of {READS_MAX} of these files."),
    ),
    "overview": DemoQuestion(
        "notable line", "notable lines",
        ("Find the lines marked as unfinished.", "Find the headings and definitions.",
         "Find the largest files and the longest lines."),
        (*_MARKERS, *_OUTLINE, *_SIZES), reads_largest=True,
    ),
}  # fmt: skip
#: The two that an agent passes on to subagents.
SURVEY, PLACES = "survey", "places"

_SURVEY = re.compile(r"(?im)^\s*survey\b")


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """The request of a task, written as the lines `question: markers` and `in: ["src"]`."""

    question: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        places = f"\nin: {json.dumps(self.places)}" if self.places else ""
        return f"question: {self.question}{places}"


def request_in(task: str) -> DemoRequest | None:
    said = dict(re.findall(r"(?m)^(question|in): (.*)$", task))
    if said.get("question") not in (*QUESTIONS, PLACES):
        return DemoRequest(SURVEY) if _SURVEY.search(task) else None
    try:
        names: Any = json.loads(said.get("in", "[]"))
    except ValueError:
        names = []
    places = names if isinstance(names, list) else []
    return DemoRequest(said["question"], tuple(name for name in places if isinstance(name, str)))


def _first_calls(request: DemoRequest) -> Sequence[Call]:
    """Return the first round of calls. `.` stands for the files beside the subfolders."""
    places = (request.places or (".",))[:PLACES_MAX]
    beginnings = [_search(r"\S", 8, 1, path=place, recursive=place != ".") for place in places]
    return QUESTIONS[request.question].calls or beginnings


def calls_of(request: DemoRequest, evidence: DemoEvidence) -> list[Call]:
    """Return the calls of both rounds, as far as the evidence determines them."""
    first = list(_first_calls(request))
    question = QUESTIONS[request.question]
    if question.reads_largest:
        files = [path for path, _ in folder(evidence).largest]
    else:
        files = [] if question.calls else files_in(_hits(first, evidence))
    return [*first, *(Call("read", {"path": file, "limit": 3}) for file in files[:READS_MAX])]


def findings_in(calls: Iterable[Call], evidence: DemoEvidence) -> list[Finding]:
    """Return the first line of each file that was read, then the hits of the searches."""
    calls = list(calls)
    read = (lines_read(call.args["path"], evidence.text(call) or "") for call in calls if call.name == "read")
    found = [*(lines[0] for lines in read if lines), *_hits(calls, evidence)]
    return list({(one.file, one.line): one for one in found}.values())


def _hits(calls: Iterable[Call], evidence: DemoEvidence) -> list[Finding]:
    """Return the hits in turn from each search, so that one search does not displace the others."""
    answers = [matched(evidence.text(call) or "") for call in calls if call.name == "search"]
    return [hit for row in zip_longest(*answers) for hit in row if hit is not None]


def folder(evidence: DemoEvidence) -> Listing:
    return listing(evidence.text(LIST_ALL) or "")


def places_of(seen: Listing) -> tuple[str, ...]:
    """Return the subfolders by number of files, largest first; `.` stands for the files beside them."""
    tops = [path.partition("/")[0] if "/" in path else "." for path, _ in seen.files]
    return tuple(sorted(set(tops), key=lambda top: (-tops.count(top), top)))


def files_in(findings: Iterable[Finding]) -> list[str]:
    return list(dict.fromkeys(found.file for found in findings))


def mentioned(files: Sequence[str], count: int = 3) -> str:
    names = ", ".join(written(file) for file in files[:count])
    return f"{names} and {len(files) - count} more" if len(files) > count else names or "no file"


def largest(seen: Listing, count: int = 3) -> str:
    return ", ".join(f"{written(path)} ({size(length)})" for path, length in seen.largest[:count])
