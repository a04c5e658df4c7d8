"""A door before a door, through which everything passes: whoever wants to stand in the way overrides a method."""

from __future__ import annotations

from clutch.store.transaction import Database, DatabaseStats, Keys, Listener, P, T, TxFunction


class PassingDoor:
    def __init__(self, db: Database) -> None:
        self._door = db

    @property
    def stats(self) -> DatabaseStats:
        return self._door.stats

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._door.tx(keys, fn, *args, **kwargs)

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._door.alone(fn, *args, **kwargs)

    async def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._door.read(fn, *args, **kwargs)

    def listen(self, callback: Listener) -> None:
        self._door.listen(callback)

    async def close(self) -> None:
        await self._door.close()
