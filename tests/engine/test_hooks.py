"""Hooks and threads around a spawn: a veto, a warning, a thread from a hook or a channel, or nothing left at all."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from clutch.channels import GROUP, HookRegistry, Webhook
from clutch.core import ids
from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.messages import Answer, Call
from clutch.core.model import Hook
from clutch.core.policy import Announcing, Policy, Work
from clutch.core.spawn import Mode, SpawnRefusal, SpawnRequest
from clutch.engine.spawn import Spawned, spawn_all
from clutch.errors import InvalidInput
from clutch.ports import ModelRequest, Models, OnDelta, ThreadFailed
from clutch.store.transaction import Row, Tx
from clutch.testing.channels import RecordingChannel, ThreadedChannel
from clutch.transactions import control, sessions
from clutch.transactions.spawn import Accepted, ChildRequest
from clutch.wiring import Engine, running_engine
from tests.answering import answering
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

QUICK = Policy(
    work=Work(tick_s=0.02, stop_s=0.05),
    announcing=Announcing(first_s=0.001, debounce_s=0.01, slow_first_s=0.01),
)


class Echo:
    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        return Answer("done", model="echo")


def select(now: float, sql: str, *parameters: Any) -> Tx[list[Row]]:
    return list((yield sql, parameters))


@dataclass
class Place:
    """An engine with hooks, and a main session whose people are in a channel."""

    engine: Engine
    main: int
    heard: list[dict[str, Any]] = field(default_factory=list)

    async def spawn(self, **asked: Any) -> Spawned:
        services = self.engine.services
        asks = Hook.SPAWNING in services.policy.hooks
        wanted: dict[str, Any] = {"task": "work", "label": "worker", "is_asked_about": asks} | asked
        request = SpawnRequest(**wanted)
        order = ChildRequest(
            f"test:{services.ids.uuid4()}", services.ids.next(), services.ids.uuid4(), request, 0
        )
        (answer,) = await spawn_all(services, self.main, self.main, None, [order])
        return answer

    async def rows(self, sql: str, *parameters: Any) -> list[Row]:
        return await self.engine.db.read(select, sql, *parameters)

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Looks after every commit: what a hook has heard is written down afterwards."""
        changes = self.engine.services.changes
        async with asyncio.timeout(PATIENCE_S):
            while True:
                change = changes.next_change
                if await is_so():
                    return
                await changes.until(change)

    async def until_heard(self, what: Sequence[object], count: int = 1) -> None:
        async def is_so() -> bool:
            return len(what) >= count

        await self.until(is_so)

    async def until_row(self, sql: str, *parameters: Any) -> None:
        async def is_so() -> bool:
            return bool(await self.rows(sql, *parameters))

        await self.until(is_so)

    async def is_as_before(self) -> bool:
        left = "SELECT (SELECT COUNT(*) FROM tasks), (SELECT COUNT(*) FROM sessions), (SELECT COUNT(*) FROM bindings)"
        return await self.rows(left) == [(0, 1, 0)]


@asynccontextmanager
async def place(
    tmp_path: Path,
    hooks: HookRegistry,
    channel: RecordingChannel | None = None,
    policy: Policy = QUICK,
    models: Models | None = None,
) -> AsyncIterator[Place]:
    channels = {} if channel is None else {"chat": channel}
    running = running_engine(
        state=tmp_path / "state", policy=policy, models=models or Echo(), channels=channels, hooks=hooks
    )
    async with running as engine:
        rights = rights_text(root_rights(AgentGrant(depth_max=1)))
        made = sessions.NewMain(
            engine.services.ids.next(), "agent:main:main", "main", rights, "chat:ada", "."
        )
        yield Place(engine, await engine.db.alone(sessions.open_session, made))


def listening(*names: Hook, to: list[dict[str, Any]]) -> HookRegistry:
    hooks = HookRegistry()
    for name in names:
        hooks.add(name, to.append)
    return hooks


# ---- spawning --------------------------------------------------------------------------------------------


async def test_a_veto_forbids_the_spawn_and_leaves_nothing(tmp_path: Path) -> None:
    hooks = HookRegistry()
    hooks.add(Hook.SPAWNING, lambda told: {"ok": False, "error": f"not {told['label']}"})
    async with place(tmp_path, hooks) as there:
        assert await there.spawn() == SpawnRefusal("not worker")
        assert await there.is_as_before()


async def test_a_hook_that_raises_or_hangs_is_a_warning(tmp_path: Path) -> None:
    hooks = HookRegistry(timeout_s=0.05)

    async def hangs(told: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    def raises(told: dict[str, Any]) -> None:
        raise RuntimeError("no idea")

    hooks.add(Hook.SPAWNING, hangs)
    hooks.add(Hook.SPAWNING, raises)
    async with place(tmp_path, hooks) as there:
        answer = await there.spawn()
        assert isinstance(answer, Accepted)
        assert answer.warnings == (
            "hook subagent_spawning: no answer within 0.05 s",
            "hook subagent_spawning: RuntimeError: no idea",
        )


@pytest.mark.scenario(156)
@pytest.mark.parametrize("channel", [None, RecordingChannel()], ids=["no channel", "no threads"])
async def test_without_anybody_who_can_make_a_thread_the_spawn_is_undone(
    tmp_path: Path, channel: RecordingChannel | None
) -> None:
    async with place(tmp_path, HookRegistry(), channel) as there:
        answer = await there.spawn(thread=True, mode=Mode.SESSION)
        assert isinstance(answer, str)
        assert answer.startswith("thread: ")
        assert await there.is_as_before()
        ((reason, detail),) = await there.rows("SELECT reason, detail FROM events")
        assert (reason, detail.startswith("thread: ")) == ("spawn-failed", True)


async def test_a_channel_that_fails_to_make_a_thread_leaves_nothing(tmp_path: Path) -> None:
    channel = ThreadedChannel()
    channel.fail_next(ThreadFailed("thread: not here"))
    async with place(tmp_path, HookRegistry(), channel) as there:
        assert await there.spawn(thread=True, mode=Mode.SESSION) == "thread: not here"
        assert await there.is_as_before()


async def test_a_channel_that_makes_no_thread_in_time_leaves_nothing(tmp_path: Path) -> None:
    class Silent(ThreadedChannel):
        async def open_thread(self, target: str, title: str, key: str) -> str:
            await asyncio.Event().wait()
            raise AssertionError("never")

    policy = replace(QUICK, limits=replace(QUICK.limits, reservation_s=0.1))
    async with place(tmp_path, HookRegistry(), Silent(), policy) as there:
        answer = await there.spawn(thread=True, mode=Mode.SESSION)
        assert answer == "thread: the channel 'chat' has made none within 0.1 s"
        assert await there.is_as_before()


async def test_the_channel_of_the_requester_makes_the_thread(tmp_path: Path) -> None:
    channel = ThreadedChannel()
    async with place(tmp_path, HookRegistry(), channel) as there:
        answer = await there.spawn(thread=True, mode=Mode.SESSION)
        assert isinstance(answer, Accepted)
        name = f"thread:{answer.task_id}"
        assert channel.threads == {name: "worker"}
        assert await there.rows("SELECT channel, thread, session_id FROM bindings") == [
            ("chat", name, answer.task_id)
        ]
        await there.until_heard(channel.sent)
        assert json.loads(channel.sent[0].target) == {"to": "ada", "thread": name}


async def test_a_hook_may_bring_the_thread(tmp_path: Path) -> None:
    hooks = HookRegistry()
    hooks.add(Hook.SPAWNING, lambda told: {"ok": True, "thread": {"channel": "chat", "thread": "9"}})
    async with place(tmp_path, hooks) as there:
        assert isinstance(await there.spawn(thread=True, mode=Mode.SESSION), Accepted)
        assert await there.rows("SELECT channel, thread FROM bindings") == [("chat", "9")]


@pytest.mark.scenario(16)
async def test_a_spawn_that_fails_after_its_thread_was_made_tells_the_ended_hooks_once(
    tmp_path: Path,
) -> None:
    heard: list[dict[str, Any]] = []
    hooks = listening(Hook.ENDED, to=heard)
    hooks.add(Hook.SPAWNING, lambda told: {"thread": {"channel": "chat", "thread": "9"}})
    async with place(tmp_path, hooks) as there:
        first = await there.spawn(thread=True, mode=Mode.SESSION)
        assert isinstance(first, Accepted)
        second = await there.spawn(thread=True, mode=Mode.SESSION)
        assert second == "the thread 9 of chat belongs to another session"
        assert await there.rows("SELECT COUNT(*) FROM tasks") == [(1,)]
        await there.until_heard(heard)
        await there.until_row("SELECT 1 FROM outbox WHERE channel = 'hook' AND done_at IS NOT NULL")
        assert [(one["event"], one["reason"], one["sendFarewell"]) for one in heard] == [
            ("subagent_ended", "spawn-failed", False)
        ]


# ---- told ------------------------------------------------------------------------------------------------


@pytest.mark.scenario(155)
async def test_a_task_is_spawned_and_ended_once_each_and_ended_only_when_it_was_told(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    async with place(tmp_path, listening(Hook.SPAWNED, Hook.ENDED, to=heard)) as there:
        answer = await there.spawn()
        assert isinstance(answer, Accepted)
        await there.until_heard(heard, 2)
        spawned, ended = heard
        assert (spawned["event"], spawned["session"]) == ("subagent_spawned", answer.session_key)
        assert (ended["event"], ended["outcome"], ended["session"]) == (
            "subagent_ended",
            "ok",
            answer.session_key,
        )
        assert ended["requester"] == "agent:main:main"
        assert ended["endedAt"].endswith("Z")
        assert await there.rows("SELECT delivery FROM tasks") == [("delivered",)]
        assert len({one["key"] for one in heard}) == 2


@pytest.mark.scenario(155)
async def test_a_hook_that_fails_hears_it_again_and_stops_nothing(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    troubles = [RuntimeError("no"), RuntimeError("no again")]

    async def clumsy(told: dict[str, Any]) -> None:
        heard.append(told)
        if troubles:
            raise troubles.pop()

    hooks = HookRegistry()
    hooks.add(Hook.ENDED, clumsy)
    async with place(tmp_path, hooks) as there:
        await there.spawn()
        await there.until_row("SELECT 1 FROM tasks WHERE phase = 'completed'")
        await there.until_heard(heard, 3)
        assert len({one["key"] for one in heard}) == 1


@pytest.mark.scenario(114)
async def test_a_kill_is_told_once_and_at_once(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    idle = replace(QUICK, work=replace(QUICK.work, sessions_max=0))  # nobody starts it
    async with place(tmp_path, listening(Hook.ENDED, to=heard), policy=idle) as there:
        answer = await there.spawn()
        assert isinstance(answer, Accepted)
        for _ in range(2):
            policy = there.engine.services.policy
            await there.engine.db.alone(control.kill, policy, answer.task_id, "enough", "test")
        await there.until_heard(heard)
        assert [(one["outcome"], one["error"]) for one in heard] == [("killed", "enough")]
        assert await there.rows("SELECT COUNT(*) FROM outbox WHERE channel = 'hook'") == [(1,)]


async def test_hooks_of_installed_packages_are_told_and_a_broken_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a package that was installed beside us would bring them."""
    about = tmp_path / "site" / "listeners-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: listeners\nVersion: 1.0\n")
    points = "subagent_ended = listening_hooks:ended\nsubagent_spawned = no_such_module:x\nno_such_hook = json:dumps\n"
    (about / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    (about.parent / "listening_hooks.py").write_text("heard = []\ndef ended(told): heard.append(told)\n")
    monkeypatch.syspath_prepend(str(about.parent))
    hooks = HookRegistry()
    async with place(tmp_path, hooks) as there:
        assert hooks.names == {Hook.ENDED}
        answer = await there.spawn()
        assert isinstance(answer, Accepted)
        heard = importlib.import_module("listening_hooks").heard
        await there.until_heard(heard)
        assert (heard[0]["event"], heard[0]["session"]) == ("subagent_ended", answer.session_key)


async def test_where_nobody_listens_nothing_is_written(tmp_path: Path) -> None:
    async with place(tmp_path, HookRegistry()) as there:
        await there.spawn()
        await there.until_row("SELECT 1 FROM tasks WHERE phase = 'completed'")
        assert await there.rows("SELECT 1 FROM outbox WHERE channel = 'hook'") == []


@pytest.mark.scenario(96)
@pytest.mark.parametrize(
    ("said", "channel", "target"),
    [
        ({"channel": "pager", "to": "me"}, "pager", "me"),
        ({"channel": "api", "to": "me"}, "chat", "ada"),  # nobody outside listens there
        ({"channel": "pager"}, "chat", "ada"),
        (None, "chat", "ada"),
    ],
)
async def test_a_hook_may_say_where_the_reply_to_a_result_goes(
    tmp_path: Path, said: dict[str, Any] | None, channel: str, target: str
) -> None:
    hooks, asked = HookRegistry(), []

    def elsewhere(told: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(told)
        return said

    hooks.add(Hook.DELIVERY_TARGET, elsewhere)
    async with place(tmp_path, hooks) as there:
        answer = await there.spawn()
        assert isinstance(answer, Accepted)
        await there.until_row("SELECT 1 FROM outbox WHERE channel = ? AND target = ?", channel, target)
        assert [(one["session"], one["route"]) for one in asked] == [(answer.session_key, "chat:ada")]


def test_an_unknown_hook_is_refused_when_it_is_registered() -> None:
    with pytest.raises(InvalidInput, match="subagent_ended"):
        HookRegistry().add("subagent_eneded", print)


# ---- webhooks --------------------------------------------------------------------------------------------


async def test_a_webhook_is_posted_the_fact_with_its_key(tmp_path: Path) -> None:
    from aiohttp import web

    posted: list[tuple[str, dict[str, Any]]] = []
    answers = [503, 200]

    async def receive(request: web.Request) -> web.Response:
        posted.append((request.headers["Idempotency-Key"], await request.json()))
        return web.Response(status=answers.pop(0))

    async with answering(receive, "POST") as address:
        hooks = HookRegistry([Webhook(f"{address}/hook", (Hook.ENDED,))])
        async with place(tmp_path, hooks) as there:
            await there.spawn()
            await there.until_heard(posted, 2)
    (first_key, first), (second_key, second) = posted
    assert first_key == second_key == first["key"]
    assert first == second
    assert first["outcome"] == "ok"


# ---- people ----------------------------------------------------------------------------------------------


class Asking:
    """Asks a person before it does anything."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        return Answer("", (Call("ask_human", {"question": "Which one?"}),), model="asking")


async def test_a_plan_that_waits_for_a_person_is_told_with_the_command_that_leads_there(
    tmp_path: Path,
) -> None:
    heard: list[dict[str, Any]] = []
    async with place(tmp_path, listening(Hook.ATTENTION_REQUIRED, to=heard)) as there:
        answer = await there.spawn(plan_mode=True)
        assert isinstance(answer, Accepted)
        await there.until_heard(heard)
    assert heard == [
        {
            "task": ids.task_id(answer.task_id),
            "session": answer.session_key,
            "label": "worker",
            "kind": "plan",
            "command": "clutch inbox",
            "event": "attention_required",
            "key": f"hook:attention_required:{answer.task_id}:plan:1:0",
        }
    ]


async def test_a_question_is_told_once_and_costs_nothing_where_nobody_listens(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    for number, hooks in enumerate((listening(Hook.ATTENTION_REQUIRED, to=heard), HookRegistry())):
        async with place(tmp_path / str(number), hooks, models=Asking()) as there:
            await there.spawn()
            await there.until_row("SELECT 1 FROM questions")
            if number == 0:
                await there.until_heard(heard)
            else:
                assert await there.rows("SELECT 1 FROM outbox") == []
    assert [(told["kind"], told["label"]) for told in heard] == [("question", "worker")]
