"""A run whose transcript outgrows the window goes on with a summary, also after a crash."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from clutch.core.compaction import ContextLimits, size
from clutch.core.messages import Answer, Call, Input, Results, Summary, Usage
from clutch.core.model import Outcome
from clutch.core.policy import Budgets, OnBudget
from clutch.core.text import prompts
from clutch.ports import ModelError, ModelRequest, Trouble
from clutch.transactions import usage
from clutch.transactions.read import transcripts
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, ask_for, step

pytestmark = pytest.mark.anyio

SMALL = replace(POLICY, context=ContextLimits(window_tokens=3000, keep_tokens=400))


def is_aside(request: ModelRequest) -> bool:
    return request.system == prompts.SUMMARISING


def is_child(request: ModelRequest) -> bool:
    return "You are a subagent" in request.system


def reads(number: int) -> Answer:
    """Another call each time, of a provider that counts no input: then bytes are what is known."""
    return Answer("", (Call("read", {"n": number}),), Usage(0, 5), "scripted", "tools")


async def page() -> str:
    return "y" * 1000


async def stored(house: House, label: str) -> list[object]:
    (row,) = await house.rows("SELECT id FROM tasks WHERE label = ?", label)
    return list(await house.db.read(transcripts.transcript, row[0]))


class Reader:
    """A child that reads page after page. `is_held`: its first summary is asked for and never comes."""

    def __init__(self, pages: int, *, is_held: bool = False) -> None:
        self.pages, self.asked, self.held = pages, 0, asyncio.Event()
        if not is_held:
            self.held.set()

    async def __call__(self, request: ModelRequest) -> Answer | str:
        if is_aside(request):
            if not self.held.is_set():
                self.held.set()
                await asyncio.Event().wait()
            return "GOAL: notes"
        if not is_child(request):
            return ask_for("long") if not step(request) else "thanks"
        self.asked += 1
        return reads(self.asked) if self.asked <= self.pages else "SUMMARY: done"


async def test_a_long_run_is_compacted_and_never_sends_more_than_the_window(build: Build) -> None:
    house = await build(Reader(40), SMALL)
    house.tool("read", page)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("long")
    assert task.outcome is Outcome.OK
    asides = [request for request in house.model.requests if is_aside(request)]
    assert 2 < len(asides) < 20
    for request in house.model.requests:
        assert size(request.transcript) // 4 < 3000
        if is_child(request) and not is_aside(request):
            first = request.transcript[0]
            assert isinstance(first, Input)
            assert "do long" in first.text
    kept = await stored(house, "long")
    assert sum(isinstance(entry, Summary) for entry in kept) == len(asides)
    assert sum(isinstance(entry, Results) for entry in kept) == 40


async def test_a_provider_that_says_too_long_gets_a_shorter_one(build: Build) -> None:
    reader = Reader(20)

    async def script(request: ModelRequest) -> Answer | str:
        if is_child(request) and size(request.transcript) > 9000:
            raise ModelError(Trouble.CONTEXT, "too long")
        return await reader(request)

    house = await build(script)
    house.tool("read", page)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    assert (await house.task("long")).outcome is Outcome.OK


async def test_what_cannot_be_shortened_fails_and_says_why(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if not is_child(request):
            return ask_for("long") if not step(request) else "thanks"
        raise ModelError(Trouble.CONTEXT, "too long")

    house = await build(script)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("long")
    assert (task.outcome, task.error) == (Outcome.ERROR, "context too long: too long")


async def test_a_crash_while_summarising_loses_only_the_summary(build: Build) -> None:
    script = Reader(15, is_held=True)
    house = await build(script, SMALL)
    house.tool("read", page)
    first = await house.hire()
    await house.say("go")
    await script.held.wait()
    await house.crash(first)
    await house.hire()
    await house.until_quiet()
    assert (await house.task("long")).outcome is Outcome.OK
    assert script.asked == 16
    kept = await stored(house, "long")
    assert sum(isinstance(entry, Results) for entry in kept) == 15


@pytest.mark.parametrize("budgets", [Budgets(), Budgets(root_tokens=10_000_000, day_tokens=10_000_000)])
async def test_every_summary_is_in_the_ledger_also_one_that_a_crash_cut(
    build: Build, budgets: Budgets
) -> None:
    script = Reader(30, is_held=True)
    policy = replace(SMALL, budgets=budgets)
    house = await build(script, policy)
    if budgets.has_root:
        await house.db.alone(usage.give_root, policy, house.main)
    house.tool("read", page)
    first = await house.hire()
    await house.say("go")
    await script.held.wait()
    await house.crash(first)
    await house.hire()
    await house.until_quiet()
    task = await house.task("long")
    assert task.outcome is Outcome.OK
    booked = await house.rows("SELECT state FROM usage WHERE session_id = ? ORDER BY call_no", task.id)
    mine = [one for one in house.model.requests if is_child(one) or is_aside(one)]
    assert sum(is_aside(one) for one in mine) > 2
    assert len(booked) == len(mine)
    assert [row[0] for row in booked].count(2) == 1
    assert await house.rows("SELECT name FROM purses WHERE tokens_reserved <> 0") == []


async def test_budget_that_ends_while_summarising_ends_the_run(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if is_aside(request):
            return Answer("GOAL: notes", (), Usage(50_000, 0), "scripted")
        if not is_child(request):
            return ask_for("long") if not step(request) else "thanks"
        return reads(len(house.model.requests))

    policy = replace(SMALL, budgets=Budgets(root_tokens=50_000, on_budget=OnBudget.END))
    house = await build(script, policy)
    await house.db.alone(usage.give_root, policy, house.main)
    house.tool("read", page)
    await house.hire()
    await house.say("go")

    async def is_over() -> bool:
        return bool(await house.rows("SELECT id FROM tasks WHERE outcome IS NOT NULL"))

    await house.until(is_over)
    task = await house.task("long")
    assert (task.outcome, (task.error or "")[:7]) == (Outcome.ERROR, "budget:")
    assert sum(is_aside(one) for one in house.model.requests) == 1
    assert await house.rows("SELECT name FROM purses WHERE tokens_reserved <> 0") == []
