"""What the engine needs from outside, as Protocols with at least two real users each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from clutch.core import attachments
from clutch.core.attachments import Attachment, AttachmentRules, FetchedFiles, FileVersion, Handed, SavedRoot
from clutch.core.authority import ToolFilter
from clutch.core.definitions import FileDefinition
from clutch.core.devices import PushKey, Subscription
from clutch.core.messages import Answer, Call, Transcript, Usage
from clutch.core.model import Hook, Thinking
from clutch.core.provider_limits import LimitGrant, LimitRequest
from clutch.core.rate_limit import Bounds, ProviderLimit
from clutch.core.session_tools import SessionCall
from clutch.core.spawn import SpawnRequest


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""


@runtime_checkable
class MeasuredClock(Clock, Protocol):
    """The clock of a database server, followed from this machine."""

    @property
    def wall_offset_s(self) -> float | None:
        """How far the clock of this machine is ahead of it; None before the first measurement."""

    def steady(self) -> float:
        """Seconds by a clock of this machine that nothing can set, and that counts while the machine is suspended."""

    def measured(self, server: float, waited_s: float) -> None:
        """Take the server's time of an answer that has just arrived after so many seconds."""


class Lives(Protocol):
    """Sees at once that a process is dead, where the database can tell; elsewhere its lease must run out."""

    async def hold(self, number: int) -> None:
        """Be seen as alive under this number until the process dies."""

    async def dead(self, numbers: Sequence[int]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What the model and the ledger know of a tool.

    `replay_safe`: may run again when a crash left its outcome unknown. `read_only`: allowed in plan mode."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    replay_safe: bool = False
    read_only: bool = False
    needs_approval: bool = False  #: the user decides about each call
    timeout_s: float | None = None
    concurrency: int | None = None  #: calls of it at once in one process; others wait
    aliases: tuple[str, ...] = ()  #: other names a model may call it by
    is_outward: bool = False  #: reaches beyond the workspace: what it says is not to be trusted


class RemoteTask(NamedTuple):
    """A call that another server carries out as a task. Its id is journaled: a later try waits for the same task."""

    journal: Callable[[str], Awaitable[None]]
    #: whether a later try waits for the task with this id, so that it outlives a call that is cancelled
    is_kept: Callable[[str], Awaitable[bool]]
    known: str | None = None  #: the id that an earlier try has journaled


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a call runs. `key` is stable across retries and restarts: outside effects carry it."""

    workspace: str
    session_key: str
    key: str
    cwd: str = "."  #: beneath the workspace; where commands start
    network: bool = True  #: a sandboxed command may reach the network, if the config allows it
    is_sandboxed: bool | None = None  #: file tools and commands are; None = as the tools are set up
    on_output: Callable[[str], None] | None = None  #: what a command prints, as it comes
    on_exit: Callable[[int | None], None] | None = None  #: its exit code; None: it was ended
    files: str | None = None  #: the task's own directory with `in` and `out`, which may not be there yet
    traceparent: str | None = None  #: W3C trace context, for programs that trace their own work
    reached: str | None = None  #: that of another task, which the call names and may read
    results: str | None = None  #: directory of its large tool results, which may not be there yet
    agent_id: str = ""
    skills: str | None = None  #: the directory with copies of the files of skills
    remote: RemoteTask | None = None  #: None: a task of another server would not be found again


class ToolFailed(Exception):
    """The call failed in a way the model should read and react to."""


@dataclass(frozen=True, slots=True)
class HumanQuestion:
    """What `ask_human` asks. Without choices, any text is an answer."""

    question: str
    choices: tuple[str, ...] = ()


#: Facts about a file, for checks: a tool that no model is offered. Arguments and answer are those of `files.inspect`.
INSPECT: Final = "clutch_inspect"


class Toolbox(Protocol):
    """The tools of all agents of one process."""

    def specs(self) -> Sequence[ToolSpec]:
        """Return what models know of the tools."""

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        """The text for the model. Raises ToolFailed with a text for it."""

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        """Arguments of `ask_human` as our own type. Raises InvalidInput naming the field and the rule."""

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        """Arguments of `sessions_spawn` as our own type. Raises InvalidInput naming the field and the rule."""

    def session_call(self, name: str, args: Mapping[str, Any]) -> SessionCall:
        """Arguments of another session tool (`core.session_tools.TOOLS`). Raises InvalidInput as above."""


class Skills(Protocol):
    """Agent files and skills of one process, read again by `refresh`. `copies`: the directory of files of skills."""

    @property
    def definitions(self) -> Sequence[FileDefinition]: ...

    async def refresh(self, *, at_once: bool = False) -> None: ...

    def offered(self, agent_id: str) -> Sequence[tuple[str, str]]:
        """Return names and descriptions of the skills that this agent may use."""

    @property
    def copies(self) -> str: ...

    def narrowed(self, agent_id: str, name: str) -> ToolFilter | None:
        """Return the tools that a run may use once it has loaded this skill; None: no fewer than before."""

    async def load(self, agent_id: str, name: str) -> str:
        """Return the text of a skill, and where its files are. Raises ToolFailed."""


class Waits(NamedTuple):
    """What a limiter has done since the start: calls let through, the seconds they waited, calls sent away."""

    passages: int = 0
    waited_s: float = 0.0
    turned_away: int = 0

    def passed(self, waited_s: float) -> Waits:
        return self._replace(passages=self.passages + 1, waited_s=self.waited_s + waited_s)

    def sent_away(self) -> Waits:
        return self._replace(turned_away=self.turned_away + 1)


@runtime_checkable
class Limiter(Protocol):
    """Models that stand behind a limiter."""

    def waits(self) -> Mapping[str, Waits]:
        """By provider."""

    def limits(self) -> Mapping[str, ProviderLimit]:
        """By provider: what is in use, what is allowed, and until when no call is sent."""


class SharedLimits(Protocol):
    """What several processes share of their providers, where one database serves them all."""

    def holder(self) -> int | None:
        """Return the number under which this process holds slots; None: others may have declared it dead."""

    async def exchange(self, name: str, bounds: Bounds, request: LimitRequest) -> LimitGrant:
        """Raises ClutchError if the database is not available, or has no such process."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call: the system prompt, the transcript and the tools."""

    model: str
    system: str
    transcript: Transcript
    tools: Sequence[ToolSpec]
    #: stable name of this call ("session:head"): a witness can count repeated calls by it
    key: str
    thinking: Thinking | None = None  #: None = whatever the provider does by itself
    output_tokens_max: int | None = None
    #: What adapters made of the transcript of the request before, to add only what is new. It belongs to one run.
    converted: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)


class DeltaKind(StrEnum):
    """What a piece of an answer belongs to."""

    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"  #: a piece of a tool call: its name first, then its arguments as JSON text


class Delta(NamedTuple):
    """A piece of an answer while it streams. For watchers only: what counts is the Answer."""

    kind: DeltaKind
    text: str
    call: int = 0  #: which tool call of the answer


OnDelta = Callable[[Delta], None]


class Trouble(StrEnum):
    """Why a model call failed. The value is the word shown to users."""

    AUTH = "auth"
    RATE_LIMIT = "rate limit"
    OVERLOADED = "overloaded"
    CONTEXT = "context too long"
    BAD_REQUEST = "bad request"
    NETWORK = "network"
    MALFORMED = "malformed stream"


class ModelError(Exception):
    """A model call failed. `retry_at`: the moment the provider said to come back, if it did.

    `is_sent` False: the request never left this process, so it can have cost nothing.
    `is_begun`: the provider had begun to answer, so it may be billed."""

    def __init__(
        self,
        trouble: Trouble,
        message: str,
        retry_at: float | None = None,
        *,
        is_sent: bool = True,
        is_begun: bool = False,
    ) -> None:
        super().__init__(f"{trouble}: {message}")
        self.trouble = trouble
        self.retry_at = retry_at
        self.is_sent = is_sent
        self.is_begun = is_begun


class Models(Protocol):
    """A client for models."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        """One model call; its pieces go through `on_delta` as they come. Raises ModelError."""


class Verdict(NamedTuple):
    """The decision of the user about a call."""

    is_approved: bool
    text: str = ""


def _silent(*events: object) -> None:
    """There is no watcher."""
    del events


async def _no_user(call: Call | HumanQuestion) -> Verdict:
    del call
    return Verdict(False, "no user is present to ask")


#: How a runtime names the call that is an agent of its own: it lasts as long as the calls that this agent makes.
SUBAGENT_CALL = "subagent"


@dataclass(frozen=True, slots=True)
class RuntimeJob:
    """One run of a child in a runtime that is not the built-in loop.

    It may be started again from the beginning after a crash or a steer: `key` names the run and stays the same
    across crashes, so outside effects should carry it. `say` and `think` stream text to watchers.

    Calls that it makes by itself: `begin` shows one to watchers, `end` writes it into the transcript, together
    with the text before it. `ask` lets the user decide about one: it returns when the user has answered, and holds up
    nothing but this run. After a crash the question is asked again if the run had not received the answer.
    `ask_human` puts a question instead: its answer is the text of the verdict, and a rejection is no answer."""

    text: str  #: the inputs since its last answer: the task, later instructions
    transcript: Transcript
    session_key: str
    workspace: str
    key: str
    model: str | None = None
    traceparent: str | None = None  #: W3C trace context, for agents that trace their own work
    files: str | None = None  #: the task's directory: `in` was given to it, `out` is handed over
    say: Callable[[str], None] = _silent
    think: Callable[[str], None] = _silent
    begin: Callable[[Call], None] = _silent
    end: Callable[[Call, str, bool], None] = _silent  #: the call, what it gave, whether it failed
    ask: Callable[[Call], Awaitable[Verdict]] = _no_user
    ask_human: Callable[[HumanQuestion], Awaitable[Verdict]] = _no_user
    cwd: str = "."  #: beneath the workspace
    is_sandboxed: bool = False  #: what it starts must run in the sandbox
    network: bool = True  #: in the sandbox: whether it may reach the network
    may_change: bool = True  #: its rights let it write files and run commands


class RuntimeFailed(Exception):
    """The run's error, in words that need no name of an exception before them."""


class Runtime(Protocol):
    """Works on a job in its own way. Cancelled at once by a kill, a steer, a pause or its timeout."""

    async def run(self, job: RuntimeJob) -> Answer:
        """The final text, with the usage that is known. An exception is the run's error."""


@dataclass(frozen=True, slots=True)
class OperatorNotice:
    """Something of this process that the operator should know; `doctor`, the health path, the page and
    `/status` show it."""

    subject: str
    detail: str
    remedy: str
    is_error: bool = True  #: False: everything works, and yet it is probably not meant


@dataclass(frozen=True, slots=True)
class Launch:
    """A program as it is started. `env` is all of its environment."""

    argv: Sequence[str]
    cwd: str | None
    env: Mapping[str, str]
    kept: tuple[int, ...] = ()  #: open files it takes along
    #: waits until the program sees a new state directory, ends it and returns why; None without a sandbox
    exposed: Callable[[], Awaitable[str]] | None = None


@dataclass(frozen=True, slots=True)
class SandboxAccess:
    """What a sandboxed program may see: `root` to change, beside it what is named, and the system to read."""

    root: str
    cwd: str
    read_only: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    task: str | None = None  #: the files of its task
    network: bool = False
    memory_bytes: int = 4 << 30  #: that all its processes use together


class ProgramSandbox(Protocol):
    def launching(
        self, argv: Sequence[str], env: Mapping[str, str], room: SandboxAccess
    ) -> AbstractContextManager[Launch]:
        """Lasts as long as the program. Raises ToolFailed where there is no sandbox."""

    async def broken_limit(self, pid: int, room: SandboxAccess) -> str:
        """Waits until the program exceeds a limit of its sandbox, and names the limit."""


class SideWorkFailed(Exception):
    """Something a spawn needs could not be made; the spawn is undone and the text says why."""


class WorkspaceFailed(SideWorkFailed):
    """The directory of an isolated child."""


class Workspaces(Protocol):
    """Directories of children in isolation, named by the task's number. Making and removing are idempotent."""

    async def make(self, task_id: int, source: str) -> str:
        """Its path. A copy of `source` as git sees it, or empty. Raises WorkspaceFailed."""

    async def remove(self, task_id: int) -> None:
        """Raises WorkspaceFailed."""

    async def kept(self) -> list[int]:
        """The tasks that have a directory here, also a half-made one."""


class FilesFailed(SideWorkFailed):
    """The files of a task."""


class TaskFiles(Protocol):
    """One directory per file version: `in/` as given at spawn, `out/` to hand over. All idempotent."""

    def path(self, shelf: FileVersion) -> str:
        """Where the two sides are, or would be."""

    def exists(self, shelf: FileVersion) -> bool:
        """One look at the file system, short enough for an event loop."""

    async def put(self, shelf: FileVersion, files: Sequence[Attachment]) -> None:
        """On disk when this returns. Raises FilesFailed."""

    async def handed(self, shelf: FileVersion, rules: AttachmentRules) -> Handed:
        """What lies in `out/`. Raises FilesFailed."""

    async def read(self, shelf: FileVersion, name: str) -> bytes:
        """A file it hands over. Raises FilesFailed."""

    async def remove(self, shelf: FileVersion, *sides: attachments.Side) -> None:
        """These sides, or all of it. Raises FilesFailed."""

    async def fetch(self, shelf: FileVersion) -> bool:
        """Bring the files to this machine where only another one has them. Return whether they are here.

        Raises FilesFailed."""

    async def kept(self) -> list[FileVersion]:
        """Those that there are here."""


class Blobs(Protocol):
    """Contents of files by key (`a/b/c`), for machines that do not share a disk. All idempotent; raise FilesFailed."""

    async def put(self, key: str, content: bytes) -> None:
        """Durable and whole when this returns; a reader never sees a part."""

    async def get(self, key: str) -> bytes | None: ...

    async def keys(self, folder: str) -> list[str]:
        """Return the keys beneath `folder/`, sorted."""

    async def delete(self, folder: str) -> None:
        """Delete all keys beneath `folder/`."""


class SessionFiles(Protocol):
    """What a session wrote on this machine, stored where other machines find it."""

    place: str  #: this state directory

    def roots(
        self, version: FileVersion, *, is_isolated: bool, is_end: bool = False
    ) -> Mapping[SavedRoot, Path]:
        """Return the directories of a session that exist: a few looks at the file system."""

    async def save(
        self, version: FileVersion, roots: Mapping[SavedRoot, Path], head: int, before: str | None
    ) -> str | None:
        """Store what has changed since the list `before`; return the name of the new one. Raises FilesFailed."""

    async def settle(self, session_id: int, before: str | None, now: str) -> None:
        """Delete what only the former list named. Raises FilesFailed."""

    async def fetch(self, version: FileVersion, saved: str | None, source: str | None) -> FetchedFiles:
        """Bring the files here. `source`: what its isolated workspace was made of; None: it has none of its own."""

    async def remove(self, session_id: int) -> None: ...


class Mentions(Protocol):
    """Files that a user mentions in a message with `@path`, beneath the workspace of the agent."""

    async def with_files(self, text: str, root: str) -> str:
        """Return the message with the text of each file. Raises InvalidInput for one that may not be read."""

    async def names(self, root: str, prefix: str) -> list[str]:
        """Return what may complete a mention. Raises InvalidInput for a path outside of the workspace."""


class ResultFiles(Protocol):
    """Large tool results, one directory per session, out of reach for every other session."""

    def path(self, session_id: int) -> str:
        """Return where they are, or would be."""

    async def keep(self, session_id: int, name: str, text: str) -> None:
        """Write one, in place of an earlier one of the same name. Raises OSError, and ToolFailed beyond the limit."""

    async def kept(self) -> list[int]:
        """Return the sessions that have some here. Raises OSError."""

    async def remove(self, session_id: int) -> None:
        """Remove all of a session. Raises OSError."""


class Prices(Protocol):
    """What model calls cost. None: the price is unknown, which is never 0."""

    def cost(self, model: str, usage: Usage) -> Decimal | None: ...

    def tokens(self, request: ModelRequest) -> int:
        """What sending it takes, about."""

    def window(self, model: str) -> int | None:
        """How many tokens a request may have."""


class Subscriptions(Protocol):
    """The devices that want notifications, as the store knows them now."""

    async def key(self) -> PushKey | None: ...

    async def find(self, device: str) -> Subscription | None: ...

    async def forget(self, device: str) -> None: ...

    async def is_current(self, key: str) -> bool:
        """Whether the notification with this key still says the truth."""


class HookFailed(Exception):
    """A hook raised or took too long. `is_permanent`: it will do so again."""

    is_permanent = False


class Hooks(Protocol):
    """Hooks that decide about spawns and routes. (Hooks that only receive events are a channel.)"""

    async def ask(self, name: Hook, about: Mapping[str, Any]) -> Sequence[Mapping[str, Any] | HookFailed]:
        """The answer of each receiver, in the order they were registered."""


class ThreadFailed(SideWorkFailed):
    """No thread could be made for a child; the spawn is undone and the text says why."""


class Channel(Protocol):
    """A way to reach users: a chat, a mailbox, a webhook."""

    async def send(self, target: str, body: str, key: str) -> str | None:
        """Show `body` to the user. `key` is stable. Returns a receipt.

        Raises ConnectionError (it was not read: try again), PermissionError (never), or any other error such as
        `core.delivery.SendUnsure` (it may have been read: not sent again by itself)."""


@runtime_checkable
class Operated(Channel, Protocol):
    """A channel that names accounts whose messages may be slash commands."""

    @property
    def operators(self) -> Collection[str]:
        """May give commands in bound threads; "*": every account."""

    @property
    def approvers(self) -> Collection[str]:
        """May also approve and reject."""


@runtime_checkable
class Threaded(Channel, Protocol):
    """A channel that has threads."""

    async def open_thread(self, target: str, title: str, key: str) -> str:
        """A new thread beside what `target` names; the same `key` gives the same one. Raises ThreadFailed."""
