"""Slash commands: every action, the usage of each, the numbers of a list, and one guard for this surface too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clutch import Clutch, IdempotencyConflict, InvalidInput, NotFound
from clutch.api.handles import Task
from clutch.api.slash import ACTIONS, COMMANDS, MAIN_SESSION, is_command
from clutch.core.authority import OperatorCaller, Scope
from clutch.core.messages import Answer, Call, Input, Usage
from clutch.core.model import Phase
from clutch.core.policy import Control, Limits, Policy
from clutch.ports import ModelRequest, OnDelta
from clutch.store.transaction import Tx
from clutch.testing.channels import RecordingChannel
from clutch.transactions import idempotency
from clutch.transactions.idempotency import Kept, keep
from tests.patience import PATIENCE_S
from tests.policies import QUICK

pytestmark = pytest.mark.anyio

POLICY = replace(
    QUICK,
    limits=Limits(depth_max=3),
    control=Control(steer_interval_s=0.0, send_wait_s=5.0),
)


class Puppets:
    """The main agent says thanks; a child waits until it is let go, and then says what it heard last."""

    def __init__(self) -> None:
        self.go, self.asked = asyncio.Event(), asyncio.Event()
        self.heard: list[str] = []

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        told = [message.text for message in request.transcript if isinstance(message, Input)]
        if not told[0].startswith("[Subagent task"):
            self.heard.append(told[-1])
            return Answer(f"thanks for {told[-1][:20]}", usage=Usage(100, 20), model="puppet")
        if "use a tool" in told[0] and not any(isinstance(entry, Answer) for entry in request.transcript):
            return Answer("", (Call("list", {"path": "."}),), Usage(10, 5), "puppet", "tools")
        self.asked.set()
        await self.go.wait()
        return Answer(f"heard: {told[-1]}", usage=Usage(10, 5), model="puppet")


@asynccontextmanager
async def chat(tmp_path: Path, policy: Policy = POLICY) -> AsyncIterator[tuple[Clutch, Puppets]]:
    puppets = Puppets()
    clutch = Clutch(
        state=tmp_path / "state",
        models=puppets,
        policy=policy,
        workspace=tmp_path,
        channels={"web": RecordingChannel(operators=["*"])},
        serve=False,
    )
    async with clutch as c:
        yield c, puppets


async def phase(c: Clutch, task: Task, *phases: Phase) -> None:
    """Until it is there."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await c.command(f"/subagents info {task.id}")
            if any(f"Phase: {one}" in found for one in phases):
                return
            await asyncio.sleep(0.01)


# ---- what is a command -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["/etc/passwd is odd", "hello /stop", "/ hello", "/Stop", "//stop", "/a1"])
def test_other_words_are_for_the_agent(text: str) -> None:
    assert not is_command(text)


async def test_command_that_is_not_there_is_said_so_with_the_nearest(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        assert "Did you mean /subagents?" in await c.command("/subagent list")
        assert "Did you mean kill?" in await c.command("/subagents kil 1")
        assert puppets.heard == []


async def test_command_in_a_chat_is_answered_there_and_never_reaches_the_agent(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        await c.say("/subagents", idempotency_key="k")
        await c.say("/subagents", idempotency_key="k")
        assert await c.reply() == "No subagents."
        await c.say("/etc/passwd is odd")
        assert (await c.reply()).startswith("thanks for /etc/passwd")
        assert puppets.heard == ["/etc/passwd is odd"]


NEEDS = {name: command for name, command in ACTIONS.items() if "<" in command.usage}


@pytest.mark.parametrize("name", NEEDS)
async def test_missing_words_are_answered_with_the_usage_of_that_action(tmp_path: Path, name: str) -> None:
    async with chat(tmp_path) as (c, _):
        assert await c.command(f"/subagents {name}") == f"Usage: {NEEDS[name].usage}"


@pytest.mark.parametrize(
    "line",
    [
        "/subagents list all of them", "/subagents info a b", "/subagents log a many", "/subagents log a 0",
        "/subagents steer a", "/subagents send a", "/subagents spawn main", "/stop now", "/kill", "/tell a", "/steer a",
        "/new please", "/status of it", "/agents all", "/subagents pause a b", "/model a b", "/subagents help me",
    ],
)  # fmt: skip
async def test_wrong_words_are_answered_with_the_usage(tmp_path: Path, line: str) -> None:
    async with chat(tmp_path) as (c, _):
        answer = await c.command(line)
        assert answer.startswith("Usage: /")
        assert answer.removeprefix("Usage: ").split()[0] == line.split()[0]


async def test_help_shows_every_action(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _):
        shown = await c.command("/subagents help")
        assert all(command.usage in shown for command in ACTIONS.values())


# ---- the list ----------------------------------------------------------------------------------------


@pytest.mark.scenario(158)
async def test_number_last_label_prefix_run_prefix_and_session_key_find_the_child(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _puppets):
        first = await c.spawn("one", label="AI research")
        second = await c.spawn("two", label="Data analysis")
        await phase(c, first, Phase.RUNNING)
        await phase(c, second, Phase.RUNNING)
        shown = (await c.command("/subagents")).splitlines()
        assert shown[0] == "Subagents (this session)   Active: 2 · Done: 0"
        assert re.fullmatch(
            rf"1\) running · AI research · \S+ · thinking · step 1 · \d+ s · {first.id}", shown[1]
        )
        assert re.fullmatch(
            rf"2\) running · Data analysis · \S+ · thinking · step 1 · \d+ s · {second.id}", shown[2]
        )
        run = re.search(r"run (r_\w+)", await c.command("/subagents info 1"))
        assert run is not None
        for target in ("1", "#1", first.id, first.id[:-1], '"AI research"', "AI", first.session_key, run[1]):
            assert f"task {first.id}," in await c.command(f"/subagents info {target}"), target
        assert f"task {second.id}," in await c.command("/subagents info last")
        assert "is a main session" in await c.command("/subagents info main")
        third = await c.spawn("three", label="AI again")
        ambiguous = await c.command("/subagents info AI")
        assert first.id in ambiguous
        assert third.id in ambiguous
        unknown = await c.command("/subagents info nobody")
        assert "there is no session or task 'nobody'" in unknown
        assert second.id in unknown
        assert f"task {second.id}," in await c.command("/subagents info 2")  # as the list was last shown


async def test_numbers_are_those_of_the_chat_they_were_shown_in(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _):
        task = await c.spawn("one")
        await c.command("/subagents")
        assert task.id in await c.command("/subagents info 1")
        there = await c.command("/subagents info 1", session="agent:main:chat:other")
        assert "there is no session or task '1'" in there


async def test_ended_children_stay_listed_with_what_became_of_them(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        puppets.go.set()
        task = await c.spawn("one", label="quick", notify_parent=True)
        await c.wait_idle()
        head, line = (await c.command("/subagents list")).splitlines()
        assert head == "Subagents (this session)   Active: 0 · Done: 1"
        assert re.fullmatch(rf"1\) done · quick · \S+ · unchecked · result delivered · {task.id}", line)


async def test_tree_shows_what_is_below_the_children_too(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _):
        parent = await c.spawn("one", label="parent")
        number, _ = await c.local_gateway.session("agent:main:main")
        from clutch.core.ids import parse_task_id
        from clutch.core.spawn import SpawnRequest
        from clutch.engine.spawn import spawn_all
        from clutch.transactions.spawn import ChildRequest

        ids = c.services.ids
        order = ChildRequest("x", ids.next(), ids.uuid4(), SpawnRequest("below", "child"), 0)
        await spawn_all(c.services, parse_task_id(parent.id) or 0, number, None, [order])
        assert "child" not in await c.command("/subagents")
        assert [
            " parent " in line or " child " in line
            for line in (await c.command("/subagents tree")).splitlines()[1:]
        ] == [True, True]
        assert "Label: child" in await c.command("/subagents info 2")


# ---- looking at one ----------------------------------------------------------------------------------

FIELDS = (
    "Status", "Now", "Phase", "Label", "Task", "Ids", "Session", "Parent", "Depth", "Role", "Model", "Thinking", "Mode",
    "Cleanup", "Workspace", "Created", "Queued", "Started", "Ended", "Archive", "Elapsed", "Tokens", "Cost", "Delivery",
    "Outcome", "Result", "Attachments", "Plan",
)  # fmt: skip


@pytest.mark.scenario(159)
async def test_log_shows_twenty_lines_two_hundred_at_most_and_tools_if_asked_for(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        task = await c.spawn("use a tool", label="digger")
        await puppets.asked.wait()
        plain = await c.command(f"/subagents log {task.id}")
        assert "use a tool" in plain
        assert "calls list" not in plain
        with_tools = await c.command(f"/subagents log {task.id} 5 tools")
        assert "assistant calls list(.)" in with_tools
        assert len((await c.command(f"/subagents log {task.id} 1")).splitlines()) <= 2


@pytest.mark.scenario(159)
async def test_log_is_as_long_as_asked_for(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        puppets.go.set()
        task = await c.spawn("talk", label="talker")
        await c.wait_idle()
        await c.services.db.alone(_many_messages, task.id)
        assert len((await c.command("/subagents log talker")).splitlines()) == 1 + 20
        assert len((await c.command("/subagents log talker 7")).splitlines()) == 1 + 7
        assert len((await c.command("/subagents log talker 9999")).splitlines()) == 1 + 200


def _many_messages(now: float, task_id: str):  # type: ignore[no-untyped-def]
    from clutch.core import messages
    from clutch.core.ids import parse_task_id

    number = parse_task_id(task_id)
    for seq in range(10, 260):
        said = messages.dump(Input(f"line {seq}", "user"))
        yield (
            "INSERT INTO messages(session_id, seq, run_id, kind, body, at) VALUES(?, ?, 0, 'input', ?, ?)",
            (number, seq, said, now),
        )


@pytest.mark.scenario(159)
async def test_info_shows_all_fields(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        puppets.go.set()
        _ = await c.spawn("find it", label="finder")
        await c.wait_idle()
        shown = dict(line.split(": ", 1) for line in (await c.command("/subagents info finder")).splitlines())
        assert tuple(shown) == FIELDS
        assert shown["Status"] == "done"
        assert shown["Task"] == "find it"
        assert shown["Parent"] == "agent:main:main"


async def test_why_tells_the_story(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _):
        task = await c.spawn("find it", label="finder")
        await phase(c, task, Phase.RUNNING)
        assert (await c.command("/subagents why finder")).startswith(f'{task.id} "finder": running')


# ---- acting ------------------------------------------------------------------------------------------


async def test_kill_says_what_stopped_and_what_had_finished(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _):
        one, two = await c.spawn("a", label="one"), await c.spawn("b", label="two")
        assert await c.command("/subagents kill one no longer needed") == f"Stopped 1: {one.id}."
        assert (await one).error == "no longer needed"
        assert await c.command("/kill one") == f"Already finished: {one.id}."
        assert await c.command("/subagents stop all") == f"Stopped 1: {two.id}."
        assert await c.command("/kill all") == "Nothing to stop."


async def test_steer_send_pause_resume_retry_continue_remove(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        task = await c.spawn("a", label="one")
        await puppets.asked.wait()
        assert await c.command("/steer one go left") == f"Steered {task.id}."
        assert await c.command("/subagents pause one") == f"Paused: {task.id}."
        assert await c.command("/subagents pause one") == "Nothing to pause."
        assert await c.command("/subagents resume one") == f"Resumed: {task.id}."
        puppets.go.set()
        assert (await task).text == "heard: go left"
        await c.wait_idle()
        assert "use `continue`" in await c.command("/tell one more")
        assert await c.command("/subagents continue one and right") == f"Continued {task.id}."
        await c.wait_idle()
        assert (await (await c.get(task.id))).text == "heard: and right"
        assert await c.command("/subagents retry one") == f"Retried {task.id}."
        await c.wait_idle()
        for word in ("archive", "remove"):
            assert await c.command(f"/subagents {word} one") == f"Archived {task.id}."
        assert "it is not a dead letter" in await c.command("/subagents redeliver one")
        assert "it is not a dead letter" in await c.command("/subagents dismiss one")


def instructions(now: float) -> Tx[int]:
    return int((yield "SELECT COUNT(*) FROM inbox WHERE kind = 'instruction'", ())[0][0])


async def test_tell_brings_the_reply(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        task = await c.spawn("a", label="one")
        await puppets.asked.wait()
        telling = asyncio.create_task(c.command("/tell one how far are you?"))
        async with asyncio.timeout(PATIENCE_S):
            while not await c.services.db.read(instructions):  # noqa: ASYNC110 - the database has no event
                await asyncio.sleep(0.01)
        puppets.go.set()
        assert await telling == f"{task.id} replies: heard: how far are you?"


async def test_spawn_makes_a_child_of_this_chat_or_says_why_not(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _):
        said = await c.command("/subagents spawn main look at the stars --thinking low")
        assert re.fullmatch(r"Spawned t_\w+: look at the stars\.", said)
        assert "look at the stars" in await c.command("/subagents info last")
        assert "Thinking: low" in await c.command("/subagents info last")
        assert (await c.command("/subagents spawn beta do it")).startswith("Not spawned: ")
        assert (await c.command("/subagents spawn main do it --thinking loud")).startswith("Not spawned: ")


async def test_plan_is_approved_and_rejected(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        puppets.go.set()
        task = await c.spawn("plan it", label="planner", plan_mode=True)
        await phase(c, task, Phase.AWAITING_APPROVAL)
        assert "needs approval · planner [PLAN:AWAITING APPROVAL] · " in await c.command("/subagents")
        assert await c.command("/subagents reject planner too risky") == f"{task.id} revises its plan."
        await phase(c, task, Phase.AWAITING_APPROVAL)
        assert await c.command("/subagents approve 1 go") == f"{task.id} continues with its plan."
        assert (await task).text == "heard: APPROVED: go"
        assert "no plan that waits" in await c.command("/subagents approve planner")
        assert "planner [PLAN:APPROVED] · " in await c.command("/subagents")


@pytest.mark.scenario(216)
async def test_stop_ends_everything_and_says_how_many(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _):
        tasks = [await c.spawn("a", label=f"one {number}") for number in range(3)]
        assert await c.command("/stop") == "No turn was running here; stopped 3 subagents."
        assert [(await task).outcome for task in tasks] == ["killed"] * 3
        await c.wait_idle()
        assert (await c.command("/subagents")).startswith("Subagents (this session)   Active: 0 · Done: 3")


async def test_command_with_the_same_key_acts_once_and_is_answered_the_same(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        _ = await c.spawn("a", label="first")
        said = await asyncio.gather(*(c.command("/stop", idempotency_key="k") for _ in range(2)))
        assert said == ["No turn was running here; stopped 1 subagent."] * 2
        second = await c.spawn("b", label="second")
        assert await c.command("/stop", idempotency_key="k") == said[0]
        with pytest.raises(IdempotencyConflict):
            await c.command("/kill all", idempotency_key="k")
        for _ in range(2):
            await c.say("/kill first", idempotency_key="k2")
            await c.say("/model other", idempotency_key="k3")
        assert await c.reply() == f"Already finished: {(await c.tasks(label='first'))[0].id}."
        assert await c.reply() == "Model: other, from the next turn on."
        puppets.go.set()
        assert (await second).outcome == "ok"


async def test_answer_that_another_gateway_kept_first_is_the_answer_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chat(tmp_path) as (c, _):

        def kept_by_another(now: float, key: str, request: str, status: int, body: str) -> Tx[Kept]:
            yield from keep(now, key, request, status, "Stopped by the other gateway.")
            return (yield from keep(now, key, request, status, body))

        monkeypatch.setattr(idempotency, "keep", kept_by_another)
        for _ in range(2):
            assert await c.command("/stop", idempotency_key="k") == "Stopped by the other gateway."


# ---- the session -------------------------------------------------------------------------------------


async def test_new_begins_a_new_talk_and_the_children_go_on(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        await c.say("remember this")
        await c.reply()
        task = await c.spawn("a", label="one", notify_parent=True)
        assert await c.command("/new") == "New conversation. Subagents keep running."
        number, _ = await c.local_gateway.session("agent:main:main")
        from clutch.transactions.read import transcripts

        assert (await c.services.db.read(transcripts.briefing, number)).transcript == ()
        puppets.go.set()
        assert (await task).is_ok
        await c.wait_idle()
        assert any("heard: " in text for text in puppets.heard)


async def test_compact_has_the_next_turn_summarise_what_was_said(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _puppets):
        await c.say("remember this: " + "x" * 20_000)
        await c.reply()
        await c.say("and this")
        await c.reply()
        assert "summarised" in await c.command("/compact")
        await c.say("what was it?")
        await c.reply()
        number, _ = await c.local_gateway.session("agent:main:main")
        from clutch.core.messages import Summary
        from clutch.transactions.read import transcripts

        kinds = [type(entry) for entry in (await c.services.db.read(transcripts.briefing, number)).transcript]
        assert kinds.count(Summary) == 1
        await c.say("and now?")
        await c.reply()
        kinds = [type(entry) for entry in (await c.services.db.read(transcripts.briefing, number)).transcript]
        assert kinds.count(Summary) == 1


async def test_model_queue_agents_and_status(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _):
        assert await c.command("/model") == "Model: offline"
        assert await c.command("/model scripted") == "Model: scripted, from the next turn on."
        assert await c.command("/model") == "Model: scripted"
        assert (
            await c.command("/queue collect debounce:2s cap:25 drop:old")
            == "Queue: collect debounce:2s cap:25 drop:old"
        )
        assert "Usage: /queue" in await c.command("/queue sometimes")
        assert await c.command("/agents") == "main · offline"
        _ = await c.spawn("a")
        status = await c.command("/status")
        assert "Session: agent:main:main" in status
        assert "Subagents: 1 active, 1 in all" in status


async def test_thread_is_given_to_a_child_and_taken_back(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        assert await c.command("/unfocus") == "Messages here go to no subagent."
        task = await c.spawn("a", label="one")
        await puppets.asked.wait()
        await c.receive_thread_message("web", "th1", "/focus one", idempotency_key="f")
        await c.receive_thread_message("web", "th1", "look left")
        await c.receive_thread_message("web", "th1", "/unfocus")
        with pytest.raises(NotFound):
            await c.receive_thread_message("web", "th1", "anybody there?")
        puppets.go.set()
        assert (await task).text == "heard: look left"
        said = await c.services.db.read(_said_in_threads)
        assert said == [
            f"Messages here go to {task.id} now; /unfocus ends that.",
            "Messages here no longer go to a subagent.",
        ]


async def test_chat_is_given_to_a_child_until_it_is_taken_back(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, puppets):
        puppets.go.set()
        talk = await c.spawn("a", label="one", thread=True)
        assert (await c.reply()).startswith("thanks for [Subagent]")
        await c.say("/focus one")
        assert talk.id in await c.reply()
        thanked = len(puppets.heard)
        await c.say("look left")
        assert await c.reply() == f"[{talk.id}] heard: look left"
        await c.say("elsewhere", session="agent:main:chat:other")
        assert await c.reply(session="agent:main:chat:other") == "thanks for elsewhere"
        await c.say("/unfocus")
        assert "no longer go to a subagent" in await c.reply()
        await c.say("and you?")
        assert await c.reply() == "thanks for and you?"
        assert puppets.heard[thanked:] == ["elsewhere", "and you?"]
        await c.receive_thread_message(
            "api", f"{MAIN_SESSION}/{talk.id}", "still there?"
        )  # it has its own thread, too
        assert await c.reply() == f"[{talk.id}] heard: still there?"


async def test_command_in_a_thread_of_a_chat_is_for_that_chat(tmp_path: Path) -> None:
    async with chat(tmp_path) as (c, _):
        mine = await c.spawn("a")
        talk = "agent:main:chat:other"
        await c.say(f"/focus {mine.id}", session=talk)
        await c.reply(session=talk)
        await c.receive_thread_message("api", f"{talk}/chat", "/unfocus")
        await c.reply(session=talk)
        await c.say("/stop", session=talk)
        assert (
            await c.reply(session="agent:main:chat:other") == "No turn was running here; stopped 0 subagents."
        )
        assert (await c.tasks())[0].id == mine.id
        await phase(c, mine, Phase.RUNNING)


@pytest.mark.parametrize(
    ("channel", "thread", "field"),
    [("hook", "t", "channel"), ("a:b", "t", "channel"), ("web", "", "thread"), ("web", "t" * 201, "thread")],
)  # fmt: skip
async def test_place_that_nobody_can_write_in_is_refused(
    tmp_path: Path, channel: str, thread: str, field: str
) -> None:
    async with chat(tmp_path) as (c, _):
        with pytest.raises(InvalidInput) as refused:
            await c.receive_thread_message(channel, thread, "/status")
        assert refused.value.field == field


def _said_in_threads(now: float):  # type: ignore[no-untyped-def]
    return [row[0] for row in (yield "SELECT body FROM outbox WHERE channel = 'web' ORDER BY id", ())]


# ---- one guard ---------------------------------------------------------------------------------------

LOOKS = ("list", "tree", "log a", "info a", "why a")
DECISIONS = ("approve a", "reject a no")
ACTS = (
    "kill a", "kill all", "send a hi", "steer a hi", "pause a", "resume a", "retry a", "continue a", "redeliver a",
    "dismiss a", "remove a",
)  # fmt: skip


@pytest.mark.parametrize("scope", [Scope.READ, Scope.WRITE, Scope.APPROVE, Scope.ADMIN])
async def test_every_action_needs_the_scope_that_the_guard_asks_for(tmp_path: Path, scope: Scope) -> None:
    """The same matrix as over HTTP and as the verbs themselves."""
    async with chat(tmp_path, replace(POLICY, control=replace(POLICY.control, send_wait_s=0.01))) as (c, _):
        _ = await c.spawn("a", label="a", plan_mode=True)
        caller = OperatorCaller(frozenset({scope, Scope.READ}), "somebody")
        for lines, needed in ((LOOKS, Scope.READ), (DECISIONS, Scope.APPROVE), (ACTS, Scope.WRITE)):
            for line in lines:
                said = await c.local_gateway.command(f"/subagents {line}", MAIN_SESSION, None, caller)
                allowed = scope is Scope.ADMIN or needed in caller.scopes
                assert ("needs the scope" in said) != allowed, (line, said)
        for line in ("/stop", "/new", "/model x", "/queue collect"):
            said = await c.local_gateway.command(line, MAIN_SESSION, None, caller)
            assert ("needs the scope" in said) == (scope not in (Scope.WRITE, Scope.ADMIN)), (line, said)


def test_every_command_of_the_table_is_written_down() -> None:
    assert set(COMMANDS) >= {
        "subagents",
        "new",
        "reset",
        "model",
        "kill",
        "steer",
        "tell",
        "stop",
        "queue",
        "agents",
        "status",
    }
