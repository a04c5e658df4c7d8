"""The session tools as agents use them: on their own children, through the guard, once."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from clutch.core.authority import NEVER_FOR_CHILDREN, Peers, ToolPolicy, Visibility
from clutch.core.authority import to_text as rights_text
from clutch.core.ids import plan_hash
from clutch.core.messages import Answer, Call, Usage
from clutch.core.model import Outcome, Phase
from clutch.core.questions import Decision
from clutch.core.schedule import ScheduleSpec
from clutch.core.session_tools import TOOLS, Action
from clutch.core.spawn import CleanupPolicy
from clutch.ports import ModelRequest, OperatorNotice
from clutch.transactions import control as control_tx
from clutch.transactions import schedules, sessions
from tests.engine.conftest import Build
from tests.engine.family import FREE, Family, family
from tests.engine.house import ask_for, opening, step
from tests.engine.test_questions import asked, decide
from tests.open_questions import waiting

pytestmark = pytest.mark.anyio


async def tree(build: Build, **policy: Any) -> Family:
    """main ← parent ← child; main ← other."""
    made = await family(build, replace(FREE, **policy))
    await made.child("parent")
    await made.child("child", "parent")
    await made.child("other")
    return made


# ---- who has them ------------------------------------------------------------------------------------


async def tools_of(made: Family, name: str) -> set[str]:
    return {spec.name for spec in made.house.model.of(f"be {name}")[0].tools} & TOOLS


@pytest.mark.scenario(42)
async def test_session_tools_follow_the_role_that_was_fixed_at_spawn(build: Build) -> None:
    made = await tree(build, limits=replace(FREE.limits, depth_max=2))
    await made.hears("main", "agents_list")
    assert {spec.name for spec in made.house.model.of("you are main")[0].tools} >= TOOLS
    reads = {"sessions_list", "sessions_history"}
    assert await tools_of(made, "parent") == {"subagents", "sessions_subagent_remove"} | reads
    assert await tools_of(made, "child") == set()
    made.services.policy = replace(
        made.services.policy, limits=replace(FREE.limits, depth_max=5)
    )  # promotes nobody
    assert (await made.hears("child", "subagents")).startswith("there is no tool")


@pytest.mark.scenario(41)
async def test_also_allow_gives_a_leaf_two_reads_and_never_the_five(build: Build) -> None:
    tools = ToolPolicy(also_allow=frozenset({"*"}))
    made = await tree(build, tools=tools, limits=replace(FREE.limits, depth_max=2))
    assert await tools_of(made, "child") == {"sessions_list", "sessions_history"}
    for name in NEVER_FOR_CHILDREN & TOOLS:
        assert (await made.hears("child", name)).startswith("there is no tool")


@pytest.mark.scenario(44)
async def test_leaf_that_may_list_sees_itself_and_no_sibling(build: Build) -> None:
    tools = ToolPolicy(also_allow=frozenset({"sessions_*"}))
    made = await tree(build, tools=tools, limits=replace(FREE.limits, depth_max=2))
    listed = await made.uses("child", "sessions_list")
    assert [one["label"] for one in listed["sessions"]] == ["child"]
    refused = await made.uses("child", "sessions_history", sessionKey="other")
    assert refused["status"] == "error"
    assert "other" not in json.dumps(refused["candidates"])


# ---- acting ------------------------------------------------------------------------------------------

REACHED = {"main": {"parent", "child", "other"}, "parent": {"child"}}
ARGUMENTS: dict[Action, dict[str, str]] = {
    Action.STEER: {"text": "so"},
    Action.SEND: {"text": "so"},
    Action.APPROVE: {"planHash": "0"},
    Action.REJECT: {"planHash": "0", "text": "no"},
}


@pytest.mark.parametrize("who", REACHED)
async def test_agent_acts_on_its_descendants_and_finds_nobody_else(build: Build, who: str) -> None:
    """The same matrix as on the other surfaces. What is not below is not even found."""
    made = await tree(build)
    for action in [action for action in Action if action is not Action.LIST]:
        for whom in ("main", "parent", "child", "other"):
            target = whom if whom == "main" else _id(made, whom)
            wait = {"timeoutSeconds": 0} if action is Action.SEND else {}
            known = ARGUMENTS.get(action, {})
            told = await made.hears(who, "subagents", action=action.value, target=target, **known, **wait)
            assert _fate(told) == expected(action, who, whom), (action, whom, told)


def expected(action: Action, who: str, whom: str) -> str:
    if who == whom and who != "main":
        return "forbidden"
    if whom not in REACHED[who]:
        return "hidden"
    decides = action not in (Action.APPROVE, Action.REJECT) or (who, whom) != ("main", "child")
    return "reached" if decides else "forbidden"


def _fate(told: str) -> str:
    if "there is no session or task" in told or "is a main session" in told:
        return "hidden"
    return "forbidden" if '"forbidden"' in told else "reached"


def _id(made: Family, label: str) -> str:
    from clutch.core import ids

    return ids.task_id(made.ids[label])


async def test_list_numbers_the_children_and_the_numbers_work(build: Build) -> None:
    made = await tree(build)
    listed = await made.hears("main", "subagents")
    head, first, second = listed.splitlines()
    assert head == "Subagents (this session)   Active: 2 · Done: 0"
    assert first.startswith("1) running · parent · ")
    assert second.startswith("2) running · other · ")
    assert (await made.uses("main", "subagents", action="kill", target="#2"))["stopped"] == [
        _id(made, "other")
    ]
    assert (await made.uses("main", "subagents", action="kill", target="2"))["alreadyFinished"] == [
        _id(made, "other")
    ]


async def test_kill_all_kills_the_callers_own_tree_and_nothing_else(build: Build) -> None:
    made = await tree(build)
    assert (await made.uses("parent", "subagents", action="kill", target="all"))["stopped"] == [
        _id(made, "child")
    ]
    assert (await made.house.task("other")).outcome is None
    told = await made.uses("main", "subagents", action="kill", target="all", text="enough")
    assert told == {
        "stopped": [_id(made, "parent"), _id(made, "other")],
        "alreadyFinished": [],
        "stillStopping": [],
        "notStopped": [],
    }


async def test_send_waits_for_the_child_and_brings_its_new_words(build: Build) -> None:
    made = await tree(build)
    asking = asyncio.create_task(
        made.uses("main", "subagents", action="send", target="other", text="how far are you?")
    )

    async def is_sent() -> bool:
        return bool(await made.house.rows("SELECT 1 FROM inbox WHERE body = 'how far are you?'"))

    await made.house.until(is_sent)
    made.says("other", "old words")
    made.says("other", "half way")
    assert await asking == {"status": "ok", "reply": "half way"}


async def test_steer_pause_resume_continue_and_remove_do_what_they_say(build: Build) -> None:
    made = await tree(build)
    steered = await made.uses("main", "subagents", action="steer", target="other", text="go left")
    assert (steered["status"], steered["taskId"]) == ("accepted", _id(made, "other"))
    assert steered["supersedes"].startswith("r_")
    assert await made.uses("main", "subagents", action="pause", target="other") == {
        "changed": [_id(made, "other")]
    }
    assert await made.uses("main", "subagents", action="resume", target="other") == {
        "changed": [_id(made, "other")]
    }
    refused = await made.uses("main", "sessions_subagent_remove", target="other")
    assert "use `kill` first" in refused["error"]
    made.says("other", "left it is")
    made.says("main", "told so")
    await made.house.until_phase("other", Phase.COMPLETED)
    again = await made.uses("main", "subagents", action="continue", target="other", text="more")
    assert again["status"] == "accepted"
    made.says("other", "more it is")
    made.says("main", "told so")
    await made.house.until_phase("other", Phase.COMPLETED)
    await made.uses("main", "sessions_subagent_remove", target="other")
    assert await made.house.rows("SELECT retained FROM tasks WHERE label = 'other'") == [(0,)]


async def test_call_that_is_made_again_after_a_crash_acts_once(build: Build) -> None:
    made = await tree(build)
    house = made.house
    asking = asyncio.create_task(made.hears("main", "subagents", action="send", target="other", text="hello"))

    async def is_sent() -> bool:
        return bool(await house.rows("SELECT 1 FROM inbox WHERE body = 'hello'"))

    await house.until(is_sent)
    (worker,) = house._working
    await house.crash(worker)
    made.services = (await house.hire()).services
    made.nobody_waits()
    assert json.loads(await asking)["status"] == "ok"
    assert len(await house.rows("SELECT id FROM inbox WHERE body = 'hello'")) == 1


async def test_killed_caller_acts_on_nobody_any_more(build: Build) -> None:
    """The caller is the run on the server: one that lost its session meets it at its next act."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def script(request: ModelRequest) -> Answer | str:
        if opening(request) == "go":
            return (ask_for("parent"), "sent")[step(request)]
        if "do parent" in opening(request):
            if step(request) == 0:
                return ask_for("child")
            asked.set()
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                await go_on.wait()  # a library that does not heed the cancellation
            return Answer(
                "", (Call("subagents", {"action": "steer", "target": "child", "text": "x"}),), Usage(1, 1)
            )
        await asyncio.Event().wait()
        return ""

    house = await build(script)
    await house.hire()
    await house.say("go")
    await asked.wait()
    await house.until_asked("do child")

    parent = await house.task("parent")
    await house.db.alone(control_tx.kill, house.policy, parent.id, "enough", "person")
    go_on.set()
    await house.until_quiet()
    assert (await house.task("child")).outcome is Outcome.KILLED
    assert await house.rows("SELECT id FROM inbox WHERE kind = 'instruction'") == []


# ---- plans -------------------------------------------------------------------------------------------


async def planned(build: Build) -> Family:
    made = await family(build)
    await made.child("planner", plan_mode=True)
    made.says("planner", "look, then leap")
    await made.house.until_phase("planner", Phase.AWAITING_APPROVAL)
    return made


@pytest.mark.scenario(138)
async def test_requester_approves_by_the_tool_with_the_hash_it_was_shown(build: Build) -> None:
    made = await planned(build)
    made.says("main", "a plan, I see")
    listed = await made.hears("main", "subagents")
    assert "needs approval" in listed
    wrong = await made.uses("main", "subagents", action="approve", target="planner", planHash="0")
    assert "read it again" in wrong["error"]
    seen = plan_hash("look, then leap")
    right = await made.uses("main", "subagents", action="approve", target="planner", planHash=seen, text="go")
    assert right == {"status": "approved", "taskId": _id(made, "planner"), "round": 0}
    made.nobody_waits()
    await made.house.until_quiet()
    assert (await made.house.task("planner")).result == "planner is done"


@pytest.mark.scenario(138)
@pytest.mark.scenario(139)
@pytest.mark.scenario(215)
async def test_words_of_the_requester_that_has_read_the_plan_decide_it(build: Build) -> None:
    made = await planned(build)
    made.says("main", "a plan, I see")
    told = await made.uses("main", "sessions_send", sessionKey="planner", message="REJECTED: too risky")
    assert any("sessions_send sessionKey=" in text for text in await made.house.inputs(made.house.main))
    assert told == {"status": "revising", "taskId": _id(made, "planner"), "round": 1}
    await made.house.until_asked("be planner", 2)
    assert (await made.house.inputs(made.ids["planner"]))[-1] == "REJECTED: too risky"
    made.says("planner", "look twice, then leap")
    await made.house.until_phase("planner", Phase.AWAITING_APPROVAL)
    made.says("main", "a better plan, I see")
    told = await made.uses("main", "sessions_send", sessionKey="planner", message="APPROVED:")
    assert told["status"] == "approved"


# ---- sessions_send -----------------------------------------------------------------------------------


@pytest.mark.scenario(144)
async def test_unknown_label_is_an_error_and_another_agent_is_forbidden(build: Build) -> None:
    made = await tree(build)
    unknown = await made.uses("main", "sessions_send", label="nobody", message="hi")
    assert unknown["status"] == "error"
    assert unknown["candidates"]
    for args in ({"label": "x", "agentId": "beta"}, {"sessionKey": "agent:beta:main"}):
        told = await made.uses("main", "sessions_send", message="hi", **args)
        assert told["status"] == "forbidden", told
        assert "did you mean" not in told["error"]
    slip = await made.uses("main", "sessions_send", message="hi", sessionKey="agent:mian:main")
    assert "did you mean 'main'?" in slip["error"]
    told = await made.uses("main", "sessions_send", label="other", message="hi", timeoutSeconds=0)
    assert told == {"status": "accepted"}


async def open_beta(made: Family) -> None:
    from clutch.core.authority import AgentGrant, root_rights

    rights = rights_text(root_rights(AgentGrant(depth_max=1)))
    made.ids["beta"] = await made.house.db.alone(
        sessions.open_session,
        sessions.NewMain(made.services.ids.next(), "agent:beta:main", "beta", rights, None, "."),
    )


@pytest.mark.scenario(141)
@pytest.mark.parametrize("visibility", Visibility)
@pytest.mark.parametrize("is_sandboxed", [False, True])
async def test_what_a_main_agent_sees_is_as_wide_as_the_config_says(
    build: Build, visibility: Visibility, is_sandboxed: bool
) -> None:
    peers = Peers(enabled=True, allow=frozenset({"*"}))
    made = await family(build, replace(FREE, visibility=visibility, peers=peers))
    await made.child("mine")
    await open_beta(made)
    from clutch.core.authority import AgentGrant, root_rights

    rights = rights_text(root_rights(AgentGrant(depth_max=3, sandbox=is_sandboxed)))
    twin = "agent:main:chat:twin"
    await made.house.db.alone(
        sessions.open_session, sessions.NewMain(made.services.ids.next(), twin, "main", rights, None, ".")
    )
    await made.house.db.alone(_set_rights, made.house.main, rights)
    seen = {one["sessionKey"] for one in (await made.uses("main", "sessions_list"))["sessions"]}
    allowed = min(visibility, Visibility.TREE) if is_sandboxed else visibility
    assert (twin in seen) == (allowed >= Visibility.AGENT)
    assert ("agent:beta:main" in seen) == (allowed >= Visibility.ALL)
    assert any("subagent" in key for key in seen) == (allowed >= Visibility.TREE)
    assert "agent:main:main" in seen


def _set_rights(now: float, session_id: int, rights: str) -> Any:
    yield "UPDATE sessions SET rights = ? WHERE id = ?", (rights, session_id)


# ---- looking -----------------------------------------------------------------------------------------


async def test_history_of_a_child_is_read_and_of_nobody_else(build: Build) -> None:
    made = await tree(build)
    read = await made.uses("main", "sessions_history", sessionKey="child")
    assert "be child" in read["messages"][0]["text"]
    assert read["before"] is None
    hidden = await made.uses("parent", "sessions_history", sessionKey=_id(made, "other"))
    assert hidden["status"] == "error"


async def test_call_that_an_announce_prints_reads_a_long_result_also_without_its_transcript(
    build: Build,
) -> None:
    made = await family(build)
    await made.child("teller", cleanup=CleanupPolicy.DELETE)
    made.says("main", "a long one, I see")
    made.says("teller", "".join(f"line {number}\n" for number in range(1000)))
    await made.house.until_phase("teller", Phase.COMPLETED)
    (announce,) = [said for said in await made.house.inputs(made.house.main) if "[Subagent]" in said]
    (printed,) = re.findall(r"^The whole text: sessions_history (.*)$", announce, re.MULTILINE)
    args: dict[str, object] = dict(word.split("=") for word in printed.split())
    assert args.pop("result") == "true"
    first = (await made.uses("main", "sessions_history", result=True, **args))["messages"][0]
    assert first["text"].startswith("line 0\nline 1\n")
    more = {"result": True, "offset": first["nextOffset"]}
    second = (await made.uses("main", "sessions_history", **more, **args))["messages"][0]
    whole = (
        first["text"][: first["nextOffset"]] + second["text"][: second["nextOffset"] - first["nextOffset"]]
    )
    assert "".join(f"line {number}\n" for number in range(1000)).startswith(whole)


async def test_status_and_agents_are_told_in_few_words(build: Build) -> None:
    made = await tree(build)
    status = await made.uses("main", "session_status")
    assert (status["sessionKey"], status["children"]) == ("agent:main:main", {"active": 2, "total": 2})
    assert status["usage"]["calls"] == 1
    assert "problems" not in status
    made.services.problems = lambda: [
        OperatorNotice("mcp search", 'MCP server "search" did not start', "install it"),
        OperatorNotice("import-path", "a workspace is searched for modules", "unset it", is_error=False),
    ]
    of_child = await made.uses("main", "session_status", sessionKey="child")
    assert of_child["problems"] == [{"detail": 'MCP server "search" did not start', "remedy": "install it"}]
    assert (of_child["depth"], of_child["phase"]) == (2, "running")
    assert await made.uses("main", "agents_list") == {
        "requester": "main", "allowAny": False, "agents": [{"id": "main", "model": "offline", "configured": True}],
    }  # fmt: skip


async def test_an_allowed_agent_that_is_not_configured_is_listed_as_such_and_cannot_be_spawned(
    build: Build,
) -> None:
    limits = replace(FREE.limits, allow_agents=frozenset({"reserch"}))
    made = await tree(build, limits=limits)
    listed = (await made.uses("main", "agents_list"))["agents"]
    assert [(one["id"], one["configured"]) for one in listed] == [("main", True), ("reserch", False)]


async def test_a_label_of_an_agent_reaches_its_chat_session(build: Build) -> None:
    from clutch.core.authority import AgentGrant, root_rights

    made = await tree(build, visibility=Visibility.ALL)
    rights = rights_text(root_rights(AgentGrant(depth_max=1)))
    chat = sessions.NewMain(made.services.ids.next(), "agent:main:chat:night", "main", rights, None, ".")
    await made.services.db.alone(sessions.open_session, chat)
    told = await made.uses(
        "main", "sessions_send", agentId="main", label="night", message="hi", timeoutSeconds=0
    )
    assert told == {"status": "accepted"}
    read = await made.services.db.read(letters_of, chat[0])
    assert len(read) == 1


def letters_of(now: float, session_id: int) -> Any:
    del now
    rows = yield "SELECT body FROM inbox WHERE session_id = ?", (session_id,)
    return [body for (body,) in rows]


@pytest.mark.scenario(148)
async def test_yield_without_any_child_says_so(build: Build) -> None:
    made = await family(build)
    assert "there is nothing to wait for" in await made.hears("main", "sessions_yield")


# ---- schedules ---------------------------------------------------------------------------------------


async def decided(made: Family, decision: Decision, /, **args: Any) -> str:
    """What the main agent reads after the user has decided about its call of `cron`."""
    hears = asyncio.create_task(made.hears("main", "cron", **args))
    (question,) = await asked(made.house)
    assert json.loads(question.body)["args"] == args
    await decide(made.house, question, decision)
    return await hears


async def test_main_agent_schedules_with_the_approval_of_the_user(build: Build) -> None:
    made = await family(build)
    nightly = {"name": "nightly", "task": "look", "cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    assert (await decided(made, Decision.REJECT, **nightly)).startswith("not approved")
    assert await made.house.db.read(schedules.listed) == []
    added = json.loads(await decided(made, Decision.APPROVE, **nightly))
    assert (added["name"], len(added["nextTimes"])) == ("nightly", 3)
    (found,) = await made.house.db.read(schedules.listed)
    assert (found.schedule.session, found.schedule.notify_parent) == ("agent:main:main", True)
    assert (await made.uses("main", "session_status"))["schedules"] == [added]
    removed = json.loads(await decided(made, Decision.APPROVE, action="remove", name="nightly"))
    assert removed["name"] == "nightly"
    assert await made.house.db.read(schedules.listed) == []


async def test_user_is_not_asked_about_a_schedule_that_makes_no_sense(build: Build) -> None:
    made = await family(build)
    wrong = await made.uses("main", "cron", name="a", task="look", cron="61 * * * *")
    assert wrong["error"].startswith("cron: '61 * * * *'")
    assert await made.house.db.read(waiting) == []


async def test_agent_changes_no_schedule_of_another_session(build: Build) -> None:
    made = await family(build)
    other = ScheduleSpec("theirs", every_s=60.0, task="look", session="agent:main:chat:kim")
    await made.house.db.alone(schedules.add, made.services.ids.next(), other)
    for action in ("pause", "remove"):
        told = json.loads(await decided(made, Decision.APPROVE, action=action, name="theirs"))
        assert told["error"].startswith("this session has no schedule 'theirs'")
    assert "schedules" not in await made.uses("main", "session_status")
    (found,) = await made.house.db.read(schedules.listed)
    assert not found.paused


async def test_schedule_names_an_agent_that_the_session_may_start(build: Build) -> None:
    made = await family(build)
    wish = {"name": "a", "task": "look", "everySeconds": 60, "agentId": "ops"}
    told = json.loads(await decided(made, Decision.APPROVE, **wish))
    assert told["error"].startswith("agentId: there is no agent 'ops' that 'main' may start")
