"""Foreign code that raises what ends a process: the error belongs to its call, and the gateway goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clutch import Clutch
from clutch.channels import HookRegistry
from clutch.contain import ForeignExit, contained
from clutch.core.messages import Answer, Call, Results, Usage
from clutch.core.model import Hook, Outcome
from clutch.ports import ModelRequest, RuntimeJob
from clutch.runtimes.function import FunctionRuntime
from clutch.transactions.spawn import Accepted
from tests.api.test_api import Echo
from tests.engine.conftest import Build
from tests.engine.house import ask_for, opening, step, use
from tests.engine.test_courier import Place, Recording, engine, is_done, post, until
from tests.engine.test_hooks import place
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Custom(BaseException):
    """Not an Exception, as some libraries have them."""


EXITS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Custom("own")]
every_exit = pytest.mark.parametrize("exit_", EXITS, ids=lambda error: type(error).__name__)


def named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


@every_exit
@pytest.mark.parametrize("waits", [False, True])
async def test_exit_of_a_tool_is_the_error_of_its_call(
    build: Build, exit_: BaseException, waits: bool
) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), use("sessions_yield"), "heard")[step(request)]
        if step(request) == 0:
            return use("leave", "stay")
        (given,) = [entry for entry in request.transcript if isinstance(entry, Results)]
        return "; ".join(f"{result.failed} {result.text}" for result in given.results)

    async def leave() -> str:
        if waits:
            await asyncio.sleep(0)
        raise exit_

    async def stay() -> str:
        return "still here"

    house = await build(script)
    house.tool("leave", leave)
    house.tool("stay", stay)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.result) == (Outcome.OK, f"True {named(exit_)}; False still here")


@every_exit
async def test_exit_of_a_runtime_is_the_error_of_its_run(build: Build, exit_: BaseException) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        sent = {"task": "do child", "label": "child", "runtime": "mine"}
        call = Answer("", (Call("sessions_spawn", sent),), Usage(1, 1), "scripted", "tools")
        return (call, "sent", "heard")[min(2, step(request))]

    async def leaves(job: RuntimeJob) -> str:
        raise exit_

    house = await build(script)
    house.more["runtimes"] = {"mine": FunctionRuntime(leaves)}
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.error) == (Outcome.ERROR, named(exit_))


@every_exit
async def test_exit_of_a_model_is_the_error_of_its_run(build: Build, exit_: BaseException) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) != "go":
            raise exit_
        return (ask_for("child"), use("sessions_yield"), "heard")[step(request)]

    house = await build(script)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert task.outcome is Outcome.ERROR
    assert named(exit_) in (task.error or "")


@every_exit
@pytest.mark.parametrize("is_async", [False, True])
async def test_exit_of_a_hook_is_a_warning(tmp_path: Path, exit_: BaseException, is_async: bool) -> None:
    def leaves(told: dict[str, Any]) -> None:
        raise exit_

    async def leaves_later(told: dict[str, Any]) -> None:
        raise exit_

    hooks = HookRegistry()
    hooks.add(Hook.SPAWNING, leaves_later if is_async else leaves)
    async with place(tmp_path, hooks) as there:
        answer = await there.spawn()
        assert isinstance(answer, Accepted)
        assert answer.warnings == (f"hook subagent_spawning: {named(exit_)}",)


@every_exit
async def test_exit_of_a_channel_is_an_unsure_send(tmp_path: Path, exit_: BaseException) -> None:
    """The message may have been read, so it is not sent again; the next one is."""
    mail = Recording(exit_)
    async with engine(Place(state=tmp_path / "state"), mail=mail) as running:
        await post(running, "k1")
        await until(running, "k1", lambda row: row["outcome"] == "unsure")
        await post(running, "k2")
        await until(running, "k2", is_done)
    assert mail.tries == 2


@every_exit
async def test_exit_of_a_callback_ends_neither_the_program_nor_the_other_callbacks(
    tmp_path: Path, exit_: BaseException
) -> None:
    told = asyncio.Event()

    def leaves(result: Any) -> None:
        raise exit_

    async with Clutch(state=tmp_path / "state", models=Echo(), workspace=tmp_path) as c:
        task = await c.spawn("say hello")
        task.on_done(leaves)
        task.on_done(lambda result: told.set())
        async with asyncio.timeout(PATIENCE_S):
            await told.wait()
        assert (await c.spawn("go on")).id


async def test_real_cancellation_passes() -> None:
    async def waits() -> None:
        with contained():
            await asyncio.Event().wait()

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_coroutine_that_is_closed_is_closed() -> None:
    """What closes it is no error of foreign code, and nothing may run on."""
    steps: list[str] = []

    async def waits() -> None:
        try:
            with contained():
                await asyncio.Event().wait()
        except ForeignExit:
            steps.append("went on")

    async def starts() -> None:
        waiting.send(None)

    waiting = waits()
    await asyncio.create_task(starts())
    waiting.close()
    assert steps == []


@pytest.mark.parametrize("raised", [ValueError("plain"), TimeoutError()], ids=["plain", "time"])
async def test_an_ordinary_error_passes_as_it_is(raised: Exception) -> None:
    def fails() -> None:
        raise raised

    call: Callable[[], None] = fails
    with pytest.raises(type(raised)) as caught, contained():
        call()
    assert caught.value is raised
