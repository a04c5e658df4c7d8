"""The actions behind every surface: one guard, honest reports, a line with the actor for every act."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from clutch.core.authority import (
    EVERY_SCOPE,
    AgentCaller,
    Caller,
    OperatorCaller,
    Role,
    Scope,
)
from clutch.core.ids import plan_hash
from clutch.core.messages import Answer, Input, Result, Results
from clutch.core.model import Outcome, Phase, reason_text
from clutch.core.policy import Control, LateResult, Policy
from clutch.core.text.prompts import OUTCOME_UNKNOWN
from clutch.engine.actions import STILL_RUNS, SendResult, SendStatus, TaskActions
from clutch.errors import Forbidden, InvalidInput, NotFound, RateLimited, StoreError
from clutch.ports import ModelRequest
from clutch.store.transaction import Database
from clutch.transactions import turn
from clutch.transactions.control import AlreadyFinished, KillReport, NotPossible, PlanChanged
from clutch.transactions.read import lists, transcripts
from clutch.transactions.sessions import Stale
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, ask_for, step, use
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

BOSS = OperatorCaller(EVERY_SCOPE, "boss")


class Stage:
    """A main session whose children wait until they are let go."""

    def __init__(self, house: House, go: asyncio.Event, verbs: TaskActions) -> None:
        self.house, self.go, self.verbs = house, go, verbs

    async def id(self, label: str) -> int:
        return (await self.house.task(label)).id

    async def lines(self, label: str) -> list[tuple[str, str]]:
        rows = await self.house.rows(
            "SELECT e.actor, e.reason, e.detail FROM events e JOIN tasks t ON t.id = e.task_id WHERE t.label = ?"
            " ORDER BY e.seq",
            label,
        )
        return [(actor, reason_text(reason, detail)) for actor, reason, detail in rows]


async def stage(build: Build, *labels: str, policy: Policy = POLICY) -> Stage:
    """Main spawns; a child named `parent` spawns `child`; everybody else waits for `go`."""
    go = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        words = request.transcript[0].text  # type: ignore[union-attr]
        if words == "begin":
            return ask_for(*labels) if step(request) == 0 else "spawned"
        if "do parent" in words and step(request) == 0:
            return ask_for("child")
        await go.wait()
        return f"heard {len(request.transcript)}"

    house = await build(script, policy)
    worker = await house.hire()
    await house.say("begin")
    for label in labels:
        await house.until_phase(label, Phase.RUNNING)
    if "parent" in labels:
        await house.until_asked("do child")
    return Stage(house, go, TaskActions(worker.services))


def agent(session_id: int, role: Role = Role.ORCHESTRATOR, **more: Any) -> AgentCaller:
    return AgentCaller(session_id, "main", role, session_key=f"agent:{session_id}", **more)


# ---- one guard ---------------------------------------------------------------------------------------

VERBS: dict[str, Callable[[TaskActions, Caller, int], Awaitable[Any]]] = {
    "kill": lambda verbs, who, task: verbs.kill(who, task),
    "steer": lambda verbs, who, task: verbs.steer(who, task, "other way"),
    "send": lambda verbs, who, task: verbs.send(who, task, "by the way", 0),
    "pause": lambda verbs, who, task: verbs.pause(who, task),
    "resume": lambda verbs, who, task: verbs.resume(who, task),
    "retry": lambda verbs, who, task: verbs.retry(who, task),
    "continue": lambda verbs, who, task: verbs.continue_(who, task),
    "remove": lambda verbs, who, task: verbs.remove(who, task),
    "approve": lambda verbs, who, task: verbs.approve(who, task, "0"),
    "reject": lambda verbs, who, task: verbs.reject(who, task, "0", "no"),
    "redeliver": lambda verbs, who, task: verbs.redeliver(who, task),
    "dismiss": lambda verbs, who, task: verbs.dismiss(who, task),
}


CONTROL = {("main", "parent"), ("main", "child"), ("main", "other"), ("parent", "child")}
REACHES = dict.fromkeys(VERBS, CONTROL) | {
    "approve": CONTROL - {("main", "child")},
    "reject": CONTROL - {("main", "child")},
    "redeliver": set(),
    "dismiss": set(),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_an_agent_reaches_its_descendants_and_nobody_else(build: Build, verb: str) -> None:
    set_up = await stage(build, "parent", "other")
    ids = {label: await set_up.id(label) for label in ("parent", "child", "other")} | {
        "main": set_up.house.main
    }
    roles = {"main": Role.MAIN, "parent": Role.ORCHESTRATOR, "child": Role.LEAF, "other": Role.LEAF}
    reached = {
        (who, whom)
        for who in roles
        for whom in roles
        if await reaches(VERBS[verb](set_up.verbs, agent(ids[who], roles[who]), ids[whom]))
    }
    assert reached == REACHES[verb]


async def reaches(act: Awaitable[Any]) -> bool:
    """It got as far as the task, whatever the task then said."""
    try:
        await act
    except Forbidden:
        return False
    except (NotPossible, PlanChanged, RateLimited, NotFound):
        pass
    return True


async def test_what_is_denied_leaves_no_trace(build: Build) -> None:
    set_up = await stage(build, "parent", "other")
    before = await set_up.house.rows("SELECT * FROM events")
    for verb in VERBS.values():
        with pytest.raises(Forbidden):
            await verb(set_up.verbs, agent(await set_up.id("other"), Role.LEAF), await set_up.id("parent"))
        with pytest.raises(Forbidden):
            await verb(set_up.verbs, OperatorCaller(frozenset({Scope.READ})), await set_up.id("parent"))
    assert await set_up.house.rows("SELECT * FROM events") == before
    assert await set_up.house.rows("SELECT * FROM inbox WHERE kind = 'instruction'") == []


async def test_a_run_that_lost_its_session_has_no_say(build: Build) -> None:
    set_up = await stage(build, "one")
    lost = agent(set_up.house.main, Role.MAIN, fence=0)
    with pytest.raises(Stale):
        await set_up.verbs.kill(lost, await set_up.id("one"))


async def test_nobody_is_said_to_be_unknown(build: Build) -> None:
    set_up = await stage(build, "one")
    for verb in VERBS.values():
        with pytest.raises(NotFound):
            await verb(set_up.verbs, BOSS, 999_999)


async def test_task_steered_while_it_is_to_pause_is_paused_and_reads_the_instruction_at_resume(
    build: Build,
) -> None:
    set_up = await stage(build, "one")
    one = await set_up.id("one")
    await set_up.house.until_asked("do one")
    await set_up.verbs.pause(BOSS, one)
    await set_up.verbs.steer(BOSS, one, "rather this")
    await set_up.house.until_phase("one", Phase.PAUSED)
    set_up.go.set()
    set_up.house.clock.jump(3600)
    assert len(set_up.house.model.of("do one")) == 1
    await set_up.verbs.resume(BOSS, one)
    await set_up.house.until_quiet()
    assert (await set_up.house.inputs(one))[-1] == "rather this"
    assert (await set_up.house.task("one")).outcome is Outcome.OK


async def test_each_act_is_in_the_timeline_with_its_actor(build: Build) -> None:
    set_up = await stage(build, "one")
    one = await set_up.id("one")
    await set_up.verbs.send(BOSS, one, "by the way", 0)
    await set_up.verbs.pause(agent(set_up.house.main, Role.MAIN), one)
    await set_up.verbs.resume(BOSS, one)
    await set_up.verbs.steer(BOSS, one, "rather this")
    set_up.go.set()
    await set_up.house.until_quiet()
    await set_up.verbs.continue_(BOSS, one, "and that")
    await set_up.house.until_quiet()
    await set_up.verbs.remove(BOSS, one)
    acts = [line for line in await set_up.lines("one") if line[0] != "clutch"]
    assert acts == [
        ("boss", "a message was sent to it"),
        (f"agent:{set_up.house.main}", "pause"),
        ("boss", "resumed"),
        ("boss", "steered"),
        ("boss", "continue"),
        ("boss", "archived"),
    ]


# ---- kill --------------------------------------------------------------------------------------------


async def test_killed_all_stops_every_child_and_says_which(build: Build) -> None:
    set_up = await stage(build, "parent", "other")
    parent, child, other = [await set_up.id(label) for label in ("parent", "child", "other")]
    report = await set_up.verbs.kill_all(BOSS, [parent, other], "enough")
    assert report == KillReport((parent, child, other))
    assert await set_up.verbs.kill_all(BOSS, [parent, other]) == KillReport((), (parent, other))


async def test_when_kill_returns_nothing_of_it_runs_any_more(build: Build) -> None:
    set_up = await stage(build, "one")
    works, ended = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> str:
        works.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)  # a process group that takes its time to die
            ended.set()
        return ""

    set_up.house.tool("dig", slow_to_end)

    async def digs(request: ModelRequest) -> Answer | str:
        return use("dig")

    set_up.house.model.script = digs
    set_up.go.set()
    one = await set_up.id("one")
    await set_up.verbs.steer(BOSS, one, "dig")
    await works.wait()
    assert (await set_up.verbs.kill(BOSS, one)).stopped == (one,)
    assert ended.is_set()


async def _has_call(house: House, session_id: int) -> bool:
    return bool(await house.rows("SELECT 1 FROM calls WHERE session_id = ? AND name = 'dig'", session_id))


@pytest.mark.parametrize("is_all", [False, True], ids=["kill", "kill all"])
async def test_a_tool_that_does_not_end_is_reported_as_still_stopping(build: Build, is_all: bool) -> None:
    policy = replace(POLICY, work=replace(POLICY.work, tool_grace_s=0.05))
    set_up = await stage(build, "one", policy=policy)
    works, let_go = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        works.set()
        try:
            await asyncio.Event().wait()
        finally:
            await let_go.wait()
        return ""

    set_up.house.tool("dig", stubborn)

    async def digs(request: ModelRequest) -> Answer | str:
        return use("dig")

    set_up.house.model.script = digs
    one = await set_up.id("one")
    await set_up.verbs.steer(BOSS, one, "dig")
    await works.wait()
    verbs = set_up.verbs
    report = await (verbs.kill_all(BOSS, [one]) if is_all else verbs.kill(BOSS, one))
    assert report == KillReport(still_stopping=((one, STILL_RUNS),))
    assert (await set_up.house.task("one")).outcome is Outcome.KILLED
    let_go.set()


class Broken:
    """A database whose next `alone` fails before anything is written."""

    def __init__(self, db: Any) -> None:
        self._db, self.is_broken = db, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    async def alone(self, *args: Any, **named: Any) -> Any:
        if self.is_broken:
            self.is_broken = False
            raise StoreError("the disk is full")
        return await self._db.alone(*args, **named)


@pytest.mark.scenario(118)
async def test_store_error_during_kill_is_reported_and_the_next_kill_works(build: Build) -> None:
    set_up = await stage(build, "parent")
    parent, child = await set_up.id("parent"), await set_up.id("child")
    services = set_up.verbs._services
    services.db = cast("Database", Broken(services.db))
    assert await set_up.verbs.kill(BOSS, parent) == KillReport(not_stopped=((parent, "the disk is full"),))
    for label in ("parent", "child"):
        assert (await set_up.house.task(label)).phase is Phase.RUNNING
    assert await set_up.verbs.kill(BOSS, parent) == KillReport((parent, child))


@pytest.mark.scenario(119)
@pytest.mark.parametrize("late", LateResult)
async def test_what_a_killed_task_said_anyway_is_stored_and_told_if_the_policy_says_so(
    build: Build, late: LateResult
) -> None:
    set_up = await stage(build, "one", policy=replace(POLICY, control=Control(late_result=late)))
    one, house = await set_up.id("one"), set_up.house
    await set_up.verbs.kill(BOSS, one, "enough")
    nonce = "0" * 32
    await house.db.tx(one, turn.late, house.policy, one, "I had it!", nonce)
    await house.db.tx(one, turn.late, house.policy, one, "I had it!", nonce)
    set_up.go.set()
    await house.until_quiet()
    result = await house.db.read(lists.result, one)
    assert result is not None
    assert result.outcome is Outcome.KILLED
    assert result.late is not None
    assert result.late[0] == "I had it!"
    told = [text for text in await house.inputs(house.main) if "I had it!" in text]
    assert len(told) == (late is LateResult.DELIVER)
    assert all("killed; finished anyway" in text for text in told)


async def test_requester_is_told_of_a_kill_if_the_policy_says_so(build: Build) -> None:
    set_up = await stage(build, "parent", policy=replace(POLICY, control=Control(announces_kill=True)))
    house = set_up.house
    await set_up.verbs.kill(BOSS, await set_up.id("parent"))
    await set_up.verbs.kill(BOSS, await set_up.id("parent"))
    set_up.go.set()
    await house.until_quiet()
    told = [text for text in await house.inputs(house.main) if text.startswith("[Subagent]")]
    assert [text.splitlines()[0] for text in told] == ['[Subagent] "parent" killed']


# ---- steer -------------------------------------------------------------------------------------------


@pytest.mark.scenario(124)
async def test_steer_is_limited_in_rate_and_length_and_never_reaches_oneself(build: Build) -> None:
    policy = replace(POLICY, control=Control(steer_interval_s=2.0))
    set_up = await stage(build, "one", policy=policy)
    one, verbs = await set_up.id("one"), set_up.verbs
    await verbs.steer(BOSS, one, "x" * 4000)
    with pytest.raises(RateLimited) as refused:
        await verbs.steer(BOSS, one, "again")
    assert 0 < refused.value.retry_after_s <= 2
    await verbs.steer(agent(set_up.house.main, Role.MAIN), one, "another caller has its own count")
    set_up.house.clock.jump(2)
    await verbs.steer(BOSS, one, "now it may")
    with pytest.raises(InvalidInput, match="4001 characters, at most 4000"):
        await verbs.steer(BOSS, one, "x" * 4001)
    with pytest.raises(Forbidden) as denied:
        await verbs.steer(agent(one), one, "me")
    assert denied.value.rule == "self"


async def steered_while_a_tool_runs(build: Build, tool: Callable[[], Awaitable[str]]) -> tuple[Stage, int]:
    policy = replace(POLICY, work=replace(POLICY.work, tool_grace_s=0.2))
    set_up = await stage(build, "one", policy=policy)
    set_up.house.tool("dig", tool)

    async def script(request: ModelRequest) -> Answer | str:
        return use("dig") if request.transcript[-1] == Input("dig", "instruction") else "as you say"

    set_up.house.model.script = script
    one = await set_up.id("one")
    await set_up.verbs.steer(BOSS, one, "dig")
    await set_up.house.until(lambda: _has_call(set_up.house, one))
    await set_up.verbs.steer(agent(set_up.house.main, Role.MAIN), one, "stop digging")
    return set_up, one


async def test_a_tool_that_ends_in_time_is_not_forgotten_by_a_steer(build: Build) -> None:
    steered = asyncio.Event()

    async def dig() -> str:
        await steered.wait()
        return "a bone"

    set_up, one = await steered_while_a_tool_runs(build, dig)
    steered.set()
    await set_up.house.until_quiet()
    *_, call, gave, told, _last = await set_up.house.db.read(transcripts.transcript, one)
    assert isinstance(call, Answer)
    assert gave == Results((Result(0, "dig", "a bone"),))
    assert told == Input("stop digging", "instruction")
    assert (await set_up.house.task("one")).result == "as you say"


async def test_a_tool_that_does_not_end_in_time_is_cut_and_its_outcome_unknown(build: Build) -> None:
    cut = asyncio.Event()

    async def dig() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()
        return ""

    set_up, one = await steered_while_a_tool_runs(build, dig)
    await set_up.house.until_quiet()
    assert cut.is_set()
    *_, gave, told, _last = await set_up.house.db.read(transcripts.transcript, one)
    assert gave == Results((Result(0, "dig", OUTCOME_UNKNOWN, failed=True),))
    assert told == Input("stop digging", "instruction")


async def test_the_next_run_does_not_wait_for_a_worker_that_died(build: Build) -> None:
    async def dig() -> str:
        await asyncio.Event().wait()
        return ""

    set_up, _one = await steered_while_a_tool_runs(build, dig)
    (worker,) = set_up.house._working
    await set_up.house.crash(worker)
    await set_up.house.hire()
    await set_up.house.until_quiet()
    assert (await set_up.house.task("one")).result == "as you say"


async def test_the_same_steer_twice_is_one(build: Build) -> None:
    set_up = await stage(build, "one")
    one = await set_up.id("one")
    first = await set_up.verbs.steer(BOSS, one, "so", key="k")
    assert first.supersedes is not None
    assert (await set_up.verbs.steer(BOSS, one, "so", key="k")).task.generation == first.task.generation


@pytest.mark.parametrize("verb", ["steer", "send"])
async def test_the_same_key_for_two_children_is_two_acts(build: Build, verb: str) -> None:
    """A program may number its requests for each child on its own."""
    set_up = await stage(build, "one", "two")
    for label in ("one", "two"):
        child = await set_up.id(label)
        await (
            set_up.verbs.steer(BOSS, child, "so", key="k")
            if verb == "steer"
            else set_up.verbs.send(BOSS, child, "so", 0, key="k")
        )
    letters = await set_up.house.rows("SELECT session_id FROM inbox WHERE kind = 'instruction'")
    assert {row[0] for row in letters} == {await set_up.id("one"), await set_up.id("two")}


# ---- send --------------------------------------------------------------------------------------------


async def test_send_waits_for_a_new_reply(build: Build) -> None:
    heard = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if step(request) == 0:
            await heard.wait()
            return Answer("old words", use("dig").calls, model="scripted", stop="tools")
        return f"new words: {request.transcript[-1].text}"  # type: ignore[union-attr]

    set_up = await stage(build, "one")
    set_up.house.model.script = script
    house, one = set_up.house, await set_up.id("one")

    async def dig() -> str:
        return "dug"

    house.tool("dig", dig)
    await set_up.verbs.steer(BOSS, one, "start over")
    await house.until_asked("do one", 2)
    sending = asyncio.create_task(set_up.verbs.send(BOSS, one, "how far are you?", 10))
    await house.until(lambda: _waits(house))
    heard.set()
    sent = await sending
    assert (sent.status, sent.reply) == (SendStatus.OK, "new words: how far are you?")


async def _waits(house: House) -> bool:
    return bool(await house.rows("SELECT 1 FROM inbox WHERE body = 'how far are you?'"))


async def test_words_sent_while_the_last_answer_is_made_are_not_lost(build: Build) -> None:
    set_up = await stage(build, "one")
    sending = asyncio.create_task(set_up.verbs.send(BOSS, await set_up.id("one"), "one more thing", 10))
    await set_up.house.until(lambda: _sent(set_up.house))
    set_up.go.set()
    assert (await sending).reply == "heard 3"
    await set_up.house.until_quiet()
    assert (await set_up.house.task("one")).result == "heard 3"
    assert (await set_up.house.task("one")).generation == 1


async def _sent(house: House) -> bool:
    return bool(await house.rows("SELECT 1 FROM inbox WHERE body = 'one more thing'"))


async def test_send_says_timeout_or_accepted_when_nobody_replies(build: Build) -> None:
    set_up = await stage(build, "one")
    one = await set_up.id("one")
    assert (await set_up.verbs.send(BOSS, one, "hello", 0)).status is SendStatus.ACCEPTED
    assert (await set_up.verbs.send(BOSS, one, "hello?", 0.01)).status is SendStatus.TIMEOUT


@pytest.mark.parametrize(
    ("said", "reply"), [("NO_REPLY", None), (" no_reply\n", None), ("NO_REPLY?", "NO_REPLY?")]
)
async def test_a_whole_reply_that_says_nothing_is_no_reply(
    build: Build, said: str, reply: str | None
) -> None:
    heard = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if step(request) == 0:
            await heard.wait()
            return use("dig")
        return said

    async def dig() -> str:
        return "dug"

    set_up = await stage(build, "one")
    set_up.house.model.script = script
    house, one = set_up.house, await set_up.id("one")
    house.tool("dig", dig)
    await set_up.verbs.steer(BOSS, one, "start over")
    await house.until_asked("do one", 2)
    sending = asyncio.create_task(set_up.verbs.send(BOSS, one, "how far are you?", 10))
    await house.until(lambda: _waits(house))
    heard.set()
    assert await sending == SendResult(SendStatus.OK, reply)


async def test_nobody_waits_for_a_reply_longer_than_the_policy_says(build: Build) -> None:
    hasty = replace(POLICY, control=replace(POLICY.control, send_wait_s=0.01))
    set_up = await stage(build, "one", policy=hasty)
    async with asyncio.timeout(PATIENCE_S):
        sent = await set_up.verbs.send(BOSS, await set_up.id("one"), "hello?", 600)
    assert sent.status is SendStatus.TIMEOUT


async def test_send_to_a_finished_task_is_refused_and_names_continue(build: Build) -> None:
    set_up = await stage(build, "one")
    set_up.go.set()
    await set_up.house.until_quiet()
    with pytest.raises(AlreadyFinished, match="use `continue`"):
        await set_up.verbs.send(BOSS, await set_up.id("one"), "hello", 0)


# ---- remove ------------------------------------------------------------------------------------------


async def test_remove_takes_a_finished_record_out_of_the_quota_and_no_other(build: Build) -> None:
    set_up = await stage(build, "one")
    one = await set_up.id("one")
    with pytest.raises(NotPossible, match="use `kill` first"):
        await set_up.verbs.remove(BOSS, one)
    set_up.go.set()
    await set_up.house.until_quiet()
    await set_up.verbs.remove(BOSS, one)
    await set_up.verbs.remove(BOSS, one)
    assert await set_up.house.rows("SELECT retained FROM tasks WHERE id = ?", one) == [(0,)]
    assert (await set_up.lines("one")).count(("boss", "archived")) == 1


# ---- stop --------------------------------------------------------------------------------------------


@pytest.mark.scenario(216)
async def test_stop_ends_the_own_run_and_the_whole_tree(build: Build) -> None:
    set_up = await stage(build, "parent", "other")
    house = set_up.house
    asked = asyncio.Event()

    async def spawns_for_ever(request: ModelRequest) -> Answer | str:
        asked.set()
        return ask_for(f"more {step(request)}")

    house.model.script = spawns_for_ever
    await house.say("and now spawn for ever")
    await asked.wait()
    report = await set_up.verbs.stop(BOSS, house.main)
    (before,) = await house.rows("SELECT COUNT(*) FROM tasks")
    alive = await house.rows("SELECT id FROM tasks WHERE outcome IS NULL")
    assert alive == []
    assert len(report.stopped) == before[0]
    await house.until_quiet()
    assert await house.rows("SELECT COUNT(*) FROM tasks") == [before]
    assert await house.rows("SELECT id FROM sessions WHERE owner IS NOT NULL OR due IS NOT NULL") == []


# ---- plans -------------------------------------------------------------------------------------------


@pytest.mark.scenario(215)
async def test_only_the_requester_or_a_person_decides_and_only_on_the_plan_that_was_shown(
    build: Build,
) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return "the plan" if step(request) == 0 else "done as planned"

    house = await build(script)
    worker = await house.hire()
    verbs = TaskActions(worker.services)
    await _spawn_plan(house, worker)
    task = await house.until_phase("planner", Phase.AWAITING_APPROVAL)
    seen = plan_hash("the plan")
    with pytest.raises(Forbidden):
        await verbs.approve(agent(task.id + 1000, Role.MAIN), task.id, seen)
    with pytest.raises(PlanChanged):
        await verbs.approve(BOSS, task.id, plan_hash("another plan"))
    decided = await verbs.approve(agent(house.main, Role.MAIN), task.id, seen, "go")
    assert (decided.status, decided.round) == ("approved", 0)
    await house.until_quiet()
    assert (await house.task("planner")).result == "done as planned"


async def _spawn_plan(house: House, worker: Any) -> None:
    from clutch.core.spawn import SpawnRequest
    from clutch.engine.spawn import spawn_all
    from clutch.transactions.spawn import ChildRequest

    ids = worker.services.ids
    order = ChildRequest(
        "plan", ids.next(), ids.uuid4(), SpawnRequest("plan it", "planner", plan_mode=True), 0
    )
    await spawn_all(worker.services, house.main, house.main, None, [order])
