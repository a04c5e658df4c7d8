"""How an ended task is told: waiting for descendants, attempts and their waits, giving up, redelivery."""

from __future__ import annotations

import pytest

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.model import Delivery, Outcome, Path, Phase, Reason
from clutch.core.policy import Announcing, ExpiryFrom, Life, Policy
from tests.core.stories import Story, announcing, deferred, delivered, in_every_phase, refused, running

# ---- descendants -------------------------------------------------------------------------------------


@pytest.mark.scenario(101)
@pytest.mark.scenario(102)
def test_task_with_children_at_work_is_not_announced_and_holds() -> None:
    story = deferred()
    task = story.task
    assert (task.phase, task.reason, task.outcome, task.attempts) == (
        Phase.ANNOUNCE_DEFERRED,
        Reason.DESCENDANTS,
        None,
        0,
    )
    assert (task.delivery, task.delivery_reason, task.result) == (
        Delivery.DEFERRED,
        Reason.DESCENDANTS,
        "so far",
    )
    put_off = fx.Trace(1, Delivery.DEFERRED, Reason.DESCENDANTS, task.wake_at)
    assert (task.ended_at, story.effects) == (2, (put_off, fx.Hold()))


def test_settled_children_wake_it_and_its_new_answer_is_the_result() -> None:
    woken = deferred().then(ev.Started(50))
    assert (woken.phase, woken.task.generation, woken.task.wake_at) == (Phase.RUNNING, 2, None)
    ended = woken.then(ev.Ended(60, "all of it"))
    assert (ended.task.result, ended.effects) == ("all of it", (fx.Close(), fx.Announce(2)))


def test_nothing_to_add_after_the_children_leaves_the_first_answer() -> None:
    assert deferred(text="enough").then(ev.Started(50), ev.Ended(60, "NO_REPLY")).task.result == "enough"


@pytest.mark.scenario(105)
def test_silent_descendants_are_given_up_half_an_hour_after_the_end() -> None:
    story = deferred()
    assert story.task.wake_at == 1802
    assert story.then(ev.Woke(1801)).task == story.task
    expired = story.then(ev.Woke(1802))
    assert (expired.phase, expired.task.reason, expired.task.outcome) == (
        Phase.ANNOUNCING,
        "descendants expired",
        Outcome.OK,
    )
    assert (expired.task.result, expired.task.generation) == ("so far", 1)
    assert expired.effects == (fx.Close(), fx.Announce(1))


def test_every_progress_below_starts_the_wait_anew() -> None:
    story = deferred().then(ev.Woke(1802, progress_at=1000))
    assert (story.phase, story.task.wake_at) == (Phase.ANNOUNCE_DEFERRED, 2800)
    assert story.then(ev.Woke(2800, progress_at=1000)).phase is Phase.ANNOUNCING


def test_wait_stands_still_while_a_person_is_asked_below() -> None:
    story = deferred()
    for _ in range(20):
        at = story.task.wake_at or 0.0
        story = story.then(ev.Woke(at, progress_at=3, person_waits=True))
        assert (story.phase, story.task.wake_at) == (Phase.ANNOUNCE_DEFERRED, at + 1800)


def test_absolute_clock_of_the_wait_does_not_care_what_happens_below() -> None:
    policy = Policy(life=Life(settle_expiry_from=ExpiryFrom.END))
    assert deferred(policy).then(ev.Woke(1801, progress_at=1800)).phase is Phase.ANNOUNCE_DEFERRED
    story = deferred(policy).then(ev.Woke(1802, progress_at=1800, person_waits=True))
    assert (story.phase, story.task.reason) == (Phase.ANNOUNCING, "descendants expired")


@pytest.mark.parametrize("end", [ev.Failed(9, "boom", is_final=True), ev.Woke(10, partial="half")])
def test_failure_does_not_wait_for_the_children(end: ev.Event) -> None:
    assert running(timeout_s=10).then(end).phase is Phase.ANNOUNCING


# ---- attempts ----------------------------------------------------------------------------------------


def fails_until_it_gives_up(story: Story) -> tuple[Story, list[float]]:
    """Each try comes exactly when the letter is ready again."""
    at = 3.0
    waits: list[float] = []
    for _ in range(100):
        story = story.then(refused(at))
        back = [effect for effect in story.effects if isinstance(effect, fx.GiveBack)]
        if not back:
            return story, waits
        assert back[0].generation == story.task.generation
        waits.append(back[0].ready_at - at)
        at = back[0].ready_at
    raise AssertionError("it never gives up")


@pytest.mark.scenario(85)
def test_two_failed_tries_wait_one_and_two_seconds_and_the_third_is_delivered() -> None:
    once = announcing().then(refused(10))
    assert (once.phase, once.task.attempts, once.effects) == (Phase.ANNOUNCING, 1, (fx.GiveBack(1, 11),))
    twice = once.then(refused(20))
    assert (twice.task.attempts, twice.effects) == (2, (fx.GiveBack(1, 22),))
    told = twice.then(ev.Delivered(30, Path.QUEUED, 1))
    assert (told.phase, told.task.delivery, told.task.delivery_reason) == (
        Phase.COMPLETED,
        Delivery.DELIVERED,
        "queued",
    )


@pytest.mark.scenario(91)
@pytest.mark.parametrize(("expects", "until_s"), [(True, 1800), (False, 300)])
def test_slow_tries_follow_the_quick_ones_until_the_time_is_up(expects: bool, until_s: float) -> None:
    story, waits = fails_until_it_gives_up(announcing(expects_completion=expects))
    assert waits[:2] == [1, 2]
    assert all(12 <= wait <= 360 for wait in waits[2:])
    assert until_s - 360 < sum(waits) <= until_s
    task = story.task
    assert (task.phase, task.delivery, task.delivery_reason) == (
        Phase.COMPLETED_GIVEUP,
        Delivery.UNDELIVERED,
        "expiry",
    )
    assert story.effects == (fx.Bury(1), fx.NotifyUser("expiry"))
    assert task.result == "done"


def test_without_slow_tries_the_third_failure_is_the_last() -> None:
    policy = Policy(announcing=Announcing(slow=False))
    story, waits = fails_until_it_gives_up(announcing(policy))
    assert (waits, story.task.attempts, story.task.delivery_reason) == ([1, 2], 3, "retry-limit")


@pytest.mark.scenario(85)
def test_permanent_error_is_a_dead_letter_at_once() -> None:
    story = announcing().then(refused(is_permanent=True))
    assert (story.phase, story.task.attempts, story.task.delivery_reason) == (
        Phase.COMPLETED_GIVEUP,
        1,
        "permanent-error",
    )
    assert story.effects == (fx.Bury(1), fx.NotifyUser("permanent-error"))


@pytest.mark.scenario(82)
def test_dropped_letter_is_recorded_as_undelivered() -> None:
    story = announcing().then(ev.Dropped(9))
    assert (story.phase, story.task.delivery, story.task.delivery_reason) == (
        Phase.COMPLETED_GIVEUP,
        Delivery.UNDELIVERED,
        "dropped",
    )
    assert story.effects == (fx.Bury(1),)


def test_sent_and_not_answered_is_neither_told_nor_to_be_told_again() -> None:
    story = announcing().then(ev.Unconfirmed(9, 1))
    assert (story.phase, story.task.delivery, story.task.attempts) == (Phase.COMPLETED, Delivery.UNSURE, 0)
    assert story.then(refused(10), ev.Redelivered(12)).task == story.task
    sent_again = story.then(delivered(11))  # an operator sent the message again, and its channel took it
    assert (sent_again.phase, sent_again.task.delivery) == (Phase.COMPLETED, Delivery.DELIVERED)
    assert announcing().then(ev.Unconfirmed(9, 2)).phase is Phase.ANNOUNCING


@pytest.mark.scenario(109)
def test_failed_delivery_starts_no_cleanup() -> None:
    story = announcing(has_cleanup=True).then(refused(10))
    assert (story.phase, story.did(fx.Cleanup)) == (Phase.ANNOUNCING, False)


@pytest.mark.scenario(111)
def test_delivered_task_is_never_delivered_again() -> None:
    story = announcing(has_cleanup=True).then(delivered(10))
    assert story.then(delivered(11), refused(12)).task == story.task


# ---- nobody there ------------------------------------------------------------------------------------


@pytest.mark.scenario(207)
def test_missing_requester_costs_no_attempt_and_its_return_goes_on_where_it_was() -> None:
    story = announcing().then(refused(10), ev.RequesterGone(20, 1))
    assert (story.phase, story.task.reason, story.task.delivery) == (
        Phase.ANNOUNCE_DEFERRED,
        Reason.MISSING,
        Delivery.DEFERRED,
    )
    assert story.then(refused(21)).task == story.task
    back = story.then(ev.RequesterBack(1000))
    assert (back.phase, back.task.attempts, back.task.delivery, back.task.wake_at) == (
        Phase.ANNOUNCING,
        1,
        Delivery.WAITING,
        None,
    )


def test_nobody_came_back_within_half_an_hour_is_a_dead_letter() -> None:
    story = announcing().then(ev.RequesterGone(20, 1))
    assert story.then(ev.Woke(1819)).task == story.task
    given_up = story.then(ev.Woke(1820))
    assert (given_up.phase, given_up.task.delivery_reason) == (Phase.COMPLETED_GIVEUP, "no-requester")
    assert given_up.effects == (fx.Bury(1), fx.NotifyUser("no-requester"))


def test_letter_that_is_read_after_all_ends_the_wait_for_a_requester() -> None:
    story = announcing().then(ev.RequesterGone(20, 1), delivered(30))
    assert [move.to_phase for move in story.moves[-3:]] == [
        Phase.ANNOUNCE_DEFERRED,
        Phase.CLEANUP_PENDING,
        Phase.COMPLETED,
    ]
    assert (story.phase, story.task.delivery, story.task.wake_at) == (
        Phase.COMPLETED,
        Delivery.DELIVERED,
        None,
    )


def test_only_a_task_with_a_letter_can_miss_its_requester() -> None:
    for name, story in in_every_phase().items():
        if name != "announcing":
            assert story.then(ev.RequesterGone(9, 1)).task == story.task
        if name != "missing":
            assert story.then(ev.RequesterBack(9)).task == story.task


# ---- dead letters ------------------------------------------------------------------------------------


def test_redelivered_letter_has_all_its_tries_again_and_completes_the_task() -> None:
    dead = announcing(has_cleanup=True).then(refused(5), refused(9, is_permanent=True), ev.Cleaned(10))
    again = dead.then(ev.Redelivered(99))
    assert (again.phase, again.task.attempts, again.task.delivery, again.effects) == (
        Phase.ANNOUNCING,
        0,
        Delivery.WAITING,
        (fx.Redrive(1),),
    )
    assert (again.task.outcome, again.task.result, again.task.generation) == (Outcome.OK, "done", 1)
    told = again.then(delivered(100))
    assert (told.phase, told.effects) == (Phase.CLEANUP_PENDING, (fx.Cleanup(),))
    assert told.then(ev.Cleaned(101)).phase is Phase.COMPLETED


def test_given_up_result_that_a_model_answers_later_is_delivered_and_cleaned_up() -> None:
    dead = announcing(has_cleanup=True).then(refused(10, is_permanent=True), ev.Cleaned(10))
    told = dead.then(delivered(20))
    assert (told.phase, told.task.delivery, told.effects) == (
        Phase.CLEANUP_PENDING,
        Delivery.DELIVERED,
        (fx.Cleanup(),),
    )
    done = told.then(ev.Cleaned(21))
    assert (done.phase, done.task.wake_at, done.task.result) == (Phase.COMPLETED, None, "done")


def test_given_up_result_is_delivered_also_while_it_is_cleaned_up() -> None:
    dead = announcing(has_cleanup=True).then(refused(10, is_permanent=True))
    assert dead.phase is Phase.CLEANUP_PENDING
    told = dead.then(delivered(11))
    assert (told.phase, told.task.delivery, told.effects) == (
        Phase.CLEANUP_PENDING,
        Delivery.DELIVERED,
        (fx.Cleanup(),),
    )
    assert told.then(ev.Cleaned(12)).phase is Phase.COMPLETED


def test_answer_to_an_older_run_or_to_a_dismissed_result_delivers_nothing() -> None:
    dead = announcing().then(refused(10, is_permanent=True))
    assert dead.then(delivered(11, generation=2)).task == dead.task
    let_go = dead.then(ev.Dismissed(12))
    assert let_go.then(delivered(13)).task == let_go.task


def test_dismissed_letter_is_no_longer_undelivered_and_cannot_be_redelivered() -> None:
    story = announcing().then(refused(is_permanent=True), ev.Dismissed(9))
    assert (story.phase, story.task.delivery, story.task.delivery_reason) == (
        Phase.COMPLETED_GIVEUP,
        Delivery.SKIPPED,
        "dismissed",
    )
    assert story.task.result == "done"
    assert story.then(ev.Dismissed(10), ev.Redelivered(11)).task == story.task


@pytest.mark.parametrize("event", [ev.Redelivered(9), ev.Dismissed(9)])
def test_only_dead_letters_are_redelivered_or_dismissed(event: ev.Event) -> None:
    for name, story in in_every_phase().items():
        if name != "completed_giveup":
            assert story.then(event).task == story.task


WEEK_S = 7 * 86_400


def test_dead_letter_leaves_the_lists_after_a_week_and_keeps_its_result() -> None:
    dead = announcing().then(refused(10, is_permanent=True))
    assert dead.task.wake_at == 10 + WEEK_S
    assert dead.then(ev.Woke(9 + WEEK_S)).task == dead.task
    story = dead.then(ev.Woke(10 + WEEK_S))
    assert (story.phase, story.task.delivery, story.task.delivery_reason) == (
        Phase.COMPLETED_GIVEUP,
        Delivery.SKIPPED,
        "expired",
    )
    assert (story.moves[-1].reason, story.task.result, story.task.wake_at) == ("expired", "done", None)
    assert story.then(ev.Redelivered(11 + WEEK_S)).task == story.task


def test_dead_letters_can_be_kept_for_ever() -> None:
    policy = Policy(announcing=Announcing(dead_letter_days=0))
    assert announcing(policy).then(refused(is_permanent=True)).task.wake_at is None


@pytest.mark.parametrize("event", [ev.Redelivered(20), ev.Again(20, Reason.CONTINUE)])
def test_dead_letter_that_gets_another_chance_does_not_expire(event: ev.Event) -> None:
    story = announcing().then(refused(10, is_permanent=True), event)
    assert story.task.wake_at is None


@pytest.mark.parametrize("event", [ev.Dismissed(20), ev.Woke(10 + WEEK_S)])
def test_what_a_give_up_kept_is_cleaned_when_the_letter_is_let_go(event: ev.Event) -> None:
    dead = announcing(has_cleanup=True).then(refused(10, is_permanent=True), ev.Cleaned(10))
    story = dead.then(event)
    assert (story.phase, story.effects) == (Phase.COMPLETED_GIVEUP, (fx.Cleanup(),))
    wake_at = story.task.wake_at
    assert wake_at is not None
    again = story.then(ev.Woke(wake_at))
    assert (again.effects, again.task.wake_at) == ((fx.Cleanup(),), wake_at + 60)
    clean = again.then(ev.Cleaned(wake_at + 1))
    assert (clean.phase, clean.task.wake_at, clean.effects) == (Phase.COMPLETED_GIVEUP, None, ())


def test_letting_go_of_what_left_nothing_behind_cleans_nothing() -> None:
    story = announcing().then(refused(is_permanent=True), ev.Dismissed(9))
    assert (story.effects, story.task.wake_at) == ((), None)


# ---- put off -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [Reason.BUSY, Reason.QUIET_HOURS])
def test_deferral_is_told_once_costs_no_attempt_and_ends_when_the_letter_is_read(reason: Reason) -> None:
    put_off = announcing().then(ev.Deferred(5, reason, 1, until=90))
    assert (put_off.phase, put_off.task.attempts) == (Phase.ANNOUNCING, 0)
    assert (put_off.task.delivery, put_off.task.delivery_reason) == (Delivery.DEFERRED, reason)
    assert put_off.effects == (fx.Trace(1, Delivery.DEFERRED, reason, 90),)
    assert put_off.then(ev.Deferred(6, Reason.BUSY, 1)).task == put_off.task
    for heard in (put_off.then(ev.Read(7, 1)), put_off.then(refused(7))):
        assert (heard.phase, heard.task.delivery, heard.task.delivery_reason) == (
            Phase.ANNOUNCING,
            Delivery.WAITING,
            "",
        )
    assert put_off.then(delivered(8)).task.delivery is Delivery.DELIVERED


def test_deferral_for_a_turn_becomes_one_for_the_night_when_the_turn_ends_in_it() -> None:
    asleep = announcing().then(
        ev.Deferred(5, Reason.BUSY, 1), ev.Deferred(6, Reason.QUIET_HOURS, 1, until=90)
    )
    assert (asleep.task.delivery, asleep.task.delivery_reason) == (Delivery.DEFERRED, Reason.QUIET_HOURS)
    assert asleep.effects == (fx.Trace(1, Delivery.DEFERRED, Reason.QUIET_HOURS, 90),)
    assert asleep.then(ev.Deferred(7, Reason.QUIET_HOURS, 1, until=90)).task == asleep.task


def test_deferral_of_an_older_generation_has_no_say() -> None:
    story = announcing().then(ev.Steered(3), ev.Started(4), ev.Ended(5, "more"))
    assert story.task.generation == 2
    assert story.then(ev.Deferred(6, Reason.BUSY, 1)).task == story.task
    put_off = story.then(ev.Deferred(6, Reason.BUSY, 2))
    assert put_off.then(ev.Read(7, 1)).task == put_off.task
