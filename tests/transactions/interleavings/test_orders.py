"""The stage itself: it plays exactly the orders it promises, and a lock ends an order where it must."""

from __future__ import annotations

from itertools import combinations, groupby

import pytest

from clutch.store.transaction import Tx
from tests.transactions.interleavings.two_connections import Stage, Start

pytestmark = pytest.mark.anyio

STATEMENTS = 3


def traced(played: list[str], name: str, sql: str) -> Start:
    def transaction(now: float) -> Tx[None]:
        if name == "a":
            played.append("")  # it is the first on the stage
        for _ in range(STATEMENTS):
            yield sql, ()
            played[-1] += name

    return transaction


async def orders(stage: Stage, sql: str) -> set[str]:
    played: list[str] = []
    stage.stride = 1
    await stage.every_order(traced(played, "a", sql), traced(played, "b", sql))
    return set(played)


async def test_all_orders_with_two_interruptions_are_played(stage: Stage, main: int) -> None:
    total = 2 * STATEMENTS
    every = {
        "".join("a" if place in chosen else "b" for place in range(total))
        for chosen in combinations(range(total), STATEMENTS)
    }
    wanted = {order for order in every if len(list(groupby(order))) <= 4}
    assert await orders(stage, "SELECT 1") == wanted
    assert len(wanted) < len(every)


async def test_whoever_waits_for_a_lock_goes_on_when_it_is_free(stage: Stage, main: int) -> None:
    locks = "UPDATE counters SET value = value + 1 WHERE name = 'process'"
    assert await orders(stage, locks) == {"aaabbb", "bbbaaa"}
