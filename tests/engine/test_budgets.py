"""Budgets in a house at work: calls stop, people are asked, and the ledger says what the model was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from clutch.core.agents import AgentDefaults
from clutch.core.ids import task_id
from clutch.core.messages import Answer, Call, Usage
from clutch.core.model import Outcome, Reason
from clutch.core.policy import Budgets, OnBudget, Policy
from clutch.core.questions import Decision, QuestionKind
from clutch.core.text import prompts
from clutch.engine.services import NoPrices
from clutch.ports import ModelError, ModelRequest, Trouble
from clutch.store.transaction import Keys, ManyRows, Tx
from clutch.testing.database import PassThroughDatabase
from clutch.transactions import control, messages, usage
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, opening, step, use
from tests.open_questions import PendingQuestion, waiting
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

SENT, OUTPUT = 100, 50  # tokens that every request and its answer take


class Prices(NoPrices):
    """A thousandth of a dollar for each token, if it is known at all."""

    def __init__(self, *, known: bool = True) -> None:
        self.known = known

    def cost(self, model: str, usage: Usage) -> Decimal | None:
        return Decimal(usage.input + usage.output) / 1000 if self.known else None

    def tokens(self, request: ModelRequest) -> int:
        return SENT


class WatchedDatabase(PassThroughDatabase):
    """Nobody may change a purse without saying so: on PostgreSQL two such transactions would share a batch."""

    async def tx(self, keys: Keys, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        held = {keys} if isinstance(keys, int) else set(keys)

        def watched(now: float) -> Tx[Any]:
            running, sent = fn(now, *args, **kwargs), None
            while True:
                try:
                    statement = next(running) if sent is None else running.send(sent)
                except StopIteration as stop:
                    return stop.value
                self._look(statement, held, fn.__name__)
                sent = yield statement

        return await self._db.tx(keys, watched)

    def _look(self, statement: Any, held: set[int], name: str) -> None:
        sql, parameters = statement
        if sql is not None and sql.startswith("UPDATE purses"):
            rows: Sequence[Any] = parameters if isinstance(parameters, ManyRows) else [parameters]
            wanted = {key_of(row[-1]) for row in rows}
            assert wanted <= held, f"{name} changes {wanted} and holds {held}"


def key_of(purse: str) -> int:
    (key,) = usage.keys(Policy(), purse) if not purse.startswith("day") else usage.keys(BY_DAY, "")
    return key


BY_DAY = Policy(budgets=Budgets(day_tokens=1))


def with_budget(on_budget: OnBudget = OnBudget.END, policy: Policy = POLICY, **limits: Any) -> Policy:
    return replace(policy, budgets=Budgets(on_budget=on_budget, output_tokens=OUTPUT, **limits))


async def budgeted(build: Build, script: Any, policy: Policy, *, known: bool = True) -> House:
    house = await build(script, policy)
    house.more["prices"] = Prices(known=known)
    if policy.budgets.has_root:
        await house.db.alone(usage.give_root, policy, house.main)
    return house


async def hire(house: House) -> Any:
    return await house.hire(WatchedDatabase(house.db))


def spawns(*labels: str, **more: Any) -> Answer:
    wanted = tuple(
        Call("sessions_spawn", {"task": f"do {label}", "label": label, **more}) for label in labels
    )
    return Answer("", wanted, Usage(SENT, OUTPUT), "scripted", "tools")


def works(number: int) -> Answer:
    """Another call each time: the loop guard has its own tests."""
    return Answer(f"words {number}", (Call("read", {"n": number}),), Usage(SENT, OUTPUT), "scripted", "tools")


def words(text: str) -> Answer:
    return Answer(text, (), Usage(SENT, OUTPUT), "scripted")


async def ok() -> str:
    return "ok"


async def purse(house: House, name: str) -> tuple[int, int, int | None]:
    ((spent, reserved, limit),) = await house.rows(
        "SELECT tokens_spent, tokens_reserved, tokens_max FROM purses WHERE name = ?", name
    )
    return spent, reserved, limit


async def asked(house: House, count: int = 1) -> list[PendingQuestion]:
    async def is_asked() -> bool:
        return len(await house.db.read(waiting)) >= count

    await house.until(is_asked)
    return await house.db.read(waiting)


async def answer(house: House, question: PendingQuestion, decision: Decision, text: str = "") -> None:
    known = (house.policy, question.id, decision, text)
    await house.db.alone(messages.answer, *known, seen_hash=question.hash, actor="person")


async def counted(house: House) -> int:
    """Calls in the ledger that were sent."""
    ((count,),) = await house.rows("SELECT COUNT(*) FROM usage")
    return int(count)


async def endless(request: ModelRequest) -> Answer:
    if opening(request) == "go":
        return (spawns("child", budget={"tokens": 1000}), words("sent"), words("heard"))[step(request)]
    return works(step(request))


# ---- at the limit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_call_that_may_use_up_the_budget_answers_with_what_there_is(
    build: Build, is_stubborn: bool
) -> None:
    """And whoever does not answer even then has ended all the same, with what it said."""

    async def script(request: ModelRequest) -> Answer:
        if opening(request) != "go" and not request.tools and not is_stubborn:
            return words("all I found")
        return await endless(request)

    house = await budgeted(build, script, with_budget(OnBudget.WRAP_UP))
    house.tool("read", ok)
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    if is_stubborn:
        assert (task.outcome, task.result, (task.error or "")[:7]) == (Outcome.ERROR, "words 6", "budget:")
    else:
        assert (task.outcome, task.result) == (Outcome.OK, "all I found")
    asked = house.model.of("do child")
    assert [bool(request.tools) for request in asked] == [True] * 6 + [False]
    assert [request.system.endswith(prompts.BUDGET_WRAP_UP) for request in asked] == [False] * 6 + [True]
    assert await purse(house, f"task:{task.id}") == (1050, 0, 1000)


async def test_calls_stop_at_the_limit_and_the_partial_result_is_told(build: Build) -> None:
    house = await budgeted(build, endless, with_budget(OnBudget.END))
    house.tool("read", ok)
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.result) == (Outcome.ERROR, "words 6")
    assert task.error == f"budget: the budget of {task_id(task.id)} is used up: 1050 of 1000 tokens"
    assert len(house.model.of("do child")) == 7
    assert await purse(house, f"task:{task.id}") == (1050, 0, 1000)


async def test_warning_at_eighty_percent_is_injected_once(build: Build) -> None:
    house = await budgeted(build, endless, with_budget())
    house.tool("read", ok)
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    notes = [text for text in await house.inputs(task.id) if text.startswith("[Budget]")]
    assert len(notes) == 1
    assert "90 %" in notes[0]
    warned = house.model.of("do child")[-1].transcript
    assert notes[0] in [getattr(message, "text", "") for message in warned]


async def test_warning_that_comes_with_the_last_words_starts_no_turn(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer:
        return words("done")

    house = await budgeted(build, script, with_budget(root_tokens=160))
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    assert await house.replies() == ["done"]
    assert len(house.model.requests) == 1


async def test_children_on_one_purse_overspend_by_less_than_the_last_call_reserved(build: Build) -> None:
    """Five at once on what is left for two and a half."""
    labels = [f"k{number}" for number in range(5)]
    held = asyncio.Event()

    async def script(request: ModelRequest) -> Answer:
        if opening(request) == "go":
            sent = spawns(*labels)
            return replace(sent, calls=(*sent.calls, Call("sessions_yield", {})))
        await held.wait()
        return words("found")

    limit = 150 + 375
    house = await budgeted(build, script, with_budget(root_tokens=limit))
    await hire(house)
    await house.say("go")

    async def is_stuck() -> bool:
        waiting = await house.rows("SELECT COUNT(*) FROM tasks WHERE phase = 'paused' AND reason = 'budget'")
        return (len(house.model.of("do k")), waiting) == (3, [(2,)])

    await house.until(is_stuck)
    assert await purse(house, "root:1") == (150, 3 * 150, limit)
    held.set()

    async def are_over() -> bool:
        return all([(await house.task(label)).outcome for label in labels])

    await house.until(are_over)
    outcomes = [(await house.task(label)).outcome for label in labels]
    assert (outcomes.count(Outcome.OK), outcomes.count(Outcome.ERROR)) == (3, 2)
    assert await purse(house, "root:1") == (4 * 150, 0, limit)
    assert await counted(house) == len(house.model.requests) == 4


async def test_the_day_is_one_purse_for_every_root(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer:
        return words("done")

    house = await budgeted(build, script, with_budget(day_tokens=200))
    await hire(house)
    for text in ("one", "two", "three"):
        await house.say(text)
        await house.until_quiet()
    *before, last = await house.replies()
    assert before == ["done", "done"]
    assert last.startswith("(this turn failed: budget: the budget of 20")
    house.clock.jump(86_400)
    await house.say("tomorrow")
    await house.until_quiet()
    assert (await house.replies())[-1] == "done"


# ---- people ------------------------------------------------------------------------------------------------


async def test_person_who_gives_more_lets_the_run_go_on_by_itself(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer:
        if opening(request) == "go":
            return (spawns("child", budget={"tokens": 100}), words("sent"), words("heard"))[step(request)]
        return works(step(request)) if step(request) < 3 else words("done")

    house = await budgeted(build, script, with_budget(OnBudget.ASK))
    house.tool("read", ok)
    await hire(house)
    await house.say("go")
    for _ in range(2):  # it spends 150 with each call; the limit is 100, then 250, then 550
        (question,) = await asked(house)
        assert question.kind is QuestionKind.BUDGET
        assert (await house.task("child")).reason == Reason.NEEDS_YOU
        await answer(house, question, Decision.APPROVE)
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.result) == (Outcome.OK, "done")
    assert (await purse(house, f"task:{task.id}"))[:2] == (600, 0)
    assert await counted(house) == len(house.model.requests)


async def test_person_who_says_no_ends_the_run_with_what_it_has(build: Build) -> None:
    house = await budgeted(build, endless, with_budget(OnBudget.ASK))
    house.tool("read", ok)
    await hire(house)
    await house.say("go")
    (question,) = await asked(house)
    await answer(house, question, Decision.REJECT, "enough")
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.result) == (Outcome.ERROR, "words 6")
    assert len(house.model.of("do child")) == 7


async def test_one_yes_is_for_everybody_who_waits_for_the_same_purse(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer:
        if opening(request) == "go":
            return (spawns("a", "b", "c"), words("sent"), words("heard"), words("heard"), words("heard"))[
                step(request)
            ]
        return works(step(request)) if step(request) < 1 else words("done")

    house = await budgeted(build, script, with_budget(OnBudget.ASK, root_tokens=700))
    house.tool("read", ok)
    await hire(house)
    await house.say("go")
    first = (await asked(house, 3))[0]
    await answer(house, first, Decision.APPROVE)
    await house.until_quiet()
    assert await house.db.read(waiting) == []
    assert [(await house.task(label)).outcome for label in "abc"] == [Outcome.OK] * 3
    assert (await purse(house, "root:1"))[2] == 750 + 700


async def test_without_anybody_to_ask_it_ends(build: Build) -> None:
    house = await budgeted(build, endless, with_budget(OnBudget.ASK, replace(POLICY, is_headless=True)))
    house.tool("read", ok)
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.ERROR
    assert await house.rows("SELECT id FROM questions") == []


# ---- prices ------------------------------------------------------------------------------------------------


async def test_price_that_nobody_knows_is_null(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer:
        return words("done")

    for known, usd in ((False, None), (True, "0.15")):
        house = await budgeted(build, script, POLICY, known=known)
        await hire(house)
        await house.say("go")
        await house.until_quiet()
        assert await house.rows("SELECT input, output, usd FROM usage") == [(SENT, OUTPUT, usd)]


async def test_dollar_budget_refuses_a_model_without_a_price_and_asks_nobody(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer:
        if opening(request) == "go":
            return (spawns("child", budget={"usd": "0.5"}), words("sent"), words("heard"))[step(request)]
        return words("done")

    house = await budgeted(build, script, with_budget(OnBudget.ASK), known=False)
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert task.outcome is Outcome.ERROR
    assert "the price of this model is not known" in (task.error or "")
    assert house.model.of("do child") == []


# ---- the ledger --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 1_000_000], ids=["without a budget", "with one"])
async def test_ledger_names_the_model_that_was_requested_also_when_it_is_the_default(
    build: Build, limit: int | None
) -> None:
    async def script(request: ModelRequest) -> Answer:
        if opening(request) != "go":
            return words("done")
        return (spawns("plain"), spawns("special", model="lab:big"), words("heard"))[min(2, step(request))]

    policy = replace(POLICY, defaults=AgentDefaults(model="lab:small"), budgets=Budgets(root_tokens=limit))
    house = await budgeted(build, script, policy, known=True)
    if limit is not None:
        await house.db.alone(usage.give_root, policy, house.main)
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    rows = await house.rows(
        "SELECT DISTINCT t.label, u.model FROM usage u LEFT JOIN tasks t ON t.id = u.session_id"
        " ORDER BY t.label IS NULL, t.label"
    )
    assert rows == [("plain", "lab:small"), ("special", "lab:big"), (None, "lab:small")]


@pytest.mark.parametrize("limits", [{}, {"root_tokens": 10_000}, {"day_tokens": 10_000}])
async def test_ledger_counts_what_the_model_counts_after_a_crash(
    build: Build, limits: dict[str, Any]
) -> None:
    begun, held = asyncio.Event(), asyncio.Event()

    async def script(request: ModelRequest) -> Answer:
        if opening(request) == "go":
            return (spawns("child"), use("sessions_yield"), words("heard"))[step(request)]
        if step(request) == 1 and not held.is_set():
            begun.set()
            await asyncio.Event().wait()
        return works(step(request)) if step(request) < 3 else words("done")

    house = await budgeted(build, script, with_budget(**limits))
    house.tool("read", ok)
    first = await hire(house)
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
    await house.crash(first)
    held.set()
    await hire(house)
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.OK
    assert await counted(house) == len(house.model.requests) == 8
    assert await house.rows("SELECT COUNT(*) FROM usage WHERE state = 2") == [(1,)]
    assert await house.rows("SELECT name FROM purses WHERE tokens_reserved <> 0") == []


@pytest.mark.parametrize("limits", [{}, {"root_tokens": 10_000}])
async def test_ledger_counts_what_the_model_counts_after_a_kill(build: Build, limits: dict[str, Any]) -> None:
    held = asyncio.Event()

    async def script(request: ModelRequest) -> Answer:
        if opening(request) == "go":
            return (spawns("child"), words("sent"))[step(request)]
        await held.wait()
        return words("late")

    house = await budgeted(build, script, with_budget(**limits))
    await hire(house)
    await house.say("go")
    await house.until_asked("do child")
    task = await house.task("child")
    await house.db.alone(control.kill, house.policy, task.id, "test", "person")
    await house.until_quiet()
    assert len(house.model.cancelled) == 1
    assert await counted(house) == len(house.model.requests) == 3
    if limits:
        assert await purse(house, "root:1") == (450, 0, 10_000)


async def test_children_that_time_out_together_leave_nothing_reserved(build: Build) -> None:
    labels = [f"k{number}" for number in range(5)]

    async def script(request: ModelRequest) -> Answer:
        if opening(request) == "go":
            answers = (spawns(*labels, runTimeoutSeconds=50), use("sessions_yield"), words("all"))
            return answers[step(request)]
        await asyncio.Event().wait()
        return words("never")

    policy = with_budget(policy=replace(POLICY, work=replace(POLICY.work, tick_s=0.02)), root_tokens=10_000)
    house = await budgeted(build, script, policy)
    await hire(house)
    await house.say("go")
    await house.until_asked("do k", 5)
    house.clock.jump(60)
    await house.until_quiet()
    assert [(await house.task(label)).outcome for label in labels] == [Outcome.TIMEOUT] * 5
    assert await purse(house, "root:1") == (15 + 2 * 150 + 5 * 150, 0, 10_000)


async def test_turn_that_breaks_gives_back_what_it_reserved(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer:
        raise RuntimeError("a defect of an adapter")

    house = await budgeted(build, script, with_budget(root_tokens=10_000))
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    assert await purse(house, "root:1") == (150, 0, 10_000)


async def test_refused_request_costs_nothing_and_a_cut_one_what_was_reserved(build: Build) -> None:
    troubles = iter((Trouble.OVERLOADED, Trouble.NETWORK))

    async def script(request: ModelRequest) -> Answer:
        for trouble in troubles:
            raise ModelError(trouble, "later")
        return words("done")

    house = await budgeted(build, script, with_budget(root_tokens=10_000))
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    assert await house.replies() == ["done"]
    assert await house.rows("SELECT state FROM usage ORDER BY call_no") == [(3,), (2,), (1,)]
    assert await purse(house, "root:1") == (300, 0, 10_000)


async def test_child_that_asks_for_more_than_is_left_gets_what_is_left(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer:
        if opening(request) == "go":
            return (spawns("child", budget={"tokens": 5000}), words("sent"), words("heard"))[step(request)]
        return words("done")

    house = await budgeted(build, script, with_budget(root_tokens=1000))
    await hire(house)
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert await purse(house, f"task:{task.id}") == (150, 0, 850)
