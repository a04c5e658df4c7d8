"""What a transaction may not rely on: inside a batch its neighbours run between its statements.

This is why a transaction writes the rows of one session, and why two that write the same one share a key.
"""

from __future__ import annotations

import pytest

from clutch.store.inline import Call, LockstepStore
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, Stall, Store, TickingClock, together


@pytest.mark.anyio
async def test_a_limit_holds_when_everybody_uses_the_same_key(store: Store, stall: Stall) -> None:
    accepted = await together(stall, *[store.tx(1, t.add_within_limit, 1, 1) for _ in range(4)])
    assert accepted == [True, False, False, False]


@pytest.mark.anyio
async def test_a_limit_checked_under_different_keys_is_broken_on_postgres(
    store: Store, stall: Stall, kind: str
) -> None:
    accepted = await together(stall, *[store.tx(key, t.add_within_limit, 1, 1) for key in (1, 2, 3, 4)])
    assert accepted.count(True) == (4 if kind == "postgres" else 1)


def test_the_lockstep_store_shows_the_same_in_memory() -> None:
    store = LockstepStore(TickingClock(), schema=SCHEMA)
    outcomes = store.run_batch([Call(key, t.add_within_limit, (1, 1)) for key in (1, 2, 3, 4)])
    assert [outcome.value for outcome in outcomes] == [True] * 4
    store.close()
