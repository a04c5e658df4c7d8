"""The nouns: session, task, run, letter; the states of each, and the reasons for them.

Plain data. What may happen to a task is in `lifecycle`, to a run in `run`, to letters in `delivery`.
A task and the child session that works on it are created together and share one number, so `TaskId` and
the `SessionId` of the child are the same integer.

A `Reason` and its detail are columns of `tasks`, `events` and `deliveries`. Code compares the reason. The text for
users is made of both in `reason_text`, and no code reads that text back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple, NewType, TypeAlias


class Reason(StrEnum):
    """A value is stored and shown. Beside it stands what the detail says, if there is one."""

    NONE = ""

    # Spawn and start.
    RESERVED = "reserved"
    ADMITTED = "admitted"
    SPAWN_FAILED = "spawn-failed"  #: why
    STARTED = "started"
    UNPARKED = "no longer waiting"  #: the reason of the wait
    RESTARTED = "grace cancelled"
    RESUMED = "resumed @step"  #: the number of the step
    FILES_MISSING = "files missing"  #: their names; it resumed on another machine
    THAWED = "process was frozen for"  #: a duration
    CHILDREN_SETTLED = "children settled"

    # Waits: the reasons of phase `paused`.
    PAUSE = "pause"  #: the user paused it
    CHILDREN = "children"  #: it yielded
    NEEDS_YOU = "needs-you"  #: a question or an approval
    QUOTA = "quota"  #: the provider named a time
    BUDGET = "budget"  #: the calls of others hold the rest of the budget
    PROVIDER = "provider"  #: the provider failed in a way that may pass
    RESTART = "restart"  #: its worker stopped in good order
    INTERRUPT = "interrupt"  #: its turn was cancelled for letters, which the next turn reads

    # Control.
    UNPAUSED = "resumed"
    STEERED = "steered"
    STEER_JOINS = "steered: joins what it reads next"
    RETRY = "retry"
    CONTINUE = "continue"
    PLAN_READY = "plan ready"
    PLAN_APPROVED = "plan approved"
    PLAN_SENT_BACK = "plan sent back"
    PLAN_REJECTED = "plan rejected"  #: the user's comment
    PLAN_EXPIRED = "plan expired"

    # The end of a run. Those that are outcomes, too, have the same value.
    ENDED = "ended"  #: while children work
    OK = "ok"
    ERROR = "error"  #: within the grace period, the error
    TIMEOUT = "timeout"
    KILLED = "killed"  #: why
    LOST = "lost"
    PRUNED = "pruned"  #: why
    ORPHANED = "its session is gone"
    EXPIRED = "descendants expired"  #: it was announced without all its children
    CHECKED = "checked"  #: how many checks passed, and the first that did not

    # Delivery is deferred.
    DESCENDANTS = "descendants-active"
    MISSING = "missing-requester"
    BUSY = "requester-busy"
    QUIET_HOURS = "quiet-hours"
    DEFERRED = "deferred"  #: the reason of the deferral
    READ = "no longer deferred"
    REQUESTER_BACK = "requester is back"
    NOBODY_BACK = "nobody came back"  #: written by earlier versions

    # Delivery is over. The paths of a delivered result are `direct`, `queued` and `steered`.
    DELIVERED = "delivered"  #: the path
    DIRECT = "direct"
    QUEUED = "queued"
    UNSURE = "unsure"  #: the channel, and what happened
    SKIPPED = "skipped"  #: why
    ANNOUNCE_SKIP = "announce-skip"
    SILENT = "silent"
    NOT_REQUESTED = "not-requested"  #: spawned by a program, which reads the result itself
    REQUESTER_KILLED = "requester killed"
    SUPERSEDED = "superseded"
    ATTEMPT = "attempt"  #: its number, and the error
    FAILED = "failed"  #: an attempt, with its error
    UNDELIVERED = "undelivered"  #: why
    PERMANENT_ERROR = "permanent-error"
    RETRY_LIMIT = "retry-limit"
    EXPIRY = "expiry"
    NO_REQUESTER = "no-requester"
    DROPPED = "dropped"
    REDELIVERED = "redelivered"
    DISMISSED = "dismissed"
    LETTER_EXPIRED = "expired"

    # After the end.
    CLEANUP_FAILED = "cleanup failed"  #: the error
    SESSION_ENDED = "session ended"  #: why
    ARCHIVED = "archived"
    DELETED = "deleted"
    REMOVED = "removed"  #: archived, as written by earlier versions
    LATE = "late"  #: the text
    NOTE = "note"  #: the note itself


#: By value: to look it up is several times faster than to call the enum.
REASONS: Final[Mapping[str, Reason]] = {reason.value: reason for reason in Reason}
WAITS: Final = frozenset(
    {
        Reason.PAUSE, Reason.CHILDREN, Reason.NEEDS_YOU, Reason.QUOTA, Reason.BUDGET, Reason.PROVIDER, Reason.RESTART,
        Reason.INTERRUPT,
    }
)  # fmt: skip
#: The detail continues the sentence.
_SENTENCES: Final = frozenset({Reason.RESUMED, Reason.THAWED, Reason.ATTEMPT})


def reason_text(reason: str, detail: str) -> str:
    """Return what a person reads: in a timeline, in a status, in the field `reason` of the API."""
    if not detail:
        return str(reason)
    if reason == Reason.NOTE:
        return detail
    return f"{reason} {detail}" if reason in _SENTENCES else f"{reason}: {detail}"


SessionId = NewType("SessionId", int)
TaskId = NewType("TaskId", int)
WorkerId = NewType("WorkerId", int)
LetterId = NewType("LetterId", int)


class Phase(StrEnum):
    """Where a task stands. The edges between them are `lifecycle.EDGES`."""

    SPAWNING = "spawning"  #: admitted; files, thread or worktree are being made
    QUEUED = "queued"  #: waits for a slot in its lane
    RUNNING = "running"  #: a run is open and meant to make progress
    PAUSED = "paused"  #: holds no slot; the reason says what it waits for
    AWAITING_APPROVAL = "awaiting_approval"  #: a plan is written, a decision is due
    ENDING = "ending"  #: a run failed; a new start within the grace continues as if nothing had happened
    ANNOUNCING = "announcing"  #: outcome fixed, letter in the requester's inbox
    ANNOUNCE_DEFERRED = "announce_deferred"  #: ended, but not tellable yet; the reason says why
    CLEANUP_PENDING = (
        "cleanup_pending"  #: delivered, or never to be delivered; files and hooks are left to do
    )
    COMPLETED = "completed"
    COMPLETED_GIVEUP = "completed_giveup"  #: could not be delivered: a dead letter, kept and shown


#: Not finished: more may come from it. A parent on hold waits while it has such a child.
WORKING = frozenset(
    {
        Phase.SPAWNING,
        Phase.QUEUED,
        Phase.RUNNING,
        Phase.PAUSED,
        Phase.AWAITING_APPROVAL,
        Phase.ENDING,
        Phase.ANNOUNCE_DEFERRED,
    }
)
#: The result is not delivered to the parent. A parent is not announced while it has such a child.
UNTOLD = WORKING | {Phase.ANNOUNCING}
FINISHED = frozenset({Phase.COMPLETED, Phase.COMPLETED_GIVEUP})


class Outcome(StrEnum):
    """How a task ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    KILLED = "killed"
    LOST = "lost"


class Delivery(StrEnum):
    """What became of telling the requester."""

    NONE = "none"  #: not ended yet
    WAITING = "waiting"  #: the letter lies in an inbox
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    SKIPPED = "skipped"
    UNDELIVERED = "undelivered"
    UNSURE = "unsure"


class TaskStatus(StrEnum):
    """What people see of a task: in the commands, the chat, the page, `why`, prompts and the field `status` of the API.

    The value is the wording. `status.status_of` picks the state."""

    STARTING = "starting"  #: its files, thread or workspace are being made
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  #: for subagents, or for other calls to release budget
    NEEDS_APPROVAL = "needs approval"
    NEEDS_ANSWER = "needs an answer"
    PAUSED = "paused"  #: until a user resumes it
    RATE_LIMITED = "rate limited"
    FAILING = "failing"  #: an error that a retry within a few seconds undoes
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    KILLED = "killed"
    LOST = "lost"


class DeliveryStatus(StrEnum):
    """Where the result of an ended task is on its way to the parent agent."""

    DELIVERING = "delivering"
    DEFERRED = "deferred"
    DELIVERED = "delivered"
    SKIPPED = "skipped"
    UNDELIVERED = "undelivered"


#: A user must decide before the task resumes.
NEEDS_USER: Final = frozenset({TaskStatus.NEEDS_APPROVAL, TaskStatus.NEEDS_ANSWER})
#: The task has no result that counts, and a retry may bring one.
RETRYABLE: Final = frozenset({TaskStatus.FAILED, TaskStatus.TIMED_OUT, TaskStatus.LOST})


class RunState(StrEnum):
    """Where a run stands. The moves between the states are `core.run.RUN_MOVES`."""

    RUNNING = "running"  #: a worker executes it, or its worker died and the next one takes it over
    PARKED = "parked"  #: waits without a slot until `parked_until`
    ASKING = "asking"  #: waits for a user: never due by itself
    ANSWERED = (
        "answered"  #: the user has answered: due before everything new, and none of its calls was started
    )
    ENDED = "ended"


class Plan(StrEnum):
    """A plan-mode task first writes a plan with read-only tools; approval lifts the filter for good."""

    NONE = "none"
    DRAFTING = "drafting"
    APPROVED = "approved"


class Thinking(StrEnum):
    """How much a model may think before it answers."""

    OFF = "off"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    MAX = "max"


class Workspace(StrEnum):
    """Where a child works."""

    INHERIT = "inherit"  #: its caller's directory; another agent's own
    ISOLATED = "isolated"  #: a directory of its own, enforced by the sandbox


class Lane(StrEnum):
    """A concurrency limit: main agents share one, subagents another."""

    MAIN = "main"
    SUBAGENT = "subagent"


class LetterKind(StrEnum):
    TASK = "task"  #: the first message of a child
    USER = "user"  #: a person wrote
    REQUEST = "request"  #: a person wrote through an API that gives each message an answer of its own
    INSTRUCTION = "instruction"  #: steer, send, continue: from a caller with authority over the session
    DECISION = "decision"  #: a plan was approved or rejected
    NOTE = "note"  #: the runtime itself, e.g. wrap up before the deadline
    HEARTBEAT = "heartbeat"  #: look up: something happened, or there is a checklist
    PEER = "peer"  #: another agent wrote; the body is an `Exchange`
    PLAN = "plan"  #: a child's plan awaits a decision
    ANNOUNCE = "announce"  #: a child's outcome
    NEWS = "news"  #: a child asks the user, or a killed child is reported after all


#: Start a turn without debounce. The others wait to be collected.
URGENT_KINDS = frozenset(LetterKind) - {LetterKind.ANNOUNCE}
#: What children have to tell: read again if the turn that read it fails before the model has answered.
RETRIED_KINDS = frozenset({LetterKind.ANNOUNCE, LetterKind.PLAN, LetterKind.NEWS})
#: Messages of a user: read before all other letters.
PERSON_KINDS = frozenset({LetterKind.USER, LetterKind.REQUEST})
#: Have a turn each: what becomes of its final text depends on the letter.
SOLO_KINDS = frozenset({LetterKind.HEARTBEAT, LetterKind.PEER})
#: The reply goes its own way, so only the run that took the letter answers it. Any run answers the others.
OWN_REPLY_KINDS = SOLO_KINDS | {LetterKind.REQUEST}


class LetterState(IntEnum):
    """Where a letter stands. The moves between the states are `LETTER_MOVES`."""

    OPEN = 0  #: no model has answered it; a run may have taken it (`taken_run`)
    ANSWERED = 1  #: delivered, and never delivered again
    DEAD = 2  #: given up after its retries: a dead letter, kept and listed
    VOID = 3  #: nothing is left to deliver


#: The life of a letter: every allowed change of its state, with its cause. None: the letter does not exist yet.
#: `transactions.inbox.move` makes the SQL of a change and raises for a pair that is not listed here.
LETTER_MOVES: Final[Mapping[tuple[LetterState | None, LetterState], str]] = {
    # The sender inserts the row. Its unique key makes a second post of the same fact do nothing.
    (None, LetterState.OPEN): "posted",
    # The results of imported tasks were delivered, or skipped, by the system they come from.
    (None, LetterState.ANSWERED): "imported as delivered",
    (None, LetterState.VOID): "imported as skipped",
    # The commit of the first model answer after the letter was taken is its delivery. A result that is sent to a user
    # without a turn is delivered when the channel accepts it. A user's message that a failed turn has read is not
    # repeated: the user is notified of the failure instead.
    (LetterState.OPEN, LetterState.ANSWERED): "answered, or sent to the user",
    # The retry schedule is used up, the error is permanent, the queue is full, or the parent session was deleted.
    (LetterState.OPEN, LetterState.DEAD): "given up",
    # A newer run of the sender replaces the letter, or its reader was killed, stopped or deleted.
    (LetterState.OPEN, LetterState.VOID): "overtaken, or its reader ended",
    # An operator redelivers it. It keeps its place in the transcript, so it is never written there twice.
    (LetterState.DEAD, LetterState.OPEN): "redelivered",
    # It still stands in the transcript when the model answers, or the user has read it: delivered after all.
    (LetterState.DEAD, LetterState.ANSWERED): "answered after all",
}


class Path(StrEnum):
    """How an announce reached its requester's transcript."""

    DIRECT = "direct"  #: the requester was idle
    QUEUED = "queued"  #: it was in a turn; the letter waited for the next one
    STEERED = "steered"  #: injected between two steps of a running turn


@dataclass(frozen=True, slots=True)
class Route:
    """Where a person hears the requester's reply. Captured at spawn; parts of two channels never mix."""

    channel: str
    account: str | None = None
    to: str | None = None
    thread: str | None = None


class Task(NamedTuple):
    """Work one session delegated to another: the part of its row that the state machine reads and writes.

    A tuple, because every step makes several: a frozen dataclass of this size costs ten times as much to make.
    """

    id: TaskId
    requester_id: SessionId
    # The contract, fixed at spawn.
    timeout_s: float = 0.0  #: 0 = none
    expects_completion: bool = True
    notify_parent: bool = True  #: False: the program that spawned it reads the result itself
    has_cleanup: bool = False  #: files, or the whole session, are removed after delivery
    # Its life. `seq` is the number of timeline lines written so far.
    seq: int = 0
    phase: Phase = Phase.SPAWNING
    reason: Reason = Reason.NONE
    detail: str = ""
    generation: int = 1
    outcome: Outcome | None = None
    error: str | None = None
    result: str | None = None  #: frozen by value in the transaction that fixes the outcome
    fallback: str | None = None  #: the last real text of an earlier generation, used if this one says nothing
    delivery: Delivery = Delivery.NONE
    delivery_reason: Reason = Reason.NONE  #: of an unsure delivery, `detail` says more
    attempts: int = 0  #: failed tries to tell; deferral costs none
    plan: Plan = Plan.NONE
    plan_round: int = 0  #: how often a plan was sent back
    wake_at: float | None = None  #: the task's one timer
    deadline_at: float | None = None  #: only while its clock runs
    clock_left_s: float | None = None  #: what is left of the run's time while the clock stands
    started_at: float | None = None
    ended_at: float | None = None
    stays: bool = False  #: session mode: its session outlives its end, until that session is ended itself


class Mail(NamedTuple):
    """What the open letters of one session amount to; all that `delivery.due` needs to know."""

    urgent_at: float | None = None  #: earliest moment an urgent or given-back letter is ready
    first_at: float | None = None  #: oldest and newest background letter
    last_at: float | None = None


NO_MAIL: Final = Mail()


class Letter(NamedTuple):
    """One durable message in a session's inbox."""

    id: LetterId
    kind: LetterKind
    body: str
    at: float
    ready_at: float  #: not before; later than `at` only for a letter given back after a failed attempt
    task_id: TaskId | None = None  #: the sender of an announce
    generation: int | None = None
    silent: bool = False  #: wakes only a session on hold; named in its settle message, and nowhere else
    route: str = ""  #: letters for different routes never mix
    taken_seq: int | None = None  #: stands in the transcript already; never appended again
    expects_completion: bool = True  #: the parent waits for this announce
    route_mode: str = ""  #: how the route was found
    bubbled_from: SessionId | None = None  #: the parent that is gone, from which the letter moved up

    @property
    def is_urgent(self) -> bool:
        return self.kind in URGENT_KINDS

    @property
    def is_solo(self) -> bool:
        return self.kind in SOLO_KINDS

    @property
    def source(self) -> str:
        """Return who speaks in the transcript: a request is a user's message like any other."""
        return (LetterKind.USER if self.kind is LetterKind.REQUEST else self.kind).value


# --------------------------------------------------------------------------------------------------
# A tool of an MCP server that differs from what the user approved. Definitions are the server's, as JSON.

Definition: TypeAlias = Mapping[str, Any]

NO_SESSION: Final = 0  #: in the place of a session: what belongs to none, such as the tools of all


@dataclass(frozen=True, slots=True)
class ToolOffer:
    tool: str
    before: Definition | None  #: as it was approved; None = it is new
    after: Definition
    text: str  #: what is different, for the user who decides


def canonical(definition: object) -> str:
    """The same text for the same meaning, whatever the order of keys."""
    return json.dumps(definition, sort_keys=True, separators=(",", ":"))


# --------------------------------------------------------------------------------------------------
# What others may listen to or decide about a subagent's life. Names only: who listens is wiring's to know.


class Hook(StrEnum):
    """The events of subagents that a function or webhook can be called at."""

    SPAWNING = "subagent_spawning"  #: asked before a spawn comes about; may veto, may bring a thread
    SPAWNED = "subagent_spawned"
    ENDED = (
        "subagent_ended"  #: once for each generation: delivered, given up, killed, or its session has ended
    )
    REMOVED = "subagent_removed"  #: its session and transcript are gone
    ATTENTION_REQUIRED = (
        "attention_required"  #: a question, an approval, an exhausted budget or a plan waits for a user
    )
    DELIVERY_TARGET = "subagent_delivery_target"  #: asked where a requester's reply to a result goes


class RemovalReason(StrEnum):
    """Why a session is gone."""

    DELETED = "deleted"
    SWEPT = "swept"
    REMOVED = "removed"
    ORPHANED = "orphaned"
