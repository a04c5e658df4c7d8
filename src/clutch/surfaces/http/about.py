"""The gateway itself: is it well, what has it used, which agents does it know."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Annotated

from pydantic import Field

from clutch import __version__
from clutch.core.agents import MAIN
from clutch.core.authority import Scope
from clutch.core.policy import Policy
from clutch.gateway import objects
from clutch.protocol import health, spending
from clutch.protocol.spending import By
from clutch.surfaces.http import answers
from clutch.surfaces.http.bodies import Body, Query
from clutch.surfaces.http.routes import Ask, Entry, Reply


async def healthy(ask: Ask[Body, Query]) -> Reply:
    kit, leaving = ask.house.gateway.kit, ask.house.gateway.leaving
    is_ending = kit.stopping.is_set() or (leaving is not None and leaving.is_draining)
    found = await ask.house.reads(health.health)
    return Reply(
        {
            "status": "draining" if is_ending else "ok",
            "version": __version__,
            "schema": found.schema,
            "database": "sqlite" if kit.lives is None else "postgresql",
            "workers": found.workers,
            "running": found.running,
            "queued": found.queued,
            "undelivered": found.undelivered,
            "pulses": {
                name: {"at": objects.moment(beat.at), "everySeconds": beat.period_s}
                for name, beat in kit.pulses.beats.items()
            },
        }
    )


class UsageQuery(Query):
    by: By = By.ROOT


async def usage(ask: Ask[Body, UsageQuery]) -> Reply:
    return Reply(objects.spending(ask.query.by, await ask.house.reads(spending.spending, ask.query.by)))


async def agents(ask: Ask[Body, Query]) -> Reply:
    policy = ask.house.gateway.kit.policy
    return Reply({"agents": [_agent(policy, name) for name in sorted({MAIN, *policy.agents})]})


def _agent(policy: Policy, name: str) -> dict[str, object]:
    model = policy.agents[name].model if name in policy.agents else None
    return {"agentId": name, "model": model or policy.defaults.model, "workspace": policy.workspace_of(name)}


class Sweeping(Body):
    dry_run: Annotated[bool, Field(alias="dryRun")] = True


async def sweep(ask: Ask[Sweeping, Query]) -> Reply:
    return Reply(await ask.house.desk.sweep(is_dry=ask.body.dry_run))


async def openapi(ask: Ask[Body, Query]) -> Reply:
    """All of this, for programs that read it."""
    del ask
    return Reply(await asyncio.to_thread(_document))


@cache
def _document() -> dict[str, object]:
    from clutch.surfaces.http.app import ENTRIES as EVERY
    from clutch.surfaces.http.openapi import document

    return document(EVERY)


ENTRIES = (
    Entry("GET", "/v1/openapi.json", Scope.READ, openapi, answer=answers.Document),
    Entry("GET", "/v1/health", Scope.READ, healthy, answer=answers.Health),
    Entry("GET", "/v1/usage", Scope.READ, usage, query=UsageQuery, answer=answers.Spending),
    Entry("GET", "/v1/agents", Scope.READ, agents, answer=answers.Agents),
    Entry("POST", "/v1/gc", Scope.ADMIN, sweep, Sweeping, answer=answers.Swept),
)
