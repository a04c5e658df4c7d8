"""A task as lists, trees, `why`, programs and models show it.

Plain data, read from the store by `transactions.read`; the words for it are in `core.text`, its JSON form in
`api.views`. None means that a value is not known, or does not exist yet; zero never stands in its place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise
from typing import Any, assert_never

from clutch.core import messages
from clutch.core.attachments import StoredFile
from clutch.core.budget import Budget
from clutch.core.checks import CheckReport
from clutch.core.fair_share import Priority
from clutch.core.messages import Answer, Entry, Input, Results, Summary
from clutch.core.model import Delivery, Outcome, Path, Phase, Reason, Task, reason_text
from clutch.core.questions import QuestionKind
from clutch.core.redaction import redact
from clutch.core.text.format import counted, in_words, main_argument, size
from clutch.core.validation import check
from clutch.core.workers import NO_LEASE_S
from clutch.errors import AmbiguousTarget, NotFound

# --------------------------------------------------------------------------------------------------
# What a task did, by the ledger and not by its own account: stored with its outcome.
#
# It is stored with the outcome because the transcript may be deleted later. Evidence of an older generation says
# nothing about a newer one, so the generation is stored with it.

# What a shell command changes is not known.
WRITING_TOOLS = ("edit", "write")
# A list for people: longer ones are read with version control.
FILES_MAX = 100


@dataclass(frozen=True, slots=True)
class Evidence:
    tool_calls: int = 0
    files_touched: tuple[str, ...] = ()
    children_joined: int = 0  #: whose results it has received
    children_missing: tuple[str, ...] = ()  #: labels of those still out, in spawn order
    stop_reason: str | None = None

    def to_text(self, generation: int) -> str:
        """By hand: the encoder cost as much as the two statements around it."""
        return (
            f'{{"generation": {generation:d}, "toolCalls": {self.tool_calls:d},'
            f' "filesTouched": {_listed(self.files_touched)}, "childrenJoined": {self.children_joined:d},'
            f' "childrenMissing": {_listed(self.children_missing)}, "stopReason": {json.dumps(self.stop_reason)}}}'
        )


def _listed(texts: Sequence[str]) -> str:
    return json.dumps(texts) if texts else "[]"


def evidence_of(text: str | None, generation: int) -> Evidence | None:
    known: Mapping[str, Any] = json.loads(text) if text else {}
    if known.get("generation") != generation:
        return None
    return Evidence(
        known["toolCalls"],
        tuple(known["filesTouched"]),
        known["childrenJoined"],
        tuple(known["childrenMissing"]),
        known["stopReason"],
    )


#: Quotes inside a text are escaped, so no label can pose as this.
_NONE_MISSING = '"childrenMissing": []'


def children_missing(text: str | None, generation: int) -> tuple[str, ...]:
    """Return the children whose results are missing. Runs for every delivered result, so most texts are not parsed."""
    if text is None or _NONE_MISSING in text:
        return ()
    known = evidence_of(text, generation)
    return () if known is None else known.children_missing


def stop_reason(task: Task) -> str:
    """Why its last run stopped. Of an ended task."""
    if task.outcome is Outcome.OK:
        return Reason.EXPIRED.value if task.reason is Reason.EXPIRED else "end"
    if task.outcome is Outcome.ERROR and task.error:
        return task.error
    return str(task.outcome)


def files_touched(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Of answers, each followed by its results: what was really written, in the order it first was."""
    found: dict[str, None] = {}
    for said, gave in pairwise(entries):
        if isinstance(said, Answer) and isinstance(gave, Results):
            failed = {result.index for result in gave.results if result.failed}
            for place, call in enumerate(said.calls):
                path = call.args.get("path")
                if call.name in WRITING_TOOLS and place not in failed and isinstance(path, str):
                    found[path] = None
    return tuple(found)[:FILES_MAX]


@dataclass(frozen=True, slots=True)
class Tally:
    """Model calls that were made and what they used. `unpriced` of them have no known price."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    calls: int = 0
    usd: Decimal | None = None  #: of those with a price; None = of none of them
    unpriced: int = 0

    @property
    def tokens(self) -> int:
        return self.input + self.output

    def __add__(self, other: Tally) -> Tally:
        prices = [usd for usd in (self.usd, other.usd) if usd is not None]
        return Tally(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.calls + other.calls,
            sum(prices, Decimal(0)) if prices else None,
            self.unpriced + other.unpriced,
        )


NOTHING_USED = Tally()


@dataclass(frozen=True, slots=True)
class CurrentTool:
    """The first call of the answer whose results are awaited."""

    name: str
    arg: str  #: the argument that tells most, in one short line
    since: float


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """What a task asks the user, in one line."""

    kind: QuestionKind
    text: str


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """How far the result is on its way to the parent agent."""

    state: Delivery
    path: Path | None = None
    cause: Reason = Reason.NONE
    attempts: int = 0  #: made so far, the one that succeeded included
    next_at: float | None = None
    at: float | None = None  #: when it was delivered, or given up
    detail: str = ""  #: of an unsure delivery: the channel, and what happened

    @property
    def reason(self) -> str | None:
        """Return what a person reads of `cause` and `detail`."""
        return self.detail or self.cause.value or None


_PATHS: Mapping[str, Path] = {path.value: path for path in Path}


def delivery_view(
    state: Delivery, reason: Reason, detail: str, attempts: int, at: float | None
) -> DeliveryView:
    """Return the delivery of a task. Of a delivered result the stored reason is the path it took."""
    if state is Delivery.DELIVERED:
        path = _PATHS.get(reason)
        return DeliveryView(state, path, Reason.NONE if path else reason, attempts + 1, at=at)
    given_up_at = at if state is Delivery.UNDELIVERED else None
    kept = detail if state is Delivery.UNSURE else ""
    return DeliveryView(state, None, reason, attempts, at=given_up_at, detail=kept)


@dataclass(frozen=True, slots=True)
class PlanView:
    state: str  #: drafting, awaiting_approval or approved
    hash: str | None  #: of the plan that awaits a decision
    round: int  #: how often it was sent back


@dataclass(frozen=True, slots=True)
class TaskView:
    """Numbers are row numbers; `core.keys` prints them. Keys are None once their session was deleted."""

    task_id: int
    requester_id: int
    root_id: int
    session_key: str | None
    requester_key: str | None
    root_key: str | None
    depth: int
    role: str | None
    agent_id: str | None
    label: str
    phase: Phase
    cause: Reason
    detail: str
    outcome: Outcome | None
    error: str | None
    generation: int
    created_at: float
    started_at: float | None
    ended_at: float | None
    progress_at: float | None
    deadline_at: float | None
    delivery: DeliveryView
    run_id: int | None = None  #: the open run, else the last one
    attempt: int = 0  #: starts for a result so far; waking up for results of children is none
    step: int = 0
    resumes: int = 0
    parked_until: float | None = None
    model_requested: str | None = None
    share: str | None = None  #: None: the default share
    priority: Priority = Priority.NORMAL
    model: str | None = None  #: that answered last, by its own name
    current_tool: CurrentTool | None = None
    own: Tally = NOTHING_USED
    subtree: Tally = NOTHING_USED  #: with its own
    budget: Budget | None = None
    plan: PlanView | None = None
    evidence: Evidence | None = None
    checks: CheckReport | None = None  #: None: none have run for this result
    worker_id: int | None = None
    children_active: int = 0
    children_total: int = 0
    at: float = 0.0  #: when the rows were read
    called_at: float | None = None  #: since when a model call is open
    question: OpenQuestion | None = None  #: the first that the user has not answered
    wake_at: float | None = None  #: the task's timer
    is_paused: bool = False  #: the user has paused its session

    @property
    def reason(self) -> str:
        """Return what a person reads of `cause` and `detail`."""
        return reason_text(self.cause, self.detail)

    @property
    def parent_task_id(self) -> int | None:
        """A root is never a task, and everybody else is."""
        return None if self.requester_id == self.root_id else self.requester_id

    @property
    def paused_until(self) -> float | None:
        """Where a moment ends the wait, and not a person or a child."""
        is_timed = self.phase is Phase.PAUSED and self.cause in (Reason.QUOTA, Reason.PROVIDER)
        return self.parked_until if is_timed else None


@dataclass(frozen=True, slots=True)
class PhaseCounts:
    """How many tasks of a listing are in which state. Each is counted once; `undelivered` and
    `delivering` count some of the ended ones again."""

    running: int = 0
    queued: int = 0
    waiting: int = 0  #: for subagents, a provider, a retry, or to be resumed
    needs_you: int = 0
    done: int = 0
    failed: int = 0
    timeout: int = 0
    killed: int = 0
    lost: int = 0
    undelivered: int = 0
    delivering: int = 0  #: the result is on its way
    replies: int = 0  #: replies of main agents that wait for a client
    speakers: tuple[str, ...] = ()  #: … and whose they are
    unsent: int = 0  #: … that no channel took
    usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class ResultView:
    """What a task left behind, by value. `late`: what came after it was over, and when."""

    task_id: int
    phase: Phase
    outcome: Outcome | None
    text: str | None
    value: str | None  #: JSON, if a form was asked for
    sha256: str | None
    generation: int
    frozen_at: float | None
    late: tuple[str, float] | None = None
    files: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One entry of a transcript as it is stored."""

    seq: int
    at: float
    run_id: int
    kind: str
    body: str


@dataclass(frozen=True, slots=True)
class Transcript:
    lines: tuple[TranscriptEntry, ...] = ()
    next: int | None = None  #: continue after this one; None = that was all


# --------------------------------------------------------------------------------------------------
# A transcript as others may read it: bounded, secrets taken out, the newest kept.
#
# A text is looked through for secrets before it is cut, so that a cut never makes one unrecognisable.
# Whatever is left out is said: `is_cut` a text, `is_dropped` whole entries, `before` where to ask on. A long text is
# read in pieces, each from where the last one ended; so is the result of a task, also when its transcript is gone.

OVERHEAD = 120  # bytes of an entry beside its text: number, time, names
RESULTS_MAX = 20  # of one answer
RESULT = "result"  # the kind of an entry that is no message: what a task ended with


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """`history.*`: how much of a transcript one look shows."""

    bytes_max: int = 80 * 1024  #: Size of one answer of sessions_history.
    text_chars_max: int = 4000  #: Characters of one text in it.
    entry_bytes_max: int = 256 * 1024  #: Size of one entry; a longer one is left out.
    limit: int = 50  #: Entries, unless the agent asks for more.
    limit_max: int = 200  #: Entries at most.
    log: int = 20  #: Lines of /subagents log, unless asked for more.
    messages_max: int = 20  #: Messages of each session in sessions_list.

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry as it is stored; without its body when that is too long to be worth it."""

    seq: int
    at: float
    kind: str
    length: int
    body: str | None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """`source`: who put it to the model, or the tool that gave it. `calls`: tools the answer asked for, in words."""

    seq: int
    at: float
    kind: str
    text: str
    source: str = ""
    calls: tuple[str, ...] = ()
    is_cut: bool = False
    is_redacted: bool = False
    is_failed: bool = False
    next_offset: int | None = None  #: where the rest of a text that was cut begins

    @property
    def bytes(self) -> int:
        return OVERHEAD + len(self.text.encode()) + sum(len(call.encode()) for call in self.calls)


@dataclass(frozen=True, slots=True)
class History:
    entries: tuple[HistoryEntry, ...] = ()  #: oldest first
    before: int | None = None  #: older ones are found before this number; None = there are none
    is_cut: bool = False
    is_redacted: bool = False
    is_dropped: bool = False


def history(
    stored: Sequence[Stored], rules: HistoryLimits, *, with_tools: bool, is_more: bool, offset: int = 0
) -> History:
    """Of entries in order; `is_more`: there are older ones. `offset`: where to begin in each text."""
    newest_first = (tuple(_said(entry, rules, with_tools, offset)) for entry in reversed(stored))
    kept, is_dropped = _newest(newest_first, rules.bytes_max)
    oldest = kept[0].seq if kept else stored[0].seq if stored else None
    return History(
        tuple(kept),
        oldest if is_more or is_dropped else None,
        any(one.is_cut for one in kept),
        any(one.is_redacted for one in kept),
        is_dropped,
    )


def of_result(text: str, at: float, rules: HistoryLimits, offset: int = 0) -> History:
    said = _piece(HistoryEntry(0, at, RESULT, ""), text, rules, offset)
    return History((said,), None, said.is_cut, said.is_redacted)


def _newest(entries: Iterable[tuple[HistoryEntry, ...]], bytes_max: int) -> tuple[list[HistoryEntry], bool]:
    """What there is room for, and whether that is not all. Whole answers' results stay together, so that a page never
    begins in the middle of one. What is older is not even looked through: that is slow."""
    kept: list[HistoryEntry] = []
    room = bytes_max
    for entry in entries:
        room -= sum(one.bytes for one in entry)
        if room < 0 and kept and entry:
            return kept, True
        kept = [*entry, *kept]
    return kept, False


def _said(entry: Stored, rules: HistoryLimits, with_tools: bool, offset: int) -> Iterator[HistoryEntry]:
    blank = HistoryEntry(entry.seq, entry.at, entry.kind, "")
    if entry.body is None:
        yield replace(
            blank, text=f"[{entry.kind} of {size(entry.length)}: too long to be shown]", is_cut=True
        )
        return
    match messages.load(entry.kind, entry.body):
        case Input(text, source):
            yield _piece(replace(blank, source=source), text, rules, offset)
        case Answer() as answer:
            calls = tuple(_call(call.name, call.args) for call in answer.calls) if with_tools else ()
            if answer.text.strip() or calls:
                yield _piece(replace(blank, calls=calls), answer.text, rules, offset)
        case Results(results):
            yield from _results(blank, results, rules, offset) if with_tools else ()
        case Summary(text):
            yield _piece(blank, text, rules, offset)
        case never:
            assert_never(never)


def _call(name: str, args: object) -> str:
    return in_words(name, redact(main_argument(args if isinstance(args, dict) else {})).text)


def _results(
    blank: HistoryEntry, results: Sequence[messages.Result], rules: HistoryLimits, offset: int
) -> Iterator[HistoryEntry]:
    shown = results[:RESULTS_MAX]
    for result in shown:
        one = replace(blank, source=result.name, is_failed=result.failed)
        yield _piece(one, result.text, rules, offset, parts=len(shown) + 1)
    if len(results) > len(shown):
        yield replace(blank, text=f"[and {counted(len(results) - len(shown), 'more result')}]", is_cut=True)


def _piece(blank: HistoryEntry, text: str, rules: HistoryLimits, offset: int, parts: int = 1) -> HistoryEntry:
    """`parts`: that share the size of one page. `offset`: in the text without its secrets."""
    shown = redact(text)
    room = rules.bytes_max // parts - OVERHEAD
    cut = shown.text[offset : offset + rules.text_chars_max].encode()[:room].decode(errors="ignore")
    end = offset + len(cut)
    if end >= len(shown.text):
        return replace(blank, text=cut, is_redacted=shown.is_any)
    where = "result=true" if blank.kind == RESULT else f"before={blank.seq + 1}"
    note = f"… [{len(text)} characters in all; continue with {where} offset={end}]"
    return replace(blank, text=cut + note, is_cut=True, is_redacted=shown.is_any, next_offset=end)


# --------------------------------------------------------------------------------------------------
# What the operator sees of a gateway: workers, queues, and what of the config file is in force.

PERIODS_MAX = 3  #: missed periods of a loop before it counts as late


def is_late(at: float, period_s: float, now: float) -> bool:
    """Return whether a background loop that last ran at `at` has missed too many periods."""
    return now - at > PERIODS_MAX * period_s


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A process that registered. `sessions`: how many it owns."""

    id: int
    host: str
    pid: int
    version: str
    started_at: float
    lease_until: float
    sessions: int
    seen_at: float | None = None  #: last heartbeat; None: of an older version
    clock_offset: float | None = None  #: seconds that the clock of its machine is ahead of the database's
    is_draining: bool = False

    @property
    def name(self) -> str:
        return f"{self.host}:{self.pid}/{self.id}"

    @property
    def has_lease(self) -> bool:
        return self.lease_until < NO_LEASE_S

    def is_stale(self, own_id: int, now: float) -> bool:
        """Return whether it is dead: its lease is over. Without leases only the process with the lock is alive."""
        return self.lease_until < now if self.has_lease else self.id != own_id

    def is_meant_by(self, target: str) -> bool:
        """Return whether an operator means this one: by its name, its number, or its host with or without the pid."""
        return target in (self.name, str(self.id), f"{self.host}:{self.pid}", self.host)


def node_named(target: str, nodes: Sequence[WorkerView]) -> WorkerView:
    """Raises NotFound, AmbiguousTarget."""
    found = [one for one in nodes if one.is_meant_by(target)]
    if len(found) == 1:
        return found[0]
    known = [one.name for one in found or nodes]
    if not found:
        raise NotFound(f"there is no node {target[:80]!r}; `clutch nodes` lists them", known)
    raise AmbiguousTarget(f"{target[:80]!r} is the host of {len(found)} nodes; name one of them", known)


@dataclass(frozen=True, slots=True)
class LaneView:
    name: str
    cap: int
    running: int
    queued: int


@dataclass(frozen=True, slots=True)
class WorkState:
    workers: Sequence[WorkerView]
    lanes: Sequence[LaneView]
    deferred: int
    undelivered: int
    outbox: int
    unsent: int
    database_bytes: int


# ---- the config ----------------------------------------------------------------------------------------------


class FindingState(StrEnum):
    """Why something of the file is not in force."""

    INVALID = "invalid"  #: the file breaks a rule; nothing of it is loaded
    REFUSED = "refused"  #: the file is valid, and the gateway cannot work with it
    NEEDS_RESTART = "needs restart"
    NOT_LOADED = "not loaded"  #: changed after the gateway looked at the file


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """`key` None: the file as a whole. Values as they would be written; None: not known."""

    key: str | None
    state: FindingState
    detail: str
    in_force: str | None
    in_file: str | None
    remedy: str


@dataclass(frozen=True, slots=True)
class ConfigSetting:
    """A setting in force that differs from its default."""

    key: str
    value: str
    default: str
    needs_restart: bool


@dataclass(frozen=True, slots=True)
class ConfigReport:
    """`from_program`: arguments of the program that win over the file."""

    file: str
    exists: bool
    settings: Sequence[ConfigSetting]
    findings: Sequence[ConfigFinding]
    from_program: Sequence[str]
