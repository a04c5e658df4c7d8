"""People in the loop: nothing is started before they decide, and what they said is done exactly once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from clutch.core.messages import Answer, Call, Input, Result, Results, Usage
from clutch.core.model import Lane, Outcome, Phase, Reason
from clutch.core.policy import Policy, Taint
from clutch.core.questions import Decision, QuestionKind
from clutch.core.text.prompts import OUTCOME_UNKNOWN
from clutch.ports import ModelRequest, ToolContext
from clutch.transactions import control, messages
from tests.engine.conftest import Build
from tests.engine.house import POLICY, Anything, House, ask_for, opening, step
from tests.open_questions import PendingQuestion, waiting
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

NARROW = replace(POLICY, work=replace(POLICY.work, lanes={Lane.MAIN: 4, Lane.SUBAGENT: 1}))
HEADLESS = replace(POLICY, is_headless=True)


def uses(*calls: tuple[str, dict[str, Any]]) -> Answer:
    return Answer("", tuple(Call(name, args) for name, args in calls), Usage(10, 5), "scripted", "tools")


def asks(question: str, *choices: str) -> tuple[str, dict[str, Any]]:
    return "ask_human", {"question": question} | ({"choices": list(choices)} if choices else {})


def child_that(*answers: Answer | str) -> Callable[[ModelRequest], Awaitable[Answer | str]]:
    """Main sends one child; the child says these one after the other."""

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent", "heard")[min(2, step(request))]
        return answers[min(step(request), len(answers) - 1)]

    return script


class Desk:
    """Tools that count what was done, and may be held up."""

    def __init__(self, house: House) -> None:
        self.done: list[str] = []
        self.is_running, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()

        self._house = house
        self.add("pay", needs_approval=True)
        self.add("pay_again", needs_approval=True, replay_safe=True)
        self.add("look")

    def add(self, name: str, **flags: Any) -> None:
        async def run(arguments: Anything, context: ToolContext) -> str:
            self.done.append(name)
            self.is_running.set()
            await self.may_end.wait()
            return f"{name} done"

        self._house.tools.add(run, arguments=Anything, name=name, description=name, **flags)


async def asked(house: House, count: int = 1) -> list[PendingQuestion]:
    async def are_asked() -> bool:
        return len(await house.db.read(waiting)) == count

    await house.until(are_asked)
    return await house.db.read(waiting)


async def decide(house: House, question: PendingQuestion, decision: Decision, text: str = "") -> None:
    known = (house.policy, question.id, decision, text)
    await house.db.alone(messages.answer, *known, seen_hash=question.hash, actor="person")


def last_results(house: House, words: str = "do child") -> tuple[Result, ...]:
    found = [entry for entry in house.model.of(words)[-1].transcript if isinstance(entry, Results)]
    return found[-1].results


async def opened(build: Build, *answers: Answer | str, policy: Any = POLICY) -> tuple[House, Desk]:
    house = await build(child_that(*answers), policy)
    desk = Desk(house)
    await house.hire()
    await house.say("go")
    return house, desk


# ---- ask_human ---------------------------------------------------------------------------------------------


async def test_answer_of_a_person_is_the_result_of_the_call(build: Build) -> None:
    house, _ = await opened(build, uses(asks("which one?", "left", "right")), "went there")
    (question,) = await asked(house)
    assert question.kind is QuestionKind.QUESTION
    assert json.loads(question.body) == {"question": "which one?", "choices": ["left", "right"]}
    assert (await house.task("child")).reason == Reason.NEEDS_YOU
    await decide(house, question, Decision.ANSWER, "left")
    await house.until_quiet()
    assert last_results(house) == (Result(0, "ask_human", "left"),)
    assert (await house.task("child")).result == "went there"
    assert len(house.model.of("do child")) == 2


async def test_a_question_wakes_the_parent_at_once_and_once(build: Build) -> None:
    house, _ = await opened(build, uses(asks("which one?")), "went there")
    await asked(house)

    async def is_told() -> bool:
        return any("[QUESTION]" in _heard(request) for request in house.model.of("go"))

    await house.until(is_told)
    assert (await house.task("child")).reason == Reason.NEEDS_YOU, "a child that waits is not settled"
    (question,) = await house.db.read(waiting)
    await decide(house, question, Decision.ANSWER, "left")
    await house.until_quiet()
    said = _heard(house.model.of("go")[-1])
    assert (said.count("[QUESTION]"), said.count("which one?"), said.count("went there")) == (1, 1, 1)


def _heard(request: ModelRequest) -> str:
    return "\n".join(entry.text for entry in request.transcript if isinstance(entry, Input))


async def test_person_may_refuse_to_answer(build: Build) -> None:
    house, _ = await opened(build, uses(asks("why?")), "never mind")
    (question,) = await asked(house)
    await decide(house, question, Decision.REJECT, "none of your business")
    await house.until_quiet()
    (result,) = last_results(house)
    assert (result.failed, result.text) == (True, "not answered: none of your business")


async def test_question_without_words_goes_back_to_the_model(build: Build) -> None:
    house, _ = await opened(build, uses(asks("  ")), "sorry")
    await house.until_quiet()
    (result,) = last_results(house)
    assert result.failed
    assert "question" in result.text
    assert await house.rows("SELECT id FROM questions") == []


async def test_who_waits_for_a_person_leaves_the_lane_to_others(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("asks", "works"), "sent", "heard", "heard")[min(3, step(request))]
        if "do works" in opening(request):
            return "worked"
        return uses(asks("may I?")) if step(request) == 0 else "done"

    house = await build(script, NARROW)
    await house.hire()
    await house.say("go")
    await house.until_phase("works", Phase.COMPLETED)
    (question,) = await asked(house)
    await decide(house, question, Decision.ANSWER, "yes")
    await house.until_quiet()
    assert (await house.task("asks")).result == "done"


async def test_question_outlives_its_worker_and_takes_no_time(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            sent = Call("sessions_spawn", {"task": "do child", "label": "child", "runTimeoutSeconds": 50})
            return (Answer("", (sent,), Usage(1, 1), "scripted", "tools"), "sent", "heard")[
                min(2, step(request))
            ]
        return uses(asks("may I?")) if step(request) == 0 else "done"

    house = await build(script)
    first = await house.hire()
    await house.say("go")
    await asked(house)
    await house.crash(first)
    house.clock.jump(10_000)
    await house.hire()
    (question,) = await asked(house)
    await decide(house, question, Decision.ANSWER, "yes")
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.OK
    assert len(house.model.of("do child")) == 2, "nothing was asked of the model again"


async def test_main_agent_asks_its_person(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return uses(asks("tea?")) if step(request) == 0 else "tea it is"

    house = await build(script)
    await house.hire()
    await house.say("go")
    (question,) = await asked(house)
    await decide(house, question, Decision.ANSWER, "please")
    await house.until_quiet()
    assert await house.replies() == ["tea it is"]


# ---- approval ----------------------------------------------------------------------------------------------


async def test_nothing_of_an_answer_is_started_before_the_decision(build: Build) -> None:
    house, desk = await opened(build, uses(("look", {}), ("pay", {"n": 7})), "paid")
    (question,) = await asked(house)
    assert json.loads(question.body) == {"tool": "pay", "args": {"n": 7}}
    assert desk.done == []
    await decide(house, question, Decision.APPROVE)
    await house.until_quiet()
    assert sorted(desk.done) == ["look", "pay"]
    assert [result.text for result in last_results(house)] == ["look done", "pay done"]


async def test_rejected_call_is_not_made_and_the_model_is_told_why(build: Build) -> None:
    house, desk = await opened(build, uses(("look", {}), ("pay", {})), "not paid")
    (question,) = await asked(house)
    await decide(house, question, Decision.REJECT, "too dear")
    await house.until_quiet()
    assert desk.done == ["look"]
    told = last_results(house)[1]
    assert (told.failed, told.text) == (True, "not approved: too dear")


async def test_two_calls_are_two_questions(build: Build) -> None:
    house, desk = await opened(build, uses(("pay", {"n": 1}), ("pay", {"n": 2}), asks("ok?")), "half paid")
    first, second, third = await asked(house, 3)
    await decide(house, first, Decision.APPROVE)
    await decide(house, third, Decision.ANSWER, "fine")
    assert desk.done == []
    await decide(house, second, Decision.REJECT, "once is enough")
    await house.until_quiet()
    assert desk.done == ["pay"]
    assert [result.text for result in last_results(house)] == [
        "pay done",
        "not approved: once is enough",
        "fine",
    ]


async def test_approval_is_used_once_even_if_the_worker_dies_over_it(build: Build) -> None:
    house = await build(child_that(uses(("pay", {}), ("pay_again", {})), "who knows"))
    desk = Desk(house)
    desk.may_end.clear()
    first = await house.hire()
    await house.say("go")
    for question in await asked(house, 2):
        await decide(house, question, Decision.APPROVE)
    async with asyncio.timeout(PATIENCE_S):
        await desk.is_running.wait()

    async def are_running() -> bool:
        return sorted(desk.done) == ["pay", "pay_again"]

    await house.until(are_running)
    await house.crash(first)
    desk.may_end.set()
    await house.hire()
    await house.until_quiet()
    assert sorted(desk.done) == ["pay", "pay_again", "pay_again"], "only what is safe to repeat"
    assert [result.text for result in last_results(house)] == [OUTCOME_UNKNOWN, "pay_again done"]
    assert len(await house.rows("SELECT id FROM questions")) == 2, "nobody was asked again"


async def test_approved_call_runs_although_the_one_who_asked_is_dead(build: Build) -> None:
    house = await build(child_that(uses(("pay", {})), "paid"))
    desk = Desk(house)
    first = await house.hire()
    await house.say("go")
    (question,) = await asked(house)
    await house.crash(first)
    await decide(house, question, Decision.APPROVE)
    await house.hire()
    await house.until_quiet()
    assert desk.done == ["pay"]
    assert last_results(house)[0].text == "pay done"


async def test_steered_child_never_makes_the_call_it_asked_for(build: Build) -> None:
    house, desk = await opened(build, uses(("pay", {})), "did something else")
    await asked(house)
    task = await house.task("child")
    await house.db.alone(messages.steer, house.policy, task.id, "steer:1", "do not pay", actor="person")
    await house.until_quiet()
    assert desk.done == []
    assert await house.db.read(waiting) == []
    assert last_results(house)[0].failed
    assert (await house.task("child")).result == "did something else"


async def test_killed_child_asks_nobody_any_more(build: Build) -> None:
    house, desk = await opened(build, uses(("pay", {})), "never")
    await asked(house)
    task = await house.task("child")
    await house.db.alone(control.kill, house.policy, task.id, "enough", "person")
    await house.until_quiet()
    assert (desk.done, await house.db.read(waiting)) == ([], [])


async def test_paused_child_keeps_its_approval(build: Build) -> None:
    house, desk = await opened(build, uses(("pay", {})), "paid")
    (question,) = await asked(house)
    task = await house.task("child")
    await house.db.alone(control.pause, house.policy, task.id, "person")
    await decide(house, question, Decision.APPROVE)
    assert desk.done == []
    await house.db.alone(control.resume, house.policy, task.id, "person")
    await house.until_quiet()
    assert desk.done == ["pay"]
    assert last_results(house)[0].text == "pay done"


async def test_without_a_person_it_is_denied_at_once(build: Build) -> None:
    house, desk = await opened(build, uses(("pay", {}), asks("may I?")), "alone", policy=HEADLESS)
    await house.until_quiet()
    assert desk.done == []
    assert [(result.failed, result.text) for result in last_results(house)] == [
        (True, "not approved: no user is present to ask"),
        (True, "not answered: no user is present to ask"),
    ]
    assert await house.rows("SELECT id FROM questions") == []


# ---- untrusted text ------------------------------------------------------------------------------------


async def test_turn_that_has_read_untrusted_text_asks_before_it_uses_a_shell_or_reaches_out(
    build: Build,
) -> None:
    shell, fetch, look = [(name, dict[str, Any]()) for name in ("shell", "fetch", "look")]
    house = await build(
        child_that(uses(shell), uses(fetch), uses(look), uses(shell, fetch), "done"),
        replace(POLICY, taint=Taint.ASK),
    )
    desk = Desk(house)
    desk.add("shell")
    desk.add("fetch", is_outward=True)
    await house.hire()
    await house.say("go")
    first, second = await asked(house, 2)
    assert desk.done == ["shell", "fetch", "look"]
    assert [json.loads(one.body)["tool"] for one in (first, second)] == ["shell", "fetch"]
    await decide(house, first, Decision.APPROVE)
    await decide(house, second, Decision.REJECT, "not there")
    assert (await house.until_phase("child", Phase.COMPLETED)).outcome is Outcome.OK
    assert desk.done == ["shell", "fetch", "look", "shell"]


async def test_turn_that_has_read_untrusted_text_has_no_command_run_as_a_check(build: Build) -> None:
    order = ("sessions_spawn", {"task": "work", "checks": [{"calls": "look"}, {"command": "true"}]})
    house = await build(
        child_that(uses(("fetch", {})), uses(order), "done"), replace(POLICY, taint=Taint.ASK)
    )
    desk = Desk(house)
    desk.add("shell")
    desk.add("fetch", is_outward=True)
    await house.hire()
    await house.say("go")
    await house.until_phase("child", Phase.COMPLETED)
    ((label,),) = await house.rows("SELECT label FROM tasks")
    (refused,) = last_results(house)
    assert (label, refused.failed) == ("child", True)
    assert "checks[1].command: cannot be used by a turn that has read untrusted text" in refused.text


@pytest.mark.parametrize("later", [POLICY, HEADLESS], ids=["nobody asks any more", "nobody is there"])
async def test_no_of_a_person_holds_when_nobody_would_be_asked_any_more(build: Build, later: Policy) -> None:
    fetch, shell = [(name, dict[str, Any]()) for name in ("fetch", "shell")]
    house = await build(child_that(uses(fetch), uses(shell), "done"), replace(POLICY, taint=Taint.ASK))
    desk = Desk(house)
    desk.add("shell")
    desk.add("fetch", is_outward=True)
    worker = await house.hire()
    await house.say("go")
    (question,) = await asked(house)
    await house.dismiss(worker)
    await decide(house, question, Decision.REJECT, "not that")
    house.policy = later
    await house.hire()
    await house.until_quiet()
    assert desk.done == ["fetch"]
    assert last_results(house) == (Result(0, "shell", "not approved: not that", failed=True),)
