"""The adapters the contract is for, each with the format in which it meets the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from clutch.models.chat_completions import DirectModels
from clutch.models.library import LibraryModels
from clutch.models.provider import AdapterKind, Provider
from clutch.ports import Models
from clutch.testing.providers import Format, Providers

MODEL = "small-model"


class Closable(Models, Protocol):
    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    format: Format
    #: settings and key → the adapter
    make: Callable[[Provider, str], Closable]
    kind: AdapterKind = AdapterKind.LIBRARY
    speaks: str = ""
    #: What comes back for a filtered answer: some formats know no filter, only refusals.
    filtered: str = "filter"
    #: Tested with a thousand at once; the others have the same kind of transport, or the very same.
    is_crowded: bool = False

    def url(self, server: Providers) -> str:
        return server.anthropic_url if self.format is Format.MESSAGES else server.openai_url


ADAPTERS = [
    Adapter("direct", Format.CHAT, DirectModels, AdapterKind.DIRECT, is_crowded=True),
    Adapter("library-compatible", Format.CHAT, LibraryModels),
    Adapter("library-chat", Format.CHAT, LibraryModels, speaks="openai-chat", is_crowded=True),
    Adapter("library-ollama", Format.CHAT, LibraryModels, speaks="ollama"),
    Adapter("library-responses", Format.RESPONSES, LibraryModels, speaks="openai-responses", is_crowded=True),
    Adapter(
        "library-anthropic",
        Format.MESSAGES,
        LibraryModels,
        speaks="anthropic",
        filtered="refusal",
        is_crowded=True,
    ),
]
