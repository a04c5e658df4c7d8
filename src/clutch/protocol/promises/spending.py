"""What budgets promise, as SQL: purses are the sums of the calls they paid for, not overdrawn. No rows, ever."""

from __future__ import annotations

from typing import Final

from clutch.protocol.promises.form import Query, Scope

_OF_PURSE: Final = (
    "FROM sessions s JOIN usage u ON u.session_id = s.id"
    " WHERE REPLACE(' ' || s.purses || ' ', ' ' || p.name || ' ', '') <> ' ' || s.purses || ' '"
)
_OF_DAY: Final = "FROM usage u WHERE STRFTIME('%Y-%m-%d', u.at, 'unixepoch') = SUBSTR(p.name, 5)"
_SUMS: Final = (
    "SELECT COALESCE(SUM(CASE u.state WHEN 1 THEN u.input + u.output WHEN 2 THEN u.reserved_tokens ELSE 0 END), 0),"
    " COALESCE(SUM(CASE u.state WHEN 0 THEN u.reserved_tokens ELSE 0 END), 0)"
)
_PURSE: Final = "p.name, 'has ' || p.tokens_spent || ' spent and ' || p.tokens_reserved || ' reserved of '"
_LIMIT: Final = "COALESCE(CAST(p.tokens_max AS TEXT), 'any')"


def _balanced(scope: Scope, which: str, calls: str) -> Query:
    return Query(
        "T16",
        scope,
        "what is spent and reserved is the sum of the calls",
        f"SELECT {_PURSE} || {_LIMIT} || ', and its calls say otherwise' FROM purses p WHERE {which}"  # noqa: S608
        f" AND (p.tokens_spent, p.tokens_reserved) <> ({_SUMS} {calls})",
    )


def _within(scope: Scope, which: str, calls: str) -> Query:
    """The last call that was let through may have wanted more than was left."""
    return Query(
        "T16",
        scope,
        "no more is spent and reserved than the limit and less than one call",
        f"SELECT {_PURSE} || {_LIMIT} FROM purses p WHERE {which} AND p.tokens_spent + p.tokens_reserved >="  # noqa: S608
        f" p.tokens_max + (SELECT MAX(u.reserved_tokens) {calls})",
        also="N27",
    )


SPENDING: Final[tuple[Query, ...]] = (
    _balanced(Scope.PURSE, "p.name {touched} AND p.kind <> 'day'", _OF_PURSE),
    _within(Scope.PURSE, "p.name {touched} AND p.kind <> 'day'", _OF_PURSE),
    _balanced(Scope.PURSE, "p.name {touched} AND p.kind = 'day'", _OF_DAY),
    _within(Scope.PURSE, "p.name {touched} AND p.kind = 'day'", _OF_DAY),
    _balanced(Scope.END, "p.kind <> 'day'", _OF_PURSE),
    _balanced(Scope.END, "p.kind = 'day'", _OF_DAY),
    Query(
        "T16",
        Scope.END,
        "nothing is reserved when nobody works",
        f"SELECT {_PURSE} || {_LIMIT} FROM purses p WHERE p.tokens_reserved <> 0",  # noqa: S608
    ),
)
