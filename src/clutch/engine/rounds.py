"""The rounds of a worker: what a look found is done, in transactions that share commits.

The dead are buried, letters nobody has looked at are looked at, timers ring. Each round says whether it did anything;
when there is one, the dispatcher decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from clutch.engine import spawning
from clutch.engine.handing import hand_over
from clutch.engine.kit import Kit
from clutch.errors import ClutchError, ConstraintViolated, StoreRefused
from clutch.protocol import inbox, preparing, usage, workers
from clutch.protocol.workers import Prospect

log = logging.getLogger(__name__)


async def bury(kit: Kit, prospect: Prospect, now: float) -> bool:
    """A lease ran out; or the database knows already that a process is gone."""
    dead = await kit.lives.dead(prospect.others) if kit.lives is not None else []
    buried: list[int] = []
    for worker_id in dead:
        buried += await kit.door.alone(workers.bury, worker_id)
    if prospect.lease_at is not None and prospect.lease_at < now:
        buried += await kit.door.alone(workers.bury)
    return bool(buried)


async def deliver_mail(kit: Kit, hinted: Iterable[int], unseen: Sequence[int]) -> bool:
    """The mailman: whose letters are new may be due sooner."""
    waiting = sorted({*hinted, *unseen})
    policy, door = kit.policy, kit.door
    if waiting and len(unseen) < workers.UNSEEN_MAX:  # else what is left unseen would hide the rest
        waiting = await door.read(inbox.worth_waking, waiting)
    homeless = await _each(waiting, lambda one: door.tx(one, inbox.wake, policy, one))
    await _each(
        [one for one, is_homeless in homeless.items() if is_homeless],
        lambda one: door.alone(inbox.orphan, policy, one),
    )
    return bool(homeless)


async def ring(kit: Kit, alarms: Sequence[int]) -> bool:
    """Tasks whose timer is due."""
    policy, door = kit.policy, kit.door
    shelves = await door.read(preparing.shelves, alarms) if alarms else {}
    await _each(alarms, lambda one: hand_over(kit, shelves[one]))  # a timer may be the end of a task
    if policy.limits.on_parent_end:  # a timeout may kill the children: many sessions
        rung = await _each(alarms, lambda one: door.alone(workers.ring, policy, one))
    else:  # a timeout gives up the call under way, and with it what it had reserved
        purses = await door.read(usage.purses_of, alarms) if alarms else {}
        keys = {one: (one, *usage.keys(policy, purses.get(one, ""))) for one in alarms}
        rung = await _each(alarms, lambda one: door.tx(keys[one], workers.ring, policy, one))
    overdue = [one for one, why in rung.items() if why is not None]
    await _each(overdue, lambda one: spawning.undo(kit, one, rung[one]))
    return bool(rung)


async def _each(ids: Sequence[int], call: Callable[[int], Awaitable[Any]]) -> dict[int, Any]:
    """All at once, so that they share a commit. A defect in one must not stop the others: it is left out."""
    ended = await asyncio.gather(*map(call, ids), return_exceptions=True)
    done = {}
    for one, outcome in zip(ids, ended, strict=True):
        if isinstance(outcome, Exception) and _is_its_own(outcome):
            log.error("left out", exc_info=outcome, extra={"session": one})
            continue
        if isinstance(outcome, BaseException):
            raise outcome
        done[one] = outcome
    return done


def _is_its_own(error: Exception) -> bool:
    """About this one, and not about the store or our place in it."""
    return isinstance(error, StoreRefused | ConstraintViolated) or not isinstance(error, ClutchError)
