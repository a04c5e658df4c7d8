"""Results meet a requester that is busy, broken, interrupted or alone: the whole engine, with the clock set forward."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import replace
from types import MappingProxyType

import pytest

from clutch.core.messages import Answer, Input
from clutch.core.model import Delivery, Lane, Phase
from clutch.core.policy import Announcing, Limits, QueueMode, Work
from clutch.ports import ModelError, ModelRequest, Trouble
from clutch.transactions import control, inbox
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, ask_for, opening, step, use

pytestmark = pytest.mark.anyio


def is_child(request: ModelRequest) -> bool:
    return request.transcript[0] == Input(opening(request), "task")


@pytest.mark.scenario(207)
async def test_requester_that_is_busy_for_an_hour_burns_no_attempt(build: Build) -> None:
    may_end = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if is_child(request):
            return "the finding"
        if step(request) == 0:
            return ask_for("child")
        if step(request) == 1:
            await may_end.wait()
            return "I have asked somebody"
        return "it says: the finding"

    house = await build(script)
    await house.say("hello")
    await house.hire()
    await house.until_phase("child", Phase.ANNOUNCING)

    async def is_deferred() -> bool:
        rows = await house.rows("SELECT outcome, reason FROM deliveries")
        return rows == [("deferred", "requester-busy")]

    await house.until(is_deferred)
    for _ in range(6):
        house.clock.jump(600)
        waiting = await house.task("child")
        assert (waiting.phase, waiting.attempts, waiting.delivery) == (Phase.ANNOUNCING, 0, Delivery.DEFERRED)
        assert await house.rows("SELECT COUNT(*) FROM deliveries") == [(1,)]
    may_end.set()
    task = await house.until_phase("child", Phase.COMPLETED)
    _, attempt = await house.db.read(inbox.attempts, task.id)
    assert (attempt.attempt, attempt.outcome, attempt.path) == (1, "delivered", "queued")
    assert attempt.tried == (("direct-primary", "requester-busy"),)


async def test_interrupt_puts_a_turn_with_the_letters_in_the_place_of_the_running_one(build: Build) -> None:
    first_turn, tool_may_end = asyncio.Event(), asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if is_child(request):
            if "second" in opening(request):
                await first_turn.wait()
            return f"found: {opening(request)[:40]}"
        told = [entry.text for entry in request.transcript if isinstance(entry, Input)]
        if step(request) == 0:
            return ask_for("first", "second")
        if len(told) == 1:
            return "I have asked two"
        return use("slow") if len(told) == 2 else "both are here"

    async def slow() -> str:
        first_turn.set()
        await tool_may_end.wait()
        return "slept"

    rules = replace(POLICY.announcing, mode=QueueMode.INTERRUPT)
    house = await build(script, replace(POLICY, announcing=rules))
    house.tool("slow", slow)
    await house.say("hello")
    await house.hire()
    await house.until_phase("second", Phase.ANNOUNCING)
    tool_may_end.set()
    await house.until_quiet()
    reasons = await house.rows("SELECT stop_reason FROM runs WHERE session_id = ? ORDER BY id", house.main)
    assert [row[0] for row in reasons] == ["end", "interrupted", "end"]
    assert [(await house.task(label)).delivery for label in ("first", "second")] == [Delivery.DELIVERED] * 2
    assert await house.replies() == ["I have asked two", "both are here"]


#: No retry comes by itself while the test looks; the clock is set forward instead.
PATIENT = Announcing(debounce_s=30.0, first_s=60.0, fast_max_s=60.0, slow_first_s=60.0)
LATER_S = 400.0  # longer than a debounce with all its restarts, and than any wait between two tries


async def test_thousand_results_for_a_broken_requester_cost_few_calls_and_none_is_lost(build: Build) -> None:
    """Bounded tries of one model call each, memory as flat as it was, one line to the person."""
    count, is_broken = 1000, True

    async def script(request: ModelRequest) -> Answer | str:
        if is_child(request):
            return f"finding of {opening(request)[:20]}"
        if is_broken:
            raise ModelError(Trouble.AUTH, "no such key")
        return "told"

    lanes = MappingProxyType({Lane.MAIN: 4, Lane.SUBAGENT: count})
    house = await build(
        script,
        replace(
            POLICY,
            limits=Limits(children_max=count, descendants_max=count, retained_max=count, undelivered_max=0),
            announcing=PATIENT,
            work=Work(lanes=lanes, sessions_max=2 * count, tick_s=0.05),
        ),
    )
    await house.spawn(count)
    await house.hire()
    for ended in range(100, count + 1, 100):
        await until_tasks(house, ended, "outcome IS NOT NULL")
    tries, held_kb = 0, []
    while await tasks_where(house, "phase = 'announcing'"):
        house.clock.jump(LATER_S)
        tries += 1
        # A little sooner or later, as their waits are spread.
        await until_tasks(house, count, "attempts = ? OR delivery = 'undelivered'", tries)
        held_kb.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    asked = [request for request in house.model.requests if not is_child(request)]
    assert len(asked) == tries
    assert 5 < tries < 20
    assert len(house.model.requests) == count + tries
    assert held_kb[-1] - held_kb[2] < 20_000
    assert await tasks_where(house, "delivery = 'undelivered' AND delivery_reason = 'expiry'") == count
    assert len(await house.replies()) <= 3
    assert "background tasks have ended" in (await house.replies())[-1]
    is_broken = False
    await house.db.alone(control.redeliver, house.policy, 10_000, "person")
    await until_tasks(house, 1, "phase = 'announcing'")
    house.clock.jump(LATER_S)
    await until_tasks(house, 1, "delivery = 'delivered'")


async def tasks_where(house: House, condition: str, *parameters: int) -> int:
    ((found,),) = await house.rows(f"SELECT COUNT(*) FROM tasks WHERE {condition}", *parameters)  # noqa: S608
    return int(found)


async def until_tasks(house: House, count: int, condition: str, *parameters: int) -> None:
    async def are_there() -> bool:
        return await tasks_where(house, condition, *parameters) >= count

    await house.until(are_there)


async def test_result_of_a_failed_turn_is_answered_with_the_users_message_and_never_again(
    build: Build,
) -> None:
    """The key expired while a result came in; the user writes before the next try is due."""
    is_broken = True

    async def script(request: ModelRequest) -> Answer | str:
        if is_child(request):
            return "the finding"
        if step(request) == 0:
            return ask_for("child")
        if step(request) == 1:
            return "I have asked somebody"
        if is_broken:
            raise ModelError(Trouble.AUTH, "no such key")
        return "it says: the finding"

    house = await build(script, replace(POLICY, announcing=replace(PATIENT, debounce_s=0.01)))
    await house.say("hello")
    await house.hire()
    await until_tasks(house, 1, "attempts = 1")
    is_broken = False
    await house.say("and, what did it find?")
    task = await house.until_phase("child", Phase.COMPLETED)
    assert task.delivery is Delivery.DELIVERED
    house.clock.jump(LATER_S)
    await house.until_quiet()
    assert (await house.replies())[-1] == "it says: the finding"
    assert len(house.model.of("hello")) == 4
    assert not [one for one in house.model.requests if isinstance(one.transcript[-1], Answer)]


async def test_redelivered_result_is_read_where_it_stands(build: Build) -> None:
    is_broken = True

    async def script(request: ModelRequest) -> Answer | str:
        if is_child(request):
            return "the finding"
        if is_broken:
            raise ModelError(Trouble.AUTH, "no such key")
        return "told"

    rules = replace(PATIENT, debounce_s=0.01, fast_tries=1, slow=False)
    house = await build(script, replace(POLICY, announcing=rules))
    await house.spawn(1)
    await house.hire()
    await until_tasks(house, 1, "delivery = 'undelivered'")
    is_broken = False
    await house.db.alone(control.redeliver, house.policy, 10_000, "person")
    await until_tasks(house, 1, "delivery = 'delivered'")
    read = [
        str(one.text).count("the finding")
        for one in house.model.requests[-1].transcript
        if isinstance(one, Input)
    ]
    assert sum(read) == 1
