"""An engine at work, from its store up: what is built in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from clutch.channels.hooks import Hooks
from clutch.core.heartbeat import CHECKLIST
from clutch.core.policy import Policy
from clutch.engine.bus import Bus
from clutch.engine.context import Documents, Surroundings
from clutch.engine.courier import work
from clutch.engine.dispatcher import Worker
from clutch.engine.ids import BlockIds
from clutch.engine.kit import Kit
from clutch.engine.pinning import StoredPins
from clutch.models.settings import Provider
from clutch.ports import Channel, Clock, Models, Runtime, Toolbox
from clutch.protocol.hooks import CHANNEL as HOOK_CHANNEL
from clutch.store.door import Door
from clutch.tools.rooms import ToolRooms, ToolSettings
from clutch.tools.task_files import LocalTaskFiles
from clutch.tools.workspaces import LocalWorkspaces
from clutch.wiring.models import open_models, prices_of
from clutch.wiring.store import SystemClock, home_of, open_store, place_of

WORKSPACES = "workspaces"  #: in the state directory: those of isolated children
TASKS = "tasks"  #: ... and the files given to children and handed over by them
NO_CHANNELS: Mapping[str, Channel] = MappingProxyType({})
NO_RUNTIMES: Mapping[str, Runtime] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Engine:
    """A running worker and the door to its store."""

    door: Door
    kit: Kit
    worker: Worker
    clock: Clock


@asynccontextmanager
async def running_engine(
    *,
    state: Path | str | None = None,
    database: str | None = None,
    policy: Policy | None = None,
    models: Models | None = None,
    toolbox: Toolbox | None = None,
    channels: Mapping[str, Channel] = NO_CHANNELS,
    clock: Clock | None = None,
    providers: Sequence[Provider] = (),
    runtimes: Mapping[str, Runtime] = NO_RUNTIMES,
    hooks: Hooks | None = None,
) -> AsyncIterator[Engine]:
    """`channels` by the name that routes begin with; what is meant for another one waits in the outbox.
    `hooks`: whoever is registered when it starts. `models` and `toolbox` take the place of our own."""
    clock, policy, home, router = clock or SystemClock(), policy or Policy(), home_of(state), None
    if hooks is not None:
        policy, channels = _hooked(hooks, policy, channels)
    async with AsyncExitStack() as stack:
        door, lives = await open_store(stack, home, database, clock, policy)
        await asyncio.to_thread(home.mkdir, 0o700, parents=True, exist_ok=True)
        if models is None:
            models, router = await open_models(stack, providers, policy, clock)
        tools = toolbox or ToolRooms(policy.limits, ToolSettings(), home)
        rooms = tools if isinstance(tools, ToolRooms) else None
        if rooms is not None:
            stack.push_async_callback(rooms.close)
        is_boxed = rooms is not None and rooms.is_boxed
        policy = replace(policy, defaults=replace(policy.defaults, sandbox=is_boxed))
        kit = Kit(
            door=door,
            models=models,
            toolbox=tools,
            policy=policy,
            ids=BlockIds(),
            bus=Bus(),
            prices=prices_of(providers),
            surroundings=surroundings(door, policy),
            checklists=Documents(policy.context.document_bytes_max, CHECKLIST),
            runtimes=runtimes,
            hooks=hooks,
            channels=channels,
            workspaces=LocalWorkspaces(place_of(home, WORKSPACES, database), is_boxed=is_boxed),
            files=LocalTaskFiles(place_of(home, TASKS, database)),
            lives=lives,
            refresh=rooms.ready if rooms is not None and rooms.has_servers else None,
            prepare=None if router is None else router.prepare,
            check_model=None if router is None else router.check,
        )
        if rooms is not None and rooms.has_servers:
            await rooms.open(StoredPins(kit))
        worker = Worker(kit, clock, has_leases=database is not None)
        await stack.enter_async_context(_at_work(worker, channels))
        yield Engine(door, kit, worker, clock)


def _hooked(
    hooks: Hooks, policy: Policy, channels: Mapping[str, Channel]
) -> tuple[Policy, Mapping[str, Channel]]:
    hooks.add_installed()
    known = {**channels, HOOK_CHANNEL: hooks} if hooks.names else channels
    return replace(policy, hooks=hooks.names), known


@asynccontextmanager
async def _at_work(worker: Worker, channels: Mapping[str, Channel]) -> AsyncIterator[None]:
    """From the moment it is registered until everything it held is handed over."""
    async with asyncio.TaskGroup() as group:
        group.create_task(work(worker, channels))
        await worker.ready.wait()
        try:
            yield
        finally:
            await worker.stop()


def surroundings(door: Door, policy: Policy) -> Surroundings:
    return Surroundings(door, policy.context, Documents(policy.context.document_bytes_max), policy.agents)
