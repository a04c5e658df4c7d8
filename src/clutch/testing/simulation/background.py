"""What happens besides the user of a simulated world: agents write to each other, events arrive, threads are used."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from clutch.core.model import Route
from clutch.core.spawn import Mode, SpawnRequest
from clutch.errors import ClutchError
from clutch.testing.simulation import script
from clutch.transactions import messages, wake
from clutch.transactions.spawn import Accepted

if TYPE_CHECKING:
    from clutch.testing.simulation.user import SimUser
    from clutch.testing.simulation.world import World

DOINGS: Final = ("nudge", "nudge", "gossip", "gossip", "thread", "write", "write", "write", "unfocus")


class Background:
    def __init__(self, world: World, person: SimUser) -> None:
        self._world, self._user, self._rng = world, person, world.rng

    async def socialise(self, pause_s: float) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / pause_s))
            if len(self._user.mains) > 1:
                doing = self._rng.choice(DOINGS)
                try:
                    await getattr(self, f"_{doing}")()
                except ClutchError as error:
                    self._world.tell(f"company {doing}: {type(error).__name__}")
                else:
                    self._user.counted[doing] += 1

    async def _nudge(self) -> None:
        """An event happens and is reported a few times."""
        session_id, policy = self._rng.choice(self._user.mains), self._world.policy
        for number in range(self._rng.choice((0, 1, 3, 25))):
            said = f"event {number // 2}"
            await self._user.surely(session_id, wake.notify, policy, session_id, said)
        for _ in range(self._rng.choice((1, 1, 3))):
            await self._user.surely(session_id, wake.wake_for_heartbeat, policy, session_id)

    async def _gossip(self) -> None:
        """Agents write to each other whenever they like; what they are answering decides whether they may."""
        sender, target = self._rng.sample(self._user.mains, 2)
        known = (self._world.policy, target, self._user.key("gossip"), "any news?")
        await self._user.surely(None, messages.send_to_session, *known, sender_id=sender, actor="agent")

    async def _thread(self) -> None:
        job = self._world.author.child_job(0)
        mode = self._rng.choice((Mode.SESSION, Mode.SESSION, Mode.RUN))
        request = SpawnRequest(script.words(job), label=job["name"], thread=True, mode=mode)
        answer = await self._user.spawn_for(self._rng.choice(self._user.mains), request)
        self._world.tell(f"company thread: {isinstance(answer, Accepted)}")

    def _bound(self) -> tuple[Any, ...] | None:
        rows = self._world.disk.query(
            "SELECT channel, account, thread, session_id FROM bindings ORDER BY session_id"
        )
        return self._rng.choice(rows) if rows else None

    async def _write(self) -> None:
        chosen = self._bound()
        if chosen is not None:
            *thread, _ = chosen
            words = script.words(self._world.author.small_job())
            known = (self._world.policy, thread, self._user.key("write"), words)
            await self._user.surely(None, messages.heard_in_thread, *known)

    async def _unfocus(self) -> None:
        chosen = self._bound()
        if chosen is not None:
            channel, account, thread, _ = chosen
            known = (self._world.policy, Route(channel, account or None, None, thread), "person")
            await self._user.surely(None, messages.unfocus, *known)
