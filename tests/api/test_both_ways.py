"""One body of tests for a program that has the engine and for one that is the client of a gateway: they cannot tell."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clutch import (
    Clutch,
    ClutchError,
    DeliveryStatus,
    IdempotencyConflict,
    InvalidInput,
    KillResult,
    NoGateway,
    NotFound,
    NotPossible,
    PlanChanged,
    SpawnRefused,
    StateDirectoryInUse,
    TaskFailed,
    TaskStatus,
    UnknownQuestion,
)
from clutch.core.model import Outcome
from clutch.testing.channels import RecordingChannel
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Slow, served

pytestmark = pytest.mark.anyio

#: A kill waits only briefly for a turn that does not end.
HASTY = replace(FAST, work=replace(FAST.work, tool_grace_s=0.2))


@dataclass(frozen=True, slots=True)
class Way:
    clutch: Clutch
    models: Any
    loop: asyncio.AbstractEventLoop  #: in which the engine runs

    def let_go(self) -> None:
        self.loop.call_soon_threadsafe(self.models.go.set)

    async def asked(self) -> bool:
        """Whether a stubborn model call is under way."""
        return bool(self.models.is_stubborn)


def open_channels() -> dict[str, RecordingChannel]:
    return {"web": RecordingChannel(operators=["*"])}


@pytest.fixture(params=["embedded", "connected"])
async def way(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Way]:
    home = tmp_path / "state"
    if request.param == "embedded":
        models = Slow()
        async with Clutch(
            state=home,
            models=models,
            policy=HASTY,
            workspace=tmp_path,
            embedded=True,
            channels=open_channels(),
        ) as c:
            yield Way(c, models, asyncio.get_running_loop())
        return
    with served(home, policy=HASTY, channels=open_channels()) as owner:
        async with Clutch(state=home) as c:
            assert c.is_client
            yield Way(c, owner.models, owner.loop)


async def seen(look: Callable[[], Awaitable[Any]], is_there: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if is_there(found := await look()):
                return found
            await asyncio.sleep(0.02)


async def test_a_task_is_spawned_awaited_and_found_again(way: Way) -> None:
    c = way.clutch
    task = await c.spawn("say hello", label="greeter", idempotency_key="one")
    result = await task
    assert (result.outcome, result.is_ok, result.error, result.files) == (Outcome.OK, True, None, ())
    assert result.text is not None
    assert "say hello" in result.text
    again = await c.get(task.id)
    assert (again.id, again.label, again.session_key) == (task.id, "greeter", task.session_key)
    assert await again == result
    assert [one.id for one in await c.tasks(label="greeter", outcome="ok")] == [task.id]
    assert (await task.info()).task_id == task.id
    assert (await task.why()).timeline
    assert (await c.spawn("say hello", label="greeter", idempotency_key="one")).id == task.id
    with pytest.raises(IdempotencyConflict):
        _ = await c.spawn("say something else", idempotency_key="one")
    assert (await c.check_spawn("what if"))["dryRun"] is True


async def test_a_spawn_buys_no_turn_of_a_parent_that_no_user_talks_to(way: Way) -> None:
    c = way.clutch
    task = await c.spawn("say hello")
    assert str((await task).text).endswith("say hello")
    shown = await seen(task.info, lambda one: one.phase == "completed")
    assert (shown.delivery.status, shown.delivery.reason) == (DeliveryStatus.SKIPPED, "not-requested")
    assert shown.delivery.text == "skipped (not requested; the caller reads it)"
    planned = await c.spawn("a plan", plan_mode=True)
    asking = await c.spawn("ask me")
    items = await seen(c.inbox, lambda items: len(items) == 2)
    for item in items:
        await c.answer(item, "approve" if item.task_id == planned.id else "answer", "a")
    assert [(await one).is_ok for one in (planned, asking)] == [True, True]
    await c.wait_idle()
    assert sorted(way.models.calls) == ["APPROVED: a", "a plan", "ask me", "ask me", "say hello"]
    await (await c.spawn("say more", notify_parent=True))
    await c.wait_idle()
    assert (await c.reply()).startswith("heard: [Subagent]")


async def test_result_has_a_timeout_and_the_task_keeps_running(way: Way) -> None:
    task = await way.clutch.spawn("slow one")
    with pytest.raises(TimeoutError):
        await task.result(timeout=0.01)
    way.let_go()
    assert (await task.result(timeout=PATIENCE_S)).is_ok


async def test_text_streams_as_it_comes_and_a_finished_task_yields_its_final_text(way: Way) -> None:
    task = await way.clutch.spawn("stream it")
    pieces: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        async for text in task.stream():
            pieces.append(text)
            if len(pieces) == 2:
                assert not await task.done()
                way.let_go()
    assert set(pieces) == {"word "}
    assert len(pieces) >= 2
    final = (await task).text
    assert [text async for text in task.stream()] == [final]
    quick = await way.clutch.spawn("say hello")
    async with asyncio.timeout(PATIENCE_S):
        assert "".join([text async for text in quick.stream()]).endswith("say hello")


async def test_status_info_and_why_are_typed(way: Way) -> None:
    task = await way.clutch.spawn("slow one", label="one", budget={"tokens": 100_000})
    await seen(task.status, lambda status: status == "running")
    assert not await task.done()
    running = await task.info()
    assert (running.label, running.outcome, running.ended_at) == ("one", None, None)
    assert running.budget is not None
    assert (running.budget.tokens, running.budget.usd) == (100_000, None)
    assert running.created_at.tzinfo is UTC
    way.let_go()
    assert (await task.result()).raise_for_outcome().is_ok
    assert (await task.done(), await task.status()) == (True, TaskStatus.DONE)
    why = await seen(task.why, lambda why: why.task.phase == "completed")
    assert [why.timeline[0].seq, why.timeline[-1].after, why.blocked_on] == [1, "completed", None]
    assert all(isinstance(line.at, datetime) for line in why.timeline)
    assert [(one.outcome, one.reason) for one in why.deliveries] == [("skipped", "not-requested")]
    assert why.text


async def test_outcome_that_is_not_ok_can_be_raised(way: Way) -> None:
    task = await way.clutch.spawn("slow one")
    await task.kill("not needed")
    with pytest.raises(TaskFailed, match=f"task {task.id} ended with killed: not needed") as failed:
        (await task).raise_for_outcome()
    assert (failed.value.task_id, failed.value.outcome, failed.value.reason) == (
        task.id,
        "killed",
        "not needed",
    )


async def test_many_wait_at_once_and_each_is_told(way: Way) -> None:
    tasks = [await way.clutch.spawn(f"slow {number}") for number in range(12)]
    waiting = [asyncio.ensure_future(task.result()) for task in (*tasks, tasks[0])]
    done: list[str] = []
    tasks[1].on_done(lambda result: done.append(result.outcome.value))
    assert await tasks[0].pause() == (tasks[0].id,)
    assert await tasks[0].resume() == (tasks[0].id,)
    assert await tasks[2].kill() == KillResult(stopped=(tasks[2].id,))
    assert await tasks[2].kill() == KillResult(already_finished=(tasks[2].id,))
    way.let_go()
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*waiting)
    assert [one.outcome for one in results].count(Outcome.KILLED) == 1
    assert [one.outcome for one in results].count(Outcome.OK) == 12
    assert done == ["ok"]


async def test_a_kill_reports_what_is_killed_and_has_not_ended_yet(way: Way) -> None:
    task = await way.clutch.spawn("stubborn one")
    await seen(task.info, lambda shown: shown.phase == "running")
    await seen(way.asked, bool)
    assert await task.kill() == KillResult(still_stopping=(task.id,))
    assert (await task).outcome is Outcome.KILLED
    assert await task.kill() == KillResult(already_finished=(task.id,))
    way.let_go()


async def test_events_of_a_task_end_with_it(way: Way) -> None:
    task = await way.clutch.spawn("slow to start")
    asyncio.get_running_loop().call_later(0.3, way.let_go)
    async with asyncio.timeout(PATIENCE_S):
        events = [event async for event in task.events()]
    assert {(event.task_id, event.session_key) for event in events} == {(task.id, task.session_key)}
    assert all(event.seq for event in events)
    assert (events[-1].name, events[-1].run_id) == ("lifecycle:end", (await task.info()).run_id)
    assert (await task).is_ok
    async with asyncio.timeout(PATIENCE_S):
        assert "assistant:text" not in [event.name async for event in task.events()]


async def test_a_task_is_steered_and_a_finished_one_is_not(way: Way) -> None:
    task = await way.clutch.spawn("slow one")
    await task.steer("quick instead")
    result = await task
    assert result.text is not None
    assert "quick instead" in result.text
    await seen(task.info, lambda shown: shown.phase == "completed")
    with pytest.raises(NotPossible):
        await task.steer("too late")
    await task.continue_("and more")
    assert "and more" in str((await task).text)


async def test_a_plan_and_a_question_are_decided(way: Way) -> None:
    c = way.clutch
    plan = await c.spawn("a plan", plan_mode=True)
    shown = await seen(plan.info, lambda task: task.plan.state == "awaiting_approval")
    with pytest.raises(PlanChanged):
        await plan.approve("0" * 64)
    (shown_plan,) = await c.inbox()
    assert (shown_plan.task_id, shown_plan.hash) == (plan.id, shown.plan.hash)
    with pytest.raises(InvalidInput) as wrong:
        await c.answer(shown_plan, "reject")
    assert wrong.value.field == "text"
    await c.answer(shown_plan, "approve")
    assert (await plan).is_ok
    asking = await c.spawn("ask me")
    (question,) = await seen(c.inbox, bool)
    assert question.task_id == asking.id
    await c.answer(question, "answer", "b")
    with pytest.raises(UnknownQuestion):
        await c.answer(question, "answer", "b")
    assert (await asking).is_ok


async def test_what_is_wrong_is_said_in_the_same_words(way: Way) -> None:
    c = way.clutch
    with pytest.raises(InvalidInput) as wrong:
        _ = await c.spawn("x", run_timeout_seconds=-1)
    assert wrong.value.field == "run_timeout_seconds"
    with pytest.raises(InvalidInput) as wrong:
        _ = await c.spawn(" ")
    assert wrong.value.field == "prompt"
    with pytest.raises(InvalidInput) as wrong:
        _ = await c.check_spawn("x", thinking="loud")
    assert wrong.value.field == "thinking"
    with pytest.raises(InvalidInput) as wrong:
        _ = await c.spawn("x", session="agent:main:subagent:1")
    assert wrong.value.field == "session"
    with pytest.raises(InvalidInput) as wrong:
        _ = await c.tasks(phase="asleep")
    assert wrong.value.field == "phase"
    with pytest.raises(SpawnRefused):
        _ = await c.spawn("x", agent_id="somebody-else")
    assert (await c.check_spawn("x", agent_id="somebody-else"))["status"] == "forbidden"
    with pytest.raises(NotFound):
        _ = await c.get("t_zzzz")
    with pytest.raises(InvalidInput):
        _ = await c.get("no id")
    with pytest.raises(NotFound):
        await (await c.spawn("quick")).read_file("nothing.txt")


async def test_a_main_agent_is_spoken_to(way: Way) -> None:
    c = way.clutch
    await c.say("hello there")
    assert await c.reply() == "heard: hello there"
    await c.wait_idle()
    assert await c.notify("the door was opened")
    assert not await c.notify("the door was opened")
    assert "agents" in (await c.command("/help")).lower()
    assert await c.say("/agents", idempotency_key="a") == await c.say("/agents", idempotency_key="a")
    assert "main" in await c.reply()
    await c.wake()


async def test_words_in_a_thread_reach_whoever_has_it(way: Way) -> None:
    c = way.clutch
    with pytest.raises(NotFound, match="th1"):
        await c.receive_thread_message("web", "th1", "anybody there?")
    task = await c.spawn("slow one", label="one")
    for _ in range(2):
        await c.receive_thread_message("web", "th1", "/focus one", idempotency_key="f")
    await c.receive_thread_message("web", "th1", "look left", idempotency_key="w")
    with pytest.raises(IdempotencyConflict):
        await c.receive_thread_message("web", "th1", "look right", idempotency_key="w")
    way.let_go()
    assert (await task).text == "heard: look left"


async def test_a_client_says_what_it_is_and_what_it_cannot_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "state"
    with pytest.raises(NoGateway):
        async with Clutch.connect(home):
            raise AssertionError
    with served(home, policy=HASTY) as owner:
        with caplog.at_level(logging.WARNING, "clutch.wiring"):
            async with Clutch.connect(home) as c:
                assert (c.is_client, c.url) == (True, owner.clutch.url)
                with pytest.raises(StateDirectoryInUse, match=r"brings @c\.tool, which the owner"):

                    @c.tool
                    def coin() -> int:
                        """Heads."""
                        return 1

                waiting = asyncio.ensure_future((await c.spawn("slow one")).result())
                await asyncio.sleep(0)
                with pytest.raises(ClutchError, match="only that one can do this"):
                    c.stats  # noqa: B018
        assert "this program is its client" in caplog.text
        with pytest.raises(ClutchError, match="this Clutch is closed"):
            await waiting
        with pytest.raises(StateDirectoryInUse):
            async with Clutch(state=home, embedded=True):
                raise AssertionError
        mine = Clutch(state=home)

        @mine.tool
        def dice() -> int:
            """Four."""
            return 4

        with pytest.raises(StateDirectoryInUse, match=r"brings @c\.tool, which the owner"):
            async with mine:
                raise AssertionError


@pytest.mark.parametrize("key", ["agent:mian:main", "agent:Main:chat:ops"])
async def test_wrong_agent_in_a_session_key_is_refused_with_the_nearest_and_opens_nothing(
    way: Way, key: str
) -> None:
    c = way.clutch
    for refused in (c.spawn("look", session=key), c.say("hello", session=key), c.tasks(requester=key)):
        with pytest.raises((InvalidInput, NotFound), match="did you mean 'main'"):
            await refused
    assert await c.tasks() == []
