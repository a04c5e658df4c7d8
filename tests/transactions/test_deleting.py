"""Deleting a session: refused while it works or was not heard, forced into a dead letter, once and for all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clutch.core import ids
from clutch.core.attachments import FileVersion
from clutch.core.authority import EVERY_SCOPE, OperatorCaller
from clutch.core.model import Delivery, Hook, Outcome, Phase
from clutch.core.spawn import Mode
from clutch.errors import NotFound
from clutch.transactions import control, retention, task_files
from clutch.transactions.control import NotPossible
from clutch.transactions.read import targets, transcripts
from clutch.transactions.read.targets import Standpoint
from tests.transactions.test_archiving import told, words
from tests.transactions.test_dead_letters import given_up
from tests.transactions.world import World

pytestmark = pytest.mark.anyio


async def delete(world: World, session_id: int, *, force: bool = False, keep: bool = False) -> None:
    await world.db.alone(
        retention.delete, world.policy, session_id, force=force, keep_transcript=keep, actor="person"
    )


async def unwanted(world: World, task: int) -> tuple[list[FileVersion], list[int]]:
    """What may go of its files, and its workspace."""
    files = await world.db.read(task_files.unwanted_files_of, [task])
    return files, await world.db.read(task_files.unwanted_workspaces, [task])


@pytest.mark.scenario(204)
async def test_a_running_session_is_not_deleted(world: World, main: int) -> None:
    task = await world.child(main)
    for _ in range(2):
        for force in (False, True):
            with pytest.raises(NotPossible, match="kill it first"):
                await delete(world, task, force=force)
        await (await world.start(task)).step() if not await words(world, task) else None
    await world.db.alone(control.kill, world.policy, task, "enough", "person")
    await delete(world, task)
    assert await words(world, task) == 0


@pytest.mark.scenario(204)
async def test_an_undelivered_session_is_not_deleted(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task, "the finding")
    with pytest.raises(NotPossible, match="redeliver or dismiss"):
        await delete(world, task)
    assert (await world.task(task)).phase is Phase.ANNOUNCING
    assert await words(world, task) > 0
    await world.live()


@pytest.mark.scenario(204)
async def test_forced_it_leaves_a_dead_letter_that_keeps_the_result(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task, "the finding")
    await delete(world, task, force=True)
    assert await unwanted(world, task) == ([FileVersion(task)], [task])
    dead = await world.task(task)
    assert (dead.phase, dead.delivery, dead.result) == (
        Phase.COMPLETED_GIVEUP, Delivery.UNDELIVERED, "the finding",
    )  # fmt: skip
    assert await words(world, task) == 0
    await world.live()
    assert await world.inputs(main) == []
    await world.db.alone(control.redeliver, world.policy, task, "person")
    await world.live()
    assert "the finding" in (await world.inputs(main))[-1]
    assert (await world.task(task)).delivery is Delivery.DELIVERED


async def test_a_dead_letter_is_deleted_only_by_force_and_stays_one(world: World, main: int) -> None:
    task = await given_up(world, main)
    with pytest.raises(NotPossible, match="not delivered"):
        await delete(world, task)
    await delete(world, task, force=True)
    assert (await world.task(task)).delivery is Delivery.UNDELIVERED
    assert await words(world, task) == 0


async def test_a_told_one_goes_with_its_words_and_keeps_outcome_usage_and_timeline(
    world: World, main: int
) -> None:
    task = await told(world, main)
    before = await world.task(task)
    await delete(world, task)
    after = await world.task(task)
    assert after == before._replace(seq=before.seq + 1)
    assert (await world.timeline(task))[-1] == "deleted"
    assert await world.one("SELECT retained FROM tasks WHERE id = ?", task) == 0
    assert await world.one("SELECT COUNT(*) FROM usage WHERE session_id = ?", task) == 1
    await delete(world, task)
    assert len(await world.timeline(task)) == after.seq, "once"
    with pytest.raises(NotPossible, match="was deleted"):
        await world.db.alone(
            control.again, world.policy, task, "continue", "c:1", text="more", actor="person"
        )


async def test_hooks_hear_of_it_once(world: World, main: int) -> None:
    world.policy = replace(world.policy, hooks=frozenset({Hook.REMOVED, Hook.ENDED}))
    task = await told(world, main)
    for _ in range(2):
        await delete(world, task)
    await world.live()
    sent = await world.rows("SELECT target, body FROM outbox WHERE channel = 'hook' ORDER BY id")
    assert [target for target, _ in sent] == ["subagent_ended", "subagent_removed"]
    assert json.loads(sent[1][1])["reason"] == "deleted"


async def test_a_session_that_stays_ends_with_its_deletion(world: World, main: int) -> None:
    task = await told(world, main, mode=Mode.SESSION)
    assert not (await world.session(task)).closed
    await delete(world, task)
    assert (await world.session(task)).closed
    assert not (await world.task(task)).stays
    assert await words(world, task) == 0


async def test_what_is_deleted_or_archived_leaves_the_lists_and_its_result_is_still_read(
    world: World, main: int
) -> None:
    gone, kept, shown = [await told(world, main, label) for label in ("gone", "kept", "shown")]
    await delete(world, gone)
    await delete(world, kept, keep=True)
    someone = OperatorCaller(EVERY_SCOPE)
    listed = await world.db.read(transcripts.sessions, someone, world.policy.history)
    assert {line.session_id for line in listed} == {main, shown}
    (left,) = (await world.db.read(transcripts.history, gone, world.policy.history)).entries
    assert (left.kind, left.text) == ("result", (await world.task(gone)).result)
    assert (await world.db.read(transcripts.history, kept, world.policy.history)).entries


@pytest.mark.parametrize("keep", [False, True])
async def test_a_main_session_leaves_the_lists_and_is_found_only_if_its_words_are_kept(
    world: World, main: int, keep: bool
) -> None:
    await world.tell(main, "hello")
    run = await world.start(main)
    await run.finish("hello")
    key = await world.one("SELECT key FROM sessions WHERE id = ?", main)
    await delete(world, main, keep=keep)
    someone = OperatorCaller(EVERY_SCOPE)
    assert await world.db.read(transcripts.sessions, someone, world.policy.history) == []
    for name in (key, key[:-1], ids.run_id(run.run_id)):
        if keep:
            assert (await world.db.read(targets.resolve, name, Standpoint(someone))).session_id == main
        else:
            with pytest.raises(NotFound):
                await world.db.read(targets.resolve, name, Standpoint(someone))


async def test_with_keep_transcript_it_is_only_archived(world: World, main: int) -> None:
    task = await told(world, main)
    await delete(world, task, keep=True)
    assert await unwanted(world, task) == ([FileVersion(task)], [])
    assert await words(world, task) > 0
    assert await world.one("SELECT archived_at FROM tasks WHERE id = ?", task) == world.clock.now()


async def test_somebody_who_works_below_is_not_cut_off(world: World, main: int) -> None:
    parent = await world.child(main, "parent")
    run = await world.start(parent)
    grandchild = await world.child(parent, "grandchild")
    await run.finish("without it")
    world.clock.advance(world.policy.life.settle_expiry_s + 1)
    await world.ring()
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    with pytest.raises(NotPossible, match="still runs"):
        await delete(world, parent)
    await world.db.alone(control.kill, world.policy, grandchild, "enough", "person")
    await delete(world, parent)


async def test_a_main_session_is_deleted_and_another_of_its_name_is_a_new_one(
    world: World, main: int
) -> None:
    await world.tell(main, "remember me")
    with pytest.raises(NotPossible, match="unread letters"):
        await delete(world, main)
    run = await world.start(main)
    with pytest.raises(NotPossible, match="in a turn"):
        await delete(world, main, force=True)
    await run.finish("I will")
    await delete(world, main)
    assert await words(world, main) == 0
    assert (await world.session(main)).closed
    again = await world.main()
    assert again != main
    assert await world.transcript(again) == []


@pytest.mark.scenario(204)
async def test_what_a_deleted_main_session_has_not_heard_is_kept(world: World, main: int) -> None:
    task = await world.child(main)
    await world.end(task, "the finding")
    with pytest.raises(NotPossible, match="unread"):
        await delete(world, main)
    await delete(world, main, force=True)
    dead = await world.task(task)
    assert (dead.outcome, dead.delivery, dead.result) == (Outcome.OK, Delivery.UNDELIVERED, "the finding")


async def test_there_must_be_such_a_session(world: World) -> None:
    with pytest.raises(NotFound):
        await delete(world, 987_654_321)
