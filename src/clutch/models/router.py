"""The models of all providers: `provider:model` chooses the adapter, which is made when it is first used.

A wrong name, key or address is refused before anything is sent, with a text that names the fix.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeAlias

from clutch.core.ids import hint
from clutch.core.messages import Answer
from clutch.errors import InvalidInput
from clutch.models import provider
from clutch.models.chat_completions import DirectModels
from clutch.models.prices import LISTED_AS, offers
from clutch.models.provider import KEY_VARIABLES, WELL_KNOWN, AdapterKind, Provider
from clutch.ports import ModelError, ModelRequest, Models, OnDelta, Trouble

OFFLINE = "offline"
SHOWN_MAX = 80  # an error repeats enough of a name to recognise it


class Adapter(Models, Protocol):
    """The models of one provider, by the provider's own names."""

    async def prepare(self, model: str) -> object:
        """Load what this model needs, off the event loop. Raises ModelError."""
        ...

    async def aclose(self) -> None: ...


#: Settings and key.
Factory: TypeAlias = Callable[[Provider, str], Adapter]


class Router:
    """`library` makes the adapters of providers that are not reached directly; `offline` is the demo model."""

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
        """`idle_s`: idle timeout of providers whose settings have none."""
        given = tuple(providers)
        self._given = frozenset(one.name for one in given)
        self._providers = {
            one.name: one if one.idle_timeout_s is not None else replace(one, idle_timeout_s=idle_s)
            for one in (*map(Provider, WELL_KNOWN), *given)
        }
        self._offline = offline
        self._factories = {AdapterKind.LIBRARY: library, AdapterKind.DIRECT: direct}
        self._environment = environment
        self._adapters: dict[str, Adapter] = {}

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        if request.model == OFFLINE:
            return await self._offline.ask(request, on_delta)
        adapter, model = self._route(request.model)
        try:
            return await adapter.ask(replace(request, model=model), on_delta)
        except ModelError as error:
            if error.trouble is Trouble.AUTH:
                raise self._refused(request.model, error) from error
            raise

    async def prepare(self, model: str) -> None:
        """Load the adapter before the first call. A model that cannot be used fails at the call, not here."""
        if model == OFFLINE:
            return
        with suppress(ModelError):
            adapter, name = self._route(model)
            await adapter.prepare(name)

    def knows(self, model: str) -> bool:
        """Whether the model names a known provider; calls to unknown ones are refused here."""
        return model == OFFLINE or provider.parse(model).provider in self._providers

    def resolved(self, model: str) -> str:
        """Return `provider:model` for a bare name that exactly one configured provider offers, else the name itself."""
        found = self._offering(model)
        return found[0] if len(found) == 1 else model

    def _offering(self, model: str) -> list[str]:
        """Return a bare name with each configured provider that offers it: those of the settings, and those whose key
        is in the environment. Two names of one well-known provider count once."""
        name = provider.parse(model)
        if name.provider or model == OFFLINE or not model.strip():
            return []
        found: dict[str, str] = {}
        for one in self._providers.values():
            listed = LISTED_AS.get(one.language, one.language)
            if self._is_configured(one) and offers(one.language, model):
                found.setdefault(one.name if one.name in self._given else listed, f"{one.name}:{model}")
        return list(found.values())

    def _is_configured(self, provider: Provider) -> bool:
        if provider.name in self._given:
            return True
        variable = KEY_VARIABLES.get(provider.name)
        return variable is not None and bool(self._environment.get(variable, "").strip())

    def provider(self, model: str) -> Provider | None:
        """Return the provider of a model, None for the demo model. Raises InvalidInput naming the fix."""
        if model == OFFLINE:
            return None
        name = provider.parse(model)
        known = self._providers.get(name.provider)
        if known is None:
            raise InvalidInput("model", self._unknown(model, name.provider))
        if not name.model.strip():
            raise InvalidInput("model", f"{model[:SHOWN_MAX]!r} names no model after the colon")
        return known

    def check(self, model: str) -> None:
        """Check provider, name and key of a model. Raises InvalidInput naming the fix."""
        provider = self.provider(self.resolved(model))
        if provider is not None:
            provider.key(self._environment)

    async def aclose(self) -> None:
        adapters = list(self._adapters.values())
        self._adapters.clear()
        for adapter in adapters:
            await adapter.aclose()

    def _route(self, model: str) -> tuple[Adapter, str]:
        model = self.resolved(model)
        name = provider.parse(model)
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

    def _refused(self, model: str, error: ModelError) -> ModelError:
        """Return the error with the provider and the place of the key: a retry alone does not help."""
        known = self._providers.get(provider.parse(self.resolved(model)).provider)
        if known is None:
            return error
        said = str(error).removeprefix(f"{error.trouble}: ")
        fix = f"correct {provider.key_place(known)}, restart the gateway (`clutch stop`), then retry"
        return ModelError(
            error.trouble,
            f"provider {known.name!r} refused the API key: {said}; {fix}",
            error.retry_at,
            is_sent=error.is_sent,
            is_begun=error.is_begun,
        )

    def _unknown(self, model: str, provider: str) -> str:
        shown = model[:SHOWN_MAX]
        if not provider and (offering := self._offering(model)):
            return f"{shown!r} names no provider, and several offer it: write {' or '.join(offering)}"
        if not provider:
            return (
                f"{shown!r} names no provider: write provider:model, or {OFFLINE!r}{hint(shown, [OFFLINE])}"
            )
        near = hint(provider, self._providers)
        known = ", ".join(sorted(self._providers))
        return f"there is no provider {provider[:SHOWN_MAX]!r}{near} (known: {known}; add others to models.providers)"
