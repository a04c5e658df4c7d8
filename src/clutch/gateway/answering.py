"""The answer to one message: of the turn that read it, or of a later one that no person began, if that had nothing to
say yet.

A main agent that gives its work to children is silent until they are done, and may have been asked something else
meanwhile. So the words at the counter are not simply taken in their order: the letter knows which turn has read it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from clutch.core.routes import COUNTER
from clutch.engine.kit import Kit
from clutch.errors import Draining
from clutch.protocol import inbox, needs_you, outbox, queries, sending
from clutch.protocol.outbox import AtCounter, Spent

PAUSE_S = 0.05  # between two looks: under load every commit is a change
STOPPING = "the gateway stops, and the agent goes on with the next one; ask again with the same key"
NEEDS_YOU = "{text}\n\n(This waits for your decision: `clutch inbox`, or POST /v1/inbox/{id})"


@dataclass(frozen=True, slots=True)
class Answering:
    """`letter`: the key of the message in the inbox of the session `number`."""

    kit: Kit
    number: int
    letter: str
    _speakers: set[int] = field(default_factory=set, init=False)  #: turns that are known to answer it

    async def answer(self, closing: asyncio.Event) -> AtCounter:
        """What it says; what it asks a person; nothing, when all is quiet and nothing was said. Raises Draining."""
        kit = self.kit
        root = await kit.door.read(inbox.root_of, self.letter) or self.number  # a child may have the chat
        while not closing.is_set():
            change = kit.changes.next_change
            is_quiet = await kit.door.read(queries.is_quiet, root)
            waiting = await kit.door.read(needs_you.waiting, self.number)
            words = await kit.door.read(outbox.answer_to, self.letter)  # last: none are missed
            if words is not None:
                return words
            if own := next((item for item in waiting if item.task_id is None), None):
                return AtCounter(0, NEEDS_YOU.format(text=own.text, id=own.id))
            if is_quiet:
                return AtCounter(0, "")
            await asyncio.sleep(PAUSE_S)
            await kit.changes.until(change)
        raise Draining(STOPPING)

    async def heard(self, said: AtCounter) -> None:
        """Somebody has it: it is not handed out again."""
        if said.parcel_id:
            known = (self.kit.policy, self.number, COUNTER, said.parcel_id)
            await self.kit.door.alone(sending.hand_out, *known)

    async def spent(self) -> Spent | None:
        """None: a model was asked, and its provider counts nothing."""
        found = await self.kit.door.read(outbox.spent_on, self.letter)
        return None if found.calls and not found.input + found.output else found

    async def is_of(self, run_id: int) -> bool:
        """Does this turn answer the message? It reads its letters before it says a word. The store is asked
        until it says yes, and not for every piece."""
        if run_id not in self._speakers and await self.kit.door.read(outbox.answers, self.letter, run_id):
            self._speakers.add(run_id)
        return run_id in self._speakers
