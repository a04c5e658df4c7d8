"""Synchronous stores in memory, for simulators: one simulated disk, every transaction atomic and instant.

`InlineStore` runs one transaction at a time. `LockstepStore` also runs whole batches through the code that
drives PostgreSQL's, so that a simulator sees transactions without isolation from each other. Delay, death
and the order of things are the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from clutch.ports import Clock
from clutch.store import dialect
from clutch.store.jobs import Answers, Lockstep, StatementGroup, function_name
from clutch.store.sqlite_connection import MEMORY, SqliteConnection, migrate
from clutch.store.transaction import DatabaseStats, Keys, P, Row, Spoiled, T, TransactionOutcome, TxFunction

#: called with the function and its arguments after every commit
AfterCommit: TypeAlias = Callable[[Callable[..., Any], tuple[Any, ...]], None]


class InlineStore:
    def __init__(
        self,
        clock: Clock,
        after_commit: AfterCommit | None = None,
        *,
        schema: Path = dialect.SCHEMA,
    ) -> None:
        self.stats = DatabaseStats()
        self._clock = clock
        self._after_commit = after_commit
        self._connection = SqliteConnection(MEMORY)
        migrate(self._connection, schema)

    def run(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> tuple[T, list[Any]]:
        """The value and the hints. Raises what the transaction raised, and then nothing is written."""
        outcome = self._connection.transact(lambda now: fn(now, *args, **kwargs), self._clock.now())
        self._count(fn, outcome)
        if outcome.error is not None:
            raise outcome.error
        self._committed([(fn, args)])
        value: T = outcome.value
        return value, outcome.hints

    def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._connection.reading_only():
            outcome = self._connection.look(lambda now: fn(now, *args, **kwargs), self._clock.now())
        if outcome.error is not None:
            raise outcome.error
        value: T = outcome.value
        return value

    def rows(self, sql: str, *parameters: Any) -> Sequence[Row]:
        """For invariants: a plain look at the tables."""
        with self._connection.reading_only():
            return self._connection.statement(sql, parameters)

    def close(self) -> None:
        self._connection.close()

    def _count(self, fn: Callable[..., Any], outcome: TransactionOutcome) -> None:
        self.stats.count(function_name(fn), outcome.statements)

    def _committed(self, calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
        self.stats.commits += 1
        self.stats.batches += 1
        if self._after_commit is not None:
            for fn, args in calls:
                self._after_commit(fn, args)


@dataclass(frozen=True, slots=True)
class TransactionCall:
    """One transaction of a batch: the sessions it writes, the function, its arguments."""

    keys: Keys
    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()


class LockstepStore(InlineStore):
    def run_batch(self, calls: Sequence[TransactionCall]) -> list[TransactionOutcome]:
        """Run all in one commit, as PostgreSQL would. No two may share a key; one outcome for each."""
        _refuse_shared_keys(calls)
        try:
            outcomes = self._together(calls)
        except Spoiled:
            self.stats.redone += len(calls)
            return [self._by_itself(call) for call in calls]
        for call, outcome in zip(calls, outcomes, strict=True):
            self._count(call.fn, outcome)
        self._committed(
            [(call.fn, call.args) for call, outcome in zip(calls, outcomes, strict=True) if not outcome.error]
        )
        return outcomes

    def _together(self, calls: Sequence[TransactionCall]) -> list[TransactionOutcome]:
        self._connection.begin()
        try:
            lockstep = Lockstep([_starter(call) for call in calls], self._clock.now())
            outcomes = lockstep.run(self._send)
            self._connection.control("COMMIT")
        finally:
            self._connection.rollback()
        return outcomes

    def _send(self, group: StatementGroup) -> Answers:
        return self._connection.send(group)

    def _by_itself(self, call: TransactionCall) -> TransactionOutcome:
        outcome = self._connection.transact(_starter(call), self._clock.now())
        self._count(call.fn, outcome)
        if outcome.error is None:
            self._committed([(call.fn, call.args)])
        return outcome


def _starter(call: TransactionCall) -> Callable[[float], Any]:
    return lambda now: call.fn(now, *call.args)


def _refuse_shared_keys(calls: Sequence[TransactionCall]) -> None:
    keys = [key for call in calls for key in ((call.keys,) if isinstance(call.keys, int) else call.keys)]
    if len(keys) != len(set(keys)):
        raise ValueError("two transactions of one batch share a key; the store would never do that")
