"""The one place that chooses adapters and starts them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload
from urllib.parse import urlsplit

from clutch.channels.hooks import Hooks
from clutch.channels.hooks import Webhook as Webhook
from clutch.config.given import Given
from clutch.config.settings import Settings
from clutch.core.admission import OWN_RUNTIME
from clutch.core.agents import Agent
from clutch.core.checks import check_argument, shown
from clutch.core.heartbeat import CHECKLIST
from clutch.core.pacing import Bounds
from clutch.core.policy import Policy
from clutch.core.shown import typed
from clutch.engine.bus import Bus
from clutch.engine.context import Documents, Surroundings
from clutch.engine.courier import Courier
from clutch.engine.dispatcher import Worker
from clutch.engine.ids import BlockIds
from clutch.engine.insisting import surely
from clutch.engine.kit import Kit
from clutch.errors import ClutchError, GatewayInUse, InvalidInput, StateDirectoryInUse
from clutch.gateway import local
from clutch.gateway.api import Api
from clutch.gateway.doors import Doors
from clutch.gateway.local import Gateway
from clutch.looking import DATABASE_FILE as DATABASE_FILE
from clutch.models.evidence import findings_of as findings_of
from clutch.models.library import LibraryModels
from clutch.models.offline import OfflineModel, watchable_latency
from clutch.models.prices import ListedPrices, preload
from clutch.models.router import OFFLINE, Router
from clutch.models.settings import AdapterKind as AdapterKind
from clutch.models.settings import Provider as Provider
from clutch.models.throttle import Throttled
from clutch.ports import Channel, Clock, Lives, ModelRequest, Models, Runtime, Toolbox, ToolFailed
from clutch.protocol import heartbeat
from clutch.protocol.hooks import CHANNEL as HOOK_CHANNEL
from clutch.runtimes import acp as external
from clutch.runtimes.acp import AcpAgent as AcpAgent
from clutch.runtimes.function import Function, FunctionRuntime
from clutch.store.door import Door
from clutch.store.sqlite import SqliteStore
from clutch.store.state_directory import StateDirectory, private
from clutch.surfaces import address
from clutch.surfaces.address import default_state_directory as default_state_directory
from clutch.surfaces.client import connect
from clutch.surfaces.serving import serving
from clutch.tools.box import Flags
from clutch.tools.mcp import McpServer as McpServer
from clutch.tools.rooms import ToolRooms
from clutch.tools.rooms import ToolSettings as ToolSettings
from clutch.tools.sandbox.box import Sandbox as Sandbox
from clutch.tools.sandbox.probe import walls
from clutch.tools.sandbox.programs import BoxedPrograms
from clutch.tools.task_files import LocalTaskFiles
from clutch.tools.workspaces import LocalWorkspaces

if TYPE_CHECKING:
    from clutch.config.reloading import Reloaded

WORKSPACES = "workspaces"  #: in the state directory: those of isolated children
TASKS = "tasks"  #: ... and the files given to children and handed over by them
ACP = "acp"  #: ... and which sessions of external agents are whose; also the name of their runtime
OWN_RUNTIMES = (OWN_RUNTIME, "agent", ACP)  #: names with a meaning of their own
RUNTIME_CHARS_MAX = 64
CHILDREN_MANY = 20
NO_CHANNELS: Mapping[str, Channel] = MappingProxyType({})
NO_RUNTIMES: Mapping[str, Runtime] = MappingProxyType({})

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound=Function)


class SystemClock:
    def now(self) -> float:
        return time.time()


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
    """SQLite in the state directory, owned by this process alone; or a PostgreSQL shared by many.

    `channels` by the name that routes begin with; what is meant for another one waits in the outbox.
    `hooks`: whoever is registered when it starts."""
    clock = clock or SystemClock()
    policy = policy or Policy()
    if hooks is not None:
        hooks.add_installed()
        policy = replace(policy, hooks=hooks.names)
        channels = {**channels, HOOK_CHANNEL: hooks} if hooks.names else channels
    async with AsyncExitStack() as stack:
        door, lives = await _open_store(stack, state, database, clock, policy)
        home = default_state_directory() if state is None else Path(state)
        await asyncio.to_thread(home.mkdir, 0o700, parents=True, exist_ok=True)
        router = None if models else Router(providers, offline=OfflineModel(), library=LibraryModels)
        if router is not None:
            stack.push_async_callback(router.aclose)
            models = await _limited(router, providers, policy, clock)
        assert models is not None
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
            prices=ListedPrices({one.name: one.context_window for one in providers if one.context_window}),
            surroundings=_surroundings(door, policy),
            checklists=Documents(policy.context.document_bytes_max, CHECKLIST),
            runtimes=runtimes,
            hooks=hooks,
            channels=channels,
            workspaces=LocalWorkspaces(_place_of(home, WORKSPACES, database), is_boxed=is_boxed),
            files=LocalTaskFiles(_place_of(home, TASKS, database)),
            lives=lives,
            refresh=rooms.ready if rooms is not None and rooms.has_servers else None,
            prepare=router.prepare if router is not None else None,
            check_model=None if router is None else router.check,
        )
        worker = Worker(kit, clock, has_leases=database is not None)
        await stack.enter_async_context(_at_work(worker, channels))
        yield Engine(door, kit, worker, clock)


@asynccontextmanager
async def _at_work(worker: Worker, channels: Mapping[str, Channel]) -> AsyncIterator[None]:
    """From the moment it is registered until everything it held is handed over."""
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run())
        await worker.ready.wait()
        couriers = [Courier(worker, name, channel) for name, channel in channels.items()]
        for courier in couriers:
            courier.start(group)
        try:
            yield
        finally:
            for courier in couriers:
                await courier.stop()
            await worker.stop()


def _surroundings(door: Door, policy: Policy) -> Surroundings:
    return Surroundings(door, policy.context, Documents(policy.context.document_bytes_max), policy.agents)


def _place_of(home: Path, what: str, database: str | None) -> Path:
    """Numbers of tasks are a database's own; what two databases call 17 must not be one directory."""
    if database is None:
        return home / what
    parts = urlsplit(database)
    place = f"{parts.hostname}:{parts.port}{parts.path}?{parts.query}"
    return home / what / hashlib.sha256(place.encode()).hexdigest()[:16]


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


def _check_models(policy: Policy, check: Callable[[str], None]) -> None:
    for where, model in _models(policy):
        try:
            check(model)
        except InvalidInput as error:
            raise InvalidInput(where, error.rule) from error


def config_warnings(settings: Settings) -> list[str]:
    """What is allowed and yet probably not meant; and models that nobody here could ask."""
    router = Router(settings.providers, offline=OfflineModel(), library=LibraryModels)
    found = []
    if settings.policy.limits.children_max > CHILDREN_MANY:
        found.append(f"maxChildrenPerAgent is above {CHILDREN_MANY}: more than a model keeps in mind")
    for where, model in _models(settings.policy):
        try:
            router.check(model)
        except InvalidInput as error:
            found.append(f"{where}: {error.rule}")
    return found


async def _limited(router: Router, providers: Sequence[Provider], policy: Policy, clock: Clock) -> Models:
    """Everything that asks a model goes through one limiter per provider. Raises InvalidInput naming the remedy."""
    _check_models(policy, router.check)
    if {model for _, model in _models(policy)} != {OFFLINE}:
        await asyncio.to_thread(preload)  # the price list takes a third of a second
    bounds = {
        one.name: Bounds(concurrency_max=one.concurrency_max, tokens_per_minute=one.tokens_per_minute)
        for one in providers
    }
    return Throttled(router, clock, bounds, known=router.knows)


async def _open_store(
    stack: AsyncExitStack, state: Path | str | None, database: str | None, clock: Clock, policy: Policy
) -> tuple[Door, Lives | None]:
    if database is not None:
        from clutch.store.postgres import PostgresStore  # an optional dependency
        from clutch.store.postgres_link import PostgresSettings

        # A worker frozen inside a transaction must have lost its row locks before others take over.
        within_lease = 0.8 * policy.work.lease_s
        settings = PostgresSettings(idle_in_transaction_s=within_lease, transaction_s=within_lease)
        store = await stack.enter_async_context(PostgresStore(database, clock, settings=settings))
        return store, store.lives
    home = StateDirectory(default_state_directory() if state is None else state)
    try:
        directory = stack.enter_context(home)
    except StateDirectoryInUse as error:
        raise _owned_by(home.path, error) from error
    return await stack.enter_async_context(SqliteStore(directory.path / DATABASE_FILE, clock)), None


@asynccontextmanager
async def opened_store(state: Path | str | None = None, database: str | None = None) -> AsyncIterator[Door]:
    """The store alone, with nobody at work. On SQLite this process owns it for as long."""
    async with AsyncExitStack() as stack:
        door, _ = await _open_store(stack, state, database, SystemClock(), Policy())
        yield door


def _check_arguments(given: Mapping[str, tuple[object, Any]]) -> None:
    for name, (value, kind) in given.items():
        check_argument(name, value, kind)


def _check_parts(models: object, tools: object, providers: object) -> None:
    """What takes the place of our own parts must look like them."""
    if models is not None and not callable(getattr(models, "ask", None)):
        rule = 'must have `async def ask(request, on_delta)`; a model is named by model="provider:model"'
        raise InvalidInput("models", rule)
    if tools is not None and not callable(getattr(tools, "specs", None)):
        raise InvalidInput(
            "tools", "must be a toolbox with `specs` and `run`; functions are added by @c.tool"
        )
    if not isinstance(providers, Sequence) or not all(isinstance(one, Provider) for one in providers):
        raise InvalidInput("providers", f"must be a list of Provider(…), not {shown(providers)}")


def external_agents(given: Sequence[str | AcpAgent], home: Path) -> dict[str, Runtime]:
    """By the names a spawn calls them: `acp:NAME` each, and `acp` for the first."""
    boxes = BoxedPrograms(hidden=(str(home),))
    found: dict[str, Runtime] = {
        f"{ACP}:{agent.name}": external.AcpRuntime(agent, home / ACP, boxes)
        for agent in external.chosen(given)
    }
    return ({ACP: next(iter(found.values()))} if found else {}) | found


def _owned_by(home: Path, error: StateDirectoryInUse) -> StateDirectoryInUse:
    """Whoever owns it can be asked to do what this process wanted."""
    found = address.find(home)
    if found is None:
        return error
    remedy = typed("ps", state=address.named_state(home))
    return StateDirectoryInUse(
        f"{home} is owned by the gateway at {found.url} (pid {found.pid}); talk to it with "
        f"`{remedy}`, stop it, or use another state directory",
        remedy,
    )


class Clutch(Api):
    """Clutch inside your own program; the work goes on where it was when the program starts again.

    Without `state` the directory of `default_state_directory`; `database` names a PostgreSQL instead.
    `workspace` is where the file tools of new sessions work. `model` is `provider:model`, and without it the
    scripted offline one; `providers` are endpoints of your own; `agents` are those that differ from the others.
    `settings`: sandbox, network and MCP servers of the tools. `models` and `tools` take the place of all of that.

    Where a gateway owns the state directory already, this becomes its client: the same methods, done over there.
    `embedded=True` is an error then; `Clutch.connect(state)` is never anything else.

    While it is open, `clutch ps`, `clutch steer` … in another terminal reach it on loopback, with the token in
    the state directory; `serve=False` keeps that door shut. `port`: 0 = any free one. On PostgreSQL the door is
    open when `state` is given. `hooks`: webhooks that hear of subagents; functions are added with `@c.hook(name)`.
    `acp`: external agents that children may be, by name or as `AcpAgent` (`docs/acp.md`).

    `config`: a `clutch.json`; without it the one in the state directory, if there is one. What is given here wins
    over what it says: a `policy` or `settings` as a whole, agents and providers one by one."""

    def __init__(
        self,
        *,
        state: Path | str | None = None,
        database: str | None = None,
        policy: Policy | None = None,
        models: Models | None = None,
        tools: Toolbox | None = None,
        channels: Mapping[str, Channel] = NO_CHANNELS,
        workspace: Path | str | None = None,
        model: str | None = None,
        providers: Sequence[Provider] = (),
        settings: ToolSettings | None = None,
        agents: Sequence[Agent] = (),
        serve: bool = True,
        port: int | None = None,
        hooks: Sequence[Webhook] = (),
        config: Path | str | None = None,
        acp: Sequence[str | AcpAgent] = (),
        embedded: bool | None = None,
    ) -> None:
        _check_arguments(
            {
                "state": (state, Path | str | None),
                "database": (database, str | None),
                "policy": (policy, Policy | None),
                "workspace": (workspace, Path | str | None),
                "model": (model, str | None),
                "settings": (settings, ToolSettings | None),
                "serve": (serve, bool),
                "port": (port, int | None),
                "config": (config, Path | str | None),
                "embedded": (embedded, bool | None),
            }
        )
        _check_parts(models, tools, providers)
        home = default_state_directory() if state is None else Path(state)
        self._given = Given(home, config, policy, model, workspace, tuple(agents))
        said = self._given.settings = self._given.load()
        database = said.database if database is None else database
        self._served = home if serve and (database is None or state is not None) else None
        self._port = said.port if port is None else port
        self._can_share = database is not None
        known = {one.name: one for one in (*said.providers, *providers)}
        providers = tuple(known.values())
        self.policy = policy = self._given.policy(said)
        self._rooms = ToolRooms(policy.limits, settings or said.tools, home) if tools is None else None
        self._runtimes = external_agents(acp or said.acp, home)
        self._hooks = Hooks((*said.hooks, *hooks))
        opening = running_engine(
            state=state,
            database=database,
            policy=policy,
            models=models,
            toolbox=tools or self._rooms,
            channels=channels,
            providers=providers,
            runtimes=self._runtimes,
            hooks=self._hooks,
        )
        super().__init__(self._open)
        self._engine = opening
        self.url: str | None = None  #: where it is served, while it is
        self.is_client = False  #: another process does the work; this one asks it
        self._home, self._embedded = home, embedded
        parts = {"models": models, "tools": tools, "channels": channels or None}
        self._brought = {
            name for name, part in parts.items() if part is not None
        }  #: what cannot leave this process

    @classmethod
    def connect(cls, state: Path | str | None = None) -> Self:
        """A client of the gateway that owns the state directory, and nothing else. Raises NoGateway on entering."""
        return cls(state=state, embedded=False)

    async def _open(self, stack: AsyncExitStack) -> Doors:
        """Here or elsewhere: decided now, and nobody asks again."""
        if self._embedded is False:
            return await self._elsewhere(stack)
        try:
            gateway = await local.opened(stack, self._engine, self.leaving)
        except StateDirectoryInUse as error:
            self._check_can_be_client(error)
            return await self._elsewhere(stack)
        if self._served is not None:
            await self._serve(stack, gateway, self._served)
        return gateway

    def config_stamp(self) -> tuple[int, ...] | None:
        """Another one when the file of the config is another one."""
        return self._given.stamp()

    async def reload(self) -> Reloaded:
        """Read the config again. Runs under way end as they began; whoever starts next has the new settings.

        Raises InvalidInput, and everything stays as it was."""
        from clutch.config.reloading import merged

        found = merged(self._given.settings, self._given.load())
        kit, policy = self.kit, self._given.policy(found.settings)
        if kit.check_model is not None:
            _check_models(policy, kit.check_model)
        self._given.settings = found.settings
        boxed = replace(policy.defaults, sandbox=kit.policy.defaults.sandbox)
        self.policy = kit.policy = replace(policy, defaults=boxed, hooks=kit.policy.hooks)
        kit.surroundings = _surroundings(kit.door, policy)
        await surely(policy.work.tick_s, lambda: kit.door.alone(heartbeat.arm, policy))
        return found

    def _check_can_be_client(self, error: StateDirectoryInUse) -> None:
        """Functions do not travel: what this program brought along would never be called by the other one."""
        if self._embedded or address.find(self._home) is None:
            raise error
        if self._brought:
            brought = ", ".join(sorted(self._brought))
            raise StateDirectoryInUse(f"{error}. As its client this program cannot bring along: {brought}")

    async def _elsewhere(self, stack: AsyncExitStack) -> Doors:
        from clutch.surfaces.remote import Remote

        found = connect(self._home).address
        doors = await stack.enter_async_context(Remote(self._home).open())
        self.is_client, self.url = True, found.url
        log.warning(
            "%s is owned by the gateway at %s (pid %d): this program is its client; model, policy and workspace are"
            " those of the gateway",
            self._home,
            found.url,
            found.pid,
        )
        return doors

    async def _serve(self, stack: AsyncExitStack, gateway: Gateway, home: Path) -> None:
        """A door that nobody asked for by its number is no reason to stop."""
        try:
            found = await stack.enter_async_context(serving(gateway, home, self._port))
        except (GatewayInUse, InvalidInput) as error:
            if self._port or (isinstance(error, GatewayInUse) and not self._can_share):
                raise
            log.warning("not reachable from other terminals: %s", error)
            return
        self.url = found.url

    @overload
    def tool(self, function: F) -> F: ...

    @overload
    def tool(self, *, name: str | None = None, **flags: Unpack[Flags]) -> Callable[[F], F]: ...

    def tool(
        self, function: F | None = None, *, name: str | None = None, **flags: Unpack[Flags]
    ) -> F | Callable[[F], F]:
        """Makes the function below it a tool of every agent here: typed parameters and a docstring are all."""
        if self._rooms is None:
            raise ClutchError("this Clutch was given its own tools; add the function to those")
        if function is not None and not callable(function):
            raise InvalidInput("tool", f"write @c.tool above a function, or @c.tool(name={shown(function)})")
        self._brought.add("@c.tool")
        register = self._rooms.tools.tool(name=name, **flags)
        return register if function is None else register(function)

    def hook(self, name: str) -> Callable[[F], F]:
        """The function below it hears of this moment in a subagent's life, or is asked about it (`docs/hooks.md`)."""
        if self._was_entered:
            raise ClutchError(
                "hooks are registered before `async with`: what nobody listens to is not even written"
            )

        def register(function: F) -> F:
            self._hooks.add(name, function)
            self._brought.add("@c.hook")
            return function

        return register

    def runtime(self, name: str) -> Callable[[R], R]:
        """Makes the async function below it a way to work: `spawn(..., runtime=name)`."""
        given: object = name
        if not isinstance(given, str) or not 0 < len(given) <= RUNTIME_CHARS_MAX:
            raise InvalidInput(
                "runtime", f'needs a name of at most {RUNTIME_CHARS_MAX}: @c.runtime("crawler")'
            )
        if name in (*OWN_RUNTIMES, *self._runtimes) or name.startswith(f"{ACP}:"):
            raise InvalidInput(f"runtime {name!r}", "there is already one of this name; choose another")

        def register(function: R) -> R:
            self._brought.add("@c.runtime")
            self._runtimes[name] = FunctionRuntime(function)
            return function

        return register


def offline_model(latency: Callable[[ModelRequest], float] = watchable_latency) -> Models:
    """A script, not an LLM. `latency`: seconds each call takes."""
    return OfflineModel(latency)


@asynccontextmanager
async def standard_toolbox(policy: Policy, state: Path, *, boxed: bool = True) -> AsyncIterator[Toolbox]:
    """The built-in tools, closed at the end."""
    rooms = ToolRooms(policy.limits, ToolSettings(sandbox=Sandbox.ON if boxed else Sandbox.OFF), state)
    try:
        yield rooms
    finally:
        await rooms.close()


@dataclass(frozen=True, slots=True)
class SandboxOffer:
    is_ok: bool
    detail: str
    remedy: str | None


def make_private(state: Path) -> None:
    """For whoever mends it. Raises UnsafeStateDirectory: a folder that is not ours is not ours to change."""
    with private(state):
        pass


def sandbox_offer() -> SandboxOffer:
    """What this machine has to wall off commands and file tools. Starts a process."""
    try:
        return SandboxOffer(True, f"{walls(Sandbox.ON, for_shell=True)} holds commands and file tools", None)
    except ToolFailed as error:
        detail, _, remedy = str(error).partition(". ")
        return SandboxOffer(False, detail, remedy)


def can_box_files() -> bool:
    """Whether this machine has anything that can wall off the file tools."""
    try:
        walls(Sandbox.ON, for_shell=False)
    except ToolFailed:
        return False
    return True
