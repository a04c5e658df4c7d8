"""The turns a worker holds: started with a claim, cut when somebody took their place, given back when we stop.

Knows what becomes of a session whose turn went wrong; not what a turn does.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from clutch.engine.interrupt import Interrupt
from clutch.engine.kit import Kit
from clutch.engine.patience import persist
from clutch.engine.turn import take_turn
from clutch.errors import ConstraintViolated, StoreError, StoreRefused
from clutch.protocol import turns, workers
from clutch.protocol.sessions import Stale
from clutch.protocol.workers import Claimed

log = logging.getLogger(__name__)

BREATH = 200  # turns that begin take the event loop for some ten milliseconds


class Holding:
    """`on_end`: a place is free. `has_leases`: other processes may wait for a turn of ours to rest."""

    def __init__(self, kit: Kit, on_end: Callable[[], None], *, has_leases: bool) -> None:
        self.kit, self._on_end, self._has_leases = kit, on_end, has_leases
        self.turns: dict[int, tuple[Claimed, asyncio.Task[None]]] = {}
        self._interrupts: dict[int, Interrupt] = {}
        self._rested: set[tuple[int, int]] = set()  #: turns that were cut, by session and fence

    async def start(self, group: asyncio.TaskGroup, claimed: Sequence[Claimed]) -> None:
        """A few hundred in one breath: thousands would hold up those that are at work already."""
        for first in range(0, len(claimed), BREATH):
            if first:
                await asyncio.sleep(0)
            for one in claimed[first : first + BREATH]:
                self._start(group, one)

    def _start(self, group: asyncio.TaskGroup, claimed: Claimed) -> None:
        interrupt = self._interrupts[claimed.session_id] = Interrupt()
        task = group.create_task(self._turn(claimed, interrupt))
        self.turns[claimed.session_id] = (claimed, task)
        self.kit.turns[claimed.session_id] = task
        task.add_done_callback(functools.partial(self._ended, claimed))

    def cut(self, session_id: int, fence: int, *, is_superseded: bool = False) -> None:
        """If it is older than this fence."""
        held = self.turns.get(session_id)
        if held is None or held[0].fence >= fence:
            return
        if is_superseded:
            self._interrupts[session_id].pull(held[1], self.kit.policy.work.tool_grace_s)
        else:
            held[1].cancel()

    async def give_all_back(self) -> None:
        """Turns end at their next boundary, or are cut after a while."""
        held = [turn for _, turn in self.turns.values()]
        if held:
            await asyncio.wait(held, timeout=self.kit.policy.work.stop_s)
        for claimed, turn in list(self.turns.values()):
            turn.cancel()
            await asyncio.wait([turn])
            await self.give_back(claimed)

    async def tell_rested(self) -> bool:
        rested = sorted(self._rested)
        if rested:
            await self.kit.door.tx((), workers.rested, rested)
            self._rested.difference_update(rested)
        return bool(rested)

    async def _turn(self, claimed: Claimed, interrupt: Interrupt) -> None:
        try:
            await take_turn(self.kit, claimed, interrupt)
        except Stale:
            log.info("lost the session", extra={"session": claimed.session_id})
            self._was_cut(claimed)
        except (StoreRefused, ConstraintViolated) as error:
            log.exception("a turn broke", extra={"session": claimed.session_id})
            await self._broke(claimed, str(error))
        except StoreError as error:
            log.warning("store not available", extra={"session": claimed.session_id, "error": str(error)})
            await asyncio.sleep(self.kit.policy.work.tick_s)  # whoever claims it next would meet the same
            await self.give_back(claimed)
        except Exception as error:
            log.exception("a turn broke", extra={"session": claimed.session_id})
            await self._broke(claimed, repr(error))

    def _ended(self, claimed: Claimed, turn: asyncio.Task[None]) -> None:
        """Also of one that was cancelled before its first step."""
        if turn.cancelled():
            self._was_cut(claimed)
        if self.kit.turns.get(claimed.session_id) is turn:
            del self.kit.turns[claimed.session_id]
        held = self.turns.get(claimed.session_id)
        if held is not None and held[0] is claimed:
            del self.turns[claimed.session_id], self._interrupts[claimed.session_id]
        self._on_end()

    def _was_cut(self, claimed: Claimed) -> None:
        if self._has_leases:
            self._rested.add((claimed.session_id, claimed.fence))

    async def _broke(self, claimed: Claimed, why: str) -> None:
        await self._let_go(claimed, turns.crash, f"internal error: {why}"[:500])

    async def give_back(self, claimed: Claimed) -> None:
        """What the store made of our last write is unknown; whoever claims next reads it from the transcript."""
        await self._let_go(claimed, turns.hand_over)

    async def _let_go(self, claimed: Claimed, fn: Callable[..., Any], *args: Any) -> None:
        """What cannot even be written down stays as it is until the next start: trying on would burn the machine."""
        try:
            await persist(self.kit, fn, self.kit.policy, claimed.session_id, claimed.fence, *args)
        except Stale:
            pass  # somebody else has it already
        except (StoreRefused, ConstraintViolated):
            log.exception("a session cannot be let go", extra={"session": claimed.session_id})
