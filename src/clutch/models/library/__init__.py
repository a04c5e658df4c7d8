"""Any provider through the model library: one streamed request, converted to and from our messages.

The library takes seconds to import, so it is loaded when the first model is prepared, in a thread. It never retries:
the rate limiter and the engine see every failure.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from clutch.core.messages import Answer
from clutch.errors import InvalidInput, MissingExtra, extra
from clutch.models.provider import Provider, mismatch
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble

if TYPE_CHECKING:
    from clutch.models.library.clients import LibraryClient
    from clutch.models.library.messages import Asker

OTHER_CLIENTS = frozenset({"bedrock", "google", "groq", "mistral", "openrouter"})
ASKERS_MAX = 256  #: models kept ready; agents may name any number of them


class LibraryModels:
    """The models of one provider. `request.model` is the provider's own name of one."""

    def __init__(self, provider: Provider, key: str) -> None:
        self._provider = provider
        self._key = key
        self._preparing = asyncio.Lock()
        self._client: LibraryClient | None = None
        self._askers: dict[str, Asker] = {}

    async def prepare(self, model: str) -> Asker:
        """Imports what this model needs; without it the first call does. Raises ModelError."""
        if (ready := self._ready(model)) is not None:
            return ready
        async with self._preparing:
            asker = self._ready(model)
            if asker is None:
                try:
                    asker = await asyncio.to_thread(self._make, model)
                except (InvalidInput, MissingExtra) as error:
                    raise ModelError(Trouble.BAD_REQUEST, str(error), is_sent=False) from error
                self._askers[model] = asker
                if len(self._askers) > ASKERS_MAX:
                    del self._askers[next(iter(self._askers))]
        return asker

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        asker = await self.prepare(request.model)
        answer = await asker.ask(request, on_delta, time.time)
        wrong = None if self._provider.allow_model_mismatch else mismatch(request.model, answer.model)
        if wrong is not None:
            raise wrong
        return answer

    async def aclose(self) -> None:
        self._askers.clear()
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _ready(self, model: str) -> Asker | None:
        asker = self._askers.pop(model, None)
        if asker is not None:
            self._askers[model] = asker  # what was used last is dropped last
        return asker

    def _make(self, model: str) -> Asker:
        with extra(extra_of(self._provider), f"the provider {self._provider.name!r}"):
            from clutch.models.library.clients import connect
            from clutch.models.library.messages import Asker

            if self._client is None:
                self._client = connect(self._provider, self._key)
            return Asker(self._provider, self._client, model)


def extra_of(provider: Provider) -> str:
    """The extra that brings the client of a provider; most of them speak OpenAI's language."""
    if provider.language == "anthropic":
        return "anthropic"
    return "providers" if provider.language in OTHER_CLIENTS else "openai"
