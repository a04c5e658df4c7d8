"""The two sessions that need a connection of their own to the server, which no pooler shares: hints and lives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from clutch.contain import BackgroundTasks
from clutch.errors import StoreError, StoreLost
from clutch.logs import logger
from clutch.store.jobs import Start
from clutch.store.postgres_connection import PING, TROUBLE, Link, reason
from clutch.store.transaction import LOOK, TransactionOutcome

log = logger("clutch.store")

Connect = Callable[[], Awaitable[Link]]

#: How long a server has to answer a ping.
_ANSWER_S: Final = 5.0

#: Between tries to reach the server, on top of the patience of each.
_PAUSE_S: Final = 1.0

# --------------------------------------------------------------------------------------------------
# Hints between processes on PostgreSQL: NOTIFY after the commit, LISTEN, both on one connection of its own.
#
# Inside the write transaction a NOTIFY costs throughput (its commit takes a lock of the whole database). A hint
# may be lost with the process or the connection; the tables are certain. After a gap the
# listeners get the hint LOOK.

#: NOTIFY takes less than 8,000 bytes.
_PAYLOAD_BYTES_MAX: Final = 7900


class HintExchange:
    def __init__(
        self, connect: Connect, channel: str, heard: Callable[[Sequence[Any]], None], *, ping_s: float
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._heard = heard
        self._ping_s = ping_s
        self._own_process = 0
        self._outgoing: dict[Any, None] = {}
        self._changed = asyncio.Event()
        self._is_closing = False
        self._has_gap = False
        self._proven_at = -math.inf  #: when the server last answered on the connection that listens

    @property
    def is_hearing(self) -> bool:
        """Whether the connection that listens was alive a moment ago. The answer to a ping may still be on its way."""
        return asyncio.get_running_loop().time() - self._proven_at < 1.5 * self._ping_s

    def tell(self, hints: Sequence[Any]) -> None:
        """Hints of batches that come faster than the connection carries them travel together."""
        self._outgoing.update(dict.fromkeys(hints))
        self._changed.set()

    def close(self) -> None:
        """`run` returns when all hints are sent."""
        self._is_closing = True
        self._changed.set()

    async def run(self, listening: asyncio.Event) -> None:
        """Until closed. Sets `listening` whenever notifications of others arrive."""
        while not self._is_closing:
            try:
                link = await self._connect()
            except StoreError:
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                await self._exchange(link, listening)
            except TROUBLE:
                link.drop()
            finally:
                self._has_gap, self._proven_at = True, -math.inf
                await link.close()

    async def _exchange(self, link: Link, listening: asyncio.Event) -> None:
        # Without it a broken connection would be noticed only by the next ping.
        link.raw.add_termination_listener(lambda _: self._changed.set())
        self._own_process = await link.raw.fetchval("SELECT pg_backend_pid()")  # a pooler invents one
        await link.raw.add_listener(self._channel, self._receive)
        listening.set()
        if self._has_gap:
            self._heard([LOOK])
        while not link.raw.is_closed():
            while self._outgoing:
                await self._send(link)
            if self._is_closing:
                return
            self._proven_at = asyncio.get_running_loop().time()
            self._changed.clear()
            try:
                async with asyncio.timeout(self._ping_s):
                    await self._changed.wait()
            except TimeoutError:
                await link.raw.execute(PING, timeout=_ANSWER_S)

    async def _send(self, link: Link) -> None:
        hints, self._outgoing = list(self._outgoing), {}
        # With the ping: a busy connection is never quiet, and must leave a former primary as well.
        await link.raw.execute(f"{PING}, pg_notify($1, $2)", self._channel, _payload(hints))

    def _receive(self, connection: Any, sender: int, channel: str, payload: str) -> None:
        del connection, channel
        if sender != self._own_process:
            self._heard([_hint(item) for item in json.loads(payload)])


def _payload(hints: Sequence[Any]) -> str:
    payload = json.dumps(hints, separators=(",", ":"))
    return payload if len(payload) <= _PAYLOAD_BYTES_MAX else json.dumps([LOOK])


def _hint(item: Any) -> Any:
    """JSON has no tuples; hints are."""
    return tuple(item) if isinstance(item, list) else item


# --------------------------------------------------------------------------------------------------
# Which workers are alive, known to PostgreSQL itself: each process holds an advisory lock under its number.
#
# When a process dies its connection goes, and the server frees the lock at once: no lease has to run out.
# A process that loses only this connection takes the lock again on a new one: after a restart of the server, a cut
# link or a failover. Until then its lock is free, so a free lock alone does not prove that a process is dead.


class PostgresLives:
    """`space`: the first half of the two-part advisory lock, the same for all workers of one schema."""

    def __init__(
        self, connect: Connect, space: int, tasks: BackgroundTasks, *, ping_s: float, write_s: float
    ) -> None:
        self._connect = connect
        self._space = space
        self._ping_s, self._write_s = ping_s, write_s
        self._answered_at = -math.inf
        self._tasks = tasks
        self._link: Link | None = None
        self._holding: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # a connection carries one statement at a time

    async def hold(self, number: int) -> None:
        """Until this process dies or takes another number. Raises StoreLost."""
        await self.close()
        self._link = await self._locked(number)
        self._holding = self._tasks.call(self._hold_on(number), "clutch-lives")

    async def dead(self, numbers: Sequence[int]) -> list[int]:
        """Those whose lock is free. The test releases what it took within the same statement."""
        link = self._link
        if not numbers or link is None:
            return []
        try:
            async with self._turn:
                rows = await link.raw.fetch(
                    "SELECT n FROM unnest($2::int[]) AS n WHERE CASE WHEN pg_try_advisory_lock($1::int, n)"
                    " THEN pg_advisory_unlock($1::int, n) ELSE false END",
                    self._space,
                    list(numbers),
                    timeout=_ANSWER_S,
                )
        except TROUBLE:
            return []  # the lease is the backstop
        return [row[0] for row in rows]

    async def write(self, start: Start, now: float) -> TransactionOutcome:
        """Run one statement, which also proves that the lock is held. Raises StoreLost; it may have run."""
        link = self._link
        if link is None or link.is_lost:
            raise StoreLost("this process is without its own session")
        try:
            async with asyncio.timeout(self._write_s), self._turn:
                outcome = await link.write_at_once(start, now)
        except TimeoutError as error:
            raise StoreLost("the session of this process does not answer") from error
        self._answered_at = asyncio.get_running_loop().time()
        return outcome

    async def close(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.wait([self._holding])
            self._holding = None
        if self._link is not None:
            with contextlib.suppress(StoreError):
                await self._link.close()
            self._link = None

    async def _hold_on(self, number: int) -> None:
        while True:
            if self._link is not None:
                why = await self._until_broken(self._link)
                self._link.drop()
                self._link = None
                log.warning("Worker %d lost its lock (%s) and takes it again", number, why)
            try:
                self._link = await self._locked(number)
            except StoreError as error:
                log.warning("Worker %d has not taken its lock again: %s", number, error)
                await asyncio.sleep(_PAUSE_S)

    async def _until_broken(self, link: Link) -> str:
        gone = asyncio.Event()
        link.raw.add_termination_listener(lambda _: gone.set())
        while not link.raw.is_closed():
            try:
                # Not `wait_for`, which forgets a cancellation that comes with the event: a close would wait for ever.
                async with asyncio.timeout(self._ping_s):
                    await gone.wait()
            except TimeoutError:
                if asyncio.get_running_loop().time() - self._answered_at < self._ping_s:
                    continue  # heartbeats ask, too
                try:
                    async with self._turn:
                        await link.raw.execute(PING, timeout=_ANSWER_S)
                except TROUBLE as error:
                    return reason(error)
        return "the connection was closed"

    async def _locked(self, number: int) -> Link:
        """A new connection that has the lock: the old one may still hold it until the server notices its end."""
        link = await self._connect()
        try:
            await link.raw.fetch("SELECT pg_advisory_lock($1::int, $2::int)", self._space, number)
        except TROUBLE as error:
            link.drop()
            raise StoreLost(f"the database went away ({reason(error)})") from error
        except BaseException:
            link.drop()
            raise
        return link
