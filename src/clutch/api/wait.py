"""Waiting for tasks and answers: one read serves all callers that wait. Hints say that something changed.

A thousand awaited tasks cost one read, and there is a pause between two reads. A lost hint costs a tick."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from clutch.contain import BackgroundTasks
from clutch.core.delivery import LOCAL_CHANNEL
from clutch.engine.live import Changes
from clutch.engine.services import Services
from clutch.errors import ClutchError, Draining, StoreError
from clutch.store.transaction import Database
from clutch.transactions import delivery, wake
from clutch.transactions.read import answers, tasks, transcripts
from clutch.transactions.read.answers import AnswerText, Spent
from clutch.transactions.read.inbox import waiting_items
from clutch.transactions.read.tasks import TaskEnd

CLOSED = "this Clutch is closed; its tasks resume at the next start, and `get` finds them by their id"
PAUSE_S = 0.01  # between two looks: under load hints come with every commit


class TaskWaiter:
    def __init__(self, db: Database, changes: Changes) -> None:
        self._db, self._changes = db, changes
        self._waiters: dict[int, asyncio.Future[TaskEnd]] = {}
        self._is_over = False

    @property
    def next_change(self) -> asyncio.Event:
        return self._changes.next_change

    async def end_of(self, task_id: int) -> TaskEnd:
        """Wait for the end of a task. Several callers may wait for one, and each may stop waiting."""
        future = self._waiters.get(task_id)
        if future is None:
            future = self._waiters[task_id] = asyncio.get_running_loop().create_future()
            self._changes.tell()
        return await asyncio.shield(future)

    async def until(self, change: asyncio.Event) -> None:
        """Wait for a change. Raises ClutchError when the gateway closes."""
        await self._changes.until(change)
        if self._is_over:
            raise ClutchError(CLOSED)

    async def run(self) -> None:
        while True:
            change = self.next_change
            if self._waiters:
                await self._look()
            await asyncio.sleep(PAUSE_S)
            await self.until(change)

    async def _look(self) -> None:
        try:
            found = await self._db.read(tasks.ended, list(self._waiters))
        except StoreError:
            return  # the next tick looks again
        for one in found:
            future = self._waiters.pop(one.task_id)
            if not future.done():
                future.set_result(one)

    def give_up(self) -> None:
        """End all waits with an error: the gateway closes."""
        self._is_over = True
        for future in self._waiters.values():
            if not future.done():
                future.set_exception(ClutchError(CLOSED))
                future.exception()  # marks it as read: a future that no caller awaits must not log it
        self._changes.tell()


# --------------------------------------------------------------------------------------------------
# The answer to one message: the reply of the turn that read it, or of a later turn that no user's message began, if the
# first had no reply.
#
# A main agent that delegates replies when its children are done, and may get other messages meanwhile. So replies are
# not simply taken in their order: the letter knows which turn has read it.

ANSWER_PAUSE_S = 0.05  # between two looks: under load every commit is a change
STOPPING = "the gateway stops, and the agent resumes with the next one; ask again with the same key"
NEEDS_YOU = "{text}\n\n(This waits for your decision: `clutch inbox`, or POST /v1/inbox/{id})"


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """`letter`: the key of the message in the inbox of the session `number`."""

    services: Services
    number: int
    letter: str
    _speakers: set[int] = field(default_factory=set, init=False)  #: turns that are known to answer it

    async def answer(self, closing: asyncio.Event) -> AnswerText:
        """What it says; what it asks a person; nothing, when all is quiet and nothing was said. Raises Draining."""
        services = self.services
        root = await services.db.read(wake.root_of, self.letter) or self.number  # a child may have the chat
        while not closing.is_set():
            change = services.changes.next_change
            is_quiet = await services.db.read(transcripts.is_quiet, root)
            waiting = await services.db.read(waiting_items, self.number)
            found = await services.db.read(answers.answer_to, self.letter)  # last: none are missed
            if found is not None:
                return found
            if own := next((item for item in waiting if item.task_id is None), None):
                return AnswerText(0, NEEDS_YOU.format(text=own.text, id=own.id))
            if is_quiet:
                return AnswerText(0, "", await services.db.read(answers.failure_of, self.letter))
            await asyncio.sleep(ANSWER_PAUSE_S)
            await services.changes.until(change)
        raise Draining(STOPPING)

    async def heard(self, said: AnswerText) -> None:
        """Mark the answer as received: it is not returned again."""
        if said.parcel_id:
            known = (self.services.policy, self.number, LOCAL_CHANNEL, said.parcel_id)
            await self.services.db.alone(delivery.hand_out, *known)

    async def spent(self) -> Spent | None:
        """Return what the turn has used; None: the provider reports no usage."""
        found = await self.services.db.read(answers.spent_on, self.letter)
        return None if found.calls and not found.input + found.output else found

    async def is_of(self, run_id: int) -> bool:
        """Does this turn answer the message? It reads its letters before it says a word. The store is asked
        until it says yes, and not for every piece."""
        if run_id not in self._speakers and await self.services.db.read(answers.answers, self.letter, run_id):
            self._speakers.add(run_id)
        return run_id in self._speakers


async def first(*works: Coroutine[Any, Any, object], within_s: float | None = None) -> bool:
    """Wait until one of the works is done and cancel the others. False: none was done within that time."""
    async with BackgroundTasks() as tasks:
        started = [tasks.call(work, "first of several") for work in works]
        done, _ = await asyncio.wait(started, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
