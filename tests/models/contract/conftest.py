"""A server, an adapter that talks to it, and how to put a question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from importlib import import_module

import pytest

from clutch.core.messages import Answer, Input, Transcript
from clutch.core.model import Thinking
from clutch.models.provider import Provider
from clutch.ports import Delta, DeltaKind, ModelError, ModelRequest, ToolSpec
from clutch.testing.providers import Behaviour, CallSeen, Providers, Reply, WireRequest
from tests.models.contract.adapters import ADAPTERS, MODEL, Adapter, Closable
from tests.patience import PATIENCE_S

HELLO = (Input("hello"),)
TOOLS = [
    ToolSpec(name, f"The tool {name}.", {"type": "object", "properties": {"path": {"type": "string"}}})
    for name in ("read", "list")
]


class Talk:
    """One adapter and the server behind it. What the watcher saw is in `deltas`."""

    def __init__(self, adapter: Adapter, server: Providers) -> None:
        self.adapter = adapter
        self.server = server
        self.deltas: list[Delta] = []
        self._open: list[Closable] = []
        self.settings = Provider(
            "here",
            adapter.url(server),
            api_key="sk-secret",
            adapter=adapter.kind,
            speaks=adapter.speaks,
            idle_timeout_s=10 * PATIENCE_S,
        )

    def models(self, **changes: object) -> Closable:
        made = self.adapter.make(replace(self.settings, **changes), "sk-secret")  # type: ignore[arg-type]
        self._open.append(made)
        return made

    async def ask(
        self,
        behaviour: Behaviour | None = None,
        *,
        transcript: Transcript = HELLO,
        tools: Sequence[ToolSpec] = TOOLS,
        key: str = "s:1",
        system: str = "Be brief.",
        thinking: Thinking | None = None,
        output_tokens_max: int | None = None,
        models: Closable | None = None,
    ) -> Answer:
        if behaviour is not None:
            self.behave(behaviour)
        request = ModelRequest(MODEL, system, transcript, tools, key, thinking, output_tokens_max)
        asking = (models or self.models()).ask(request, self.watch)
        return await asyncio.wait_for(asking, PATIENCE_S)

    async def fails(self, behaviour: Behaviour | None = None, models: Closable | None = None) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.ask(behaviour, models=models)
        return caught.value

    def behave(self, behaviour: Behaviour) -> None:
        self.server.behave = lambda _: behaviour

    def watch(self, delta: Delta) -> None:
        self.deltas.append(delta)

    def streamed(self, kind: DeltaKind) -> str:
        return "".join(delta.text for delta in self.deltas if delta.kind is kind)

    @property
    def last(self) -> CallSeen:
        return self.server.log.calls[-1]

    async def close(self) -> None:
        for one in self._open:
            await one.aclose()


def unasked(request: WireRequest) -> Reply:
    raise AssertionError("the test did not say how to behave")


@pytest.fixture(scope="session", autouse=True)
def libraries() -> None:
    """Loaded before any deadline runs: on a busy machine that takes longer than a call may."""
    for name in (
        "clutch.models.library.messages",
        "pydantic_ai.models.openai",
        "pydantic_ai.models.anthropic",
    ):
        import_module(name)


@pytest.fixture(params=ADAPTERS, ids=lambda adapter: adapter.name)
async def talk(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Talk]:
    async with Providers(unasked) as server:
        talk = Talk(request.param, server)
        yield talk
        await talk.close()
