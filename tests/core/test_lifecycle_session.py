"""Session mode: the task ends once, its session when somebody ends it or nobody comes; hooks hear of the latter."""

from __future__ import annotations

import pytest

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.model import Delivery, Hook, Outcome, Phase, Reason
from clutch.core.policy import Policy, Threads
from tests.core.stories import Story, announcing, delivered, in_every_phase, new, refused, running

DAY = 86_400.0
LISTENING = Policy(hooks=frozenset({Hook.ENDED}))
STAYING = [name for name, story in in_every_phase(stays=True).items() if story.task.outcome is not None]


def told(story: Story) -> bool:
    return story.did(fx.NotifyEnded)


@pytest.mark.scenario(156)
def test_the_end_of_a_task_in_session_mode_leaves_its_session_open_and_is_announced_once() -> None:
    ended = announcing(stays=True)
    assert ended.task.outcome is Outcome.OK
    assert ended.did(fx.Stay)
    assert ended.did(fx.Announce)
    assert not ended.did(fx.Close)
    after = ended.then(delivered(3))
    assert after.phase is Phase.COMPLETED
    for event in (ev.Started(4), ev.Ended(5, "an answer in the thread"), ev.Failed(6, "boom", "half")):
        assert after.then(event).task == after.task, "what is said afterwards is no run of the task"


@pytest.mark.parametrize("name", STAYING)
@pytest.mark.parametrize("event", [ev.Killed(9, "enough"), ev.SessionEnded(9, "unfocused")])
def test_ending_a_session_that_stayed_closes_it_and_changes_no_outcome(name: str, event: ev.Event) -> None:
    story = in_every_phase(stays=True)[name]
    ended = story.then(event)
    assert (ended.task.outcome, ended.task.result, ended.task.delivery) == (
        story.task.outcome,
        story.task.result,
        story.task.delivery,
    )
    assert ended.phase is story.phase
    assert ended.did(fx.Close)
    assert ended.did(fx.Stop)
    assert ended.moves[-1].reason is Reason.SESSION_ENDED
    assert ended.then(event).task == ended.task, "and only once"


def test_killed_before_its_end_it_is_killed_like_any_other() -> None:
    killed = running(stays=True).then(ev.Killed(5, "enough"))
    assert killed.task.outcome is Outcome.KILLED
    assert killed.did(fx.Close)
    assert not killed.task.stays


def test_unfocused_before_its_end_it_ends_with_its_task() -> None:
    ended = running(stays=True).then(ev.SessionEnded(1, "unfocused"), ev.Ended(2, "done"))
    assert ended.did(fx.Close)
    assert ended.phase is Phase.ANNOUNCING


def test_a_task_in_run_mode_has_no_session_to_end() -> None:
    for story in in_every_phase().values():
        assert story.then(ev.SessionEnded(9, "unfocused")).task == story.task


def test_left_alone_for_a_day_it_ends_and_every_word_in_it_starts_the_day_anew() -> None:
    done = announcing(stays=True).then(delivered(3))
    assert done.task.wake_at == 3 + DAY
    used = done.then(ev.Woke(3 + DAY, progress_at=1000.0))
    assert used.task.stays
    assert used.task.wake_at == 1000.0 + DAY
    over = used.then(ev.Woke(1000.0 + DAY, progress_at=1000.0))
    assert not over.task.stays
    assert over.did(fx.Close)
    assert over.task.wake_at is None


def test_an_old_session_ends_however_often_it_is_used() -> None:
    policy = Policy(threads=Threads(age_max_s=5000.0))
    done = announcing(policy, stays=True).then(delivered(3))
    at = done.task.wake_at or 0.0
    assert at <= 5003.0  # long before anybody would ask whether it is idle
    assert not done.then(ev.Woke(at, progress_at=at)).task.stays


@pytest.mark.parametrize("how", [Reason.RETRY, Reason.CONTINUE])
def test_continued_it_stops_what_it_was_saying_and_stays_again(how: Reason) -> None:
    again = announcing(stays=True).then(delivered(3), ev.Again(4, how))
    assert again.did(fx.Stop)
    assert again.task.stays
    ended = again.then(ev.Started(5), ev.Ended(6, "more"))
    assert ended.did(fx.Stay)
    assert ended.task.generation == 2


def test_steered_while_its_result_waits_it_stops_what_it_was_saying() -> None:
    assert announcing(stays=True).then(ev.Steered(4)).did(fx.Stop)
    assert not announcing().then(ev.Steered(4)).did(fx.Stop)


# ---- when hooks hear of an end ---------------------------------------------------------------------------


@pytest.mark.scenario(155)
def test_hooks_hear_of_an_expected_end_when_it_was_told_or_given_up() -> None:
    ended = announcing(LISTENING)
    assert not told(ended)
    assert told(ended.then(delivered(3)))
    assert told(ended.then(refused(3, is_permanent=True)))


@pytest.mark.scenario(155)
def test_hooks_hear_of_an_unexpected_end_at_once() -> None:
    assert told(announcing(LISTENING, expects_completion=False))


@pytest.mark.scenario(114)
@pytest.mark.scenario(156)
@pytest.mark.parametrize("stays", [False, True])
def test_hooks_hear_of_a_kill_at_once(stays: bool) -> None:
    assert told(running(LISTENING, stays=stays).then(ev.Killed(5)))
    assert told(new(LISTENING, stays=stays).then(ev.Killed(5)))


@pytest.mark.scenario(156)
def test_in_session_mode_hooks_hear_when_the_session_ends_and_not_before() -> None:
    done = announcing(LISTENING, stays=True)
    assert not told(done)
    done = done.then(delivered(3))
    assert not told(done)
    assert told(done.then(ev.SessionEnded(9, "unfocused")))
    assert told(done.then(ev.Killed(9)))
    assert told(done.then(ev.Woke(3 + DAY)))


def test_hooks_never_hear_of_a_run_that_was_superseded() -> None:
    steered = announcing(LISTENING).then(ev.Steered(3))
    assert not told(steered)
    assert not told(running(LISTENING).then(ev.Steered(3)))


def test_where_nobody_listens_nothing_is_told() -> None:
    for story in in_every_phase().values():
        assert not told(story.then(ev.Killed(9)))
    assert not told(announcing().then(delivered(3)))


def test_a_skipped_result_is_an_end_too() -> None:
    skipped = running(LISTENING).then(ev.Ended(2, "ANNOUNCE_SKIP"))
    assert told(skipped)
    assert skipped.task.delivery is Delivery.SKIPPED
