"""Invariants of the stored data, as SQL queries that return violations: the simulator runs them after every commit,
`clutch doctor` on the live database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clutch.core.policy import Policy
from clutch.store.transaction import Tx
from clutch.transactions.invariants.core import (
    BACKGROUND_QUERIES,
    LEAVING,
    QUERIES,
    SPENDING,
    USER_QUERIES,
    InvariantQuery,
    InvariantScope,
    filled,
)
from clutch.transactions.invariants.reported import NEEDS

# --------------------------------------------------------------------------------------------------
# Which invariants can be asked of a database at any moment, and how one is asked. A few need functions that only SQLite
# has, and are asked there only.

BROKEN_MAX: Final = 5  #: examples of one broken promise

_ANY_TIME: Final = frozenset(
    {
        InvariantScope.TASK,
        InvariantScope.LIFE,
        InvariantScope.SESSION,
        InvariantScope.BIRTH,
        InvariantScope.MOVE,
        InvariantScope.OWNERS,
        InvariantScope.PURSE,
    }
)
_SQLITE_ONLY: Final = ("JSON_", "STRFTIME")


def standing(*, is_served: bool, is_sqlite: bool = True) -> Iterator[InvariantQuery]:
    """`is_served`: a gateway works on this database, so timers must ring."""
    scopes = _ANY_TIME | {InvariantScope.CALM} if is_served else _ANY_TIME
    unasked = () if is_sqlite else _SQLITE_ONLY
    for query in (*QUERIES, *LEAVING, *USER_QUERIES, *SPENDING, *NEEDS, *BACKGROUND_QUERIES):
        if query.scope in scopes and not any(word in query.sql for word in unasked):
            yield query


def broken(now: float, query: InvariantQuery) -> Tx[list[str]]:
    """What breaks it: nothing, or a few examples."""
    rows = yield filled(query, Policy(), now=repr(now), blob="{blob}", fixed_depth="1"), ()
    return [f"{row[0]} {row[1]}" for row in rows[:BROKEN_MAX]]
