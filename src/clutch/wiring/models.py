"""Who answers: the endpoints a program or its config names, each behind a limiter; without any, the offline script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack

from clutch.config.settings import Settings
from clutch.core import routes
from clutch.core.heartbeat import LAST, NOBODY
from clutch.core.pacing import Bounds
from clutch.core.policy import Policy
from clutch.core.routes import COUNTER
from clutch.errors import InvalidInput
from clutch.models.library import LibraryModels
from clutch.models.offline import OfflineModel, watchable_latency
from clutch.models.prices import ListedPrices, preload
from clutch.models.router import OFFLINE, Router
from clutch.models.settings import Provider
from clutch.models.throttle import Throttled
from clutch.ports import Clock, ModelRequest, Models

CHILDREN_MANY = 20


def _router(providers: Sequence[Provider], policy: Policy) -> Router:
    idle_s = policy.life.provider_idle_s
    return Router(providers, offline=OfflineModel(), library=LibraryModels, idle_s=idle_s)


async def open_models(
    stack: AsyncExitStack, providers: Sequence[Provider], policy: Policy, clock: Clock
) -> tuple[Models, Router]:
    """Everything that asks a model goes through one limiter per provider. Raises InvalidInput naming the remedy."""
    router = _router(providers, policy)
    stack.push_async_callback(router.aclose)
    check_models(policy, router.check)
    if {model for _, model in _models(policy)} != {OFFLINE}:
        await asyncio.to_thread(preload)  # the price list takes a third of a second
    bounds = {
        one.name: Bounds(concurrency_max=one.concurrency_max, tokens_per_minute=one.tokens_per_minute)
        for one in providers
    }
    return Throttled(router, clock, bounds, known=router.knows), router


def prices_of(providers: Sequence[Provider]) -> ListedPrices:
    return ListedPrices({one.name: one.context_window for one in providers if one.context_window})


def _models(policy: Policy) -> Iterator[tuple[str, str]]:
    """Every model the settings name, and where they name it."""
    yield "model", policy.defaults.model
    named = [("defaults.subagents", policy.defaults.subagents.model)]
    for agent in policy.agents.values():
        named += [
            (f"agent {agent.id!r}", agent.model),
            (f"agent {agent.id!r}, subagents", agent.subagents.model),
        ]
    yield from ((f"{where}, model", model) for where, model in named if model is not None)


def _wrong_models(policy: Policy, check: Callable[[str], None]) -> Iterator[InvalidInput]:
    for where, model in _models(policy):
        try:
            check(model)
        except InvalidInput as error:
            yield InvalidInput(where, error.rule)


def check_models(policy: Policy, check: Callable[[str], None]) -> None:
    for wrong in _wrong_models(policy, check):
        raise wrong


def config_warnings(settings: Settings) -> list[str]:
    """What is allowed and yet probably not meant; models that nobody here could ask, people that nobody could reach."""
    router = _router(settings.providers, settings.policy)
    found = [str(wrong) for wrong in _wrong_models(settings.policy, router.check)]
    if settings.policy.limits.children_max > CHILDREN_MANY:
        found.insert(0, f"maxChildrenPerAgent is above {CHILDREN_MANY}: more than a model keeps in mind")
    lacking = settings.listening.lacks()
    return [*found, *_heartbeats(settings), *([] if lacking is None else [str(lacking)])]


def _heartbeats(settings: Settings) -> Iterator[str]:
    policy, known = settings.policy, {COUNTER, *(one.name for one in settings.channels)}
    if policy.defaults.heartbeat is not None and not policy.agents:
        yield 'agents.defaults.heartbeat is of listed agents, and none is listed: add agents.list: [{id: "main"}]'
    for name in policy.agents:
        beat = policy.heartbeat_of(name)
        if beat is None or beat.target in (LAST, NOBODY):
            continue
        if (channel := routes.from_text(beat.target).channel) not in known:
            yield f"agent {name!r}, heartbeat.target: there is no channels.{channel}, so nobody would hear it"


def offline_model(latency: Callable[[ModelRequest], float] = watchable_latency) -> Models:
    """A script, not an LLM. `latency`: seconds each call takes."""
    return OfflineModel(latency)
