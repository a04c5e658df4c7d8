"""Transactions that wait for their turn, and what became of them. Knows no database.

    tx() ──add──▶ Waiting ──take──▶ a batch ──▶ Outcome each ──deliver──▶ the callers' futures

Order: the oldest waiting job is always in the next batch, and a job never overtakes another one that shares
a key with it. So nobody starves and a key's transactions run in the order they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from clutch.store.door import DoorStats, Keys, Listener, T, Tx
from clutch.store.outcomes import Outcome as Outcome
from clutch.store.outcomes import Spoiled as Spoiled

#: How far past a full batch to look for jobs without a conflict. Looking on costs time in every batch while
#: thousands wait behind one key.
_LOOK_AHEAD: Final = 4


class Mode(Enum):
    SHARED = auto()
    ALONE = auto()
    READ = auto()


@dataclass(slots=True, eq=False)
class Job:
    """One transaction that can be started, and started again."""

    mode: Mode
    keys: tuple[int, ...]
    name: str
    start: Callable[[float], Tx[Any]]
    future: asyncio.Future[Any]


def new_job(
    mode: Mode, keys: Keys, name: str, start: Callable[[float], Tx[T]]
) -> tuple[Job, asyncio.Future[T]]:
    """A job and the future its caller awaits."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    return Job(mode, (keys,) if isinstance(keys, int) else keys, name, start, future), future


def function_name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


class Waiting:
    """The queue of one store. Not thread-safe: one thread adds and takes."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._running: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs.append(job)

    def take(self, limit: int) -> list[Job]:
        """The next batch. Its keys are held until `finished`; jobs whose caller has gone are dropped."""
        batch: list[Job] = []
        passed: list[Job] = []
        held = set(self._running)
        while self._jobs and len(batch) < limit and len(passed) < limit * _LOOK_AHEAD:
            job = self._jobs.popleft()
            if job.future.cancelled():
                continue
            if job.mode is not Mode.SHARED:
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

    def finished(self, batch: Iterable[Job]) -> None:
        self._running.difference_update(key for job in batch for key in job.keys)


def deliver(batch: Sequence[Job], outcomes: Sequence[Outcome], stats: DoorStats) -> list[Any]:
    """Answer the callers, count, and return the hints to tell: equal ones once, in the order they came."""
    hints: dict[Any, None] = {}
    for job, outcome in zip(batch, outcomes, strict=True):
        if job.mode is not Mode.READ:
            stats.count(job.name, outcome.statements)
        answer(job, outcome)
        if outcome.hints:
            hints.update(dict.fromkeys(outcome.hints))
    return list(hints)


def answer(job: Job, outcome: Outcome) -> None:
    if job.future.done():
        return
    if outcome.error is None:
        job.future.set_result(outcome.value)
    else:
        job.future.set_exception(outcome.error)


def tell(listeners: Iterable[Listener], hints: Sequence[Any]) -> None:
    """Before any caller goes on. A listener that fails is the event loop's to report, not theirs."""
    for listener in listeners:
        try:
            listener(hints)
        except Exception as error:  # noqa: BLE001 - reported, and the others still hear
            report = {"message": "a listener of the store failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)
