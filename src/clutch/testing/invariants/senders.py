"""S31: commands that arrive through a channel run for named senders in bound threads, and for no others."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from clutch.core.ids import parse_task_id
from clutch.core.messages import Answer
from clutch.core.model import Route
from clutch.errors import ClutchError
from clutch.ports import ModelRequest, OnDelta
from clutch.testing.channels import RecordingChannel
from clutch.testing.invariants.probes import Probe
from clutch.transactions import messages

if TYPE_CHECKING:
    from clutch import Clutch

_PATIENCE_S = 20.0
#: channel, thread, account
_STRANGERS = (
    ("web", "bound", "bob"),
    ("web", "bound", ""),
    ("web", "nameless", ""),
    ("web", "free", "ada"),
    ("web", "free", "operator"),
    ("gone", "bound", "ada"),
)


class _Planner:
    """Writes a plan at once."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del request, on_delta
        return Answer("1. look", model="planner")


def _story() -> Iterator[str]:
    yield from asyncio.run(_played())


async def _played() -> list[str]:
    from clutch import Clutch

    web = RecordingChannel(operators=["operator"])
    with tempfile.TemporaryDirectory(prefix="clutch-probe-") as folder:
        async with (
            asyncio.timeout(_PATIENCE_S),
            Clutch(
                state=Path(folder) / "state",
                workspace=folder,
                models=_Planner(),
                channels={"web": web},
                serve=False,
            ) as clutch,
        ):
            return [wrong async for wrong in _asked(clutch)]


async def _asked(clutch: Clutch) -> AsyncIterator[str]:
    """A plan that waits for a decision shows whether a command ran: it is gone then."""
    child = await clutch.spawn("look", plan_mode=True)
    number = parse_task_id(child.id) or 0
    for place in (
        Route("web", "ada", None, "bound"),
        Route("web", None, None, "nameless"),
        Route("gone", "ada", None, "bound"),
    ):
        await clutch.services.db.alone(messages.focus, clutch.services.policy, number, place, "probe")
    await _plan_waits(clutch)
    for channel, thread, account in _STRANGERS:
        await _try(clutch, channel, thread, account, f"/subagents kill {child.id}")
        if not await clutch.inbox():
            yield f"{account!r} killed a task from thread {thread!r} of channel {channel!r}"
            return
    await _try(clutch, "web", "bound", "operator", f"/subagents approve {child.id}")
    if not await clutch.inbox():
        yield "an operator without the right to approve approved a plan"
        return
    await _try(clutch, "web", "bound", "ada", f"/subagents kill {child.id}")
    if await clutch.inbox():
        yield "a command of the bound account did not run"


async def _plan_waits(clutch: Clutch) -> None:
    changes = clutch.services.changes
    while True:
        change = changes.next_change
        if await clutch.inbox():
            return
        await changes.until(change)


async def _try(clutch: Clutch, channel: str, thread: str, account: str, line: str) -> None:
    with contextlib.suppress(ClutchError):
        await clutch.receive_thread_message(channel, thread, line, account=account)


PROBE = Probe("S31", "a command from a channel runs for named senders in bound threads only", _story)
