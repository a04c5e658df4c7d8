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

Read in this order: `story` (edges, moves), `running`, `ending`, `telling`, `after`, `waking` (the timer).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from clutch.core import events as ev
from clutch.core.lifecycle import after, ending, running, telling, waking
from clutch.core.lifecycle.ending import ORPHANED
from clutch.core.lifecycle.story import BUSY, DESCENDANTS, EDGES, MISSING, QUIET_HOURS, Move, Step, Story
from clutch.core.model import EXPIRED, Outcome, Phase, Task
from clutch.core.policy import Policy

__all__ = [
    "BUSY",
    "DESCENDANTS",
    "EDGES",
    "EXPIRED",
    "MISSING",
    "ORPHANED",
    "QUIET_HOURS",
    "Move",
    "Step",
    "fold",
    "in_order",
    "step",
]


def step(task: Task, event: ev.Event, policy: Policy) -> Step:
    """What the event makes of the task. An unchanged task and no moves: the event had no say."""
    story = Story(task, event.at, policy)
    match event:
        case ev.Admitted():
            running.admitted(story)
        case ev.Reserved():
            running.reserved(story, event.at)
        case ev.Started():
            running.started(story, event.at)
        case ev.Resumed():
            running.resumed(story, event)
        case ev.Parked():
            running.parked(story, event)
        case ev.Yielded():
            running.yielded(story)
        case ev.Ended():
            ending.ended(story, event)
        case ev.Failed():
            ending.failed(story, event)
        case ev.Killed():
            ending.killed(story, event)
        case ev.Steered():
            running.steered(story, event)
        case ev.Paused():
            running.paused(story, event.at)
        case ev.Unpaused():
            running.unpaused(story)
        case ev.Decided():
            ending.decided(story, event)
        case ev.Delivered():
            telling.delivered(story, event)
        case ev.Deferred():
            telling.deferred(story, event)
        case ev.Read():
            telling.read(story, event)
        case ev.DeliveryFailed():
            telling.delivery_failed(story, event)
        case ev.Unheard():
            telling.unheard(story, event)
        case ev.RequesterGone():
            telling.requester_gone(story, event)
        case ev.RequesterBack():
            telling.requester_back(story)
        case ev.RequesterKilled():
            telling.requester_killed(story, event)
        case ev.Dropped():
            telling.dropped(story)
        case ev.SessionEnded():
            after.session_ended(story, event.reason)
        case ev.Cleaned():
            after.cleaned(story)
        case ev.CleanupFailed():
            after.cleanup_failed(story, event)
        case ev.Abandoned():
            telling.abandoned(story, event.reason)
        case ev.Orphaned():
            ending.orphaned(story, event)
        case ev.Again():
            after.again(story, event)
        case ev.Redelivered():
            telling.redelivered(story)
        case ev.Dismissed():
            telling.let_go(story, "dismissed")
        case ev.Late():
            story.note(f"late: {event.text[:200]}")
        case ev.Noted():
            story.note(event.text[:200])
        case ev.Woke():
            waking.woke(story, event)
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
