"""Change what a transaction says or hears, statement by statement: the tool of the planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias

from clutch.store.transaction import Row, Statement, Tx

#: a statement and its answer, before and after
Say: TypeAlias = Callable[[str, Any], Statement | None]
Hear: TypeAlias = Callable[[str, Any, Sequence[Row]], Sequence[Row]]


def _as_said(sql: str, parameters: Any) -> Statement | None:
    return sql, parameters


def _as_heard(sql: str, parameters: Any, rows: Sequence[Row]) -> Sequence[Row]:
    del sql, parameters
    return rows


def tampered(original: Any, *, say: Say = _as_said, hear: Hear = _as_heard, hints: bool = True) -> Any:
    """`say` None: the statement is dropped and answered by nothing. `hints` False: they are dropped."""

    @wraps(original)
    def bug(*args: Any, **kwargs: Any) -> Tx[Any]:
        transaction = original(*args, **kwargs)
        answer: Sequence[Row] | None = None
        while True:
            try:
                sql, parameters = next(transaction) if answer is None else transaction.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = ()
            if sql is None:
                if hints:
                    yield sql, parameters
                continue
            said = say(sql, parameters)
            if said is not None:
                answer = hear(sql, parameters, (yield said))

    return bug


def reworded(part: str, old: str, new: str) -> Say:
    """In the statement that contains `part`, `old` becomes `new`."""

    def say(sql: str, parameters: Any) -> Statement:
        return (sql.replace(old, new) if part in sql else sql), parameters

    return say


def answering(part: str, rows: Sequence[Row]) -> Hear:
    """The statement that contains `part` is answered by these rows."""

    def hear(sql: str, parameters: Any, real: Sequence[Row]) -> Sequence[Row]:
        del parameters
        return rows if part in sql else real

    return hear


def answering_only(original: Any, value: Any = None) -> Any:
    """A transaction that does nothing and returns this."""

    @wraps(original)
    def bug(*args: Any, **kwargs: Any) -> Tx[Any]:
        del args, kwargs
        yield from ()
        return value

    return bug


def setting(column: str, value: Callable[[], Any]) -> Say:
    """Whatever an UPDATE of a session sets the column to, it is this."""

    def say(sql: str, parameters: Any) -> Statement:
        before, found, _ = sql.partition(f"{column} = ?")
        if not (sql.startswith("UPDATE sessions") and found):
            return sql, parameters
        place = before.count("?")
        return sql, (*parameters[:place], value(), *parameters[place + 1 :])

    return say
