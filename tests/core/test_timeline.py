"""The timeline alone gives the row of a task at every moment: whatever happened to it, in whatever order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.core.events import Move
from clutch.core.lifecycle import step
from clutch.core.model import Delivery, Phase, Reason
from clutch.core.text.why import TimelineEntry
from clutch.core.timeline import Standing, after, standings, subagents
from tests.core.stories import every_event, new

EVENTS = len(every_event(0.0))


def line(seq: int, at: float, move: Move) -> TimelineEntry:
    outcome = None if move.outcome is None else move.outcome.value
    return TimelineEntry(
        seq, at, "clutch", move.from_phase, move.to_phase, move.reason, move.generation, outcome, move.detail
    )


@settings(max_examples=400)
@given(st.lists(st.integers(0, EVENTS - 1), max_size=40), st.booleans(), st.booleans())
def test_the_entries_up_to_a_moment_give_the_row_of_that_moment(
    chosen: list[int], has_cleanup: bool, notify_parent: bool
) -> None:
    task = new(has_cleanup=has_cleanup, notify_parent=notify_parent).task
    now, seq = Standing(), 0
    for at, place in enumerate([1, 2, *chosen], start=1):
        event = every_event(float(at), task.generation)[place]
        made = step(task, event, new().policy)
        for move in made.moves:
            seq += 1
            now = after(now, line(seq, float(at), move))
        task = made.task
        row = (task.phase, task.reason, task.generation, task.outcome, task.delivery, task.delivery_reason)
        told = (now.phase, now.cause, now.generation, now.outcome, now.delivery, now.delivery_cause)
        assert told == row, f"after {event}"
        assert now.attempts == task.attempts
        assert now.started_at == task.started_at


def entry(seq: int, at: float, came: Phase, went: Phase, cause: Reason, detail: str = "") -> TimelineEntry:
    return TimelineEntry(seq, at, "clutch", came, went, cause, 1, None, detail)


SPAWNED = entry(1, 0.0, Phase.SPAWNING, Phase.QUEUED, Reason.ADMITTED)
STARTED = entry(2, 1.0, Phase.QUEUED, Phase.RUNNING, Reason.STARTED)


def test_a_pause_lasts_from_its_note_until_it_is_resumed() -> None:
    lines = [
        SPAWNED,
        STARTED,
        entry(3, 2.0, Phase.RUNNING, Phase.RUNNING, Reason.PAUSE),
        entry(4, 3.0, Phase.RUNNING, Phase.PAUSED, Reason.CHILDREN),
        entry(5, 4.0, Phase.PAUSED, Phase.PAUSED, Reason.UNPAUSED),
    ]
    assert [now.is_paused for _, now in standings(lines)] == [False, False, True, True, False]


def test_the_end_of_a_cleanup_does_not_take_a_late_delivery_back() -> None:
    before = Standing(phase=Phase.CLEANUP_PENDING, cause=Reason.UNDELIVERED, delivery=Delivery.UNDELIVERED)
    told = after(
        before, entry(7, 5.0, Phase.CLEANUP_PENDING, Phase.CLEANUP_PENDING, Reason.DELIVERED, "direct")
    )
    done = after(told, entry(8, 6.0, Phase.CLEANUP_PENDING, Phase.COMPLETED, Reason.UNDELIVERED, "expiry"))
    assert (told.delivery, done.delivery) == (Delivery.DELIVERED, Delivery.DELIVERED)


def test_subagents_are_counted_from_their_timelines() -> None:
    first = [SPAWNED, entry(2, 5.0, Phase.QUEUED, Phase.CLEANUP_PENDING, Reason.KILLED)]
    second = [entry(1, 2.0, Phase.SPAWNING, Phase.QUEUED, Reason.ADMITTED)]
    assert subagents([first, second]) == [(0.0, 1, 1), (2.0, 2, 2), (5.0, 1, 2)]
    assert subagents([]) == []
