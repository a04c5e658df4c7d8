"""A worker at work: fan-out, nesting, tools, errors of providers and tools, and control from outside."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from clutch.core.agents import AgentDefaults
from clutch.core.messages import Answer, Call, Results, Usage
from clutch.core.model import Delivery, LetterKind, Outcome, Phase
from clutch.core.policy import Life, QueueMode
from clutch.engine import worker as worker_module
from clutch.engine.live import QUEUE_MAX, Bus, Live, result_detail
from clutch.engine.open_run import Interrupt
from clutch.engine.services import HEARING_TICKS, Services
from clutch.engine.worker import BATCH, HeldTurns
from clutch.ports import ModelError, ModelRequest, ToolFailed, Trouble
from clutch.store.transaction import Database, Listener, P, T, TxFunction
from clutch.testing.database import PassThroughDatabase
from clutch.transactions import claims, control, messages
from clutch.transactions.claims import Claimed
from clutch.transactions.turn import NO_CHILD
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, ask_for, opening, step, use
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def parent_of_four(request: ModelRequest) -> Answer | str:
    """Main sends four children, waits, and says what they found."""
    if opening(request) != "go":
        return use("sleep") if step(request) == 0 else f"found by {opening(request)[-6:]}"
    return (ask_for("k0", "k1", "k2", "k3"), use("sessions_yield"), "all four are back")[step(request)]


async def nothing() -> str:
    return "ok"


async def test_parent_fans_out_and_is_told_once(build: Build) -> None:
    house = await build(parent_of_four)
    house.tool("sleep", nothing)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    assert await house.replies() == ["all four are back"]
    _, told = await house.inputs(house.main)
    assert told.startswith("[4 background tasks completed]")
    places = [told.index(f'"k{number}"') for number in range(4)]
    assert places == sorted(places)
    assert len(house.model.of("go")) == 3


async def test_results_of_nested_children_rise_level_by_level(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        below = {"go": "one", "do one": "two", "do two": "three"}
        for words, label in below.items():
            if opening(request).endswith(words):
                return (ask_for(label), use("sessions_yield"), f"heard {label}")[step(request)]
        return "from the depth"

    house = await build(script)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    assert await house.replies() == ["heard one"]
    assert [(await house.task(label)).result for label in ("one", "two", "three")] == [
        "heard two",
        "heard three",
        "from the depth",
    ]
    assert len(house.model.requests) == 3 * 3 + 1


async def blocked_child(build: Build, policy: object = POLICY) -> tuple[House, asyncio.Event]:
    """Main has sent one child and is done; the child's first model call hangs until the event."""
    held = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent", "heard")[step(request)]
        if step(request) == 0 and len(request.transcript) == 1:
            await held.wait()
        return "the child's words"

    house = await build(script, policy)
    await house.hire()
    await house.say("go")
    await house.until_asked("do child")
    return house, held


async def test_nothing_is_claimed_before_what_the_models_need_is_loaded_and_all_else_goes_on(
    build: Build,
) -> None:
    asked_for: list[str] = []
    loaded = {"lab:small": asyncio.Event(), "lab:big": asyncio.Event()}

    async def prepare(model: str) -> None:
        asked_for.append(model)
        await loaded[model].wait()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent", "heard")[step(request)]
        return "the child's words"

    house = await build(script, replace(POLICY, defaults=AgentDefaults(model="lab:small")))
    house.more["prepare"] = prepare
    await house.hire()
    await house.say("go")

    async def is_seen() -> bool:
        return await house.rows("SELECT COUNT(*) FROM inbox WHERE seen = 1") == [(1,)]

    await house.until(is_seen)  # the mailman does not wait
    assert await house.rows("SELECT owner FROM sessions") == [(None,)]
    loaded["lab:small"].set()
    await house.until_asked("go", 2)
    await house.until_quiet()
    assert asked_for == ["lab:small"] * 4  # at the start, and before each of three turns
    assert await house.replies() == ["sent", "heard"]


class Watched:
    """A database that remembers how many sessions each claim got."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.claims: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    async def alone(self, fn: Any, *args: Any, **named: Any) -> Any:
        got = await self._db.alone(fn, *args, **named)
        if fn is claims.claim:
            self.claims.append(len(got))
        return got


async def test_of_many_that_are_due_a_few_are_at_work_while_all_others_are_claimed(build: Build) -> None:
    """Else the first model call after a restart waits until thousands have begun."""
    held = asyncio.Event()

    async def script(request: ModelRequest) -> str:
        await held.wait()
        return "done"

    house = await build(script, replace(POLICY, work=replace(POLICY.work, claim_first=2)))
    await house.spawn(5)
    watched = Watched(house.db)
    await house.hire(cast("Database", watched))
    await house.until_asked("job 4")
    assert watched.claims == [2, 3]
    held.set()


async def test_thousands_that_begin_let_others_go_on_in_between(build: Build) -> None:
    house = await build(parent_of_four)
    worker = await house.hire()
    holding = HeldTurns(worker.services, lambda: None, has_leases=False)
    nobodys = [Claimed(10_000 + number, fence=1) for number in range(2 * BATCH)]
    begun: list[int] = []
    async with asyncio.TaskGroup() as group:
        asyncio.get_running_loop().call_soon(lambda: begun.append(len(holding.turns)))
        await holding.start(group, nobodys)
    assert begun == [BATCH]
    assert not holding.turns


async def test_a_drain_that_was_undone_leaves_the_turns_that_began_since(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: asyncio.Queue[int] = asyncio.Queue()

    async def deaf(services: Services, claimed: Claimed, interrupt: Interrupt) -> None:
        """A turn in a tool that may not be repeated: it does not end when it is asked to."""
        del services, interrupt
        begun.put_nowait(claimed.session_id)
        await asyncio.Event().wait()

    house = await build(parent_of_four)
    worker = await house.hire()
    monkeypatch.setattr(worker_module, "take_turn", deaf)
    holding = HeldTurns(worker.services, lambda: None, has_leases=False)
    async with asyncio.TaskGroup() as group:
        await holding.start(group, [Claimed(1001, fence=1), Claimed(1002, fence=1)])
        assert [await begun.get(), await begun.get()] == [1001, 1002]
        draining = asyncio.create_task(holding.give_all_back())
        await asyncio.sleep(0)
        await holding.start(group, [Claimed(1003, fence=1)])
        assert await begun.get() == 1003
        await draining
        assert list(holding.turns) == [1003]
        _, turn = holding.turns[1003]
        assert not turn.cancelling()
        turn.cancel()


async def test_clock_of_a_run_starts_when_its_own_model_is_loaded(build: Build) -> None:
    loading, loaded = asyncio.Event(), asyncio.Event()

    async def prepare(model: str) -> None:
        if model == "lab:big":
            loading.set()
            await loaded.wait()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            asked = {"task": "do child", "label": "child", "model": "lab:big", "runTimeoutSeconds": 60}
            call = Answer("", (Call("sessions_spawn", asked),), Usage(1, 1), "scripted", "tools")
            return (call, "sent", "heard")[step(request)]
        return "the child's words"

    house = await build(script)
    house.more["prepare"] = prepare
    await house.hire()
    await house.say("go")
    await loading.wait()
    house.clock.jump(100)
    assert (await house.task("child")).phase is Phase.QUEUED
    loaded.set()
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.OK


async def test_what_cannot_be_loaded_stops_no_worker(build: Build) -> None:
    async def prepare(model: str) -> None:
        raise ImportError("no module named lab")

    async def script(request: ModelRequest) -> Answer | str:
        raise ModelError(Trouble.BAD_REQUEST, "the package lab is missing", is_sent=False)

    house = await build(script)
    house.more["prepare"] = prepare
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    assert "the package lab is missing" in (await house.replies())[0]


async def test_kill_cancels_the_model_call_at_once(build: Build) -> None:
    house, _ = await blocked_child(build)
    task = await house.task("child")
    await house.db.alone(control.kill, house.policy, task.id, "enough", "person")

    async def is_cancelled() -> bool:
        return len(house.model.cancelled) == 1

    await house.until(is_cancelled)
    await house.until_quiet()
    killed = await house.task("child")
    assert (killed.outcome, killed.error) == (Outcome.KILLED, "enough")
    assert await house.replies() == ["sent"]


async def test_steer_supersedes_the_running_call(build: Build) -> None:
    house, _ = await blocked_child(build)
    task = await house.task("child")
    await house.db.alone(messages.steer, house.policy, task.id, "s", "look elsewhere", actor="person")
    await house.until_quiet()
    assert len(house.model.cancelled) == 1
    first, second = house.model.of("do child")
    assert len(first.transcript) == 1
    assert [message.text for message in second.transcript if hasattr(message, "text")][-1] == "look elsewhere"
    told = await house.task("child")
    assert (told.generation, told.result, told.delivery) == (2, "the child's words", Delivery.DELIVERED)
    assert len(await house.rows("SELECT id FROM deliveries WHERE outcome = 'delivered'")) == 1


class WithoutCuts(PassThroughDatabase):
    """Its hints to end a turn are lost, as those of another process may be, or come after the next claim."""

    def listen(self, callback: Listener) -> None:
        self._db.listen(lambda hints: callback([one for one in hints if one[0] not in ("stop", "supersede")]))


async def test_a_turn_whose_cut_is_lost_ends_when_its_worker_claims_the_session_again(build: Build) -> None:
    """It would wait for its model beside the new turn, and the worker would wait for it when it stops."""
    held = asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent", "heard")[step(request)]
        if len(request.transcript) == 1:
            await held.wait()
        return "the child's words"

    house = await build(script)
    await house.hire(WithoutCuts(house.db))
    await house.say("go")
    await house.until_asked("do child")
    task = await house.task("child")
    await house.db.alone(messages.steer, house.policy, task.id, "s", "look elsewhere", actor="person")
    try:
        await house.until_quiet()
        assert [len(request.transcript) for request in house.model.cancelled] == [1]
    finally:
        held.set()  # a worker with the bug would not stop


@pytest.mark.scenario(119)
async def test_words_that_come_after_the_kill_are_kept_and_nothing_else(build: Build) -> None:
    """The model does not heed the cancellation, as a provider's library may."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent")[step(request)]
        asked.set()
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            await go_on.wait()
        return "too late"

    house = await build(script)
    await house.hire()
    await house.say("go")
    await asked.wait()
    task = await house.task("child")
    await house.db.alone(control.kill, house.policy, task.id, "enough", "person")
    go_on.set()

    async def is_kept() -> bool:
        return bool(await house.rows("SELECT seq FROM events WHERE reason = 'late' AND detail = 'too late'"))

    await house.until(is_kept)
    assert (await house.task("child")).outcome is Outcome.KILLED
    assert await house.replies() == ["sent"]


async def test_provider_errors_park_the_run_and_it_goes_on(build: Build) -> None:
    troubles = [
        ModelError(Trouble.OVERLOADED, "busy"),
        ModelError(Trouble.RATE_LIMIT, "slow down"),
        ModelError(Trouble.NETWORK, "gone"),
    ]

    async def script(request: ModelRequest) -> Answer | str:
        if troubles:
            raise troubles.pop(0)
        return "after all"

    house = await build(script)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    assert await house.replies() == ["after all"]
    assert len(house.model.requests) == 4
    assert len({request.key for request in house.model.requests}) == 1
    assert len(await house.rows("SELECT id FROM runs")) == 1


@pytest.mark.parametrize(
    ("trouble", "reason"), [(Trouble.OVERLOADED, "provider"), (Trouble.RATE_LIMIT, "quota")]
)
async def test_a_wait_for_a_provider_in_trouble_is_not_shown_as_a_rate_limit(
    build: Build, trouble: Trouble, reason: str
) -> None:
    """Also where a time to come back is named, as the limiter does for all callers of a provider that failed."""
    failing = True

    async def script(request: ModelRequest) -> Answer | str:
        nonlocal failing
        if opening(request) == "go":
            return (ask_for("child"), "sent", "done")[step(request)]
        if failing:
            failing = False
            raise ModelError(trouble, "status 500", 0.0)
        return "after all"

    house = await build(script)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    parked = await house.rows(
        "SELECT reason FROM events WHERE to_phase = 'paused' AND from_phase = 'running'"
    )
    assert parked == [(reason,)]


async def test_permanent_error_of_the_provider_ends_the_task_without_a_grace(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent", "it failed")[step(request)]
        raise ModelError(Trouble.AUTH, "no key")

    house = await build(script, replace(POLICY, life=replace(POLICY.life, error_grace_s=3600.0)))
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.error) == (Outcome.ERROR, "auth: no key")
    assert await house.replies() == ["sent", "it failed"]


async def test_calls_of_one_answer_run_at_the_same_time(build: Build) -> None:
    meeting = asyncio.Barrier(3)

    async def meet() -> str:
        await meeting.wait()
        return "met"

    async def script(request: ModelRequest) -> Answer | str:
        return use("meet", "meet", "meet") if step(request) == 0 else "done"

    house = await build(script)
    house.tool("meet", meet)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    last = house.model.requests[-1].transcript[-1]
    assert isinstance(last, Results)
    assert [(result.index, result.text) for result in last.results] == [(0, "met"), (1, "met"), (2, "met")]


async def test_model_reads_what_its_tools_raised(build: Build) -> None:
    async def broken() -> str:
        raise ZeroDivisionError("oops")

    async def refusing() -> str:
        raise ToolFailed("no such file")

    async def script(request: ModelRequest) -> Answer | str:
        return use("broken", "refusing", "unheard_of") if step(request) == 0 else "I see"

    house = await build(script)
    house.tool("broken", broken)
    house.tool("refusing", refusing)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    last = house.model.requests[-1].transcript[-1]
    assert isinstance(last, Results)
    assert [result.failed for result in last.results] == [True, True, True]
    texts = [result.text for result in last.results]
    assert "ZeroDivisionError: oops" in texts[0]
    assert texts[1] == "no such file"
    assert "unheard_of" in texts[2]


async def test_model_that_breaks_fails_its_run_and_not_the_worker(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "break":
            raise RuntimeError("a defect")
        return "fine"

    house = await build(script)
    worker = await house.hire()
    await house.say("break")
    await house.until_quiet()
    number = worker.id
    await house.say("and again")
    await house.until_quiet()
    assert worker.id == number
    first, second = await house.replies()
    assert "a defect" in first
    assert second == "(this turn failed: internal error: RuntimeError('a defect'))"


async def test_yield_without_children_is_answered_and_the_model_sees_it(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return use("sessions_yield", "sleep", "sessions_yield") if step(request) == 0 else "nobody there"

    house = await build(script)
    house.tool("sleep", nothing)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    seen = house.model.requests[-1].transcript[-1]
    assert isinstance(seen, Results)
    assert [(result.index, result.text) for result in seen.results] == [
        (0, NO_CHILD),
        (1, "ok"),
        (2, NO_CHILD),
    ]


async def test_steps_are_counted_for_each_run(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return "done" if isinstance(request.transcript[-1], Results) else use("sleep")

    house = await build(script, replace(POLICY, life=Life(steps_max=3)))
    house.tool("sleep", nothing)
    await house.hire()
    for number in range(1, 5):
        await house.say(f"go {number}")
        await house.until_quiet()
        assert await house.replies() == ["done"] * number


async def test_run_that_never_ends_meets_its_step_limit(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return use("sleep")

    house = await build(script, replace(POLICY, life=Life(steps_max=3)))
    house.tool("sleep", nothing)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    assert await house.replies() == ["(this turn failed: step limit of 3 reached)"]
    assert len(house.model.requests) == 3


async def test_answer_cut_by_the_provider_is_an_error_with_the_words_so_far(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), "sent", "it was cut")[step(request)]
        return Answer("half a sen", (), Usage(10, 5), "scripted", "length")

    house = await build(script)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.error, task.result) == (
        Outcome.ERROR,
        "the provider cut the answer (length)",
        "half a sen",
    )


async def test_refused_and_malformed_spawns_are_told_to_the_model(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) != "go":
            return "done"
        calls = (Call("sessions_spawn", {"task": "x", "channel": "web"}), *ask_for("a", "b").calls)
        asked = Answer("", calls, Usage(1, 1), "scripted", "tools")
        return (asked, use("sessions_yield"), "one came back")[step(request)]

    limits = replace(POLICY.limits, children_max=1)
    house = await build(script, replace(POLICY, limits=limits))
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    results = house.model.of("go")[1].transcript[-1]
    assert isinstance(results, Results)
    malformed, accepted, refused = [result.text for result in results.results]
    assert '"status": "error"' in malformed
    assert "channel" in malformed
    assert '"status": "accepted"' in accepted
    assert '"status": "forbidden"' in refused
    assert '"used": 1, "max": 1' in refused


async def test_leaf_has_no_session_tools_whatever_it_calls(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("leaf"), use("sessions_yield"), "done")[step(request)]
        return (ask_for("sneaky"), "could not")[step(request)]

    house = await build(script, replace(POLICY, limits=replace(POLICY.limits, depth_max=1)))
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    first, second = house.model.of("do leaf")
    assert "sessions_spawn" not in {tool.name for tool in first.tools}
    results = second.transcript[-1]
    assert isinstance(results, Results)
    assert "there is no tool 'sessions_spawn' for you" in results.results[0].text
    assert len(await house.rows("SELECT id FROM tasks")) == 1


async def test_plan_is_made_with_reading_tools_only_until_it_is_approved(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            call = Call("sessions_spawn", {"task": "do plan", "label": "plan", "planMode": True})
            asked = Answer("", (call,), Usage(1, 1), "scripted", "tools")
            return (asked, "sent", "a plan!", "it is done")[step(request)]
        return ("first I look", "then I leapt")[step(request)]

    house = await build(script)
    house.tool("write", nothing)
    await house.hire()
    await house.say("go")
    task = await house.until_phase("plan", Phase.AWAITING_APPROVAL)
    from clutch.core.events import PlanVerdict
    from clutch.core.ids import plan_hash

    await house.until_asked("go", 3)
    await house.db.alone(
        messages.decide,
        house.policy,
        task.id,
        PlanVerdict.APPROVE,
        plan_hash("first I look"),
        text="go",
        actor="person",
    )
    await house.until_quiet()
    planning, working = house.model.of("do plan")
    assert "write" not in {tool.name for tool in planning.tools}
    assert "write" in {tool.name for tool in working.tools}
    assert (await house.task("plan")).result == "then I leapt"


async def test_steer_mode_injects_a_finding_into_a_running_turn(build: Build) -> None:
    ended = asyncio.Event()

    async def wait() -> str:
        await ended.wait()
        return "waited"

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), use("wait"), "heard it on the way")[step(request)]
        return "found"

    announcing = replace(POLICY.announcing, mode=QueueMode.STEER)
    house = await build(script, replace(POLICY, announcing=announcing))
    house.tool("wait", wait)
    await house.hire()
    await house.say("go")
    await house.until_phase("child", Phase.ANNOUNCING)
    ended.set()
    await house.until_quiet()
    assert await house.replies() == ["heard it on the way"]
    injected = house.model.of("go")[-1].transcript[-1]
    assert getattr(injected, "text", "").startswith("[INTERRUPT]")
    assert (await house.rows("SELECT path FROM deliveries")) == [("steered",)]


@pytest.mark.scenario(149)
async def test_letters_that_come_together_are_one_turn(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return "one answer"

    house = await build(script)
    for text in ("one", "two", "three"):
        await house.say(text)
    await house.hire()
    await house.until_quiet()
    assert await house.replies() == ["one answer"]
    assert await house.inputs(house.main) == ["one", "two", "three"]


# ---- the bus -----------------------------------------------------------------------------------------


async def test_watcher_sees_a_turn_in_order(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return use("sleep") if step(request) == 0 else "hello"

    house = await build(script)
    house.tool("sleep", nothing)
    watcher = house.bus.watch()
    await house.hire()
    await house.say("go")
    seen: list[Live] = []
    async with asyncio.timeout(PATIENCE_S):
        async for live in watcher:
            seen.append(live)
            if live.name == "lifecycle:end":
                break
    assert [live.name for live in seen] == [
        "lifecycle:start",
        "usage",
        "tool:start",
        "tool:end",
        "assistant:text",
        "usage",
        "lifecycle:end",
    ]
    assert {live.session_id for live in seen} == {house.main}
    assert len({live.run_id for live in seen}) == 1
    assert seen[4].data == "hello"


async def test_slow_watcher_loses_the_oldest_and_knows_how_many(build: Build) -> None:
    bus = Bus()
    slow, gone = bus.watch(), bus.watch()
    bus.leave(gone)
    for number in range(QUEUE_MAX + 5):
        bus.publish(Live("usage", 1, 1, number))
    assert (slow.missed, gone.missed) == (5, 0)
    async for live in slow:
        assert live.data == 5
        break


async def test_note_to_a_running_child_is_read_at_its_next_step(build: Build) -> None:
    written = asyncio.Event()

    async def wait() -> str:
        await written.wait()
        return "waited"

    async def script(request: ModelRequest) -> Answer | str:
        return use("wait") if step(request) == 0 else "read it"

    house = await build(script)
    house.tool("wait", wait)
    await house.hire()
    await house.say("go")
    await house.until_asked("go")
    await house.say("nearly over", LetterKind.NOTE)
    written.set()
    await house.until_quiet()
    assert await house.inputs(house.main) == ["go", "nearly over"]


async def test_calls_of_an_answer_the_provider_cut_are_never_carried_out(build: Build) -> None:
    ran: list[str] = []

    async def note() -> str:
        ran.append("note")
        return "ok"

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("cut"), use("sessions_yield"), "told")[step(request)]
        return Answer("half a", (Call("note", {}),), Usage(), "scripted", "length")

    house = await build(script, replace(POLICY, life=replace(POLICY.life, error_grace_s=0.0)))
    house.tool("note", note)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("cut")
    assert (task.outcome, task.result) == (Outcome.ERROR, "half a")
    assert task.error == "the provider cut the answer (length)"
    assert ran == []


@pytest.mark.parametrize(
    ("text", "size", "lines"),
    [
        ("", 0, 0),
        ("one", 3, 1),
        ("one\n", 4, 1),
        ("one\ntwo", 7, 2),
        ("\n\n", 2, 2),
        ("größer\n", 9, 1),
        ("\ud800", 1, 1),
    ],
)
def test_the_size_of_a_result_is_in_bytes_and_lines(text: str, size: int, lines: int) -> None:
    took = result_detail(text, failed=False, seconds=0.12345)
    assert took == {"bytes": size, "lines": lines, "seconds": 0.123, "error": None}


def test_of_a_failed_call_the_first_line_is_shown() -> None:
    took = result_detail("\n  no such file\nmore", failed=True, seconds=0.0)
    assert (took["error"], took["lines"]) == ("no such file", 3)


class HearingDatabase(PassThroughDatabase):
    """It says that hints of other processes arrive, and every hint is lost."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.looked_at: list[float] = []

    @property
    def is_hearing(self) -> bool:
        return True

    def listen(self, callback: Listener) -> None:
        pass

    async def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if fn is claims.peek:
            self.looked_at.append(asyncio.get_running_loop().time())
        return await self._db.read(fn, *args, **kwargs)


async def test_a_worker_that_hears_looks_rarely_and_finds_what_no_hint_has_told(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        return "hello"

    tick_s = 0.02
    house = await build(script, replace(POLICY, work=replace(POLICY.work, tick_s=tick_s)))
    db = HearingDatabase(house.db)
    await house.hire(db)

    async def has_looked() -> bool:
        return len(db.looked_at) >= 6

    await house.until(has_looked)
    first, second, third = db.looked_at[-3:]
    assert min(second - first, third - second) > 0.9 * HEARING_TICKS * tick_s
    await house.say("go")
    await house.until_quiet()
    assert await house.replies() == ["hello"]
