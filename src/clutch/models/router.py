"""One door to all models: `provider:model` chooses the adapter, which is made when it is first asked for.

Says what is wrong with a name, a key or an address before anything is sent, and how to put it right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeAlias

from clutch.core.keys import hint
from clutch.core.messages import Answer
from clutch.errors import InvalidInput
from clutch.models import names
from clutch.models.direct import DirectModels
from clutch.models.settings import WELL_KNOWN, AdapterKind, Provider
from clutch.ports import ModelError, ModelRequest, Models, OnDelta, Trouble

OFFLINE = "offline"
SHOWN_MAX = 80  # an error repeats enough of a name to recognise it


class Adapter(Models, Protocol):
    """The models of one provider, known by the provider's own names."""

    async def prepare(self, model: str) -> object:
        """Loads what this model needs, off the event loop. Raises ModelError."""
        ...

    async def aclose(self) -> None: ...


#: Settings and key.
Factory: TypeAlias = Callable[[Provider, str], Adapter]


class Router:
    """`library` makes adapters for providers that are not reached directly; `offline` needs no provider."""

    def __init__(
        self,
        providers: Iterable[Provider],
        *,
        offline: Models,
        library: Factory,
        direct: Factory = DirectModels,
        environment: Mapping[str, str] = os.environ,
        idle_s: float | None = None,
    ) -> None:
        """`idle_s`: how long a provider may be silent that does not say it itself."""
        self._providers = {
            one.name: one if one.idle_timeout_s is not None else replace(one, idle_timeout_s=idle_s)
            for one in (*map(Provider, WELL_KNOWN), *providers)
        }
        self._offline = offline
        self._factories = {AdapterKind.LIBRARY: library, AdapterKind.DIRECT: direct}
        self._environment = environment
        self._adapters: dict[str, Adapter] = {}

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        if request.model == OFFLINE:
            return await self._offline.ask(request, on_delta)
        adapter, model = self._route(request.model)
        return await adapter.ask(replace(request, model=model), on_delta)

    async def prepare(self, model: str) -> None:
        """Whatever loading takes is done before the first call. What cannot be asked says so when it is."""
        if model == OFFLINE:
            return
        with suppress(ModelError):
            adapter, name = self._route(model)
            await adapter.prepare(name)

    def knows(self, model: str) -> bool:
        """Whether it names a provider there is; what is asked of another one is refused here."""
        return model == OFFLINE or names.parse(model).provider in self._providers

    def provider(self, model: str) -> Provider | None:
        """Whose model this is; None for the offline one. Raises InvalidInput naming the remedy."""
        if model == OFFLINE:
            return None
        name = names.parse(model)
        known = self._providers.get(name.provider)
        if known is None:
            raise InvalidInput("model", self._unknown(model, name.provider))
        if not name.model.strip():
            raise InvalidInput("model", f"{model[:SHOWN_MAX]!r} names no model after the colon")
        return known

    def check(self, model: str) -> None:
        """Whether it could be asked: provider, name and key. Raises InvalidInput naming the remedy."""
        provider = self.provider(model)
        if provider is not None:
            provider.key(self._environment)

    async def aclose(self) -> None:
        adapters = list(self._adapters.values())
        self._adapters.clear()
        for adapter in adapters:
            await adapter.aclose()

    def _route(self, model: str) -> tuple[Adapter, str]:
        name = names.parse(model)
        adapter = self._adapters.get(name.provider)
        if adapter is None or not name.model:
            adapter = self._adapter(model)
        return adapter, name.model

    def _adapter(self, model: str) -> Adapter:
        try:
            provider = self.provider(model)
        except InvalidInput as error:
            raise ModelError(Trouble.BAD_REQUEST, str(error), is_sent=False) from error
        assert provider is not None
        try:
            key = provider.key(self._environment)
        except InvalidInput as error:
            raise ModelError(Trouble.AUTH, str(error), is_sent=False) from error
        return self._adapters.setdefault(provider.name, self._factories[provider.adapter](provider, key))

    def _unknown(self, model: str, provider: str) -> str:
        shown = model[:SHOWN_MAX]
        if not provider:
            return (
                f"{shown!r} names no provider: write provider:model, or {OFFLINE!r}{hint(shown, [OFFLINE])}"
            )
        near = hint(provider, self._providers)
        known = ", ".join(sorted(self._providers))
        return f"there is no provider {provider[:SHOWN_MAX]!r}{near} (known: {known}; add others to models.providers)"
