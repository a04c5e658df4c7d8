"""Who is alive, told by PostgreSQL itself: each process holds an advisory lock under its number.

When a process dies its connection goes, and the server frees the lock at once: no lease has to run out.
A process that loses only this connection is buried too early; it meets that at its next write and comes
back under a new number, so nothing but time is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from clutch.errors import StoreError, StoreLost
from clutch.store.postgres_link import TROUBLE, Link

#: The first half of a two-part advisory lock; every gateway takes the same one.
_LIVES: Final = 0x_C1_07


class PostgresLives:
    def __init__(self, connect: Callable[[], Awaitable[Link]]) -> None:
        self._connect = connect
        self._link: Link | None = None

    async def hold(self, number: int) -> None:
        """Until this process dies or takes another number."""
        await self.close()
        self._link = await self._connect()
        try:
            await self._link.raw.fetch("SELECT pg_advisory_lock($1::int, $2::int)", _LIVES, number)
        except TROUBLE as error:
            raise StoreLost(f"the database went away ({error})") from error

    async def dead(self, numbers: Sequence[int]) -> list[int]:
        """Those whose lock is free. The test lets go of what it took within the same statement."""
        if not numbers or self._link is None:
            return []
        try:
            rows = await self._link.raw.fetch(
                "SELECT n FROM unnest($2::int[]) AS n"
                " WHERE CASE WHEN pg_try_advisory_lock($1::int, n) THEN pg_advisory_unlock($1::int, n) ELSE false END",
                _LIVES,
                list(numbers),
            )
        except TROUBLE:
            return []  # the lease is the backstop
        return [row[0] for row in rows]

    async def close(self) -> None:
        if self._link is not None:
            with contextlib.suppress(StoreError):
                await self._link.close()
            self._link = None
