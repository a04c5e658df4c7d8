"""After the end: cleanup that fails, sessions that are deleted, rows that are gone."""

from __future__ import annotations

import pytest

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.attachments import EVERYTHING, Removal, Side, removal
from clutch.core.model import WORKING, Delivery, Outcome, Phase, Reason
from clutch.core.policy import Keeping, Policy
from tests.core.stories import announcing, deferred, delivered, in_every_phase, refused, running

# ---- cleanup -----------------------------------------------------------------------------------------


@pytest.mark.scenario(109)
def test_cleanup_that_fails_waits_twice_as_long_each_time_and_changes_nothing_else() -> None:
    policy = Policy(keeping=Keeping(cleanup_first_s=60, cleanup_max_s=200))
    pending = announcing(policy, has_cleanup=True).then(delivered(100))
    for failed, wait_s in enumerate((60, 120, 200, 200)):
        after = pending.then(ev.CleanupFailed(500, "busy", failed))
        assert after.task.wake_at == 500 + wait_s
        assert after.task == pending.task._replace(wake_at=500 + wait_s, seq=pending.task.seq + 1)
        assert (after.moves[-1].reason, after.moves[-1].detail) == (Reason.CLEANUP_FAILED, "busy")
    assert pending.then(ev.CleanupFailed(500, "busy", 10_000)).task.wake_at == 700


def test_cleanup_that_failed_somewhere_else_has_no_say() -> None:
    for name, story in in_every_phase().items():
        if name != "cleanup_pending":
            assert story.then(ev.CleanupFailed(9, "busy")).task == story.task


OK = {"outcome": Outcome.OK, "is_begun": True, "is_deleted": False, "is_retained": False}


@pytest.mark.scenario(52)
@pytest.mark.parametrize(
    ("changes", "goes"),
    [
        ({}, Removal((Side.IN,))),
        ({"is_retained": True}, Removal()),
        ({"is_deleted": True}, Removal(EVERYTHING, workspace=True, session=True)),
        ({"is_deleted": True, "is_retained": True}, Removal(EVERYTHING, workspace=True, session=True)),
        ({"outcome": Outcome.KILLED, "delivery": Delivery.SKIPPED}, Removal(EVERYTHING)),
        ({"outcome": Outcome.KILLED, "is_retained": True}, Removal(EVERYTHING)),
        ({"delivery": Delivery.UNDELIVERED, "is_deleted": True}, Removal((Side.IN,))),
        ({"delivery": Delivery.UNDELIVERED, "is_retained": True}, Removal()),
        ({"delivery": Delivery.SKIPPED, "is_deleted": True}, Removal(EVERYTHING, workspace=True, session=True)),
        ({"outcome": Outcome.KILLED, "is_begun": False}, Removal(EVERYTHING, workspace=True)),
    ],
)  # fmt: skip
def test_what_goes_depends_on_how_it_ended_and_what_was_asked_for(
    changes: dict[str, object], goes: Removal
) -> None:
    asked = {"delivery": Delivery.DELIVERED, **OK, **changes}
    assert removal(**asked) == goes  # type: ignore[arg-type]


# ---- the requester was deleted -----------------------------------------------------------------------


@pytest.mark.scenario(204)
@pytest.mark.parametrize("name", ["announcing", "missing"])
def test_a_result_whose_reader_was_deleted_becomes_a_dead_letter(name: str) -> None:
    story = in_every_phase()[name].then(ev.Abandoned(9, Reason.DELETED))
    task = story.task
    assert (task.phase, task.delivery, task.delivery_reason) == (
        Phase.COMPLETED_GIVEUP, Delivery.UNDELIVERED, "deleted",
    )  # fmt: skip
    assert task.result is not None
    assert fx.Bury(task.generation) in story.effects
    assert story.then(ev.Redelivered(10)).phase is Phase.ANNOUNCING


# ---- its own session is gone -------------------------------------------------------------------------


def orphans() -> list[str]:
    return [name for name, story in in_every_phase().items() if story.phase in WORKING - {Phase.SPAWNING}]


@pytest.mark.scenario(132)
@pytest.mark.parametrize("name", [name for name in orphans() if name not in ("deferred", "missing")])
def test_a_task_without_a_session_and_without_a_result_is_lost_and_told(name: str) -> None:
    story = in_every_phase()[name].then(ev.Orphaned(9))
    assert (story.phase, story.task.outcome, story.task.error) == (
        Phase.ANNOUNCING,
        Outcome.LOST,
        Reason.ORPHANED,
    )
    assert fx.Announce(story.task.generation) in story.effects
    assert fx.Close() in story.effects


@pytest.mark.scenario(132)
def test_what_it_had_said_before_its_session_was_lost_is_told() -> None:
    said = deferred().then(ev.Orphaned(9))
    assert (said.phase, said.task.outcome) == (Phase.ANNOUNCING, Outcome.OK)
    assert said.task.result == deferred().task.result
    waiting = announcing()
    assert waiting.then(ev.Orphaned(9)).task == waiting.task, "its letter is on its way"


@pytest.mark.scenario(132)
@pytest.mark.parametrize("name", [name for name in orphans() if name not in ("deferred", "missing")])
def test_pruned_orphans_end_in_silence(name: str) -> None:
    story = in_every_phase()[name].then(ev.Orphaned(9, is_pruned=True))
    assert (story.phase, story.task.outcome, story.task.delivery) == (
        Phase.COMPLETED, Outcome.LOST, Delivery.SKIPPED,
    )  # fmt: skip
    assert fx.Announce(story.task.generation, silent=True) in story.effects


def test_a_half_made_orphan_is_undone() -> None:
    spawning = in_every_phase()["spawning"].then(ev.Orphaned(9))
    assert spawning.effects == (fx.Unmake(Reason.ORPHANED),)
    assert spawning.phase is Phase.SPAWNING


def test_nothing_can_be_lost_twice() -> None:
    for story in (running().then(ev.Killed(5)), announcing().then(refused(is_permanent=True))):
        assert story.then(ev.Orphaned(9)).task == story.task
