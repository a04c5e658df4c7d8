"""Commands from a channel: unknown channels, unbound threads and unnamed accounts are refused, and nothing runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from clutch import Clutch, NotFound
from clutch.api.actions import InThread
from clutch.api.slash import MAIN_SESSION
from clutch.core.authority import OperatorCaller, Scope
from clutch.core.ids import parse_task_id
from clutch.core.messages import Answer, Input
from clutch.core.model import Route
from clutch.errors import Forbidden
from clutch.ports import ModelRequest, OnDelta
from clutch.testing.channels import ThreadedChannel
from clutch.transactions import messages
from tests.patience import PATIENCE_S
from tests.policies import QUICK

pytestmark = pytest.mark.anyio

WRITES = OperatorCaller(frozenset({Scope.READ, Scope.WRITE}), "bridge")


class Waiting:
    """Every child waits until the test lets it go; one that is to plan has its plan at once."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        told = [message.text for message in request.transcript if isinstance(message, Input)]
        if "plan first" in told[0] and not any(isinstance(one, Answer) for one in request.transcript):
            return Answer("1. look", model="waiting")
        await self.go.wait()
        return Answer(f"heard: {told[-1]}", model="waiting")


@asynccontextmanager
async def gateway(
    tmp_path: Path, operators: Sequence[str] = (), approvers: Sequence[str] = ()
) -> AsyncIterator[tuple[Clutch, ThreadedChannel]]:
    web = ThreadedChannel(operators=operators, approvers=approvers)
    models = Waiting()
    async with Clutch(
        state=tmp_path / "state",
        models=models,
        policy=QUICK,
        workspace=tmp_path,
        channels={"web": web},
        serve=False,
    ) as c:
        yield c, web
        models.go.set()


async def seen(look: Callable[[], Awaitable[Any]], is_there: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if is_there(found := await look()):
                return found
            await asyncio.sleep(0.01)


async def bound(c: Clutch, account: str, thread: str = "th1", *, plans: bool = False) -> str:
    """A child that has a thread, bound for `account`."""
    child = await c.spawn("plan first" if plans else "wait", label="one", plan_mode=plans)
    place = Route("web", account or None, None, thread)
    await c.services.db.alone(messages.focus, c.services.policy, parse_task_id(child.id) or 0, place, "test")
    return child.id


@pytest.mark.parametrize("line", ["/subagents kill all", "/focus one", "/status", "/nonsense"])
async def test_unknown_channel_is_refused_for_commands_as_for_messages(tmp_path: Path, line: str) -> None:
    async with gateway(tmp_path, operators=["*"]) as (c, _):
        task = await bound(c, "ada")
        for text in (line, "hello"):
            with pytest.raises(NotFound, match="nowhere"):
                await c.receive_thread_message("nowhere", "th1", text, account="ada")
        assert (await c.get(task)).id == task


@pytest.mark.parametrize("operators", [(), ("ada",), ("*",)])
async def test_unbound_thread_is_refused_for_commands_as_for_messages(
    tmp_path: Path, operators: tuple[str, ...]
) -> None:
    async with gateway(tmp_path, operators) as (c, web):
        child = await c.spawn("wait", label="one")
        for text in ("/subagents kill all", "/stop", "hello"):
            with pytest.raises(NotFound, match="th9"):
                await c.receive_thread_message("web", "th9", text, account="ada")
        assert "Phase: completed" not in await c.command(f"/subagents info {child.id}")
        assert web.sent == []


async def test_only_the_bound_account_commands_in_a_thread_unless_the_channel_names_operators(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as (c, _):
        task = await bound(c, "ada")
        for stranger in ("", "bob", "ADA"):
            with pytest.raises((Forbidden, NotFound)):
                await c.receive_thread_message("web", "th1", f"/subagents kill {task}", account=stranger)
        assert "Outcome: killed" not in await c.command(f"/subagents info {task}")
        await c.receive_thread_message("web", "th1", f"/subagents kill {task}", account="ada")
        assert "killed" in await c.command(f"/subagents info {task}")


async def test_an_account_that_is_not_named_is_refused_with_the_key_that_would_name_it(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, operators=["ada"]) as (c, _):
        await bound(c, "")
        with pytest.raises(Forbidden, match=r"channels\.web\.operators") as refused:
            await c.receive_thread_message("web", "th1", "/subagents kill all")
        assert refused.value.rule == "sender"


async def test_a_named_operator_commands_in_threads_of_others_and_takes_a_free_one_with_focus(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, operators=["ada"]) as (c, _):
        task = await bound(c, "bob")
        await c.receive_thread_message("web", "th2", f"/focus {task}", account="ada")
        await c.receive_thread_message("web", "th2", "look left", account="ada")
        with pytest.raises(NotFound):
            await c.receive_thread_message("web", "th3", f"/focus {task}", account="bob")
        await c.receive_thread_message("web", "th1", f"/subagents kill {task}", account="ada")
        assert "killed" in await c.command(f"/subagents info {task}")


async def test_an_approval_needs_the_approve_right_of_account_and_token(tmp_path: Path) -> None:
    async with gateway(tmp_path, operators=["ada"], approvers=["eve"]) as (c, web):
        task = await bound(c, "ada", plans=True)
        await seen(c.inbox, bool)
        line = f"/subagents approve {task}"

        def said(account: str) -> InThread:
            return InThread(channel="web", thread="th1", text=line, account=account)

        async def bodies() -> list[str]:
            return [one.body for one in web.sent]

        await c.local_gateway.receive_thread_message(said("ada"), None)
        await c.local_gateway.receive_thread_message(said("eve"), None, WRITES)
        sent = await seen(bodies, lambda sent: len(sent) == 2)
        assert sent == ["approve needs the scope approve"] * 2
        assert await c.inbox()
        await c.local_gateway.receive_thread_message(said("eve"), None)
        assert not await c.inbox()


async def test_a_command_of_a_channel_is_recorded_under_the_name_of_its_sender(tmp_path: Path) -> None:
    async with gateway(tmp_path, operators=["ada"]) as (c, _):
        task = await bound(c, "ada")
        await c.receive_thread_message("web", "th1", f"/subagents kill {task}", account="ada")
        why = await c.command(f"/subagents why {task}")
        assert "web:ada" in why


async def test_the_chat_at_the_gateway_answers_commands_of_its_own_caller_in_bound_threads_only(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as (c, _):
        with pytest.raises(NotFound):
            await c.receive_thread_message("api", f"{MAIN_SESSION}/t_1", "/stop")
