"""Foreign code that asks a person, and tells of what it does: it waits where it asked, and nothing is done twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from clutch.core.messages import Answer, Call, Input, Result, Results, Usage
from clutch.core.model import Lane, Outcome, Phase, Reason
from clutch.core.policy import Budgets
from clutch.core.questions import Decision
from clutch.engine.worker import Worker
from clutch.errors import StoreBusy
from clutch.ports import ModelRequest, RuntimeJob
from clutch.runtimes.function import FunctionRuntime
from clutch.store.transaction import Listener
from clutch.transactions import control, questions, turn_end, usage
from clutch.transactions.read import transcripts
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, opening, step
from tests.engine.test_questions import asked, decide
from tests.engine.test_recovery import FlakyDatabase

pytestmark = pytest.mark.anyio

QUICK = replace(POLICY, work=replace(POLICY.work, tick_s=0.05))
BY_DAY = replace(QUICK, budgets=Budgets(day_tokens=10_000))
PAY = Call("pay", {"amount": 3})


def _never() -> None:
    """No function of any transaction."""


class DeafDoor(FlakyDatabase):
    """Every hint is lost."""

    def listen(self, callback: Listener) -> None:
        pass


class Clerk:
    """Asks before it pays, and remembers how often it was started, went on, and was sent away."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.heard: list[str] = []
        self.ended = 0
        self.paying, self.may_pay = asyncio.Event(), asyncio.Event()
        self.may_pay.set()

    async def __call__(self, job: RuntimeJob) -> Answer:
        self.keys.append(job.key)
        try:
            job.say("let me ask. ")
            verdict = await job.ask(PAY)
            self.heard.append(f"{verdict.is_approved} {verdict.text}")
            self.paying.set()
            await self.may_pay.wait()
            job.begin(PAY)
            job.end(PAY, "paid", not verdict.is_approved)
            return Answer("done", usage=Usage(10, 5), model="theirs")
        finally:
            self.ended += 1


async def opened(
    build: Build, clerk: Callable[[RuntimeJob], Awaitable[Answer]], policy: object = QUICK
) -> House:
    async def script(request: ModelRequest) -> Answer | str:
        assert opening(request) == "go", "the child is not a model"
        sent = {"task": "do child", "label": "child", "runtime": "mine"}
        call = Answer("", (Call("sessions_spawn", sent),), Usage(1, 1), "scripted", "tools")
        return (call, "sent", "heard")[min(2, step(request))]

    house = await build(script, policy)
    house.more["runtimes"] = {"mine": FunctionRuntime(clerk)}
    return house


async def at_work(house: House) -> Worker:
    worker = await house.hire()
    await house.say("go")
    return worker


async def test_foreign_code_waits_where_it_asked_and_holds_no_slot(build: Build) -> None:
    clerk = Clerk()
    narrow = replace(QUICK, work=replace(QUICK.work, lanes={Lane.MAIN: 4, Lane.SUBAGENT: 1}))
    house = await opened(build, clerk, narrow)
    await at_work(house)
    (question,) = await asked(house)
    assert json.loads(question.body) == {"tool": "pay", "args": {"amount": 3}}
    task = await house.task("child")
    assert task.reason == Reason.NEEDS_YOU
    assert await house.rows("SELECT owner FROM sessions WHERE id = ?", task.id) == [(None,)]
    await decide(house, question, Decision.APPROVE, "go ahead")
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.result) == (Outcome.OK, "done")
    assert (len(clerk.keys), clerk.heard) == (1, ["True go ahead"])
    rows = await house.rows("SELECT state, input, output FROM usage WHERE session_id = ?", task.id)
    assert rows == [(1, 10, 5)], "one run is one call, also when it was interrupted by a question"


async def test_call_that_foreign_code_made_is_in_the_transcript_and_in_the_evidence(build: Build) -> None:
    clerk = Clerk()
    house = await opened(build, clerk)
    await at_work(house)
    (question,) = await asked(house)
    await decide(house, question, Decision.REJECT, "too much")
    await house.until_quiet()
    task = await house.task("child")
    assert clerk.heard == ["False too much"]
    told, said, gave, last = await house.db.read(transcripts.transcript, task.id)
    assert isinstance(told, Input)
    assert isinstance(last, Answer)
    assert (said, last.text) == (Answer("let me ask. ", (PAY,), stop="tools"), "done")
    assert gave == Results((Result(0, "pay", "paid", failed=True),))
    ((evidence,),) = await house.rows("SELECT evidence FROM tasks WHERE id = ?", task.id)
    assert json.loads(evidence)["toolCalls"] == 1


async def test_foreign_code_is_sent_away_when_its_task_is_killed_while_a_person_is_asked(
    build: Build,
) -> None:
    clerk = Clerk()
    house = await opened(build, clerk)
    await at_work(house)
    await asked(house)
    task = await house.task("child")
    await house.db.alone(control.kill, house.policy, task.id, "enough", "person")

    async def is_gone() -> bool:
        return clerk.ended == 1

    await house.until(is_gone)
    assert (await house.task("child")).outcome is Outcome.KILLED


async def test_foreign_code_that_waits_is_sent_away_although_the_store_was_away_for_a_moment(
    build: Build,
) -> None:
    clerk = Clerk()
    house = await opened(build, clerk)
    db = FlakyDatabase(house.db, questions.is_parked, StoreBusy())
    await house.hire(db)
    await house.say("go")
    await asked(house)

    async def is_missed() -> bool:
        return db.has_failed

    await house.until(is_missed)
    await house.db.alone(control.kill, house.policy, (await house.task("child")).id, "enough", "person")

    async def is_gone() -> bool:
        return clerk.ended == 1

    await house.until(is_gone)


async def test_foreign_code_that_cannot_be_taken_up_is_sent_away(build: Build) -> None:
    clerk = Clerk()
    house = await opened(build, clerk, BY_DAY)
    db = FlakyDatabase(house.db, _never, StoreBusy())
    await house.hire(db)
    await house.say("go")
    (question,) = await asked(house)
    db.fails_at = usage.reserve
    await decide(house, question, Decision.APPROVE)

    async def is_gone() -> bool:
        return clerk.ended == 1

    await house.until(is_gone)
    assert (db.has_failed, clerk.heard) == (True, [])


async def test_pause_gives_back_what_foreign_code_had_reserved_beside_nobody_else(build: Build) -> None:
    begun = asyncio.Event()

    async def works(job: RuntimeJob) -> Answer:
        begun.set()
        await asyncio.Event().wait()
        return Answer("never said")

    house = await opened(build, works, BY_DAY)
    db = FlakyDatabase(house.db, _never, StoreBusy())
    await house.hire(db)
    await house.say("go")
    await begun.wait()
    task = await house.task("child")
    await house.db.alone(control.pause, house.policy, task.id, "person")
    await house.until_phase("child", Phase.PAUSED)
    assert db.keys[turn_end.hand_over] == (task.id, *usage.keys(BY_DAY, ""))


async def test_pause_that_a_worker_does_not_hear_of_stops_foreign_code_a_tick_later(build: Build) -> None:
    async def works(job: RuntimeJob) -> Answer:
        await asyncio.Event().wait()
        return Answer("never said")

    house = await opened(build, works)
    await house.hire(DeafDoor(house.db, _never, StoreBusy()))
    await house.say("go")
    task = await house.until_phase("child", Phase.RUNNING)
    await house.db.alone(control.pause, house.policy, task.id, "person")
    await house.until_phase("child", Phase.PAUSED)


async def test_answer_that_nobody_heard_is_there_for_whoever_starts_again(build: Build) -> None:
    clerk = Clerk()
    house = await opened(build, clerk)
    worker = await at_work(house)
    (question,) = await asked(house)
    await house.crash(worker)
    assert clerk.ended == 1
    await house.hire()
    await decide(house, question, Decision.APPROVE)
    await house.until_quiet()
    assert (await house.task("child")).result == "done"
    assert (len(clerk.keys), len(set(clerk.keys)), clerk.heard) == (2, 1, ["True "])


async def test_answer_that_was_heard_before_a_crash_is_not_used_again(build: Build) -> None:
    clerk = Clerk()
    clerk.may_pay.clear()
    house = await opened(build, clerk)
    worker = await at_work(house)
    (question,) = await asked(house)
    await decide(house, question, Decision.APPROVE)
    await clerk.paying.wait()
    await house.crash(worker)
    clerk.may_pay.set()
    await house.hire()
    (again,) = await asked(house)
    assert again.id != question.id
    await decide(house, again, Decision.REJECT, "it was paid")
    await house.until_quiet()
    assert clerk.heard == ["True ", "False it was paid"]


async def test_foreign_code_is_not_kept_for_ever_and_started_again_for_the_answer(build: Build) -> None:
    clerk = Clerk()
    house = await opened(build, clerk, replace(QUICK, work=replace(QUICK.work, held_s=0.01)))
    await at_work(house)
    (question,) = await asked(house)

    async def is_gone() -> bool:
        return clerk.ended == 1

    await house.until(is_gone)
    await decide(house, question, Decision.APPROVE)
    await house.until_quiet()
    assert (len(clerk.keys), clerk.heard) == (2, ["True "])


async def test_nobody_is_asked_where_nobody_is(build: Build) -> None:
    clerk = Clerk()
    house = await opened(build, clerk, replace(QUICK, is_headless=True))
    await at_work(house)
    await house.until_quiet()
    assert clerk.heard == ["False no user is present to ask"]


async def test_key_of_a_run_stays_when_it_crashes_after_a_journaled_call(build: Build) -> None:
    keys: list[str] = []
    is_done = asyncio.Event()

    async def works(job: RuntimeJob) -> Answer:
        keys.append(job.key)
        job.end(PAY, "paid", False)
        if len(keys) == 1:
            is_done.set()
            await asyncio.Event().wait()
        return Answer(job.text)

    house = await opened(build, works)
    worker = await at_work(house)
    await is_done.wait()

    async def is_written() -> bool:
        return bool(await house.rows("SELECT 1 FROM calls WHERE name = 'pay'"))

    await house.until(is_written)
    await house.crash(worker)
    await house.hire()
    await house.until_quiet()
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert "do child" in ((await house.task("child")).result or "")
