"""After the telling: what is to go goes once, never before; what will not go is shown and tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clutch.core.attachments import AttachmentRules, FileVersion, Side
from clutch.core.messages import Answer, Call, Usage
from clutch.core.model import Delivery, Outcome, Phase
from clutch.core.policy import Keeping, Policy
from clutch.engine.task_files import Sweeper
from clutch.errors import StoreLost
from clutch.ports import FilesFailed, ModelRequest, ToolContext
from clutch.tools.task_files import LocalResultFiles, LocalTaskFiles
from clutch.transactions import control, outbox, task_files
from clutch.transactions.control import NotPossible
from tests.engine.conftest import Build
from tests.engine.house import POLICY, Anything, House, opening, step, use
from tests.patience import PATIENCE_S
from tests.transactions.world import write

pytestmark = pytest.mark.anyio

TICKING = replace(POLICY, work=replace(POLICY.work, tick_s=0.02))
FILE = {"name": "given.txt", "content": "x"}


class StubbornFiles(LocalTaskFiles):
    """The disk refuses the first so many removals."""

    refusals = 0
    tries = 0

    async def remove(self, shelf: FileVersion, *sides: Side) -> None:
        self.tries += 1
        if self.tries <= self.refusals:
            raise FilesFailed("files: Directory not empty")
        await super().remove(shelf, *sides)


class LateFiles(LocalTaskFiles):
    """Whoever removes something is held up just before it does."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_late, self.is_waiting, self.may_go_on = False, asyncio.Event(), asyncio.Event()

    async def remove(self, shelf: FileVersion, *sides: Side) -> None:
        if self.is_late:
            self.is_waiting.set()
            await self.may_go_on.wait()
        await super().remove(shelf, *sides)


class UnreadableFiles(LocalTaskFiles):
    """The disk does not say what is there."""

    looks = 0

    async def kept(self) -> list[FileVersion]:
        self.looks += 1
        raise FilesFailed("files: Too many open files")


def sends(answer: str = "done", **asked: Any) -> Callable[[ModelRequest], Any]:
    """A main agent with one child, which hands over a file and answers so."""

    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) != "go":
            if not step(request):
                return Answer("", (Call("make", {}),), Usage(1, 1), "m", "tools")
            return answer
        call = Call("sessions_spawn", {"task": "do child", "label": "child", "attachments": [FILE], **asked})
        return (Answer("", (call,), Usage(1, 1), "m", "tools"), "sent", "heard", "heard")[step(request)]

    return says


async def house_with(build: Build, files: LocalTaskFiles, says: Any, policy: Policy = TICKING) -> House:
    house = await build(says, policy)
    house.more["files"] = files

    async def make(arguments: Anything, context: ToolContext) -> str:
        assert context.files is not None
        out = Path(context.files) / "out"
        out.mkdir(parents=True, exist_ok=True)
        (out / "found.txt").write_text("found")
        return "made"

    house.tools.add(make, arguments=Anything, name="make", description="make")
    return house


def names(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*") if path.is_file()}


async def words_of(house: House, task_id: int) -> int:
    ((count,),) = await house.rows("SELECT COUNT(*) FROM messages WHERE session_id = ?", task_id)
    return int(count)


async def test_delete_removes_session_transcript_and_files_right_after_the_telling(
    build: Build, tmp_path: Path
) -> None:
    house = await house_with(build, LocalTaskFiles(tmp_path), sends(cleanup="delete"))
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert (task.phase, task.outcome, task.result, task.delivery) == (
        Phase.COMPLETED, Outcome.OK, "done", Delivery.DELIVERED,
    )  # fmt: skip
    assert names(tmp_path) == set()
    assert await words_of(house, task.id) == 0
    assert await house.rows("SELECT 1 FROM calls WHERE session_id = ?", task.id) == []
    ((deleted_at,),) = await house.rows("SELECT deleted_at FROM sessions WHERE id = ?", task.id)
    assert deleted_at is not None
    assert await house.rows("SELECT COUNT(*) FROM usage WHERE session_id = ?", task.id) == [(2,)]
    assert len(await house.rows("SELECT 1 FROM events WHERE task_id = ?", task.id)) == task.seq
    (told,) = [text for text in await house.inputs(house.main) if text.startswith("[Subagent]")]
    assert "found.txt" in told, "what is gone was told of before"


async def test_a_disk_that_does_not_answer_a_sweep_stops_nobody(build: Build, tmp_path: Path) -> None:
    files = UnreadableFiles(tmp_path)
    house = await house_with(build, files, sends())
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    house.clock.jump(house.policy.keeping.sweep_s + 1)
    await house.say("go")
    await house.until_quiet()
    assert files.looks >= 2, "at the start and at a tick"
    assert (await house.task("child")).outcome is Outcome.OK


@pytest.mark.scenario(209)
async def test_retry_and_continue_after_delete_are_refused(build: Build, tmp_path: Path) -> None:
    house = await house_with(build, LocalTaskFiles(tmp_path), sends(cleanup="delete"))
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    for how in ("retry", "continue"):
        with pytest.raises(NotPossible, match="was deleted"):
            await house.db.alone(
                control.again, house.policy, task.id, how, f"{how}:1", text="", actor="person"
            )
    assert await house.task("child") == task


@pytest.mark.scenario(14)
async def test_a_plan_is_kept_whatever_was_asked_for(build: Build, tmp_path: Path) -> None:
    house = await house_with(build, LocalTaskFiles(tmp_path), sends(cleanup="delete", planMode=True))
    await house.hire()
    await house.say("go")
    task = await house.until_phase("child", Phase.AWAITING_APPROVAL)
    ((spec,),) = await house.rows("SELECT spec FROM tasks WHERE id = ?", task.id)
    assert "delete" not in spec


@pytest.mark.scenario(52)
@pytest.mark.scenario(203)
@pytest.mark.parametrize(
    ("retains", "kept"), [(False, {"found.txt"}), (True, {"found.txt", "given.txt", ".manifest.json"})]
)
async def test_keep_removes_what_was_given_unless_it_is_retained(
    build: Build, tmp_path: Path, retains: bool, kept: set[str]
) -> None:
    rules = AttachmentRules(retain_on_keep=retains)
    policy = replace(TICKING, limits=replace(TICKING.limits, attachments=rules))
    house = await house_with(build, LocalTaskFiles(tmp_path), sends(), policy)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert task.phase is Phase.COMPLETED
    assert names(tmp_path) == kept
    assert await words_of(house, task.id) > 0
    house.clock.jump(3600 + 120)  # "kept until archive"

    async def is_archived() -> bool:
        return names(tmp_path) == set()

    await house.until(is_archived)


async def test_large_results_go_when_their_task_is_archived(build: Build, tmp_path: Path) -> None:
    house = await house_with(build, LocalTaskFiles(tmp_path / "files"), sends(), TICKING)
    results = house.more["results"] = LocalResultFiles(tmp_path / "results")
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    for session_id in (house.main, task.id):
        await results.keep(session_id, "a.txt", "long")
    house.clock.jump(3600 + 120)

    async def is_archived() -> bool:
        return await results.kept() == [house.main]

    await house.until(is_archived)


async def with_a_child_at_work(build: Build, tmp_path: Path) -> House:
    """It has its files, and never comes to an end."""

    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) == "go" or not step(request):
            return await sends()(request)  # type: ignore[no-any-return]
        await asyncio.Event().wait()
        return "never"

    house = await house_with(build, LocalTaskFiles(tmp_path), says)
    await house.hire()
    await house.say("go")
    await house.until_asked("do child", 2)
    return house


@pytest.mark.scenario(52)
async def test_files_of_a_killed_child_are_removed(build: Build, tmp_path: Path) -> None:
    house = await with_a_child_at_work(build, tmp_path)
    assert len(names(tmp_path)) == 3
    task = await house.task("child")
    await house.db.alone(control.kill, house.policy, task.id, "enough", "person")
    await house.until_phase("child", Phase.COMPLETED)
    assert names(tmp_path) == set()


@pytest.mark.scenario(52)
@pytest.mark.scenario(132)
async def test_a_child_whose_session_was_lost_is_told_and_its_files_are_removed(
    build: Build, tmp_path: Path
) -> None:
    house = await with_a_child_at_work(build, tmp_path)
    task = await house.task("child")
    await house.db.alone(write, "DELETE FROM sessions WHERE id = ?", task.id)
    house.clock.jump(61)
    lost = await house.until_phase("child", Phase.COMPLETED)
    assert (lost.outcome, lost.delivery) == (Outcome.LOST, Delivery.DELIVERED)
    (told,) = [text for text in await house.inputs(house.main) if text.startswith("[Subagent]")]
    assert "lost" in told
    assert names(tmp_path) == set()


@pytest.mark.scenario(52)
async def test_files_of_a_removed_child_are_removed(build: Build, tmp_path: Path) -> None:
    house = await house_with(build, LocalTaskFiles(tmp_path), sends())
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    assert names(tmp_path) == {"found.txt"}
    await house.db.alone(control.remove, house.policy, (await house.task("child")).id, "person")
    house.clock.jump(61)

    async def is_gone() -> bool:
        return names(tmp_path) == set()

    await house.until(is_gone)


async def test_a_task_that_works_again_keeps_its_files_from_a_late_sweeper(
    build: Build, tmp_path: Path
) -> None:
    files = LateFiles(tmp_path)
    house = await house_with(build, files, sends())
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    files.is_late = True
    house.clock.jump(3600 + 120)
    await asyncio.wait_for(files.is_waiting.wait(), PATIENCE_S)
    await house.db.alone(control.again, house.policy, task.id, "retry", "retry:1", text="", actor="person")
    await house.until_phase("child", Phase.ANNOUNCING)
    files.may_go_on.set()
    await house.until_quiet()
    (_, again) = [text for text in await house.inputs(house.main) if text.startswith("[Subagent]")]
    assert "found.txt" in again
    shelf = await house.db.read(task_files.file_version_of, task.id)
    assert await files.read(shelf, "found.txt") == b"found"


@pytest.mark.scenario(109)
async def test_cleanup_that_fails_is_shown_and_tried_again_later_and_later(
    build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = StubbornFiles(tmp_path)
    files.refusals = 3
    house = await house_with(build, files, sends(cleanup="delete"))
    caplog.set_level(logging.CRITICAL)
    await house.hire()
    await house.say("go")
    for failed, wait_s in enumerate((60, 120, 240), start=1):

        async def has_failed(failed: int = failed) -> bool:
            lines = await house.rows("SELECT detail FROM events WHERE reason = 'cleanup failed'")
            return len(lines) == failed

        await house.until(has_failed)
        task = await house.task("child")
        assert (task.phase, task.outcome, task.delivery) == (
            Phase.CLEANUP_PENDING, Outcome.OK, Delivery.DELIVERED,
        )  # fmt: skip
        assert task.wake_at is not None
        assert task.wake_at - house.clock.now() == pytest.approx(wait_s, abs=5)
        assert await words_of(house, task.id) > 0, "the transcript goes with the last step"
        house.clock.jump(wait_s + 1)
    task = await house.until_phase("child", Phase.COMPLETED)
    assert await words_of(house, task.id) == 0
    ((line,), *_) = await house.rows("SELECT detail FROM events WHERE reason = 'cleanup failed'")
    assert "Directory not empty" in line
    assert len(await house.rows("SELECT id FROM deliveries WHERE outcome = 'delivered'")) == 1


@pytest.mark.scenario(111)
async def test_crash_after_delivery_before_cleanup_is_cleaned_and_not_told_again(
    build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = StubbornFiles(tmp_path)
    files.refusals = 1000
    house = await house_with(build, files, sends(cleanup="delete"))
    caplog.set_level(logging.CRITICAL)
    first = await house.hire()
    await house.say("go")
    await house.until_phase("child", Phase.CLEANUP_PENDING)
    await house.crash(first)
    files.refusals = 0
    house.clock.jump(3601)
    await house.hire()
    await house.until_phase("child", Phase.COMPLETED)
    assert names(tmp_path) == set()
    assert len([text for text in await house.inputs(house.main) if text.startswith("[Subagent]")]) == 1


async def test_a_dead_letter_keeps_session_and_files_until_it_is_dismissed(
    build: Build, tmp_path: Path
) -> None:
    policy = replace(TICKING, announcing=replace(TICKING.announcing, slow=False, fast_tries=1, first_s=0.01))

    async def says(request: ModelRequest) -> Answer | str:
        if opening(request) == "go" and step(request) > 1:
            raise StoreLost
        return await sends(cleanup="delete")(request)  # type: ignore[no-any-return]

    house = await house_with(build, LocalTaskFiles(tmp_path), says, policy)
    worker = await house.hire()
    await house.say("go")
    await house.until_phase("child", Phase.ANNOUNCING)
    await house.db.alone(control.close_main, house.policy, house.main)
    await house.until_phase("child", Phase.ANNOUNCE_DEFERRED)
    house.clock.jump(1801)
    worker.hear([("look",)])
    task = await house.until_phase("child", Phase.COMPLETED_GIVEUP)
    assert task.delivery is Delivery.UNDELIVERED
    assert names(tmp_path) == {"found.txt"}, "what was given is of no use any more"
    assert await words_of(house, task.id) > 0
    await house.db.alone(control.dismiss, house.policy, task.id, "person")

    async def is_gone() -> bool:
        return names(tmp_path) == set() and await words_of(house, task.id) == 0

    await house.until(is_gone)
    after = await house.task("child")
    assert (after.phase, after.result, after.wake_at) == (Phase.COMPLETED_GIVEUP, "done", None)


async def test_a_sweep_deletes_what_the_settings_name_and_adds_up_calls_once_a_day(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return use("look", "look") if step(request) < 3 else "the finding"

    keeping = Keeping(transcript_after_s=0.0, timeline_after_s=0.0, sent_after_s=86_400, usage_after_s=86_400)
    house = await build(script, replace(POLICY, keeping=keeping))
    house.tool("look", looks)
    worker = await house.hire()
    await house.say("go")
    await house.until_quiet()
    await house.db.tx(house.main, outbox.post, house.main, "note", "chat:1", "a note")
    await house.db.tx(house.main, write, "UPDATE outbox SET done_at = 1, due = NULL")
    counted = "SELECT COUNT(*), SUM(calls) FROM usage"
    assert await house.rows(counted) == [(4, 4)]
    sweeper = Sweeper(worker.services, house.clock.now)
    house.clock.jump(3600)
    await sweeper.sweep()
    assert await house.rows(counted) == [(4, 4)], "not a day old"
    house.clock.jump(2 * 86_400)
    await sweeper.sweep()
    ((rows, calls),) = await house.rows(counted)
    assert (rows < 4, calls) == (True, 4)
    assert await house.rows("SELECT idem FROM outbox") == []


async def looks() -> str:
    return "something"
