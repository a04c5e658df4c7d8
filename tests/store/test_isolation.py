"""What a transaction may not rely on: inside a batch its neighbours run between its statements.

This is why a transaction writes the rows of one session, and why two that write the same one share a key.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.store.jobs import TransactionJob, TransactionMode
from clutch.store.sqlite import waves
from clutch.testing.inline_store import LockstepStore, TransactionCall
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, Stall, Store, TickingClock, together


@pytest.mark.anyio
async def test_a_limit_holds_when_everybody_uses_the_same_key(store: Store, stall: Stall) -> None:
    accepted = await together(stall, *[store.tx(1, t.add_within_limit, 1, 1) for _ in range(4)])
    assert accepted == [True, False, False, False]


@pytest.mark.anyio
async def test_a_limit_checked_under_different_keys_is_broken(store: Store, stall: Stall) -> None:
    accepted = await together(stall, *[store.tx(key, t.add_within_limit, 1, 1) for key in (1, 2, 3, 4)])
    assert accepted == [True] * 4


@given(st.lists(st.sampled_from([None, (), (1,), (2,), (1, 2), (3,)]), max_size=12))
def test_a_wave_holds_no_key_twice_and_nobody_beside_one_that_is_alone(
    keys: list[tuple[int, ...] | None],
) -> None:
    def job(own: tuple[int, ...] | None) -> TransactionJob:
        mode = TransactionMode.ALONE if own is None else TransactionMode.SHARED
        return TransactionJob(mode, own or (), "", lambda now: iter(()), cast("Any", None))  # type: ignore[arg-type,return-value]

    batch = [job(own) for own in keys]
    cut = list(waves(batch))
    assert [each for wave in cut for each in wave] == batch
    for wave in cut:
        held = [key for each in wave for key in each.keys]
        assert len(held) == len(set(held))
        assert len(wave) == 1 or all(each.mode is TransactionMode.SHARED for each in wave)


def test_the_lockstep_store_shows_the_same_in_memory() -> None:
    store = LockstepStore(TickingClock(), schema=SCHEMA)
    outcomes = store.run_batch([TransactionCall(key, t.add_within_limit, (1, 1)) for key in (1, 2, 3, 4)])
    assert [outcome.value for outcome in outcomes] == [True] * 4
    store.close()
