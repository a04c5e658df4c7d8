"""An engine at work, from its store up: what is built in which order."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

from clutch.blobs import FileStoreSettings, FleetBlobs, SizedBlobs, large_blobs
from clutch.channels import HookRegistry, PushChannel, new_key
from clutch.config.keys import Settings
from clutch.core import delivery
from clutch.core.agents import CHECKLIST, LAST, MAIN, NO_TARGET
from clutch.core.delivery import LOCAL_CHANNEL, PUSH_CHANNEL
from clutch.core.messages import Input
from clutch.core.policy import Policy
from clutch.core.rate_limit import Bounds
from clutch.core.text.format import typed
from clutch.engine.live import Bus
from clutch.engine.outbox import work
from clutch.engine.prompt import Documents, Surroundings
from clutch.engine.provider_limits import StoredLimits
from clutch.engine.services import BlockIds, Services, StoredPins, StoredSubscriptions, freeze_watch, surely
from clutch.engine.task_files import DatabaseBlobs, blob_identity
from clutch.engine.worker import Worker
from clutch.errors import ClutchError, InvalidInput, StateDirectoryInUse
from clutch.models.demo_model import OfflineModel, watchable_latency
from clutch.models.library import LibraryModels
from clutch.models.prices import ListedPrices, preload
from clutch.models.provider import Provider, TrialResult, trial_result
from clutch.models.rate_limiter import Throttled
from clutch.models.router import OFFLINE, Router
from clutch.observability import OtelSettings
from clutch.observability.exporter import exporting
from clutch.offline_reader import DATABASE_FILE
from clutch.ports import (
    Channel,
    Clock,
    Lives,
    ModelError,
    ModelRequest,
    Models,
    OperatorNotice,
    Runtime,
    Toolbox,
    ToolFailed,
)
from clutch.store.postgres_address import database_name, parse_address, written_name
from clutch.store.postgres_clock import DatabaseClock
from clutch.store.sqlite import SqliteStore
from clutch.store.state_directory import StateDirectory, mark, private
from clutch.store.transaction import Database
from clutch.surfaces import discovery
from clutch.surfaces.discovery import default_state_directory
from clutch.tools.addresses import is_public
from clutch.tools.child_workspaces import LocalWorkspaces
from clutch.tools.import_guard import GUARD
from clutch.tools.mcp import McpServer
from clutch.tools.mcp.server import diagnosed
from clutch.tools.mentions import WorkspaceMentions
from clutch.tools.registry import AllTools, ToolSettings
from clutch.tools.sandbox.lifetime import wait_until_hidden
from clutch.tools.sandbox.policy import Sandbox
from clutch.tools.sandbox.process import SandboxKind, sandbox_kind
from clutch.tools.sandbox.protected_files import COMMANDS, finish, is_settled, unread_instructions
from clutch.tools.shared_files import SharedSessionFiles, SharedTaskFiles, place_at
from clutch.tools.task_files import LocalResultFiles, LocalTaskFiles
from clutch.transactions import sessions
from clutch.transactions.outbox import CHANNEL as HOOK_CHANNEL
from clutch.transactions.read.move import check_open
from clutch.wiring.definitions import open_definitions

# --------------------------------------------------------------------------------------------------
# Where things are kept: SQLite in the state directory, owned by this process alone; or a PostgreSQL shared by many.


class SystemClock:
    now = staticmethod(time.time)


def clock_for(database: str | None) -> Clock:
    """One for all that share a database: that of the server, or of this machine alone."""
    return SystemClock() if database is None else DatabaseClock()


def home_of(state: Path | str | None) -> Path:
    return default_state_directory() if state is None else Path(state)


async def open_store(
    stack: AsyncExitStack,
    home: Path,
    database: str | None,
    clock: Clock,
    policy: Policy,
    *,
    stopping: asyncio.Event | None = None,
) -> tuple[Database, Lives | None]:
    """Open the database for work. Raises StoreMoved."""
    if database is not None:
        from clutch.store.postgres import PostgresStore  # an optional dependency
        from clutch.store.postgres_connection import PostgresSettings

        # A worker frozen inside a transaction must have lost its row locks before others take over.
        within_lease = 0.8 * policy.work.lease_s
        settings = PostgresSettings(idle_in_transaction_s=within_lease, transaction_s=within_lease)
        opening = PostgresStore(database, clock, settings=settings, stopping=stopping)
        store = await stack.enter_async_context(opening)
        await store.read(check_open)
        return store, store.lives
    file = await open_file(stack, home, clock)
    await file.read(check_open)
    return file, None


async def open_file(stack: AsyncExitStack, home: Path, clock: Clock) -> SqliteStore:
    """Own a state directory, and open the database in it."""
    try:
        directory = stack.enter_context(StateDirectory(home))
    except StateDirectoryInUse as error:
        raise _owned_by(home, error) from error
    await asyncio.to_thread(wait_until_hidden, home)
    return await stack.enter_async_context(SqliteStore(directory.path / DATABASE_FILE, clock))


def _owned_by(home: Path, error: StateDirectoryInUse) -> StateDirectoryInUse:
    """Name the gateway that owns the directory: it can be asked to do what this process wanted."""
    found = discovery.find(home)
    if found is None:
        return error
    remedy = typed("ps", state=discovery.named_state(home))
    return StateDirectoryInUse(
        f"{home} is owned by the gateway at {found.url} (pid {found.pid}); talk to it with "
        f"`{remedy}`, stop it, or use another state directory",
        remedy,
    )


@asynccontextmanager
async def opened_store(
    state: Path | str | None = None, database: str | None = None
) -> AsyncIterator[Database]:
    """The store alone, without a worker. On SQLite this process owns it meanwhile."""
    async with AsyncExitStack() as stack:
        yield (await open_store(stack, home_of(state), database, clock_for(database), Policy()))[0]


def _hide(home: Path, database: str | None) -> None:
    """Hide a state directory whose database lies elsewhere; a store in the directory was opened after that."""
    if database is not None:
        mark(home)
        wait_until_hidden(home)


def place_of(home: Path, what: str, database: str | None) -> Path:
    """Numbers of tasks are a database's own; what two databases call 17 must not be one directory."""
    if database is None:
        return home / what
    # Never renamed: git worktrees and running gateways know it by its path.
    written, place = (
        home / what / hashlib.sha256(name(database).encode()).hexdigest()[:16]
        for name in (written_name, database_name)
    )
    return written if written.is_dir() else place


async def _add_files(
    services: Services, home: Path, database: str | None, settings: FileStoreSettings
) -> None:
    """The files of this machine. Where several machines share the database, each can fetch those of the others."""
    is_shared, is_sandboxed = database is not None, services.policy.defaults.sandbox
    workspaces = LocalWorkspaces(
        place_of(home, WORKSPACES, database), is_sandboxed=is_sandboxed, is_shared=is_shared
    )
    results, files = (
        LocalResultFiles(place_of(home, RESULTS, database)),
        LocalTaskFiles(place_of(home, TASKS, database)),
    )
    services.workspaces, services.results, services.files = workspaces, results, files
    if not is_shared:
        return
    large, most = large_blobs(settings), settings.session_bytes_max
    if large is not None:
        large = FleetBlobs(large, await blob_identity(services.db, uuid4().hex))
    blobs = SizedBlobs(DatabaseBlobs(services.db), large, settings.database_bytes_max)
    services.files = SharedTaskFiles(files, blobs)
    services.session_files = SharedSessionFiles(
        await asyncio.to_thread(place_at, home),
        (workspaces, results, files),
        blobs,
        bytes_max=most,
        file_bytes_max=settings.database_bytes_max if large is None else most,
    )


def make_private(state: Path) -> None:
    """For repairs. Raises UnsafeStateDirectory: the folder of another user is not changed."""
    with private(state):
        pass


# --------------------------------------------------------------------------------------------------
# What agents work with: the built-in tools, and the sandbox that this machine has for them.


@dataclass(frozen=True, slots=True)
class SandboxOffer:
    is_ok: bool
    detail: str
    remedy: str | None


#: What an operator must know of a sandbox that was made without a Mac.
SEATBELT_NOTE = (
    " (untested on real hardware; checked just now on this system); it limits neither the memory nor the number of "
    "processes, and a process that leaves its group outlives its command"
)


def sandbox_offer() -> SandboxOffer:
    """The sandboxes that this machine has for commands and file tools. Starts a process."""
    try:
        kind = sandbox_kind(Sandbox.ON, for_shell=True)
        detail = f"{kind} holds commands and file tools"
        return SandboxOffer(True, detail + (SEATBELT_NOTE if kind is SandboxKind.SEATBELT else ""), None)
    except ToolFailed as error:
        detail, _, remedy = str(error).partition(". ")
    if _files_kind() is SandboxKind.PATH_CHECKS:
        detail += "; file tools work: a process of their own checks every path"
    return SandboxOffer(False, detail, remedy)


def _files_kind() -> SandboxKind | None:
    try:
        return sandbox_kind(Sandbox.ON, for_shell=False)
    except ToolFailed:
        return None


def server_notices(servers: Iterable[McpServer]) -> Iterator[OperatorNotice]:
    """What can be said of each configured MCP server without starting it; one without a remedy has no problem."""
    for server in servers:
        found = diagnosed(server, None, "")
        detail = "no problem is visible; doctor does not start it" if found is None else found.cause
        remedy = "" if found is None else found.remedy
        yield OperatorNotice(f"mcp {server.name}", detail, remedy, is_error=found is not None)


def can_sandbox_files() -> bool:
    """Whether this machine has a sandbox for the file tools."""
    return _files_kind() is not None


# --------------------------------------------------------------------------------------------------
# Who answers: the endpoints a program or its config names, each behind a limiter; without any, the demo model.

CHILDREN_MANY = 20
TRIAL_TEXT, TRIAL_S = "Reply with OK.", 20.0
TRIAL_TOKENS_MAX = 64  #: some providers refuse fewer than 16, and a model may think first


def _router(providers: Sequence[Provider], policy: Policy) -> Router:
    idle_s = policy.life.provider_idle_s
    return Router(providers, offline=OfflineModel(), library=LibraryModels, idle_s=idle_s)


async def open_models(
    stack: AsyncExitStack,
    providers: Sequence[Provider],
    policy: Policy,
    clock: Clock,
    shared: StoredLimits | None = None,
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
    models = Throttled(router, clock, bounds, known=router.knows, shared=shared)
    stack.push_async_callback(models.close)
    if shared is not None:
        shared.listen(models.hear)
    return models, router


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


def with_providers(policy: Policy, providers: Sequence[Provider]) -> Policy:
    """The same settings; a bare name of a model that exactly one configured provider offers has that provider."""
    if not any(model != OFFLINE and ":" not in model for _, model in _models(policy)):
        return policy
    router, defaults = _router(providers, policy), policy.defaults
    agents = {
        name: replace(
            agent,
            model=_resolved(router, agent.model),
            subagents=replace(agent.subagents, model=_resolved(router, agent.subagents.model)),
        )
        for name, agent in policy.agents.items()
    }
    common = replace(defaults.subagents, model=_resolved(router, defaults.subagents.model))
    own = replace(defaults, model=router.resolved(defaults.model), subagents=common)
    return replace(policy, agents=agents, defaults=own)


def _resolved(router: Router, model: str | None) -> str | None:
    return None if model is None else router.resolved(model)


def check_models(policy: Policy, check: Callable[[str], None]) -> None:
    for wrong in _wrong_models(policy, check):
        raise wrong


def config_problems(settings: Settings, home: Path) -> list[str]:
    """Why a gateway with these settings refuses to start, in this environment."""
    router = _router(settings.providers, settings.policy)
    found = [str(wrong) for wrong in _wrong_models(settings.policy, router.check)]
    for check in (partial(settings.listening.check_agreed, home), partial(_check_address, settings)):
        try:
            check()
        except ClutchError as error:
            found.append(str(error))
    return found


def _check_address(settings: Settings) -> None:
    if (address := settings.database_address) is not None:
        parse_address(address)


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """`detail`: the error of the provider, or how long its answer took."""

    result: TrialResult
    detail: str


async def try_model(settings: Settings, model: str, within_s: float = TRIAL_S) -> ModelTrial:
    """Ask the model for one short answer, through the provider that the settings name."""
    router, began = _router(settings.providers, settings.policy), time.monotonic()
    request = ModelRequest(model, "", (Input(TRIAL_TEXT),), (), "trial", output_tokens_max=TRIAL_TOKENS_MAX)
    try:
        router.check(model)
        async with asyncio.timeout(within_s):
            await router.ask(request, lambda _: None)
    except TimeoutError:
        return ModelTrial(TrialResult.UNREACHABLE, f"no answer within {within_s:.0f} s")
    except ModelError as error:
        return ModelTrial(trial_result(error), str(error))
    except ClutchError as error:
        return ModelTrial(TrialResult.FAILED, str(error))
    finally:
        await router.aclose()
    return ModelTrial(TrialResult.OK, f"answered in {time.monotonic() - began:.1f} s")


def config_warnings(settings: Settings) -> list[str]:
    """What is allowed and yet probably not meant."""
    many = settings.policy.limits.children_max > CHILDREN_MANY
    found = [f"maxChildrenPerAgent is above {CHILDREN_MANY}: more than a model keeps in mind"] if many else []
    return [*found, *_heartbeats(settings)]


def _heartbeats(settings: Settings) -> Iterator[str]:
    policy, known = settings.policy, {LOCAL_CHANNEL, *(one.name for one in settings.channels)}
    if policy.defaults.heartbeat is not None and not policy.agents:
        yield 'agents.defaults.heartbeat is of listed agents, and none is listed: add agents.list: [{id: "main"}]'
    for name in policy.agents:
        beat = policy.heartbeat_of(name)
        if beat is None or beat.target in (LAST, NO_TARGET):
            continue
        if (channel := delivery.from_text(beat.target).channel) not in known:
            yield f"agent {name!r}, heartbeat.target: there is no channels.{channel}, so its replies have no receiver"


def offline_model(latency: Callable[[ModelRequest], float] = watchable_latency) -> Models:
    """A script, not an LLM. `latency`: seconds each call takes."""
    return OfflineModel(latency)


WORKSPACES = "workspaces"  #: in the state directory: those of isolated children
RESULTS = "results"  #: ... large tool results, by session
TASKS = "tasks"  #: ... and the files given to children and handed over by them
NO_TRACES = OtelSettings()
NO_CHANNELS: Mapping[str, Channel] = MappingProxyType({})
NO_RUNTIMES: Mapping[str, Runtime] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Engine:
    """A running worker and its store."""

    db: Database
    services: Services
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
    hooks: HookRegistry | None = None,
    otel: OtelSettings = NO_TRACES,
    file_store: FileStoreSettings | None = None,
) -> AsyncIterator[Engine]:
    """`channels` by the name that routes begin with; what is meant for another one waits in the outbox.
    `hooks`: the receivers registered when it starts. `models` and `toolbox` replace those of Clutch."""
    clock, policy, home, router = clock or clock_for(database), policy or Policy(), home_of(state), None
    if toolbox is None or isinstance(toolbox, AllTools) or runtimes:
        guard_imports(policy, home)
    policy, channels = _hooked(hooks, policy, channels)
    async with AsyncExitStack() as stack:
        db, lives = await open_store(stack, home, database, clock, policy, stopping=(stop := asyncio.Event()))
        await asyncio.to_thread(_hide, home, database)
        shared = StoredLimits(db)
        if models is None:
            models, router = await open_models(stack, providers, policy, clock, shared if database else None)
        own_tools = _own_tools(stack, tools := toolbox or AllTools(policy.limits, ToolSettings(), home))
        is_sandboxed = own_tools is not None and own_tools.is_sandboxed
        policy = replace(policy, defaults=replace(policy.defaults, sandbox=is_sandboxed))
        services = Services(
            db=db,
            models=models,
            toolbox=tools,
            policy=policy,
            ids=BlockIds(),
            bus=Bus(),
            prices=prices_of(providers),
            runtimes=runtimes,
            hooks=hooks,
            channels=channels,
            mentions=WorkspaceMentions(),
            lives=lives,
            stopping=stop,
            prepare=None if router is None else router.prepare,
            check_model=None if router is None else router.check,
            whole_model=str if router is None else router.resolved,
            problems=partial(_problems, own_tools, await asyncio.to_thread(finish, home / COMMANDS)),
        )
        look = await _open_tools(own_tools, services, home, router)
        await _add_files(services, home, database, file_store or FileStoreSettings())
        await surely(policy.work.tick_s, lambda: db.alone(sessions.entitle, services.policy))
        worker = shared.held_by(Worker(services, clock, has_leases=database is not None))
        await stack.enter_async_context(_at_work(worker, _with_push(channels, services, clock), otel))
        await look()  # what it proposes has numbers of this worker
        yield Engine(db, services, worker, clock)


def _with_push(channels: Mapping[str, Channel], services: Services, clock: Clock) -> Mapping[str, Channel]:
    """Add notifications to devices, which go to public addresses only."""
    services.new_push_key = new_key
    known = StoredSubscriptions(services.db)
    push = PushChannel(
        known, lambda one: is_public(ip_address(one)), clock.now, lambda: services.policy.serving
    )
    return {**channels, PUSH_CHANNEL: push}


def _own_tools(stack: AsyncExitStack, tools: Toolbox) -> AllTools | None:
    """The tools of Clutch, closed with the stack. None: the program brings its own toolbox."""
    if not isinstance(tools, AllTools):
        return None
    stack.push_async_callback(tools.close)
    return tools


async def _open_tools(
    own_tools: AllTools | None, services: Services, home: Path, router: Router | None
) -> Callable[[], Awaitable[None]]:
    """Return the function that looks at agent files and skills."""
    look = open_definitions(own_tools, services, home, None if router is None else router.check)
    services.surroundings = _surroundings(services)
    services.checklists = Documents(services.policy.context.document_bytes_max, CHECKLIST, is_settled)
    if own_tools is not None and own_tools.has_servers:
        await own_tools.open(StoredPins(services))
    return look


def _problems(own_tools: AllTools | None, planted: Sequence[str]) -> list[OperatorNotice]:
    """What the operator should know of this process now."""
    return [
        *GUARD.problems(),
        *(own_tools.problems() if own_tools is not None else ()),
        *(_planted(one) for one in planted),
        *map(_unread, unread_instructions()),
    ]


def _planted(what: str) -> OperatorNotice:
    detail = f"a command was running when the previous gateway was killed: {what}"
    return OperatorNotice("planted-file", detail, "rename it back if you made it yourself", is_error=False)


def _unread(path: str) -> OperatorNotice:
    detail = f"{path} is not read yet: a program that runs in this folder could have written it"
    remedy = "it is renamed to NAME.withheld when that program ends; rename it back then, if you made it"
    return OperatorNotice("unread-instructions", detail, remedy, is_error=False)


def guard_imports(policy: Policy, home: Path) -> None:
    """Before anything else is loaded for an agent: nothing is loaded from where one can write."""
    named = [policy.workspace_of(agent) for agent in (MAIN, *policy.agents)]
    GUARD.protect([str(home), *(place or "." for place in named)])


def _hooked(
    hooks: HookRegistry | None, policy: Policy, channels: Mapping[str, Channel]
) -> tuple[Policy, Mapping[str, Channel]]:
    if hooks is None:
        return policy, channels
    hooks.add_installed()
    known = {**channels, HOOK_CHANNEL: hooks} if hooks.names else channels
    return replace(policy, hooks=hooks.names), known


@asynccontextmanager
async def _at_work(
    worker: Worker, channels: Mapping[str, Channel], otel: OtelSettings
) -> AsyncIterator[None]:
    """From the moment it is registered until everything it held is handed over, and the last traces are exported."""
    with freeze_watch(worker.clock.now) as worker.services.frozen_s:
        async with exporting(worker.services, otel), asyncio.TaskGroup() as group:
            group.create_task(work(worker, channels))
            await worker.ready.wait()
            try:
                yield
            finally:
                await worker.stop()


def _surroundings(services: Services) -> Surroundings:
    documents = Documents(services.policy.context.document_bytes_max, is_settled=is_settled)
    return Surroundings(services.db, lambda: services.policy, documents, services.skills)
