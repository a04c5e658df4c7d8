"""One configured server: started when first needed, shared by all sessions, started again after a failure.

Every failure is a ToolFailed that names the server and the fix; no failure reaches another server. A connection ends
when the server ends, or when it answered neither a call nor a request for its tools. The next use starts it again: at
once after the first failure, then with growing pauses until a call is answered."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import importlib
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from clutch.contain import BackgroundTasks, in_thread
from clutch.core.model import ToolOffer
from clutch.core.text.format import visible
from clutch.errors import ClutchError, extra
from clutch.logs import logger
from clutch.ports import Launch, OperatorNotice, RemoteTask, ToolContext, ToolFailed
from clutch.tools.mcp.definitions import (
    BadTool,
    Definition,
    Gone,
    McpServer,
    McpServerError,
    Pins,
    RemoteTaskState,
    Wire,
    changes,
    offer_text,
    plain,
    vet,
)
from clutch.tools.sandbox.policy import SandboxPolicy, is_beneath
from clutch.tools.sandbox.process import SHOWN, installed, sandboxed_program, with_path
from clutch.tools.sandbox.protected_files import COMMANDS

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from clutch.tools.mcp.connection import Connection

# --------------------------------------------------------------------------------------------------
# How the process of a stdio server is started: plainly, or inside the sandbox.
#
# In the sandbox it sees the system, a folder of its own (or `cwd`) and what `visible` names; the network only
# with `network`.


@contextmanager
def launching(server: McpServer, folder: Path) -> Iterator[Launch]:
    """Lasts as long as the process. Raises McpServerError where there is no sandbox. Blocks."""
    assert server.command is not None
    if not server.sandbox:
        yield Launch((server.command, *server.args), server.cwd, server.environment())
        return
    found = installed(server.command, server.environment().get("PATH"))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", server.command)
    policy = _policy(server, folder, found.places)
    variables = {**with_path(found), **server.granted()}
    program = sandboxed_program(policy, (found.command, *server.args), variables, cwd=policy.root)
    with ExitStack() as stack:
        try:
            launch = stack.enter_context(program)
        except ToolFailed as error:
            raise McpServerError(
                f"is to run in a sandbox, and {error}; to run it with all your rights, set "
                f"mcp.servers.{server.name}.sandbox to false"
            ) from error
        yield launch


def _policy(server: McpServer, folder: Path, places: tuple[str, ...]) -> SandboxPolicy:
    if server.cwd is None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return SandboxPolicy(
            root=server.cwd or str(folder),
            read_only=(*server.visible, *places),
            network=server.network,
            journal=str(folder.parent.parent / COMMANDS),  # `folder` is mcp/NAME in the state directory
        )
    except ValueError as error:
        raise McpServerError(f"cannot run in a sandbox: {error}") from error


# --------------------------------------------------------------------------------------------------
# One connection from its start to its end, held open by a task of its own: the library requires that the task which
# opened a connection also closes it.


class ServerLifetime:
    def __init__(self, settings: McpServer, wire: Wire) -> None:
        self.wire = wire
        self.is_doubtful = False  #: a call was not answered in time
        self._settings = settings
        self._opened: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._tasks = BackgroundTasks()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, folder: Path, on_change: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Raises what the connection raised, TimeoutError if it took too long. `on_end` follows a success only."""
        with extra("mcp", f"the MCP server {self._settings.name!r}"):
            library = await asyncio.to_thread(importlib.import_module, "clutch.tools.mcp.connection")
        name = f"clutch-mcp-{self._settings.name}"
        self._task = self._tasks.call(self._hold(library, folder, on_change), name)
        try:
            await asyncio.wait((self._task, self._opened), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.end()
            raise
        if not self._opened.done():
            await self._task
        self._task.add_done_callback(lambda task: _retrieved(task, on_end))

    @property
    def is_sound(self) -> bool:
        return not self.is_doubtful and not self.wire.ended.is_set()

    @property
    def connection(self) -> Connection:
        return self._opened.result()

    async def tools(self) -> list[Definition]:
        """Raises Gone, Refused, TimeoutError."""
        async with asyncio.timeout(self._settings.connect_timeout_s):
            return await self.connection.tools()

    async def end(self) -> None:
        """Return when the connection and its process have ended."""
        if self._task is None:
            return
        if self._opened.done():
            self.wire.ended.set()
        else:
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _hold(self, library: ModuleType, folder: Path, on_change: Callable[[], None]) -> None:
        async with AsyncExitStack() as stack:
            launch: Launch | None = None
            if self._settings.command is not None:
                plan = in_thread(partial(launching, self._settings, folder))
                launch = await stack.enter_async_context(plan)
                if launch.exposed is not None:
                    tasks = await stack.enter_async_context(BackgroundTasks())
                    tasks.start(self._watch(launch.exposed), f"clutch-mcp-state-{self._settings.name}")
            limit = await stack.enter_async_context(asyncio.timeout(self._settings.connect_timeout_s))
            opened = library.connected(self._settings, launch, self.wire, on_change)
            connection = await stack.enter_async_context(opened)
            limit.reschedule(None)
            self._opened.set_result(connection)
            await self.wire.ended.wait()

    async def _watch(self, exposed: Callable[[], Awaitable[str]]) -> None:
        self.wire.verdict = await exposed()
        self.wire.is_up = False  # it gets no time to stop
        self.wire.ended.set()


def _retrieved(task: asyncio.Task[None], on_end: Callable[[], None]) -> None:
    # `Wire` records how the connection ended; asyncio logs an exception that no caller retrieves.
    if not task.cancelled():
        task.exception()
    on_end()


# --------------------------------------------------------------------------------------------------
# Why a server did not start or will not, and what the operator can do about it. Nothing here starts one.

#: Programs that fetch the server from a registry when it is started, and how it is installed instead.
# fmt: off
FETCHERS = {
    "npx": "npm install -g", "bunx": "bun add -g", "pnpm": "pnpm add -g", "yarn": "npm install -g",
    "uvx": "uv tool install", "uv": "uv tool install", "pipx": "pipx install", "docker": None, "podman": None,
}
# fmt: on
_OFFLINE = re.compile(
    r"EAI_AGAIN|ENOTFOUND|ENETUNREACH|ECONNREFUSED|getaddrinfo|name resolution|resolve host|[Nn]etwork is unreachable"
    r"|dns error|Failed to fetch|offline"
)
NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class Diagnosis:
    cause: str
    remedy: str


def diagnosed(server: McpServer, exit_code: int | None, said: str) -> Diagnosis | None:
    """`said`: its stderr; empty and `exit_code` None before a start. Return None where no cause is known."""
    if server.command is None:
        return None
    return next(_found(server, exit_code, said), None)


def _found(server: McpServer, exit_code: int | None, said: str) -> Iterator[Diagnosis]:
    key, path = f"mcp.servers.{server.name}", server.environment().get("PATH")
    if installed(server.command or "", path) is None:
        yield Diagnosis(
            f"command {server.command!r} is not found",
            f"install it, or set {key}.command to the full path of the program",
        )
    if not server.sandbox:
        return
    fetcher = os.path.basename(server.command or "")
    if not server.network and (fetcher in FETCHERS or _OFFLINE.search(said)):
        yield _offline(server, fetcher)
    for place in _unseen(server):
        yield Diagnosis(
            f"the sandbox does not show {place}",
            f'add its folder to {key}.visible, such as ["{os.path.dirname(place)}"]',
        )
    if exit_code == NOT_FOUND:
        yield Diagnosis(
            f"the sandbox does not show a program that {server.command} starts",
            f"add the folder it is installed in to {key}.visible",
        )


def _offline(server: McpServer, fetcher: str) -> Diagnosis:
    key, how = f"mcp.servers.{server.name}", FETCHERS.get(fetcher)
    if fetcher not in FETCHERS:
        return Diagnosis("it wants the network, which is off in its sandbox", f"set {key}.network to true")
    if how is None:
        return Diagnosis(
            f"{fetcher} does not run in a sandbox", f"set {key}.sandbox to false, or use {key}.url"
        )
    return Diagnosis(
        f"{fetcher} fetches the server when it starts, and the network is off in its sandbox",
        f"set {key}.network to true, or install the server (`{how} PACKAGE`) and set {key}.command to its program",
    )


def _unseen(server: McpServer) -> Iterator[str]:
    """Yield arguments that name files which its sandbox does not show."""
    shown = (*SHOWN, *(os.path.realpath(place) for place in (*server.visible, server.cwd or "/proc")))
    for word in server.args:
        place = word.partition("=")[2] if word.startswith("-") else word
        if place.startswith("/") and os.path.exists(place):
            real = os.path.realpath(place)
            if not any(is_beneath(real, one) for one in shown):
                yield place


log = logger(__name__)

PAUSE_MAX_S = 60.0
RELIST_PAUSE_S = 1.0  # a server that announces changes without end is asked no more often than this
REASON_CHARS_MAX = 1500
RECONNECTS_MAX = 3  #: in a row, for a task that the server carries out
CANCEL_S = 5.0  #: the call has ended without it


class Server:
    def __init__(self, settings: McpServer, pins: Pins, folder: Path, on_tools: Callable[[], None]) -> None:
        self.settings = settings
        self.problem: OperatorNotice | None = None  #: why it cannot be used now
        self._title = f'MCP server "{settings.name}"'
        self._pins = pins
        self._on_tools = on_tools
        self._folder = folder
        self._offered: Mapping[str, Definition] | None = None  #: None = not asked yet in this process
        self.refused: Mapping[str, str] = {}  #: tools that cannot be offered, and why
        self._rejected: Mapping[str, str] = {}  #: tools that a person does not want as they are now
        self._life: ServerLifetime | None = None
        self._tasks = BackgroundTasks()
        self._starting: asyncio.Task[ServerLifetime] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._has_changes = False
        self._failures = 0
        self._not_before = 0.0
        self._is_closed = False

    @property
    def trouble(self) -> str | None:
        """Return the problem as one sentence for a model."""
        return None if self.problem is None else f"{self.problem.detail}; {self.problem.remedy}"

    def usable(self) -> list[Definition]:
        """Return the approved definitions that the server still offers; a model sees no others."""
        pinned = self._pins.tools(self.settings.name).values()
        return [
            tool for tool in pinned if self.settings.allows(tool.name) and self.why_not(tool.name) is None
        ]

    def offers(self) -> list[ToolOffer]:
        """Return the tools that a user must approve: new ones, and those that changed since their approval."""
        pinned = self._pins.tools(self.settings.name)
        return [
            _offer(self.settings.name, pinned.get(tool.name), tool)
            for tool in (self._offered or {}).values()
            if self.settings.allows(tool.name) and self.why_not(tool.name) is not None
        ]

    async def ask(self) -> None:
        """Ask a user about them, once."""
        if self._offered is not None:
            self._rejected = await self._pins.ask(self.settings.name, self.offers())

    def listed(self) -> set[str]:
        """Return every tool it offers or offered, usable or not, except those that the settings leave out."""
        names = {*self._pins.tools(self.settings.name), *(self._offered or {}), *self.refused}
        return {name for name in names if self.settings.allows(name)}

    def why_not(self, tool: str) -> str | None:
        """Return why a tool is disabled, with the fix; None when it is not."""
        before = self._pins.tools(self.settings.name).get(tool)
        if tool in self.refused:
            return f"is refused: {self.refused[tool]}; the server must be corrected"
        after = before if self._offered is None else self._offered.get(tool)
        if after is None:
            return "is not offered by the server; use another tool"
        approval = self._approval(tool)
        if before is None:
            return f"is new since the server was approved; {approval}"
        if different := changes(before, after):
            return f"is disabled: its {' and '.join(different)} changed since it was approved; {approval}"
        return None

    def _approval(self, tool: str) -> str:
        if (question := self._rejected.get(tool)) is not None:
            return f"a person rejected it ({question}), and only a person can take that back"
        return "a person must look at it in the inbox and approve it"

    async def call(self, tool: str, args: Mapping[str, Any], context: ToolContext) -> CallToolResult:
        """Raises ToolFailed. A call that the server carries out as a task takes as long as the task."""
        remote = context.remote
        task_id = None if remote is None else remote.known
        if task_id is None:
            said = await self._begin(tool, args, context)
            if not isinstance(said, RemoteTaskState):
                return said
            task_id = said.task_id
        try:
            if remote is not None and remote.known is None:
                # Before anything else is asked: a crash from here on finds the task again.
                await remote.journal(task_id)
            return await self._outcome(task_id)
        except ToolFailed:
            raise
        except BaseException:  # the call is cancelled, or its task could not be journaled
            self._tasks.start(self._give_up(task_id, remote), f"clutch-mcp-cancel-{self.settings.name}")
            raise

    async def _begin(
        self, tool: str, args: Mapping[str, Any], context: ToolContext
    ) -> CallToolResult | RemoteTaskState:
        life = await self.up()
        await self._wait_for_tools()
        self._check(tool)
        with self._failures_of(life):
            async with asyncio.timeout(self.settings.call_timeout_s):
                said = await life.connection.call(tool, args, _key(context), context.traceparent)
        self._failures = 0
        return said

    async def _outcome(self, task_id: str) -> CallToolResult:
        """Wait for a task of the server, also if the server is started again meanwhile. Raises ToolFailed.

        The wait has no bound of its own: the deadline of the run ends it, or a person who stops the run."""
        lost = 0
        while True:
            life = await self.up()
            try:
                with self._failures_of(life):
                    async with asyncio.timeout(self.settings.call_timeout_s):
                        state = await life.connection.task(task_id)
            except ToolFailed:
                lost += 1
                if life.is_sound or lost > RECONNECTS_MAX:
                    raise
                continue
            lost = self._failures = 0
            if state.result is not None:
                return state.result
            await asyncio.sleep(state.poll_s)

    async def _give_up(self, task_id: str, remote: RemoteTask | None) -> None:
        """Cancel a task that no later try waits for."""
        if remote is not None and await remote.is_kept(task_id):
            return
        if self._life is not None and self._life.is_sound:
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_S):
                    await self._life.connection.cancel(task_id)

    @contextmanager
    def _failures_of(self, life: ServerLifetime) -> Iterator[None]:
        """Raises ToolFailed for a call that fails."""
        limit = self.settings.call_timeout_s
        try:
            yield
        except TimeoutError as error:
            life.is_doubtful = True
            raise ToolFailed(
                f"{self._title} did not answer the call within {limit:g} s; whether it took effect is unknown. "
                f"Ask it for less, or a person raises mcp.servers.{self.settings.name}.call_timeout_s"
            ) from error
        except Gone as error:
            life.wire.ended.set()
            raise ToolFailed(
                f"{self._title} ended during the call; whether it took effect is unknown"
                f"{self._final_output(life.wire)}. It is started again at the next use"
            ) from error
        except McpServerError as error:
            raise ToolFailed(f"{self._title}: {self._clean(str(error))}") from error

    async def refresh(self) -> None:
        """Read again what the server offers and what is approved. Raises ToolFailed."""
        await self.up()
        await self._wait_for_tools()
        if await self._pins.look():
            self._on_tools()
        await self.ask()

    async def up(self) -> ServerLifetime:
        """Return the running connection, started if needed; all callers share one start. Raises ToolFailed."""
        if self._is_closed:
            raise ToolFailed(f"{self._title} is closed: Clutch is stopping")
        if self._starting is None:
            if self._life is not None and self._life.is_sound:
                return self._life
            self._starting = self._tasks.call(self._started(), f"clutch-mcp-start-{self.settings.name}")
            self._starting.add_done_callback(self._is_started)
        starting = self._starting
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled() and self._is_closed:  # the start was cancelled, not its caller
                raise ToolFailed(f"{self._title} is closed: Clutch is stopping") from None
            raise

    async def close(self) -> None:
        self._is_closed = True
        await self._tasks.close()
        if self._life is not None:
            await self._life.end()

    def _is_started(self, task: asyncio.Task[ServerLifetime]) -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # callers have it; without one asyncio would log it

    async def _started(self) -> ServerLifetime:
        if self._life is not None:
            if await self._answers(self._life):
                return self._life
            self._life.wire.is_up = False  # it does not answer: it gets no time to stop
            await self._life.end()
        pause = self._not_before - asyncio.get_running_loop().time()
        if pause > 0:
            raise ToolFailed(f"{self.trouble}. It can be tried again in {pause:.0f} s")
        life = ServerLifetime(self.settings, Wire())
        try:
            await life.begin(self._folder, self._on_change, lambda: self._ended(life))
            await self._update_tools(await life.tools())
        except Exception as error:  # a foreign program, and task groups of the library
            await life.end()
            raise ToolFailed(self._failed(*self._why(error, life.wire))) from error
        self._life = life
        self.problem = None
        if self._has_changes:
            self._on_change()
        return life

    async def _answers(self, life: ServerLifetime) -> bool:
        """Whether a server that left a call unanswered still answers."""
        try:
            await self._update_tools(await life.tools())
        except (Gone, McpServerError, TimeoutError):
            return False
        life.is_doubtful = False
        return True

    def _ended(self, life: ServerLifetime) -> None:
        if self._life is life:
            self._life = None
            if not self._is_closed:
                remedy = "the next call starts it again" if life.wire.verdict else "see its own log for why"
                self._failed(f"ended{self._final_output(life.wire)}", remedy)

    def _failed(self, why: str, remedy: str) -> str:
        found = OperatorNotice(f"mcp {self.settings.name}", f"{self._title} {why}", remedy)
        if found != self.problem:  # the same failure of repeated starts is logged once
            log.warning("%s; %s", found.detail, found.remedy)
        self.problem = found
        pause = 0.0 if self._failures == 0 else min(PAUSE_MAX_S, 2.0 ** (self._failures - 1))
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + pause
        return f"{found.detail}; {found.remedy}"

    def _on_change(self) -> None:
        self._has_changes = True
        if self._life is not None and self._asking is None and not self._is_closed:
            name = f"clutch-mcp-tools-{self.settings.name}"
            self._asking = self._tasks.call(self._list_again(self._life), name)

    async def _list_again(self, life: ServerLifetime) -> None:
        try:
            while self._has_changes:
                self._has_changes = False
                await self._update_tools(await life.tools())
                if self._has_changes:
                    await asyncio.sleep(RELIST_PAUSE_S)
        except (Gone, McpServerError, TimeoutError, OSError, ClutchError):
            life.is_doubtful = True  # the next use asks again, or starts it anew
        finally:
            self._asking = None

    async def _wait_for_tools(self) -> None:
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=self.settings.connect_timeout_s)

    async def _update_tools(self, tools: list[Definition]) -> None:
        offered, refused = await asyncio.to_thread(_sorted_out, tools)
        await self._pins.see(self.settings.name, offered)
        self._offered, self.refused = offered, refused
        self._on_tools()
        await self.ask()

    def _check(self, tool: str) -> None:
        if (why := self.why_not(tool)) is not None:
            raise ToolFailed(f"tool {visible(tool, 80)} of {self._title} {why}")

    def _why(self, error: BaseException, wire: Wire) -> tuple[str, str]:
        """Return why a start failed, and what the operator can do about it."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TimeoutError | OSError | Gone):
            said = wire.final_output(self.settings.without_secrets)
            if (found := diagnosed(self.settings, wire.exit_code, said)) is not None:
                return f"did not start: {found.cause}{self._final_output(wire)}", found.remedy
        field = f"mcp.servers.{self.settings.name}.{'url' if self.settings.command is None else 'command'}"
        match error:
            case TimeoutError():
                limit = self.settings.connect_timeout_s
                why, remedy = (
                    f"did not answer within {limit:g} s of its start",
                    f"check {field}, or raise connect_timeout_s",
                )
            case OSError():
                why, remedy = f"cannot be started: {error.strerror or error}", f"check {field} and cwd"
            case Gone():
                why, remedy = "ended during its start", f"run {field} by hand to see why"
            case McpServerError():
                why, remedy = self._clean(str(error)), f"check {field} and the server's own log"
            case _:
                why, remedy = self._clean(f"failed with {type(error).__name__}: {error}"), f"check {field}"
        return f"{why}{self._final_output(wire)}", remedy

    def _final_output(self, wire: Wire) -> str:
        words = self._clean(wire.final_output(self.settings.without_secrets))
        return f" ({words})" if words else ""

    def _clean(self, text: str) -> str:
        return plain(self.settings.without_secrets(text), REASON_CHARS_MAX)


def _offer(server: str, before: Definition | None, after: Definition) -> ToolOffer:
    approved = None if before is None else before.as_json()
    return ToolOffer(after.name, approved, after.as_json(), offer_text(server, before, after))


def _sorted_out(tools: Iterable[Definition]) -> tuple[dict[str, Definition], dict[str, str]]:
    offered: dict[str, Definition] = {}
    refused: dict[str, str] = {}
    for tool in tools:
        try:
            vet(tool)
            if offered.setdefault(tool.name, tool) is not tool:
                raise BadTool("the server lists it twice")
        except BadTool as error:
            refused[tool.name] = str(error)
    return {name: tool for name, tool in offered.items() if name not in refused}, refused


def _key(context: ToolContext) -> str:
    """Return a digest: stable like the key of the call, and without information about the session."""
    return hashlib.sha256(context.key.encode()).hexdigest()[:32]
