"""Which promises can be asked of a database at any moment, and how one is asked.

A promise that names a limit is not among them: whoever was accepted keeps the limit of that day, so a number that
was lowered since is no breach. A few need words that only SQLite has, and are asked there only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clutch.core.policy import Policy
from clutch.protocol.promises.company import COMPANY
from clutch.protocol.promises.form import Query, Scope, filled
from clutch.protocol.promises.invariants import QUERIES
from clutch.protocol.promises.leaving import LEAVING
from clutch.protocol.promises.needs import NEEDS
from clutch.protocol.promises.people import PEOPLE
from clutch.protocol.promises.spending import SPENDING
from clutch.store.door import Tx

BROKEN_MAX: Final = 5  #: examples of one broken promise

_ANY_TIME: Final = frozenset(
    {Scope.TASK, Scope.LIFE, Scope.SESSION, Scope.BIRTH, Scope.MOVE, Scope.OWNERS, Scope.PURSE}
)
_LIMITS: Final = (
    "{children_max}",
    "{descendants_max}",
    "{retained_max}",
    "{depth_max}",
    "{result_bytes_max}",
    "{inline_chars_max}",
    "{events_max}",
)
_SQLITE_ONLY: Final = ("JSON_", "STRFTIME")


def standing(*, is_served: bool, is_sqlite: bool = True) -> Iterator[Query]:
    """`is_served`: somebody is at work, so timers must ring."""
    scopes = _ANY_TIME | {Scope.CALM} if is_served else _ANY_TIME
    unasked = _LIMITS if is_sqlite else (*_LIMITS, *_SQLITE_ONLY)
    for query in (*QUERIES, *LEAVING, *PEOPLE, *SPENDING, *NEEDS, *COMPANY):
        if query.scope in scopes and not any(word in query.sql for word in unasked):
            yield query


def broken(now: float, query: Query) -> Tx[list[str]]:
    """What breaks it: nothing, or a few examples."""
    rows = yield filled(query, Policy(), now=repr(now), blob="{blob}"), ()
    return [f"{row[0]} {row[1]}" for row in rows[:BROKEN_MAX]]
