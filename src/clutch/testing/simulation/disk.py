"""The simulated disk: one real SQLite database in memory, and who wrote which rows of it in which order.

Runs single transactions and, like PostgreSQL, whole batches in lockstep. After each commit an observer is
given the transactions with their footprints; a transaction that fails leaves none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from clutch.ports import Clock
from clutch.store.jobs import Answers, StatementGroup, function_name
from clutch.store.transaction import Row, Spoiled, TransactionOutcome, Tx
from clutch.testing.inline_store import LockstepStore, TransactionCall
from clutch.transactions.sessions import LostRun, NewMain, OwnedRun

#: a table and the row's number in it
Written: TypeAlias = tuple[str, int]


@dataclass(slots=True, eq=False)
class Made:
    """One transaction. `keys` None: it runs alone. `worker_id`: the worker in whose name it runs, if any."""

    actor: str
    keys: tuple[int, ...] | None
    fn: Callable[..., Tx[Any]]
    args: tuple[Any, ...]
    worker_id: int = 0
    named: Mapping[str, Any] = field(default_factory=dict)  #: arguments that were given by name
    locked: list[int] = field(default_factory=list)  #: sessions, in the order of locking
    written: list[Written] = field(default_factory=list)
    purses: list[str] = field(default_factory=list)  #: whose amounts it wrote
    value: Any = None
    now: float = 0.0  #: what its clock said
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = function_name(self.fn)

    @property
    def session_id(self) -> int:
        """The session of a transaction that takes one: with its run, or after the policy."""
        first = self.args[0]
        return int(first.session_id if isinstance(first, OwnedRun | LostRun) else self.args[1])

    @property
    def numbers(self) -> list[int]:
        """The ids among its arguments, for the trace."""
        if self.name == "register":
            return list(self.args[:1])
        first = self.args[0] if self.args else None
        owned = [first.session_id, first.fence, first.run_id] if isinstance(first, OwnedRun) else []
        given = (arg.id if isinstance(arg, NewMain) else arg for arg in (*self.args, *self.named.values()))
        return [*owned, *(arg for arg in given if type(arg) is int)]

    def start(self, now: float) -> Tx[Any]:
        """The transaction, recorded. It may be started again; then what was recorded before is dropped."""
        self.now = now
        self.locked.clear()
        self.written.clear()
        self.purses.clear()
        return self._overheard(self.fn(now, *self.args, **self.named))

    def _overheard(self, transaction: Tx[Any]) -> Tx[Any]:
        rows: Sequence[Row] | None = None
        try:
            while True:
                statement = next(transaction) if rows is None else transaction.send(rows)
                rows = yield statement
                sql = statement[0]
                if sql is None:
                    continue
                if "{lock}" in sql and "FROM sessions WHERE" in sql:
                    self.locked.extend(row[0] for row in rows)
                elif sql.startswith("UPDATE purses SET tokens_spent"):
                    self.purses.extend(row[-1] for row in statement[1])
        except StopIteration as stop:
            return stop.value


class SimDisk(LockstepStore):
    def __init__(self, clock: Clock, observe: Callable[[Sequence[Made]], None]) -> None:
        super().__init__(clock)
        self._observe = observe
        self._heard: list[Written] = []
        self._batch: Sequence[Made] = ()
        self._connection.raw.set_update_hook(self._hear)
        self.ask = self._connection.raw.cursor().execute

    def _hear(self, kind: int, database: str, table: str, row_id: int) -> None:
        del kind, database
        self._heard.append((table, row_id))

    def _drain(self, made: Made) -> None:
        if self._heard:
            made.written.extend(self._heard)
            self._heard.clear()

    def commit(self, made: Made, clock: Clock) -> TransactionOutcome:
        """One transaction by itself."""
        outcome = self._connection.transact(made.start, clock.now())
        self.stats.count(made.name, outcome.statements)
        if outcome.error is not None:
            self._heard.clear()
            return outcome
        self._drain(made)
        self._done([made], [outcome])
        return outcome

    def commit_batch(self, batch: Sequence[Made], clock: Clock) -> list[TransactionOutcome]:
        """All in one commit, statement by statement beside each other."""
        self._clock, self._batch = clock, batch
        try:
            outcomes = self._together([TransactionCall(made.keys or (), made.start) for made in batch])
        except Spoiled:
            self._heard.clear()
            self.stats.redone += len(batch)
            return [self.commit(made, clock) for made in batch]
        for made, outcome in zip(batch, outcomes, strict=True):
            self.stats.count(made.name, outcome.statements)
        kept = [pair for pair in zip(batch, outcomes, strict=True) if pair[1].error is None]
        self._done([made for made, _ in kept], [outcome for _, outcome in kept])
        return outcomes

    def _send(self, group: StatementGroup) -> Answers:
        """As in the store, but each operation's writes are kept apart."""
        answers: list[Sequence[Row]] = []
        try:
            for operation in group.operations:
                answers.append(self._connection.statement(group.sql, operation.parameters))
                self._drain(self._batch[operation.number])
        except Exception as error:
            raise Spoiled(error) from error
        return answers

    def _done(self, made: Sequence[Made], outcomes: Sequence[TransactionOutcome]) -> None:
        self.stats.commits += 1
        for one, outcome in zip(made, outcomes, strict=True):
            one.value = outcome.value
        self._observe(made)

    def look(self, fn: Callable[..., Tx[Any]], args: Sequence[Any], clock: Clock) -> Any:
        """A read; nothing can come between its statements, so it needs no BEGIN. One that writes is a bug."""
        outcome = self._connection.run(lambda now: fn(now, *args), clock.now())
        if self._heard:
            raise AssertionError(f"{function_name(fn)} writes, but was run as a read: {self._heard[:3]}")
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def query(self, sql: str, *parameters: Any) -> list[Row]:
        return list(self.ask(sql, parameters).fetchall())
