"""N35: a session is claimed where its files are, and on another machine its model reads once what is missing."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.model import LetterKind
from clutch.core.policy import Policy
from clutch.core.workers import NO_LEASE_S
from clutch.store.transaction import Database, Tx
from clutch.testing.clock import FakeClock
from clutch.testing.invariants.probes import Probe
from clutch.transactions import claims, inbox, sessions, turn_begin, wake, workers
from clutch.transactions.read import transcripts
from clutch.transactions.sessions import OwnedRun

_NOTE = "[files are missing]"


def _story() -> Iterator[str]:
    yield from asyncio.run(_played())


async def _played() -> list[str]:
    from clutch.store.sqlite import SqliteStore

    with tempfile.TemporaryDirectory(prefix="clutch-probe-") as folder:
        async with SqliteStore(Path(folder) / "clutch.db", FakeClock()) as db:
            return [wrong async for wrong in _asked(db)]


async def _asked(db: Database) -> AsyncIterator[str]:
    policy, numbers = Policy(), itertools.count(1000)
    rights = rights_text(root_rights(AgentGrant(depth_max=1)))
    main = sessions.NewMain(next(numbers), "agent:main:main", "main", rights, "terminal:main", ".")
    session_id = await db.alone(sessions.open_session, main)
    home, other = [await _hired(db, place) for place in ("home", "other")]
    await db.tx(session_id, inbox.post, session_id, "first", LetterKind.USER, "look")
    await db.tx(session_id, wake.wake, policy, session_id)
    await db.tx(session_id, _placed, session_id, "home")
    if await db.alone(claims.claim, other, 1):
        yield "a worker of another machine claimed a session whose machine is alive"
        return
    (claimed,) = await db.alone(claims.claim, home, 1)
    owned = OwnedRun(policy, session_id, claimed.fence, next(numbers))
    begun = await db.tx(session_id, turn_begin.begin, owned, "nonce")
    assert begun is not None
    arrival = turn_begin.FileArrival("other", None, _NOTE, "a file")
    await db.tx(
        session_id, turn_begin.arrive, OwnedRun(policy, session_id, claimed.fence, begun.run_id), arrival
    )
    known = await db.read(transcripts.briefing, session_id)
    if [entry for entry in known.transcript if _NOTE in str(entry)] != [known.transcript[-1]]:
        yield "the model does not read once, with its next request, what is missing"


def _placed(now: float, session_id: int, place: str) -> Tx[None]:
    del now
    yield from sessions.set_column(session_id, "place", place)


async def _hired(db: Database, place: str) -> int:
    number = await db.alone(workers.next_number)
    await db.alone(workers.register, number, NO_LEASE_S, "host", 1, version="0", place=place)
    return number


PROBE = Probe("N35", "a session is claimed where its files are, and elsewhere reads what is missing", _story)
