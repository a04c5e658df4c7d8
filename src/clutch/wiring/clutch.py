"""Clutch, as a program opens it: what it was given, beside what its config says; here, or as a client of a gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from clutch.api import gateway as gateway_api
from clutch.api.client import Api
from clutch.api.gateway import Gateway
from clutch.api.handles import Backend
from clutch.channels import HookRegistry, Webhook
from clutch.config.sources import ConfigSource, GivenConfig
from clutch.core.agents import Agent
from clutch.core.policy import Policy
from clutch.core.spawn import OWN_RUNTIME
from clutch.core.text.format import typed
from clutch.core.validation import check_argument, shown
from clutch.core.views import ConfigReport
from clutch.engine.services import Services, surely
from clutch.errors import ClutchError, GatewayInUse, InvalidInput, StateDirectoryInUse
from clutch.logs import logger
from clutch.models.provider import Provider
from clutch.ports import Channel, Models, OperatorNotice, Runtime, Toolbox
from clutch.runtimes import acp as external
from clutch.runtimes import acp_process
from clutch.runtimes.acp_process import AcpAgent
from clutch.runtimes.function import Function, FunctionRuntime
from clutch.store import state_directory
from clutch.surfaces import discovery
from clutch.surfaces.discovery import PROBLEM, Claim, Loaded
from clutch.surfaces.http_client import connect
from clutch.surfaces.listen import serving
from clutch.tools.registry import AllTools, ToolSettings
from clutch.tools.sandbox.process import SandboxedPrograms
from clutch.tools.sandbox.protected_files import COMMANDS
from clutch.transactions import schedules, sessions, wake
from clutch.wiring.engine import (
    NO_CHANNELS,
    check_models,
    guard_imports,
    home_of,
    running_engine,
    with_providers,
)

if TYPE_CHECKING:
    from clutch.config.load import Reloaded

# --------------------------------------------------------------------------------------------------
# Other ways to work on a task, by the names a spawn calls them: external agents, and functions of the program.

ACP = "acp"  #: the runtime of external agents; also where the state directory tells which of their sessions are whose
OWN_RUNTIMES = (OWN_RUNTIME, "agent", ACP)  #: names with a meaning of their own
RUNTIME_CHARS_MAX = 64


def external_agents(given: Sequence[str | AcpAgent], home: Path) -> dict[str, Runtime]:
    """`acp:NAME` each, and `acp` for the first."""
    boxes = SandboxedPrograms(hidden=(str(home),), journal=str(home / COMMANDS))
    found: dict[str, Runtime] = {
        f"{ACP}:{agent.name}": external.AcpRuntime(agent, home / ACP, boxes)
        for agent in acp_process.chosen(given)
    }
    return ({ACP: next(iter(found.values()))} if found else {}) | found


def check_name(name: object, known: dict[str, Runtime]) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= RUNTIME_CHARS_MAX:
        raise InvalidInput("runtime", f'needs a name of at most {RUNTIME_CHARS_MAX}: @c.runtime("crawler")')
    if name in (*OWN_RUNTIMES, *known) or name.startswith(f"{ACP}:"):
        raise InvalidInput(f"runtime {name!r}", "there is already one of this name; choose another")


def runtime_of(function: Function) -> Runtime:
    return FunctionRuntime(function)


log = logger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound=Function)

_KINDS: Mapping[str, Any] = {
    "state": Path | str | None,
    "concurrency": int | None,
    "database": str | None,
    "policy": Policy | None,
    "workspace": Path | str | None,
    "model": str | None,
    "settings": ToolSettings | None,
    "serve": bool,
    "port": int | None,
    "host": str | None,
    "config": Path | str | None,
    "embedded": bool | None,
    "headless": bool,
}


def _check_given(given: Mapping[str, Any]) -> None:
    """What takes the place of our own parts must look like them."""
    for name, kind in _KINDS.items():
        check_argument(name, given[name], kind)
    if given["concurrency"] is not None and given["concurrency"] < 1:
        raise InvalidInput("concurrency", f"must be at least 1, not {given['concurrency']}")
    models, tools, providers = given["models"], given["tools"], given["providers"]
    if models is not None and not callable(getattr(models, "ask", None)):
        rule = 'must have `async def ask(request, on_delta)`; a model is named by model="provider:model"'
        raise InvalidInput("models", rule)
    if tools is not None and not callable(getattr(tools, "specs", None)):
        raise InvalidInput(
            "tools", "must be a toolbox with `specs` and `run`; functions are added by @c.tool"
        )
    if not isinstance(providers, Sequence) or not all(isinstance(one, Provider) for one in providers):
        raise InvalidInput("providers", f"must be a list of Provider(…), not {shown(providers)}")


def _check_models(policy: Policy, check: Callable[[str], None], waiting: Sequence[str]) -> None:
    """A model may be of a provider that waits for the restart. Raises InvalidInput."""
    try:
        check_models(policy, check)
    except InvalidInput as error:
        later = f"; {', '.join(waiting)} changed, which needs a restart" if waiting else ""
        raise InvalidInput(error.field, f"{error.rule}{later}") from error


def _unloaded(claim: Claim, home: Path) -> Iterator[OperatorNotice]:
    """What of the config file this gateway has not loaded."""
    at = claim.address
    if at is not None and at.config is not None and (missing := at.config.missing) is not None:
        remedy = f"restart to apply: {at.restart(home)}"
        yield OperatorNotice(PROBLEM, missing, remedy, is_error=not at.config.is_pending)


#: Workers of one server start together: the first has the directory a moment before it can be asked for anything.
OWNER_START_S = 5.0
OWN_FUNCTIONS = (
    "This program brings {names}, which the owner of {state} cannot call. Share a database that several processes own"
    ' together, each with its functions: Clutch(database="postgresql://…"). Or give each process a state directory of'
    " its own. Or register the functions in the process that owns it and connect without them: Clutch.connect(state)"
)
OWNER_PAUSE_S = 0.05


async def _is_served(home: Path, within_s: float) -> bool:
    """Return whether the owner of the state directory serves it, or begins to within the time."""
    until = time.monotonic() + within_s
    if discovery.find(home) is None:
        log.info("%s is in use and is not served yet (waiting up to %g s)", home, within_s)
    while discovery.find(home) is None:
        if time.monotonic() >= until or state_directory.is_unserved(home):
            return False
        await asyncio.sleep(OWNER_PAUSE_S)
    return True


def one_line(error: ClutchError) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


class ProgramFunctions:
    """Decorators for functions of the program, the same with and without an event loop."""

    _clutch: Clutch  #: that calls them

    @overload
    def tool(self, function: F) -> F: ...

    @overload
    def tool(
        self,
        function: None = None,
        *,
        name: str | None = None,
        replay_safe: bool = False,
        read_only: bool = False,
        needs_approval: bool = False,
        timeout_s: float | None = None,
        concurrency: int | None = None,
        is_outward: bool = False,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        replay_safe: bool = False,
        read_only: bool = False,
        needs_approval: bool = False,
        timeout_s: float | None = None,
        concurrency: int | None = None,
        is_outward: bool = False,
    ) -> F | Callable[[F], F]:
        """Make the decorated function a tool of every agent here; it needs typed parameters and a docstring.

        name: another name than that of the function.
        replay_safe: it may run again after a crash, because it has no effects or the same effects twice.
        read_only: it changes nothing, so a task in plan mode has it, too.
        needs_approval: a user approves each call.
        timeout_s: time limit of one call.
        concurrency: how many calls run at once; None = no limit.
        is_outward: it reaches beyond the workspace, e.g. the network."""
        clutch = self._clutch
        if clutch._rooms is None:
            raise ClutchError("this Clutch was given its own tools; add the function to those")
        if function is not None and not callable(function):
            raise InvalidInput("tool", f"write @c.tool above a function, or @c.tool(name={shown(function)})")
        clutch._bring("@c.tool")
        register = clutch._rooms.tools.tool(
            name=name,
            replay_safe=replay_safe,
            read_only=read_only,
            needs_approval=needs_approval,
            timeout_s=timeout_s,
            concurrency=concurrency,
            is_outward=is_outward,
        )
        return register if function is None else register(function)

    def hook(self, name: str) -> Callable[[F], F]:
        """Call the decorated function at an event of subagents; some hooks can deny it (`docs/how-to/hooks.md`)."""
        clutch = self._clutch
        if clutch._was_entered:
            raise ClutchError("register hooks before `async with`: events without a hook are not written")

        def register(function: F) -> F:
            clutch._hooks.add(name, function)
            clutch._bring("@c.hook")
            return function

        return register

    def runtime(self, name: str) -> Callable[[R], R]:
        """Make the decorated async function a runtime: `spawn(..., runtime=name)`."""
        clutch = self._clutch
        check_name(name, clutch._runtimes)

        def register(function: R) -> R:
            clutch._bring("@c.runtime")
            clutch._runtimes[name] = runtime_of(function)
            return function

        return register


class Clutch(Api, ProgramFunctions):
    """Durable background subagents in your own program. After a restart the work resumes where it was.

        async with Clutch("state", concurrency=50) as c:
            result = await (await c.spawn("Survey this folder"))

    state: directory of the database and the files; without it the one of `clutch serve` (`docs/how-to/embed.md`).
    concurrency: how many children work at once (default 8). It also raises the limits of children, descendants and
        retained records of one parent to at least that; further tasks wait in the queue.
    database: a PostgreSQL to use instead of SQLite, e.g. "postgresql://…"; several processes may own it together.
    model: "provider:model"; without it the demo model answers (no API key).
    providers: endpoints of your own, beside the ones that are known by name.
    agents: the agents that differ from the defaults.
    workspace: the folder of the file tools of new sessions; without it the current one.
    settings: sandbox, network and MCP servers of the tools.
    policy: every other limit, timeout and retry.
    hooks: webhooks that are notified of subagents; `@c.hook(name)` adds a function.
    acp: external agents that children may be, by name or as `AcpAgent`.
    channels: where users are reached, by name.
    models, tools: your own model client and toolbox, in place of those of Clutch.
    headless: no user can be asked; what needs an approval is denied at once.
    serve, host, port: while it is open, `clutch ps`, `clutch steer` … in another terminal connect on loopback with the
        token in the state directory; serve=False turns that off. port=0 is any free port; a host beyond loopback needs
        the config, too (`docs/operate/gateway.md`). On PostgreSQL it is served when `state` is given.
    config: a `clutch.json`; without it the one in the state directory, if there is one. Arguments win over the file:
        `policy` and `settings` as a whole, agents and providers one by one.
    embedded: if another process owns the state directory, None connects to it as a client, with the same methods; True
        raises StateDirectoryInUse instead; False always connects, as `Clutch.connect(state)` does."""

    def __init__(
        self,
        state: Path | str | None = None,
        *,
        concurrency: int | None = None,
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
        host: str | None = None,
        hooks: Sequence[Webhook] = (),
        config: Path | str | None = None,
        acp: Sequence[str | AcpAgent] = (),
        embedded: bool | None = None,
        headless: bool = False,
    ) -> None:
        _check_given(locals())
        super().__init__(self._open)
        self._clutch, self._home, self._embedded = self, home_of(state), embedded
        given = GivenConfig(policy, model, workspace, tuple(agents), headless, concurrency)
        self._given = ConfigSource(self._home, config, given)
        said = self._given.settings = self._given.load()
        database = said.database_address if database is None else database
        self._providers = tuple({one.name: one for one in (*said.providers, *providers)}.values())
        self._is_routed = models is None
        self.policy = self._named(self._given.policy(said))
        self._rooms = (
            AllTools(self.policy.limits, settings or said.tools, self._home) if tools is None else None
        )
        self._runtimes = external_agents(acp or said.acp, self._home)
        self._hooks = HookRegistry((*said.hooks, *hooks))
        self._engine = running_engine(
            state=state,
            database=database,
            policy=self.policy,
            models=models,
            toolbox=tools or self._rooms,
            channels={one.name: one for one in said.channels} | dict(channels),
            providers=self._providers,
            runtimes=self._runtimes,
            hooks=self._hooks,
            otel=said.otel,
            file_store=said.files,
        )
        self.url: str | None = None  #: where it is served, while it is
        self._claim: Claim | None = None  #: while it is served
        self.is_client = False  #: another process does the work; this one asks it
        self._is_served = serve and (database is None or state is not None)
        self.listening, self._can_share = said.listening.at(host, port), database is not None
        parts = {"models": models, "tools": tools, "channels": channels or None}
        #: what cannot leave this process
        self._brought = {name for name, part in parts.items() if part is not None}

    @classmethod
    def connect(cls, state: Path | str | None = None) -> Self:
        """Return a client of the gateway that owns the state directory. Raises NoGateway when it is entered."""
        return cls(state=state, embedded=False)

    async def _open(self, stack: AsyncExitStack) -> Backend:
        """Decide once whether this process or another one has the engine."""
        if self._embedded is False:
            return await self._elsewhere(stack)
        try:
            gateway = await gateway_api.opened(stack, self._engine, self.leaving)
        except StateDirectoryInUse as error:
            await self._check_can_be_client(error)
            return await self._elsewhere(stack)
        await self._configure_schedules(gateway.services)
        if self._is_served:
            await self._serve(stack, gateway)
        if self._claim is None and not self._can_share:
            state_directory.mark_unserved(self._home)
        return gateway

    def _named(self, policy: Policy) -> Policy:
        """With whole names of models, where Clutch asks them itself."""
        return with_providers(policy, self._providers) if self._is_routed else policy

    def is_config_changed(self) -> bool:
        """The file of the config is another one than the one that was read last."""
        return self._given.is_changed

    async def reload(self) -> Reloaded:
        """Read the config again. Runs under way end as they began; new ones have the new settings.

        Raises InvalidInput, and everything stays as it was; `gateway.json` says so to every command."""
        try:
            found = await self._reload()
        except ClutchError as error:
            self._publish_config(error=one_line(error))
            raise
        self._publish_config(waiting=found.waiting)
        return found

    def _publish_config(self, *, error: str = "", waiting: tuple[str, ...] = ()) -> None:
        if self._claim is not None:
            self._claim.publish_config(self._loaded(error, waiting))

    def _loaded(self, error: str = "", waiting: tuple[str, ...] = ()) -> Loaded:
        given = self._given
        return Loaded(str(given.file), given.stamp, error, waiting, follows=self.leaving is not None)

    async def _reload(self) -> Reloaded:
        from clutch.config.load import merged

        found = merged(self._given.settings, self._given.load())
        services, policy = self.services, self._named(self._given.policy(found.settings))
        if services.check_model is not None:
            _check_models(policy, services.check_model, found.waiting)
        self._given.settings = found.settings
        guard_imports(policy, self._home)
        boxed = replace(policy.defaults, sandbox=services.policy.defaults.sandbox)
        self.policy = services.policy = replace(
            policy, defaults=boxed, hooks=services.policy.hooks, roles=services.policy.roles
        )
        await surely(policy.work.tick_s, lambda: services.db.alone(sessions.entitle, services.policy))
        await surely(policy.work.tick_s, lambda: services.db.alone(wake.arm, policy))
        await self._configure_schedules(services)
        return found

    async def _configure_schedules(self, services: Services) -> None:
        """Make the schedules of the config what it says. On a shared database a config without the key leaves alone
        what the configs of the others say."""
        wanted = self._given.settings.schedules
        if wanted is None and self._can_share:
            return
        made = [(services.ids.next(), one) for one in wanted or ()]
        await surely(services.policy.work.tick_s, lambda: services.db.alone(schedules.configure, made))

    async def _check_can_be_client(self, error: StateDirectoryInUse) -> None:
        """Raises StateDirectoryInUse where this program has functions of its own: the owner could not call them."""
        if self._brought and not self._embedded:
            raise StateDirectoryInUse(f"{error}. {self._ways_out()}", error.remedy) from error
        if self._embedded or not await _is_served(self._home, OWNER_START_S):
            raise error

    def _ways_out(self) -> str:
        return OWN_FUNCTIONS.format(names=", ".join(sorted(self._brought)), state=self._home)

    def _bring(self, name: str) -> None:
        """Note a function that cannot leave this process. A client raises StateDirectoryInUse: it is never called."""
        self._brought.add(name)
        if self.is_client:
            raise StateDirectoryInUse(
                f"{self._home} is owned by the gateway at {self.url}. {self._ways_out()}"
            )

    async def _elsewhere(self, stack: AsyncExitStack) -> Backend:
        from clutch.surfaces.remote import RemoteBackend

        found = connect(self._home).address
        backend = await stack.enter_async_context(RemoteBackend(self._home).open())
        self.is_client, self.url = True, found.url
        log.warning(
            "%s is owned by the gateway at %s (pid %d): this program is its client; model, policy and workspace are"
            " those of the gateway",
            self._home,
            found.url,
            found.pid,
        )
        return backend

    async def _serve(self, stack: AsyncExitStack, gateway: Gateway) -> None:
        """A port that was not asked for by its number is no reason to stop."""
        try:
            claim = await stack.enter_async_context(
                serving(gateway, self._home, self.listening, self._loaded())
            )
        except (GatewayInUse, InvalidInput) as error:
            asked = self.listening.port or self.listening.is_remote
            if asked or (isinstance(error, GatewayInUse) and not self._can_share):
                raise
            log.warning("Commands in other terminals cannot reach this program: %s", error)
            return
        self._claim, known = claim, gateway.services.problems
        gateway.services.problems = lambda: [*_unloaded(claim, self._home), *known()]
        gateway.services.config_report = partial(self._config_report, claim)
        self.url = None if claim.address is None else claim.address.url

    def _config_report(self, claim: Claim) -> ConfigReport | None:
        """What of the config file is in force. Reads the file."""
        from clutch.config.explain import report

        at = claim.address
        if at is None or at.config is None:
            return None
        check = typed("config", "check", state=discovery.named_state(self._home))
        return report(self._given, at.config, f"`{check}`", at.restart(self._home))
