"""The health of a gateway as JSON objects: its process, workers, queues, provider limits, config and invariants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clutch.api import views
from clutch.contain import BackgroundTasks
from clutch.core.rate_limit import Breaker, ProviderHold, ProviderLimit
from clutch.core.redaction import redact
from clutch.core.views import ConfigReport, WorkState, is_late
from clutch.errors import StoreError
from clutch.ports import Limiter
from clutch.transactions.invariants import InvariantCheck, broken, checked, standing

if TYPE_CHECKING:
    from clutch.api import report_objects as objects
    from clutch.engine.live import Beat
    from clutch.engine.services import Services


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What only the surface knows of the process."""

    version: str
    pid: int
    memory_bytes: int


def report(
    now: float, services: Services, work: WorkState, config: ConfigReport | None, process: ProcessFacts
) -> objects.HealthReport:
    has_leases = services.lives is not None
    own = next((one for one in work.workers if one.id == services.worker_id), None)
    limits = services.models.limits() if isinstance(services.models, Limiter) else {}
    return {
        "at": views.moment(now),
        "gateway": {
            "version": process.version,
            "pid": process.pid,
            "startedAt": None if own is None else views.moment(own.started_at),
            "database": "postgresql" if has_leases else "sqlite",
            "databaseBytes": work.database_bytes,
            "memoryBytes": process.memory_bytes,
            "loops": loops(services.pulses.beats, now),
        },
        "workers": [views.worker(one, services.worker_id, now) for one in work.workers],
        "queues": {
            "lanes": [
                {"name": one.name, "running": one.running, "limit": one.cap, "queued": one.queued}
                for one in work.lanes
            ],
            "deferred": work.deferred,
            "undelivered": work.undelivered,
            "outbox": work.outbox,
            "unsent": work.unsent,
        },
        "providers": [_provider(name, limit) for name, limit in sorted(limits.items())],
        "config": None if config is None else _config(config),
        "problems": views.problems(services.problems()),
    }


def loops(beats: Mapping[str, Beat], now: float) -> list[objects.LoopObject]:
    return [
        {
            "name": name,
            "at": views.moment(beat.at),
            "everySeconds": beat.period_s,
            "isLate": is_late(beat.at, beat.period_s, now),
        }
        for name, beat in sorted(beats.items())
    ]


QUERY_S = 5.0  #: as long as `clutch doctor` waits for one
LATEST_S = 600.0  #: so often they are checked for a system that only watches
SHARE = 5  #: an answer serves so many times as long as its check took, so that a large database mostly rests


class InvariantReport:
    """Checks the invariants of the stored data. Each is a query over whole tables, so there is one check at a time:
    callers that come meanwhile, and shortly after it, get the same answer."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tasks = BackgroundTasks()
        self._waiting = 0
        self._checking: asyncio.Task[objects.Invariants] | None = None
        self._kept: objects.Invariants | None = None
        self._checked_at = self._kept_until = 0.0

    async def close(self) -> None:
        await self._tasks.close()

    async def current(self) -> objects.Invariants:
        if self._kept is not None and time.monotonic() < self._kept_until:
            return self._kept
        if self._checking is None:
            self._checking = self._tasks.call(self._check(), "invariants")
            self._checking.add_done_callback(self._end)
        checking = self._checking
        self._waiting += 1
        try:
            return await asyncio.shield(checking)
        finally:
            self._waiting -= 1
            if not self._waiting:  # every caller has gone; the next one begins a check of its own
                checking.cancel()
                self._checking = None

    def latest(self) -> tuple[int, float] | None:
        """Return how many were broken at the last check, and its age in seconds; None: there is none yet.

        An old check is repeated in the background, so that the next caller has a newer one."""
        age_s = time.monotonic() - self._checked_at
        if self._checking is None and (self._kept is None or age_s > LATEST_S):
            self._tasks.start(self.current(), "invariants-latest")
        if self._kept is None:
            return None
        return sum(one["state"] == "violated" for one in self._kept["invariants"]), age_s

    def _end(self, checking: asyncio.Task[objects.Invariants]) -> None:
        if self._checking is checking:
            self._checking = None
        if not checking.cancelled() and checking.exception() is None:
            self._kept, self._checked_at = checking.result(), time.monotonic()
            self._kept_until = time.monotonic() + SHARE * self._kept["tookSeconds"]

    async def _check(self) -> objects.Invariants:
        services, began, found = self._services, time.monotonic(), []
        for query in standing(is_served=True, is_sqlite=services.lives is None):
            examples: list[str] | None = None
            try:
                async with asyncio.timeout(QUERY_S):  # the database ends the query, too
                    examples = await services.db.read(broken, query)
            except (TimeoutError, StoreError):
                pass  # it is listed as not checked
            found.append(checked(query, examples))
        return invariants(services.now(), time.monotonic() - began, found)


def invariants(now: float, took_s: float, checks: Sequence[InvariantCheck]) -> objects.Invariants:
    return {
        "checkedAt": views.moment(now),
        "tookSeconds": round(took_s, 3),
        "invariants": [
            {
                "invariant": one.query.invariant,
                "promise": one.query.promise,
                "state": one.state,
                "examples": list(one.examples),
            }
            for one in checks
        ],
    }


def _provider(name: str, limit: ProviderLimit) -> objects.ProviderLimitObject:
    return {
        "provider": name,
        "inUse": limit.in_use,
        "concurrencyMax": limit.concurrency_max,
        "waiting": limit.waiting,
        "tokensPerMinute": limit.tokens_per_minute,
        "tokensBooked": limit.tokens_booked,
        "secondsBetweenCalls": round(limit.gap_s, 3),
        "closed": None if limit.closed is None else _hold(limit.closed),
        "breaker": None if limit.breaker is None else _breaker(limit.breaker),
    }


def _hold(hold: ProviderHold | Breaker) -> objects.ProviderHoldObject:
    """The text of a provider may repeat what was sent to it."""
    reason = redact(f"{hold.failure.trouble}: {hold.failure.text}").text
    return {"until": views.moment(hold.until), "reason": reason}


def _breaker(breaker: Breaker) -> objects.BreakerObject:
    return {**_hold(breaker), "times": breaker.times, "isProbing": breaker.is_probing}


def _config(found: ConfigReport) -> objects.ConfigObject:
    return {
        "file": found.file,
        "exists": found.exists,
        "settings": [
            {"key": one.key, "value": one.value, "default": one.default, "needsRestart": one.needs_restart}
            for one in found.settings
        ],
        "findings": [
            {
                "key": one.key,
                "state": one.state.value,
                "detail": one.detail,
                "inForce": one.in_force,
                "inFile": one.in_file,
                "remedy": one.remedy,
            }
            for one in found.findings
        ],
        "fromProgram": list(found.from_program),
    }
