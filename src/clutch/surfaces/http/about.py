"""The gateway itself: is it well, what does it do."""

from __future__ import annotations

from clutch import __version__
from clutch.core.authority import Scope
from clutch.protocol import health
from clutch.surfaces.http.bodies import Body, Query
from clutch.surfaces.http.routes import Ask, Entry, Reply


async def healthy(ask: Ask[Body, Query]) -> Reply:
    kit = ask.house.gateway.kit
    found = await ask.house.reads(health.health)
    return Reply(
        {
            "status": "draining" if kit.stopping.is_set() else "ok",
            "version": __version__,
            "schema": found.schema,
            "database": "sqlite" if kit.lives is None else "postgresql",
            "workers": found.workers,
            "running": found.running,
            "queued": found.queued,
            "undelivered": found.undelivered,
        }
    )


ENTRIES = (Entry("GET", "/v1/health", Scope.READ, healthy),)
