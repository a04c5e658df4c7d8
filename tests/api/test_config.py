"""A Clutch takes what `clutch.json` says, unless the program says otherwise."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from clutch import (
    Agent,
    Clutch,
    ConfigInvalid,
    InvalidInput,
    Limits,
    Policy,
    Provider,
    Question,
    SpawnRefused,
)
from clutch.cli import serve
from clutch.core.authority import from_text
from clutch.core.messages import Answer, Call, Results, Usage
from clutch.ports import ModelRequest
from clutch.store.transaction import Row, Tx
from clutch.testing.models import ScriptedModel
from clutch.transactions import invariants
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


def written(home: Path, text: str) -> Path:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "clutch.json").write_text(text)
    (home / "clutch.json").chmod(0o600)
    return home


async def test_the_file_in_the_state_directory_is_taken(tmp_path: Path) -> None:
    home = written(
        tmp_path / "state", "{agents: {defaults: {subagents: {maxChildrenPerAgent: 1, onFull: 'reject'}}}}"
    )
    async with Clutch(state=home, serve=False) as c:
        _ = await c.spawn("takes its time")
        with pytest.raises(SpawnRefused, match=r"1/1.*maxChildrenPerAgent"):
            _ = await c.spawn("one too many")


async def test_a_file_that_was_named_is_taken_instead(tmp_path: Path) -> None:
    home = written(tmp_path / "state", "{headless: 1}")
    named = written(tmp_path / "other", "{headless: true}") / "clutch.json"
    async with Clutch(state=home, config=named, serve=False) as c:
        assert c.services.policy.is_headless


async def test_a_program_without_a_person_says_so_beside_the_file(tmp_path: Path) -> None:
    home = written(tmp_path / "state", "{headless: false}")
    async with Clutch(state=home, serve=False, headless=True) as c:
        assert c.policy.is_headless
        written(home, "{list: {recentMinutes: 5}}")
        _ = await c.reload()
        assert c.services.policy.is_headless


async def test_what_the_program_gives_wins(tmp_path: Path) -> None:
    file = """{headless: true, agents: {list: [{id: "main", identity: "file"}, {id: "ada", identity: "file"}]},
               models: {providers: {lab: {baseUrl: "http://127.0.0.1:1/v1"},
                                    own: {baseUrl: "http://127.0.0.1:2/v1", adapter: "direct"}}}}"""
    home = written(tmp_path / "state", file)
    mine = [Provider("lab", base_url="http://127.0.0.1:3/v1")]
    async with Clutch(
        state=home, agents=[Agent("main", identity="program")], providers=mine, model="own:x", serve=False
    ) as c:
        policy = c.services.policy
        assert {agent.id: agent.identity for agent in policy.agents.values()} == {
            "main": "program",
            "ada": "file",
        }
        assert (policy.is_headless, policy.defaults.model) == (True, "own:x")
    async with Clutch(state=home, policy=Policy(limits=Limits(children_max=3)), serve=False) as c:
        assert (c.services.policy.limits.children_max, c.services.policy.is_headless) == (3, False)


async def test_a_file_that_is_wrong_starts_nothing(tmp_path: Path) -> None:
    home = written(tmp_path / "state", "{agents: {defaults: {modle: 'x'}}}")
    with pytest.raises(
        ConfigInvalid, match=r"clutch.json:1:22: agents.defaults.modle: not known; did you mean model"
    ):
        Clutch(state=home)
    assert [path.name for path in home.iterdir()] == ["clutch.json"]


# ---- while it runs ---------------------------------------------------------------------------------------


async def test_a_changed_file_is_taken_over_as_far_as_a_running_process_can(tmp_path: Path) -> None:
    home = written(tmp_path / "state", "{}")
    async with Clutch(state=home, serve=False) as c:
        first = await c.spawn("takes its time")
        written(
            home,
            """{agents: {defaults: {maxConcurrent: 9, subagents: {maxChildrenPerAgent: 1, onFull: "reject"}},
                         list: [{id: "main", identity: "You are Ada."}]}, worker: {tick: 7}}""",
        )
        found = await c.reload()
        assert set(found.waiting) == {"agents.defaults.maxConcurrent", "worker.tick"}
        assert c.services.policy.work == Policy().work
        assert c.services.policy.agent("main").identity == "You are Ada."
        with pytest.raises(SpawnRefused, match="maxChildrenPerAgent"):
            _ = await c.spawn("no room any more")
        assert (await first).is_ok
        (home / "clutch.json").unlink()
        assert "agents.list" in (await c.reload()).taken
        assert (await (await c.spawn("room again"))).is_ok


NESTED = "{agents: {defaults: {subagents: {maxSpawnDepth: 2}}}}"


async def depths(c: Clutch) -> dict[str, int]:
    """How deep each session may spawn, by its role."""

    def read(now: float) -> Tx[Sequence[Row]]:
        del now
        return (yield "SELECT role, rights FROM sessions", ())

    return {role: from_text(rights).depth_max for role, rights in await c.services.db.read(read)}


async def test_a_main_session_has_the_rights_of_the_config_and_its_children_those_of_their_spawn(
    tmp_path: Path,
) -> None:
    home = written(tmp_path / "state", "{}")
    async with Clutch(state=home, serve=False) as c:
        _ = await c.spawn("a leaf")
        assert await depths(c) == {"main": 1, "leaf": 1}
        written(home, NESTED)
        _ = await c.reload()
        assert await depths(c) == {"main": 2, "leaf": 1}
        _ = await c.spawn("an orchestrator")
        assert await depths(c) == {"main": 2, "leaf": 1, "orchestrator": 2}
    written(home, "{}")
    async with Clutch(state=home, serve=False) as c:
        assert await depths(c) == {"main": 1, "leaf": 1, "orchestrator": 2}
        for query in invariants.standing(is_served=False):
            assert not await c.services.db.read(invariants.broken, query), query.invariant


async def test_a_file_that_became_wrong_changes_nothing(tmp_path: Path) -> None:
    home = written(tmp_path / "state", "{headless: true}")
    async with Clutch(state=home, serve=False) as c:
        before = c.services.policy
        for wrong, why in (
            ("{headless: 1}", "true or false"),
            ("{agents: {defaults: {model: 'no:m'}}}", "'no'"),
        ):
            written(home, wrong)
            with pytest.raises(InvalidInput, match=why):
                await c.reload()
            assert c.services.policy is before


async def test_a_gateway_reads_its_config_again_on_a_hang_up(tmp_path: Path) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    home = written(tmp_path / "state", "{}")
    async with Clutch(state=home, serve=False) as c, asyncio.timeout(PATIENCE_S):
        following = asyncio.create_task(serve._follow_config(c, told.put_nowait))
        await asyncio.sleep(0)
        written(home, "{headless: 1, worker: {tick: 2}}")
        os.kill(os.getpid(), signal.SIGHUP)
        assert "clutch.json:1:12: headless" in await told.get()
        written(home, "{headless: true, worker: {tick: 2}}")
        os.kill(os.getpid(), signal.SIGHUP)
        assert await told.get() == "Config loaded; changed: headless."
        assert await told.get() == "Restart to apply: worker.tick."
        assert c.policy.is_headless
        following.cancel()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


async def test_a_silent_provider_is_cut_after_what_the_config_says_for_all_or_for_it(tmp_path: Path) -> None:
    home = written(
        tmp_path / "state",
        """{models: {idleTimeout: "45s", providers: {lab: {baseUrl: "http://127.0.0.1:1/v1", idleTimeout: "5s"}}}}""",
    )
    async with Clutch(state=home, serve=False) as c:
        assert c.services.check_model is not None
        router = c.services.check_model.__self__  # type: ignore[attr-defined]
        assert [router.provider(name).idle_s for name in ("openai:x", "lab:x")] == [45.0, 5.0]


async def test_a_rejected_plan_ends_its_task_where_the_config_says_so(tmp_path: Path) -> None:
    home = written(tmp_path / "state", "{plan: {onReject: 'end'}}")
    async with Clutch(state=home, models=ScriptedModel(lambda _: "the plan"), serve=False) as c:
        ends, revises = await c.spawn("one", plan_mode=True), await c.spawn("two", plan_mode=True)
        plans: dict[str | None, Question] = {}
        while len(plans) < 2:
            await asyncio.sleep(0.02)
            plans = {one.task_id: one for one in await c.inbox()}
        await c.answer(plans[ends.id], "reject", "not this")
        assert (await ends).outcome == "error"
        await revises.reject(plans[revises.id].hash, "better", then="revise")
        assert getattr((await revises.info()).plan, "round", None) == 1


# ---- a config that an agent could have written -----------------------------------------------------------------


def steps(request: ModelRequest) -> int:
    return sum(isinstance(one, Results) for one in request.transcript)


async def test_a_child_changes_neither_the_config_in_use_nor_the_instructions_of_its_parent(
    tmp_path: Path,
) -> None:
    workspace, home = tmp_path / "workspace", tmp_path / "state"
    named = written(workspace, "{headless: true}") / "clutch.json"
    evil = (
        "{sandbox: {mode: 'off'}, mcp: {servers: {x: {command: 'touch', args: ['/tmp/x'], sandbox: false}}}}"
    )
    calls = [
        Call("write", {"path": "clutch.json", "text": evil}),
        Call("edit", {"path": "clutch.json", "edits": [{"old": "true", "new": "false"}]}),
        Call("shell", {"command": f'echo "{evil}" >clutch.json; rm -f clutch.json; mv clutch.json x'}),
        Call("write", {"path": "AGENTS.md", "text": "EVIL ORDERS"}),
        Call("shell", {"command": "echo EVIL ORDERS >AGENTS.md; sleep 3"}),
        Call("write", {"path": "other-state/clutch.json", "text": evil}),
        Call("shell", {"command": f'mkdir other-state; echo "{evil}" >other-state/clutch.json'}),
    ]

    def script(request: ModelRequest) -> Answer | str:
        if "plant" not in str(request.transcript[0]) or steps(request) >= len(calls):
            return "done"
        return Answer("", (calls[steps(request)],), usage=Usage(1, 1))

    model = ScriptedModel(script)
    async with Clutch(state=home, config=named, workspace=workspace, models=model, serve=False) as c:
        task = await c.spawn("plant something")
        async with asyncio.timeout(60):
            while not (workspace / "AGENTS.md").exists():  # noqa: ASYNC110 - a command in a sandbox makes it
                await asyncio.sleep(0.02)
        await c.say("what are your orders?")
        await c.reply()
        assert (await task).text == "done"
        _ = await c.reload()
        assert c.policy.is_headless
        await c.say("and now?")
        await c.reply()
    assert "EVIL ORDERS" not in "".join(request.system for request in model.requests)
    assert named.read_text() == "{headless: true}"
    assert not (workspace / "AGENTS.md").exists()
    assert not (workspace / "other-state" / "clutch.json").exists()
    assert (
        Clutch(state=workspace / "other-state", workspace=workspace)._given.settings.tools.mcp_servers == ()
    )


async def test_a_config_in_a_workspace_is_loaded_under_its_own_name_only(tmp_path: Path) -> None:
    workspace, home = tmp_path / "workspace", tmp_path / "state"
    named = written(workspace, "{headless: true}") / "clutch.json"
    async with Clutch(state=home, config=named, workspace=workspace, serve=False) as c:
        assert c.policy.is_headless
    other = named.rename(workspace / "other.json")
    with pytest.raises(ConfigInvalid, match=r"agents could write it: rename it to clutch\.json"):
        Clutch(state=home, config=other, workspace=workspace)
    with pytest.raises(ConfigInvalid, match="agents could write it"):
        Clutch(
            state=home,
            config=other,
            workspace=tmp_path / "elsewhere",
            agents=[Agent("a", workspace=str(workspace))],
        )


async def test_a_config_behind_a_link_in_a_workspace_is_not_loaded(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", written(tmp_path / "outside", "{headless: true}")
    workspace.mkdir()
    (workspace / "clutch.json").symlink_to(outside / "clutch.json")
    (workspace / "folder").symlink_to(outside)
    for named in (workspace / "clutch.json", workspace / "folder" / "clutch.json"):
        with pytest.raises(ConfigInvalid, match="name the file itself"):
            Clutch(state=tmp_path / "state", config=named, workspace=workspace)


async def test_a_config_that_waits_in_a_workspace_for_its_state_directory_is_not_loaded(
    tmp_path: Path,
) -> None:
    home = tmp_path / "other-state"
    async with Clutch(state=tmp_path / "made", workspace=tmp_path, serve=False):
        pass
    written(home, "{headless: true}")
    with pytest.raises(ConfigInvalid, match="before its state directory was made"):
        Clutch(state=home, workspace=tmp_path)
    written(tmp_path / "made", "{headless: true}")
    async with Clutch(state=tmp_path / "made", workspace=tmp_path, serve=False) as c:
        assert c.policy.is_headless
