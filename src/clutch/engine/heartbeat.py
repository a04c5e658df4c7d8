"""Sessions that look up by themselves: the checklist is read outside, the rest is `protocol.heartbeat`."""

from __future__ import annotations

import asyncio

from clutch.engine.kit import Kit
from clutch.protocol import heartbeat
from clutch.protocol.heartbeat import Ringing


async def ring_all(kit: Kit) -> bool:
    """Every timer that is due. True: there was one."""
    due = await kit.door.read(heartbeat.ringing)
    await asyncio.gather(*(_ring(kit, one) for one in due))
    return bool(due)


async def _ring(kit: Kit, one: Ringing) -> None:
    checklist = ""
    if kit.checklists is not None and one.workspace:
        checklist = await kit.checklists.section(one.workspace)
    await kit.door.tx(one.session_id, heartbeat.ring, kit.policy, one.session_id, checklist)
