"""The gateway of the process that has the engine: tasks, and talking to main agents. What every surface serves."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol
from weakref import WeakValueDictionary

from clutch.core import routes
from clutch.core.authority import OperatorCaller
from clutch.core.model import Route
from clutch.core.routes import COUNTER
from clutch.engine.kit import Kit
from clutch.errors import IdempotencyConflict, NotFound
from clutch.gateway.chat import MAIN_SESSION
from clutch.gateway.checks import check_key, check_place, check_text
from clutch.gateway.commands import PERSON, is_command, run_command, run_in_thread
from clutch.gateway.leaving import Leaving, Visits
from clutch.gateway.tasks import Tasks
from clutch.gateway.waiting import Waiting
from clutch.protocol import bindings, events, heartbeat, inbox, outbox, queries, sending, threads
from clutch.protocol.outbox import AtCounter

PAUSE_S = 0.02  # between two looks: under load every commit is a change
EVENT_CHARS_MAX = 4096  # an event is a line; whatever is longer is a message


class Running(Protocol):
    """An engine that works while it is open."""

    @property
    def kit(self) -> Kit: ...


async def opened(
    stack: AsyncExitStack, running: AbstractAsyncContextManager[Running], leaving: Leaving | None = None
) -> Gateway:
    """From the start of the engine until whoever waits was told that nobody looks any more."""
    kit = (await stack.enter_async_context(running)).kit
    waiting = Waiting(kit.door, kit.changes)
    group = await stack.enter_async_context(asyncio.TaskGroup())
    watch = group.create_task(waiting.run())
    stack.callback(watch.cancel)
    stack.callback(waiting.give_up)
    return Gateway(kit, waiting, leaving)


class Gateway(Tasks):
    def __init__(self, kit: Kit, waiting: Waiting, leaving: Leaving | None = None) -> None:
        super().__init__(kit, waiting, leaving)
        self.visits = Visits()  #: of those who come through a surface
        self.under_way: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  #: commands, by key

    async def say(self, text: str, session: str, key: str | None, caller: OperatorCaller = PERSON) -> str:
        """A slash command is carried out for `caller` instead, and answered where the agent would answer. Raises
        IdempotencyConflict."""
        kit = self.kit
        check_key(key)
        check_text("text", text, kit.policy.limits.task_bytes_max)
        receiver = await self._number(session)
        whose = "" if caller.actor == PERSON.actor else f"{caller.actor}:"  # another caller's key is another
        letter = f"user:{receiver}:{whose}{key or kit.ids.uuid4()}"
        route = f"{COUNTER}:{session}"
        if is_command(text):
            if await kit.door.read(inbox.is_said, letter):
                raise IdempotencyConflict()
            said = await run_command(self, session, text, caller, letter)
            await self._tx(receiver, outbox.post, receiver, f"command:{letter}", route, said)
        elif not await self._is_for_a_child(session, letter, text):
            self._check_accepts()
            await self._tx(receiver, inbox.say_once, kit.policy, receiver, letter, text, route)
        return letter

    async def _is_for_a_child(self, session: str, letter: str, text: str) -> bool:
        """Then one has this chat for its thread, and reads it."""
        thread = routes.at_counter(session)
        if await self.kit.door.read(bindings.session_of, *bindings.name(thread)) is None:
            return False
        try:
            await self._hear(thread, letter, text)
        except NotFound:  # it has ended in this moment
            return False
        return True

    async def _hear(self, thread: Route, letter: str, text: str) -> None:
        await self._alone(threads.heard, self.kit.policy, *bindings.name(thread), letter, text)

    async def command(self, line: str, session: str, key: str | None, caller: OperatorCaller = PERSON) -> str:
        check_key(key)
        check_text("line", line, self.kit.policy.limits.task_bytes_max)
        return await run_command(self, session, line, caller, None if key is None else f"{session}:{key}")

    async def notify(self, text: str, session: str) -> bool:
        check_text("text", text, EVENT_CHARS_MAX)
        receiver = await self._number(session)
        return await self._tx(receiver, events.notify, self.kit.policy, receiver, text)

    async def wake(self, session: str) -> None:
        sleeper = await self._number(session)
        await self._tx(sleeper, heartbeat.wake, self.kit.policy, sleeper)

    async def heard(
        self,
        channel: str,
        thread: str,
        text: str,
        account: str,
        key: str | None,
        caller: OperatorCaller = PERSON,
    ) -> None:
        kit = self.kit
        check_key(key)
        check_text("text", text, kit.policy.limits.task_bytes_max)
        check_place(channel, account, thread)
        route = Route(channel, account or None, None, thread)
        # A key belongs to its thread: programs there number their messages by themselves.
        letter = f"thread:{routes.to_text(route)}:{key or kit.ids.uuid4()}"
        if is_command(text):
            if await kit.door.read(inbox.is_said, letter):
                raise IdempotencyConflict()
            chat = routes.chat_of(route) or MAIN_SESSION
            said = await run_in_thread(self, chat, text, route, caller, letter)
            here = await self._number(chat)
            return await self._tx(here, outbox.post, here, f"command:{letter}", routes.to_text(route), said)
        await self._hear(route, letter, text)

    async def reply(self, session: str) -> str:
        speaker, door = await self._number(session), self.kit.door
        while True:
            change = self._waiting.next_change
            if await door.read(outbox.waits, speaker, COUNTER):
                body = await door.alone(sending.hand_out, self.kit.policy, speaker, COUNTER)
                if body is not None:
                    return body
            await self._waiting.until(change)

    async def next_words(
        self, session: str, wait_s: float, *, until_quiet: bool, heard: int | None
    ) -> tuple[AtCounter | None, bool]:
        """The next words for the person, until they are `heard`; and whether all is quiet below.

        None: after the time, or when all is quiet if that is waited for."""
        speaker, deadline = await self._number(session), time.monotonic() + wait_s
        door = self.kit.door
        if heard is not None:
            await door.alone(sending.hand_out, self.kit.policy, speaker, COUNTER, heard)
        while True:
            change = self._waiting.next_change
            is_quiet = await door.read(queries.is_quiet, speaker)
            said = await door.read(outbox.at_counter, speaker, COUNTER)  # after it: last words are not missed
            is_over = self.kit.stopping.is_set() or time.monotonic() >= deadline
            if said is not None or is_over or (is_quiet and until_quiet):
                return said, is_quiet
            await asyncio.sleep(PAUSE_S)
            await self._waiting.until(change)

    async def settled(self, session: str) -> None:
        root = await self._number(session)
        while True:
            change = self._waiting.next_change
            if await self.kit.door.read(queries.is_quiet, root):
                return
            await self._waiting.until(change)
