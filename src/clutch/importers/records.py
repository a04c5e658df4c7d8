"""What OpenClaw left on disk, as records: its registry of runs, its session index, its transcripts.

From text to records, and no further: nothing here reads a file, knows our tables or trusts what it reads. A field
that is not what it should be is as if it were missing; a line that cannot be read is a `Problem`, never an exception.

    subagents/runs.json                    {"version": 1 | 2, "runs": {runId: record}}
    subagent-registry.json                 the same in the first versions, also without a version
    state/openclaw.sqlite                  since 2026.6: table subagent_runs, in columns or one `payload_json`
    agents/<id>/sessions/sessions.json     {sessionKey: entry}
    agents/<id>/sessions/<sessionId>.jsonl one entry a line; those of type "message" are the talk

Times there are milliseconds. A record may say the same thing in an old and in a new place; both are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from clutch.core.messages import Answer, Call, Input, Message, Result, Results, Usage, whole
from clutch.core.model import Outcome

MILLISECONDS_MAX = 4e12  #: a hundred years from the epoch; what is larger is no time
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
#: Each a moment at which somebody had been told.
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
    is_told: bool


@dataclass(frozen=True, slots=True)
class OpenClawSession:
    """One entry of a session index."""

    key: str
    session_id: str
    file: str | None  #: the name of its transcript, where it has another than usual
    spawned_by: str | None
    depth: int
    label: str | None
    model: str | None
    started_at: float | None
    ended_at: float | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class OpenClawTranscript:
    """A transcript, and when each of its messages was written."""

    messages: tuple[Message, ...] = ()
    times: tuple[float | None, ...] = ()
    prices: tuple[Decimal | None, ...] = ()  #: of its answers, in order

    @property
    def last_words(self) -> str | None:
        said = (one.text for one in reversed(self.messages) if isinstance(one, Answer) and not one.calls)
        return next((text for text in said if text.strip()), None)


@dataclass(slots=True)
class FileProblems:
    """Collects what is wrong with one file."""

    file: str
    problems: list[ImportProblem] = field(default_factory=list)
    left_out: int = 0
    is_unreadable: bool = False  #: as a whole: nothing of it is known
    unread: set[str] = field(default_factory=set)  #: sessions of records that make no sense

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
        """None where it cannot be read; `line` 0: the text is the whole file."""
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            self.wrong(line or error.lineno, f"is not JSON: {error.msg}")
        except (ValueError, RecursionError):
            self.wrong(line or 1, "is not JSON: a number or a nesting beyond all bounds")
        return None


# ---- the registry ------------------------------------------------------------------------------------------


#: What a table of runs has in every layout we know.
RUN_COLUMNS = frozenset({"run_id", "child_session_key", "requester_session_key", "created_at"})
#: What tells the two layouts apart: all fields in one text, or each in a column of its own.
LAYOUT_COLUMNS = frozenset({"payload_json", "outcome_json"})


def runs(text: str, reading: FileProblems) -> list[Run]:
    said = reading.json(text)
    stored = _mapping(said).get("runs")
    if not isinstance(stored, Mapping) or _mapping(said).get("version", 1) not in (1, 2):
        reading.not_at_all("is no registry of runs in version 1 or 2")
        return []
    return _records(((_text(run_id), _mapping(record)) for run_id, record in stored.items()), reading)


def table_runs(rows: Sequence[Mapping[str, Any]], reading: FileProblems) -> list[Run]:
    """Of the table `subagent_runs`, by the names of its columns."""
    return _records(((_text(row.get("run_id")), _table_record(row, reading)) for row in rows), reading)


def _table_record(row: Mapping[str, Any], reading: FileProblems) -> Mapping[str, Any]:
    """A row in the form of the JSON registry: `ended_at` is `endedAt`, `outcome_json` the object `outcome`."""
    record: dict[str, Any] = {}
    for column, value in row.items():
        first, *rest = column.removesuffix("_json").split("_")
        name = first + "".join(word.capitalize() for word in rest)
        record[name] = reading.json(value, 1) if column.endswith("_json") and value else value
    payload = _mapping(record.pop("payload", None))
    inner = _mapping(payload.get("parentCompletion"))
    # Since 2026.9 the payload of a run that is announced to its parent stands one level deeper.
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
        ended_at = None  # it slept until its children had settled
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
        is_told=delivery.get("status") in DELIVERED_STATES
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
    depth = entry.get("spawnDepth")
    model, provider = _text(entry.get("model")), _text(entry.get("modelProvider"))
    return OpenClawSession(
        key=key,
        session_id=_text(entry.get("sessionId")),
        file=_text(entry.get("sessionFile")) or None,
        spawned_by=_text(entry.get("spawnedBy")) or None,
        depth=depth if isinstance(depth, int) and 0 <= depth <= 100 else 0,
        label=_text(entry.get("label")) or None,
        model=f"{provider}/{model}" if provider and model else model or None,
        started_at=_moment(entry.get("startedAt")) or _moment(entry.get("sessionStartedAt")),
        ended_at=_moment(entry.get("endedAt")) or _moment(entry.get("updatedAt")),
        outcome=OUTCOMES.get(_text(entry.get("status"))),
    )


# ---- transcripts -------------------------------------------------------------------------------------------


def talk(text: str, reading: FileProblems) -> OpenClawTranscript:
    """In the order of the file. A call that got no result is left out: a transcript has no open ends."""
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
    """There the cache is beside the input, here a part of it."""
    fresh, output, read, written = (
        _count(said.get(name)) for name in ("input", "output", "cacheRead", "cacheWrite")
    )
    return Usage(fresh + read + written, output, read, written)


def _price(said: Mapping[str, Any]) -> Decimal | None:
    total = _mapping(_mapping(said.get("usage")).get("cost")).get("total")
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < TOKENS_MAX:
        return None  # a 0 there may stand for a price that nobody knew
    return Decimal(str(total))


# ---- anything may stand anywhere ---------------------------------------------------------------------------


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    """Without what no database takes."""
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
