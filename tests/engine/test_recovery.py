"""Workers that die, stop, freeze or lose the store: whoever is next goes on, and nothing happens twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from clutch.core.authority import EVERY_SCOPE, OperatorCaller
from clutch.core.messages import Answer, Call, Results, Usage
from clutch.core.model import Lane, Outcome, Phase
from clutch.core.policy import Control, LateResult, Policy, Work
from clutch.core.text.prompts import OUTCOME_UNKNOWN
from clutch.engine.actions import ELSEWHERE, TaskActions
from clutch.engine.services import FreezeWatch
from clutch.errors import ConstraintViolated, DiskFull, StoreBusy, StoreError, StoreLost, StoreRefused
from clutch.ports import ModelRequest, RuntimeJob, ToolContext
from clutch.runtimes.function import FunctionRuntime
from clutch.store.postgres import PostgresStore
from clutch.store.transaction import Database, Keys, Tx
from clutch.testing.database import PassThroughDatabase
from clutch.transactions import claims, turn, turn_begin, turn_end, wake, workers
from clutch.transactions import control as control_tx
from clutch.transactions.read import lists
from tests.engine.conftest import Build
from tests.engine.house import POLICY, Anything, House, JumpClock, ask_for, opening, step, use
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

#: Two workers on one database. No busy machine holds up a worker for as long as its lease.
SHARED = replace(POLICY, work=replace(POLICY.work, lease_s=60.0, tick_s=0.1))
#: A lease short enough to wait for, and ticks to notice that it is over.
SHORT_LEASE = replace(POLICY, work=replace(POLICY.work, lease_s=0.5, tick_s=0.1))
#: What a busy machine may add to a short time; much less than the next timer, which would hide a missed one.
BUSY_S = 10.0
TICKING = replace(POLICY, work=replace(POLICY.work, tick_s=0.02))


class Counter:
    """A tool that counts how often it was begun, and may be held up."""

    def __init__(self) -> None:
        self.begun = 0
        self.is_running, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> str:
        self.begun += 1
        self.is_running.set()
        await self.may_end.wait()
        return "done"


# ---- death -------------------------------------------------------------------------------------------


async def test_call_that_another_server_carries_out_is_resumed_after_a_takeover(build: Build) -> None:
    """And the one beside it, which may not run twice, is not."""

    async def script(request: ModelRequest) -> Answer | str:
        return use("far", "pay") if step(request) == 0 else "both are settled"

    house = await build(script)
    pay, is_stored, known = Counter(), asyncio.Event(), list[str | None]()

    async def far(arguments: Anything, context: ToolContext) -> str:
        assert context.remote is not None
        known.append(context.remote.known)
        if context.remote.known is None:
            await context.remote.journal("task-7")
            is_stored.set()
            await asyncio.Event().wait()
        return f"ended as {context.remote.known}"

    house.tools.add(far, arguments=Anything, name="far", description="far")
    house.tool("pay", pay)
    first = await house.hire()
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await is_stored.wait()
        await pay.is_running.wait()
    await house.crash(first)
    await house.hire()
    await house.until_quiet()
    results = house.model.requests[-1].transcript[-1]
    assert isinstance(results, Results)
    assert [one.text for one in results.results] == ["ended as task-7", OUTCOME_UNKNOWN]
    assert (known, pay.begun) == ([None, "task-7"], 1)


async def test_unsafe_tool_is_not_run_again_after_a_takeover(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return use("pay", "read") if step(request) == 0 else "I do not know whether it was paid"

    house = await build(script)
    pay, read = Counter(), Counter()
    house.tool("pay", pay)
    house.tool("read", read, replay_safe=True)
    first = await house.hire()
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await pay.is_running.wait()
        await read.is_running.wait()
    await house.crash(first)
    read.may_end.set()
    await house.hire()
    await house.until_quiet()
    assert (pay.begun, read.begun) == (1, 2)
    results = house.model.requests[-1].transcript[-1]
    assert isinstance(results, Results)
    assert [result.text for result in results.results] == [OUTCOME_UNKNOWN, "done"]
    assert len(house.model.requests) == 2


@pytest.mark.scenario(134)
async def test_spawns_of_an_interrupted_answer_make_no_twins(build: Build) -> None:
    """The children are there, but the parent died before it wrote down so."""
    slow = Counter()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) != "go":
            return "done"
        answer = ask_for("a", "b")
        both = Answer("", (*answer.calls, Call("slow", {})), Usage(1, 1), "scripted", "tools")
        return (both, use("sessions_yield"), "both are back")[step(request)]

    house = await build(script)
    house.tool("slow", slow, replay_safe=True)
    first = await house.hire()
    await house.say("go")
    async with asyncio.timeout(PATIENCE_S):
        await slow.is_running.wait()
    await house.crash(first)
    slow.may_end.set()
    await house.hire()
    await house.until_quiet()
    assert len(await house.rows("SELECT id FROM tasks")) == 2
    assert await house.replies() == ["both are back"]


@pytest.mark.scenario(131)
async def test_result_that_waited_through_a_restart_is_announced(build: Build) -> None:
    held = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) != "go":
            return "found"
        if step(request) == 2:
            await held.wait()
        return (ask_for("child"), "sent", "it found something")[step(request)]

    house = await build(script)
    first = await house.hire()
    await house.say("go")
    await house.until_asked("go", 3)
    await house.crash(first)
    held.set()
    await house.hire()
    await house.until_quiet()
    assert await house.replies() == ["sent", "it found something"]
    assert len(await house.inputs(house.main)) == 2


async def test_run_whose_worker_dies_again_and_again_is_quarantined(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent", "it crashed")[step(request)]
        return use("poison")

    poison = Counter()

    async def is_taken(attempt: int) -> bool:
        return poison.begun == attempt

    house = await build(script)
    house.tool("poison", poison, replay_safe=True)
    for attempt in range(1, 4):
        worker = await house.hire()
        if attempt == 1:
            await house.say("go")
        await house.until(partial(is_taken, attempt))
        await house.crash(worker)
    await house.hire()
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.error) == (Outcome.ERROR, "crash loop")
    assert await house.replies() == ["sent", "it crashed"]


async def test_only_the_task_whose_tool_ends_the_process_ends_as_a_crash_loop(build: Build) -> None:
    """Its neighbour was executing a tool at the same deaths; each is tried alone."""
    tools = {"neighbour": Counter(), "poison": Counter()}

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for(*tools), "sent", "heard", "heard")[step(request)]
        name = opening(request).split()[-1]
        return (use(name), "fine")[step(request)]

    async def have_begun(*expected: int) -> bool:
        return tuple(tool.begun for tool in tools.values()) == expected

    house = await build(script)
    for name, tool in tools.items():
        house.tool(name, tool, replay_safe=True)
    for attempt in (1, 2):
        worker = await house.hire()
        if attempt == 1:
            await house.say("go")
        await house.until(partial(have_begun, attempt, attempt))
        await house.crash(worker)
    worker = await house.hire()
    await house.until(partial(have_begun, 3, 2))
    tools["neighbour"].may_end.set()
    await house.until(partial(have_begun, 3, 3))
    await house.crash(worker)
    await house.hire()
    await house.until_quiet()
    neighbour, poison = [await house.task(name) for name in tools]
    assert (neighbour.outcome, neighbour.result) == (Outcome.OK, "fine")
    assert (poison.outcome, poison.error) == (Outcome.ERROR, "crash loop")
    assert await have_begun(3, 3)


async def test_clock_of_a_run_stands_while_its_owner_is_dead(build: Build) -> None:
    """The whole place was down beyond the deadline: burying comes before the alarm."""

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            call = Call("sessions_spawn", {"task": "do child", "label": "child", "runTimeoutSeconds": 100})
            return (Answer("", (call,), Usage(1, 1), "scripted", "tools"), "sent", "heard")[step(request)]
        if len(house.model.of("do child")) == 1:
            await asyncio.Event().wait()
        return "in time"

    house = await build(script, SHORT_LEASE, has_leases=True)
    first = await house.hire()
    await house.say("go")
    await house.until_asked("do child")
    await house.crash(first)
    house.clock.jump(3600)
    await house.hire()
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.result) == (Outcome.OK, "in time")


# ---- an orderly stop ---------------------------------------------------------------------------------


@pytest.mark.scenario(214)
async def test_stop_hands_turns_over_at_their_boundary_and_nothing_failed(build: Build) -> None:
    slow = Counter()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("a", "b", "c"), "sent", "heard", "heard", "heard")[step(request)]
        return use("slow") if step(request) == 0 else "done"

    house = await build(script)
    house.tool("slow", slow)
    first = await house.hire()
    await house.say("go")

    async def all_are_in_it() -> bool:
        return slow.begun == 3

    await house.until(all_are_in_it)
    stopping = asyncio.create_task(house.dismiss(first))
    slow.may_end.set()
    await stopping
    phases = await house.rows("SELECT phase, reason FROM tasks")
    assert phases == [("paused", "restart")] * 3
    assert await house.rows("SELECT id FROM sessions WHERE owner IS NOT NULL") == []
    assert await house.rows("SELECT id FROM workers") == []
    await house.hire()
    await house.until_quiet()
    assert slow.begun == 3
    assert {row[0] for row in await house.rows("SELECT outcome FROM tasks")} == {"ok"}
    assert {row[0] for row in await house.rows("SELECT crashes FROM runs")} == {0}


async def test_turn_that_reaches_no_boundary_is_cut_and_handed_over(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if len(house.model.requests) == 1:
            await asyncio.Event().wait()
        return "by the next one"

    house = await build(script)
    first = await house.hire()
    await house.say("go")
    await house.until_asked("go")
    await house.dismiss(first)
    assert len(house.model.cancelled) == 1
    assert await house.rows("SELECT owner, due IS NULL FROM sessions") == [(None, 0)]
    await house.hire()
    await house.until_quiet()
    assert await house.replies() == ["by the next one"]


async def test_stop_of_an_idle_worker_is_quick_and_final(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return "hello"

    house = await build(script, has_leases=True)
    worker = await house.hire()
    async with asyncio.timeout(PATIENCE_S):
        await house.dismiss(worker)
    await house.say("anybody?")
    assert house.model.requests == []
    assert await house.rows("SELECT id FROM workers") == []


# ---- declared dead while alive -----------------------------------------------------------------------


async def test_worker_buried_while_alive_comes_back_under_a_new_number(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if len(house.model.requests) == 1:
            await asyncio.Event().wait()
        return "second time"

    house = await build(script, SHARED, has_leases=True)
    worker = await house.hire()
    number = worker.id
    await house.say("go")
    await house.until_asked("go")
    await house.db.alone(workers.bury, number)
    await house.until_quiet()
    assert worker.id > number
    assert len(house.model.cancelled) == 1
    assert await house.replies() == ["second time"]
    assert await house.rows("SELECT id FROM workers") == [(worker.id,)]


# ---- a store that fails ------------------------------------------------------------------------------


class FlakyDatabase(PassThroughDatabase):
    """A database that fails once for one function: before it ran, or after the commit."""

    def __init__(
        self, db: Database, fails_at: Callable[..., Any], error: StoreError, *, after: bool = False
    ) -> None:
        super().__init__(db)
        self.fails_at, self._error, self._after = fails_at, error, after
        self.has_failed = False
        self.keys: dict[Callable[..., Any], Keys] = {}  #: of the last transaction of each kind

    async def tx(self, keys: Keys, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        self.keys[fn] = keys
        return await self._run(lambda: self._db.tx(keys, fn, *args, **kwargs), fn)

    async def alone(self, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._run(lambda: self._db.alone(fn, *args, **kwargs), fn)

    async def read(self, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._run(lambda: self._db.read(fn, *args, **kwargs), fn)

    async def _run(self, call: Callable[[], Any], fn: Callable[..., Any]) -> Any:
        is_hit = fn is self.fails_at and not self.has_failed
        if is_hit and not self._after:
            self.has_failed = True
            raise self._error
        value = await call()
        if is_hit and value != []:
            self.has_failed = True
            raise self._error
        return value


@pytest.mark.parametrize(
    "function",
    [claims.peek, claims.claim, workers.next_number, workers.register, wake.wake, turn_begin.begin,
     turn.respond, turn.results, turn.yields, turn_end.finish],
    ids=lambda function: str(function.__name__),
)  # fmt: skip
@pytest.mark.parametrize("is_committed", [False, True], ids=["not-committed", "committed"])
async def test_store_that_fails_once_costs_time_only(build: Build, function: Any, is_committed: bool) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) != "go":
            return use("sleep") if step(request) == 0 else "done"
        return (ask_for("a", "b"), use("sessions_yield"), "both are back")[step(request)]

    async def nothing() -> str:
        return "ok"

    house = await build(script, TICKING)
    house.tool("sleep", nothing, replay_safe=True)
    error = StoreLost() if is_committed else StoreBusy()
    db = FlakyDatabase(house.db, function, error, after=is_committed)
    await house.hire(db)
    await house.say("go")
    await house.until_quiet()
    assert db.has_failed
    assert await house.replies() == ["both are back"]
    assert await house.rows("SELECT outcome, delivery FROM tasks") == [("ok", "delivered")] * 2
    assert len(await house.inputs(house.main)) == 2


@pytest.mark.parametrize("function", [turn.respond, turn_end.finish], ids=lambda one: str(one.__name__))
@pytest.mark.parametrize(
    ("error", "is_committed"),
    [(DiskFull(), False), (StoreLost(is_unsent=True), False), (StoreLost(), False), (StoreLost(), True)],
    ids=["not-written", "not-sent", "not-committed", "committed"],
)
async def test_what_a_model_has_answered_is_stored_once_and_not_asked_for_again(
    build: Build, function: Any, error: StoreError, is_committed: bool
) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return use("sleep") if step(request) == 0 else "done"

    async def nothing() -> str:
        return "ok"

    house = await build(script, TICKING)
    house.tool("sleep", nothing, replay_safe=True)
    db = FlakyDatabase(house.db, function, error, after=is_committed)
    await house.hire(db)
    await house.say("go")
    await house.until_quiet()
    assert db.has_failed
    assert len(house.model.requests) == 2
    assert await house.rows("SELECT COUNT(*) FROM messages WHERE kind = 'answer'") == [(2,)]


@pytest.mark.parametrize("is_committed", [False, True])
async def test_the_task_of_another_server_is_stored_when_the_store_is_back(
    build: Build, is_committed: bool
) -> None:
    """The model must not read that a call failed which the other server carries out."""

    async def script(request: ModelRequest) -> Answer | str:
        return use("far") if step(request) == 0 else "done"

    async def far(arguments: Anything, context: ToolContext) -> str:
        assert context.remote is not None
        await context.remote.journal("task-7")
        return "carried out"

    house = await build(script, TICKING)
    house.tools.add(far, arguments=Anything, name="far", description="far")
    db = FlakyDatabase(house.db, turn.went_remote, StoreLost(), after=is_committed)
    await house.hire(db)
    await house.say("go")
    await house.until_quiet()
    assert db.has_failed
    results = house.model.requests[-1].transcript[-1]
    assert isinstance(results, Results)
    assert results.results[0].text == "carried out"
    assert await house.rows("SELECT remote FROM calls") == [("task-7",)]


async def test_a_turn_that_cannot_be_given_back_while_stopping_cuts_no_other_turn(build: Build) -> None:
    """The worker leaves in order: it frees the session, and the other turn ends at its boundary."""
    slow = Counter()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) != "go":
            return use("slow") if step(request) == 0 else "done"
        if len(house.model.of("go")) == 2:
            await asyncio.Event().wait()
        return (ask_for("a"), "sent", "heard")[step(request)]

    house = await build(script, TICKING)
    house.tool("slow", slow)
    db = FlakyDatabase(house.db, turn_end.hand_over, StoreBusy())
    first = await house.hire(db)
    await house.say("go")

    async def both_are_at_work() -> bool:
        return slow.begun == 1 and len(house.model.of("go")) == 2

    async def one_was_not_given_back() -> bool:
        return db.has_failed

    await house.until(both_are_at_work)
    stopping = asyncio.create_task(house.dismiss(first))
    await house.until(one_was_not_given_back)
    slow.may_end.set()
    await stopping
    assert await house.rows("SELECT phase, reason FROM tasks") == [("paused", "restart")]
    assert await house.rows("SELECT id FROM sessions WHERE owner IS NOT NULL") == []
    assert await house.rows("SELECT id FROM workers") == []
    await house.hire()
    await house.until_quiet()
    assert slow.begun == 1
    assert await house.rows("SELECT outcome, delivery FROM tasks") == [("ok", "delivered")]


class BrokenDatabase(FlakyDatabase):
    """Fails for one function, every time."""

    times = 0

    async def _run(self, call: Callable[[], Any], fn: Callable[..., Any]) -> Any:
        if fn is not self.fails_at:
            return await call()
        self.times += 1
        raise self._error


@pytest.mark.parametrize("error", [ConstraintViolated("UNIQUE"), StoreRefused("no such column")], ids=repr)
async def test_what_the_store_refuses_for_good_ends_the_run_with_its_words(
    build: Build, error: StoreError
) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return use("sleep")

    house = await build(script, TICKING)
    db = BrokenDatabase(house.db, turn.respond, error)
    await house.hire(db)
    await house.say("go")
    await house.until_quiet()
    assert db.times == 1
    assert await house.replies() == [f"(this turn failed: internal error: {error})"]


async def test_end_that_cannot_be_written_is_tried_once(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return use("sleep")

    house, error = await build(script, TICKING), ConstraintViolated("UNIQUE")
    ending = BrokenDatabase(house.db, turn_end.crash, error)
    worker = await house.hire(BrokenDatabase(ending, turn.respond, error))
    await house.say("go")

    async def is_left_alone() -> bool:
        return ending.times > 0 and not worker.turns

    await house.until(is_left_alone)
    assert ending.times == 1


async def test_turn_that_was_cut_is_told_of_when_the_store_is_back(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        await asyncio.Event().wait()
        return "never said"

    house = await build(script, TICKING, has_leases=True)
    db = FlakyDatabase(house.db, workers.rested, StoreBusy())
    worker = await house.hire(db)
    await house.say("go")
    await house.until_asked("go")
    worker.turns[house.main][1].cancel()

    async def is_told() -> bool:
        return bool(worker.services.rested)

    await house.until(is_told)
    assert db.has_failed


async def test_store_that_may_come_back_is_asked_once_a_tick(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return use("sleep")

    house = await build(script, TICKING)
    db = BrokenDatabase(house.db, turn.respond, DiskFull())
    worker = await house.hire(db)
    began = asyncio.get_running_loop().time()
    await house.say("go")

    async def is_tried_again() -> bool:
        return db.times >= 3

    await house.until(is_tried_again)
    assert asyncio.get_running_loop().time() - began >= 2 * TICKING.work.tick_s
    await house.crash(worker)


async def test_worker_without_its_tables_stops_and_names_what_is_missing(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return "never asked"

    house = await build(script, TICKING)
    worker = await house.hire()
    await house.db.alone(_drop_inbox)
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(PATIENCE_S):
            await house._working.pop(worker)
    assert raised.group_contains(StoreRefused, match="no such table: .*inbox")


def _drop_inbox(now: float) -> Tx[None]:
    yield "DROP TABLE inbox", ()


# ---- two workers on PostgreSQL ------------------------------------------------------------------------


@pytest.fixture
async def shared(postgres_dsn: str) -> AsyncIterator[Callable[..., Any]]:
    """`await shared(script)`: a house and the database of a second process."""
    clock = JumpClock()
    first, second = PostgresStore(postgres_dsn, clock), PostgresStore(postgres_dsn, clock)
    houses: list[House] = []
    async with first, second:

        async def build(script: Any, policy: Policy = SHARED) -> tuple[House, Database]:
            house = House(first, script, clock, policy, has_leases=True)
            houses.append(house)
            await house.open()
            return house, second

        yield build
        for house in houses:
            await house.close()


def one_each(policy: Policy) -> Policy:
    """Every worker runs few turns at once, so that there is something to share."""
    return replace(policy, work=replace(policy.work, sessions_max=2))


@pytest.mark.scenario(136)
async def test_two_workers_share_the_work_and_nothing_runs_twice(shared: Any) -> None:
    meeting = asyncio.Barrier(4)

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("a", "b", "c", "d"), use("sessions_yield"), "all four")[step(request)]
        await meeting.wait()
        return "done"

    house, db = await shared(script, one_each(SHARED))
    await house.hire()
    await house.hire(db)
    await house.say("go")
    await house.until_quiet()
    assert await house.replies() == ["all four"]
    assert len(house.model.requests) == 3 + 4


@pytest.mark.slow
async def test_survivor_takes_over_within_lease_and_two_ticks(shared: Any) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("a", "b"), use("sessions_yield"), "both")[step(request)]
        if len(house.model.of(opening(request))) == 1:
            await asyncio.Event().wait()
        return "second time"

    house, db = await shared(script, SHORT_LEASE)
    first = await house.hire()
    await house.say("go")
    await house.until_asked("do a")
    await house.until_asked("do b")
    await house.hire(db)
    before = asyncio.get_running_loop().time()
    await house.crash(first)
    await house.until_asked("do a", 2)
    await house.until_asked("do b", 2)
    work: Work = SHORT_LEASE.work
    took = asyncio.get_running_loop().time() - before
    assert took < work.lease_s + 2 * work.tick_s + BUSY_S
    await house.until_quiet()
    assert await house.replies() == ["both"]
    waited = "a run that waited for its model is not blamed for the death"
    assert {row[0] for row in await house.rows("SELECT crashes FROM runs")} == {0}, waited


async def test_lane_is_shared_by_all_processes(shared: Any) -> None:
    running, most = 0, 0

    async def script(request: ModelRequest) -> Answer | str:
        nonlocal running, most
        if opening(request) == "go":
            return (ask_for("a", "b", "c", "d", "e"), use("sessions_yield"), "all")[step(request)]
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "done"

    lanes = {Lane.MAIN: 4, Lane.SUBAGENT: 2}
    house, db = await shared(script, replace(SHARED, work=replace(SHARED.work, lanes=lanes)))
    await house.hire()
    await house.hire(db)
    await house.say("go")
    await house.until_quiet()
    assert await house.replies() == ["all"]
    assert most <= 2


async def test_kill_from_another_process_cancels_the_call(shared: Any) -> None:

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent")[step(request)]
        await asyncio.Event().wait()
        return "never"

    slow_ticks = replace(SHARED, work=replace(SHARED.work, tick_s=60.0))
    house, db = await shared(script, slow_ticks)
    await house.hire()
    await house.say("go")
    await house.until_asked("do child")
    task = await house.task("child")
    await db.alone(control_tx.kill, house.policy, task.id, "enough", "person")

    async def is_cancelled() -> bool:
        return len(house.model.cancelled) == 1

    await house.until(is_cancelled)


class OutOfReach:
    """The connection is lost in the moment after a commit."""

    async def hold(self, number: int) -> None:
        raise StoreLost

    async def dead(self, numbers: Sequence[int]) -> list[int]:
        raise StoreLost


@pytest.mark.parametrize(
    ("ends", "is_lost"),
    [(True, False), (False, False), (False, True)],
    ids=["ends", "does not end", "lost after the commit"],
)
async def test_kill_of_what_another_process_runs_says_whether_it_stopped(
    shared: Any, ends: bool, is_lost: bool
) -> None:
    let_go = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return ask_for("a") if step(request) == 0 else "sent"
        return use("dig")

    async def dig() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await let_go.wait()
        return ""

    policy = replace(SHARED, work=replace(SHARED.work, tool_grace_s=5.0 if ends else 0.3))
    house, db = await shared(script, policy)
    house.tool("dig", dig)
    await house.hire()
    await house.say("go")
    await house.until_asked("do a")
    house.policy = replace(policy, work=replace(policy.work, sessions_max=0))
    other = await house.hire(db)
    task = (await house.task("a")).id

    async def digs() -> bool:
        return bool(await house.rows("SELECT 1 FROM calls WHERE session_id = ?", task))

    await house.until(digs)
    if is_lost:
        other.services.lives = OutOfReach()
    killing = asyncio.create_task(TaskActions(other.services).kill(OperatorCaller(EVERY_SCOPE), task))

    async def is_killed() -> bool:
        return (await house.task("a")).outcome is Outcome.KILLED

    await house.until(is_killed)
    if ends:
        let_go.set()
    report = await killing
    let_go.set()
    assert (report.stopped, dict(report.still_stopping)) == (
        ((task,), {}) if ends else ((), {task: ELSEWHERE})
    )


@pytest.mark.parametrize("late", LateResult)
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_the_text_of_a_runtime_that_ends_anyway_after_a_kill_is_late(
    shared: Any, late: LateResult, is_elsewhere: bool
) -> None:
    """Kept with the result of the killed task, and delivered if the policy says so, whichever process killed it."""
    works, may_end = asyncio.Event(), asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        sent = {"task": "do child", "label": "child", "runtime": "mine"}
        call = Answer("", (Call("sessions_spawn", sent),), Usage(1, 1), "scripted", "tools")
        return (call, "sent", "heard")[min(2, step(request))]

    async def stubborn(job: RuntimeJob) -> str:
        works.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await may_end.wait()
        return "I had it!"

    policy = replace(SHARED, control=Control(late_result=late), work=replace(SHARED.work, tool_grace_s=0.1))
    house, db = await shared(script, policy)
    house.more["runtimes"] = {"mine": FunctionRuntime(stubborn)}
    here = await house.hire()
    await house.say("go")
    await works.wait()
    house.policy = replace(policy, work=replace(policy.work, sessions_max=0))
    killer = await house.hire(db) if is_elsewhere else here
    task = (await house.task("child")).id
    report = await TaskActions(killer.services).kill(OperatorCaller(EVERY_SCOPE), task)
    assert [one for one, _ in report.still_stopping] == [task]
    may_end.set()

    async def is_late() -> bool:
        return bool(await house.rows("SELECT 1 FROM events WHERE reason = 'late' AND detail = 'I had it!'"))

    await house.until(is_late)
    await house.until_quiet()
    result = await house.db.read(lists.result, task)
    assert result is not None
    assert result.outcome is Outcome.KILLED
    assert result.late is not None
    assert result.late[0] == "I had it!"
    told = [text for text in await house.inputs(house.main) if "I had it!" in text]
    assert len(told) == (late is LateResult.DELIVER)


async def test_an_answer_after_the_deadline_is_late_and_the_task_timed_out_at_the_deadline(
    build: Build,
) -> None:
    """The process was held up over the deadline: the answer and the alarm are both seen afterwards."""
    may_answer = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            call = Call("sessions_spawn", {"task": "do child", "label": "child", "runTimeoutSeconds": 100})
            return (Answer("", (call,), Usage(1, 1), "scripted", "tools"), "sent", "heard")[step(request)]
        await may_answer.wait()
        return "too late"

    house = await build(script)
    await house.hire()
    await house.say("go")
    await house.until_asked("do child")
    deadline = (await house.task("child")).deadline_at
    house.clock.jump(105)
    may_answer.set()
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.result, task.ended_at) == (Outcome.TIMEOUT, None, deadline)
    result = await house.db.read(lists.result, task.id)
    assert result is not None
    assert result.late is not None
    assert result.late[0] == "too late"


async def test_a_task_of_a_clock_that_was_ahead_is_worked_on_after_it_was_put_right(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent", "heard")[step(request)]
        return "done"

    house = await build(script)
    house.clock.jump(86_400)
    await house.spawn(1)
    house.clock.jump(-86_400)
    await house.hire()
    task = await house.until_phase("job 0", Phase.COMPLETED, Phase.ANNOUNCING, Phase.ANNOUNCE_DEFERRED)
    assert task.outcome is Outcome.OK


@pytest.mark.parametrize("frozen_s", [105.0, 0.0], ids=["frozen", "held up"])
async def test_a_process_that_was_frozen_past_a_deadline_is_not_charged_for_it(
    build: Build, frozen_s: float
) -> None:
    """A crash of the same length is not charged either. An event loop that was only blocked is."""
    may_answer = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            call = Call("sessions_spawn", {"task": "do child", "label": "child", "runTimeoutSeconds": 100})
            return (Answer("", (call,), Usage(1, 1), "scripted", "tools"), "sent", "heard")[step(request)]
        await may_answer.wait()
        return "in time"

    total = [0.0]
    house = await build(script)
    house.more["frozen_s"] = lambda: total[0]
    await house.hire()
    await house.say("go")
    await house.until_asked("do child")
    house.clock.jump(105)
    total[0] += frozen_s
    may_answer.set()
    await house.until_quiet()
    task = await house.task("child")
    assert task.outcome is (Outcome.OK if frozen_s else Outcome.TIMEOUT)


async def test_a_frozen_process_is_seen_by_the_gap_in_its_beats() -> None:
    clock = JumpClock()
    watch = FreezeWatch(clock.now)
    clock.jump(1.0)
    assert watch.total_s() == 0.0
    clock.jump(40.0)
    assert watch.total_s() == pytest.approx(40.0, abs=1.0)
    clock.jump(-3600.0)
    assert watch.total_s() == pytest.approx(40.0, abs=1.0)
    watch.start()
    watch.stop()
