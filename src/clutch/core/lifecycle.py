"""The state machine of a task: `TRANSITIONS` says what each event does in each phase.

    spawning → queued → running → ending → announcing ⇄ announce_deferred
                         ⇅  ⇅                  ↓
                    paused  awaiting_approval  cleanup_pending → completed | completed_giveup

Three rules:

1. `step(task, event, policy)` is the only way a task changes. It returns the new task, the moves for the
   timeline and the effects. The caller writes all of it in one transaction, or nothing.
2. An event that is not in the row of the task's phase (late, repeated) has no say: the same task comes back. A handler
   checks fields other than the phase. A move along an edge that is not in `transition.EDGES` is a bug and raises.
3. A generation has one outcome. It is fixed when the task enters `announcing` (or is killed), and only a
   new generation clears it.

The handlers are in `lifecycle_run` (until the outcome) and `lifecycle_delivery` (after it)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from clutch.core import events as ev
from clutch.core import lifecycle_delivery as delivery
from clutch.core import lifecycle_run as run
from clutch.core.events import EDGES, Move, Story, Transition
from clutch.core.model import Outcome, Phase, Task
from clutch.core.policy import Policy

Handler: TypeAlias = Callable[[Story, Any], None]

TRANSITIONS: Mapping[tuple[Phase, type[ev.Event]], Handler] = {
    # In every phase: lines for the timeline, and a scheduling that may be due to the session rather than the task.
    **{(phase, ev.Noted): delivery.noted for phase in Phase},
    **{(phase, ev.Late): delivery.late for phase in Phase},
    **{(phase, ev.Unpaused): run.rescheduled for phase in Phase},
    #
    (Phase.SPAWNING, ev.Reserved): run.reserved,
    (Phase.SPAWNING, ev.Admitted): run.admitted,
    (Phase.SPAWNING, ev.Woke): run.reservation_expired,
    (Phase.SPAWNING, ev.Orphaned): run.orphaned_at_spawn,
    (Phase.SPAWNING, ev.Killed): run.killed,
    (Phase.SPAWNING, ev.SessionEnded): delivery.session_ended_at_work,
    #
    (Phase.QUEUED, ev.Started): run.started,
    (Phase.QUEUED, ev.Paused): run.paused_in_queue,
    (Phase.QUEUED, ev.Steered): run.steered_while_waiting,
    (Phase.QUEUED, ev.Woke): delivery.timer_cleared,
    (Phase.QUEUED, ev.Orphaned): run.orphaned_without_run,
    (Phase.QUEUED, ev.Killed): run.killed,
    (Phase.QUEUED, ev.SessionEnded): delivery.session_ended_at_work,
    #
    (Phase.RUNNING, ev.Resumed): run.resumed,
    (Phase.RUNNING, ev.Thawed): run.thawed,
    (Phase.RUNNING, ev.Parked): run.parked,
    (Phase.RUNNING, ev.Yielded): run.yielded,
    (Phase.RUNNING, ev.Paused): run.paused,
    (Phase.RUNNING, ev.Steered): run.steered,
    (Phase.RUNNING, ev.Ended): run.ended,
    (Phase.RUNNING, ev.Failed): run.failed,
    (Phase.RUNNING, ev.Woke): run.alarm_rings,
    (Phase.RUNNING, ev.Orphaned): run.orphaned,
    (Phase.RUNNING, ev.Killed): run.killed,
    (Phase.RUNNING, ev.SessionEnded): delivery.session_ended_at_work,
    #
    (Phase.PAUSED, ev.Started): run.unparked,
    (Phase.PAUSED, ev.Unpaused): run.unpaused,
    (Phase.PAUSED, ev.Steered): run.steered_while_waiting,
    (Phase.PAUSED, ev.Woke): delivery.timer_cleared,
    (Phase.PAUSED, ev.Orphaned): run.orphaned_without_run,
    (Phase.PAUSED, ev.Killed): run.killed,
    (Phase.PAUSED, ev.SessionEnded): delivery.session_ended_at_work,
    #
    (Phase.AWAITING_APPROVAL, ev.Decided): run.decided,
    (Phase.AWAITING_APPROVAL, ev.Started): run.children_settled_after_plan,
    (Phase.AWAITING_APPROVAL, ev.Woke): run.plan_expired,
    (Phase.AWAITING_APPROVAL, ev.Orphaned): run.orphaned_without_run,
    (Phase.AWAITING_APPROVAL, ev.Killed): run.killed,
    (Phase.AWAITING_APPROVAL, ev.SessionEnded): delivery.session_ended_at_work,
    #
    (Phase.ENDING, ev.Started): run.restarted,
    (Phase.ENDING, ev.Steered): run.steered,
    (Phase.ENDING, ev.Ended): run.ended,
    (Phase.ENDING, ev.Woke): run.grace_expired,
    (Phase.ENDING, ev.Orphaned): run.orphaned,
    (Phase.ENDING, ev.Killed): run.killed,
    (Phase.ENDING, ev.SessionEnded): delivery.session_ended_at_work,
    #
    (Phase.ANNOUNCING, ev.Delivered): delivery.delivered,
    (Phase.ANNOUNCING, ev.Unconfirmed): delivery.unconfirmed,
    (Phase.ANNOUNCING, ev.Deferred): delivery.deferred,
    (Phase.ANNOUNCING, ev.Read): delivery.read,
    (Phase.ANNOUNCING, ev.DeliveryFailed): delivery.delivery_failed,
    (Phase.ANNOUNCING, ev.Dropped): delivery.dropped,
    (Phase.ANNOUNCING, ev.RequesterGone): delivery.requester_gone,
    (Phase.ANNOUNCING, ev.RequesterKilled): delivery.requester_killed,
    (Phase.ANNOUNCING, ev.Abandoned): delivery.abandoned,
    (Phase.ANNOUNCING, ev.Steered): run.steered_after_end,
    (Phase.ANNOUNCING, ev.Again): run.again_before_delivery,
    (Phase.ANNOUNCING, ev.Woke): delivery.timer_cleared,
    (Phase.ANNOUNCING, ev.Killed): delivery.session_killed,
    (Phase.ANNOUNCING, ev.SessionEnded): delivery.session_ended,
    # Two cases: the task waits for its children and has no outcome, or its letter waits for a parent that is gone.
    (Phase.ANNOUNCE_DEFERRED, ev.Started): run.children_settled,
    (Phase.ANNOUNCE_DEFERRED, ev.Steered): run.steered_while_deferred,
    (Phase.ANNOUNCE_DEFERRED, ev.Woke): run.deferral_expired,
    (Phase.ANNOUNCE_DEFERRED, ev.Orphaned): run.orphaned_while_deferred,
    (Phase.ANNOUNCE_DEFERRED, ev.Again): run.again_before_delivery,
    (Phase.ANNOUNCE_DEFERRED, ev.Delivered): delivery.delivered,
    (Phase.ANNOUNCE_DEFERRED, ev.Unconfirmed): delivery.unconfirmed,
    (Phase.ANNOUNCE_DEFERRED, ev.RequesterBack): delivery.requester_back,
    (Phase.ANNOUNCE_DEFERRED, ev.RequesterKilled): delivery.requester_killed,
    (Phase.ANNOUNCE_DEFERRED, ev.Abandoned): delivery.abandoned,
    (Phase.ANNOUNCE_DEFERRED, ev.Killed): run.killed,
    (Phase.ANNOUNCE_DEFERRED, ev.SessionEnded): delivery.session_ended_at_work,
    #
    (Phase.CLEANUP_PENDING, ev.Cleaned): delivery.cleaned,
    (Phase.CLEANUP_PENDING, ev.CleanupFailed): delivery.cleanup_failed,
    (Phase.CLEANUP_PENDING, ev.Woke): delivery.cleanup_overdue,
    (Phase.CLEANUP_PENDING, ev.Delivered): delivery.delivered_after_all,
    (Phase.CLEANUP_PENDING, ev.Killed): delivery.session_killed,
    (Phase.CLEANUP_PENDING, ev.SessionEnded): delivery.session_ended,
    #
    (Phase.COMPLETED, ev.Again): run.again,
    (Phase.COMPLETED, ev.Delivered): delivery.delivered_after_all,
    (Phase.COMPLETED, ev.Woke): delivery.completed_timer,
    (Phase.COMPLETED, ev.Killed): delivery.finished_session_killed,
    (Phase.COMPLETED, ev.SessionEnded): delivery.finished_session_ended,
    #
    (Phase.COMPLETED_GIVEUP, ev.Again): run.again_after_giveup,
    (Phase.COMPLETED_GIVEUP, ev.Redelivered): delivery.redelivered,
    (Phase.COMPLETED_GIVEUP, ev.Dismissed): delivery.dismissed,
    (Phase.COMPLETED_GIVEUP, ev.Delivered): delivery.delivered_after_giveup,
    (Phase.COMPLETED_GIVEUP, ev.Cleaned): delivery.removed_after_giveup,
    (Phase.COMPLETED_GIVEUP, ev.CleanupFailed): delivery.removal_failed_after_giveup,
    (Phase.COMPLETED_GIVEUP, ev.Woke): delivery.giveup_timer,
    (Phase.COMPLETED_GIVEUP, ev.Killed): delivery.finished_session_killed,
    (Phase.COMPLETED_GIVEUP, ev.SessionEnded): delivery.finished_session_ended,
}


def step(task: Task, event: ev.Event, policy: Policy) -> Transition:
    """Return what the event makes of the task. The same task without moves means that the event had no say."""
    handler = TRANSITIONS.get((task.phase, type(event)))
    if handler is None:
        return Transition(task)
    story = Story(task, event.at, policy)
    handler(story, event)
    return story.done()


def fold(moves: Iterable[Move]) -> tuple[Phase, int, Outcome | None]:
    """Return phase, generation and outcome that the timeline gives the row. Raise where the timeline is broken."""
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
