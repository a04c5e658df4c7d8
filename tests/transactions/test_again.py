"""Works again: what was to go of a task never goes from under its new life, however late whoever removes it is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clutch.core import ids
from clutch.core.attachments import Attachment, FileVersion, Removal, Side
from clutch.core.model import Delivery, Hook, Phase, Workspace
from clutch.core.spawn import CleanupPolicy
from clutch.transactions import control, task_files
from clutch.transactions.control import NotPossible
from tests.transactions.test_archiving import HOUR_S, sweep, told
from tests.transactions.test_dead_letters import given_up
from tests.transactions.world import World, write

pytestmark = pytest.mark.anyio


async def again(world: World, task: int, how: str = "continue") -> None:
    idem = f"{how}:{world.clock.now()}"
    await world.db.alone(control.again, world.policy, task, how, idem, text="once more", actor="person")


async def unwanted(world: World, *found: FileVersion) -> list[FileVersion]:
    return await world.db.read(task_files.unwanted_files, found)


async def test_archived_and_continued_it_has_another_shelf_and_only_the_old_one_may_go(
    world: World, main: int
) -> None:
    task = await told(world, main)
    world.clock.advance(HOUR_S)
    assert await sweep(world) == [task]
    (named,) = await world.db.read(task_files.unwanted_files_of, [task])
    await again(world, task)  # while somebody is about to remove what is named
    now = await world.db.read(task_files.file_version_of, task)
    assert now != named
    assert await unwanted(world, named, now) == [named]
    assert await world.db.read(task_files.unwanted_files_of, [task]) == []
    await world.end(task, "the second finding")
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    assert await unwanted(world, named, now) == [named], "told again, it keeps what it handed over"
    world.clock.advance(HOUR_S)
    await sweep(world)
    assert await unwanted(world, named, now) == [named, now]


async def test_turn_that_read_the_first_result_is_halted_and_the_second_is_still_told(
    world: World, main: int
) -> None:
    task = await world.child(main)
    await world.end(task, "the first finding")
    world.clock.advance(2)
    await world.start(main)  # has read it, and its model has not answered
    await again(world, task)
    await world.end(task, "the second finding")
    assert await world.db.alone(control.halt, world.policy, main, "person")
    assert await world.phase(task) == (Phase.ANNOUNCING, "ok")
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    assert "the second finding" in (await world.inputs(main))[-1]
    assert (await world.task(task)).delivery == "delivered"


async def test_killed_and_retried_it_has_another_shelf(world: World, main: int) -> None:
    run = await world.started(main)
    task = run.session_id
    await world.db.alone(control.kill, world.policy, task, "enough", "person")
    await again(world, task, "retry")
    assert await unwanted(world, FileVersion(task), FileVersion(task, 1)) == [FileVersion(task)]


async def test_told_and_continued_it_finds_its_files_where_it_left_them(world: World, main: int) -> None:
    task = await told(world, main)
    await again(world, task)
    assert await world.db.read(task_files.file_version_of, task) == FileVersion(task)
    assert await unwanted(world, FileVersion(task)) == []


async def test_a_let_go_dead_letter_does_not_work_again_while_it_is_cleaned_up(
    world: World, main: int
) -> None:
    task = await given_up(world, main, cleanup=CleanupPolicy.DELETE)
    await world.clean(task)
    await world.db.alone(control.dismiss, world.policy, task, "person")
    wanted = await world.db.read(task_files.awaited, world.policy, task)
    assert wanted is not None
    assert wanted.session
    with pytest.raises(NotPossible, match="being removed; try again"):
        await again(world, task)
    await world.clean(task)
    with pytest.raises(NotPossible, match="was deleted"):
        await again(world, task)


async def test_whoever_removed_what_an_earlier_end_left_has_no_say_in_this_one(
    world: World, main: int
) -> None:
    task = await world.child(main, attachments=(Attachment("given.txt", b"one"),))
    await world.db.tx(task, task_files.ready, world.policy, task, None)
    await world.end(task, "the finding")
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    late = await world.db.read(task_files.awaited, world.policy, task)
    assert late == Removal((Side.IN,), generation=1)
    await world.clean(task)
    await again(world, task)
    await world.db.alone(control.kill, world.policy, task, "no", "person")
    await world.db.alone(task_files.cleaned, world.policy, task, late)
    await world.db.alone(task_files.failed, world.policy, task, late, "busy")
    assert await world.phase(task) == (Phase.CLEANUP_PENDING, "killed: no")
    assert (await world.timeline(task))[-1] == "killed: no"
    await world.clean(task)
    assert (await world.phase(task))[0] is Phase.COMPLETED


async def test_one_whose_workspace_went_before_it_began_does_not_begin_without(
    world: World, main: int
) -> None:
    task = await world.child(main, workspace=Workspace.ISOLATED)
    await world.db.tx(task, task_files.ready, world.policy, task, "isolated/1")
    await world.db.alone(control.kill, world.policy, task, "enough", "person")
    assert (await world.task(task)).phase is Phase.COMPLETED
    assert await world.db.read(task_files.unwanted_workspaces, [task]) == [task]
    with pytest.raises(NotPossible, match="never began"):
        await again(world, task, "retry")


async def test_one_of_an_older_release_is_known_by_the_name_of_its_workspace(world: World, main: int) -> None:
    task = await world.child(main, workspace=Workspace.ISOLATED)
    await world.db.tx(task, task_files.ready, world.policy, task, f"isolated/{task}")
    await world.db.alone(control.kill, world.policy, task, "enough", "person")
    await world.db.tx(task, write, "UPDATE tasks SET spec = '{}' WHERE id = ?", task)
    with pytest.raises(NotPossible, match="never began"):
        await again(world, task, "retry")


async def test_retried_before_it_was_told_it_is_shown_what_it_was_given(world: World, main: int) -> None:
    given = (Attachment("given.txt", b"one"),)
    task = await world.child(main, attachments=given)
    await world.db.tx(task, task_files.ready, world.policy, task, None)
    await world.end(task, "a finding")
    assert (await world.task(task)).phase is Phase.ANNOUNCING
    await again(world, task, "retry")
    await world.start(task)
    assert "given.txt" in (await world.inputs(task))[-1]


async def test_each_life_of_a_task_ends_once_for_hooks(world: World, main: int) -> None:
    world.policy = replace(world.policy, hooks=frozenset({Hook.ENDED}))
    task = await told(world, main)
    await again(world, task)
    await world.live()
    rows = await world.rows("SELECT idem, body FROM outbox WHERE channel = 'hook' ORDER BY id")
    assert [(key.rpartition(":")[2], json.loads(body)["generation"]) for key, body in rows] == [
        ("1", 1),
        ("2", 2),
    ]


async def finished_grandchild(world: World, main: int) -> tuple[int, int]:
    """A child that has completed and was delivered, and a grandchild that it had."""
    parent = await world.started(main, "parent")
    grandchild = await world.child(parent.session_id, "grandchild")
    await parent.yields()
    await world.end(grandchild, "the first finding")
    await world.end(parent.session_id, "my part")
    world.clock.advance(2)
    await (await world.start(main)).finish("delivered")
    assert (await world.task(parent.session_id)).phase is Phase.COMPLETED
    return parent.session_id, grandchild


@pytest.mark.parametrize("how", ["retry", "continue"])
async def test_grandchild_of_a_completed_parent_works_again_and_its_result_rises(
    world: World, main: int, how: str
) -> None:
    _, grandchild = await finished_grandchild(world, main)
    await world.db.alone(
        control.again, world.policy, grandchild, how, "again:1", text="once more", actor="person"
    )
    await world.end(grandchild, "the second finding")
    await world.mail()
    assert (await world.letter(grandchild, 2)).session_id == main
    await world.live()
    assert (await world.task(grandchild)).delivery is Delivery.DELIVERED
    assert sum("the second finding" in text for text in await world.inputs(main)) == 1


async def test_grandchild_of_a_killed_parent_is_refused_and_the_error_names_that_parent(
    world: World, main: int
) -> None:
    parent = await world.started(main, "parent")
    grandchild = await world.child(parent.session_id, "grandchild")
    await world.db.alone(control.kill, world.policy, parent.session_id, "no", "person")
    name = ids.task_id(parent.session_id)
    with pytest.raises(
        control.NotPossible, match=f"{name} above it was killed; retry or continue {name} first"
    ):
        await world.db.alone(
            control.again, world.policy, grandchild, "retry", "again:1", text="", actor="person"
        )


async def test_nothing_works_again_for_a_main_session_that_is_archived(world: World, main: int) -> None:
    _, grandchild = await finished_grandchild(world, main)
    await world.db.alone(control.close_main, world.policy, main)
    with pytest.raises(control.NotPossible, match="would have no reader, agent:main:main is archived"):
        await world.db.alone(
            control.again, world.policy, grandchild, "retry", "again:1", text="", actor="person"
        )
