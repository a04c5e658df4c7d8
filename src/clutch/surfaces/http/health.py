"""The paths about the gateway as a whole: whether it is well, what it is made of, its invariants, and what it costs."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field

from clutch import __version__
from clutch.api import costs, reads, report_objects, views
from clutch.api import health as health_api
from clutch.api.actions import ActionBody
from clutch.api.costs import HOURS_MAX, CostQuery
from clutch.api.health import ProcessFacts
from clutch.api.problems import Problem
from clutch.core.agents import MAIN
from clutch.core.authority import Scope
from clutch.core.costs import OFFSET_MINUTES_MAX
from clutch.core.views import node_named
from clutch.errors import InvalidInput
from clutch.surfaces.http.routes import Ask, Body, Query, Reply, route
from clutch.transactions import workers
from clutch.transactions.read import lists
from clutch.transactions.read import status as health_reads
from clutch.transactions.read.costs import By

DATABASE_S = 2.0  #: a health check reports a database that does not answer


@route("GET", "/v1/health", answer=report_objects.Health)
async def healthy(ask: Ask) -> Reply[report_objects.HealthDocument]:
    """Whether the gateway is well: its version, its database, and how much is running, queued and undelivered."""
    services, leaving = ask.app.gateway.services, ask.app.gateway.leaving
    is_ending = services.stopping.is_set() or services.is_draining
    is_ending |= leaving is not None and leaving.is_draining
    try:
        async with asyncio.timeout(DATABASE_S):
            found = await ask.app.read(workers.health)
    except TimeoutError as error:
        raise Problem("unavailable", f"the database has not answered for {DATABASE_S:g} s") from error
    return Reply(
        {
            "status": "draining" if is_ending else "ok",
            "version": __version__,
            "schema": found.schema,
            "database": "sqlite" if services.lives is None else "postgresql",
            "workers": found.workers,
            "running": found.running,
            "queued": found.queued,
            "undelivered": found.undelivered,
            "model": None if services.check_model is None else services.policy.model_of(MAIN),
            "problems": views.problems(services.problems()),
            "pulses": {
                name: {"at": views.moment(beat.at), "everySeconds": beat.period_s}
                for name, beat in services.pulses.beats.items()
            },
        }
    )


@route("GET", "/v1/health/report")
async def health_report(ask: Ask) -> Reply[report_objects.HealthReport]:
    """The state of the gateway: process, workers, queues, provider limits, and what of the config is in force."""
    services = ask.app.gateway.services
    work = await ask.app.read(health_reads.state, services.lives is None)
    config = await asyncio.to_thread(services.config_report)  # reads the file
    process = ProcessFacts(__version__, os.getpid(), _memory_bytes())
    return Reply(health_api.report(services.now(), services, work, config, process))


def _memory_bytes() -> int:
    """Return the memory of this process; where the system does not say it, the most it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


@route("GET", "/v1/health/invariants")
async def invariant_checks(ask: Ask) -> Reply[report_objects.Invariants]:
    """Check the invariants of the stored data, the ones of `clutch doctor`. Each is a query over whole tables: there is
    one check at a time, and its answer serves other requests for five times as long as it took."""
    return Reply(await ask.app.invariants.current())


class UsageQuery(Query):
    by: By = By.ROOT
    hours: Annotated[float | None, Field(gt=0, le=HOURS_MAX)] = None
    utc_offset_minutes: Annotated[
        int, Field(alias="utcOffsetMinutes", ge=-OFFSET_MINUTES_MAX, le=OFFSET_MINUTES_MAX)
    ] = 0


@route("GET", "/v1/usage")
async def usage(ask: Ask[ActionBody, UsageQuery]) -> Reply[report_objects.Spending]:
    """Tokens and cost by root session, tree, agent, model or day; bars over time, budgets and the burn rate.

    `hours`: only the calls of so many hours up to now. `utcOffsetMinutes`: the time zone whose days and hours are
    counted, east of UTC; without it UTC."""
    query = ask.query
    asked = CostQuery(query.by, query.hours, query.utc_offset_minutes)
    return Reply(await ask.app.read(costs.spending, asked, ask.app.gateway.services.policy))


@route("GET", "/v1/nodes")
async def nodes(ask: Ask) -> Reply[report_objects.Nodes]:
    """The processes that share the database: version, lease, sessions, last heartbeat, and whether one is draining."""
    return Reply(await ask.app.read(reads.nodes, ask.app.gateway.services.worker_id))


class NodeDrain(Body):
    node: str  #: name, number or host
    undo: bool = False  #: back into service


@route("POST", "/v1/nodes/drain", Scope.ADMIN)
async def drain_node(ask: Ask[NodeDrain]) -> Reply[report_objects.Nodes]:
    """Take a node out of service: it claims nothing, and hands what it runs to the others. The process stays."""
    services = ask.app.gateway.services
    if services.lives is None:
        rule = "a gateway on SQLite is the only one of its state directory; `clutch drain` without a node stops it"
        raise InvalidInput("node", rule)
    meant = node_named(ask.body.node, await ask.app.read(lists.nodes))
    await services.db.alone(workers.drain, meant.id, not ask.body.undo)
    found = await ask.app.read(reads.nodes, services.worker_id)
    return Reply({**found, "nodes": [one for one in found["nodes"] if one["name"] == meant.name]})


ENTRIES = (healthy, health_report, invariant_checks, usage, nodes, drain_node)
