"""A batch of transactions that advance together, round by round. Pure: the caller sends the statements.

    round 1   tx 0: SELECT a …   tx 1: SELECT a …   tx 2: UPDATE b …
                  └──────── one group ───┘               └─ another
    round 2   whatever each of them yields next

Statements of a round with the same text are one group, so a group is one trip to the server however many
transactions are in it. Groups go in the order of their texts and operations in the order of their numbers,
the same in every process: two batches that lock the same rows mostly meet in the same order.

A transaction that fails before it wrote has an outcome like any other. One that fails later spoils the
batch: everything is rolled back and each runs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from clutch.store.dialect import is_reading, is_returning
from clutch.store.door import Many, Row, Tx
from clutch.store.jobs import Outcome, Spoiled

Start: TypeAlias = Callable[[float], Tx[Any]]


@dataclass(slots=True)
class Operation:
    """One transaction of the batch and the statement it waits for."""

    number: int
    transaction: Tx[Any]
    outcome: Outcome = field(default_factory=Outcome)
    sql: str = ""
    parameters: Any = ()
    has_written: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The operations of one round that wait for the same statement; all with `Many`, or none."""

    sql: str
    is_many: bool
    operations: tuple[Operation, ...]


class Lockstep:
    def __init__(self, starts: Sequence[Start], now: float) -> None:
        self.outcomes = [Outcome() for _ in starts]
        self._waiting: list[Operation] = []
        for number, start in enumerate(starts):
            self._begin(number, start, now)

    def _begin(self, number: int, start: Start, now: float) -> None:
        try:
            operation = Operation(number, start(now), self.outcomes[number])
        except Exception as error:  # noqa: BLE001 - not a generator, wrong arguments: its caller's business
            self.outcomes[number].error = error
        else:
            self._advance(operation, None)

    def round(self) -> list[Group]:
        """The statements everybody waits for; nothing when all have ended."""
        groups: dict[tuple[str, bool], list[Operation]] = {}
        for operation in self._waiting:
            is_many = type(operation.parameters) is Many
            groups.setdefault((operation.sql, is_many), []).append(operation)
        self._waiting = []
        return [
            Group(sql, is_many, tuple(sorted(groups[sql, is_many], key=_number)))
            for sql, is_many in sorted(groups)
        ]

    def answer(self, group: Group, rows: Mapping[int, Sequence[Row]]) -> None:
        """Give each operation of the group its rows, by number. Raises Spoiled."""
        reads = is_reading(group.sql)
        returns = is_returning(group.sql) and not group.is_many
        for operation in group.operations:
            mine = rows.get(operation.number, ())
            if not reads and (mine or not returns):
                operation.has_written = True
            self._advance(operation, mine)

    def _advance(self, operation: Operation, rows: Sequence[Row] | None) -> None:
        outcome = operation.outcome
        try:
            sql, parameters = (
                next(operation.transaction) if rows is None else operation.transaction.send(rows)
            )
            while sql is None:
                outcome.hints.append(parameters)
                sql, parameters = operation.transaction.send(())
        except StopIteration as stop:
            outcome.value = stop.value
        except Exception as error:
            if operation.has_written:
                raise Spoiled(error) from error
            outcome.error = error
            outcome.hints.clear()
        else:
            outcome.statements += 1
            operation.sql, operation.parameters = sql, parameters
            self._waiting.append(operation)


def _number(operation: Operation) -> int:
    return operation.number
