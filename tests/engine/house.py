"""A house with real workers: a store, a model that can be held up, tools that can be watched.

Time is real but small, and can jump. Nobody sleeps: `until` looks again after every commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias

from pydantic import BaseModel

from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.messages import Answer, Call, Input, Usage
from clutch.core.model import LetterKind, Phase, Task
from clutch.core.policy import Announcing, Life, Limits, Policy, Work
from clutch.core.spawn import SpawnRequest
from clutch.engine.live import Bus
from clutch.engine.services import BlockIds, Services
from clutch.engine.worker import Worker
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta, ToolContext
from clutch.store.transaction import Database, Row, Tx
from clutch.tools.registry import Tools
from clutch.transactions import inbox, sessions, tasks
from clutch.transactions.read import transcripts
from clutch.transactions.spawn import ChildRequest, spawn
from tests.patience import PATIENCE_S

#: Hints must do all the work: a tick would come too late for any test.
POLICY = Policy(
    limits=Limits(depth_max=3),
    life=Life(error_grace_s=0.05, provider_retries_s=(0.01, 0.01, 0.01)),
    announcing=Announcing(debounce_s=0.01),
    work=replace(Work(), tick_s=60.0, stop_s=0.2),
)

Script: TypeAlias = Callable[[ModelRequest], Awaitable[Answer | str]]


class JumpClock:
    """The real time, and whatever somebody added to it."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.time() + self._ahead

    def jump(self, seconds: float) -> None:
        self._ahead += seconds


class HeldModel:
    """Answers by a script that may wait; remembers every request, and the calls that were cancelled."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[ModelRequest] = []
        self.cancelled: list[ModelRequest] = []

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self.requests.append(request)
        try:
            said = await self.script(request)
        except asyncio.CancelledError:
            self.cancelled.append(request)
            raise
        answer = Answer(said, (), Usage(10, 5), "scripted") if isinstance(said, str) else said
        if answer.text:
            on_delta(Delta(DeltaKind.TEXT, answer.text))
        return answer

    def of(self, words: str) -> list[ModelRequest]:
        """The requests of the session whose first message holds these words."""
        return [request for request in self.requests if words in opening(request)]


class Anything(BaseModel):
    n: int = 0


def opening(request: ModelRequest) -> str:
    first = request.transcript[0]
    assert isinstance(first, Input)
    return first.text


def step(request: ModelRequest) -> int:
    """How often this session's model has answered before."""
    return sum(isinstance(message, Answer) for message in request.transcript)


def use(*names: str) -> Answer:
    return Answer("", tuple(Call(name, {}) for name in names), Usage(10, 5), "scripted", "tools")


def ask_for(*labels: str) -> Answer:
    wanted = tuple(Call("sessions_spawn", {"task": f"do {label}", "label": label}) for label in labels)
    return Answer("", wanted, Usage(10, 5), "scripted", "tools")


def _select(now: float, sql: str, *parameters: Any) -> Tx[list[Row]]:
    return list((yield sql, parameters))


class House:
    def __init__(
        self,
        db: Database,
        script: Script,
        clock: JumpClock,
        policy: Policy = POLICY,
        *,
        has_leases: bool = False,
    ) -> None:
        self.db, self.clock, self.policy, self.has_leases = db, clock, policy, has_leases
        self.model = HeldModel(script)
        self.tools = Tools(policy.limits)
        self.bus = Bus()
        self.main = 0
        self.more: dict[str, Any] = {}  #: of the kit: prices, runtimes, workspaces
        self._numbers = iter(range(1, 1000))
        self._working: dict[Worker, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        db.listen(lambda _: self._changed.set())

    # ---- workers -------------------------------------------------------------------------------------

    async def hire(self, db: Database | None = None) -> Worker:
        """A worker at work, with `db` as its own way to the same database."""
        services = Services(
            db or self.db, self.model, self.tools, self.policy, BlockIds(), self.bus, **self.more
        )
        worker = Worker(services, self.clock, has_leases=self.has_leases)
        self._working[worker] = asyncio.create_task(worker.run())
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait([ready, self._working[worker]], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            self._working[worker].result()
        return worker

    async def crash(self, worker: Worker) -> None:
        """As if the process were killed: no goodbye. (Its turns die with it.)"""
        running = self._working.pop(worker)
        running.cancel()
        await asyncio.wait([running])

    async def dismiss(self, worker: Worker) -> None:
        """An orderly stop; raises whatever the worker raised."""
        await worker.stop()
        await self._working.pop(worker)

    async def close(self) -> None:
        for worker in list(self._working):
            await self.dismiss(worker)

    # ---- people --------------------------------------------------------------------------------------

    async def open(self) -> int:
        rights = rights_text(root_rights(AgentGrant(depth_max=self.policy.limits.depth_max)))
        self.main = await self.db.alone(
            sessions.open_session, sessions.NewMain(1, "agent:main:main", "main", rights, "terminal:x", ".")
        )
        return self.main

    async def say(self, text: str, kind: LetterKind = LetterKind.USER) -> None:
        await self.db.tx(self.main, inbox.post, self.main, f"said:{next(self._numbers)}", kind, text)

    async def spawn(self, count: int, first: int = 0, **asked: Any) -> None:
        """Children of the main session that nobody's model asked for: `job 0`, `job 1`, …"""
        orders = [
            ChildRequest(
                f"job {n}",
                10_000 + n,
                f"00000000-0000-4000-8000-{n:012x}",
                SpawnRequest(f"job {n}", f"job {n}", **asked),
                n,
            )
            for n in range(first, first + count)
        ]
        await self.db.tx(self.main, spawn, self.policy, self.main, self.main, orders)

    def tool(self, name: str, run: Callable[[], Awaitable[str]], *, replay_safe: bool = False) -> None:
        async def function(arguments: Anything, context: ToolContext) -> str:
            return await run()

        self.tools.add(function, arguments=Anything, name=name, description=name, replay_safe=replay_safe)

    # ---- looking -------------------------------------------------------------------------------------

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Looks after every commit, and now and then in between for what no commit tells."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self._changed.clear()
                if await is_so():
                    return
                self._raise_for_the_dead()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await self._changed.wait()

    def _raise_for_the_dead(self) -> None:
        for running in self._working.values():
            if running.done():
                running.result()

    async def until_quiet(self) -> None:
        async def is_quiet() -> bool:
            return await self.db.read(transcripts.is_quiet, self.main)

        await self.until(is_quiet)

    async def until_phase(self, label: str, *phases: Phase) -> Task:
        async def is_there() -> bool:
            found = await self.rows("SELECT phase FROM tasks WHERE label = ?", label)
            return bool(found) and Phase(found[0][0]) in phases

        await self.until(is_there)
        return await self.task(label)

    async def until_asked(self, words: str, times: int = 1) -> None:
        async def is_asked() -> bool:
            return len(self.model.of(words)) >= times

        await self.until(is_asked)

    async def rows(self, sql: str, *parameters: Any) -> list[Row]:
        return await self.db.read(_select, sql, *parameters)

    async def task(self, label: str) -> Task:
        (row,) = await self.rows(f"SELECT {tasks.COLUMNS} FROM tasks WHERE label = ?", label)  # noqa: S608
        return tasks.from_row(row)

    async def inputs(self, session_id: int) -> list[str]:
        said = await self.db.read(transcripts.transcript, session_id)
        return [message.text for message in said if isinstance(message, Input)]

    async def replies(self) -> list[str]:
        return [row[0] for row in await self.rows("SELECT body FROM outbox ORDER BY id")]
