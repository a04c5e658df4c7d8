"""The tools an agent has: one registry that checks arguments, runs, and keeps answers storable.

Who may use which tool is not decided here. The session tools and `ask_human` are described
here like all others, but they change the ledger, so the engine carries them out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, Unpack

from pydantic import BaseModel, Field

from clutch.contain import cause, contained
from clutch.core.authority import ALIASES, NEVER_FOR_CHILDREN, SESSION_TOOLS
from clutch.core.policy import Limits
from clutch.core.session_tools import SessionCall
from clutch.core.spawn import SpawnRequest
from clutch.errors import InvalidInput
from clutch.ports import HumanQuestion, ToolContext, ToolFailed, ToolSpec
from clutch.tools import directories, files, session_tools
from clutch.tools.addresses import Reach, reach_of
from clutch.tools.arguments import Arguments, checked, schema_of
from clutch.tools.python_tool import ConcurrencyLimit, python_tool

if TYPE_CHECKING:
    from clutch.tools.web_fetch import Fetcher

# --------------------------------------------------------------------------------------------------
# What a model is told of the built-in tools: their arguments, in as few words as will do.
#
# Every request of every child carries these words. What they do stands in `files` and `web`; `ask_human` is
# carried out by the engine.

Path = Annotated[str, Field(min_length=1)]
Glob = Annotated[str, Field(description="*.py or src/**/*.py", min_length=1, max_length=200)]
Ignored = Annotated[bool, Field(description="also what is in .gitignore")]
Choice = Annotated[str, Field(min_length=1, max_length=200)]
CHOICES_MAX = 20  # more than a person wants to read
QUESTION_CHARS_MAX = 4000


class ReadArguments(Arguments):
    path: Path
    start: int = Field(1, description="first line; negative: from the end")
    limit: int = Field(400, ge=1, le=5000, description="lines")


class ListFilesArguments(Arguments):
    path: Path = "."
    recursive: bool = False
    glob: Glob | None = None
    ignored: Ignored = False
    limit: int = Field(500, ge=1, le=2000)


class SearchArguments(Arguments):
    pattern: str = Field(description="Python regular expression", min_length=1, max_length=1000)
    path: Path = "."
    glob: Glob | None = None
    recursive: bool = True
    ignored: Ignored = False
    limit: int = Field(100, ge=1, le=500)
    per_file: int = Field(20, ge=1, le=500)


class WriteArguments(Arguments):
    path: Path
    text: str


class Edit(Arguments):
    old: str
    new: str
    all: bool = False


class EditArguments(Arguments):
    path: Path
    edits: Annotated[list[Edit], Field(min_length=1, max_length=100)]


class FetchArguments(Arguments):
    url: str
    max_chars: int = Field(20_000, ge=100, le=100_000)


class AskArguments(Arguments):
    question: str = Field(min_length=1, max_length=QUESTION_CHARS_MAX)
    choices: list[Choice] | None = Field(None, max_length=CHOICES_MAX)


READ = "Read a text file with line numbers."
LIST = "List a folder with sizes."
SEARCH = "Search text files line by line."
WRITE = "Write a text file, making the folders it needs."
EDIT = "Replace texts in a file, in order, all or none. Each old must occur exactly once, or set all."
FETCH = "Read a public web page as text."
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
    schema_of(session_tools.YieldArguments),
    replay_safe=True,
    read_only=True,
)
ASK = ToolSpec("ask_human", ASK_DESCRIPTION, schema_of(AskArguments), replay_safe=True, read_only=True)
BY_THE_ENGINE = (ASK, SPAWN, YIELD, *session_tools.SPECS)

#: A tool of such a name would be taken for the one that has it, by a rule or by a model.
RESERVED = (
    NEVER_FOR_CHILDREN
    | SESSION_TOOLS
    | ALIASES.keys()
    | {"submit_result"}
    | {spec.name for spec in BY_THE_ENGINE}
)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what every provider takes


class Flags(TypedDict, total=False):
    """What else is known of a tool; `ToolSpec` tells what each means."""

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
    seats: ConcurrencyLimit


class Tools:
    """A Toolbox. Empty but for what the engine carries out; `standard_tools` has the others too."""

    def __init__(self, limits: Limits | None = None, *, aliases: bool = False) -> None:
        self._limits = limits or Limits()
        self._has_aliases = aliases
        self._tools: dict[str, _Tool] = {}

    def tool(self, *, name: str | None = None, **flags: Unpack[Flags]) -> Callable[[F], F]:
        """Registers the function below it: typed parameters and a docstring are all it needs."""

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
        """Without a name or description, the function's own are used."""
        description = description or (function.__doc__ or "").strip()
        spec = ToolSpec(name or function.__name__, description, schema_of(arguments), **flags)

        async def run(args: Mapping[str, Any], context: ToolContext) -> str:
            return await function(checked(arguments, args), context)

        self.register(spec, run)

    def register(self, spec: ToolSpec, run: Run) -> None:
        """A tool that checks its own arguments. Raises InvalidInput for a name or a number that won't do."""
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
        specs = [*(tool.spec for tool in self._tools.values()), *BY_THE_ENGINE]
        return [_with_aliases(spec) for spec in specs] if self._has_aliases else specs

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        tool = self._tools.get(name)
        if tool is None:
            raise ToolFailed(f"there is no tool named {name[:80]!r}; there are: {', '.join(self._tools)}")
        try:
            async with tool.seats.here():
                with contained():
                    return storable(await _timed(tool, args, context))
        except (InvalidInput, ToolFailed) as error:
            raise ToolFailed(storable(str(error))) from error
        except Exception as error:  # a tool is a stranger's code; the model hears what it raised
            raise ToolFailed(storable(cause(error)[:ERROR_CHARS_MAX])) from error

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return session_tools.request_of(args, self._limits)

    def session_call(self, name: str, args: Mapping[str, Any]) -> SessionCall:
        return session_tools.session_call(name, args)

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        """Arguments of `ask_human` as our own type. Raises InvalidInput naming the field and the rule."""
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
        if not limit.expired():  # the tool's own
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
            return await run_files(name, *await directories.found(name, given.model_dump(), context), context)

        tools.add(run, name=name, description=description, arguments=arguments, **flags)

    add("read", READ, ReadArguments, replay_safe=True, read_only=True)
    add("list", LIST, ListFilesArguments, replay_safe=True, read_only=True)
    add("search", SEARCH, SearchArguments, replay_safe=True, read_only=True)
    # Writing the same text again changes nothing, so a crash in between is no reason to ask. An edit may find
    # its `old` again in what it wrote, or find it gone and seem to have failed.
    add("write", WRITE, WriteArguments, replay_safe=True)
    add("edit", EDIT, EditArguments)
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
    """In a thread: loading an HTTP client must not stop the event loop."""
    from clutch.tools.web_fetch import Fetcher

    return Fetcher(reach)


def storable(text: str) -> str:
    """No database takes NUL or half a surrogate pair, and no model a text without end."""
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if len(clean) <= ANSWER_CHARS_MAX:
        return clean
    return f"{clean[:ANSWER_CHARS_MAX]}\n(cut: {len(clean)} characters, {ANSWER_CHARS_MAX} shown)"
