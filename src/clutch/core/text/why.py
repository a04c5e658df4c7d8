"""The status of a task explained in sentences: its timeline, its delivery attempts, and what blocks it.

A command is a tuple of words here; `format.typed` adds the option for the state directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from clutch.core import ids, messages
from clutch.core.diagnosis import Blocker, Gate, SlotLine
from clutch.core.messages import Answer, Input, Results, Summary
from clutch.core.model import REASONS, WAITS, Delivery, Phase, Reason, reason_text
from clutch.core.run import TRIAL_S
from clutch.core.status import cause_text
from clutch.core.text.format import (
    ERROR_MAX,
    clock,
    counted,
    duration,
    in_words,
    main_argument,
    typed,
    visible,
)
from clutch.core.views import TranscriptEntry


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of a task's timeline, as it is stored."""

    seq: int
    at: float
    actor: str
    from_phase: Phase
    to_phase: Phase
    cause: Reason
    generation: int = 1
    outcome: str | None = None
    detail: str = ""

    @property
    def reason(self) -> str:
        """Return what a person reads of `cause` and `detail`."""
        return reason_text(self.cause, self.detail)

    @property
    def is_note(self) -> bool:
        return self.from_phase is self.to_phase

    @property
    def is_late(self) -> bool:
        return self.cause is Reason.LATE


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One delivery attempt, or a decision not to try (`deferred`, `skipped`). `to_session`: its key, None once it was
    deleted. `tried`: the paths that were left, each with why."""

    key: str
    to_session: str | None
    to_depth: int | None
    why: str
    route_mode: str | None
    tried: tuple[tuple[str, str], ...]
    cause: Reason
    path: str | None
    attempt: int
    at: float
    next_at: float | None
    outcome: str
    detail: str  #: the error of a failed attempt
    run_id: int | None
    transcript_seq: int | None

    @property
    def reason(self) -> str:
        """Return what a person reads: the error of a failed attempt, or why none was made."""
        return self.detail or self.cause.value

    @property
    def is_made(self) -> bool:
        return self.outcome not in (Delivery.DEFERRED, Delivery.SKIPPED)


# ---- the timeline --------------------------------------------------------------------------------------

US = "clutch"  #: the actor of what no caller asked for at that moment
PARENT = "the parent agent"
REQUESTER = "requester"  #: why a delivery has its target: it is the parent of the task
PAUSED_AT_STEP = "Paused at its next step, as requested."
_PAUSES = {
    Reason.PAUSE: "Paused by {actor}.",
    Reason.CHILDREN: "Waiting for its subagents.",
    Reason.NEEDS_YOU: "Waiting for the user to decide.",
    Reason.QUOTA: "Rate limited by the provider. Waiting without a slot.",
    Reason.BUDGET: "Waiting for budget that other calls have reserved.",
    Reason.PROVIDER: "Provider error. Waiting for the next attempt.",
    Reason.RESTART: "Its worker stopped. The next worker resumes it.",
    Reason.INTERRUPT: "Turn cancelled for a new message, which the next turn reads first.",
}
#: What a run waited for, by the reason that the timeline stores.
_WAITED = {
    Reason.CHILDREN.value: "for its subagents",
    Reason.NEEDS_YOU.value: "for the user",
    Reason.QUOTA.value: "for the rate limit",
    Reason.BUDGET.value: "for budget",
    Reason.PROVIDER.value: "for the provider",
    Reason.RESTART.value: "for a worker",
    Reason.INTERRUPT.value: "for a worker",
}
#: The kind of line, and its sentence. `{rest}` is the detail, without which the sentence has no meaning.
_SENTENCES: Mapping[Reason, tuple[str, str]] = {
    Reason.ADMITTED: ("spawned", "Accepted and queued."),
    Reason.RESERVED: ("spawned", "Accepted. Its files are being created."),
    Reason.STARTED: ("started", "Started."),
    Reason.RESUMED: ("resumed", "Its worker was lost. Resumed at step {rest}."),
    Reason.FILES_MISSING: ("note", "Resumed on another machine. Missing there, or outdated: {rest}."),
    Reason.PAUSE: ("note", "Pause requested by {actor}."),
    Reason.UNPAUSED: ("unpaused", "Resumed by {actor}."),
    Reason.UNPARKED: ("unparked", "Resumed after waiting {rest}."),
    Reason.RESTARTED: ("started", "Restarted within the grace period. The error does not count."),
    Reason.STEER_JOINS: ("steered", "Steered by {actor}. The next run reads the instruction."),
    Reason.STEERED: ("steered", "Steered by {actor}. A new run replaces the current one."),
    Reason.ATTEMPT: ("attempt", "Delivery attempt {rest}."),
    Reason.DELIVERED: ("delivered", "Delivered to {target}."),
    Reason.UNSURE: ("unsure", "Sent, but not confirmed ({rest}). It is not sent again."),
    Reason.UNDELIVERED: ("undelivered", "Undelivered: {rest}. Kept in the dead-letter queue."),
    Reason.SKIPPED: ("skipped", "Delivery skipped: {rest}."),
    Reason.KILLED: ("killed", "Killed by {actor}: {rest}."),
    Reason.ERROR: ("failed", "Run failed: {rest}. A restart within the grace period resumes it."),
    Reason.PLAN_READY: ("plan", "Plan written. Waiting for approval."),
    Reason.PLAN_APPROVED: ("decided", "Plan approved by {actor}."),
    Reason.PLAN_SENT_BACK: ("decided", "Plan sent back by {actor}."),
    Reason.PLAN_REJECTED: ("decided", "Plan rejected by {actor}: {rest}."),
    Reason.PLAN_EXPIRED: ("decided", "The plan was not decided in time."),
    Reason.CHILDREN_SETTLED: ("woken", "Resumed with the results of its subagents."),
    Reason.EXPIRED: ("ended", "Waited too long for its subagents. Completed without the missing results."),
    Reason.DESCENDANTS: ("deferred", "Deferred: its subagents have not finished."),
    Reason.MISSING: ("deferred", "Deferred: the parent agent is gone."),
    Reason.READ: ("announced", "The parent agent reads the result."),
    Reason.REQUESTER_BACK: ("announced", "The parent agent is back."),
    Reason.NOBODY_BACK: ("announced", "The parent agent did not come back in time."),
    Reason.REDELIVERED: ("redelivered", "Redelivery requested by {actor}."),
    Reason.DISMISSED: ("dismissed", "Discarded by {actor}."),
    Reason.RETRY: ("again", "Retried by {actor}, from an empty transcript."),
    Reason.CONTINUE: ("again", "Continued by {actor}."),
    Reason.TIMEOUT: ("ended", "Time limit reached."),
    Reason.CHECKED: ("checked", "Result checked: {rest}."),
    Reason.ARCHIVED: ("archived", "Archived by {actor}. It leaves the lists, and its files are removed."),
    Reason.REMOVED: ("archived", "Archived by {actor}."),
    Reason.LATE: ("late", "Arrived after the end, and kept: {rest}"),
}


def happening(line: TimelineEntry, target: str = PARENT) -> tuple[str, str]:
    """Return a fixed word for the kind of line, and the line as a sentence. `target`: the session of a delivery."""
    if line.to_phase is Phase.PAUSED and not line.is_note and line.cause in WAITS:
        is_asked = line.cause is Reason.PAUSE and line.actor == US
        return "parked", PAUSED_AT_STEP if is_asked else _PAUSES[line.cause].format(actor=_who(line))
    if line.to_phase in (Phase.COMPLETED, Phase.COMPLETED_GIVEUP) and not line.is_note:
        return "cleaned", "Cleanup finished."
    if line.to_phase is Phase.ANNOUNCING and line.outcome is not None and line.cause == line.outcome:
        return "announced", f"Completed: {line.outcome}. Result sent to the parent agent."
    if line.cause is Reason.DEFERRED:
        return "deferred", f"Deferred: {_rest(line)}."
    if line.cause is Reason.ADMITTED and line.detail:
        return "spawned", f"Accepted and queued: started by {_rest(line)}."
    word, sentence = _SENTENCES.get(line.cause, ("", "{rest}"))
    if word and (line.detail or "{rest}" not in sentence):
        shown = visible(target, ERROR_MAX)
        return word, sentence.format(rest=_rest(line), actor=_who(line), target=shown)
    if line.to_phase is Phase.ENDING:
        return "ended", f"Run ended: {visible(line.reason, ERROR_MAX)}."
    return "note" if line.is_note else "moved", visible(line.reason, ERROR_MAX)


def _rest(line: TimelineEntry) -> str:
    """Return the detail. Where it is a reason itself, its wording."""
    if line.cause is Reason.UNPARKED:
        return _WAITED.get(line.detail, line.detail)
    if line.cause in (Reason.DEFERRED, Reason.SKIPPED, Reason.UNDELIVERED) and line.detail in REASONS:
        return cause_text(REASONS[line.detail])
    return visible(line.detail, ERROR_MAX)


def delivered_to(attempts: Sequence[DeliveryAttempt]) -> Mapping[float, str]:
    """Return the session that each delivery reached, by its moment, which the timeline line shares."""
    return {
        attempt.at: attempt.to_session
        for attempt in attempts
        if attempt.outcome == Delivery.DELIVERED and attempt.to_session is not None
    }


def _who(line: TimelineEntry) -> str:
    return visible(line.actor, ERROR_MAX)


# ---- what blocks it ------------------------------------------------------------------------------------


def waiting_for(stuck: Blocker) -> tuple[str, ...]:
    """Return the ids of what must happen first, if there are any."""
    if stuck.children:
        return tuple(ids.task_id(number) for number in stuck.children)
    if stuck.gate is Gate.NEEDS_YOU:
        return stuck.questions
    is_session = stuck.gate in (Gate.REQUESTER_BUSY, Gate.REQUESTER_MISSING, Gate.QUIET_HOURS, Gate.PAUSED)
    return (_name(stuck),) if is_session and stuck.room is not None else ()


def _name(stuck: Blocker) -> str:
    room = stuck.room
    if room is None:
        return PARENT
    return ids.task_id(room.id) if room.is_task else room.key


def blocked_text(stuck: Blocker) -> str:
    """`Blocked: the parent agent is busy. The result is delivered when its current turn ends.`"""
    return f"Blocked: {blocked_on(stuck)}. {opens_when(stuck)}"


def blocked_on(stuck: Blocker) -> str:
    match stuck.gate:
        case Gate.LANE_FULL:
            line = stuck.line
            mine = f", {line.working} by share {line.share}" if line is not None and line.shares else ""
            return f"all {stuck.slots} concurrency slots are in use{mine}"
        case Gate.LEASE if stuck.is_served:
            return "its worker is gone"
        case Gate.LEASE:
            return "no worker is running"
        case Gate.CRASHES:
            return f"its process crashed {stuck.crashes} times while it was executing"
        case Gate.DESCENDANTS_ACTIVE:
            return f"waiting for {counted(len(stuck.children), 'subagent')}"
        case Gate.REQUESTER_BUSY:
            return "the parent agent is busy"
        case Gate.REQUESTER_MISSING:
            return "the parent agent is gone"
        case Gate.BACKOFF:
            return "waiting for the next attempt"
        case Gate.NEEDS_YOU:
            return "a user must decide"
        case Gate.QUOTA:
            return "the provider limits the rate of calls"
        case Gate.BUDGET:
            return "other calls have reserved the rest of the budget"
        case Gate.PAUSED:
            return f"{_name(stuck)} is paused"
        case Gate.QUIET_HOURS:
            return "the parent agent has quiet hours"
        case Gate.DEAD_LETTER:
            return "the result is undelivered"
        case _:
            assert_never(stuck.gate)


def opens_when(stuck: Blocker) -> str:
    """Return the sentence that says what unblocks it."""
    until = None if stuck.until is None else clock(stuck.until, stuck.since)
    by = "" if until is None else f", at {until} at the latest"
    at = "" if until is None else f" at {until}"
    match stuck.gate:
        case Gate.LANE_FULL:
            return f"It starts when one of them is free.{'' if stuck.line is None else _first(stuck.line)}"
        case Gate.LEASE if stuck.is_served:
            return "Another worker takes over within seconds."
        case Gate.LEASE:
            return "It resumes when a gateway is started."
        case Gate.CRASHES:
            return (
                "It is executed alone, so that a further crash is attributed correctly:"
                f" within {TRIAL_S:.0f} s, or after other tasks that crashed."
            )
        case Gate.DESCENDANTS_ACTIVE:
            return f"It resumes when the last of them has finished{by}."
        case Gate.REQUESTER_BUSY:
            return "The result is delivered when its current turn ends."
        case Gate.REQUESTER_MISSING:
            return f"The result is delivered when it is back{', or given up' + at if at else ''}."
        case Gate.BACKOFF:
            return f"It is retried{at}."
        case Gate.NEEDS_YOU:
            return f"It resumes after the decision{by}."
        case Gate.QUOTA:
            return f"It resumes when the provider accepts calls again{at}."
        case Gate.BUDGET:
            return f"It resumes when they release it or the budget is raised{at and ', and is retried' + at}."
        case Gate.PAUSED:
            return "It resumes when a user resumes it."
        case Gate.QUIET_HOURS:
            return f"The result is delivered when its active hours begin{at}."
        case Gate.DEAD_LETTER:
            return f"A user can redeliver or discard it{at and '; it expires' + at}."
        case _:
            assert_never(stuck.gate)


def _first(line: SlotLine) -> str:
    """Return what else goes first in the line for a slot (`core.fair_share`)."""
    urgent = (
        f" Before it in its share: {counted(line.urgent, 'task')} of higher priority." if line.urgent else ""
    )
    if not line.shares:
        return urgent
    others = ", ".join(line.shares)
    return f"{urgent} Other shares wait, too: {others}. The one with the fewest at work for its weight goes first."


def command(stuck: Blocker, task: str) -> tuple[str, ...]:
    """Return the next command: it unblocks the task, or shows what blocks it."""
    match stuck.gate:
        case Gate.LANE_FULL:
            return "ps", "--phase", "running"
        case Gate.LEASE:
            return ("why", task) if stuck.is_served else ("serve",)
        case Gate.DESCENDANTS_ACTIVE:
            return "why", ids.task_id(stuck.children[0])
        case Gate.REQUESTER_BUSY | Gate.REQUESTER_MISSING | Gate.QUIET_HOURS:
            is_task = stuck.room is not None and stuck.room.is_task
            return "why" if is_task else "tree", task if stuck.room is None else _name(stuck)
        case Gate.NEEDS_YOU if stuck.plan_hash is None:
            # The inbox shows the question in full.
            return ("inbox",)
        case Gate.NEEDS_YOU:
            # The hash binds the decision to its plan, so that the command runs without a terminal, too.
            return "approve", task, "--hash", str(stuck.plan_hash)
        case Gate.PAUSED:
            return "resume", task if stuck.room is None else _name(stuck)
        case Gate.DEAD_LETTER:
            return "redeliver", task
        case Gate.BACKOFF | Gate.QUOTA | Gate.BUDGET | Gate.CRASHES:
            return "logs", task
        case _:
            assert_never(stuck.gate)


TRIMMED = "Entries of this timeline were deleted (`archive.deleteTimelineAfter`)."


def is_trimmed(timeline: Sequence[TimelineEntry]) -> bool:
    """Tell whether entries of a timeline were deleted: they are numbered from 1, the last one stays."""
    return bool(timeline) and timeline[-1].seq > len(timeline)


# ---- all of it, for a terminal ---------------------------------------------------------------------------


def why_lines(
    timeline: Sequence[TimelineEntry],
    attempts: Sequence[DeliveryAttempt],
    stuck: Blocker | None,
    task: str,
    *,
    now: float,
    state: str | None = None,
) -> Iterator[str]:
    """`state`: as the commands in it name it."""
    targets = delivered_to(attempts)
    if is_trimmed(timeline):
        yield f"  {TRIMMED}"
    for line in timeline:
        yield f"  {clock(line.at, now)}  {happening(line, targets.get(line.at, PARENT))[1]}"
    if attempts:
        yield "Delivery:"
    for attempt in attempts:
        yield from _attempt_lines(attempt, now)
    if stuck is not None:
        yield from blocked_lines(stuck, task, now=now, state=state)


def blocked_lines(stuck: Blocker, target: str, *, now: float, state: str | None = None) -> Iterator[str]:
    yield blocked_text(stuck)
    since = f"since {clock(stuck.since, now)} ({duration(now - stuck.since)})"
    yield f"  {since} -> {typed(*command(stuck, target), state=state)}"


def _attempt_lines(attempt: DeliveryAttempt, now: float) -> Iterator[str]:
    where = "main" if attempt.to_depth == 0 else "nested" if attempt.to_depth else "gone"
    target = visible(attempt.to_session or "a deleted session", ERROR_MAX)
    how = attempt.detail or attempt.path or cause_text(attempt.cause)
    again = "" if attempt.next_at is None else f"; next {clock(attempt.next_at, now)}"
    route = f", route {attempt.route_mode}" if attempt.route_mode else ""  # within the tree there is none
    why = "parent" if attempt.why == REQUESTER else visible(attempt.why, ERROR_MAX)
    reached = f"{target} ({where}; {why}{route})"
    became = f"{attempt.outcome} ({visible(how, ERROR_MAX)}){again}"
    number = f"attempt {attempt.attempt} " if attempt.is_made else ""
    yield f"  {clock(attempt.at, now)}  {number}to {reached}: {became}"
    for path, left in attempt.tried:
        yield f"    left {visible(path, ERROR_MAX)}: {visible(left, ERROR_MAX)}"


# --------------------------------------------------------------------------------------------------
# A task's journal as one story: letters, phases, words, calls and results, each where it happened.
#
# What one transaction wrote has one time; within it the order is the one in which it came about: what arrived, that
# the run began, what was said and done, what became of the task.

_ARRIVED, _BEGAN, _SAID, _BECAME = range(4)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A letter of the task's inbox."""

    id: int
    at: float
    kind: str
    body: str
    sender: int | None  #: the task whose result it brings
    taken_seq: int | None  #: where it stands in the transcript; None: it was never read


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """`kind`: letter, phase, input, answer, call, result or summary. `detail`: all of it, for programs."""

    at: float
    kind: str
    text: str
    seq: int | None = None
    run_id: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


def steps(
    timeline: Sequence[TimelineEntry], letters: Sequence[Arrived], lines: Sequence[TranscriptEntry]
) -> list[ReplayStep]:
    """Sorting keeps the order of each of the three where time and place are the same."""
    placed = [
        *((letter.at, _ARRIVED, _letter(letter)) for letter in letters),
        *((line.at, _rank(line), _phase(line)) for line in timeline),
        *((line.at, _SAID, step) for line in lines for step in _said(line)),
    ]
    return [step for _, _, step in sorted(placed, key=lambda one: one[:2])]


def _rank(line: TimelineEntry) -> int:
    return _BEGAN if line.to_phase is Phase.RUNNING or line.cause is Reason.ADMITTED else _BECAME


def _letter(letter: Arrived) -> ReplayStep:
    text = letter.body if letter.sender is None else f"the result of {ids.task_id(letter.sender)}"
    read = "never read" if letter.taken_seq is None else f"read as #{letter.taken_seq}"
    detail = {"kind": letter.kind, "takenSeq": letter.taken_seq}
    return ReplayStep(letter.at, "letter", f"{letter.kind} ({read}): {text}", detail=detail)


def _phase(line: TimelineEntry) -> ReplayStep:
    word, text = happening(line)
    detail = {"event": word, "from": line.from_phase.value, "to": line.to_phase.value, "reason": line.reason}
    return ReplayStep(line.at, "phase", text, line.seq, detail=detail | {"actor": line.actor})


def _said(line: TranscriptEntry) -> Iterator[ReplayStep]:
    run_id = line.run_id or None
    match messages.load(line.kind, line.body):
        case Input(text, source):
            yield ReplayStep(line.at, "input", text, line.seq, run_id, {"source": source})
        case Answer(text, calls, _, model, stop):
            if text or not calls:
                yield ReplayStep(line.at, "answer", text, line.seq, run_id, {"model": model, "stop": stop})
            for place, call in enumerate(calls):
                detail = {"index": place, "name": call.name, "args": dict(call.args)}
                words = in_words(call.name, main_argument(call.args))
                yield ReplayStep(line.at, "call", words, line.seq, run_id, detail)
        case Results(results):
            for result in results:
                detail = {"index": result.index, "name": result.name, "failed": result.failed}
                yield ReplayStep(line.at, "result", result.text, line.seq, run_id, detail)
        case Summary(text, upto):
            yield ReplayStep(line.at, "summary", text, line.seq, run_id, {"upto": upto})
        case never:
            assert_never(never)
