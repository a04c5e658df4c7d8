"""Transactions that advance together, round by round. Pure: the caller sends the statements.

    round 1   tx 0: SELECT a …   tx 1: SELECT a …   tx 2: UPDATE b …
                  └──────── one group ───┘               └─ another
    round 2   whatever each of them yields next

Statements of a round with the same text are one group, so a group is one trip to the server however many
transactions are in it; and where there is no server, the same code runs for all of them in a row, while it is in
the processor's caches. Groups go in the order of their texts and operations in the order of their numbers,
the same in every process: two batches that lock the same rows mostly meet in the same order.

A transaction that fails before it wrote has an outcome like any other. One that fails later spoils the
batch: everything is rolled back and each runs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from clutch.store.dialect import is_reading, is_returning
from clutch.store.door import Many, Row, Statement, Tx
from clutch.store.outcomes import Outcome, Spoiled

Start: TypeAlias = Callable[[float], Tx[Any]]


@dataclass(slots=True)
class Operation:
    """One transaction of the batch and the statement it waits for."""

    number: int
    send: Callable[[Any], Statement]  #: goes on with the rows it waits for
    outcome: Outcome
    parameters: Any = ()
    has_written: bool = False


class Group(NamedTuple):
    """The operations of one round that wait for the same statement; all with `Many`, or none."""

    sql: str
    is_many: bool
    operations: tuple[Operation, ...]


class Lockstep:
    def __init__(self, starts: Sequence[Start], now: float) -> None:
        self.outcomes = [Outcome() for _ in starts]
        self._waiting: dict[tuple[str, bool], list[Operation]] = {}
        for number, start in enumerate(starts):
            self._begin(number, start, now)

    def _begin(self, number: int, start: Start, now: float) -> None:
        try:
            operation = Operation(number, start(now).send, self.outcomes[number])
        except Exception as error:  # noqa: BLE001 - not a generator, wrong arguments: its caller's business
            self.outcomes[number].error = error
        else:
            self._advance([operation], [None])

    def run(self, send: Callable[[Group], Mapping[int, Sequence[Row]]]) -> list[Outcome]:
        """All rounds, where sending needs no waiting. Raises Spoiled."""
        while groups := self.round():
            for group in groups:
                self.answer(group, send(group))
        return self.outcomes

    def round(self) -> list[Group]:
        """The statements everybody waits for; nothing when all have ended."""
        waiting, self._waiting = self._waiting, {}
        return [Group(*which, tuple(sorted(waiting[which], key=_NUMBER))) for which in sorted(waiting)]

    def answer(self, group: Group, rows: Mapping[int, Sequence[Row]]) -> None:
        """Give each operation of the group its rows, by number. Raises Spoiled."""
        mine = [rows.get(operation.number, ()) for operation in group.operations]
        if not is_reading(group.sql):
            returns = is_returning(group.sql) and not group.is_many
            for operation, answer in zip(group.operations, mine, strict=True):
                operation.has_written |= bool(answer) or not returns
        self._advance(group.operations, mine)

    def _advance(self, operations: Sequence[Operation], answers: Sequence[Sequence[Row] | None]) -> None:
        """In one piece, since it runs dozens of times for a task."""
        waiting = self._waiting
        for operation, rows in zip(operations, answers, strict=True):
            outcome = operation.outcome
            try:
                sql, parameters = operation.send(rows)
                while sql is None:
                    outcome.hints.append(parameters)
                    sql, parameters = operation.send(())
            except StopIteration as stop:
                outcome.value = stop.value
            except Exception as error:
                if operation.has_written:
                    raise Spoiled(error) from error
                outcome.error = error
                outcome.hints.clear()
            else:
                outcome.statements += 1
                operation.parameters = parameters
                waiting.setdefault((sql, type(parameters) is Many), []).append(operation)


_NUMBER: Final = attrgetter("number")
