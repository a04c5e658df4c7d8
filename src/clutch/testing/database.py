"""A database in front of another one. Tests override single methods to delay calls, fail them or count them."""

from __future__ import annotations

from clutch.store.transaction import Database, DatabaseStats, Keys, Listener, P, T, TxFunction


class PassThroughDatabase:
    """Passes every call on."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    def stats(self) -> DatabaseStats:
        """What the database has done since it was opened."""
        return self._db.stats

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction that writes these sessions."""
        return await self._db.tx(keys, fn, *args, **kwargs)

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction with no other at the same time."""
        return await self._db.alone(fn, *args, **kwargs)

    async def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction that only reads."""
        return await self._db.read(fn, *args, **kwargs)

    async def urgent(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one statement that waits for no other transaction."""
        return await self._db.urgent(fn, *args, **kwargs)

    @property
    def is_hearing(self) -> bool:
        """Return whether hints of other processes arrive."""
        return self._db.is_hearing

    def listen(self, callback: Listener) -> None:
        """Call the function after every commit with its hints."""
        self._db.listen(callback)

    async def close(self) -> None:
        """Close the database."""
        await self._db.close()
