"""Bugs put into a victim on purpose: a harness that does not see them would prove nothing.

two-transaction-announce  The classic: the task's end is committed, and the letter to its requester in a
                          transaction of its own a moment later. A death in between loses the result.
answer-before-commit      `accepted` is said, and written a moment later. A death in between makes it a lie.
second-letter             A second letter of the same end, under a key of its own.
replayed-effects          The tool that must not run twice says that it may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from clutch.ports import Toolbox, ToolSpec
from clutch.store.transaction import HINT, Database, Keys, P, T, Tx, TxFunction
from clutch.transactions import inbox, sessions
from clutch.transactions.sessions import SessionRow

EARLY_ANSWER: Final = "answer-before-commit"
TWO_TRANSACTIONS: Final = "two-transaction-announce"
SECOND_LETTER: Final = "second-letter"
REPLAYED_EFFECTS: Final = "replayed-effects"
PLANTS: Final = ("", EARLY_ANSWER, TWO_TRANSACTIONS, SECOND_LETTER, REPLAYED_EFFECTS)

_MOMENT_S: Final = 0.3
_SECOND: Final = "second-transaction"
_announce = inbox.announce


def apply(plant: str) -> None:
    """Change this process; a victim is not used again."""
    if plant not in PLANTS:
        raise ValueError(f"there is no planted bug {plant!r}; there are: {', '.join(PLANTS[1:])}")
    if plant == TWO_TRANSACTIONS:
        inbox.announce = _announce_later
    if plant == SECOND_LETTER:
        inbox.announce = _announce_twice


def tools(plant: str, real: Toolbox) -> Toolbox:
    return _Reckless(real) if plant == REPLAYED_EFFECTS else real


def db(plant: str, store: Database) -> Database:
    """The store, with the second half of the bug listening to it."""
    if plant == TWO_TRANSACTIONS:
        _Second(store)
    return _Hasty(store) if plant == EARLY_ANSWER else store


def _announce_later(
    now: float, session: SessionRow, requester_id: int, generation: int, *, silent: bool
) -> Tx[None]:
    del now
    yield HINT, (_SECOND, session.id, requester_id, generation, int(silent))


def _announce_twice(
    now: float, session: SessionRow, requester_id: int, generation: int, *, silent: bool
) -> Tx[None]:
    for one in (session, replace(session, key=f"{session.key}:again")):
        yield from _announce(now, one, requester_id, generation, silent=silent)


class _Reckless:
    def __init__(self, real: Toolbox) -> None:
        self.run, self.spawn_request, self.human_question = real.run, real.spawn_request, real.human_question
        self.session_call = real.session_call
        self._specs = [replace(spec, replay_safe=True) for spec in real.specs()]

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs


class _Second:
    def __init__(self, store: Database) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()
        store.listen(self.hear)

    def hear(self, hints: Sequence[Any]) -> None:
        for hint in hints:
            if hint[0] == _SECOND:
                task = asyncio.get_running_loop().create_task(self._post(*hint[1:]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _post(self, session_id: int, requester_id: int, generation: int, silent: int) -> None:
        await self._store.tx(requester_id, _late_letter, session_id, requester_id, generation, bool(silent))


def _late_letter(now: float, session_id: int, requester_id: int, generation: int, silent: bool) -> Tx[None]:
    session = yield from sessions.lock(session_id)
    assert session is not None
    yield from _announce(now, session, requester_id, generation, silent=silent)


class _Hasty:
    """A database that answers `spawn` with what it would have written, and writes it in its own good time."""

    def __init__(self, real: Database) -> None:
        self._real = real
        self.stats, self.alone, self.read = real.stats, real.alone, real.read
        self.listen, self.close = real.listen, real.close
        self.urgent, self.is_hearing = real.urgent, real.is_hearing
        self._tasks: set[asyncio.Task[None]] = set()

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if fn.__name__ != "spawn":
            return await self._real.tx(keys, fn, *args, **kwargs)

        def tried(now: float) -> Tx[T]:
            raise _Tried((yield from fn(now, *args, **kwargs)))

        async def later() -> None:
            await asyncio.sleep(_MOMENT_S)
            await self._real.tx(keys, fn, *args, **kwargs)

        try:
            return await self._real.tx(keys, tried)
        except _Tried as seen:
            task = asyncio.get_running_loop().create_task(later())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            value: T = seen.value
            return value


class _Tried(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value
