"""What people and parents may do to a task: steer, kill, decide about its plan, start it again."""

from __future__ import annotations

import pytest

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.lifecycle import step
from clutch.core.model import Delivery, Outcome, Phase, Plan, Reason
from clutch.core.policy import Life, Limits, Policy
from clutch.core.text import prompts
from tests.core.stories import (
    announcing,
    awaiting,
    deferred,
    delivered,
    drafting,
    in_every_phase,
    new,
    refused,
    running,
)

UNENDED = (
    "spawning",
    "queued",
    "running",
    "paused",
    "yielded",
    "awaiting_approval",
    "ending",
    "deferred",
)
OVERTAKEN = fx.Trace(1, Delivery.SKIPPED, Reason.SUPERSEDED)
ENDED = ("announcing", "missing", "cleanup_pending", "completed", "completed_giveup")

# ---- steer -------------------------------------------------------------------------------------------


@pytest.mark.scenario(122)
@pytest.mark.scenario(208)
@pytest.mark.parametrize(
    ("name", "effects"),
    [
        ("running", (fx.Stop("superseded"), fx.Schedule())),
        ("ending", (fx.Stop("superseded"), fx.Schedule())),
        ("deferred", (OVERTAKEN, fx.Schedule())),
        ("announcing", (OVERTAKEN, fx.Open(), fx.Schedule())),
        ("missing", (OVERTAKEN, fx.Open(), fx.Schedule())),
    ],
)
def test_steer_supersedes_what_runs_or_ended_untold(name: str, effects: tuple[fx.Effect, ...]) -> None:
    steered = in_every_phase()[name].then(ev.Steered(9))
    task = steered.task
    assert (task.phase, task.generation, steered.effects) == (Phase.QUEUED, 2, effects)
    assert (task.outcome, task.result, task.error, task.attempts) == (None, None, None, 0)
    assert (task.delivery, task.delivery_reason, task.wake_at, task.ended_at) == (
        Delivery.NONE,
        "",
        None,
        None,
    )


@pytest.mark.scenario(208)
@pytest.mark.parametrize("name", ["queued", "paused", "yielded"])
def test_steer_of_a_task_that_waits_joins_what_it_reads_next(name: str) -> None:
    before = in_every_phase()[name]
    steered = before.then(ev.Steered(9))
    assert (steered.phase, steered.task.reason, steered.task.generation) == (
        before.phase,
        before.task.reason,
        1,
    )
    assert len(steered.moves) == len(before.moves) + 1


def test_parked_run_is_ended_by_a_steer_because_it_would_go_on_without_reading() -> None:
    for parked in (running().then(ev.Paused(5)), running().then(ev.Parked(5, Reason.QUOTA))):
        assert fx.Stop("superseded") in parked.then(ev.Steered(9)).effects


@pytest.mark.scenario(208)
@pytest.mark.parametrize(
    "name", ["spawning", "awaiting_approval", "cleanup_pending", "completed", "completed_giveup"]
)
def test_steer_is_refused_by_doing_nothing(name: str) -> None:
    before = in_every_phase()[name]
    after = before.then(ev.Steered(9))
    assert (after.task, after.moves, after.effects) == (before.task, before.moves, ())


@pytest.mark.parametrize("name", ["announcing", "missing"])
def test_steer_comes_too_late_once_the_result_is_read(name: str) -> None:
    before = in_every_phase()[name]
    assert before.then(ev.Steered(9, taken=True)).task == before.task


@pytest.mark.scenario(126)
def test_ended_orchestrator_with_live_children_is_steered_whoever_read_what() -> None:
    assert deferred().then(ev.Steered(9, taken=True)).phase is Phase.QUEUED


@pytest.mark.scenario(122)
@pytest.mark.scenario(125)
def test_steered_task_is_announced_once_and_by_the_new_run() -> None:
    story = running(timeout_s=60).then(ev.Steered(5), ev.Ended(6, "old words"))
    assert (story.phase, story.effects) == (Phase.QUEUED, ())
    ended = story.then(ev.Started(7), ev.Ended(8, "new words"))
    assert ended.effects == (fx.Close(), fx.Announce(2))
    assert (ended.task.result, ended.task.started_at, ended.task.timeout_s) == ("new words", 0, 60)


# ---- kill --------------------------------------------------------------------------------------------


@pytest.mark.scenario(114)
@pytest.mark.parametrize("name", UNENDED)
def test_kill_ends_every_unended_task_without_an_announce(name: str) -> None:
    killed = in_every_phase(has_cleanup=True, timeout_s=60)[name].then(ev.Killed(9, "no longer needed"))
    task = killed.task
    assert (task.phase, task.outcome, task.error) == (
        Phase.CLEANUP_PENDING,
        Outcome.KILLED,
        "no longer needed",
    )
    assert (task.delivery, task.delivery_reason, task.ended_at) == (Delivery.SKIPPED, "killed", 9)
    assert (task.deadline_at, task.clock_left_s) == (None, None)
    assert killed.effects == (
        fx.Stop("killed"),
        fx.Trace(task.generation, Delivery.SKIPPED, Reason.KILLED),
        fx.Close(),
        fx.Unbind(),
        fx.Announce(task.generation, silent=True),
        fx.Cleanup(),
    )
    assert killed.then(ev.Cleaned(10)).phase is Phase.COMPLETED


@pytest.mark.scenario(116)
@pytest.mark.parametrize("name", ENDED)
def test_kill_of_an_ended_task_changes_nothing(name: str) -> None:
    before = in_every_phase()[name]
    after = before.then(ev.Killed(9))
    assert (after.task, after.moves, after.effects) == (before.task, before.moves, ())


def test_killed_task_is_never_announced_whatever_comes_later() -> None:
    killed = running().then(ev.Killed(5))
    late: tuple[ev.Event, ...] = (ev.Ended(6, "done"), ev.Failed(6, "boom"), ev.Started(7), ev.Woke(99))
    for event in late:
        assert (killed.then(event).task, killed.then(event).effects) == (killed.task, ())


@pytest.mark.scenario(119)
def test_result_that_arrives_after_the_kill_is_kept_as_a_late_line() -> None:
    story = running().then(ev.Killed(5), ev.Late(6, "finished anyway"))
    line = story.moves[-1]
    assert (story.task.outcome, line.reason, line.detail) == (Outcome.KILLED, Reason.LATE, "finished anyway")


def test_killed_task_keeps_what_it_had_said() -> None:
    assert deferred(text="so far").then(ev.Killed(9)).task.result == "so far"
    assert announcing(text="old").then(ev.Steered(3), ev.Killed(4)).task.result == "old"


@pytest.mark.scenario(217)
@pytest.mark.parametrize("name", ["announcing", "missing"])
def test_result_nobody_took_is_skipped_when_its_requester_is_killed(name: str) -> None:
    before = in_every_phase()[name]
    story = before.then(ev.RequesterKilled(9, 1))
    task = story.task
    assert [move.from_phase for move in story.moves[-2:]] == [before.phase, Phase.CLEANUP_PENDING]
    assert (task.phase, task.outcome, task.delivery, task.delivery_reason) == (
        Phase.COMPLETED,
        Outcome.OK,
        Delivery.SKIPPED,
        "killed",
    )


@pytest.mark.scenario(205)
def test_parents_end_kills_its_children_only_where_the_policy_says_so() -> None:
    strict = Policy(limits=Limits(on_parent_end={Outcome.TIMEOUT: "kill"}))
    cut = ev.Woke(10, partial="half")
    assert not running(timeout_s=10).then(cut).did(fx.KillChildren)
    assert running(strict, timeout_s=10).then(cut).effects[-1] == fx.KillChildren("parent ended: timeout")
    assert not running(strict).then(ev.Failed(5, "boom", is_final=True)).did(fx.KillChildren)


# ---- plan mode ---------------------------------------------------------------------------------------


@pytest.mark.scenario(138)
def test_plan_waits_for_approval_and_its_work_is_announced_as_the_same_task() -> None:
    waiting = awaiting()
    assert (waiting.phase, waiting.task.result, waiting.task.outcome) == (
        Phase.AWAITING_APPROVAL,
        "the plan",
        None,
    )
    assert (waiting.task.wake_at, waiting.effects) == (None, (fx.AskApproval(1),))
    approved = waiting.then(ev.Decided(500, ev.PlanVerdict.APPROVE))
    assert (approved.phase, approved.task.plan, approved.task.generation) == (Phase.QUEUED, Plan.APPROVED, 2)
    assert approved.effects == (fx.Schedule(),)
    ended = approved.then(ev.Started(501), ev.Ended(600, "done"))
    assert (ended.phase, ended.task.outcome, ended.task.result) == (Phase.ANNOUNCING, Outcome.OK, "done")


@pytest.mark.parametrize("silence", ["NO_REPLY", "", None])
def test_plan_is_no_result_of_the_work_that_followed_it(silence: str | None) -> None:
    story = awaiting().then(ev.Decided(5, ev.PlanVerdict.APPROVE), ev.Started(6), ev.Ended(7, silence))
    assert story.task.result is None


def test_silent_second_draft_leaves_the_first_plan_for_decision() -> None:
    story = drafting().then(ev.Ended(2, "the plan", untold=1), ev.Started(9), ev.Ended(10, "NO_REPLY"))
    assert (story.phase, story.task.result) == (Phase.AWAITING_APPROVAL, "the plan")


def test_plan_of_a_task_whose_children_never_settle_still_needs_approval() -> None:
    """Also when a child settles later: then there is another plan to decide."""
    waits = drafting().then(ev.Ended(2, "the plan", untold=1))
    expired = waits.then(ev.Woke(waits.task.wake_at or 0.0))
    assert (expired.phase, expired.task.result, expired.task.outcome) == (
        Phase.AWAITING_APPROVAL,
        "the plan",
        None,
    )
    assert fx.AskApproval(expired.task.generation) in expired.effects
    told_more = expired.then(ev.Started(9000), ev.Ended(9001, "a better plan"))
    assert (told_more.phase, told_more.task.result) == (Phase.AWAITING_APPROVAL, "a better plan")
    assert waits.then(ev.Orphaned(3)).task.outcome is Outcome.LOST, "nobody could carry it out"


def test_plan_that_ends_within_the_error_grace_still_needs_approval() -> None:
    story = drafting().then(ev.Failed(5, "boom", "half"), ev.Ended(9, "the plan"))
    assert (story.phase, story.task.result, story.task.error) == (Phase.AWAITING_APPROVAL, "the plan", None)


def test_failed_plan_is_announced_without_asking() -> None:
    story = drafting().then(ev.Failed(5, "boom", "half", is_final=True))
    assert (story.phase, story.task.outcome, story.did(fx.AskApproval)) == (
        Phase.ANNOUNCING,
        Outcome.ERROR,
        False,
    )


@pytest.mark.scenario(139)
def test_plan_is_sent_back_three_times_and_then_the_task_ends() -> None:
    story = awaiting()
    for number in range(1, 4):
        story = story.then(ev.Decided(10, ev.PlanVerdict.REVISE, "too vague"))
        assert (story.phase, story.task.plan, story.task.plan_round) == (Phase.QUEUED, Plan.DRAFTING, number)
        story = story.then(ev.Started(11), ev.Ended(12, f"plan {number}"))
        assert (story.phase, story.task.result) == (Phase.AWAITING_APPROVAL, f"plan {number}")
    ended = story.then(ev.Decided(13, ev.PlanVerdict.REVISE, "still too vague"))
    assert (ended.phase, ended.task.outcome, ended.task.error) == (
        Phase.ANNOUNCING,
        Outcome.ERROR,
        "plan rejected: still too vague",
    )


@pytest.mark.scenario(139)
def test_plan_rejected_for_good_ends_the_task_with_the_reason() -> None:
    ended = awaiting().then(ev.Decided(10, ev.PlanVerdict.END, "not now"))
    assert (ended.task.outcome, ended.task.error, ended.task.result) == (
        Outcome.ERROR,
        "plan rejected: not now",
        "the plan",
    )
    assert [move.to_phase for move in ended.moves[-2:]] == [Phase.ENDING, Phase.ANNOUNCING]
    assert ended.effects == (fx.Close(), fx.Announce(1))


def test_plan_waits_for_ever_unless_an_expiry_is_set() -> None:
    assert awaiting().then(ev.Woke(1e9)).phase is Phase.AWAITING_APPROVAL
    expiring = awaiting(Policy(life=Life(plan_expiry_s=600)))
    assert expiring.then(ev.Woke(601.9)).task == expiring.task
    assert expiring.then(ev.Woke(602)).task.error == "plan expired"


@pytest.mark.parametrize("verdict", list(ev.PlanVerdict))
def test_decision_counts_only_while_a_plan_awaits_it(verdict: ev.PlanVerdict) -> None:
    for name, story in in_every_phase().items():
        if name != "awaiting_approval":
            assert story.then(ev.Decided(9, verdict)).task == story.task


# ---- again -------------------------------------------------------------------------------------------


@pytest.mark.scenario(209)
@pytest.mark.parametrize(("how", "keeps"), [(Reason.RETRY, False), (Reason.CONTINUE, True)])
@pytest.mark.parametrize("name", ["completed", "completed_giveup", "announcing", "missing"])
def test_finished_task_gets_a_new_generation_that_is_announced_once(
    name: str, how: Reason, keeps: bool
) -> None:
    story = in_every_phase()[name].then(ev.Again(50, how))
    assert (story.phase, story.task.generation, story.task.outcome) == (Phase.QUEUED, 2, None)
    overtaken = (OVERTAKEN,) if name in ("announcing", "missing") else ()
    assert story.effects == (*overtaken, fx.Open(keep_transcript=keeps), fx.Schedule())
    ended = story.then(ev.Started(51), ev.Ended(60, "more"))
    assert (ended.effects, ended.task.result) == ((fx.Close(), fx.Announce(2)), "more")


@pytest.mark.parametrize("how", [Reason.RETRY, Reason.CONTINUE])
def test_text_that_was_told_is_never_the_result_of_a_later_run(how: Reason) -> None:
    told = announcing(text="old words").then(delivered())
    failed = told.then(ev.Again(50, how), ev.Started(51), ev.Failed(52, "boom", is_final=True))
    assert (failed.task.outcome, failed.task.result) == (Outcome.ERROR, None)
    read = announcing(text="old words").then(ev.Again(50, how, is_being_read=True), ev.Started(51))
    assert read.then(ev.Ended(52, "NO_REPLY")).task.result is None
    unheard = announcing(text="old words").then(refused(is_permanent=True))
    silent = unheard.then(ev.Again(50, how), ev.Started(51), ev.Ended(52, "NO_REPLY"))
    assert silent.task.result == "old words", "nobody has heard it, so it is not lost"


@pytest.mark.parametrize("name", [*UNENDED, "cleanup_pending"])
def test_unfinished_task_is_not_started_again(name: str) -> None:
    before = in_every_phase()[name]
    assert before.then(ev.Again(9, Reason.RETRY)).task == before.task


@pytest.mark.parametrize("how", [Reason.RETRY, Reason.CONTINUE])
@pytest.mark.parametrize(
    "late",
    [delivered(11), refused(12), ev.Unconfirmed(11, 1), ev.RequesterKilled(11, 1), ev.RequesterGone(11, 1)],
)
def test_what_becomes_of_an_overtaken_letter_does_not_touch_the_new_run(how: Reason, late: ev.Event) -> None:
    again = announcing().then(ev.Again(10, how))
    assert again.then(late).task == again.task


# ---- cleanup -----------------------------------------------------------------------------------------


def test_failed_cleanup_is_tried_again_every_minute_and_changes_nothing_else() -> None:
    pending = announcing(has_cleanup=True).then(delivered(500))
    assert (pending.phase, pending.effects, pending.task.wake_at) == (
        Phase.CLEANUP_PENDING,
        (fx.Cleanup(),),
        560,
    )
    again = pending.then(ev.Woke(560))
    assert (again.effects, again.task.wake_at) == ((fx.Cleanup(),), 620)
    assert again.moves == pending.moves
    done = again.then(ev.Cleaned(561))
    assert (done.phase, done.task.delivery, done.task.wake_at) == (Phase.COMPLETED, Delivery.DELIVERED, None)


def test_cleanup_comes_before_giving_up_too() -> None:
    pending = announcing(has_cleanup=True).then(refused(is_permanent=True))
    assert pending.phase is Phase.CLEANUP_PENDING
    assert pending.then(ev.Cleaned(9)).phase is Phase.COMPLETED_GIVEUP


def test_cleaned_means_nothing_before_cleanup() -> None:
    for name, story in in_every_phase().items():
        if name != "cleanup_pending":
            assert story.then(ev.Cleaned(9)).task == story.task


def test_admission_queues_the_task_once() -> None:
    queued = new().then(ev.Admitted(0))
    assert (queued.phase, queued.effects) == (Phase.QUEUED, (fx.Schedule(),))
    assert queued.then(ev.Admitted(1)).task == queued.task


# ---- side work of a spawn ----------------------------------------------------------------------------


def test_a_spawn_that_is_not_ready_in_time_is_unmade() -> None:
    reserved = new().then(ev.Reserved(100))
    assert (reserved.task.phase, reserved.task.wake_at) == (Phase.SPAWNING, 130.0)
    early = step(reserved.task, ev.Woke(129, False), Policy())
    late = step(reserved.task, ev.Woke(130, False), Policy())
    assert not early.effects
    assert [type(effect) for effect in late.effects] == [fx.Unmake]


def test_a_spawn_that_is_ready_waits_for_no_timer() -> None:
    queued = new().then(ev.Reserved(100), ev.Admitted(110))
    assert (queued.task.phase, queued.task.wake_at) == (Phase.QUEUED, None)


def test_a_kill_while_files_are_made_leads_to_their_cleanup() -> None:
    killed = new().then(ev.Reserved(100), ev.Killed(105, "enough"))
    assert (killed.task.phase, killed.task.outcome) == (Phase.CLEANUP_PENDING, Outcome.KILLED)


@pytest.mark.scenario(64)
@pytest.mark.scenario(69)
def test_how_far_a_cut_run_came_is_never_the_result_of_another_run() -> None:
    cut = running().then(ev.Failed(5, "broken", prompts.partial_progress(2, "dig"), is_final=True))
    again = cut.then(ev.Steered(6), ev.Started(7), ev.Ended(8, "NO_REPLY"))
    assert again.task.result is None
    said = running().then(ev.Failed(5, "broken", "half of it", is_final=True))
    assert said.then(ev.Steered(6), ev.Started(7), ev.Ended(8, "NO_REPLY")).task.result == "half of it"
