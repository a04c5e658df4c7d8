"""One commit for many transactions on one SQLite connection, and what happens when one of them fails.

    a batch   [tx 1] [tx 2] [tx 3] | [alone] | [tx 3 again] [tx 4]     one BEGIN, one COMMIT
              └── a wave: lockstep ┘           └── the next wave ┘

A wave advances in lockstep: the same code runs for all of them in a row, which costs two thirds of running one
transaction after the other. Whoever shares a key with one of a wave, or runs alone, waits for the next.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from clutch.errors import DiskFull, StoreBusy
from clutch.store.door import DoorStats
from clutch.store.jobs import Job, Mode, Outcome, Spoiled
from clutch.store.lockstep import Lockstep
from clutch.store.sqlite_connection import SqliteConnection

if TYPE_CHECKING:
    from clutch.ports import Clock


def next_batch(waiting: deque[Job], limit: int) -> list[Job]:
    """The oldest, without those whose caller has gone. A read (only a memory database sends it here) is by itself."""
    batch: list[Job] = []
    while waiting and len(batch) < limit and not (batch and waiting[0].mode is Mode.READ):
        job = waiting.popleft()
        if not job.future.cancelled():
            batch.append(job)
            if job.mode is Mode.READ:
                break
    return batch


def waves(batch: Iterable[Job]) -> Iterator[list[Job]]:
    """In the order they came, so that the transactions of a key stay in theirs."""
    wave: list[Job] = []
    held: set[int] = set()
    for job in batch:
        is_apart = job.mode is not Mode.SHARED or bool(wave and wave[-1].mode is not Mode.SHARED)
        if wave and (is_apart or not held.isdisjoint(job.keys)):
            yield wave
            wave, held = [], set()
        wave.append(job)
        held.update(job.keys)
    if wave:
        yield wave


class SqliteBatches:
    """Runs batches, one after the other. Every job gets an outcome, whatever happens."""

    def __init__(self, connection: SqliteConnection, clock: Clock, stats: DoorStats) -> None:
        self._connection = connection
        self._clock = clock
        self._stats = stats

    def settle(self, batch: Sequence[Job]) -> list[Outcome]:
        began = time.perf_counter()
        try:
            return self._settle(batch)
        finally:
            self._stats.batch_s += time.perf_counter() - began

    def _settle(self, batch: Sequence[Job]) -> list[Outcome]:
        self._stats.batches += 1
        if len(batch) == 1:
            return [self._by_itself(batch[0])]
        try:
            return self._together(batch)
        except Spoiled:
            self._stats.redone += len(batch)
            return [self._by_itself(job) for job in batch]
        except Exception as error:  # noqa: BLE001 - the writer must live on, and every caller must hear of it
            return [Outcome(error=error) for _ in batch]

    def _together(self, batch: Sequence[Job]) -> list[Outcome]:
        now = self._clock.now()
        self._connection.control("BEGIN IMMEDIATE")
        try:
            outcomes = [outcome for wave in waves(batch) for outcome in self._wave(wave, now)]
            self._commit()
        finally:
            self._connection.rollback()
        self._stats.commits += 1
        return outcomes

    def _wave(self, wave: Sequence[Job], now: float) -> list[Outcome]:
        if len(wave) == 1:
            return [self._one_of_many(wave[0], now)]
        return Lockstep([job.start for job in wave], now).run(self._connection.send)

    def _one_of_many(self, job: Job, now: float) -> Outcome:
        before = self._connection.changes()
        outcome = self._connection.run(job.start, now)
        if outcome.error is not None:
            has_written = self._connection.changes() != before
            # A full disk or an I/O error ends the whole transaction, the neighbours' writes with it.
            if has_written or not self._connection.in_transaction:
                raise Spoiled(outcome.error)
        return outcome

    def _commit(self) -> None:
        try:
            self._connection.control("COMMIT")
        except (DiskFull, StoreBusy) as error:
            # One by one the small ones may still fit. After an I/O error nothing is tried again.
            raise Spoiled(error) from error

    def _by_itself(self, job: Job) -> Outcome:
        try:
            return self._look(job) if job.mode is Mode.READ else self._transact(job)
        except Exception as error:  # noqa: BLE001 - as above
            return Outcome(error=error)

    def _transact(self, job: Job) -> Outcome:
        outcome = self._connection.transact(job.start, self._clock.now())
        if outcome.error is None:
            self._stats.commits += 1
        return outcome

    def _look(self, job: Job) -> Outcome:
        with self._connection.reading_only():
            return self._connection.look(job.start, self._clock.now())
