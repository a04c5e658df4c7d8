"""Why a task is where it is, in sentences: its timeline, its delivery attempts, and what blocks it.

A command is a tuple of words here; `format.typed` adds the option for the state directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from clutch.core import ids, messages
from clutch.core.diagnosis import Blocker, Gate
from clutch.core.messages import Answer, Input, Results, Summary
from clutch.core.model import WAITS, Delivery, Phase, Reason, reason_text
from clutch.core.run import TRIAL_S
from clutch.core.text.format import ERROR_MAX, clock, duration, in_words, main_argument, typed, visible
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
    """One attempt to tell, or a decision not to try (`deferred`, `skipped`). `to_session`: its key, None once it was
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
PAUSED_AT_STEP = "has come to its next step and is paused, as it was told to"
_PAUSES = {
    Reason.PAUSE: "paused by {actor}",
    Reason.CHILDREN: "sleeps until its children have settled",
    Reason.NEEDS_YOU: "waits for a person to decide",
    Reason.QUOTA: "rate limited; it waits without a slot until the provider takes calls again",
    Reason.BUDGET: "the calls of others hold what is left of the budget; it waits without a slot",
    Reason.PROVIDER: "the provider failed in a way that may pass; it tries again",
    Reason.RESTART: "its worker stopped in good order; the next one goes on",
    Reason.INTERRUPT: "its turn was cancelled for what came in; the next one reads that first",
}
#: The kind of line, and the line in words. `{rest}` is the detail, without which the sentence has no meaning.
_SENTENCES: Mapping[Reason, tuple[str, str]] = {
    Reason.ADMITTED: ("spawned", "accepted; waits in the queue"),
    Reason.RESERVED: ("spawned", "accepted; its files are being made"),
    Reason.STARTED: ("started", "a run started"),
    Reason.RESUMED: ("resumed", "its worker was lost; another one went on at step {rest}"),
    Reason.UNPAUSED: ("unpaused", "resumed by {actor}"),
    Reason.UNPARKED: ("unparked", "no longer waits for {rest}"),
    Reason.RESTARTED: ("started", "started again within the grace; the failure does not count"),
    Reason.STEER_JOINS: ("steered", "steered by {actor}: a new instruction, which it reads next"),
    Reason.STEERED: ("steered", "steered by {actor}: a new instruction takes the place of what ran"),
    Reason.ATTEMPT: ("attempt", "telling it failed: attempt {rest}"),
    Reason.DELIVERED: ("delivered", "its requester has read and answered the result ({rest})"),
    Reason.UNSURE: ("unsure", "sent, but it is not known whether it arrived ({rest}); it is not sent again"),
    Reason.UNDELIVERED: ("undelivered", "could not be told ({rest}); kept as a dead letter"),
    Reason.SKIPPED: ("skipped", "nobody is told: {rest}"),
    Reason.KILLED: ("killed", "killed by {actor}: {rest}"),
    Reason.ERROR: ("failed", "the run failed: {rest}; a new start within the grace goes on"),
    Reason.PLAN_READY: ("plan", "its plan is written and awaits a decision"),
    Reason.PLAN_APPROVED: ("decided", "plan approved by {actor}"),
    Reason.PLAN_SENT_BACK: ("decided", "plan sent back by {actor}"),
    Reason.PLAN_REJECTED: ("decided", "plan rejected by {actor}: {rest}"),
    Reason.PLAN_EXPIRED: ("decided", "nobody decided about the plan in time"),
    Reason.CHILDREN_SETTLED: ("woken", "its children have settled; it goes on with what they found"),
    Reason.EXPIRED: ("ended", "its children took too long; told with what there is"),
    Reason.DESCENDANTS: ("deferred", "it has ended, but its children's results are still to come"),
    Reason.MISSING: ("deferred", "nobody is there to be told; it waits for somebody to come back"),
    Reason.READ: ("announced", "a turn of its requester has begun to read it"),
    Reason.REQUESTER_BACK: ("announced", "its requester is back"),
    Reason.NOBODY_BACK: ("announced", "nobody came back in time"),
    Reason.REDELIVERED: ("redelivered", "redelivered by {actor}"),
    Reason.DISMISSED: ("dismissed", "dismissed by {actor}"),
    Reason.RETRY: ("again", "started anew by {actor}, from an empty transcript"),
    Reason.CONTINUE: ("again", "continued by {actor}"),
    Reason.TIMEOUT: ("ended", "its time was over"),
    Reason.ARCHIVED: ("archived", "archived by {actor}: it leaves the lists, and its files are removed"),
    Reason.REMOVED: ("archived", "archived by {actor}"),
    Reason.LATE: ("late", "said after it was over, and kept: {rest}"),
}
_DEFERRALS = {
    Reason.BUSY.value: "its requester is in a turn; the result waits for its next one",
    Reason.QUIET_HOURS.value: "its requester sleeps; the result waits for its active hours",
}
_SKIPS = {
    Reason.NOT_REQUESTED.value: "result kept and not sent to the parent agent: the program that spawned it reads it",
}


def happening(line: TimelineEntry) -> tuple[str, str]:
    """A fixed word for the kind of line, and the line in words."""
    if line.to_phase is Phase.PAUSED and not line.is_note and line.cause in WAITS:
        is_asked = line.cause is Reason.PAUSE and line.actor == US
        return "parked", PAUSED_AT_STEP if is_asked else _PAUSES[line.cause].format(actor=_who(line))
    if line.to_phase in (Phase.COMPLETED, Phase.COMPLETED_GIVEUP) and not line.is_note:
        return "cleaned", "cleaned up; nothing is left to do"
    if line.to_phase is Phase.ANNOUNCING and line.outcome is not None and line.cause == line.outcome:
        return "announced", f"the outcome is fixed ({line.outcome}); a letter went to its requester"
    if line.cause is Reason.DEFERRED and line.detail in _DEFERRALS:
        return "deferred", _DEFERRALS[line.detail]
    if line.cause is Reason.SKIPPED and line.detail in _SKIPS:
        return "skipped", _SKIPS[line.detail]
    word, sentence = _SENTENCES.get(line.cause, ("", "{rest}"))
    if word and (line.detail or "{rest}" not in sentence):
        return word, sentence.format(rest=visible(line.detail, ERROR_MAX), actor=_who(line))
    if line.to_phase is Phase.ENDING:
        return "ended", f"the run ended: {visible(line.reason, ERROR_MAX)}"
    return "note" if line.is_note else "moved", visible(line.reason, ERROR_MAX)


def _who(line: TimelineEntry) -> str:
    return visible(line.actor, ERROR_MAX)


# ---- the gate ------------------------------------------------------------------------------------------


def waiting_for(stuck: Blocker) -> tuple[str, ...]:
    """Ids of what must happen first, where there are any."""
    if stuck.children:
        return tuple(ids.task_id(number) for number in stuck.children)
    if stuck.gate is Gate.NEEDS_YOU:
        return stuck.questions
    is_session = stuck.gate in (Gate.REQUESTER_BUSY, Gate.REQUESTER_MISSING, Gate.QUIET_HOURS, Gate.PAUSED)
    return (_name(stuck),) if is_session and stuck.room is not None else ()


def _name(stuck: Blocker) -> str:
    room = stuck.room
    if room is None:
        return "its requester"
    return ids.task_id(room.id) if room.is_task else room.key


def opens_when(stuck: Blocker) -> str:
    until = None if stuck.until is None else clock(stuck.until, stuck.since)
    by = "" if until is None else f", at {until} at the latest"
    at = "" if until is None else f" at {until}"
    match stuck.gate:
        case Gate.LANE_FULL:
            lane = "its lane" if stuck.room is None else f"the lane `{stuck.room.lane}`"
            return f"one of the {stuck.slots} turns in {lane} ends"
        case Gate.LEASE if stuck.is_served:
            return "another worker takes over from the one that is gone, within seconds"
        case Gate.LEASE:
            return "a worker takes it up; none is alive now"
        case Gate.CRASHES:
            return (
                f"a worker has no other turn: its process crashed {stuck.crashes} times while it was executing, so it"
                f" is tried alone, within {TRIAL_S:.0f} s or after the others that are"
            )
        case Gate.DESCENDANTS_ACTIVE:
            return f"the last of these children has settled{by}"
        case Gate.REQUESTER_BUSY:
            return f"the present turn of {_name(stuck)} has ended and it has read the letter"
        case Gate.REQUESTER_MISSING:
            return f"{_name(stuck)} is there again{', given up' + at if at else ''}"
        case Gate.BACKOFF:
            return f"it is tried again{at}"
        case Gate.NEEDS_YOU:
            return f"somebody has decided{by}"
        case Gate.QUOTA:
            return f"the provider takes calls again{at}"
        case Gate.BUDGET:
            return f"other calls have given back what they reserved, or somebody gives more{at and ', tried' + at}"
        case Gate.PAUSED:
            return f"somebody resumes {_name(stuck)}"
        case Gate.QUIET_HOURS:
            return f"the active hours of {_name(stuck)} begin{at}"
        case Gate.DEAD_LETTER:
            return f"somebody redelivers or dismisses it{by and ', it expires' + at}"
        case _:
            assert_never(stuck.gate)


def command(stuck: Blocker, task: str) -> tuple[str, ...]:
    """What to type next: it opens the gate, or shows who keeps it shut."""
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
        case Gate.NEEDS_YOU if stuck.plan_hash is None:  # what was asked is read where it is answered
            return ("inbox",)
        case Gate.NEEDS_YOU:  # a decision is bound to its plan, so that it runs without a terminal, too
            return "approve", task, "--hash", str(stuck.plan_hash)
        case Gate.PAUSED:
            return "resume", task if stuck.room is None else _name(stuck)
        case Gate.DEAD_LETTER:
            return "redeliver", task
        case Gate.BACKOFF | Gate.QUOTA | Gate.BUDGET | Gate.CRASHES:
            return "logs", task
        case _:
            assert_never(stuck.gate)


# ---- all of it, for a terminal ---------------------------------------------------------------------------


def why_text(
    headline: str,
    timeline: Sequence[TimelineEntry],
    attempts: Sequence[DeliveryAttempt],
    stuck: Blocker | None,
    task: str,
    now: float,
    state: str | None = None,
) -> str:
    """`state`: as the commands in it name it."""
    return "\n".join(_lines(headline, timeline, attempts, stuck, task, now, state))


def _lines(
    headline: str,
    timeline: Sequence[TimelineEntry],
    attempts: Sequence[DeliveryAttempt],
    stuck: Blocker | None,
    task: str,
    now: float,
    state: str | None,
) -> Iterator[str]:
    yield headline
    for line in timeline:
        yield f"  {clock(line.at, now)}  {happening(line)[1]}"
    if attempts:
        yield "Telling:"
    for attempt in attempts:
        yield from _attempt_lines(attempt, now)
    if stuck is not None:
        yield f"Waits at the gate {stuck.gate} since {clock(stuck.since, now)} ({duration(now - stuck.since)})."
        yield f"It opens when {opens_when(stuck)}."
        yield f"  {typed(*command(stuck, task), state=state)}"


def _attempt_lines(attempt: DeliveryAttempt, now: float) -> Iterator[str]:
    where = "main" if attempt.to_depth == 0 else "nested" if attempt.to_depth else "gone"
    target = visible(attempt.to_session or "a session that was deleted", ERROR_MAX)
    how = attempt.reason if attempt.outcome in ("failed", Delivery.UNSURE) else attempt.path or attempt.reason
    again = "" if attempt.next_at is None else f"; next {clock(attempt.next_at, now)}"
    route = f", route {attempt.route_mode}" if attempt.route_mode else ""  # within the tree there is none
    reached = f"{target} ({where}; {visible(attempt.why, ERROR_MAX)}{route})"
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
