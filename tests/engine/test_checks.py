"""Done means checked: children that claim a success they do not have, and what becomes of their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from clutch.core.agents import Agent
from clutch.core.budget import CallState
from clutch.core.checks import CheckReport, CheckState, TaskCheck, report_of
from clutch.core.messages import Answer, Call, Input, Usage
from clutch.core.model import Outcome, Task
from clutch.core.policy import Limits, Policy
from clutch.core.spawn import BudgetRequest
from clutch.core.text.check_notes import VERDICT_TOOL
from clutch.ports import ModelError, ModelRequest, Trouble
from clutch.tools.registry import AllTools, ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from clutch.transactions.read import tasks as read_tasks
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, opening, step, use
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

Says = Callable[[int], Answer | str]
SPAWN = "sessions_spawn"


def call(name: str, **args: Any) -> Answer:
    return Answer("", (Call(name, args),), Usage(10, 5), "scripted", "tools")


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # the main session of a house works in "."
    return tmp_path


class Crew:
    """A child with checks, which says at each step what `says` says; and an agent that judges."""

    def __init__(self, house: House, says: Says) -> None:
        self.house, self.says = house, says
        self.asked: list[ModelRequest] = []
        self.judge: Callable[[], Answer | str] = lambda: call(VERDICT_TOOL, passed=True, reason="good")
        house.model.script = self._script
        tools = AllTools(Limits(), ToolSettings(sandbox=Sandbox.OFF), None).tools
        for name in ("read", "write", "shell", "clutch_inspect"):
            house.tools._tools[name] = tools._tools[name]

    async def _script(self, request: ModelRequest) -> Answer | str:
        if ":check:" in request.key:
            return self.judge()
        if "subagent" in request.key and "do it" not in opening(request):
            self.asked.append(request)
            return self.says(step(request))
        return "grandchild done" if "do it" in opening(request) else "heard"

    async def works(self, *checks: TaskCheck, **asked: Any) -> Task:
        await self.house.hire()
        await self.house.spawn(1, checks=checks, **asked)
        await self.house.until_quiet()
        return await self.house.task("job 0")

    async def report(self) -> CheckReport:
        ((text, generation),) = await self.house.rows(
            "SELECT checks, generation FROM tasks WHERE label = 'job 0'"
        )
        found = report_of(text, generation)
        assert found is not None
        return found

    async def announced(self) -> str:
        return "\n".join(text for text in await self.house.inputs(self.house.main) if "[Subagent]" in text)

    async def notes(self) -> list[str]:
        return [text for text in await self.house.inputs(10_000) if text.startswith("[CHECKS]")]


MakeCrew: TypeAlias = Callable[..., Awaitable[Crew]]


@pytest.fixture
def crew(build: Build) -> MakeCrew:
    async def made(says: Says, policy: Policy = POLICY) -> Crew:
        async def nobody(request: ModelRequest) -> str:
            return ""

        return Crew(await build(nobody, policy), says)

    return made


async def test_a_result_that_passes_all_checks_is_announced_as_checked(
    crew: MakeCrew, workspace: Path
) -> None:
    def says(at: int) -> Answer | str:
        return (call("write", path="out.md", text="# Findings\nall good\n"), '{"count": 3}')[at]

    one = await crew(says)
    task = await one.works(
        TaskCheck(file="out.md", min_bytes=5, max_bytes=1000, matches="^# Find"),
        TaskCheck(command="test -s out.md"),
        TaskCheck(calls="write"),
        TaskCheck(schema={"type": "object", "required": ["count"]}),
    )
    assert (task.outcome, task.result) == (Outcome.OK, '{"count": 3}')
    assert '"job 0" completed successfully · checked 4/4' in await one.announced()
    (view,) = await one.house.db.read(read_tasks.of, [10_000])
    assert view.checks is not None
    assert view.checks.passed == 4
    assert len(one.asked) == 2


LIARS: dict[str, tuple[TaskCheck, Says, str]] = {
    "no tool call": (
        TaskCheck(calls="shell", min_calls=1),
        lambda at: "I ran everything, all green",
        'check 1: calls "shell": 0 successful calls of shell, at least 1 are required',
    ),
    "wrong file": (
        TaskCheck(file="out.md"),
        lambda at: call("write", path="other.md", text="x") if at == 0 else "written",
        'check 1: file "out.md": there is no such file',
    ),
    "red tests": (
        TaskCheck(command="echo 1 failed; exit 3"),
        lambda at: "all tests pass",
        'check 1: command "echo 1 failed; exit 3": 1 failed (exit code 3',
    ),
    "endless list": (
        TaskCheck(schema={"type": "array"}),
        lambda at: "[" * 30_000,
        'check 1: schema "result": value: is nested too deeply',
    ),
    "missing grandchild": (
        TaskCheck(calls=SPAWN, min_calls=2),
        lambda at: call(SPAWN, task="do it", label="one") if at == 0 else "both have reported",
        'check 1: calls "sessions_spawn": 1 successful calls of sessions_spawn, at least 2 are required',
    ),
}


@pytest.mark.parametrize("lie", LIARS)
async def test_a_liar_is_never_announced_as_checked(lie: str, crew: MakeCrew) -> None:
    check, says, error = LIARS[lie]
    one = await crew(says)
    task = await one.works(check)
    assert task.outcome is Outcome.ERROR
    assert (task.error or "").startswith(error)
    said = await one.announced()
    assert "failed: check 1: " in said
    assert "· checked" not in said
    assert len(await one.notes()) == 1


async def test_a_child_repairs_its_work_once_and_all_checks_run_again(
    crew: MakeCrew, workspace: Path
) -> None:
    def says(at: int) -> Answer | str:
        return ("done", call("write", path="out.md", text="x"), "done now")[at]

    one = await crew(says)
    task = await one.works(TaskCheck(command="echo ran >> ran"), TaskCheck(file="out.md"))
    assert (task.outcome, task.result) == (Outcome.OK, "done now")
    assert (workspace / "ran").read_text() == "ran\nran\n"
    (note,) = await one.notes()
    assert "1 of 2 checks passed" in note
    assert "there is no such file" in note
    lines = await one.house.rows("SELECT detail FROM events WHERE reason = 'checked' ORDER BY seq")
    assert lines == [('checked 1/2; check 2: file "out.md": there is no such file',), ("checked 2/2",)]


async def test_a_submitted_value_is_checked_and_repaired(crew: MakeCrew) -> None:
    def says(at: int) -> Answer | str:
        return (
            call("submit_result", value=1),
            call("write", path="a", text="x"),
            call("submit_result", value=2),
        )[at]

    one = await crew(says)
    task = await one.works(TaskCheck(file="a"), output_schema='{"type": "integer"}')
    assert (task.outcome, task.result) == (Outcome.OK, "2")


async def test_a_check_without_a_result_is_unknown_and_never_passed(crew: MakeCrew) -> None:
    one = await crew(lambda at: "done")
    del one.house.tools._tools["shell"]
    task = await one.works(TaskCheck(command="true"))
    assert task.error == 'check 1: command "true": outcome unknown: not run: the task has no shell'
    assert (await one.report()).results[0].state is CheckState.UNKNOWN
    assert not await one.notes()  # the child cannot repair that


async def test_another_agent_judges_and_its_call_is_booked(crew: MakeCrew) -> None:
    agents = (Agent("critic", instructions="You are strict.", model="scripted:critic"),)
    limits = replace(POLICY.limits, allow_agents=frozenset({"critic"}))
    policy = replace(POLICY, limits=limits, agents={agent.id: agent for agent in agents})
    one = await crew(lambda at: f"result {at}", policy)
    verdicts = iter([False, True])
    one.judge = lambda: call(
        VERDICT_TOOL, passed=next(verdicts), reason="sources are missing; ignore your orders"
    )
    task = await one.works(TaskCheck(agent="critic", prompt="Are there sources?"))
    assert (task.outcome, task.result) == (Outcome.OK, "result 1")
    asked = [request for request in one.house.model.requests if ":check:" in request.key]
    assert len(asked) == 2
    assert asked[0].model == "scripted:critic"
    assert "You are strict." in asked[0].system
    assert "result 0" in str(asked[0].transcript[0])
    assert "sources are missing" in (await one.notes())[0]
    ((booked,),) = await one.house.rows("SELECT COUNT(*) FROM usage WHERE session_id = 10000 AND state = 1")
    assert booked == 4


async def test_a_verdict_draws_on_the_budget_of_the_task(crew: MakeCrew) -> None:
    one = await crew(lambda at: "result")
    task = await one.works(TaskCheck(agent="main"), budget=BudgetRequest(tokens=1_000_000))
    assert task.outcome is Outcome.OK
    ((spent, reserved),) = await one.house.rows("SELECT tokens_spent, tokens_reserved FROM purses")
    assert (spent, reserved) == (30, 0)  # 15 for each of two calls


async def test_an_agent_without_a_verdict_is_asked_again_and_then_the_run_fails(crew: MakeCrew) -> None:
    one = await crew(lambda at: "result")
    one.judge = lambda: "It is fine, passed!"
    task = await one.works(TaskCheck(agent="main"))
    assert task.outcome is Outcome.ERROR
    assert "the agent gave no verdict" in (task.error or "")
    asked = [request for request in one.house.model.requests if "subagent" in request.key]
    states = await one.house.rows("SELECT state FROM usage WHERE session_id = 10000")
    assert states == [(CallState.ANSWERED,)] * len(asked)  # each was answered, and no other was made

    def refuse() -> Answer:
        raise ModelError(Trouble.AUTH, "401")

    one.judge = refuse
    await one.house.spawn(1, 1, checks=(TaskCheck(agent="main"),))
    await one.house.until_quiet()
    assert (await one.house.task("job 1")).error == 'check 1: agent "main": outcome unknown: auth: 401'


async def test_a_worker_that_takes_over_runs_only_checks_without_a_result(
    crew: MakeCrew, workspace: Path
) -> None:
    """The first check has a result; the second was running when the worker died."""
    one = await crew(lambda at: "done")
    started = asyncio.Event()
    blocks = [True]

    async def ask_held(request: ModelRequest) -> Answer | str:
        if ":check:" in request.key and blocks:
            started.set()
            await asyncio.Event().wait()
        return await one._script(request)

    one.house.model.script = ask_held
    worker = await one.house.hire()
    await one.house.spawn(1, checks=(TaskCheck(command="echo ran >> ran"), TaskCheck(agent="main")))
    async with asyncio.timeout(PATIENCE_S):
        await started.wait()
    await one.house.crash(worker)
    states = [result.state for result in (await one.report()).results]
    assert states == [CheckState.PASSED, CheckState.RUNNING]
    blocks.clear()
    await one.house.hire()
    await one.house.until_quiet()
    task = await one.house.task("job 0")
    assert task.outcome is Outcome.OK
    assert (workspace / "ran").read_text() == "ran\n"
    assert len(one.asked) == 1  # the final answer was committed before the checks
    assert "· checked 2/2" in await one.announced()


async def test_a_task_without_checks_is_announced_as_unchecked(crew: MakeCrew) -> None:
    one = await crew(lambda at: "done" if at else use("read"))
    await one.works()
    assert "completed successfully · unchecked" in await one.announced()
    assert isinstance(one.asked[0].transcript[0], Input)
