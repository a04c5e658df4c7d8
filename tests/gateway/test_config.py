"""A Clutch takes what `clutch.json` says, unless the program says otherwise."""

from __future__ import annotations

import asyncio
import os
import signal
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
from clutch.cli import serving
from clutch.testing.models import ScriptedModel

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
        assert c.kit.policy.is_headless


async def test_a_program_without_a_person_says_so_beside_the_file(tmp_path: Path) -> None:
    home = written(tmp_path / "state", "{headless: false}")
    async with Clutch(state=home, serve=False, headless=True) as c:
        assert c.policy.is_headless
        written(home, "{list: {recentMinutes: 5}}")
        _ = await c.reload()
        assert c.kit.policy.is_headless


async def test_what_the_program_gives_wins(tmp_path: Path) -> None:
    file = """{headless: true, agents: {list: [{id: "main", identity: "file"}, {id: "ada", identity: "file"}]},
               models: {providers: {lab: {baseUrl: "http://127.0.0.1:1/v1"},
                                    own: {baseUrl: "http://127.0.0.1:2/v1", adapter: "direct"}}}}"""
    home = written(tmp_path / "state", file)
    mine = [Provider("lab", base_url="http://127.0.0.1:3/v1")]
    async with Clutch(
        state=home, agents=[Agent("main", identity="program")], providers=mine, model="own:x", serve=False
    ) as c:
        policy = c.kit.policy
        assert {agent.id: agent.identity for agent in policy.agents.values()} == {
            "main": "program",
            "ada": "file",
        }
        assert (policy.is_headless, policy.defaults.model) == (True, "own:x")
    async with Clutch(state=home, policy=Policy(limits=Limits(children_max=3)), serve=False) as c:
        assert (c.kit.policy.limits.children_max, c.kit.policy.is_headless) == (3, False)


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
        assert c.kit.policy.work == Policy().work
        assert c.kit.policy.agent("main").identity == "You are Ada."
        with pytest.raises(SpawnRefused, match="maxChildrenPerAgent"):
            _ = await c.spawn("no room any more")
        assert (await first).is_ok
        (home / "clutch.json").unlink()
        assert "agents.list" in (await c.reload()).taken
        assert (await (await c.spawn("room again"))).is_ok


async def test_a_file_that_became_wrong_changes_nothing(tmp_path: Path) -> None:
    home = written(tmp_path / "state", "{headless: true}")
    async with Clutch(state=home, serve=False) as c:
        before = c.kit.policy
        for wrong, why in (
            ("{headless: 1}", "true or false"),
            ("{agents: {defaults: {model: 'no:m'}}}", "'no'"),
        ):
            written(home, wrong)
            with pytest.raises(InvalidInput, match=why):
                await c.reload()
            assert c.kit.policy is before


async def test_a_gateway_reads_its_config_again_on_a_hang_up(tmp_path: Path) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    home = written(tmp_path / "state", "{}")
    async with Clutch(state=home, serve=False) as c, asyncio.timeout(20):
        following = asyncio.create_task(serving._follow_config(c, told.put_nowait))
        await asyncio.sleep(0)
        written(home, "{headless: 1, worker: {tick: 2}}")
        os.kill(os.getpid(), signal.SIGHUP)
        assert "clutch.json:1:12: headless" in await told.get()
        written(home, "{headless: true, worker: {tick: 2}}")
        os.kill(os.getpid(), signal.SIGHUP)
        assert await told.get() == "The config was read again: headless changed."
        assert await told.get() == "At the next start: worker.tick."
        assert c.policy.is_headless
        following.cancel()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


async def test_a_silent_provider_is_cut_after_what_the_config_says_for_all_or_for_it(tmp_path: Path) -> None:
    home = written(
        tmp_path / "state",
        """{models: {idleTimeout: "45s", providers: {lab: {baseUrl: "http://127.0.0.1:1/v1", idleTimeout: "5s"}}}}""",
    )
    async with Clutch(state=home, serve=False) as c:
        assert c.kit.check_model is not None
        router = c.kit.check_model.__self__  # type: ignore[attr-defined]
        assert [router.provider(name).idle_s for name in ("openai:x", "lab:x")] == [45.0, 5.0]


async def test_a_rejected_plan_ends_its_task_where_the_config_says_so(tmp_path: Path) -> None:
    home = written(tmp_path / "state", "{plan: {onReject: 'end'}}")
    async with Clutch(state=home, models=ScriptedModel(lambda _: "the plan"), serve=False) as c:
        ends, revises = await c.spawn("one", plan_mode=True), await c.spawn("two", plan_mode=True)
        plans: dict[str | None, Question] = {}
        while len(plans) < 2:
            await asyncio.sleep(0.02)
            plans = {one.task_id: one for one in await c.questions()}
        await c.answer(plans[ends.id], "reject", "not this")
        assert (await ends).outcome == "error"
        await revises.reject(plans[revises.id].hash, "better", then="revise")
        assert (await revises.info())["plan"]["round"] == 1
