"""Bugs put into a victim on purpose: a harness that does not see them would prove nothing.

two-transaction-announce  The classic: the task's end is committed, and the letter to its requester in a
                          transaction of its own a moment later. Whoever dies in between has lost the result.
second-letter             A second letter of the same end, under a key of its own.
replayed-effects          The tool that must not run twice says that it may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from clutch.ports import Toolbox, ToolSpec
from clutch.protocol import letters, sessions
from clutch.protocol.sessions import SessionRow
from clutch.store.door import HINT, Door, Tx

TWO_TRANSACTIONS: Final = "two-transaction-announce"
SECOND_LETTER: Final = "second-letter"
REPLAYED_EFFECTS: Final = "replayed-effects"
PLANTS: Final = ("", TWO_TRANSACTIONS, SECOND_LETTER, REPLAYED_EFFECTS)

_SECOND: Final = "second-transaction"
_announce = letters.announce


def apply(plant: str) -> None:
    """Change this process; a victim is not used again."""
    if plant not in PLANTS:
        raise ValueError(f"there is no planted bug {plant!r}; there are: {', '.join(PLANTS[1:])}")
    if plant == TWO_TRANSACTIONS:
        letters.announce = _announce_later
    if plant == SECOND_LETTER:
        letters.announce = _announce_twice


def tools(plant: str, real: Toolbox) -> Toolbox:
    return _Reckless(real) if plant == REPLAYED_EFFECTS else real


def door(plant: str, store: Door) -> Door:
    """The store, with the second half of the bug listening to it."""
    if plant == TWO_TRANSACTIONS:
        _Second(store)
    return store


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
        self.run, self.spawn_request = real.run, real.spawn_request
        self._specs = [replace(spec, replay_safe=True) for spec in real.specs()]

    def specs(self) -> Sequence[ToolSpec]:
        return self._specs


class _Second:
    def __init__(self, store: Door) -> None:
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
