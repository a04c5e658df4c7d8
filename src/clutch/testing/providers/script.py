"""What a provider does with a request: pieces of an answer, and ways to misbehave.

Independent of any wire format; `chat`, `responses` and `messages` put it into theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, assert_never

from clutch.core.messages import Usage


class Format(StrEnum):
    CHAT = "openai-chat"
    RESPONSES = "openai-responses"
    MESSAGES = "anthropic"


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as it arrived. `key` is the caller's stable name of the call, `api_key` who pays."""

    format: Format
    model: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    size: int
    ordinal: int  #: 1 for the first request of this server
    key: str
    api_key: str

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """As sent; `turns(request)` says the same in one form for all formats."""
        found: Sequence[Mapping[str, Any]] = self.body[
            "input" if self.format is Format.RESPONSES else "messages"
        ]
        return found

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.body.get("tools") or ()
        return found


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    text: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is JSON text, sent in these pieces. Without an id the server makes one up."""

    name: str
    arguments: tuple[str, ...] = ("{}",)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Gate:
    """Nothing more is sent until the test opens it."""

    opens: asyncio.Event


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing more is ever sent; the connection stays open."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks here. `is_clean`: the body ends in good order, only the answer is not complete."""

    is_clean: bool = False


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes, whatever they mean."""

    data: bytes


class Fault(StrEnum):
    """What providers complain of; each format has its own status, type and wording for it."""

    BAD_REQUEST = "bad request"
    AUTH = "auth"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not found"
    CONTEXT = "context too long"
    TOO_LARGE = "too large"
    RATE_LIMIT = "rate limit"
    SERVER = "server error"
    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"


STATUSES: Mapping[Fault, int] = {
    Fault.BAD_REQUEST: 400,
    Fault.AUTH: 401,
    Fault.FORBIDDEN: 403,
    Fault.NOT_FOUND: 404,
    Fault.CONTEXT: 400,
    Fault.TOO_LARGE: 413,
    Fault.RATE_LIMIT: 429,
    Fault.SERVER: 500,
    Fault.UNAVAILABLE: 503,
    Fault.OVERLOADED: 529,
}


@dataclass(frozen=True, slots=True)
class StreamError:
    """The provider gives up in the middle of a stream that began with status 200."""

    fault: Fault = Fault.OVERLOADED
    message: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error instead of an answer. An empty message means the format's own wording."""

    fault: Fault
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int | None = None

    @property
    def code(self) -> int:
        return self.status or STATUSES[self.fault]


Control: TypeAlias = Pause | Gate | Silence | Cut
Said: TypeAlias = Text | Thinking | Refusal | ToolCall
Piece: TypeAlias = Said | Control | Raw | StreamError


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `stop`: end | tools | length | filter | refusal; by itself what the pieces imply."""

    pieces: Sequence[Piece] = ()
    #: None: the provider says nothing of it
    usage: Usage | None = field(default_factory=lambda: Usage(10, 5))
    stop: str = ""
    model: str | None = None  #: None: the one that was asked for
    latency_s: float = 0.0  #: before the first byte
    drip_s: float = 0.0  #: between two chunks; without it chunks may share a packet
    split_bytes: int = 0  #: send in slices of this size, through the middle of events and characters

    @property
    def stops(self) -> str:
        if self.stop:
            return self.stop
        return "tools" if any(isinstance(piece, ToolCall) for piece in self.pieces) else "end"

    @property
    def said(self) -> list[Said]:
        return [piece for piece in self.pieces if isinstance(piece, Text | Thinking | Refusal | ToolCall)]


def streamed(
    reply: Reply, say: Callable[[Said], Iterable[bytes]], fail: Callable[[StreamError], bytes]
) -> Generator[bytes | Control, None, bool]:
    """The pieces in any format (`chat` has its own, which is faster). False: it broke off, and nothing may follow."""
    for piece in reply.pieces:
        match piece:
            case Text() | Thinking() | Refusal() | ToolCall():
                yield from say(piece)
            case StreamError():
                yield fail(piece)
                return False
            case Raw(data):
                yield data
            case Pause() | Gate() | Silence():
                yield piece
            case Cut():
                yield piece
                return False
            case _:
                assert_never(piece)
    return True


Behaviour: TypeAlias = Reply | Failure | Silence
