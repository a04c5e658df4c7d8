"""What a transcript shows: which calls were answered with what, and what children reported.

Everything the scripted model knows comes from here. Lines of tools are read in the form the tools document:
`list` gives a kind or size, two spaces and a path; `search` gives `path:line: text`; `read` a number, two
spaces and the line; notices stand in parentheses. A path that could be misread is a JSON string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from clutch.core.messages import Answer, Call, Input, Message, Result, Results, Transcript
from clutch.core.wording import parse_fences

TRIES_MAX = 2  # a call whose outcome was lost is made once more; one that failed twice is a fact
TEXT_CHARS_MAX = 160

Pair = tuple[Call, Result]

_PATH = r'"(?:[^"\\]|\\.)*"|[^":]+'
_LISTED = re.compile(r" *([a-z]+|\d+)  (.+)")
_MATCHED = re.compile(rf"({_PATH}):(\d+): (.*)", re.DOTALL)
_READ = re.compile(r" *(\d+)  (.*)", re.DOTALL)
_FINDING = re.compile(rf"FINDING ({_PATH}):(\d+): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of one file, as a tool gave it."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{written(self.file)}:{self.line}: {tidy(self.text)}"


@dataclass(frozen=True, slots=True)
class Listing:
    """The answer of `list`. `others`: links, pipes, names that are not UTF-8, folders never entered."""

    files: tuple[tuple[str, int], ...] = ()
    folders: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    notice: str = ""

    @property
    def largest(self) -> list[tuple[str, int]]:
        return sorted(self.files, key=lambda file: (-file[1], file[0]))


@dataclass(frozen=True, slots=True)
class Report:
    """What the runtime said of one child. `text` is None when there was none or it was not passed on."""

    label: str
    task_id: str
    status: str
    text: str | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return findings_of(self.text or "")


def written(path: str) -> str:
    """A path in a line of text: itself when nothing in it can be misread, else JSON."""
    is_plain = path.isprintable() and path == path.strip() and not set(path) & set(':"\\')
    return path if is_plain else json.dumps(path)


def named(text: str) -> str:
    """The path behind `written`."""
    return str(json.loads(text)) if text.startswith('"') else text


def tidy(text: str) -> str:
    """One line of visible characters: a file may hold anything, also what moves a terminal's cursor."""
    words = " ".join(text.split())
    visible = "".join(char if char.isprintable() else "\ufffd" for char in words[: TEXT_CHARS_MAX + 1])
    return visible if len(visible) <= TEXT_CHARS_MAX else visible[:TEXT_CHARS_MAX] + "…"


def findings_of(text: str) -> tuple[Finding, ...]:
    """The findings a child wrote into its answer, one per `FINDING file:line: text`."""
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
class Evidence:
    """One job and all that came after it."""

    job: Input
    after: tuple[Message, ...]

    @property
    def pairs(self) -> list[Pair]:
        return list(pairs(self.after))

    def text(self, call: Call) -> str | None:
        """What the call gave, if it was made and gave something."""
        given = [result.text for made, result in self.pairs if _same(made, call) and not result.failed]
        return given[-1] if given else None

    def missing(self, wanted: Iterable[Call]) -> tuple[Call, ...]:
        """Those not answered yet. Two equal ones count once."""
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
    def reports(self) -> dict[str, Report]:
        """By task id, the newest of each, in the order they first came."""
        told: dict[str, Report] = {}
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


def since(transcript: Transcript, job: Input) -> Evidence:
    """`job` is found by identity: the same words may have been said before."""
    at = next(index for index, message in enumerate(transcript) if message is job)
    return Evidence(job, tuple(transcript[at + 1 :]))


def _same(one: Call, other: Call) -> bool:
    return one.name == other.name and dict(one.args) == dict(other.args)


_LABEL = r'"((?:[^"\\]|\\.)*)"'
_HEADER = re.compile(rf"\[Subagent\] {_LABEL} (.+)|--- Task \d+: {_LABEL} \((.+)\) ---")
_TASK = re.compile(r"task: (\S+) session: .*")
_OLDER = re.compile(rf"(t_\S+) {_LABEL} (.*)")
_ABSENT = re.compile(rf"Not among these: {_LABEL} \((\S+)\): (.*)")


def reports_in(message: str) -> Iterator[Report]:
    """The children one message of the runtime tells of, those it only names included."""
    body, _, older = message.partition("\nOlder results, one line each")
    for block in _blocks(body.split("\n")):
        yield from _report(block)
    for line in (line for fenced in parse_fences(older)[:1] for line in fenced.text.split("\n")):
        if hit := _OLDER.fullmatch(line):
            yield Report(hit[2], hit[1], hit[3])
    for line in message.split("\n"):
        if hit := _ABSENT.fullmatch(line):
            yield Report(hit[1], hit[2], f"did not report: {hit[3]}")


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """Child text cannot pose as a header: inside a fence every line begins with a bar."""
    starts = [at for at, line in enumerate(lines) if _HEADER.fullmatch(line)]
    for start, end in pairwise([*starts, len(lines)]):
        yield list(lines[start:end])


def _report(block: Sequence[str]) -> Iterator[Report]:
    header = _HEADER.fullmatch(block[0])
    task = next((hit[1] for line in block if (hit := _TASK.fullmatch(line))), "")
    if header is None or not task:
        return
    fences = parse_fences("\n".join(block))
    is_whole = "Findings:" in block
    text = fences[0].text if fences else None
    status = header[2] or header[4]
    yield Report(
        label=header[1] or header[3] or "",
        task_id=task,
        status=status if is_whole or text is None else f"{status}; only its summary was passed on",
        text=text,
    )
