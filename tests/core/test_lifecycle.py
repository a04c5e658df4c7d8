"""The run of a task: which edges there are, which signal wins, what its clock counts, what it leaves behind.

Control (steer, kill, plan, again) and telling have files of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import permutations
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.events import EDGES, Move
from clutch.core.lifecycle import TRANSITIONS, fold, step
from clutch.core.model import UNTOLD, WORKING, Delivery, Outcome, Phase, Reason, Task
from clutch.core.policy import Life, Policy
from tests.core.stories import (
    Story,
    announcing,
    awaiting,
    deferred,
    delivered,
    drafting,
    every_event,
    in_every_phase,
    new,
    refused,
    running,
)

SPECIFIED = """
spawning          → queued
queued            → running paused ending
running           → ending paused awaiting_approval queued
paused            → queued running ending
awaiting_approval → queued running ending
ending            → running queued awaiting_approval announcing announce_deferred
announcing        → announce_deferred queued
announce_deferred → announcing queued running awaiting_approval
cleanup_pending   → completed completed_giveup
completed         → queued
completed_giveup  → queued announcing cleanup_pending
"""
BEFORE_CLEANUP = tuple(Phase)[: tuple(Phase).index(Phase.CLEANUP_PENDING)]


def specified_edges() -> set[tuple[Phase, Phase]]:
    edges = {(phase, Phase.CLEANUP_PENDING) for phase in BEFORE_CLEANUP}
    for line in SPECIFIED.split("\n"):
        start, _, ends = line.partition("→")
        edges |= {(Phase(start.strip()), Phase(end)) for end in ends.split()}
    return edges


def test_edges_are_exactly_those_of_the_specification() -> None:
    assert specified_edges() == EDGES


@pytest.mark.parametrize(
    ("story", "event", "phases"),
    [
        (awaiting(), ev.Started(9), [Phase.RUNNING]),
        (drafting().then(ev.Failed(3, "boom")), ev.Ended(4, "the plan"), [Phase.AWAITING_APPROVAL]),
        (
            drafting().then(ev.Ended(2, "the plan", untold=1)),
            ev.Woke(Policy().life.settle_expiry_s + 2),
            [Phase.ANNOUNCE_DEFERRED, Phase.AWAITING_APPROVAL],  # the first line says that the wait expired
        ),
        (new().then(ev.Admitted(0)), ev.Orphaned(9), [Phase.ENDING, Phase.ANNOUNCING]),
        (running().then(ev.Paused(3)), ev.Orphaned(9), [Phase.ENDING, Phase.ANNOUNCING]),
    ],
    ids=["children after a plan", "plan in grace", "plan after a wait", "orphan in queue", "paused orphan"],
)
def test_a_timeline_has_no_move_that_was_not_made(story: Story, event: ev.Event, phases: list[Phase]) -> None:
    after = story.then(event)
    assert [move.to_phase for move in after.moves[len(story.moves) :]] == phases
    assert after.task.started_at == story.task.started_at, "it did not run"


def test_working_and_untold_are_the_phases_before_and_until_told() -> None:
    assert set(BEFORE_CLEANUP) == UNTOLD
    assert UNTOLD - {Phase.ANNOUNCING} == WORKING


def test_every_edge_is_walked_by_some_story_and_no_event_ever_meets_a_missing_one() -> None:
    """Breadth first over all events from fresh tasks; the key leaves out what only counts."""
    policy = Policy(life=Life(plan_expiry_s=60))
    waiting = deque(
        [new(policy).task, drafting(policy).task, new(policy, has_cleanup=True, timeout_s=9).task]
    )
    seen, walked = set(), set()
    while waiting:
        task = waiting.popleft()
        at = 1.0 if task.wake_at is None else task.wake_at
        for event in every_event(at, task.generation):
            result = step(task, event, policy)
            walked |= {(move.from_phase, move.to_phase) for move in result.moves}
            after = result.task
            clock = (after.wake_at is None, after.deadline_at is None, after.clock_left_s is None)
            key = (after.phase, after.reason, after.plan, after.delivery, after.has_cleanup, clock)
            if key not in seen:
                seen.add(key)
                waiting.append(after)
    assert {(start, end) for start, end in walked if start is not end} == EDGES


def test_examples_cover_every_kind_of_event_and_every_phase() -> None:
    assert {type(event) for event in every_event(0)} == set(get_args(ev.Event))
    assert {story.phase for story in in_every_phase().values()} == set(Phase)


# ---- the log -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", in_every_phase())
def test_timeline_folds_to_the_row_and_counts_its_lines(name: str) -> None:
    story = in_every_phase()[name]
    task = story.task
    assert fold(story.moves) == (task.phase, task.generation, task.outcome)
    assert task.seq == len(story.moves)


def line(start: Phase, end: Phase, generation: int = 1, outcome: Outcome | None = None) -> Move:
    return Move(start, end, Reason.NONE, generation, outcome)


@pytest.mark.parametrize(
    "moves",
    [
        [line(Phase.QUEUED, Phase.RUNNING)],
        [line(Phase.SPAWNING, Phase.RUNNING)],
        [line(Phase.SPAWNING, Phase.QUEUED, 2), line(Phase.QUEUED, Phase.RUNNING, 1)],
        [
            line(Phase.SPAWNING, Phase.CLEANUP_PENDING, 1, Outcome.KILLED),
            line(Phase.CLEANUP_PENDING, Phase.COMPLETED, 1, Outcome.OK),
        ],
    ],
    ids=["wrong-start", "no-such-edge", "generation-goes-back", "outcome-changes"],
)
def test_broken_log_does_not_fold(moves: list[Move]) -> None:
    with pytest.raises(AssertionError):
        fold(moves)


# ---- which signal wins -------------------------------------------------------------------------------

#: In order of precedence, for a run whose deadline is at 10.
SIGNALS: tuple[tuple[ev.Event, Outcome], ...] = (
    (ev.Killed(10), Outcome.KILLED),
    (ev.Ended(10, "done"), Outcome.OK),
    (ev.Woke(10, partial="half"), Outcome.TIMEOUT),
    (ev.Failed(10, "boom", "half", is_final=True), Outcome.ERROR),
    (ev.Failed(10, "gone", "half", is_final=True, outcome=Outcome.LOST), Outcome.LOST),
)


def in_order(signals: Iterable[ev.Event]) -> list[ev.Event]:
    """Return signals in the order in which they count: kill, result, deadline, error, lost; the rest as they came."""

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


def at_its_deadline() -> Story:
    story = running(timeout_s=10)
    return story.then(ev.Woke(8))


@pytest.mark.parametrize("strongest", range(len(SIGNALS)))
def test_signals_of_one_transaction_end_in_the_strongest_in_whatever_order_they_came(strongest: int) -> None:
    signals = [signal for signal, _ in SIGNALS[strongest:]]
    ends = {at_its_deadline().then(*in_order(order)).task for order in permutations(signals)}
    assert [task.outcome for task in ends] == [SIGNALS[strongest][1]]


@pytest.mark.scenario(59)
@pytest.mark.scenario(62)
@pytest.mark.parametrize(("first", "outcome"), SIGNALS)
def test_first_committed_signal_wins_over_all_later_and_repeated_ones(
    first: ev.Event, outcome: Outcome
) -> None:
    ended = at_its_deadline().then(first)
    assert ended.task.outcome is outcome
    others = [signal for signal, _ in SIGNALS]
    assert ended.then(*others, *others).task == ended.task


@pytest.mark.scenario(62)
@given(st.lists(st.sampled_from([signal for signal, _ in SIGNALS]), min_size=1, max_size=12), st.randoms())
def test_signals_in_any_order_and_any_number_of_times_lead_to_the_same_state(
    signals: list[ev.Event], chance: Random
) -> None:
    """Seen together the strongest decides; seen one by one the first; and whatever comes again changes nothing."""
    shuffled = chance.sample(signals, len(signals))
    together = at_its_deadline().then(*in_order(signals)).task
    assert together == at_its_deadline().then(*in_order(shuffled)).task
    assert together == at_its_deadline().then(in_order(signals)[0]).task
    one_by_one = at_its_deadline().then(*shuffled)
    assert one_by_one.task == at_its_deadline().then(shuffled[0]).task
    assert one_by_one.task.outcome is dict(SIGNALS)[shuffled[0]]


def test_what_is_no_signal_of_a_run_keeps_its_place_after_the_signals() -> None:
    rest: list[ev.Event] = [ev.Cleaned(1), ev.Paused(1), ev.Started(1)]
    assert in_order([*rest, ev.Killed(1)]) == [ev.Killed(1), *rest]


@pytest.mark.scenario(58)
def test_late_words_are_a_line_in_the_timeline_and_nothing_else() -> None:
    for story in in_every_phase().values():
        after = story.then(ev.Late(50, "x" * 1000))
        assert after.task == story.task._replace(seq=story.task.seq + 1)
        assert after.moves[-1].from_phase is after.moves[-1].to_phase is story.phase
        assert len(after.moves[-1].reason) <= 206
        assert after.effects == ()


# ---- error grace -------------------------------------------------------------------------------------


@pytest.mark.scenario(55)
def test_error_then_start_then_end_within_the_grace_is_one_ok() -> None:
    failed = running().then(ev.Failed(10, "boom", "half"))
    assert (failed.phase, failed.task.outcome, failed.effects) == (Phase.ENDING, None, ())
    again = failed.then(ev.Started(20))
    assert (again.phase, again.task.error, again.task.generation) == (Phase.RUNNING, None, 1)
    ended = again.then(ev.Woke(25), ev.Ended(30, "done"))
    assert (ended.task.outcome, ended.task.result, ended.task.error) == (Outcome.OK, "done", None)
    assert ended.effects == (fx.Close(), fx.Announce(1))


def test_end_within_the_grace_counts_without_a_new_start() -> None:
    ended = running().then(ev.Failed(10, "boom", "half"), ev.Ended(12, "done"))
    assert (ended.phase, ended.task.outcome, ended.task.result, ended.task.error) == (
        Phase.ANNOUNCING,
        Outcome.OK,
        "done",
        None,
    )


@pytest.mark.scenario(56)
def test_error_and_15_seconds_of_silence_are_one_error_with_the_partial_text() -> None:
    failed = running().then(ev.Failed(10, "boom", "half"))
    assert failed.then(ev.Woke(24.9)).task == failed.task
    ended = failed.then(ev.Woke(25))
    assert (ended.phase, ended.task.outcome, ended.task.error, ended.task.result) == (
        Phase.ANNOUNCING,
        Outcome.ERROR,
        "boom",
        "half",
    )
    assert ended.effects == (fx.Close(), fx.Announce(1))
    assert ended.then(ev.Woke(99), ev.Failed(99, "more")).task == ended.task


def test_final_failure_has_no_grace() -> None:
    ended = running().then(ev.Failed(10, "crash loop", "half", is_final=True))
    assert (ended.phase, ended.task.outcome, ended.task.wake_at) == (Phase.ANNOUNCING, Outcome.ERROR, None)


def test_error_of_a_repaired_run_is_forgotten_when_it_ends_with_children_at_work() -> None:
    story = running().then(ev.Failed(10, "boom", "half"), ev.Ended(12, "so far", untold=1))
    assert (story.phase, story.task.error, story.task.result) == (Phase.ANNOUNCE_DEFERRED, None, "so far")


# ---- the clock ---------------------------------------------------------------------------------------


@pytest.mark.scenario(54)
def test_wrap_up_at_80_percent_and_timeout_with_the_partial_text_at_the_deadline() -> None:
    story = new(timeout_s=100).then(ev.Admitted(0), ev.Started(50))
    assert (story.task.wake_at, story.task.deadline_at) == (130, 150)
    assert story.then(ev.Woke(129)).task == story.task
    warned = story.then(ev.Woke(131))
    assert warned.effects == (fx.WrapUp(19),)
    assert (warned.phase, warned.task.wake_at) == (Phase.RUNNING, 150)
    ended = warned.then(ev.Woke(150, partial="3 tool calls, last: read"))
    assert ended.effects == (fx.Stop("timeout"), fx.Close(), fx.Announce(1))
    task = ended.task
    assert (task.phase, task.outcome, task.result) == (
        Phase.ANNOUNCING,
        Outcome.TIMEOUT,
        "3 tool calls, last: read",
    )
    assert (task.deadline_at, task.wake_at, task.clock_left_s) == (None, None, None)


#: What a run can report at its end, or its alarm for it.
ENDS = st.sampled_from(
    [
        lambda at: ev.Ended(at, "done"),
        lambda at: ev.Ended(at, "done", untold=1),
        lambda at: ev.Failed(at, "boom", "half"),
        lambda at: ev.Failed(at, "boom", "half", is_final=True),
        lambda at: ev.Woke(at, partial="half"),
    ]
)


@given(ENDS, st.floats(0, 1e6))
def test_a_signal_after_the_deadline_is_a_timeout_that_is_recorded_at_the_deadline(
    end: Callable[[float], ev.Event], late_s: float
) -> None:
    """However late it is seen. A result that arrives at the deadline itself still counts."""
    signal = end(10 + late_s)
    story = at_its_deadline().then(signal)
    is_late = signal.at > 10 or isinstance(signal, ev.Woke)
    assert (story.task.outcome is Outcome.TIMEOUT) == is_late
    if is_late:
        assert story.task.ended_at == 10
        assert story.did(fx.Stop)


@given(ENDS, st.floats(0.001, 1e6), st.floats(0.001, 1e6))
def test_a_deadline_that_moved_is_the_one_that_counts(
    end: Callable[[float], ev.Event], lost_s: float, left_s: float
) -> None:
    story = at_its_deadline().then(ev.Resumed(9 + lost_s, lost_s, step=1))
    before = story.then(end(min(9 + lost_s, 10 + lost_s)))
    assert before.task.outcome is not Outcome.TIMEOUT
    assert story.then(end(10 + lost_s + left_s)).task.ended_at == 10 + lost_s


@given(ENDS, st.floats(0.001, 1e6), st.floats(0.001, 1e6))
def test_time_in_which_the_process_was_frozen_counts_like_time_without_an_owner(
    end: Callable[[float], ev.Event], lost_s: float, late_s: float
) -> None:
    thawed = at_its_deadline().then(ev.Thawed(9 + lost_s, lost_s))
    resumed = at_its_deadline().then(ev.Resumed(9 + lost_s, lost_s, step=1))
    assert (thawed.task.deadline_at, thawed.task.wake_at) == (resumed.task.deadline_at, resumed.task.wake_at)
    for at in (9 + lost_s, 10 + lost_s + late_s):
        ended, other = thawed.then(end(at)).task, resumed.then(end(at)).task
        assert (ended.outcome, ended.ended_at) == (other.outcome, other.ended_at)


def test_task_without_a_timeout_has_no_clock() -> None:
    story = running()
    assert (story.task.wake_at, story.task.deadline_at) == (None, None)
    assert story.then(ev.Woke(1e9)).task == story.task


PAUSES: tuple[tuple[tuple[ev.Event, ...], tuple[ev.Event, ...]], ...] = (
    ((ev.Parked(30, Reason.QUOTA),), (ev.Started(500),)),
    ((ev.Parked(30, Reason.NEEDS_YOU),), (ev.Started(500),)),
    ((ev.Paused(30),), (ev.Unpaused(400), ev.Started(500))),
    ((ev.Paused(30),), (ev.Unpaused(40), ev.Paused(50), ev.Unpaused(400), ev.Started(500))),
    ((ev.Failed(30, "boom"),), (ev.Started(40), ev.Parked(40, Reason.RESTART), ev.Started(500))),
)


@pytest.mark.parametrize(("leave", "come_back"), PAUSES)
def test_clock_stands_while_parked_paused_or_failed(
    leave: tuple[ev.Event, ...], come_back: tuple[ev.Event, ...]
) -> None:
    away = running(timeout_s=100).then(*leave)
    assert (away.task.deadline_at, away.task.clock_left_s) == (None, 70)
    assert away.then(*come_back).task.deadline_at == 570


def test_alarm_of_a_run_nobody_owns_ends_nothing_and_its_time_is_given_back() -> None:
    orphaned = running(timeout_s=100).then(ev.Woke(200, is_owned=False))
    assert (orphaned.phase, orphaned.task.wake_at, orphaned.effects) == (Phase.RUNNING, None, ())
    resumed = orphaned.then(ev.Resumed(300, lost_s=260, step=4))
    assert (resumed.task.deadline_at, resumed.task.wake_at) == (360, 340)
    assert (resumed.moves[-1].reason, resumed.moves[-1].detail) == (Reason.RESUMED, "4")
    assert resumed.then(ev.Woke(340), ev.Woke(360)).task.outcome is Outcome.TIMEOUT


def test_takeover_after_the_wrap_up_note_waits_for_the_deadline_alone() -> None:
    warned = running(timeout_s=100).then(ev.Woke(80))
    assert warned.then(ev.Resumed(95, lost_s=1, step=4)).task.wake_at == 101


@pytest.mark.parametrize(
    "events",
    [
        (ev.Yielded(90), ev.Started(500)),
        (ev.Ended(90, "so far", untold=1), ev.Started(500)),
        (ev.Steered(90), ev.Started(500)),
        (ev.Ended(90, "x"), delivered(91), ev.Again(92, Reason.CONTINUE), ev.Started(500)),
        (ev.Paused(90), ev.Steered(91), ev.Unpaused(92), ev.Started(500)),
        (ev.Parked(90, Reason.QUOTA), ev.Steered(91), ev.Started(500)),
    ],
    ids=["yield", "wake", "steer", "continue", "steer-paused", "steer-parked"],
)
def test_each_new_run_has_all_its_time(events: tuple[ev.Event, ...]) -> None:
    assert running(timeout_s=100).then(*events).task.deadline_at == 600


def test_approved_run_has_all_its_time() -> None:
    story = awaiting(timeout_s=100).then(ev.Decided(50, ev.PlanVerdict.APPROVE), ev.Started(500))
    assert story.task.deadline_at == 600


def test_runtime_adds_up_from_the_first_start() -> None:
    story = new().then(ev.Admitted(0), ev.Started(5), ev.Steered(9), ev.Started(12), ev.Ended(20, "x"))
    assert (story.task.started_at, story.task.ended_at) == (5, 20)


# ---- parking -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [Reason.QUOTA, Reason.NEEDS_YOU, Reason.RESTART])
def test_parked_run_goes_on_by_itself_in_the_same_generation(reason: Reason) -> None:
    parked = running().then(ev.Parked(5, reason))
    assert (parked.phase, parked.task.reason) == (Phase.PAUSED, reason)
    back = parked.then(ev.Started(9))
    assert (back.phase, back.task.generation) == (Phase.RUNNING, 1)
    assert [move.to_phase for move in back.moves[-2:]] == [Phase.PAUSED, Phase.RUNNING]


@pytest.mark.parametrize("before", ["queued", "running"])
def test_only_a_person_ends_a_persons_pause(before: str) -> None:
    paused = in_every_phase()[before].then(ev.Paused(5))
    assert paused.phase is Phase.PAUSED
    assert paused.then(ev.Started(6)).task == paused.task
    back = paused.then(ev.Unpaused(7))
    assert (back.phase, back.effects) == (Phase.QUEUED, (fx.Schedule(),))


def test_resume_does_not_answer_what_a_parked_run_waits_for() -> None:
    parked = running().then(ev.Parked(5, Reason.NEEDS_YOU))
    assert parked.then(ev.Unpaused(6)).task == parked.task


def test_yielded_task_sleeps_until_it_is_started() -> None:
    yielded = running().then(ev.Yielded(5))
    assert (yielded.phase, yielded.task.reason, yielded.effects) == (Phase.PAUSED, "children", (fx.Hold(),))
    assert yielded.then(ev.Started(9)).phase is Phase.RUNNING


# ---- what it leaves behind ---------------------------------------------------------------------------


@pytest.mark.scenario(65)
@given(st.text(min_size=1, max_size=50), st.integers(1, 4000), st.integers(256, 4096))
def test_result_is_frozen_within_the_limit_as_valid_utf8(text: str, times: int, limit: int) -> None:
    policy = Policy(life=Life(result_bytes_max=limit))
    result = announcing(policy, text=text * times).task.result
    assert result is None or len(result.encode()) <= limit


@pytest.mark.scenario(65)
def test_150_kib_become_at_most_100_with_a_notice() -> None:
    result = announcing(text="ä" * 75 * 1024).task.result
    assert result is not None
    assert 99 * 1024 < len(result.encode()) <= 100 * 1024
    assert "153600 bytes in full" in result


@pytest.mark.scenario(66)
@pytest.mark.parametrize("text", [None, "", " \n"])
def test_end_without_words_is_told_with_no_result(text: str | None) -> None:
    story = running().then(ev.Ended(2, text))
    assert (story.phase, story.task.outcome, story.task.result) == (Phase.ANNOUNCING, Outcome.OK, None)


@pytest.mark.scenario(78)
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("ANNOUNCE_SKIP", Reason.ANNOUNCE_SKIP),
        ("  ANNOUNCE_SKIP\n", Reason.ANNOUNCE_SKIP),
        ("no_reply ", Reason.SILENT),
    ],
)
def test_silence_is_not_announced_and_goes_to_cleanup(text: str, word: Reason) -> None:
    story = running(has_cleanup=True).then(ev.Ended(2, text))
    assert (story.phase, story.task.outcome, story.task.result) == (Phase.CLEANUP_PENDING, Outcome.OK, None)
    assert (story.task.delivery, story.task.delivery_reason) == (Delivery.SKIPPED, word)
    never = fx.Trace(1, Delivery.SKIPPED, word)
    assert story.effects == (never, fx.Cleanup(), fx.Close(), fx.Announce(1, silent=True))


@pytest.mark.parametrize(
    "end",
    [
        ev.Ended(2, "done"),
        ev.Ended(2, "ANNOUNCE_SKIP"),
        ev.Failed(2, "boom", "done", is_final=True),
    ],
)
def test_result_that_the_parent_did_not_request_is_kept_and_skipped(end: ev.Event) -> None:
    story = running(notify_parent=False).then(end)
    assert (story.phase, story.task.delivery) == (Phase.COMPLETED, Delivery.SKIPPED)
    assert (story.task.delivery_reason, story.moves[-2].reason) == (Reason.NOT_REQUESTED, Reason.SKIPPED)
    assert story.task.result == (None if end == ev.Ended(2, "ANNOUNCE_SKIP") else "done")
    assert fx.Announce(1, silent=True) in story.effects


@pytest.mark.scenario(79)
@pytest.mark.parametrize("text", ["All fine. NO_REPLY", "ANNOUNCE_SKIP now", "announce_skip"])
def test_token_inside_a_text_is_text(text: str) -> None:
    assert announcing(text=text).task.result == text


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.LOST])
def test_failure_is_told_even_if_its_last_word_was_silence(outcome: Outcome) -> None:
    story = running().then(ev.Failed(2, "boom", "NO_REPLY", is_final=True, outcome=outcome))
    assert (story.phase, story.task.outcome, story.task.result) == (Phase.ANNOUNCING, outcome, None)


@pytest.mark.scenario(64)
@pytest.mark.parametrize(
    ("text", "result"), [("better", "better"), ("NO_REPLY", "first"), ("", "first"), (None, "first")]
)
def test_new_run_before_delivery_replaces_the_result_unless_it_is_silent(
    text: str | None, result: str
) -> None:
    story = announcing(text="first").then(ev.Steered(3), ev.Started(4), ev.Ended(5, text))
    assert (story.phase, story.task.generation, story.task.result) == (Phase.ANNOUNCING, 2, result)
    assert story.effects == (fx.Close(), fx.Announce(2))


def test_skip_stays_a_skip_even_with_an_earlier_text() -> None:
    story = announcing(text="first").then(ev.Steered(3), ev.Started(4), ev.Ended(5, "ANNOUNCE_SKIP"))
    assert (story.phase, story.task.delivery) == (Phase.COMPLETED, Delivery.SKIPPED)


def test_fallback_outlives_two_silent_generations() -> None:
    story = announcing(text="first").then(
        ev.Steered(3), ev.Steered(4), ev.Started(5), ev.Steered(6), ev.Started(7), ev.Ended(8, "NO_REPLY")
    )
    assert (story.task.generation, story.task.result) == (3, "first")


@pytest.mark.parametrize("name", ["spawning", "running", "announcing", "missing"])
def test_start_counts_only_where_a_run_may_begin(name: str) -> None:
    before = in_every_phase()[name]
    assert before.then(ev.Started(9)).task == before.task


# ---- what is over is over ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["completed", "completed_giveup"])
def test_no_event_changes_a_finished_task_but_again_redeliver_dismiss_and_a_late_note(name: str) -> None:
    story = in_every_phase(timeout_s=5)[name]
    may_change: tuple[type[ev.Event], ...] = (ev.Again, ev.Late, ev.Noted)
    if name == "completed_giveup":
        # A model may answer it later after all; after a week it leaves the lists.
        may_change += (ev.Redelivered, ev.Dismissed, ev.Delivered, ev.Woke)
    for event in every_event(1e6, story.task.generation):
        changed = story.then(event).task != story.task
        assert changed is isinstance(event, may_change), event


def test_outcome_and_result_of_an_ended_task_change_only_with_its_generation() -> None:
    ended = [story for story in in_every_phase().values() if story.task.outcome is not None]
    for story in ended:
        for event in every_event(1e6, story.task.generation):
            after: Task = story.then(event).task
            if after.generation == story.task.generation:
                assert (after.outcome, after.result) == (story.task.outcome, story.task.result), event


@pytest.mark.parametrize("name", ["running", "deferred", "ending", "yielded"])
def test_delivery_of_an_older_generation_says_nothing_about_this_one(name: str) -> None:
    story = in_every_phase()[name].then(
        ev.Killed(5), ev.Again(6, Reason.CONTINUE), ev.Started(7), ev.Ended(8, "x")
    )
    assert (story.phase, story.task.generation) == (Phase.ANNOUNCING, 2)
    older = (delivered(9, 1), refused(9, 1), ev.RequesterKilled(9, 1), ev.RequesterGone(9, 1))
    assert story.then(*older, refused(9, 3)).task == story.task


def test_delivery_before_there_is_a_letter_changes_nothing() -> None:
    for story in (running(), deferred(), awaiting(), drafting()):
        assert (
            story.then(delivered(9), refused(9), ev.RequesterKilled(9, 1), ev.Dropped(9)).task == story.task
        )


def test_every_event_has_a_say_in_some_phase() -> None:
    assert {event for _, event in TRANSITIONS} == set(get_args(ev.Event))
