"""Children that are not our own loop: what a runtime must keep, and that the kit notices who does not."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from clutch.core.messages import Answer, Call, Usage
from clutch.core.model import Outcome, Phase
from clutch.core.policy import Budgets, OnBudget
from clutch.engine.services import NoPrices
from clutch.ports import ModelRequest, Runtime, RuntimeJob
from clutch.runtimes.function import FunctionRuntime
from clutch.testing import runtimes
from clutch.testing.runtimes import CHECKS, Check, NotConforming, obey
from clutch.transactions import control, usage
from clutch.transactions.read import tasks
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, opening, step

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_plain_function_conforms(check: Check) -> None:
    await check(lambda: FunctionRuntime(obey))


# ---- the kit itself: each of these breaks one promise ------------------------------------------------------


async def wordless(job: RuntimeJob) -> str:
    await obey(job)
    return ""


async def mute(job: RuntimeJob) -> str:
    return await obey(replace(job, say=lambda text: None))


async def never_fails(job: RuntimeJob) -> str:
    try:
        return await obey(job)
    except runtimes.ToldToFail:
        return "all is well"


async def stubborn(job: RuntimeJob) -> str:
    """Takes no notice of being cancelled, for longer than anybody waits."""
    working = asyncio.ensure_future(obey(job))
    ends_at = asyncio.get_running_loop().time() + 3 * runtimes.PROMPT_S
    while not working.done() and asyncio.get_running_loop().time() < ends_at:
        try:
            await asyncio.wait([working], timeout=0.05)
        except asyncio.CancelledError:
            continue
    working.cancel()
    return "at last"


async def deaf(job: RuntimeJob) -> str:
    """Hears what it was told first, and nothing after."""
    first = job.transcript[0]
    return await obey(replace(job, text=getattr(first, "text", "")))


@pytest.mark.parametrize(
    ("function", "check"),
    [
        (wordless, runtimes.returns_its_last_words),
        (mute, runtimes.streams_what_it_says),
        (never_fails, runtimes.reports_its_error_after_the_grace),
        (stubborn, runtimes.ends_promptly_when_killed),
        (deaf, runtimes.goes_on_with_what_it_said_before),
    ],
)
async def test_kit_notices_a_runtime_that_breaks_a_promise(
    function: Any, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "PROMPT_S", 0.3)
    with pytest.raises(NotConforming):
        await check(lambda: FunctionRuntime(function))


# ---- in a house --------------------------------------------------------------------------------------------


async def house_with(
    build: Build, runtime: Runtime, policy: Any = POLICY, heard: str = "heard", **asked: Any
) -> House:
    async def script(request: ModelRequest) -> Answer | str:
        assert opening(request) == "go", "the child is not a model"
        sent = {"task": "do child", "label": "child", "runtime": "mine", **asked}
        call = Answer("", (Call("sessions_spawn", sent),), Usage(1, 1), "scripted", "tools")
        return (call, "sent", heard)[min(2, step(request))]

    house = await build(script, policy)
    house.more["runtimes"] = {"mine": runtime}
    return house


async def at_work(house: House) -> None:
    await house.hire()
    await house.say("go")
    await house.until_quiet()


async def test_result_of_a_function_is_announced_like_any_other(build: Build) -> None:
    async def count(job: RuntimeJob) -> dict[str, int]:
        return {"found": 3}

    house = await house_with(build, FunctionRuntime(count))
    await at_work(house)
    task = await house.task("child")
    assert (task.outcome, task.result) == (Outcome.OK, '{"found": 3}')
    assert "found" in (await house.inputs(house.main))[-1]
    rows = await house.rows("SELECT state, effective, input, usd FROM usage WHERE session_id = ?", task.id)
    assert rows == [(1, "runtime:count", 0, None)]


async def test_error_of_a_function_is_told_in_its_own_words(build: Build) -> None:
    async def breaks(job: RuntimeJob) -> str:
        raise LookupError("no such \ud83d\ude00\0city")

    house = await house_with(build, FunctionRuntime(breaks))
    await at_work(house)
    task = await house.task("child")
    assert (task.outcome, task.error) == (Outcome.ERROR, "LookupError: no such \U0001f600\ufffdcity")


@pytest.mark.parametrize(
    ("said", "outcome", "error"),
    [
        ({"count": 3}, Outcome.OK, None),
        ({"count": "three"}, Outcome.ERROR, "schema: count: 'three' is not of type 'integer'"),
        ("three", Outcome.ERROR, "schema: value: is not JSON"),
        ('{"count": 1, "size": 1e999}', Outcome.ERROR, "schema: value: is not JSON"),
    ],
)
async def test_result_of_a_function_must_have_the_form_that_was_asked_for(
    build: Build, said: Any, outcome: Outcome, error: str | None
) -> None:
    async def count(job: RuntimeJob) -> Any:
        return said

    schema = {"type": "object", "properties": {"count": {"type": "integer"}}}
    house = await house_with(build, FunctionRuntime(count), outputSchema=schema)
    await at_work(house)
    task = await house.task("child")
    assert task.outcome is outcome
    assert (task.error or "").startswith(error or "")
    rows = await house.rows("SELECT value FROM tasks")
    assert rows == [(json.dumps(said) if error is None else None,)]


@pytest.mark.parametrize(
    ("asked", "may_change"), [({}, True), ({"tools": ["look"]}, False), ({"planMode": True}, False)]
)
async def test_runtime_is_told_whether_its_session_may_change_anything(
    build: Build, asked: dict[str, Any], may_change: bool
) -> None:
    told: list[bool] = []

    async def works(job: RuntimeJob) -> str:
        told.append(job.may_change)
        return "done"

    async def look() -> str:
        return "nothing"

    house = await house_with(build, FunctionRuntime(works), **asked)
    house.tool("look", look)
    await house.hire()
    await house.say("go")
    await house.until_phase("child", Phase.COMPLETED, Phase.AWAITING_APPROVAL)
    assert told == [may_change]


async def test_words_that_no_store_takes_are_mended_whoever_says_them(build: Build) -> None:
    """A stream may cut a character in two; a half alone, or a NUL, must not cost a turn and what it was told."""

    async def works(job: RuntimeJob) -> str:
        call = Call("look", {"at": "\ud83d\ude00"})
        job.begin(call)
        job.end(call, "seen \ud83d\ude00", False)
        return "cut \ud83d\ude00 and \ud800"

    house = await house_with(build, FunctionRuntime(works), heard="all \ud83d\ude00 of \0 it")
    await at_work(house)
    assert (await house.task("child")).result == "cut \U0001f600 and \ufffd"
    assert (await house.replies())[-1] == "all \U0001f600 of \ufffd it"


async def test_words_on_the_way_are_signs_of_life(build: Build) -> None:
    is_seen = asyncio.Event()

    async def works(job: RuntimeJob) -> str:
        while not is_seen.is_set():
            job.say("still here ")
            await asyncio.sleep(0.01)
        return "done"

    quick = replace(POLICY, work=replace(POLICY.work, tick_s=0.05))
    house = await house_with(build, FunctionRuntime(works), quick)
    await house.hire()
    await house.say("go")
    child = await house.until_phase("child", Phase.RUNNING)
    look = ("SELECT head, progress_at FROM sessions WHERE id = ?", child.id)
    ((head, began),) = await house.rows(*look)

    async def has_moved() -> bool:
        ((same, moved),) = await house.rows(*look)
        return bool(same == head and moved > began)

    await house.until(has_moved)
    is_seen.set()
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.OK


async def test_the_call_that_foreign_code_makes_is_shown_as_our_own_are(build: Build) -> None:
    look, read, stay = (
        Call("look", {"path": "a.py"}, "1"),
        Call("read", {"path": "b.py"}, "2"),
        asyncio.Event(),
    )
    is_seen = asyncio.Event()

    async def works(job: RuntimeJob) -> str:
        job.begin(look)
        job.begin(read)
        await is_seen.wait()
        job.end(look, "seen", False)
        await stay.wait()
        job.end(read, "read", False)
        return "done"

    quick = replace(POLICY, work=replace(POLICY.work, tick_s=0.05))
    house = await house_with(build, FunctionRuntime(works), quick)
    await house.hire()
    await house.say("go")
    child = await house.until_phase("child", Phase.RUNNING)

    async def shown() -> str | None:
        view = await house.db.read(tasks.one, child.id)
        tool = None if view is None else view.current_tool
        return None if tool is None else f"{tool.name} {tool.arg}"

    async def shows_the_first() -> bool:
        return await shown() == "look a.py"

    async def shows_the_other() -> bool:
        return await shown() == "read b.py"

    await house.until(shows_the_first)
    is_seen.set()
    await house.until(shows_the_other)
    stay.set()
    await house.until_quiet()
    assert await shown() is None


class Prices(NoPrices):
    def cost(self, model: str, usage: Usage) -> Decimal | None:
        return Decimal(usage.input + usage.output) / 1000


async def test_what_a_runtime_says_it_used_is_taken_from_the_budget(build: Build) -> None:
    async def works(job: RuntimeJob) -> Answer:
        return Answer("done", (), Usage(300, 50), "theirs")

    policy = replace(POLICY, budgets=Budgets(root_tokens=1000))
    house = await house_with(build, FunctionRuntime(works), policy)
    house.more["prices"] = Prices()
    await house.db.alone(usage.give_root, policy, house.main)
    await at_work(house)
    task = await house.task("child")
    rows = await house.rows("SELECT state, input, output, usd FROM usage WHERE session_id = ?", task.id)
    assert rows == [(1, 300, 50, "0.35")]
    assert await house.rows("SELECT tokens_spent, tokens_reserved FROM purses") == [(350 + 2 + 15 + 15, 0)]


class OnlyTheirs(NoPrices):
    def cost(self, model: str, usage: Usage) -> Decimal | None:
        return Decimal(usage.input + usage.output) / 1000 if model == "lab:theirs" else None


async def with_dollars(
    build: Build, says: Answer, policy: Any = POLICY, **asked: Any
) -> tuple[House, list[str]]:
    begun: list[str] = []

    async def works(job: RuntimeJob) -> Answer:
        begun.append(job.key)
        return says

    house = await house_with(build, FunctionRuntime(works), policy, budget={"usd": "5"}, **asked)
    house.more["prices"] = OnlyTheirs()
    await at_work(house)
    return house, begun


async def test_dollar_budget_refuses_a_runtime_whose_price_nobody_knows(build: Build) -> None:
    house, begun = await with_dollars(build, Answer("done", (), Usage(300, 50), "theirs"))
    task = await house.task("child")
    assert (task.outcome, begun) == (Outcome.ERROR, [])
    assert "give the budget in tokens" in (task.error or "")


async def test_runtime_is_not_priced_by_the_model_its_parent_uses(build: Build) -> None:
    priced = replace(POLICY, defaults=replace(POLICY.defaults, model="lab:theirs"))
    house, begun = await with_dollars(build, Answer("done", (), Usage(300, 50), "theirs"), priced)
    task = await house.task("child")
    assert (task.outcome, begun) == (Outcome.ERROR, [])


@pytest.mark.parametrize(
    ("says", "usd", "spent", "unpriced"),
    [
        (Answer("done", (), Usage(300, 50), "theirs"), "0.35", Decimal("0.35"), 0),
        (Answer("done"), None, Decimal(0), 1),
    ],
    ids=["counted", "not counted"],
)
async def test_dollars_of_a_runtime_are_what_its_model_costs_and_never_zero_when_it_counts_nothing(
    build: Build, says: Answer, usd: str | None, spent: Decimal, unpriced: int
) -> None:
    house, begun = await with_dollars(build, says, model="lab:theirs")
    task = await house.task("child")
    assert (task.outcome, len(begun)) == (Outcome.OK, 1)
    rows = await house.rows("SELECT model, usd FROM usage WHERE session_id = ?", task.id)
    assert rows == [("lab:theirs", usd)]
    ((stored, count),) = await house.rows("SELECT usd_spent, unpriced_calls FROM purses")
    assert (Decimal(stored), count) == (spent, unpriced)


async def test_runtime_is_not_started_without_anything_left(build: Build) -> None:
    begun: list[str] = []

    async def works(job: RuntimeJob) -> Answer:
        begun.append(job.key)
        return Answer("done", (), Usage(300, 50), "theirs")

    policy = replace(POLICY, budgets=Budgets(on_budget=OnBudget.END))
    house = await house_with(build, FunctionRuntime(works), policy, budget={"tokens": 100})
    await at_work(house)
    task = await house.task("child")
    assert (task.outcome, len(begun)) == (Outcome.OK, 1)
    await house.db.alone(
        control.again,
        policy,
        task.id,
        "continue",
        "again:1",
        text="more",
        actor="person",
    )
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, (task.error or "")[:7], len(begun)) == (Outcome.ERROR, "budget:", 1)
