"""The mistakes of a first hour: each is answered with the name of the argument and what to write instead."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clutch import (
    Agent,
    Clutch,
    InvalidInput,
    NotFound,
    Policy,
    Provider,
    Question,
    RuntimeJob,
    ToolSettings,
    Webhook,
)
from clutch.core.messages import Answer, Call, Usage
from clutch.ports import ModelRequest, OnDelta
from tests.patience import PATIENCE_S

#: As a newcomer who has no type checker sees them.
ANY_CLUTCH: Any = Clutch
ANY_PROVIDER: Any = Provider
ANY_TOOLSETTINGS: Any = ToolSettings
ANY_POLICY: Any = Policy


@pytest.mark.parametrize(
    ("make", "field", "rule"),
    [
        (lambda: ANY_CLUTCH(model=5), "model", "must be text or None, not 5"),
        (lambda: ANY_CLUTCH(state=5), "state", "must be a Path or text or None, not 5"),
        (lambda: ANY_CLUTCH(database=Path("x")), "database", "must be text or None"),
        (lambda: ANY_CLUTCH(policy={"limits": 5}), "policy", "must be a Policy(…) or None"),
        (lambda: ANY_CLUTCH(settings=True), "settings", "must be a ToolSettings(…) or None, not True"),
        (lambda: ANY_CLUTCH(serve="no"), "serve", "must be True or False, not 'no'"),
        (lambda: ANY_CLUTCH(models="gpt-5"), "models", 'a model is named by model="provider:model"'),
        (lambda: ANY_CLUTCH(tools=[print]), "tools", "functions are added by @c.tool"),
        (lambda: ANY_CLUTCH(providers="openai"), "providers", "must be a list of Provider(…), not 'openai'"),
        (lambda: ANY_CLUTCH(providers=["openai"]), "providers", "must be a list of Provider(…)"),
        (lambda: ANY_CLUTCH(agents=["main"]), "agents", "must be Agent(…), not str"),
        (lambda: ANY_CLUTCH(agents=[Agent("a"), Agent("a")]), "agents", "there are two agents 'a'"),
        (lambda: ANY_POLICY(limits={"children_max": 5}), "Policy.limits", "must be a Limits(…)"),
        (lambda: ANY_PROVIDER(5), "Provider.name", "must be text, not 5"),
        (lambda: ANY_PROVIDER("lab", adapter="direct"), "Provider.adapter", "AdapterKind.DIRECT"),
        (
            lambda: ANY_PROVIDER("lab", concurrency_max="8"),
            "Provider.concurrency_max",
            "must be a whole number or None",
        ),
        (lambda: ANY_PROVIDER("lab", api_key=b"hush-hush"), "Provider.api_key", "must be text, not a bytes"),
        (lambda: ANY_TOOLSETTINGS(sandbox="on"), "ToolSettings.sandbox", "Sandbox.ON"),
        (lambda: ANY_CLUTCH().runtime("x")(lambda job: "x"), "runtime '<lambda>'", "write `async def`"),
        (lambda: ANY_CLUTCH().runtime(print), "runtime", 'needs a name of at most 64: @c.runtime("crawler")'),
        (lambda: ANY_CLUTCH().runtime("subagent"), "runtime 'subagent'", "choose another"),
        (lambda: Webhook("ftp://example.org/hook"), "Webhook.url", "http:// or https://"),
        (lambda: Webhook("https:///hook"), "Webhook.url", "names a host"),
        (lambda: ANY_CLUTCH().tool("weather"), "tool", "@c.tool(name='weather')"),
    ],
)
def test_a_wrong_argument_is_named_with_what_it_must_be(
    make: Callable[[], Any], field: str, rule: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.field == field
    assert rule in caught.value.rule
    assert "hush" not in str(caught.value)


def test_two_runtimes_of_one_name_are_a_mistake(tmp_path: Path) -> None:
    c = Clutch(state=tmp_path)

    @c.runtime("crawler")
    async def crawl(job: RuntimeJob) -> str:
        return job.text

    with pytest.raises(InvalidInput, match="already one of this name"):
        c.runtime("crawler")


def test_a_tool_needs_no_parentheses(tmp_path: Path) -> None:
    c = Clutch(state=tmp_path)

    @c.tool
    def plain(city: str) -> str:
        """The weather."""
        return city

    @c.tool(name="other", read_only=True)
    def named(city: str) -> str:
        """The weather."""
        return city

    assert plain("Rome") == named("Rome") == "Rome"
    assert c._rooms is not None
    flags = {spec.name: spec.read_only for spec in c._rooms.tools.specs()}
    assert (flags["plain"], flags["other"]) == (False, True)


class Asks:
    """Whoever it is, it asks a person first."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        asked = any(isinstance(one, Answer) for one in request.transcript)
        call = Call("ask_human", {"question": "which?"})
        return Answer("done") if asked else Answer("", (call,), Usage(1, 1), "asks", "tools")


@pytest.mark.anyio
async def test_a_question_names_its_task_or_that_a_main_agent_asks(tmp_path: Path) -> None:
    async with Clutch(state=tmp_path / "state", models=Asks(), workspace=tmp_path, serve=False) as c:
        task = await c.spawn("look")
        await c.say("hello", session="agent:main:chat:people")
        async for event in c.events():
            if event.name == "question" and len(await c.inbox()) == 2:
                break
        named = {(one.task_id, (one.session_key or "").split(":")[2]) for one in await c.inbox()}
        assert named == {(task.id, "subagent"), (None, "chat")}
        for question in await c.inbox():
            await c.answer(question, "answer", "this one")
        assert (await task).is_ok


class Echo:
    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        return Answer("First this, then that.", model="echo")


async def first_questions(c: Clutch) -> list[Question]:
    for _ in itertools.count():
        if waiting := await c.inbox():
            return waiting
        await asyncio.sleep(0.02)
    raise AssertionError


@pytest.mark.anyio
async def test_a_plan_is_among_the_questions_and_is_decided_like_one(tmp_path: Path) -> None:
    async with Clutch(state=tmp_path / "state", models=Echo(), serve=False) as c:
        task = await c.spawn("Tidy up", plan_mode=True)
        async with asyncio.timeout(PATIENCE_S):
            (plan,) = await first_questions(c)
        assert (plan.kind, plan.task_id, plan.detail) == (
            "plan",
            task.id,
            {"plan": "First this, then that."},
        )
        with pytest.raises(InvalidInput, match="text: must not be blank"):
            await c.answer(plan, "reject")
        with pytest.raises(InvalidInput, match="approved or rejected"):
            await c.answer(plan, "answer", "hm")
        await c.answer(plan, "approve")
        assert (await task).is_ok


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["t_nope", "t_zzzzzzz"])
async def test_a_task_there_is_not_is_not_found(tmp_path: Path, name: str) -> None:
    async with Clutch(state=tmp_path / "state", serve=False) as c:
        with pytest.raises(NotFound, match=name):
            _ = await c.get(name)
        with pytest.raises(InvalidInput, match="must be a task id as printed"):
            _ = await c.get("nope")
