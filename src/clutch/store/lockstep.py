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

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from clutch.store.dialect import is_reading, is_returning
from clutch.store.door import Many, Row, Statement, Tx
from clutch.store.outcomes import Outcome, Spoiled

Start: TypeAlias = Callable[[float], Tx[Any]]
#: One for each operation of a group, in their order; or none at all, where the statement has no answer.
Answers: TypeAlias = Sequence[Sequence[Row]]


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
    operations: list[Operation]


class Lockstep:
    def __init__(self, starts: Sequence[Start], now: float) -> None:
        self.outcomes = [Outcome() for _ in starts]
        self._rounds, self._was_apart = 0, False
        self._single: defaultdict[str, list[Operation]] = defaultdict(list)
        self._many: defaultdict[str, list[Operation]] = defaultdict(list)
        begun: list[Operation] = []
        for number, start in enumerate(starts):
            try:
                begun.append(Operation(number, start(now).send, self.outcomes[number]))
            except Exception as error:  # noqa: BLE001 - not a generator, wrong arguments: its caller's business
                self.outcomes[number].error = error
        self._advance(begun, repeat(None))

    def run(self, send: Callable[[Group], Answers]) -> list[Outcome]:
        """All rounds, where sending needs no waiting. Raises Spoiled."""
        while groups := self.round():
            for group in groups:
                self.answer(group, send(group))
        return self.outcomes

    def round(self) -> list[Group]:
        """The statements everybody waits for; nothing when all have ended."""
        groups = [Group(sql, False, operations) for sql, operations in self._single.items()]
        groups += [Group(sql, True, operations) for sql, operations in self._many.items()]
        self._single, self._many = defaultdict(list), defaultdict(list)
        self._rounds += 1
        if self._was_apart:  # several groups went on one after the other, so they stand in their order
            for group in groups:
                group.operations.sort(key=_NUMBER)
        self._was_apart = len(groups) > 1
        groups.sort(key=_WHICH)
        return groups

    def answer(self, group: Group, answers: Answers) -> None:
        """Give each operation of the group its rows. Raises Spoiled."""
        if not is_reading(group.sql):
            may_not_have = is_returning(group.sql) and not group.is_many
            for place, operation in enumerate(group.operations):
                if not may_not_have or answers[place]:
                    operation.has_written = True
        self._advance(group.operations, answers or repeat(()))

    def _advance(self, operations: Iterable[Operation], answers: Iterable[Sequence[Row] | None]) -> None:
        """In one piece, since it runs dozens of times for a task."""
        single, many = self._single, self._many
        for operation, rows in zip(operations, answers, strict=False):
            try:
                sql, parameters = operation.send(rows)
                while sql is None:
                    operation.outcome.hints.append(parameters)
                    sql, parameters = operation.send(())
            except StopIteration as stop:
                self._ended(operation).value = stop.value
            except Exception as error:
                if operation.has_written:
                    raise Spoiled(error) from error
                outcome = self._ended(operation)
                outcome.error = error
                outcome.hints.clear()
            else:
                operation.parameters = parameters
                (many if type(parameters) is Many else single)[sql].append(operation)

    def _ended(self, operation: Operation) -> Outcome:
        operation.outcome.statements = self._rounds  # one in each
        return operation.outcome


_NUMBER: Final = attrgetter("number")
_WHICH: Final = itemgetter(0, 1)
