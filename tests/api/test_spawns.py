"""Spawns of programs: keys, asking only, agents of their own, and the same answers as agents get."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clutch import (
    Agent,
    AgentDefaults,
    Clutch,
    Delegation,
    IdempotencyConflict,
    InvalidInput,
    Limits,
    OnFull,
    Policy,
    SpawnRefused,
    Subagents,
    Workspace,
)
from clutch.api.slash import MAIN_SESSION
from clutch.core.messages import Answer
from clutch.ports import ModelRequest, OnDelta, WorkspaceFailed
from clutch.runtimes.acp_process import AcpAgent
from clutch.store.transaction import Row, Tx
from tests.policies import QUICK

pytestmark = pytest.mark.anyio

ONE = replace(QUICK, limits=Limits(retained_max=1, evicts_delivered=False))
FULL = {"key": "agents.defaults.subagents.maxRetained", "used": 1, "max": 1}


class Models:
    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self.requests.append(request)
        return Answer("done", model=request.model)


class Directories:
    """Workspaces whose making waits until `may_end` is set."""

    def __init__(self) -> None:
        self.asked, self.may_end = asyncio.Event(), asyncio.Event()
        self.sources: list[str] = []
        self.first_fails = False

    async def make(self, task_id: int, source: str) -> str:
        self.sources.append(source)
        self.asked.set()
        await self.may_end.wait()
        if self.first_fails and len(self.sources) == 1:
            raise WorkspaceFailed("workspace: no room")
        return f"own/{task_id}"

    async def remove(self, task_id: int) -> None:
        pass

    async def kept(self) -> list[int]:
        return []


def clutch(tmp_path: Path, models: Models | None = None, policy: Policy = QUICK, **more: Any) -> Clutch:
    return Clutch(
        state=tmp_path / "state", models=models or Models(), policy=policy, workspace=tmp_path, **more
    )


def rows(now: float, sql: str) -> Tx[list[Row]]:
    return list((yield sql, ()))


async def count(c: Clutch) -> int:
    return int((await c.services.db.read(rows, "SELECT COUNT(*) FROM tasks"))[0][0])


async def test_a_key_for_other_wishes_is_an_error_of_its_own(tmp_path: Path) -> None:
    async with clutch(tmp_path) as c:
        first = await c.spawn("look", label="one", idempotency_key="k")
        again = await c.spawn("look", label="one", idempotency_key="k")
        assert again.id == first.id
        with pytest.raises(IdempotencyConflict, match=first.id):
            _ = await c.spawn("look", label="other", idempotency_key="k")
        assert (await c.local_gateway.spawn({"task": "else", "idempotencyKey": "k"}, MAIN_SESSION))[
            "code"
        ] == "idempotency_conflict"
        assert await count(c) == 1


async def test_a_key_outlives_the_end_of_its_task_and_a_changed_config(tmp_path: Path) -> None:
    async with clutch(tmp_path) as c:
        first = await c.spawn("look", idempotency_key="k")
        assert (await first).is_ok
    other = replace(QUICK, defaults=AgentDefaults(subagents=Subagents(run_timeout_s=900)))
    async with clutch(tmp_path, policy=other) as c:
        assert (await c.spawn("look", idempotency_key="k")).id == first.id


async def test_whoever_meets_a_reservation_under_its_key_waits_for_it(tmp_path: Path) -> None:
    async with clutch(tmp_path) as c:
        directories = c.services.workspaces = Directories()
        asked: Any = {"workspace": "isolated", "idempotency_key": "k"}
        first = asyncio.create_task(c.spawn("look", **asked))
        await directories.asked.wait()
        second = asyncio.create_task(c.spawn("look", **asked))
        await asyncio.wait([second], timeout=0.2)
        assert not second.done()
        directories.may_end.set()
        assert (await second).id == (await first).id
        assert len(directories.sources) == 1, "the files are made once"


async def test_whoever_waited_for_a_reservation_that_was_undone_spawns_anew(tmp_path: Path) -> None:
    async with clutch(tmp_path) as c:
        directories = c.services.workspaces = Directories()
        directories.first_fails = True
        asked: Any = {"workspace": "isolated", "idempotency_key": "k"}
        first = asyncio.create_task(c.spawn("look", **asked))
        await directories.asked.wait()
        second = asyncio.create_task(c.spawn("look", **asked))
        await asyncio.wait([second], timeout=0.2)
        directories.may_end.set()
        with pytest.raises(SpawnRefused, match="no room"):
            _ = await first
        assert (await (await second)).is_ok
        assert await count(c) == 1


async def test_would_spawn_tells_what_spawn_would_and_writes_nothing(tmp_path: Path) -> None:
    async with clutch(tmp_path) as c:
        answer = await c.check_spawn("look", label="one", thinking="high")
        assert (answer["status"], answer["taskId"], answer["thinking"]) == ("accepted", None, "high")
        assert answer["forecast"] == {
            "basis": None, "samples": 0, "count": 1, "tokens": None, "usd": None,
            "budgetLeft": {"tokens": None, "usd": None},
            "text": "Tasks like this: cost unknown, fewer than 5 tasks have finished.",
        }  # fmt: skip
        assert (await c.check_spawn("look", count=8))["forecast"]["count"] == 8
        assert await count(c) == 0
        with pytest.raises(InvalidInput, match="label"):
            _ = await c.check_spawn("look", label=" ")
        with pytest.raises(InvalidInput, match="count"):
            _ = await c.check_spawn("look", count=0)
    async with clutch(tmp_path, policy=ONE) as c:
        _ = await c.spawn("look")
        refused = await c.check_spawn("look again")
        assert refused["limit"] == FULL


async def test_a_refusal_carries_the_key_and_both_numbers(tmp_path: Path) -> None:
    async with clutch(tmp_path, policy=ONE) as c:
        _ = await c.spawn("look")
        with pytest.raises(SpawnRefused) as caught:
            _ = await c.spawn("look again")
        assert caught.value.limit == FULL


async def test_whether_programs_wait_for_room_is_a_setting(tmp_path: Path) -> None:
    defaults = AgentDefaults(subagents=Subagents(on_full=OnFull.REJECT))
    policy = replace(QUICK, limits=Limits(children_max=1), defaults=defaults)
    async with clutch(tmp_path, policy=policy) as c:
        c.services.workspaces = Directories()
        staying = asyncio.create_task(c.spawn("stay", workspace="isolated"))
        await c.services.workspaces.asked.wait()
        with pytest.raises(SpawnRefused, match="1/1"):
            _ = await c.spawn("look")
        c.services.workspaces.may_end.set()
        assert (await (await staying)).is_ok


async def test_a_surface_gets_an_answer_whatever_it_asks(tmp_path: Path) -> None:
    async with clutch(tmp_path) as c:
        accepted = await c.local_gateway.spawn({"task": "look", "label": "one"}, MAIN_SESSION)
        assert accepted["status"] == "accepted"
        assert (await (await c.get(accepted["taskId"]))).is_ok
        wrong = await c.local_gateway.spawn({"task": "look", "lable": "one"}, MAIN_SESSION)
        assert (wrong["status"], wrong["code"], wrong["field"]) == ("error", "invalid_input", "lable")
        assert (await c.local_gateway.spawn({"task": "look", "agentId": "other"}, MAIN_SESSION))[
            "status"
        ] == "forbidden"


@pytest.mark.scenario(19)
async def test_agents_of_their_own_have_their_own_model_workspace_and_identity(tmp_path: Path) -> None:
    models = Models()
    agents = [
        Agent("main", subagents=Delegation(allow_agents=frozenset({"research"}))),
        Agent("research", model="p:research", workspace=str(tmp_path / "notes"), identity="You are Ada."),
    ]
    async with clutch(tmp_path, models, model="p:usual", agents=agents) as c:
        assert (await (await c.spawn("look", agent_id="research", notify_parent=True))).is_ok
        await c.say("hello", session="agent:research:main")
        assert await c.reply(session="agent:research:main") == "done"
        await c.wait_idle()
        stored = await c.services.db.read(
            rows, "SELECT DISTINCT agent_id, workspace FROM sessions ORDER BY agent_id"
        )
    assert stored == [("main", str(tmp_path)), ("research", str(tmp_path / "notes"))]
    spoken = {(request.model, request.system.startswith("You are Ada.")) for request in models.requests}
    assert spoken == {("p:research", False), ("p:research", True), ("p:usual", False)}


async def test_a_directory_of_ones_own_can_be_the_rule(tmp_path: Path) -> None:
    policy = replace(QUICK, defaults=AgentDefaults(subagents=Subagents(workspace=Workspace.ISOLATED)))
    async with clutch(tmp_path, policy=policy) as c:
        directories = c.services.workspaces = Directories()
        directories.may_end.set()
        task = await c.spawn("look")
        assert directories.sources == [str(tmp_path)]
        assert (await c.spawn("look", workspace="inherit")).id != task.id
        assert len(directories.sources) == 1


async def test_a_refused_or_dry_spawn_leaves_no_session_of_its_requester(tmp_path: Path) -> None:
    talk = "agent:main:chat:new"
    async with Clutch(state=tmp_path / "state", serve=False) as c:
        spawn = c.local_gateway.spawn
        refused = await spawn({"task": "x", "agentId": "beta"}, talk)
        assert refused["status"] == "forbidden"
        would = await spawn({"task": "x", "dryRun": True}, talk)
        assert would["status"] == "accepted"
        assert await c.services.db.read(session_keys) == []
        accepted = await spawn({"task": "x"}, talk)
        assert accepted["status"] == "accepted"
        assert talk in await c.services.db.read(session_keys)


async def test_a_conversation_is_forked_to_an_acp_program_only_where_the_config_allows_it(
    tmp_path: Path,
) -> None:
    wanted = {"task": "x", "runtime": "acp:probe", "context": "fork", "dryRun": True}
    program = AcpAgent(name="probe", command="true")
    for forks, status in ((False, "error"), (True, "accepted")):
        policy = Policy(acp_forks=forks)
        async with Clutch(state=tmp_path / str(forks), policy=policy, acp=[program], serve=False) as c:
            said = await c.local_gateway.spawn(wanted, "agent:main:main")
            assert said["status"] == status, said
            if not forks:
                assert said["field"] == "context"
                assert "acp.allowFork" in said["error"]


def session_keys(now: float) -> Tx[list[str]]:
    del now
    return [key for (key,) in (yield "SELECT key FROM sessions", ())]
