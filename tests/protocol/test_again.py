"""Works again: what was to go of a task never goes from under its new life, however late whoever removes it is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clutch.core.admission import Cleanup
from clutch.core.attachments import Attachment, Shelf, Side
from clutch.core.cleaning import Removal
from clutch.core.hooks import Hook
from clutch.core.model import Phase, Workspace
from clutch.protocol import cleaning, control, preparing
from clutch.protocol.control import NotPossible
from tests.protocol.test_archiving import HOUR_S, sweep, told
from tests.protocol.test_dead_letters import given_up
from tests.protocol.world import World, write

pytestmark = pytest.mark.anyio


async def again(world: World, task: int, how: str = "continue") -> None:
    idem = f"{how}:{world.clock.now()}"
    await world.door.alone(control.again, world.policy, task, how, idem, "once more", "person")


async def unwanted(world: World, *found: Shelf) -> list[Shelf]:
    return await world.door.read(preparing.unwanted_files, found)


async def test_archived_and_continued_it_has_another_shelf_and_only_the_old_one_may_go(
    world: World, main: int
) -> None:
    task = await told(world, main)
    world.clock.advance(HOUR_S)
    assert await sweep(world) == [task]
    (named,) = await world.door.read(preparing.unwanted_files_of, [task])
    await again(world, task)  # while somebody is about to remove what is named
    now = await world.door.read(preparing.shelf_of, task)
    assert now != named
    assert await unwanted(world, named, now) == [named]
    assert await world.door.read(preparing.unwanted_files_of, [task]) == []
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
    assert await world.door.alone(control.halt, world.policy, main, "person")
    assert await world.phase(task) == (Phase.ANNOUNCING, "ok")
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    assert "the second finding" in (await world.inputs(main))[-1]
    assert (await world.task(task)).delivery == "delivered"


async def test_killed_and_retried_it_has_another_shelf(world: World, main: int) -> None:
    run = await world.started(main)
    task = run.session_id
    await world.door.alone(control.kill, world.policy, task, "enough", "person")
    await again(world, task, "retry")
    assert await unwanted(world, Shelf(task), Shelf(task, 1)) == [Shelf(task)]


async def test_told_and_continued_it_finds_its_files_where_it_left_them(world: World, main: int) -> None:
    task = await told(world, main)
    await again(world, task)
    assert await world.door.read(preparing.shelf_of, task) == Shelf(task)
    assert await unwanted(world, Shelf(task)) == []


async def test_a_let_go_dead_letter_does_not_work_again_while_it_is_cleaned_up(
    world: World, main: int
) -> None:
    task = await given_up(world, main, cleanup=Cleanup.DELETE)
    await world.clean(task)
    await world.door.alone(control.dismiss, world.policy, task, "person")
    wanted = await world.door.read(cleaning.awaited, world.policy, task)
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
    await world.door.tx(task, preparing.ready, world.policy, task, None)
    await world.end(task, "the finding")
    world.clock.advance(2)
    await (await world.start(main)).finish("heard")
    late = await world.door.read(cleaning.awaited, world.policy, task)
    assert late == Removal((Side.IN,), generation=1)
    await world.clean(task)
    await again(world, task)
    await world.door.alone(control.kill, world.policy, task, "no", "person")
    await world.door.alone(cleaning.cleaned, world.policy, task, late)
    await world.door.alone(cleaning.failed, world.policy, task, late, "busy")
    assert await world.phase(task) == (Phase.CLEANUP_PENDING, "killed: no")
    assert (await world.timeline(task))[-1] == "killed: no"
    await world.clean(task)
    assert (await world.phase(task))[0] is Phase.COMPLETED


async def test_one_whose_workspace_went_before_it_began_does_not_begin_without(
    world: World, main: int
) -> None:
    task = await world.child(main, workspace=Workspace.ISOLATED)
    await world.door.tx(task, preparing.ready, world.policy, task, "isolated/1")
    await world.door.alone(control.kill, world.policy, task, "enough", "person")
    assert (await world.task(task)).phase is Phase.COMPLETED
    assert await world.door.read(preparing.unwanted_workspaces, [task]) == [task]
    with pytest.raises(NotPossible, match="never began"):
        await again(world, task, "retry")


async def test_one_of_an_older_release_is_known_by_the_name_of_its_workspace(world: World, main: int) -> None:
    task = await world.child(main, workspace=Workspace.ISOLATED)
    await world.door.tx(task, preparing.ready, world.policy, task, f"isolated/{task}")
    await world.door.alone(control.kill, world.policy, task, "enough", "person")
    await world.door.tx(task, write, "UPDATE tasks SET spec = '{}' WHERE id = ?", task)
    with pytest.raises(NotPossible, match="never began"):
        await again(world, task, "retry")


async def test_retried_before_it_was_told_it_is_shown_what_it_was_given(world: World, main: int) -> None:
    given = (Attachment("given.txt", b"one"),)
    task = await world.child(main, attachments=given)
    await world.door.tx(task, preparing.ready, world.policy, task, None)
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
