"""What bounds a run at work: its steps, a loop, and a result that must have a form."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from clutch.core.authority import EVERY_SCOPE, OperatorCaller
from clutch.core.messages import Answer, Call, Input, Result, Results, Usage
from clutch.core.model import Outcome, Phase, Plan
from clutch.core.policy import Policy
from clutch.core.run import ACCEPTED
from clutch.core.text.announce import LOOP_NOTE, SUBMIT_NOTE
from clutch.engine import output_schema
from clutch.engine.actions import TaskActions
from clutch.errors import StoreBusy
from clutch.ports import ModelRequest
from clutch.store.transaction import Database, Keys
from clutch.testing.database import PassThroughDatabase
from clutch.transactions import turn, turn_end
from clutch.transactions.read import lists, transcripts
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, ask_for, opening, step, use
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}, "names": {"type": "array", "items": {"type": "string"}}},
    "required": ["count"],
    "additionalProperties": False,
}


def uses(*calls: tuple[str, dict[str, Any]], text: str = "") -> Answer:
    return Answer(text, tuple(Call(name, args) for name, args in calls), Usage(10, 5), "scripted", "tools")


def submits(value: Any) -> Answer:
    return uses(("submit_result", {"value": value}))


def reads(number: int, text: str = "") -> Answer:
    return uses(("read", {"n": number}), text=text)


async def ok() -> str:
    return "ok"


Says = Callable[[int], Answer | str]


async def child(
    build: Build, says: Says, policy: Policy = POLICY, *, runs: bool = True, **asked: Any
) -> House:
    """Main sends one child, which says at each step what `says` says; at work until all is quiet."""

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            sent = uses(("sessions_spawn", {"task": "do child", "label": "child", **asked}))
            return (sent, "sent", "heard")[min(2, step(request))]
        return says(step(request))

    house = await build(script, policy)
    house.tool("read", ok)
    await house.say("go")
    if runs:
        await house.hire()
        await house.until_quiet()
    return house


def told(house: House) -> tuple[Result, ...]:
    """The results the child's model saw last."""
    found = [entry for entry in house.model.of("do child")[-1].transcript if isinstance(entry, Results)]
    return found[-1].results


async def value(house: House) -> Any:
    ((text,),) = await house.rows("SELECT value FROM tasks")
    return None if text is None else json.loads(text)


# ---- steps and loops ---------------------------------------------------------------------------------------


async def test_run_ends_at_its_number_of_steps_with_what_it_has_said(build: Build) -> None:
    policy = replace(POLICY, life=replace(POLICY.life, steps_max=5))
    house = await child(build, lambda number: reads(number, f"step {number}"), policy)
    task = await house.task("child")
    assert (task.outcome, task.error) == (Outcome.ERROR, "step limit of 5 reached")
    assert task.result == "step 4"
    assert len(house.model.of("do child")) == 5


async def test_same_call_is_warned_the_fourth_time_and_ended_the_eighth(build: Build) -> None:
    house = await child(build, lambda _: reads(1))
    task = await house.task("child")
    assert (task.outcome, task.error) == (Outcome.ERROR, "loop")
    asked = house.model.of("do child")
    assert len(asked) == 8
    seen = [entry.results[0].text for entry in asked[-1].transcript if isinstance(entry, Results)]
    assert [LOOP_NOTE in text for text in seen] == [False] * 3 + [True] * 4
    assert await house.rows("SELECT COUNT(*) FROM calls WHERE name = 'read'") == [(7,)]


async def test_child_that_turns_back_after_the_warning_goes_on(build: Build) -> None:
    house = await child(build, lambda number: reads(1) if number < 5 else "found another way")
    assert (await house.task("child")).outcome is Outcome.OK


# ---- results in a form -------------------------------------------------------------------------------------


async def test_value_of_the_right_form_is_the_result(build: Build) -> None:
    wanted = {"count": 2, "names": ["ä", "b"]}
    house = await child(build, lambda _: submits(wanted), outputSchema=SCHEMA)
    task = await house.task("child")
    assert task.outcome is Outcome.OK
    assert json.loads(task.result or "") == wanted
    assert await value(house) == wanted
    assert len(house.model.of("do child")) == 1, "no call after the value was accepted"
    assert await house.rows("SELECT COUNT(*) FROM usage WHERE session_id = ?", task.id) == [(1,)]


async def test_child_has_the_tool_only_if_a_form_is_wanted(build: Build) -> None:
    wanted: dict[str, Any] = {"outputSchema": SCHEMA}
    for asked, expected in ((wanted, True), (dict[str, Any](), False)):
        house = await child(build, lambda _: submits({"count": 1}), runs=False, **asked)
        worker = await house.hire()
        await house.until_asked("do child")
        names = [spec.name for spec in house.model.of("do child")[0].tools]
        assert ("submit_result" in names) is expected
        await house.crash(worker)


async def test_references_of_the_form_lead_somewhere_in_the_tool(build: Build) -> None:
    shared = {"$ref": "#/$defs/count", "$defs": {"count": {"type": "integer"}}}
    house = await child(build, lambda _: submits(3), outputSchema=shared)
    (tool,) = [one for one in house.model.of("do child")[0].tools if one.name == "submit_result"]
    assert tool.parameters["properties"] == {"value": {"$ref": "#/$defs/count"}}
    assert tool.parameters["$defs"] == shared["$defs"]
    assert await value(house) == 3


async def test_wrong_form_is_repaired_once(build: Build) -> None:
    house = await child(
        build, lambda number: submits({"count": "two"} if number == 0 else {"count": 2}), outputSchema=SCHEMA
    )
    (result,) = told(house)
    assert result.failed
    assert result.text == "count: 'two' is not of type 'integer'"
    assert await value(house) == {"count": 2}


async def test_wrong_form_twice_is_an_error(build: Build) -> None:
    house = await child(build, lambda _: submits({"count": "two"}), outputSchema=SCHEMA)
    task = await house.task("child")
    assert (task.outcome, (task.error or "")[:7]) == (Outcome.ERROR, "schema:")
    assert len(house.model.of("do child")) == 2
    assert await value(house) is None


async def test_text_instead_of_a_value_is_reminded_once(build: Build) -> None:
    house = await child(
        build, lambda number: "here: 2" if number == 0 else submits({"count": 2}), outputSchema=SCHEMA
    )
    last = house.model.of("do child")[-1].transcript[-1]
    assert isinstance(last, Input)
    assert last.text == SUBMIT_NOTE
    assert await value(house) == {"count": 2}


async def test_text_twice_is_an_error_with_the_text_as_partial_result(build: Build) -> None:
    house = await child(build, lambda number: f"here: {number}", outputSchema=SCHEMA)
    task = await house.task("child")
    assert (task.outcome, (task.error or "")[:7], task.result) == (Outcome.ERROR, "schema:", "here: 1")
    assert len(house.model.of("do child")) == 2


async def test_wrong_value_after_the_reminder_is_an_error(build: Build) -> None:
    house = await child(build, lambda number: "here" if number == 0 else submits({}), outputSchema=SCHEMA)
    task = await house.task("child")
    assert (task.outcome, (task.error or "")[:7]) == (Outcome.ERROR, "schema:")
    assert len(house.model.of("do child")) == 2


async def test_plan_needs_no_form(build: Build) -> None:
    """The form is for the result; a plan is words."""
    house = await child(
        build, lambda _: "PLAN: look, then count", runs=False, outputSchema=SCHEMA, planMode=True
    )
    await house.hire()

    async def is_ready() -> bool:
        return bool(await house.rows("SELECT id FROM tasks WHERE phase = 'awaiting_approval'"))

    await house.until(is_ready)
    task = await house.task("child")
    assert (task.plan, task.result) == (Plan.DRAFTING, "PLAN: look, then count")
    assert "submit_result" not in house.model.of("do child")[0].system


async def test_draft_may_spawn_and_neither_it_nor_its_child_is_offered_what_writes(build: Build) -> None:
    async def script(request: ModelRequest) -> Answer | str:
        if step(request):
            return "done"
        if "be planner" in opening(request):
            return ask_for("helper")
        if "do helper" in opening(request):
            return "found"
        return uses(("sessions_spawn", {"task": "be planner", "label": "planner", "planMode": True}))

    house = await build(script)
    house.tool("change", ok)
    await house.hire()
    await house.say("go")
    await house.until_phase("planner", Phase.AWAITING_APPROVAL)
    offered = [
        {tool.name for tool in house.model.of(words)[0].tools} for words in ("be planner", "do helper")
    ]
    assert all("sessions_spawn" in names and "change" not in names for names in offered)
    assert "change" in {tool.name for tool in house.model.of("go")[0].tools}


class DyingDatabase(PassThroughDatabase):
    """Stands still for ever at one transaction, as a process that died before it."""

    def __init__(self, db: Database, fatal: Callable[..., Any]) -> None:
        super().__init__(db)
        self._fatal = fatal
        self.is_dead = asyncio.Event()

    async def tx(self, keys: Keys, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if fn is self._fatal:
            self.is_dead.set()
            await asyncio.Event().wait()
        return await self._db.tx(keys, fn, *args, **kwargs)


async def test_crash_between_accepted_and_done_asks_nobody_again(build: Build) -> None:
    house = await child(build, lambda _: submits({"count": 3}), runs=False, outputSchema=SCHEMA)
    db = DyingDatabase(house.db, turn_end.submit)
    first = await house.hire(db)
    async with asyncio.timeout(PATIENCE_S):
        await db.is_dead.wait()
    task = await house.task("child")
    stored = await house.rows("SELECT body FROM messages WHERE session_id = ? AND kind = 'results'", task.id)
    assert ACCEPTED in stored[0][0]
    await house.crash(first)
    await house.hire()
    await house.until_quiet()
    assert await value(house) == {"count": 3}
    assert len(house.model.of("do child")) == 1


@pytest.mark.parametrize(
    ("at", "says", "late"),
    [
        (turn_end.fail, Answer("half of it", (), Usage(10, 5), "scripted", "length"), "half of it"),
        (turn.remind, "here: 3", "here: 3"),
        (turn_end.submit, submits({"count": 3}), '{"count": 3}'),
    ],
    ids=["cut", "without its form", "submitted"],
)
async def test_the_last_text_of_a_run_that_is_killed_before_it_is_reached_is_late(
    build: Build, at: Callable[..., Any], says: Answer | str, late: str
) -> None:
    """Whatever the run would have done with it."""
    house = await child(build, lambda _: says, runs=False, outputSchema=SCHEMA)
    db = DyingDatabase(house.db, at)
    worker = await house.hire(db)
    async with asyncio.timeout(PATIENCE_S):
        await db.is_dead.wait()
    task = (await house.task("child")).id
    await TaskActions(worker.services).kill(OperatorCaller(EVERY_SCOPE), task)
    await house.until_quiet()
    result = await house.db.read(lists.result, task)
    assert result is not None
    assert result.outcome is Outcome.KILLED
    assert result.late is not None
    assert result.late[0] == late


class HeldDatabase(PassThroughDatabase):
    """Commits one transaction, and never reports back."""

    def __init__(self, db: Database, held: Callable[..., Any]) -> None:
        super().__init__(db)
        self._held = held
        self.is_reached = asyncio.Event()

    async def is_child(self, session_id: int) -> bool:
        return (await self._db.read(transcripts.briefing, session_id)).depth > 0

    async def tx(self, keys: Keys, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        answer = await self._db.tx(keys, fn, *args, **kwargs)
        if fn is self._held and await self.is_child(args[0].session_id):
            self.is_reached.set()
            await asyncio.Event().wait()
        return answer


@pytest.mark.parametrize(
    ("at", "says", "outcome"),
    [
        (turn_end.finish, "all done", Outcome.OK),
        (turn_end.submit, submits({"count": 3}), Outcome.OK),
        (turn_end.fail, Answer("half of it", (), Usage(10, 5), "scripted", "length"), Outcome.ERROR),
    ],
    ids=["finished", "submitted", "cut"],
)
async def test_the_last_text_of_a_turn_that_is_cancelled_after_its_commit_is_not_late(
    build: Build, at: Callable[..., Any], says: Answer | str, outcome: Outcome
) -> None:
    asked: dict[str, Any] = {} if at is turn_end.finish else {"outputSchema": SCHEMA}
    house = await child(build, lambda _: says, runs=False, **asked)
    db = HeldDatabase(house.db, at)
    worker = await house.hire(db)
    async with asyncio.timeout(PATIENCE_S):
        await db.is_reached.wait()
    await house.dismiss(worker)
    await house.hire()
    await house.until_quiet()
    assert (await house.task("child")).outcome is outcome
    assert await house.rows("SELECT reason FROM events WHERE reason = 'late'") == []


# ---- schemas -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A real server that would serve a schema; what it was asked."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readline())
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"type": "string"}')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}/schema.json", requests


async def test_schema_that_refers_elsewhere_is_never_fetched(build: Build) -> None:
    async with listening() as (url, requests):
        house = await child(build, lambda _: submits("x"), outputSchema={"$ref": url})
        assert requests == []
    task = await house.task("child")
    assert task.outcome is Outcome.ERROR
    (result,) = told(house)
    assert result.text.startswith("the schema refers to something that is not in it")


@pytest.mark.parametrize(
    ("schema", "given", "problem"),
    [
        ({"type": "integer"}, 1, ""),
        ({"type": "integer"}, True, "value: True is not of type 'integer'"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}}, "a", ""),
        ({"$ref": "#/$defs/none"}, "a", "the schema refers to something that is not in it"),
        ({"$ref": "#"}, "a", "the schema refers to itself without end"),
        (True, "anything", ""),
        ({"items": {"type": "string"}}, [1, 2], "0: 1 is not of type 'string'; 1: 2 is not of type 'string'"),
    ],
)
async def test_problems_are_told_in_words(schema: Any, given: Any, problem: str) -> None:
    found = await output_schema.problems(json.dumps(schema), given)
    assert found.startswith(problem)
    assert bool(found) is bool(problem)


async def test_problems_are_few_and_short() -> None:
    many = await output_schema.problems(json.dumps({"items": {"type": "string"}}), list(range(1000)))
    assert many.count(";") == output_schema.PROBLEMS_MAX - 1
    long = await output_schema.problems(json.dumps({"type": "integer"}), "x" * 100_000)
    assert len(long) < 2 * output_schema.PROBLEM_CHARS_MAX


# ---- forms that would take for ever ------------------------------------------------------------------------

#: Each definition asks twice for the next: 2 to the power of 60 ways down.
THOUSANDFOLD = {
    "$ref": "#/$defs/d0",
    "$defs": {
        f"d{depth}": {"allOf": [{"$ref": f"#/$defs/d{depth + 1}"}] * 2} if depth < 60 else {"type": "string"}
        for depth in range(61)
    },
}


@pytest.mark.parametrize(
    ("schema", "given", "is_fine"),
    [
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 50_000 + "!", False),
        ({"type": "string", "pattern": "^(a|a)*$"}, "a" * 50_000, True),
        ({"type": "string", "pattern": "(?:x{1,300}){1,300}y"}, "x" * 50_000, False),
        ({"type": "array", "uniqueItems": True}, [{"n": n} for n in range(20_000)], True),
        ({"type": "array", "uniqueItems": True}, [{"n": 1}, {"n": 1}], False),
        (THOUSANDFOLD, "x", False),
    ],
    ids=["backtracking", "alternatives", "counted", "different", "equal", "references"],
)
async def test_form_that_would_take_for_ever_holds_nobody_up(
    schema: Any, given: Any, is_fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's heart beats meanwhile: what is counted is the CPU of a gap, however busy the machine is."""
    monkeypatch.setattr(output_schema, "CHECK_S", 0.3)
    gaps: list[float] = []

    async def beat() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0.01)
            gaps.append(time.process_time() - last)
            last = time.process_time()

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    found = await asyncio.wait_for(output_schema.problems(json.dumps(schema), given), PATIENCE_S)
    beating.cancel()
    assert (found == "") is is_fine
    assert max(gaps, default=0.0) < 1.0


@pytest.mark.parametrize(
    ("schema", "rule"),
    [
        ({"type": "string", "pattern": "^(?=a)b"}, "look-around"),
        ({"anyOf": [{"properties": {"a": {"pattern": "(a)\\1"}}}]}, "backreferences"),
        ({"$defs": {"x": {"pattern": "\\w{1000}"}}}, "size limit"),
        ({"patternProperties": {"^a": {}}}, "patternProperties"),
    ],
)
async def test_form_that_cannot_be_bounded_is_refused_before_anything_is_spawned(
    build: Build, schema: Any, rule: str
) -> None:
    house = await child(build, lambda _: "never asked", runs=False, outputSchema=schema)
    await house.hire()
    await house.until_asked("go", 2)
    (refused,) = [entry for entry in house.model.of("go")[-1].transcript if isinstance(entry, Results)]
    assert "outputSchema" in refused.results[0].text
    assert rule in refused.results[0].text
    assert await house.rows("SELECT COUNT(*) FROM tasks") == [(0,)]


def test_words_that_only_look_like_patterns_are_no_patterns() -> None:
    named = {"properties": {"pattern": {"const": {"pattern": "(?="}}, "patternProperties": {}}}
    output_schema.check_form(json.dumps(named))


@pytest.mark.parametrize(
    ("answers", "outcome", "result", "error"),
    [
        (("", "found it"), Outcome.OK, "found it", None),
        (("", " \n"), Outcome.ERROR, None, "empty answer"),
        (("look", "", "found it"), Outcome.OK, "found it", None),
        (("look", "", ""), Outcome.OK, None, None),
    ],
)
async def test_an_empty_answer_is_asked_for_once_more(
    build: Build, answers: tuple[str, ...], outcome: Outcome, result: str | None, error: str | None
) -> None:
    """One that stays empty is an error, unless the run used a tool."""
    given = iter(answers)

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("child"), use("sessions_yield"), "heard")[step(request)]
        said = next(given)
        return use(said) if said == "look" else Answer(said, (), Usage(10, 5), "scripted")

    async def look() -> str:
        return "something"

    house = await build(script)
    house.tool("look", look)
    await house.hire()
    await house.say("go")
    await house.until_quiet()
    task = await house.task("child")
    assert (task.outcome, task.result, task.error) == (outcome, result, error)
    assert list(given) == []
    calls = await house.rows("SELECT state FROM usage WHERE session_id = ?", task.id)
    assert len(calls) == len(answers)


async def test_a_tool_of_an_earlier_run_does_not_make_an_empty_answer_a_result(build: Build) -> None:
    """Neither before `continue` nor in the conversation that a child was forked from."""
    given = iter(("look", "found it", "", ""))

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go" and "You are a subagent" not in request.system:
            last = request.transcript[-1]
            fork = Call("sessions_spawn", {"task": "do fork", "label": "fork", "context": "fork"})
            forks = Answer("", (fork,), Usage(10, 5), "scripted", "tools")
            return {"go": ask_for("child"), "fork": forks}.get(
                last.text if isinstance(last, Input) else "", "heard"
            )
        said = "" if opening(request) == "go" else next(given)
        return use(said) if said == "look" else Answer(said, (), Usage(10, 5), "scripted")

    async def look() -> str:
        return "something"

    house = await build(script)
    house.tool("look", look)
    worker = await house.hire()
    await house.say("go")
    await house.until_quiet()
    child = await house.task("child")
    assert (child.outcome, child.result) == (Outcome.OK, "found it")
    await TaskActions(worker.services).continue_(OperatorCaller(EVERY_SCOPE, "boss"), child.id, "and now?")
    await house.until_quiet()
    await house.say("fork")
    await house.until_quiet()
    for label in ("child", "fork"):
        task = await house.task(label)
        assert (task.outcome, task.error) == (Outcome.ERROR, "empty answer")


class BusyDatabase(HeldDatabase):
    """A store that is locked at one transaction of a child until the turn is cut, and then says so."""

    async def tx(self, keys: Keys, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if fn is not self._held or not await self.is_child(args[0].session_id):
            return await self._db.tx(keys, fn, *args, **kwargs)
        self.is_reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise StoreBusy from None


async def test_the_last_text_of_a_killed_run_is_late_although_the_store_fails(build: Build) -> None:
    policy = replace(POLICY, work=replace(POLICY.work, tool_grace_s=0.1))
    house = await child(build, lambda _: "all done", policy, runs=False)
    db = BusyDatabase(house.db, turn_end.finish)
    worker = await house.hire(db)
    async with asyncio.timeout(PATIENCE_S):
        await db.is_reached.wait()
    task = (await house.task("child")).id
    await TaskActions(worker.services).kill(OperatorCaller(EVERY_SCOPE), task)
    await house.until_quiet()
    result = await house.db.read(lists.result, task)
    assert result is not None
    assert result.late is not None
    assert result.late[0] == "all done"
