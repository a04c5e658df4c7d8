"""THE state machine: what an event makes of a task.

    spawning → queued → running → ending → announcing ⇄ announce_deferred
                         ⇅  ⇅                  ↓
                    paused  awaiting_approval  cleanup_pending → completed | completed_giveup

Three rules:

1. `step(task, event, policy)` is the only way a task changes. It returns the new task, the moves for the
   timeline and the effects. The caller writes all of it in one transaction, or nothing.
2. A move along an edge that is not in `EDGES` is a bug and raises. A signal that has no say any more
   (late, duplicated, of an older generation) is no error: the same task comes back, at most with a note.
3. One outcome per generation. It is fixed when the task enters `announcing` (or is killed) and only a
   new generation clears it.

A *move* whose two phases are equal is a note: a line in the timeline that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, assert_never

from clutch.core import effects as fx
from clutch.core import events as ev
from clutch.core.model import FINISHED, WORKING, Delivery, Outcome, Phase, Plan, Task, Wait
from clutch.core.policy import Policy
from clutch.core.wording.results import Silence, freeze, silence

EDGES: frozenset[tuple[Phase, Phase]] = frozenset(
    {
        (Phase.SPAWNING, Phase.QUEUED),
        (Phase.QUEUED, Phase.RUNNING),
        (Phase.QUEUED, Phase.PAUSED),
        (Phase.RUNNING, Phase.ENDING),
        (Phase.RUNNING, Phase.PAUSED),
        (Phase.RUNNING, Phase.AWAITING_APPROVAL),
        (Phase.RUNNING, Phase.QUEUED),
        (Phase.PAUSED, Phase.QUEUED),
        (Phase.AWAITING_APPROVAL, Phase.QUEUED),
        (Phase.AWAITING_APPROVAL, Phase.ENDING),
        (Phase.ENDING, Phase.RUNNING),
        (Phase.ENDING, Phase.ANNOUNCING),
        (Phase.ENDING, Phase.ANNOUNCE_DEFERRED),
        (Phase.ANNOUNCING, Phase.ANNOUNCE_DEFERRED),
        (Phase.ANNOUNCING, Phase.QUEUED),
        (Phase.ANNOUNCE_DEFERRED, Phase.ANNOUNCING),
        (Phase.ANNOUNCE_DEFERRED, Phase.QUEUED),
        (Phase.CLEANUP_PENDING, Phase.COMPLETED),
        (Phase.CLEANUP_PENDING, Phase.COMPLETED_GIVEUP),
        (Phase.COMPLETED, Phase.QUEUED),
        (Phase.COMPLETED_GIVEUP, Phase.QUEUED),
        (Phase.COMPLETED_GIVEUP, Phase.ANNOUNCING),
        # A kill ends every phase that has not been told yet; `ending` and `announcing` also get there
        # by being skipped and by being told.
        *((phase, Phase.CLEANUP_PENDING) for phase in WORKING | {Phase.ANNOUNCING}),
    }
)

DESCENDANTS = "descendants-active"
MISSING = "missing-requester"
EXPIRED = "descendants expired"
CLEANUP_RETRY_S = 60.0  # a sweeper tick


class Move(NamedTuple):
    """One line of the timeline. Generation and outcome are those after the move, so that a log re-reduces."""

    from_phase: Phase
    to_phase: Phase
    reason: str
    generation: int
    outcome: Outcome | None


class Step(NamedTuple):
    task: Task
    moves: tuple[Move, ...] = ()
    effects: tuple[fx.Effect, ...] = ()


class _Story:
    """A task while one event works on it."""

    def __init__(self, task: Task, at: float, policy: Policy) -> None:
        self.task, self.at, self.policy = task, at, policy
        self.moves: list[Move] = []
        self.effects: list[fx.Effect] = []

    def to(self, phase: Phase, reason: str, **changes: Any) -> None:
        before = self.task
        if (before.phase, phase) not in EDGES:
            raise AssertionError(f"no edge {before.phase} → {phase} (task {before.id}, {reason})")
        self.task = after = before._replace(phase=phase, reason=reason, seq=before.seq + 1, **changes)
        self.moves.append(Move(before.phase, phase, reason, after.generation, after.outcome))

    def note(self, reason: str, **changes: Any) -> None:
        before = self.task
        self.task = after = before._replace(seq=before.seq + 1, **changes)
        self.moves.append(Move(before.phase, before.phase, reason, after.generation, after.outcome))

    def change(self, **changes: Any) -> None:
        self.task = self.task._replace(**changes)

    def do(self, *effects: fx.Effect) -> None:
        self.effects.extend(effects)

    def done(self) -> Step:
        return Step(self.task, tuple(self.moves), tuple(self.effects))


def step(task: Task, event: ev.Event, policy: Policy) -> Step:
    """What the event makes of the task. An unchanged task and no moves: the event had no say."""
    story = _Story(task, event.at, policy)
    match event:
        case ev.Admitted():
            _admitted(story)
        case ev.Reserved():
            _reserved(story, event.at)
        case ev.Started():
            _started(story, event.at)
        case ev.Resumed():
            _resumed(story, event)
        case ev.Parked():
            _parked(story, event)
        case ev.Yielded():
            _yielded(story)
        case ev.Ended():
            _ended(story, event)
        case ev.Failed():
            _failed(story, event)
        case ev.Killed():
            _killed(story, event)
        case ev.Steered():
            _steered(story, event)
        case ev.Paused():
            _paused(story, event.at)
        case ev.Unpaused():
            _unpaused(story)
        case ev.Decided():
            _decided(story, event)
        case ev.Delivered():
            _delivered(story, event)
        case ev.DeliveryFailed():
            _delivery_failed(story, event)
        case ev.RequesterGone():
            _requester_gone(story, event.at)
        case ev.RequesterBack():
            _requester_back(story)
        case ev.RequesterKilled():
            _requester_killed(story)
        case ev.Dropped():
            _dropped(story)
        case ev.Cleaned():
            _cleaned(story)
        case ev.Again():
            _again(story, event.how)
        case ev.Redelivered():
            _redelivered(story)
        case ev.Dismissed():
            _dismissed(story)
        case ev.Late():
            story.note(f"late: {event.text[:200]}")
        case ev.Woke():
            _woke(story, event)
        case _:
            assert_never(event)
    return story.done()


def in_order(signals: Iterable[ev.Event]) -> list[ev.Event]:
    """Signals for one run seen in one transaction: kill, result, deadline, error, lost; the rest as they came."""

    def rank(signal: ev.Event) -> int:
        match signal:
            case ev.Killed():
                return 0
            case ev.Ended():
                return 1
            case ev.Woke():
                return 2
            case ev.Failed():
                return 4 if signal.outcome is Outcome.LOST else 3
            case _:
                return 5

    return sorted(signals, key=rank)


def fold(moves: Iterable[Move]) -> tuple[Phase, int, Outcome | None]:
    """The event log re-reduces to the row: phase, generation, outcome. Raises where the log is broken."""
    at, generation, outcome = Phase.SPAWNING, 1, None
    for move in moves:
        if move.from_phase is not at or (move.to_phase is not at and (at, move.to_phase) not in EDGES):
            raise AssertionError(f"log breaks: at {at}, then {move.from_phase} → {move.to_phase}")
        if move.generation < generation:
            raise AssertionError(f"generation went back from {generation} to {move.generation}")
        if move.generation == generation and outcome is not None and move.outcome is not outcome:
            raise AssertionError(f"outcome {outcome} changed to {move.outcome} in generation {generation}")
        at, generation, outcome = move.to_phase, move.generation, move.outcome
    return at, generation, outcome


# ---- the run -----------------------------------------------------------------------------------------


def _admitted(story: _Story) -> None:
    if story.task.phase is Phase.SPAWNING:
        story.to(Phase.QUEUED, "admitted", wake_at=None)
        story.do(fx.Schedule())


def _reserved(story: _Story, at: float) -> None:
    if story.task.phase is Phase.SPAWNING:
        story.note("reserved", wake_at=at + story.policy.limits.reservation_s)


def _started(story: _Story, at: float) -> None:
    task = story.task
    match task.phase:
        case Phase.QUEUED:
            _run(story, at, "started")
        case Phase.PAUSED if task.reason != Wait.PERSON:
            story.to(Phase.QUEUED, f"no longer waiting: {task.reason}")
            _run(story, at, "started")
        case Phase.ENDING:
            _run(story, at, "grace cancelled", error=None)
        case Phase.ANNOUNCE_DEFERRED if task.reason == DESCENDANTS:
            _new_generation(story, "children settled")
            _run(story, at, "started")


def _run(story: _Story, at: float, reason: str, **changes: Any) -> None:
    """The run's clock starts, or goes on with what a park left of it."""
    task = story.task
    left = task.timeout_s if task.clock_left_s is None else task.clock_left_s
    deadline = at + left if task.timeout_s else None
    story.to(
        Phase.RUNNING,
        reason,
        deadline_at=deadline,
        clock_left_s=None,
        wake_at=_alarm(task, deadline, at, story.policy),
        started_at=task.started_at if task.started_at is not None else at,
        **changes,
    )


def _alarm(task: Task, deadline: float | None, at: float, policy: Policy) -> float | None:
    """The next moment the clock of a run has something to say: wrap up, then the end."""
    if deadline is None:
        return None
    wrap_up = deadline - (1 - policy.life.wrap_up_at) * task.timeout_s
    return wrap_up if wrap_up > at else deadline


def _resumed(story: _Story, event: ev.Resumed) -> None:
    """The time nobody worked on it does not count against it."""
    task = story.task
    if task.phase is Phase.RUNNING:
        deadline = None if task.deadline_at is None else task.deadline_at + event.lost_s
        alarm = _alarm(task, deadline, event.at, story.policy)
        story.note(f"resumed @step {event.step}", deadline_at=deadline, wake_at=alarm)


def _clock_stops(task: Task, at: float) -> dict[str, Any]:
    left = None if task.deadline_at is None else max(0.0, task.deadline_at - at)
    return {"deadline_at": None, "wake_at": None, "clock_left_s": left}


def _parked(story: _Story, event: ev.Parked) -> None:
    if story.task.phase is Phase.RUNNING:
        story.to(Phase.PAUSED, event.reason, **_clock_stops(story.task, event.at))


def _yielded(story: _Story) -> None:
    """Waiting for children takes no time, and what comes after is a new run with a new clock."""
    if story.task.phase is Phase.RUNNING:
        story.to(Phase.PAUSED, Wait.CHILDREN, deadline_at=None, wake_at=None, clock_left_s=None)
        story.do(fx.Hold())


def _paused(story: _Story, at: float) -> None:
    if story.task.phase in (Phase.QUEUED, Phase.RUNNING):
        left = story.task.clock_left_s
        stopped = _clock_stops(story.task, at)
        if story.task.phase is Phase.QUEUED:
            stopped["clock_left_s"] = left
        story.to(Phase.PAUSED, Wait.PERSON, **stopped)


def _unpaused(story: _Story) -> None:
    if story.task.phase is Phase.PAUSED and story.task.reason == Wait.PERSON:
        story.to(Phase.QUEUED, "resumed")
    story.do(fx.Schedule())


def _steered(story: _Story, event: ev.Steered) -> None:
    task = story.task
    match task.phase:
        case Phase.QUEUED | Phase.PAUSED:
            # A parked run would go on without reading it: the next one reads it first, on a new clock.
            story.note("steered: joins what it reads next", clock_left_s=None)
            story.do(fx.Stop("superseded"), fx.Schedule())
        case Phase.RUNNING:
            _supersede(story)
        case Phase.ENDING:
            _run(story, event.at, "grace cancelled", error=None)
            _supersede(story)
        case Phase.ANNOUNCE_DEFERRED if task.reason == DESCENDANTS:
            _new_generation(story, "steered")
            story.do(fx.Schedule())
        case Phase.ANNOUNCING | Phase.ANNOUNCE_DEFERRED if not event.taken:
            _new_generation(story, "steered")
            story.do(fx.Open(), fx.Schedule())


def _supersede(story: _Story) -> None:
    _new_generation(story, "steered")
    story.do(fx.Stop("superseded"), fx.Schedule())


def _new_generation(story: _Story, reason: str, **changes: Any) -> None:
    """A new run will make a new result. What was said before is kept in case it says nothing."""
    task = story.task
    fresh: dict[str, Any] = {
        "generation": task.generation + 1,
        "fallback": task.result or task.fallback,
        "result": None,
        "outcome": None,
        "error": None,
        "delivery": Delivery.NONE,
        "delivery_reason": "",
        "attempts": 0,
        "wake_at": None,
        "deadline_at": None,
        "clock_left_s": None,
        "ended_at": None,
    }
    story.to(Phase.QUEUED, reason, **(fresh | changes))


# ---- the end -----------------------------------------------------------------------------------------


def _ended(story: _Story, event: ev.Ended) -> None:
    task = story.task
    if task.phase not in (Phase.RUNNING, Phase.ENDING):
        return
    if event.untold:
        _defer(story, event)
    elif task.plan is Plan.DRAFTING:
        _ask_approval(story, event)
    else:
        _settle(story, event.at, Outcome.OK, event.text)


def _defer(story: _Story, event: ev.Ended) -> None:
    """It said its last word while children still work: they will wake it once, with all they found."""
    if story.task.phase is Phase.RUNNING:
        story.to(Phase.ENDING, "ended")
    story.to(
        Phase.ANNOUNCE_DEFERRED,
        DESCENDANTS,
        error=None,
        result=_frozen(story, event.text),
        delivery=Delivery.DEFERRED,
        delivery_reason=DESCENDANTS,
        ended_at=event.at,
        deadline_at=None,
        clock_left_s=None,
        wake_at=event.at + story.policy.life.settle_expiry_s,
    )
    story.do(fx.Hold())


def _ask_approval(story: _Story, event: ev.Ended) -> None:
    expiry = story.policy.life.plan_expiry_s
    if story.task.phase is Phase.ENDING:
        _run(story, event.at, "grace cancelled", error=None)
    story.to(
        Phase.AWAITING_APPROVAL,
        "plan ready",
        result=_frozen(story, event.text) or story.task.fallback,
        deadline_at=None,
        clock_left_s=None,
        wake_at=event.at + expiry if expiry else None,
    )
    story.do(fx.AskApproval(story.task.generation))


def _decided(story: _Story, event: ev.Decided) -> None:
    if story.task.phase is not Phase.AWAITING_APPROVAL:
        return
    match event.verdict:
        case ev.Verdict.APPROVE:
            # A plan is no result: it must not stand in for one if the work ends without words.
            _new_generation(story, "plan approved", plan=Plan.APPROVED, fallback=None)
            story.do(fx.Schedule())
        case ev.Verdict.REVISE if story.task.plan_round < story.policy.life.plan_rounds_max:
            _new_generation(story, "plan sent back", plan_round=story.task.plan_round + 1)
            story.do(fx.Schedule())
        case _:
            _reject(story, event.at, f"plan rejected: {event.text}")


def _reject(story: _Story, at: float, error: str) -> None:
    story.to(Phase.ENDING, error)
    _settle(story, at, Outcome.ERROR, story.task.result, error=error)


def _failed(story: _Story, event: ev.Failed) -> None:
    """Someone may start it again within the grace; until then nothing is decided."""
    task = story.task
    if task.phase is not Phase.RUNNING:
        return
    if event.is_final:
        return _settle(story, event.at, event.outcome, event.text, error=event.error)
    stopped = _clock_stops(task, event.at)
    stopped["wake_at"] = event.at + story.policy.life.error_grace_s
    story.to(
        Phase.ENDING, f"error: {event.error}", error=event.error, result=_frozen(story, event.text), **stopped
    )


def _settle(
    story: _Story, at: float, outcome: Outcome, text: str | None, *, error: str | None = None, why: str = ""
) -> None:
    """Fix outcome and result, and make it tellable. Nothing changes them afterwards in this generation."""
    task = story.task
    said = silence(text or "") if outcome is Outcome.OK else None
    result = _frozen(story, text) or task.fallback
    skips = said is Silence.ANNOUNCE_SKIP or (said is Silence.NO_REPLY and result is None)
    fixed: dict[str, Any] = {
        "outcome": outcome,
        "error": error,
        "result": result,
        "ended_at": at,
        "deadline_at": None,
        "clock_left_s": None,
        "wake_at": None,
    }
    if task.phase is Phase.RUNNING:
        story.to(Phase.ENDING, why or outcome)
    if skips:
        word = "announce-skip" if said is Silence.ANNOUNCE_SKIP else "silent"
        story.change(**fixed, delivery=Delivery.SKIPPED, delivery_reason=word)
        _clean(story, f"skipped: {word}")
    else:
        story.to(Phase.ANNOUNCING, why or outcome, **fixed, delivery=Delivery.WAITING, delivery_reason="")
    story.do(fx.Close(), fx.Announce(story.task.generation, silent=skips))
    if story.policy.limits.on_parent_end.get(outcome) == "kill":
        story.do(fx.KillChildren(f"parent ended: {outcome}"))


def _frozen(story: _Story, text: str | None) -> str | None:
    return freeze(text or "", story.policy.life.result_bytes_max).text


def _killed(story: _Story, event: ev.Killed) -> None:
    """Final. Its letter is silent: it only keeps a waiting parent from waiting for ever."""
    if story.task.phase not in WORKING or story.task.outcome is not None:
        return
    story.change(
        outcome=Outcome.KILLED,
        error=event.reason,
        delivery=Delivery.SKIPPED,
        delivery_reason="killed",
        ended_at=event.at,
        deadline_at=None,
        clock_left_s=None,
        result=story.task.result or story.task.fallback,
    )
    story.do(fx.Stop("killed"), fx.Close(), fx.Announce(story.task.generation, silent=True))
    _clean(story, f"killed: {event.reason}")


# ---- telling -----------------------------------------------------------------------------------------


def _delivered(story: _Story, event: ev.Delivered) -> None:
    if event.generation != story.task.generation or not _has_letter(story.task):
        return
    _tellable(story)
    _clean(story, f"delivered: {event.path}", delivery=Delivery.DELIVERED, delivery_reason=event.path)


def _has_letter(task: Task) -> bool:
    return task.phase is Phase.ANNOUNCING or (
        task.phase is Phase.ANNOUNCE_DEFERRED and task.reason == MISSING
    )


def _tellable(story: _Story) -> None:
    if story.task.phase is Phase.ANNOUNCE_DEFERRED:
        story.to(Phase.ANNOUNCING, "requester is back")


def _delivery_failed(story: _Story, event: ev.DeliveryFailed) -> None:
    task, rules = story.task, story.policy.announcing
    if event.generation != task.generation or task.phase is not Phase.ANNOUNCING:
        return
    attempts = task.attempts + 1
    story.note(f"attempt {attempts} failed: {event.error[:200]}", attempts=attempts)
    if event.is_permanent:
        return _give_up(story, "permanent-error")
    delay = rules.delay_s(attempts, seed=task.id, expects_completion=task.expects_completion)
    if delay is None:
        return _give_up(story, "expiry" if rules.slow else "retry-limit")
    story.do(fx.GiveBack(task.generation, event.at + delay))


def _give_up(story: _Story, reason: str) -> None:
    story.change(delivery=Delivery.UNDELIVERED, delivery_reason=reason)
    story.do(fx.Bury(story.task.generation))
    _clean(story, f"undelivered: {reason}")


def _requester_gone(story: _Story, at: float) -> None:
    if story.task.phase is Phase.ANNOUNCING:
        story.to(
            Phase.ANNOUNCE_DEFERRED,
            MISSING,
            delivery=Delivery.DEFERRED,
            delivery_reason=MISSING,
            wake_at=at + story.policy.announcing.until_s,
        )


def _requester_back(story: _Story) -> None:
    if story.task.phase is Phase.ANNOUNCE_DEFERRED and story.task.reason == MISSING:
        waiting = {"delivery": Delivery.WAITING, "delivery_reason": "", "wake_at": None}
        story.to(Phase.ANNOUNCING, "requester is back", **waiting)


def _requester_killed(story: _Story) -> None:
    if _has_letter(story.task):
        _tellable(story)
        story.change(delivery=Delivery.SKIPPED, delivery_reason="killed")
        _clean(story, "skipped: requester killed")


def _dropped(story: _Story) -> None:
    if story.task.phase is Phase.ANNOUNCING:
        _give_up(story, "dropped")


def _redelivered(story: _Story) -> None:
    task = story.task
    if task.phase is Phase.COMPLETED_GIVEUP and task.delivery is Delivery.UNDELIVERED:
        again = {"attempts": 0, "delivery": Delivery.WAITING, "delivery_reason": ""}
        story.to(Phase.ANNOUNCING, "redelivered", **again)
        story.do(fx.Redrive(task.generation))


def _dismissed(story: _Story) -> None:
    task = story.task
    if task.phase is Phase.COMPLETED_GIVEUP and task.delivery is Delivery.UNDELIVERED:
        story.note("dismissed", delivery=Delivery.SKIPPED, delivery_reason="dismissed")


# ---- after -------------------------------------------------------------------------------------------


def _clean(story: _Story, reason: str, **changes: Any) -> None:
    """Cleanup comes before both ends. With nothing to clean it is over in the same step."""
    is_half_made = (
        story.task.phase is Phase.SPAWNING
    )  # its files are wanted by nobody, whatever was asked for
    story.to(Phase.CLEANUP_PENDING, reason, wake_at=None, **changes)
    if story.task.has_cleanup or is_half_made:
        story.change(wake_at=story.at + CLEANUP_RETRY_S)
        story.do(fx.Cleanup())
    else:
        _cleaned(story)


def _cleaned(story: _Story) -> None:
    task = story.task
    if task.phase is Phase.CLEANUP_PENDING:
        gave_up = task.delivery is Delivery.UNDELIVERED
        story.to(Phase.COMPLETED_GIVEUP if gave_up else Phase.COMPLETED, task.reason, wake_at=None)


def _again(story: _Story, how: str) -> None:
    if story.task.phase in FINISHED:
        _new_generation(story, how, plan_round=0)
        story.do(fx.Open(keep_transcript=how != "retry"), fx.Schedule())


def _woke(story: _Story, event: ev.Woke) -> None:
    task = story.task
    if task.wake_at is None or event.at < task.wake_at:
        return
    match task.phase:
        case Phase.SPAWNING:
            story.do(fx.Unmake(f"not ready within {story.policy.limits.reservation_s:g} s"))
        case Phase.RUNNING:
            _alarm_rings(story, event)
        case Phase.ENDING:
            _settle(story, event.at, Outcome.ERROR, task.result, error=task.error)
        case Phase.AWAITING_APPROVAL:
            _reject(story, event.at, "plan expired")
        case Phase.ANNOUNCE_DEFERRED if task.reason == DESCENDANTS:
            _settle_expired(story, event)
        case Phase.ANNOUNCE_DEFERRED:
            story.to(Phase.ANNOUNCING, "nobody came back", wake_at=None)
            _give_up(story, "no-requester")
        case Phase.CLEANUP_PENDING:
            story.change(wake_at=event.at + CLEANUP_RETRY_S)
            story.do(fx.Cleanup())
        case _:
            story.change(wake_at=None)


def _alarm_rings(story: _Story, event: ev.Woke) -> None:
    task = story.task
    if task.deadline_at is None or not event.is_owned:
        # Nobody works on it, so its clock stands; whoever takes over sets the alarm anew.
        return story.change(wake_at=None)
    if event.at < task.deadline_at:
        story.do(fx.WrapUp(task.deadline_at - event.at))
        return story.change(wake_at=task.deadline_at)
    story.do(fx.Stop("timeout"))
    _settle(story, event.at, Outcome.TIMEOUT, event.partial)


def _settle_expired(story: _Story, event: ev.Woke) -> None:
    """The wait is measured from the last sign of life below, and not at all while a person is asked."""
    expiry = story.policy.life.settle_expiry_s
    alive_at = event.at if event.person_waits else max(event.progress_at or 0.0, story.task.ended_at or 0.0)
    if alive_at + expiry > event.at:
        return story.change(wake_at=alive_at + expiry)
    _settle(story, event.at, Outcome.OK, story.task.result, why=EXPIRED)
