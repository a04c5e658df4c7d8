"""A state directory full of work in flight, as SQL: `python -m tests.golden.in_flight > tests/golden/state_NNNN.sql`.

The engine makes it with scripted models and is looked at while it works, as a killed process would leave it. It is
written once per schema version and never again: later versions must open it and finish what is in it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

import apsw
from pydantic import BaseModel

from clutch.api import gateway
from clutch.api.client import Api
from clutch.core.delivery import SendUnsure
from clutch.core.messages import Answer, Call, Input
from clutch.core.model import Lane
from clutch.core.policy import Announcing, Keeping, Life, Limits, Policy, Work
from clutch.ports import ModelError, ModelRequest, OnDelta, ToolContext, Trouble
from clutch.store.transaction import Tx
from clutch.testing.clock import START
from clutch.tools.registry import Tools
from clutch.transactions import outbox
from clutch.wiring import running_engine

EVER_S = 1e9  #: nothing expires, however much later the state is opened
POLICY = Policy(
    limits=Limits(depth_max=3, children_max=50, retained_max=100),
    life=Life(error_grace_s=0.05, provider_retries_s=(0.01,), settle_expiry_s=EVER_S),
    announcing=Announcing(
        debounce_s=0.01, fast_tries=1, slow=False, until_s=EVER_S, until_no_completion_s=EVER_S,
        dead_letter_days=1e5, send_timeout_s=EVER_S,
    ),
    keeping=Keeping(archive_after_s=0.0),
    work=Work(lanes=MappingProxyType({Lane.MAIN: 4, Lane.SUBAGENT: 4}), tick_s=0.05, stop_s=0.2),
)  # fmt: skip
BUSY, DEAD = "agent:main:chat:busy", "agent:main:chat:dead"
CALLS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "parent": (("sessions_spawn", {"task": "hold leaf", "label": "leaf"}), ("sessions_yield", {})),
    "early": (("sessions_spawn", {"task": "hold late leaf", "label": "late leaf"}),),
    "busy": (("sessions_spawn", {"task": "quick", "label": "deferred"}),),
    "dead": (("sessions_spawn", {"task": "quick", "label": "undelivered"}),),
    "pay": (("pay", {}),),
    "ask": (("ask_human", {"question": "Which one?", "choices": ["a", "b"]}),),
}
#: The phase of each task when the process dies.
WAITS = {
    "parent": "paused", "leaf": "running", "early": "announce_deferred", "late leaf": "running",
    "deferred": "announcing", "undelivered": "completed_giveup", "paying": "running", "asking": "paused",
    "planned": "awaiting_approval", "held": "running", "first in line": "queued", "second in line": "queued",
    "paused": "paused",
}  # fmt: skip


class PastClock:
    """Goes on from a moment that is over on every machine."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def now(self) -> float:
        return START + time.monotonic() - self._since


class Script:
    """Plays `CALLS` one per answer, then ends. `is_dying`: what is to be in flight never gets its answer."""

    def __init__(self, *, is_dying: bool) -> None:
        self.is_dying = is_dying

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        told = [one.text for one in request.transcript if isinstance(one, Input)]
        first, step = told[0].split("\n")[-1], sum(isinstance(one, Answer) for one in request.transcript)
        calls = CALLS.get(first, ())
        if step < len(calls):
            name, arguments = calls[step]
            return Answer("", (Call(name, arguments),), model="scripted", stop="tools")
        if self.is_dying and (first.startswith("hold") or (first == "busy" and step == 1)):
            await asyncio.Event().wait()
        if self.is_dying and first == "dead" and len(told) > 1:
            raise ModelError(Trouble.BAD_REQUEST, "the provider refuses it")
        return Answer(f"answer {step} to {first}", model="scripted")


class Nothing(BaseModel):
    """A tool without arguments."""


def toolbox(pay: Callable[[], Awaitable[str]]) -> Tools:
    async def function(arguments: Nothing, context: ToolContext) -> str:
        return await pay()

    tools = Tools(POLICY.limits)
    tools.add(function, arguments=Nothing, name="pay", description="pay")
    return tools


async def never() -> str:
    await asyncio.Event().wait()
    return ""


class Mail:
    """Takes a message and never answers."""

    async def send(self, target: str, body: str, key: str) -> str | None:
        return await never()


class Fax:
    """Nothing tells whether a message arrived."""

    async def send(self, target: str, body: str, key: str) -> str | None:
        raise SendUnsure("the line was cut")


async def make(state: Path) -> str:
    engine = running_engine(
        state=state,
        policy=POLICY,
        models=Script(is_dying=True),
        toolbox=toolbox(never),
        channels={"mail": Mail(), "fax": Fax()},
        clock=PastClock(),
    )
    async with Api(lambda stack: gateway.opened(stack, engine)) as clutch:
        for session in (BUSY, DEAD):
            await clutch.say(session.rpartition(":")[2], session=session)
        await clutch.say("hello")
        for route in ("mail:ada", "fax:bob", "post:eve"):
            await clutch.services.db.tx((), outbox.post, 1, f"message to {route}", route, f"hello {route}")
        await until(clutch, "deferred", "undelivered")
        _ = await clutch.spawn("make a plan", label="planned", plan_mode=True, notify_parent=True)
        _ = await clutch.spawn("ask", label="asking", notify_parent=True)
        await until(clutch, "planned", "asking")
        for task, label in (("parent", "parent"), ("early", "early"), ("pay", "paying"), ("hold", "held")):
            _ = await clutch.spawn(task, label=label, notify_parent=True)
        await until(clutch, "parent", "leaf", "early", "late leaf", "paying", "held")
        for label in ("first in line", "second in line"):
            _ = await clutch.spawn("hold", label=label, notify_parent=True)
        await (await clutch.spawn("hold", label="paused", notify_parent=True)).pause()
        await until(clutch, *WAITS)
        return dump(state)


def dump(state: Path) -> str:
    """Return the database as SQL. A second SQLite library in this process would break its locks: a copy is read."""
    copy = state / "copy.db"
    with (
        closing(apsw.Connection(str(copy))) as target,
        closing(apsw.Connection(str(state / "clutch.db"))) as source,
        target.backup("main", source, "main") as copying,
    ):
        copying.step()
    with closing(sqlite3.connect(copy)) as database:
        return "".join(f"{line}\n" for line in database.iterdump())


def phases(now: float) -> Tx[dict[str, str]]:
    return dict((yield "SELECT label, phase FROM tasks", ()))


async def until(clutch: Api, *labels: str) -> None:
    """Return when each of these tasks waits for what it is to wait for."""
    found: dict[str, str] = {}
    for _ in range(500):
        found = await clutch.services.db.read(phases)
        if all(found.get(label) == WAITS[label] for label in labels):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.stdout.write(asyncio.run(make(Path(made) / "state")))
