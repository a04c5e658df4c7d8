"""What the engine needs from outside, as Protocols with at least two real users each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from clutch.core.admission import SpawnRequest
from clutch.core.messages import Answer, Transcript
from clutch.core.model import Thinking


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""
        ...


class Lives(Protocol):
    """Sees at once that a process is dead, where the database can tell; elsewhere its lease must run out."""

    async def hold(self, number: int) -> None:
        """Be seen as alive under this number until the process dies."""
        ...

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


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a call runs. `key` is stable across retries and restarts: outside effects carry it."""

    workspace: str
    session_key: str
    key: str


class ToolFailed(Exception):
    """The call failed in a way the model should read and react to."""


class Toolbox(Protocol):
    def specs(self) -> Sequence[ToolSpec]: ...

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        """The text for the model. Raises ToolFailed with a text for it."""
        ...

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        """Arguments of `sessions_spawn` as our own type. Raises InvalidInput naming the field and the rule."""
        ...


@dataclass(frozen=True, slots=True)
class ModelRequest:
    model: str
    system: str
    transcript: Transcript
    tools: Sequence[ToolSpec]
    #: stable name of this call ("session:head"): a witness can count repeated calls by it
    key: str
    thinking: Thinking | None = None  #: None = whatever the provider does by itself
    output_tokens_max: int | None = None


class DeltaKind(StrEnum):
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
    """Why a model call failed. The value is the word shown to people."""

    AUTH = "auth"
    RATE_LIMIT = "rate limit"
    OVERLOADED = "overloaded"
    CONTEXT = "context too long"
    BAD_REQUEST = "bad request"
    NETWORK = "network"
    MALFORMED = "malformed stream"


class ModelError(Exception):
    """A model call failed. `retry_at`: the moment the provider said to come back, if it did."""

    def __init__(self, trouble: Trouble, message: str, retry_at: float | None = None) -> None:
        super().__init__(f"{trouble}: {message}")
        self.trouble = trouble
        self.retry_at = retry_at


class Models(Protocol):
    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        """One model call; its pieces go through `on_delta` as they come. Raises ModelError."""
        ...


class Channel(Protocol):
    async def send(self, target: str, body: str, key: str) -> str | None:
        """Show `body` to a person. At least once; `key` is stable. Returns a receipt.

        Raises ConnectionError (try again) or PermissionError (never)."""
        ...
