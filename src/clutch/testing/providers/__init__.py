"""Model providers on loopback: a real HTTP server that speaks their formats and misbehaves as they do.

    def behave(request: WireRequest) -> Behaviour:
        return Reply([Text("Hel"), Text("lo")], usage=Usage(12, 2))

    async with Providers(behave) as server:
        ...  # server.openai_url, server.anthropic_url; server.log is the provider's own count

`python -m clutch.testing.providers` is the same as a process of its own.
"""

from __future__ import annotations

from clutch.testing.providers.log import CallLog, CallSeen, How
from clutch.testing.providers.script import (
    Behaviour,
    Cut,
    Failure,
    Fault,
    Format,
    Gate,
    Pause,
    Piece,
    Raw,
    Refusal,
    Reply,
    Silence,
    StreamError,
    Text,
    Thinking,
    ToolCall,
    WireRequest,
)
from clutch.testing.providers.server import Providers
from clutch.testing.providers.turns import Turn, turns

__all__ = [
    "Behaviour",
    "CallLog",
    "CallSeen",
    "Cut",
    "Failure",
    "Fault",
    "Format",
    "Gate",
    "How",
    "Pause",
    "Piece",
    "Providers",
    "Raw",
    "Refusal",
    "Reply",
    "Silence",
    "StreamError",
    "Text",
    "Thinking",
    "ToolCall",
    "Turn",
    "WireRequest",
    "turns",
]
