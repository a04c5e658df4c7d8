"""Transactions that wait for their turn, and what became of them. Knows no database.

    tx() ──add──▶ Waiting ──take──▶ a batch ──▶ Outcome each ──deliver──▶ the callers' futures

Order: the oldest waiting job is always in the next batch, and a job never overtakes another one that shares
a key with it. So no transaction starves, and those of one key run in the order they came."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from clutch.store.dialect import is_reading, is_returning
from clutch.store.transaction import (
    DatabaseStats,
    Keys,
    Listener,
    ManyRows,
    Row,
    Spoiled,
    Statement,
    T,
    TransactionOutcome,
    Tx,
)

#: How far past a full batch to look for jobs without a conflict. Looking on costs time in every batch while
#: thousands wait behind one key.
_LOOK_AHEAD: Final = 4


class TransactionMode(Enum):
    SHARED = auto()
    ALONE = auto()
    READ = auto()


@dataclass(slots=True, eq=False)
class TransactionJob:
    """One transaction that can be started, and started again."""

    mode: TransactionMode
    keys: tuple[int, ...]
    name: str
    start: Callable[[float], Tx[Any]]
    future: asyncio.Future[Any]


def new_job(
    mode: TransactionMode, keys: Keys, name: str, start: Callable[[float], Tx[T]]
) -> tuple[TransactionJob, asyncio.Future[T]]:
    """A job and the future its caller awaits."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    return TransactionJob(mode, (keys,) if isinstance(keys, int) else keys, name, start, future), future


def function_name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


class TransactionQueue:
    """The queue of one store. Not thread-safe: one thread adds and takes."""

    def __init__(self) -> None:
        self._jobs: deque[TransactionJob] = deque()
        self._running: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, job: TransactionJob) -> None:
        self._jobs.append(job)

    def take(self, limit: int) -> list[TransactionJob]:
        """The next batch. Its keys are held until `finished`; jobs whose caller has gone are dropped."""
        batch: list[TransactionJob] = []
        passed: list[TransactionJob] = []
        held = set(self._running)
        while self._jobs and len(batch) < limit and len(passed) < limit * _LOOK_AHEAD:
            job = self._jobs.popleft()
            if job.future.cancelled():
                continue
            if job.mode is not TransactionMode.SHARED:
                if not batch:
                    batch.append(job)
                    break
                passed.append(job)
                continue
            (batch if held.isdisjoint(job.keys) else passed).append(job)
            held.update(job.keys)
        self._jobs.extendleft(reversed(passed))
        self._running.update(key for job in batch for key in job.keys)
        return batch

    def finished(self, batch: Iterable[TransactionJob]) -> None:
        self._running.difference_update(key for job in batch for key in job.keys)


def deliver(
    batch: Sequence[TransactionJob], outcomes: Sequence[TransactionOutcome], stats: DatabaseStats
) -> list[Any]:
    """Answer the callers, count, and return the hints to tell: equal ones once, in the order they came."""
    hints: dict[Any, None] = {}
    for job, outcome in zip(batch, outcomes, strict=True):
        if job.mode is not TransactionMode.READ:
            stats.count(job.name, outcome.statements)
        answer(job, outcome)
        if outcome.hints:
            hints.update(dict.fromkeys(outcome.hints))
    return list(hints)


def answer(job: TransactionJob, outcome: TransactionOutcome) -> None:
    if job.future.done():
        return
    if outcome.error is None:
        job.future.set_result(outcome.value)
    else:
        job.future.set_exception(outcome.error)


def tell(listeners: Iterable[Listener], hints: Sequence[Any]) -> None:
    """Before any caller continues. A listener that fails is the event loop's to report, not theirs."""
    for listener in listeners:
        try:
            listener(hints)
        except Exception as error:  # noqa: BLE001 - reported, and the others still hear
            report = {"message": "a listener of the store failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)


# --------------------------------------------------------------------------------------------------
# Transactions that advance together, round by round. Pure: the caller sends the statements.
#
#     round 1   tx 0: SELECT a …   tx 1: SELECT a …   tx 2: UPDATE b …
#                   └──────── one group ───┘               └─ another
#     round 2   whatever each of them yields next
#
# Statements of a round with the same text are one group, so a group is one trip to the server however many
# transactions are in it; and where there is no server, the same code runs for all of them in a row, while it is in
# the processor's caches. Groups go in the order of their texts and operations in the order of their numbers,
# the same in every process: two batches that lock the same rows mostly meet in the same order.
#
# A transaction that fails before it wrote has an outcome like any other. One that fails later spoils the
# batch: everything is rolled back and each runs by itself.

Start: TypeAlias = Callable[[float], Tx[Any]]
#: One for each operation of a group, in their order; or none at all, where the statement has no answer.
Answers: TypeAlias = Sequence[Sequence[Row]]


@dataclass(slots=True)
class Operation:
    """One transaction of the batch and the statement it waits for."""

    number: int
    send: Callable[[Any], Statement]  #: continues with the rows it waits for
    outcome: TransactionOutcome
    parameters: Any = ()
    has_written: bool = False


class StatementGroup(NamedTuple):
    """The operations of one round that wait for the same statement; all with `Many`, or none."""

    sql: str
    is_many: bool
    operations: list[Operation]


class Lockstep:
    def __init__(self, starts: Sequence[Start], now: float) -> None:
        self.outcomes = [TransactionOutcome() for _ in starts]
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

    def run(self, send: Callable[[StatementGroup], Answers]) -> list[TransactionOutcome]:
        """All rounds, where sending needs no waiting. Raises Spoiled."""
        while groups := self.round():
            for group in groups:
                self.answer(group, send(group))
        return self.outcomes

    def round(self) -> list[StatementGroup]:
        """The statements everybody waits for; nothing when all have ended."""
        groups = [StatementGroup(sql, False, operations) for sql, operations in self._single.items()]
        groups += [StatementGroup(sql, True, operations) for sql, operations in self._many.items()]
        self._single, self._many = defaultdict(list), defaultdict(list)
        self._rounds += 1
        if self._was_apart:  # several groups continued one after the other, so they stand in their order
            for group in groups:
                group.operations.sort(key=_NUMBER)
        self._was_apart = len(groups) > 1
        groups.sort(key=_WHICH)
        return groups

    def answer(self, group: StatementGroup, answers: Answers) -> None:
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
                (many if type(parameters) is ManyRows else single)[sql].append(operation)

    def _ended(self, operation: Operation) -> TransactionOutcome:
        operation.outcome.statements = self._rounds  # one in each
        return operation.outcome


_NUMBER: Final = attrgetter("number")
_WHICH: Final = itemgetter(0, 1)
