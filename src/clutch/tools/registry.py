"""The tools of an agent: a registry that checks arguments, runs tools and bounds their answers.

`Tools` is the registry, `AllTools` adds what serves the tools of one process: the sandbox and MCP servers. Neither
decides who may use which tool. The session tools and `ask_human` are described here like all others, but they change
the store, so the engine carries them out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, Unpack

from pydantic import BaseModel, Field

from clutch.contain import cause, contained
from clutch.core.agents import SKILL_TOOL
from clutch.core.attachments import WRITING
from clutch.core.authority import ALIASES, NEVER_FOR_CHILDREN, SESSION_TOOLS
from clutch.core.policy import Limits
from clutch.core.session_tools import SessionCall
from clutch.core.spawn import SpawnRequest
from clutch.core.validation import check
from clutch.errors import InvalidInput
from clutch.ports import INSPECT, HumanQuestion, OperatorNotice, Skills, ToolContext, ToolFailed, ToolSpec
from clutch.tools import files, session_tools, task_files
from clutch.tools.addresses import Reach, reach_of
from clutch.tools.arguments import Arguments, checked, schema_of
from clutch.tools.file_process import FileProcess
from clutch.tools.import_guard import GUARD
from clutch.tools.mcp import McpServer, McpTools
from clutch.tools.mcp.definitions import ToolPins
from clutch.tools.python_tool import ConcurrencyLimit, python_tool
from clutch.tools.sandbox.policy import Sandbox
from clutch.tools.sandbox.protected_files import COMMANDS
from clutch.tools.shell import Shell, ShellArguments

if TYPE_CHECKING:
    from clutch.tools.web_fetch import Fetcher

# --------------------------------------------------------------------------------------------------
# The schemas of the built-in tools, in few words: every request of every child carries them.

FilePath = Annotated[str, Field(min_length=1)]
Glob = Annotated[str, Field(description="*.py or src/**/*.py", min_length=1, max_length=200)]
Ignored = Annotated[bool, Field(description="also what is in .gitignore")]
Choice = Annotated[str, Field(min_length=1, max_length=200)]
CHOICES_MAX = 20  # more than a person wants to read
QUESTION_CHARS_MAX = 4000


class ReadArguments(Arguments):
    path: FilePath
    start: int = Field(1, description="first line; negative: from the end")
    limit: int = Field(400, ge=1, le=5000, description="lines")


class ListFilesArguments(Arguments):
    path: FilePath = "."
    recursive: bool = False
    glob: Glob | None = None
    ignored: Ignored = False
    limit: int = Field(500, ge=1, le=2000)


class SearchArguments(Arguments):
    pattern: str = Field(description="Python regular expression", min_length=1, max_length=1000)
    path: FilePath = "."
    glob: Glob | None = None
    recursive: bool = True
    ignored: Ignored = False
    limit: int = Field(100, ge=1, le=500)
    per_file: int = Field(20, ge=1, le=500)


class InspectArguments(Arguments):
    path: FilePath
    pattern: str | None = None
    text: bool = False


class WriteArguments(Arguments):
    path: FilePath
    text: str


class Edit(Arguments):
    old: str
    new: str
    all: bool = False


class EditArguments(Arguments):
    path: FilePath
    edits: Annotated[list[Edit], Field(min_length=1, max_length=100)]


class FetchArguments(Arguments):
    url: str
    max_chars: int = Field(20_000, ge=100, le=100_000)


class SkillArguments(Arguments):
    name: str = Field(min_length=1, max_length=64)


class AskArguments(Arguments):
    question: str = Field(min_length=1, max_length=QUESTION_CHARS_MAX)
    choices: list[Choice] | None = Field(None, max_length=CHOICES_MAX)


READ = "Read a text file with line numbers."
LIST = "List a folder with sizes."
SEARCH = "Search text files line by line."
WRITE = "Write a text file, making the folders it needs."
EDIT = "Replace texts in a file, in order, all or none. Each old must occur exactly once, or set all."
FETCH = "Read a public web page as text."
SHELL = "Run a command in the workspace. No network unless granted."
SKILL = "Load a skill: its instructions, and where its files are."
ASK_DESCRIPTION = "Ask a person and wait. Only for what you cannot find out or decide yourself."


ANSWER_CHARS_MAX = 256 * 1024  # one answer must never fill a context window by itself
ERROR_CHARS_MAX = 500
FETCHES_MAX = 32  # at once: pages are read into memory

A = TypeVar("A", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., Any])
Run = Callable[[Mapping[str, Any], ToolContext], Awaitable[str]]
#: Serves one call of a file tool: its name, checked arguments and the workspace. Raises ToolFailed.
RunFiles = Callable[[str, Mapping[str, Any], str, ToolContext], Awaitable[str]]

SPAWN = ToolSpec(
    "sessions_spawn",
    "Give a task to a background child. Answers at once; its result is pushed to you: do not poll. Answer only "
    "after ALL have reported.",
    schema_of(session_tools.SpawnSchema),
    read_only=True,  # the child of a session that may only read may only read, too
)
YIELD = ToolSpec(
    "sessions_yield",
    "Wait until all your children have reported. Their results come as your next message.",
    schema_of(session_tools.NoArguments),
    replay_safe=True,
    read_only=True,
)
ASK = ToolSpec("ask_human", ASK_DESCRIPTION, schema_of(AskArguments), replay_safe=True, read_only=True)
BY_THE_ENGINE = (ASK, SPAWN, YIELD, *session_tools.SPECS)

#: A tool of such a name would be mistaken for a built-in one, by a rule of authority or by a model.
RESERVED = (
    NEVER_FOR_CHILDREN
    | SESSION_TOOLS
    | ALIASES.keys()
    | {"submit_result"}
    | {spec.name for spec in BY_THE_ENGINE}
)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what every provider takes


class Flags(TypedDict, total=False):
    """Further properties of a tool; `ToolSpec` explains them."""

    replay_safe: bool
    read_only: bool
    needs_approval: bool
    timeout_s: float | None
    concurrency: int | None
    is_outward: bool


@dataclass(frozen=True, slots=True)
class _Tool:
    spec: ToolSpec
    run: Run
    limit: ConcurrencyLimit


class Tools:
    """A Toolbox with the tools that the engine carries out; `standard_tools` adds the built-in ones."""

    def __init__(self, limits: Limits | None = None, *, aliases: bool = False) -> None:
        self._limits = limits or Limits()
        self._has_aliases = aliases
        self._tools: dict[str, _Tool] = {}

    def tool(self, *, name: str | None = None, **flags: Unpack[Flags]) -> Callable[[F], F]:
        """Register the decorated function, which needs typed parameters and a docstring."""

        def register(function: F) -> F:
            made = python_tool(function, name, flags.get("concurrency"))
            self.add(
                made.call, arguments=made.arguments, name=made.name, description=made.description, **flags
            )
            return function

        return register

    def add(
        self,
        function: Callable[[A, ToolContext], Awaitable[str]],
        *,
        arguments: type[A],
        name: str | None = None,
        description: str | None = None,
        **flags: Unpack[Flags],
    ) -> None:
        """Add a tool. Without a name or description, the function's own are used."""
        description = description or (function.__doc__ or "").strip()
        spec = ToolSpec(name or function.__name__, description, schema_of(arguments), **flags)

        async def run(args: Mapping[str, Any], context: ToolContext) -> str:
            return await function(checked(arguments, args), context)

        self.register(spec, run)

    def register(self, spec: ToolSpec, run: Run) -> None:
        """Add a tool that checks its own arguments. Raises InvalidInput for an unusable name or number."""
        self._check(spec)
        self._tools[spec.name] = _Tool(spec, run, ConcurrencyLimit(spec.concurrency))

    def remove(self, name: str) -> None:
        self._tools.pop(name, None)

    def _check(self, spec: ToolSpec) -> None:
        tool = f"tool {spec.name[:80]!r}"
        if not _NAME.fullmatch(spec.name):
            raise InvalidInput(tool, "must have a name of at most 64 letters, digits, _ and -; give it one")
        if spec.name in self._tools:
            raise InvalidInput(tool, "there is already a tool of this name; choose another")
        if spec.name in RESERVED:
            raise InvalidInput(tool, "is a reserved name; choose another")
        if spec.timeout_s is not None and not spec.timeout_s > 0:
            raise InvalidInput(f"{tool}, timeout_s", "must be more than 0; leave it out for none")
        if spec.concurrency is not None and spec.concurrency < 1:
            raise InvalidInput(f"{tool}, concurrency", "must be at least 1; leave it out for no limit")

    def has(self, name: str) -> bool:
        return name in self._tools

    def specs(self) -> Sequence[ToolSpec]:
        specs = [*(self._tools[name].spec for name in self._offered()), *BY_THE_ENGINE]
        return [_with_aliases(spec) for spec in specs] if self._has_aliases else specs

    def _offered(self) -> Sequence[str]:
        return [name for name in self._tools if name != INSPECT]

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolFailed(f"there is no tool named {name[:80]!r}; there are: {', '.join(self._offered())}")
        try:
            async with tool.limit.slot():
                with contained():
                    return storable(await _timed(tool, args, context))
        except (InvalidInput, ToolFailed) as error:
            raise ToolFailed(storable(str(error))) from error
        except Exception as error:  # a tool is foreign code; the model gets the text of its exception
            raise ToolFailed(storable(cause(error)[:ERROR_CHARS_MAX])) from error

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return session_tools.request_of(args, self._limits)

    def session_call(self, name: str, args: Mapping[str, Any]) -> SessionCall:
        return session_tools.session_call(name, args)

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        """Check the arguments of `ask_human`. Raises InvalidInput naming the field and the rule."""
        said = checked(AskArguments, args)
        if not said.question.strip():
            raise InvalidInput("question", "must not be blank")
        return HumanQuestion(said.question, tuple(said.choices or ()))


def _with_aliases(spec: ToolSpec) -> ToolSpec:
    return replace(spec, aliases=tuple(alias for alias, name in ALIASES.items() if name == spec.name))


async def _timed(tool: _Tool, args: Mapping[str, Any], context: ToolContext) -> str:
    seconds = tool.spec.timeout_s
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await tool.run(args, context)
    except TimeoutError as error:
        if not limit.expired():  # the tool itself raised it
            raise
        raise ToolFailed(f"{tool.spec.name}: no answer within {seconds:g} s; it was given up") from error


async def files_in_thread(name: str, args: Mapping[str, Any], workspace: str, context: ToolContext) -> str:
    del context
    return await asyncio.to_thread(files.run, name, args, workspace)


def standard_tools(
    limits: Limits | None = None,
    *,
    run_files: RunFiles = files_in_thread,
    allow_private: Sequence[str] = (),
    aliases: bool = False,
) -> Tools:
    """`allow_private`: hosts and networks that `web_fetch` may reach although they are not public."""
    tools = Tools(limits, aliases=aliases)

    def add(name: str, description: str, arguments: type[BaseModel], **flags: Unpack[Flags]) -> None:
        async def run(given: BaseModel, context: ToolContext) -> str:
            return await run_files(
                name, *await task_files.located(name, given.model_dump(), context), context
            )

        tools.add(run, name=name, description=description, arguments=arguments, **flags)

    add("read", READ, ReadArguments, replay_safe=True, read_only=True)
    add("list", LIST, ListFilesArguments, replay_safe=True, read_only=True)
    add("search", SEARCH, SearchArguments, replay_safe=True, read_only=True)
    # Writing the same text twice changes nothing, so a write may be repeated after a crash. An edit may not: it could
    # find its `old` again in what it wrote, or find it gone and seem to have failed.
    add("write", WRITE, WriteArguments, replay_safe=True)
    add("edit", EDIT, EditArguments)

    async def inspect(given: InspectArguments, context: ToolContext) -> str:
        args, root = await task_files.located(INSPECT, given.model_dump(), context)
        return await run_files("inspect", args, root, context)

    description = "Size of a file, and whether a line matches."
    tools.add(inspect, name=INSPECT, description=description, arguments=InspectArguments)
    reach = reach_of(allow_private)

    async def web_fetch(given: FetchArguments, context: ToolContext) -> str:
        del context
        fetcher = await asyncio.to_thread(_fetcher, reach)
        return await fetcher.fetch(given.url, given.max_chars)

    tools.add(
        web_fetch,
        arguments=FetchArguments,
        description=FETCH,
        replay_safe=True,
        read_only=True,
        concurrency=FETCHES_MAX,
        is_outward=True,
    )
    return tools


def _fetcher(reach: Reach) -> Fetcher:
    """Called in a thread: importing an HTTP client would block the event loop."""
    from clutch.tools.web_fetch import Fetcher

    return Fetcher(reach)


def storable(text: str) -> str:
    """Return a text that every database takes (no NUL, no half of a surrogate pair), cut to a bounded length."""
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(clean) <= ANSWER_CHARS_MAX:
        return clean
    return f"{clean[:ANSWER_CHARS_MAX]}\n(cut: {len(clean)} characters, {ANSWER_CHARS_MAX} shown)"


# --------------------------------------------------------------------------------------------------
# All tools of one process. Opened once and closed once.


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The settings of the tools of one process."""

    #: Run commands and file tools in the sandbox. With "off" they have all your rights.
    sandbox: Sandbox = Sandbox.ON
    network: bool = False  #: Network access of sandboxed commands, for agents that may have it.
    allow_private: tuple[str, ...] = ()  #: Hosts that web_fetch may reach although their address is private.
    aliases: bool = False  #: Also offer tools under the names that other systems use.
    shell_needs_approval: bool = False  #: A person approves every shell command.
    mcp_servers: tuple[McpServer, ...] = ()  #: MCP servers whose tools agents get.

    def __post_init__(self) -> None:
        check(self)


class AllTools:
    """The Toolbox of one process: built-in tools in the sandbox, Python functions, MCP servers.

    `state`: the state directory, which no tool may see; MCP servers have their folders in it."""

    def __init__(self, limits: Limits, settings: ToolSettings, state: Path | None) -> None:
        hidden = () if state is None else (str(state),)
        journal = None if state is None else str(state / COMMANDS)
        kinds = {True: Sandbox.ON, False: Sandbox.OFF}
        self._files = {
            is_sandboxed: FileProcess(sandbox=kind, hidden=hidden) for is_sandboxed, kind in kinds.items()
        }
        self._shells = {
            (is_sandboxed, network): Shell(kind, network, hidden=hidden, journal=journal)
            for is_sandboxed, kind in kinds.items()
            for network in (False, settings.network)
        }
        self._has_network = settings.network
        self.tools: Tools = standard_tools(
            limits, run_files=self._run_files, allow_private=settings.allow_private, aliases=settings.aliases
        )
        self.tools.add(
            self._run_shell,
            arguments=ShellArguments,
            name="shell",
            description=SHELL,
            needs_approval=settings.shell_needs_approval,
        )
        self.has_servers = bool(settings.mcp_servers)
        self.is_sandboxed = settings.sandbox is Sandbox.ON
        self.mcp = None if state is None else McpTools(settings.mcp_servers, state)

    def open_skills(self, skills: Skills, copies: str) -> bool:
        """Add the tool that loads skills. `copies`: the folder with their files, which commands can read.

        False: the program has a tool of that name, which stays."""
        if self.tools.has(SKILL_TOOL):
            return False

        async def load(given: SkillArguments, context: ToolContext) -> str:
            return await skills.load(context.agent_id, given.name)

        self.tools.add(
            load,
            arguments=SkillArguments,
            name=SKILL_TOOL,
            description=SKILL,
            replay_safe=True,
            read_only=True,
        )
        self._shells = {key: replace(one, read_only=(copies,)) for key, one in self._shells.items()}
        return True

    async def open(self, pins: ToolPins) -> None:
        """Read which tools of MCP servers are approved. Called before the first turn."""
        if self.mcp is not None:
            await self.mcp.open(pins)

    async def ready(self) -> None:
        """Start the MCP servers whose tools are not known."""
        if self.mcp is not None:
            await self.mcp.ready()

    def problems(self) -> Sequence[OperatorNotice]:
        """Return the MCP servers that do not work now."""
        return () if self.mcp is None else self.mcp.reports()

    async def close(self) -> None:
        for process in self._files.values():
            await process.close()
        if self.mcp is not None:
            await self.mcp.close()

    def _sandboxes(self, context: ToolContext) -> bool:
        return self.is_sandboxed if context.is_sandboxed is None else context.is_sandboxed

    async def _run_files(
        self, name: str, args: Mapping[str, Any], workspace: str, context: ToolContext
    ) -> str:
        # From the first call on, this process loads no module from a folder that agents can write to.
        GUARD.protect((workspace,))
        process = self._files[self._sandboxes(context)]
        return await process.run(name, args, workspace, read_only=name not in WRITING)

    async def _run_shell(self, given: ShellArguments, context: ToolContext) -> str:
        if given.cwd == ".":
            given = given.model_copy(update={"cwd": context.cwd})
        GUARD.protect((context.workspace,))
        shell = self._shells[self._sandboxes(context), context.network and self._has_network]
        return await shell.run(given, context, context.on_output)

    # ---- a Toolbox -----------------------------------------------------------------------------------

    def specs(self) -> Sequence[ToolSpec]:
        own = self.tools.specs()
        return own if self.mcp is None or not self.has_servers else [*own, *self.mcp.specs()]

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        if self.mcp is not None and not self.tools.has(name) and self.mcp.has(name):
            return await self.mcp.run(name, args, context)
        return await self.tools.run(name, args, context)

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        return self.tools.human_question(args)

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return self.tools.spawn_request(args)

    def session_call(self, name: str, args: Mapping[str, Any]) -> SessionCall:
        return self.tools.session_call(name, args)
