"""The files of OpenClaw as records: its registry of runs, its session index, its transcripts.

This module turns text into records: it reads no file, knows no table of Clutch and trusts nothing. A field of a wrong
type counts as missing; a line that cannot be read is an `ImportProblem`, never an exception.

    subagents/runs.json                    {"version": 1 | 2, "runs": {runId: record}}
    subagent-registry.json                 the same in the first versions, also without a version
    state/openclaw.sqlite                  since 2026.6: table subagent_runs, in columns or one `payload_json`
    agents/<id>/sessions/sessions.json     {sessionKey: entry}
    agents/<id>/sessions/<sessionId>.jsonl one entry a line; those of type "message" are the transcript

Times are milliseconds. A record may have the same value in an old and in a new place; both are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from clutch.core.messages import Answer, Call, Input, Message, Result, Results, Usage, whole
from clutch.core.model import Outcome

MILLISECONDS_MAX = 4e12  #: a hundred years from the epoch; a larger number is no time
PROBLEMS_MAX = 20  #: of one file; a file that is no text at all has thousands
TOKENS_MAX = 10**12

OUTCOMES: Mapping[str, Outcome] = {
    "ok": Outcome.OK,
    "done": Outcome.OK,
    "error": Outcome.ERROR,
    "failed": Outcome.ERROR,
    "timeout": Outcome.TIMEOUT,
    "killed": Outcome.KILLED,
    "unknown": Outcome.LOST,
}
DELIVERED_STATES = frozenset({"delivered", "discarded", "not_required"})
#: Each is a time at which the result had been delivered.
DELIVERED_AT_FIELDS = ("completionAnnouncedAt", "announceCompletedAt", "cleanupCompletedAt")
RESULTS = ("resultText", "frozenResultText", "fallbackResultText", "fallbackFrozenResultText")


@dataclass(frozen=True, slots=True)
class ImportProblem:
    file: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the registry. `outcome` None: it had not ended."""

    run_id: str
    key: str  #: of the child's session
    requester: str
    task: str
    label: str | None
    model: str | None
    created_at: float | None
    started_at: float | None
    ended_at: float | None
    outcome: Outcome | None
    error: str | None
    text: str | None
    is_delivered: bool


@dataclass(frozen=True, slots=True)
class OpenClawSession:
    """One entry of a session index. `run`: as far as the index knows it."""

    run: Run
    session_id: str
    file: str | None  #: the name of its transcript, where it is not the usual one
    depth: int


@dataclass(frozen=True, slots=True)
class OpenClawTranscript:
    """A transcript, and the time of each of its messages."""

    messages: tuple[Message, ...] = ()
    times: tuple[float | None, ...] = ()
    prices: tuple[Decimal | None, ...] = ()  #: of its answers, in order

    @property
    def final_text(self) -> str | None:
        texts = (one.text for one in reversed(self.messages) if isinstance(one, Answer) and not one.calls)
        return next((text for text in texts if text.strip()), None)


@dataclass(slots=True)
class FileProblems:
    """Collects the problems of one file."""

    file: str
    problems: list[ImportProblem] = field(default_factory=list)
    left_out: int = 0
    is_unreadable: bool = False  #: no part of the file could be read
    unread: set[str] = field(default_factory=set)  #: sessions of records that could not be read

    def wrong(self, line: int, what: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(ImportProblem(self.file, line, what))
        else:
            self.left_out += 1

    def not_at_all(self, what: str) -> None:
        self.is_unreadable = True
        if not self.problems:
            self.wrong(1, what)

    def done(self) -> list[ImportProblem]:
        if self.left_out:
            self.problems.append(ImportProblem(self.file, 0, f"{self.left_out} more like these"))
            self.left_out = 0
        return self.problems

    def json(self, text: str, line: int = 0) -> Any:
        """Return the parsed text, None where it is not JSON. `line` 0: the text is the whole file."""
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            self.wrong(line or error.lineno, f"is not JSON: {error.msg}")
        except (ValueError, RecursionError):
            self.wrong(line or 1, "is not JSON: a number or a nesting beyond all bounds")
        return None


# ---- the registry ------------------------------------------------------------------------------------------


#: Columns of the table of runs in every known layout.
RUN_COLUMNS = frozenset({"run_id", "child_session_key", "requester_session_key", "created_at"})
#: One of them is in each of the two layouts: all fields in one text, or each in a column of its own.
LAYOUT_COLUMNS = frozenset({"payload_json", "outcome_json"})


def runs(text: str, reading: FileProblems) -> list[Run]:
    said = reading.json(text)
    stored = _mapping(said).get("runs")
    if not isinstance(stored, Mapping) or _mapping(said).get("version", 1) not in (1, 2):
        reading.not_at_all("is no registry of runs in version 1 or 2")
        return []
    return _records(((_text(run_id), _mapping(record)) for run_id, record in stored.items()), reading)


def table_runs(rows: Sequence[Mapping[str, Any]], reading: FileProblems) -> list[Run]:
    """Read rows of the table `subagent_runs`, by the names of its columns."""
    return _records(((_text(row.get("run_id")), _table_record(row, reading)) for row in rows), reading)


def _table_record(row: Mapping[str, Any], reading: FileProblems) -> Mapping[str, Any]:
    """Convert a row to the form of the JSON registry: `ended_at` is `endedAt`, `outcome_json` the object `outcome`."""
    record: dict[str, Any] = {}
    for column, value in row.items():
        first, *rest = column.removesuffix("_json").split("_")
        name = first + "".join(word.capitalize() for word in rest)
        record[name] = reading.json(value, 1) if column.endswith("_json") and value else value
    payload = _mapping(record.pop("payload", None))
    inner = _mapping(payload.get("parentCompletion"))
    # Since 2026.9 the payload of a run that is announced to its parent is one level deeper.
    said = inner if inner.get("completionTarget") == "parent" else payload
    return {**said, **{name: value for name, value in record.items() if value is not None}}


def _records(stored: Iterable[tuple[str, Mapping[str, Any]]], reading: FileProblems) -> list[Run]:
    found: list[Run] = []
    for run_id, record in stored:
        run = _run(run_id, record)
        if run is None:
            reading.wrong(1, f"run {run_id[:80]!r} names no session or no requester")
            reading.unread.add(_text(record.get("childSessionKey")))
        else:
            found.append(run)
    return found


def _run(run_id: str, record: Mapping[str, Any]) -> Run | None:
    key, requester = _text(record.get("childSessionKey")), _text(record.get("requesterSessionKey"))
    if not run_id or not key or not requester:
        return None
    execution, delivery = _mapping(record.get("execution")), _mapping(record.get("delivery"))
    ended_at = _moment(record.get("endedAt")) or _moment(execution.get("endedAt"))
    if record.get("pauseReason") == "sessions_yield":
        ended_at = None  # it waited for its children
    outcome = _mapping(record.get("outcome") or execution.get("outcome"))
    return Run(
        run_id=run_id,
        key=key,
        requester=requester,
        task=_text(record.get("task")),
        label=_text(record.get("label")) or _text(record.get("taskName")) or None,
        model=_text(record.get("model")) or None,
        created_at=_moment(record.get("createdAt")),
        started_at=_moment(record.get("startedAt")) or _moment(execution.get("startedAt")),
        ended_at=ended_at,
        outcome=None if ended_at is None else _outcome(record, outcome),
        error=_text(outcome.get("error")) or None,
        text=_result(record, delivery),
        is_delivered=delivery.get("status") in DELIVERED_STATES
        or any(_moment(record.get(name)) for name in DELIVERED_AT_FIELDS),
    )


def _outcome(record: Mapping[str, Any], outcome: Mapping[str, Any]) -> Outcome:
    if "killed" in (record.get("suppressAnnounceReason"), _text(record.get("endedReason"))[-6:]):
        return Outcome.KILLED
    return OUTCOMES.get(_text(outcome.get("status")), Outcome.LOST)


def _result(record: Mapping[str, Any], delivery: Mapping[str, Any]) -> str | None:
    places = (_mapping(record.get("completion")), record, _mapping(delivery.get("payload")))
    texts = (_text(place.get(name)) for name in RESULTS for place in places)
    return next((text for text in texts if text.strip()), None)


# ---- the session index -------------------------------------------------------------------------------------


def sessions(text: str, reading: FileProblems) -> list[OpenClawSession]:
    said = reading.json(text)
    if not isinstance(said, Mapping):
        reading.not_at_all("is no session index")
        return []
    return [_session(_text(key), _mapping(entry)) for key, entry in said.items() if _text(key)]


def _session(key: str, entry: Mapping[str, Any]) -> OpenClawSession:
    depth, session_id = entry.get("spawnDepth"), _text(entry.get("sessionId"))
    model, provider = _text(entry.get("model")), _text(entry.get("modelProvider"))
    started_at = _moment(entry.get("startedAt")) or _moment(entry.get("sessionStartedAt"))
    ended_at = _moment(entry.get("endedAt")) or _moment(entry.get("updatedAt"))
    run = Run(
        run_id=session_id or key,
        key=key,
        requester=_text(entry.get("spawnedBy")),
        task="",
        label=_text(entry.get("label")) or None,
        model=f"{provider}/{model}" if provider and model else model or None,
        created_at=started_at or ended_at,
        started_at=started_at,
        ended_at=ended_at,
        outcome=OUTCOMES.get(_text(entry.get("status")), Outcome.LOST),
        error=None,
        text=None,
        # The registry removes a run some time after its delivery; until then its own record is used.
        is_delivered=True,
    )
    file = _text(entry.get("sessionFile")) or None
    return OpenClawSession(
        run, session_id, file, depth if isinstance(depth, int) and 0 <= depth <= 100 else 0
    )


# ---- transcripts -------------------------------------------------------------------------------------------


def transcript(text: str, reading: FileProblems) -> OpenClawTranscript:
    """Read a transcript in the order of the file. A call without a result is left out: ours have no open calls."""
    spoken = list(_spoken(text, reading))
    made: list[tuple[Message, float | None]] = []
    prices: list[Decimal | None] = []
    at = 0
    while at < len(spoken):
        said, when = spoken[at]
        at += 1
        match said.get("role"):
            case "user" if words := _words(said.get("content")):
                made.append((Input(words, "user" if made else "task"), when))
            case "assistant":
                given = _results_from(spoken, at)
                at += len(given)
                answer, results = _answer(said, given)
                if answer.text.strip() or answer.calls:
                    made.append((answer, when))
                    prices.append(_price(said))
                if results is not None:
                    made.append((results, when))
            case _:
                pass
    return OpenClawTranscript(tuple(one for one, _ in made), tuple(when for _, when in made), tuple(prices))


def _spoken(text: str, reading: FileProblems) -> Iterator[tuple[Mapping[str, Any], float | None]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        entry = reading.json(line, number)
        if entry is None:
            continue
        if not isinstance(entry, Mapping):
            reading.wrong(number, "is no entry of a transcript")
        elif entry.get("type") == "message":
            message = entry.get("message")
            if isinstance(message, Mapping) and isinstance(message.get("role"), str):
                yield message, _moment(message.get("timestamp"))
            else:
                reading.wrong(number, "is a message without a role")


def _results_from(
    spoken: Sequence[tuple[Mapping[str, Any], float | None]], start: int
) -> list[Mapping[str, Any]]:
    end = start
    while end < len(spoken) and spoken[end][0].get("role") == "toolResult":
        end += 1
    return [said for said, _ in spoken[start:end]]


def _answer(said: Mapping[str, Any], given: Sequence[Mapping[str, Any]]) -> tuple[Answer, Results | None]:
    by_id = {_text(one.get("toolCallId")): one for one in given}
    calls: list[Call] = []
    results: list[Result] = []
    for part in _parts(said.get("content"), "toolCall"):
        result = by_id.pop(_text(part.get("id")), None)
        name = _text(part.get("name"))
        if result is None or not name:
            continue
        text = _words(result.get("content"))
        results.append(Result(len(calls), name, text, failed=result.get("isError") is True))
        calls.append(Call(name, _mapping(part.get("arguments")), _text(part.get("id"))))
    answer = Answer(
        _words(said.get("content")),
        tuple(calls),
        _usage(_mapping(said.get("usage"))),
        _text(said.get("model")),
        "tools" if calls else "end",
    )
    return whole(answer), Results(tuple(results)) if results else None


def _usage(said: Mapping[str, Any]) -> Usage:
    """OpenClaw counts cached tokens beside the input, Clutch as a part of it."""
    fresh, output, read, written = (
        _count(said.get(name)) for name in ("input", "output", "cacheRead", "cacheWrite")
    )
    return Usage(fresh + read + written, output, read, written)


def _price(said: Mapping[str, Any]) -> Decimal | None:
    total = _mapping(_mapping(said.get("usage")).get("cost")).get("total")
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < TOKENS_MAX:
        return None  # OpenClaw also writes 0 for an unknown price
    return Decimal(str(total))


# ---- values of any type ------------------------------------------------------------------------------------


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    """Return a text without characters that no database takes."""
    if not isinstance(value, str):
        return ""
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()


def _moment(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value / 1000 if 0 < value < MILLISECONDS_MAX else None


def _count(value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value < TOKENS_MAX else 0


def _parts(content: Any, kind: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(content, list):
        yield from (_mapping(part) for part in content if _mapping(part).get("type") == kind)


def _words(content: Any) -> str:
    if isinstance(content, str):
        return _text(content)
    return "".join(_text(part.get("text")) for part in _parts(content, "text"))
