"""Exports the spans of ended runs, as the database recorded them; a run is marked once the collector has its spans.

One process of a fleet exports at a time. When it is gone, another one takes over."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from clutch.contain import BackgroundTasks, cause, contained
from clutch.core.traces import SpanRecord, TraceIds, spans
from clutch.engine.services import Services, surely
from clutch.errors import StoreError, extra
from clutch.logs import logger
from clutch.observability import OtelSettings
from clutch.transactions import runs, traces

RUNS_MAX = 100  # in one pass
SPANS_MAX = 512  # in one request
FLUSH_S = 5.0
REFUSALS_MAX = 5  # of one run, until it is given up

log = logger(__name__)


class SpansRefused(Exception):
    """The collector answered that it will never accept these spans."""


class SpanSink(Protocol):
    """Where spans go. All methods block; they are called in a thread."""

    def send(self, made: Sequence[SpanRecord]) -> bool:
        """Return whether the collector has acknowledged all of them. Raises SpansRefused."""
        ...

    def count(self, made: Sequence[SpanRecord]) -> None:
        """Count the model calls among the spans, after they were acknowledged or given up."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class TraceExporter:
    services: Services
    settings: OtelSettings
    identity: TraceIds
    sink: SpanSink
    is_failing: bool = False
    _runs_max: int = RUNS_MAX
    _refused: tuple[int, int] = (0, 0)  #: the run that was last refused by itself, and how often in a row

    async def work(self) -> None:
        """Export until cancelled. A collector or database that is away costs nothing but time."""
        while True:
            try:
                while await self._is_owner() and await self._export():
                    pass
            except StoreError as error:
                log.warning("Traces not exported: %s (next try in %g s)", error, self.settings.every_s)
            await asyncio.sleep(self.settings.every_s)

    async def flush(self) -> None:
        """Export the last runs of a process that ends. What does not work now is exported by the next process."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while not self.is_failing and await self._is_owner() and await self._export():
                    pass

    async def _is_owner(self) -> bool:
        db, mine = self.services.db, self.services.worker_id
        found = await db.read(traces.owner)
        if found.worker_id != mine and not found.is_alive and mine:
            await db.alone(traces.take_over, mine)
            found = await db.read(traces.owner)
        return found.worker_id == mine

    async def _export(self) -> bool:
        """Return whether there may be more to export at once."""
        db = self.services.db
        found = await db.read(traces.untraced, self._runs_max)
        made: list[SpanRecord] = []
        for run_id in found:
            run = await db.read(traces.recorded, run_id)
            made += spans(self.identity, run, has_content=self.settings.content) if run is not None else ()
        try:
            if not found or not await self._sent(made):
                return False
        except SpansRefused as refused:
            self._failed(str(refused))
            if not self._is_given_up(found, refused):
                return False
        await db.tx((), runs.mark_traced, found)
        await asyncio.to_thread(self.sink.count, made)
        is_full, self._runs_max = len(found) >= self._runs_max, RUNS_MAX
        return is_full

    async def _sent(self, made: Sequence[SpanRecord]) -> bool:
        try:
            with contained():
                for first in range(0, len(made), SPANS_MAX):
                    if not await asyncio.to_thread(self.sink.send, made[first : first + SPANS_MAX]):
                        return self._failed("the collector did not accept the spans")
        except SpansRefused:
            raise
        except Exception as error:  # noqa: BLE001 - a library; the run stays unmarked and is exported again
            return self._failed(cause(error))
        if self.is_failing:
            log.info("Traces exported again to %s", self.settings.endpoint)
        self.is_failing = False
        return True

    def _failed(self, why: str) -> bool:
        """A smaller batch is tried next: one run that a collector refuses must not hold up those before it."""
        self._runs_max = max(1, self._runs_max // 2)
        if not self.is_failing:
            log.warning("Traces not exported to %s: %s (retried until it works)", self.settings.endpoint, why)
        self.is_failing = True
        return False

    def _is_given_up(self, found: Sequence[int], refused: SpansRefused) -> bool:
        """Return whether the oldest run was refused so often by itself that it would hold up all others for good."""
        if len(found) > 1:
            return False
        run_id, times = found[0], self._refused[1] + 1 if self._refused[0] == found[0] else 1
        self._refused = run_id, times
        if times < REFUSALS_MAX:
            return False
        log.warning("Trace of run %d not exported: %s (given up after %d refusals)", run_id, refused, times)
        return True


@asynccontextmanager
async def exporting(services: Services, settings: OtelSettings) -> AsyncIterator[None]:
    """Export traces while the block runs, and what is left after it. Raises MissingExtra, StoreError."""
    if settings.endpoint is None:
        yield
        return
    with extra("otel", "otel.endpoint"):
        from clutch.observability.otlp import OtlpSink
    db, fresh = services.db, services.ids.nonce()
    identity = TraceIds(await surely(services.policy.work.tick_s, lambda: db.alone(traces.opened, fresh)))
    services.traces = identity
    sink = await asyncio.to_thread(OtlpSink, settings, f"{platform.node()}:{os.getpid()}")
    exporter = TraceExporter(services, settings, identity, sink)
    try:
        async with BackgroundTasks() as tasks:
            tasks.start(exporter.work(), "clutch-traces")
            yield
        await exporter.flush()
    finally:
        await asyncio.to_thread(sink.close)
