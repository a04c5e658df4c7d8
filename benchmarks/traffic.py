"""Tasks through the protocol, without engine, models and tools: every step is one awaited transaction.

    spawn → claim → begin → respond → results → respond → results → finish → wake → claim → begin → finish
    └──────────────────────────── the child ─────────────────────────────┘   └── its parent: take, answer ─┘

Claims and the mailman's rounds are shared by all who wait, as in the engine, but nothing ever sleeps or polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks.task import FINDING, POLICY, REPLY, REQUEST, ROOT_RIGHTS, STEPS, TASKS_PER_PARENT, WORKSPACE
from clutch.core.messages import Answer
from clutch.engine.services import BlockIds
from clutch.store.transaction import Database
from clutch.transactions import claims, sessions, turn_begin, turn_end, wake, workers
from clutch.transactions import turn as turn_tx
from clutch.transactions.sessions import NewMain, OwnedRun
from clutch.transactions.spawn import ChildRequest, spawn
from clutch.transactions.turn import ModelAnswer

_LEASE_S: Final = 1e12  # nobody else is there to bury it


class Traffic:
    """Use it as `async with`; it is one worker, and its number is a new one."""

    def __init__(self, db: Database) -> None:
        self._door = db
        self._ids = BlockIds()
        self._worker_id = 0
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._mail: set[int] = set()
        self._mail_came, self._became_due = asyncio.Event(), asyncio.Event()
        db.listen(self._hear)

    async def __aenter__(self) -> Traffic:
        self._worker_id = await self._door.alone(workers.next_number)
        self._ids.take_block(self._worker_id)
        who, lanes = (self._worker_id, _LEASE_S, "bench", 0), POLICY.work.lanes
        await self._door.alone(workers.register, *who, version="bench", lanes=lanes)
        self._helpers = [asyncio.create_task(helper) for helper in (self._carry_mail(), self._claim())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for helper in self._helpers:
            helper.cancel()
        await asyncio.wait(self._helpers)

    async def new_parents(self, count: int) -> list[int]:
        async with asyncio.TaskGroup() as group:
            opening = [group.create_task(self._open()) for _ in range(count)]
        return [one.result() for one in opening]

    async def _open(self) -> int:
        number = self._ids.next()
        key = f"agent:main:chat:bench-{number}"
        return await self._door.tx(
            number, sessions.open_session, NewMain(number, key, "main", ROOT_RIGHTS, None, WORKSPACE)
        )

    async def task(self, parent_id: int) -> None:
        """From the wish to the answered result."""
        child_id = self._ids.next()
        order = ChildRequest(f"bench:{child_id}", child_id, self._ids.uuid4(), REQUEST, 0)
        soon = self._claimed(child_id)
        await self._door.tx(parent_id, spawn, POLICY, parent_id, parent_id, [order])
        heard = self._claimed(parent_id)
        await self._turn(child_id, await soon, FINDING, STEPS)
        await self._turn(parent_id, await heard, REPLY)

    async def _turn(
        self, session_id: int, fence: int, last: Answer, steps: Sequence[tuple[Answer, Any]] = ()
    ) -> None:
        db, owned = self._door, OwnedRun(POLICY, session_id, fence, self._ids.next())
        begun = await db.tx(session_id, turn_begin.begin, owned, self._ids.nonce())
        if begun is None:
            raise RuntimeError(f"session {session_id} was claimed and had nothing to do")
        owned, is_unanswered = replace(owned, run_id=begun.run_id), True
        for answer, outcome in steps:
            await db.tx(session_id, turn_tx.respond, owned, ModelAnswer(answer, is_unanswered), [True])
            await db.tx(session_id, turn_tx.results, owned, outcome, self._ids.nonce())
            is_unanswered = False
        said = ModelAnswer(last, is_unanswered)
        await db.tx((session_id, *begun.senders), turn_end.finish, owned, said)

    # ---- what the dispatcher does in the engine ------------------------------------------------------

    def _claimed(self, session_id: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[session_id] = future
        return future

    def _hear(self, hints: Sequence[Any]) -> None:
        for hint in hints:
            if hint[0] == "mail":
                self._mail.add(hint[1])
                self._mail_came.set()
            elif hint[0] == "due":
                self._became_due.set()

    async def _carry_mail(self) -> None:
        while True:
            await self._mail_came.wait()
            self._mail_came.clear()
            waiting, self._mail = sorted(self._mail), set()
            await asyncio.gather(*(self._door.tx(one, wake.wake, POLICY, one) for one in waiting))

    async def _claim(self) -> None:
        while True:
            await self._became_due.wait()
            self._became_due.clear()
            room = POLICY.work.sessions_max
            for one in await self._door.alone(claims.claim, self._worker_id, room):
                self._waiting.pop(one.session_id).set_result(one.fence)


async def by_clients(
    count: int, clients: int, parents: Sequence[int], task: Callable[[int], Coroutine[Any, Any, None]]
) -> list[float]:
    """`count` tasks, `clients` at a time, each client with parents of its own. The seconds each took, sorted."""
    clock = asyncio.get_running_loop().time
    taken: list[float] = []
    left = count

    async def client(number: int) -> None:
        nonlocal left
        mine = parents[number::clients]
        for turn in range(len(mine) * TASKS_PER_PARENT):
            if left <= 0:
                return
            left -= 1
            started = clock()
            await task(mine[turn // TASKS_PER_PARENT])
            taken.append(clock() - started)

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    return sorted(taken)


def parents_needed(count: int, clients: int) -> int:
    """Clients take tasks as they come, so one may do more than its share."""
    return clients * (2 + 2 * count // (clients * TASKS_PER_PARENT))
