"""The embedded API: spawn and await, talk and listen; strangers' input writes nothing; a lost answer makes no twin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from clutch import Clutch, KillResult
from clutch.api import gateway
from clutch.api.client import Api
from clutch.core.messages import Answer, Input
from clutch.core.model import Outcome
from clutch.core.policy import Limits, Policy
from clutch.engine.services import Services
from clutch.errors import ClutchError, InvalidInput, NotFound, SpawnRefused, StoreLost
from clutch.ports import ModelRequest, Models, OnDelta
from clutch.store.transaction import Database, Keys, Tx
from clutch.testing.database import PassThroughDatabase
from clutch.transactions.control import NotPossible
from clutch.transactions.read.inbox import unread_replies
from clutch.wiring import running_engine
from tests.policies import QUICK

pytestmark = pytest.mark.anyio

TABLES = ("sessions", "tasks", "inbox", "outbox", "events", "runs", "messages")


class Echo:
    """Says what it was told last."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        told = [message for message in request.transcript if isinstance(message, Input)]
        return Answer(f"heard: {told[-1].text}", model="echo")


class Patient:
    """Does not answer until it is let go."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.heard: list[str] = []

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self.heard += [message.text for message in request.transcript if isinstance(message, Input)]
        self.asked.set()
        await self.go.wait()
        return Answer("at last", model="patient")


def undelivered(now: float) -> Tx[int]:
    """Tasks whose result did not reach whoever asked."""
    return int((yield "SELECT COUNT(*) FROM tasks WHERE delivery <> 'delivered'", ())[0][0])


def clutch(state: Path, models: Models | None = None, policy: Policy = QUICK) -> Clutch:
    return Clutch(state=state, models=models or Echo(), policy=policy, workspace=state.parent)


def rows(now: float) -> Tx[dict[str, int]]:
    counted = {}
    for table in TABLES:
        counted[table] = (yield f"SELECT COUNT(*) FROM {table}", ())[0][0]  # noqa: S608 (constant names)
    return counted


async def test_an_awaited_task_gives_its_outcome_and_its_last_words(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state") as c:
        task = await c.spawn("say hello", label="greeter")
        result = await task
    assert task.id.startswith("t_")
    assert task.label == "greeter"
    assert result.is_ok
    assert result.error is None
    assert "say hello" in (result.text or "")


async def test_many_may_wait_for_one_task_and_any_may_leave(tmp_path: Path) -> None:
    patient = Patient()
    async with clutch(tmp_path / "state", patient) as c:
        task = await c.spawn("wait for it")
        waiters = [asyncio.ensure_future(_result(task)) for _ in range(3)]
        await patient.asked.wait()
        waiters[0].cancel()
        patient.go.set()
        results = await asyncio.gather(*waiters, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [result.text for result in results[1:]] == ["at last", "at last"]  # type: ignore[union-attr]


async def _result(task: Any) -> Any:
    return await task


async def test_a_task_outlives_the_program_and_is_found_by_its_id(tmp_path: Path) -> None:
    patient = Patient()
    async with clutch(tmp_path / "state", patient) as c:
        task = await c.spawn("survive")
        await patient.asked.wait()
    async with clutch(tmp_path / "state") as c:
        found = await c.get(task.id)
        result = await found
    assert (found.id, found.label, found.session_key) == (task.id, task.label, task.session_key)
    assert "survive" in (result.text or "")


async def test_whoever_still_waits_when_clutch_closes_is_told(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state", Patient()) as c:
        task = await c.spawn("too long")
        waiter = asyncio.ensure_future(_result(task))
        await asyncio.sleep(0)
    with pytest.raises(ClutchError, match="closed"):
        await waiter


async def test_a_killed_task_ends_killed_and_a_second_kill_stops_nothing(tmp_path: Path) -> None:
    patient = Patient()
    async with clutch(tmp_path / "state", patient) as c:
        task = await c.spawn("never mind")
        await patient.asked.wait()
        assert await task.kill("changed my mind") == KillResult(stopped=(task.id,))
        assert (await task).outcome is Outcome.KILLED
        assert await task.kill() == KillResult(already_finished=(task.id,))


async def test_a_steered_task_goes_on_with_the_new_words(tmp_path: Path) -> None:
    patient = Patient()
    async with clutch(tmp_path / "state", patient) as c:
        task = await c.spawn("go north")
        await patient.asked.wait()
        await task.steer("go south")
        patient.go.set()
        assert (await task).is_ok
        assert any("go south" in text for text in patient.heard)


async def test_a_finished_task_cannot_be_steered(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state") as c:
        task = await c.spawn("be quick")
        await c.wait_idle()
        with pytest.raises(NotPossible):
            await task.steer("too late")


async def test_a_person_says_something_and_hears_each_reply_once(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state") as c:
        await c.say("one", idempotency_key="k")
        await c.say("one", idempotency_key="k")
        assert await c.reply() == "heard: one"
        await c.say("two")
        assert await c.reply() == "heard: two"
        await c.wait_idle()


async def test_a_reply_nobody_took_waits_for_the_next_start(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state") as c:
        await c.say("remember me", session="agent:main:chat:notes")
        await c.wait_idle(session="agent:main:chat:notes")
    async with clutch(tmp_path / "state") as c:
        assert await c.reply(session="agent:main:chat:notes") == "heard: remember me"


@pytest.mark.scenario(210)
async def test_reply_to_a_result_that_nobody_was_there_for_is_shown_at_the_next_attach_exactly_once(
    tmp_path: Path,
) -> None:
    async with clutch(tmp_path / "state", policy=QUICK) as c:
        task = await c.spawn("look it up", label="look", notify_parent=True)
        await c.wait_idle()
        assert (await task).is_ok
        assert (await c.services.db.read(unread_replies)).waiting == 1
    async with clutch(tmp_path / "state", policy=QUICK) as c:
        assert (await c.reply()).startswith('heard: [Subagent] "look" completed successfully')
        assert (await c.services.db.read(unread_replies)).waiting == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await c.reply()
        assert await c.services.db.read(undelivered) == 0


async def test_an_agent_that_is_woken_reads_what_happened_and_tells(tmp_path: Path) -> None:
    class Watchman:
        async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
            return Answer("the mill burns" if "- smoke" in request.system else "HEARTBEAT_OK", model="w")

    async with clutch(tmp_path / "state", Watchman()) as c:
        assert await c.notify("smoke")
        assert not await c.notify("smoke")
        await c.wake()
        assert await c.reply() == "the mill burns"
        with pytest.raises(InvalidInput, match="text"):
            await c.notify(" ")


async def test_an_error_inside_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with clutch(tmp_path / "state"):
            raise KeyError("mine")


async def test_a_full_requester_is_refused_with_the_key_and_the_numbers(tmp_path: Path) -> None:
    policy = replace(QUICK, limits=Limits(children_max=1))
    async with clutch(tmp_path / "state", Patient(), policy) as c:
        _ = await c.spawn("first")
        with pytest.raises(SpawnRefused, match=r"1/1 .*maxChildrenPerAgent"):
            _ = await c.spawn("second", on_full="reject")


# --- bad input --------------------------------------------------------------------------------------------

BAD_SPAWNS: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": " \n"}),
    ("prompt", {"prompt": "nul \0 byte"}),
    ("prompt", {"prompt": "x" * 10 * 1024 * 1024}),
    ("prompt", {"prompt": "half a pair \ud800"}),
    ("prompt", {"prompt": 7}),
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": b"bytes"}),
    ("label", {"label": "bell \a"}),
    ("label", {"label": "x" * 201}),
    ("agent_id", {"agent_id": "../etc"}),
    ("agent_id", {"agent_id": "Main"}),
    ("run_timeout_seconds", {"run_timeout_seconds": -1}),
    ("run_timeout_seconds", {"run_timeout_seconds": float("nan")}),
    ("run_timeout_seconds", {"run_timeout_seconds": True}),
    ("cleanup", {"cleanup": "burn"}),
    ("plan_mode", {"plan_mode": "yes"}),
    ("session", {"session": None}),
    ("session", {"session": 7}),
    ("session", {"session": ["agent:main:main"]}),
    ("session", {"session": "main"}),
    ("session", {"session": "agent:main:main "}),
    ("session", {"session": "agent:MAIN:main"}),
    ("session", {"session": "agent:main:chat:"}),
    ("session", {"session": "agent:main:subagent:8c9613ba-1ec3-4739-b030-857aeeb17858"}),
    ("on_full", {"on_full": "wait"}),
    ("idempotency_key", {"idempotency_key": 7}),
    ("idempotency_key", {"idempotency_key": b"key"}),
    ("idempotency_key", {"idempotency_key": ""}),
    ("idempotency_key", {"idempotency_key": "a\nb"}),
    ("idempotency_key", {"idempotency_key": "x" * 201}),
]


async def test_bad_spawns_name_the_field_and_write_nothing(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state") as c:
        before = await c.services.db.read(rows)
        for field, given in BAD_SPAWNS:
            with pytest.raises(InvalidInput) as caught:
                _ = await c.spawn(**{"prompt": "fine", **given})
            assert caught.value.field == field, given
            assert caught.value.rule
            assert len(str(caught.value)) < 400
        assert await c.services.db.read(rows) == before


async def test_a_parameter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    unknown: Any = {"lable": "red"}
    async with clutch(tmp_path / "state") as c:
        with pytest.raises(TypeError, match="lable"):
            _ = await c.spawn("fine", **unknown)


async def test_bad_words_name_the_field_and_write_nothing(tmp_path: Path) -> None:
    patient = Patient()
    async with clutch(tmp_path / "state", patient) as c:
        task = await c.spawn("stay")
        await patient.asked.wait()
        before = await c.services.db.read(rows)
        bad: tuple[Any, ...] = ("", "nul \0", "\udc00", "x" * 100_000, None, 7, b"bytes")
        asks: tuple[tuple[str, Any], ...] = (("text", c.say), ("text", task.steer), ("reason", task.kill))
        for text in bad:
            for field, ask in asks:
                with pytest.raises(InvalidInput) as caught:
                    await ask(text)
                assert caught.value.field == field
        assert await c.services.db.read(rows) == before


@pytest.mark.parametrize("target", ["", "t_", "7", "t_!!", "agent:main:main", "t_0\0", None, 7, b"t_z", []])
async def test_what_is_no_task_id_is_not_looked_up(tmp_path: Path, target: Any) -> None:
    async with clutch(tmp_path / "state") as c:
        with pytest.raises(InvalidInput, match="task_id"):
            _ = await c.get(target)


async def test_an_unknown_task_is_not_found(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state") as c:
        with pytest.raises(NotFound, match="t_z"):
            _ = await c.get("t_z")


# --- a lost answer ----------------------------------------------------------------------------------------


class Forgetful(PassThroughDatabase):
    """A database whose answers to writes are lost `losses` times: after the commit, or before it."""

    def __init__(self, db: Database, losses: int, before: bool) -> None:
        super().__init__(db)
        self.losses, self.before = losses, before

    async def tx(self, keys: Keys, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._lose(lambda: self._db.tx(keys, fn, *args, **kwargs))

    async def alone(self, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return await self._lose(lambda: self._db.alone(fn, *args, **kwargs))

    async def _lose(self, ask: Callable[[], Any]) -> Any:
        if self.losses <= 0:
            return await ask()
        self.losses -= 1
        if not self.before:
            await ask()
        raise StoreLost


@dataclass(frozen=True)
class Behind:
    services: Services


@asynccontextmanager
async def forgetful(state: Path, losses: int, *, before: bool = False) -> AsyncIterator[Behind]:
    """The engine has a good connection; only the caller's is bad."""
    async with running_engine(state=state, models=Echo(), policy=QUICK) as engine:
        yield Behind(replace(engine.services, db=Forgetful(engine.db, losses, before)))


def bad_line(state: Path, losses: int, *, before: bool = False) -> Api:
    return Api(lambda stack: gateway.opened(stack, forgetful(state, losses, before=before)))


@pytest.mark.parametrize("before", [False, True])
async def test_a_spawn_whose_answer_was_lost_makes_one_task(tmp_path: Path, before: bool) -> None:
    async with bad_line(tmp_path / "state", 3, before=before) as c:
        task = await c.spawn("only once")
        assert (await task).is_ok
        assert (await c.services.db.read(rows))["tasks"] == 1


async def test_words_whose_receipt_was_lost_are_heard_once(tmp_path: Path) -> None:
    async with bad_line(tmp_path / "state", 3) as c:
        await c.say("only once")
        assert await c.reply() == "heard: only once"
        await c.wait_idle()
        assert (await c.services.db.read(rows))["outbox"] == 1


async def test_a_store_that_stays_away_is_the_callers_to_handle(tmp_path: Path) -> None:
    async with bad_line(tmp_path / "state", 1000) as c:
        with pytest.raises(StoreLost):
            _ = await c.spawn("nobody home")


async def test_the_same_key_gives_the_same_task(tmp_path: Path) -> None:
    async with clutch(tmp_path / "state") as c:
        first = await c.spawn("pay the bill", idempotency_key="bill-7")
        again = await c.spawn("pay the bill", idempotency_key="bill-7")
        notified = await c.spawn("pay the bill", idempotency_key="bill-7", notify_parent=True)
        other = await c.spawn("pay the bill", idempotency_key="bill-8")
    assert again.id == notified.id == first.id != other.id
