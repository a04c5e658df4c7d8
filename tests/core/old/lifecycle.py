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

Read in this order: `transition` (edges, moves, a run's events), `lifecycle_delivery` (delivery, cleanup), then this
file (ends, the timer, `step`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.model import ENDED, EXPIRED, WORKING, Delivery, Outcome, Phase, Plan, Task
from clutch.core.policy import ExpiryFrom, Policy
from clutch.core.text.results import Silence, freeze, silence
from tests.core.old import lifecycle_delivery, transition
from tests.core.old.transition import (
    BUSY,
    DESCENDANTS,
    EDGES,
    MISSING,
    QUIET_HOURS,
    Move,
    Story,
    Transition,
    is_past,
)

# --------------------------------------------------------------------------------------------------
# The end of a run: outcome and result are fixed once, or a plan waits for a decision, or children are waited for.


def ended(story: Story, event: ev.Ended) -> None:
    task = story.task
    if task.phase not in (Phase.RUNNING, Phase.ENDING):
        return
    if transition.is_past(task.deadline_at, event.at):
        time_out(story, None)
    elif event.untold:
        defer(story, event)
    elif task.plan is Plan.DRAFTING:
        ask_approval(story, event.at, event.text)
    else:
        settle(story, event.at, Outcome.OK, event.text)


def defer(story: Story, event: ev.Ended) -> None:
    """It said its last word while children still work: they will wake it once, with all they found."""
    if story.task.phase is Phase.RUNNING:
        story.to(Phase.ENDING, ENDED)
    story.to(
        Phase.ANNOUNCE_DEFERRED,
        DESCENDANTS,
        error=None,
        result=frozen(story, event.text),
        delivery=Delivery.DEFERRED,
        delivery_reason=DESCENDANTS,
        ended_at=event.at,
        deadline_at=None,
        clock_left_s=None,
        wake_at=event.at + story.policy.life.settle_expiry_s,
    )
    story.trace(Delivery.DEFERRED, DESCENDANTS, story.task.wake_at)
    story.do(fx.Hold())


def expired(story: Story, at: float) -> None:
    """Its children were waited for long enough. What it said is its result, or the plan that somebody must decide."""
    if story.task.plan is not Plan.DRAFTING:
        return settle(story, at, Outcome.OK, story.task.result, why=EXPIRED)
    transition.new_generation(story, EXPIRED)
    transition.start(story, at, EXPIRED)
    ask_approval(story, at, None)


def ask_approval(story: Story, at: float, text: str | None) -> None:
    expiry = story.policy.life.plan_expiry_s
    if story.task.phase is Phase.ENDING:
        transition.start(story, at, "grace cancelled", error=None)
    story.to(
        Phase.AWAITING_APPROVAL,
        "plan ready",
        result=frozen(story, text) or story.task.fallback,
        deadline_at=None,
        clock_left_s=None,
        wake_at=at + expiry if expiry else None,
    )
    story.do(fx.AskApproval(story.task.generation))


def decided(story: Story, event: ev.Decided) -> None:
    if story.task.phase is not Phase.AWAITING_APPROVAL:
        return
    match event.verdict:
        case ev.Verdict.APPROVE:
            # A plan is no result: it must not stand in for one if the work ends without words.
            transition.new_generation(story, "plan approved", plan=Plan.APPROVED, fallback=None)
            story.do(fx.Schedule())
        case ev.Verdict.REVISE if story.task.plan_round < story.policy.life.plan_rounds_max:
            transition.new_generation(story, "plan sent back", plan_round=story.task.plan_round + 1)
            story.do(fx.Schedule())
        case _:
            reject(story, event.at, f"plan rejected: {event.text}")


def reject(story: Story, at: float, error: str) -> None:
    story.to(Phase.ENDING, error)
    settle(story, at, Outcome.ERROR, story.task.result, error=error)


def failed(story: Story, event: ev.Failed) -> None:
    """Someone may start it again within the grace; until then nothing is decided."""
    task = story.task
    if task.phase is not Phase.RUNNING:
        return
    if transition.is_past(task.deadline_at, event.at):
        return time_out(story, None)
    if event.is_final:
        return settle(story, event.at, event.outcome, event.text, error=event.error)
    stopped = transition.clock_stops(task, event.at)
    stopped["wake_at"] = event.at + story.policy.life.error_grace_s
    story.to(
        Phase.ENDING, f"error: {event.error}", error=event.error, result=frozen(story, event.text), **stopped
    )


def time_out(story: Story, partial: str | None) -> None:
    """The run ended at its deadline, however late that is noticed. What it reports afterwards has no say."""
    deadline = story.task.deadline_at
    assert deadline is not None, "only a run with a clock can time out"
    story.do(fx.Stop("timeout"))
    settle(story, deadline, Outcome.TIMEOUT, partial)


def settle(
    story: Story, at: float, outcome: Outcome, text: str | None, *, error: str | None = None, why: str = ""
) -> None:
    """Fix outcome and result, and make it tellable. Nothing changes them afterwards in this generation."""
    task = story.task
    said = silence(text or "") if outcome is Outcome.OK else None
    result = frozen(story, text) or task.fallback
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
        story.trace(Delivery.SKIPPED, word)
        lifecycle_delivery.clean(story, f"skipped: {word}")
    else:
        story.to(Phase.ANNOUNCING, why or outcome, **fixed, delivery=Delivery.WAITING, delivery_reason="")
    if not task.expects_completion:
        lifecycle_delivery.tell_ended(story, outcome)
    story.do(fx.Stay() if task.stays else fx.Close(), fx.Announce(story.task.generation, silent=skips))
    if story.policy.limits.on_parent_end.get(outcome) == "kill":
        story.do(fx.KillChildren(f"parent ended: {outcome}"))


ORPHANED = "its session is gone"


def orphaned(story: Story, event: ev.Orphaned) -> None:
    """Its last words are its result, except a plan, which nobody can work on any more. Without any it is lost. What
    lies in an inbox already is told as it is."""
    task = story.task
    if task.phase not in WORKING or task.outcome is not None:
        return
    if task.phase is Phase.SPAWNING:
        return story.do(fx.Unmake(ORPHANED))
    story.change(stays=False)
    story.do(fx.Stop("orphaned"))
    if task.phase is Phase.ANNOUNCE_DEFERRED and task.plan is not Plan.DRAFTING:
        return settle(story, event.at, Outcome.OK, task.result, why=ORPHANED)
    if event.is_pruned:
        return over(story, event.at, Outcome.LOST, ORPHANED, "pruned")
    if task.phase is Phase.PAUSED:
        story.to(Phase.QUEUED, ORPHANED)
    if story.task.phase is Phase.QUEUED:
        transition.start(story, event.at, ORPHANED)
    if task.phase is Phase.AWAITING_APPROVAL:
        story.to(Phase.ENDING, ORPHANED)
    settle(story, event.at, Outcome.LOST, task.result, error=ORPHANED)


def frozen(story: Story, text: str | None) -> str | None:
    return freeze(text or "", story.policy.life.result_bytes_max).text


def killed(story: Story, event: ev.Killed) -> None:
    """Final. Its letter is silent: it only keeps a waiting parent from waiting for ever."""
    if story.task.outcome is not None:
        lifecycle_delivery.session_ended(story, f"killed: {event.reason}")
    elif story.task.phase in WORKING:
        story.do(fx.Stop("killed"))
        over(story, event.at, Outcome.KILLED, event.reason, "killed")


def over(story: Story, at: float, outcome: Outcome, error: str, word: str) -> None:
    """At once, from wherever it stands, and nobody is told."""
    story.change(
        stays=False,
        outcome=outcome,
        error=error,
        delivery=Delivery.SKIPPED,
        delivery_reason=word,
        ended_at=at,
        deadline_at=None,
        clock_left_s=None,
        result=story.task.result or story.task.fallback,
    )
    story.trace(Delivery.SKIPPED, word)
    story.do(fx.Close(), fx.Unbind(), fx.Announce(story.task.generation, silent=True))
    lifecycle_delivery.clean(story, f"{word}: {error}")


# --------------------------------------------------------------------------------------------------
# A task's one timer rings: what that means depends on where it stands.


def woke(story: Story, event: ev.Woke) -> None:
    task = story.task
    if task.wake_at is None or event.at < task.wake_at:
        return
    match task.phase:
        case Phase.SPAWNING:
            story.do(fx.Unmake(f"not ready within {story.policy.limits.reservation_s:g} s"))
        case Phase.RUNNING:
            alarm_rings(story, event)
        case Phase.ENDING:
            settle(story, event.at, Outcome.ERROR, task.result, error=task.error)
        case Phase.AWAITING_APPROVAL:
            reject(story, event.at, "plan expired")
        case Phase.ANNOUNCE_DEFERRED if task.reason == DESCENDANTS:
            settle_expired(story, event)
        case Phase.ANNOUNCE_DEFERRED:
            story.to(Phase.ANNOUNCING, "nobody came back", wake_at=None)
            lifecycle_delivery.give_up(story, "no-requester")
        case Phase.COMPLETED_GIVEUP if task.delivery is Delivery.UNDELIVERED:
            lifecycle_delivery.let_go(story, "expired")
        case Phase.COMPLETED | Phase.COMPLETED_GIVEUP if task.stays and not task.has_cleanup:
            lifecycle_delivery.idle(story, event.progress_at)
        case Phase.CLEANUP_PENDING | Phase.COMPLETED_GIVEUP:
            lifecycle_delivery.clean_up(story, is_needed=True)
        case _:
            story.change(wake_at=None)


def alarm_rings(story: Story, event: ev.Woke) -> None:
    task = story.task
    if task.deadline_at is None or not event.is_owned:
        # Nobody works on it, so its clock stands; whoever takes over sets the alarm anew.
        return story.change(wake_at=None)
    if event.at < task.deadline_at:
        story.do(fx.WrapUp(task.deadline_at - event.at))
        return story.change(wake_at=task.deadline_at)
    time_out(story, event.partial)


def settle_expired(story: Story, event: ev.Woke) -> None:
    """The wait is measured from the last sign of life below, and not at all while a person is asked."""
    expiry, ended_at = story.policy.life.settle_expiry_s, story.task.ended_at or 0.0
    alive_at = event.at if event.person_waits else max(event.progress_at or 0.0, ended_at)
    if story.policy.life.settle_expiry_from is ExpiryFrom.END:
        alive_at = ended_at
    if alive_at + expiry > event.at:
        return story.change(wake_at=alive_at + expiry)
    expired(story, event.at)


__all__ = [
    "BUSY",
    "DESCENDANTS",
    "EDGES",
    "EXPIRED",
    "MISSING",
    "ORPHANED",
    "QUIET_HOURS",
    "Move",
    "Transition",
    "fold",
    "in_order",
    "is_past",
    "step",
]


def step(task: Task, event: ev.Event, policy: Policy) -> Transition:
    """What the event makes of the task. An unchanged task and no moves: the event had no say."""
    story = Story(task, event.at, policy)
    match event:
        case ev.Admitted():
            transition.admitted(story)
        case ev.Reserved():
            transition.reserved(story, event.at)
        case ev.Started():
            transition.started(story, event.at)
        case ev.Resumed():
            transition.resumed(story, event)
        case ev.Thawed():
            transition.thawed(story, event)
        case ev.Parked():
            transition.parked(story, event)
        case ev.Yielded():
            transition.yielded(story)
        case ev.Ended():
            ended(story, event)
        case ev.Failed():
            failed(story, event)
        case ev.Killed():
            killed(story, event)
        case ev.Steered():
            transition.steered(story, event)
        case ev.Paused():
            transition.paused(story, event.at)
        case ev.Unpaused():
            transition.unpaused(story)
        case ev.Decided():
            decided(story, event)
        case ev.Delivered():
            lifecycle_delivery.delivered(story, event)
        case ev.Deferred():
            lifecycle_delivery.deferred(story, event)
        case ev.Read():
            lifecycle_delivery.read(story, event)
        case ev.DeliveryFailed():
            lifecycle_delivery.delivery_failed(story, event)
        case ev.Unheard():
            lifecycle_delivery.unheard(story, event)
        case ev.RequesterGone():
            lifecycle_delivery.requester_gone(story, event)
        case ev.RequesterBack():
            lifecycle_delivery.requester_back(story)
        case ev.RequesterKilled():
            lifecycle_delivery.requester_killed(story, event)
        case ev.Dropped():
            lifecycle_delivery.dropped(story)
        case ev.SessionEnded():
            lifecycle_delivery.session_ended(story, event.reason)
        case ev.Cleaned():
            lifecycle_delivery.cleaned(story)
        case ev.CleanupFailed():
            lifecycle_delivery.cleanup_failed(story, event)
        case ev.Abandoned():
            lifecycle_delivery.abandoned(story, event.reason)
        case ev.Orphaned():
            orphaned(story, event)
        case ev.Again():
            lifecycle_delivery.again(story, event)
        case ev.Redelivered():
            lifecycle_delivery.redelivered(story)
        case ev.Dismissed():
            lifecycle_delivery.let_go(story, "dismissed")
        case ev.Late():
            story.note(f"late: {event.text[:200]}")
        case ev.Noted():
            story.note(event.text[:200])
        case ev.Woke():
            woke(story, event)
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
    """What the log says the row must be: phase, generation, outcome. Raises where the log is broken."""
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
