"""Names lead to adapters, and what is wrong with a name or a key is said before anything is sent."""

from __future__ import annotations

import pytest

from clutch.core.messages import Answer, Input
from clutch.errors import InvalidInput
from clutch.models.provider import AdapterKind, Provider
from clutch.models.router import Router
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble
from clutch.testing import ScriptedModel
from clutch.testing.providers import Providers, Reply, Text

pytestmark = pytest.mark.anyio


class Remembering:
    """An adapter that tells who made it."""

    def __init__(self, provider: Provider, key: str) -> None:
        self.provider = provider
        self.key = key
        self.is_closed = False
        self.prepared: list[str] = []

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        return Answer(f"{self.provider.name} says", model=request.model)

    async def prepare(self, model: str) -> None:
        self.prepared.append(model)

    async def aclose(self) -> None:
        self.is_closed = True


class House:
    def __init__(self, *providers: Provider, **environment: str) -> None:
        self.made: list[Remembering] = []
        self.offline = ScriptedModel(lambda _: "scripted")
        self.router = Router(providers, offline=self.offline, library=self.make, environment=environment)

    def make(self, provider: Provider, key: str) -> Remembering:
        self.made.append(Remembering(provider, key))
        return self.made[-1]

    async def ask(self, model: str) -> Answer:
        request = ModelRequest(model, "", (Input("hello"),), (), "s:1")
        return await self.router.ask(request, lambda _: None)


async def test_the_provider_is_asked_by_its_own_name_of_the_model() -> None:
    house = House(Provider("lab", "http://host/v1"), OPENAI_API_KEY="sk-1")
    assert (await house.ask("openai:gpt-x")).model == "gpt-x"
    assert (await house.ask("lab:qwen3:8b")).model == "qwen3:8b"
    assert [(one.provider.name, one.key) for one in house.made] == [("openai", "sk-1"), ("lab", "")]


async def test_what_a_model_needs_is_loaded_by_its_adapter_and_an_impossible_one_waits_for_its_call() -> None:
    house = House(Provider("lab", "http://host/v1"))
    for model in ("offline", "lab:small", "nobody:x", "openai:gpt-x", "nonsense"):
        await house.router.prepare(model)
    assert [(one.provider.name, one.prepared) for one in house.made] == [("lab", ["small"])]


async def test_an_adapter_is_made_once_and_closed_in_the_end() -> None:
    house = House(OPENAI_API_KEY="sk-1")
    assert not house.made
    await house.ask("openai:gpt-x")
    await house.ask("openai:gpt-y")
    [adapter] = house.made
    await house.router.aclose()
    assert adapter.is_closed


async def test_offline_needs_no_provider() -> None:
    house = House()
    assert (await house.ask("offline")).text == "scripted"
    assert not house.made
    house.router.check("offline")


async def test_only_names_of_providers_are_known() -> None:
    router = House(Provider("lab", "http://host/v1")).router
    assert all(map(router.knows, ("offline", "lab:qwen3:8b", "openai:gpt-x")))
    assert not any(map(router.knows, ("invented:x", "offline:x", "lab", ":x", "")))


async def test_a_bare_name_is_that_of_the_only_configured_provider_that_offers_it() -> None:
    house = House(ANTHROPIC_API_KEY="sk-1", OPENAI_API_KEY="sk-2")
    assert house.router.resolved("claude-sonnet-4-5") == "anthropic:claude-sonnet-4-5"
    assert house.router.resolved("gpt-4o") == "openai:gpt-4o"
    house.router.check("claude-sonnet-4-5")
    assert (await house.ask("claude-sonnet-4-5")).text == "anthropic says"
    for name in ("offline", "anthropic:claude-sonnet-4-5", "no-such-model", ""):
        assert house.router.resolved(name) == name


async def test_a_bare_name_that_several_providers_offer_is_an_error_that_names_them() -> None:
    second = Provider("work", "http://host/v1", speaks="anthropic")
    house = House(second, ANTHROPIC_API_KEY="sk-1")
    assert house.router.resolved("claude-sonnet-4-5") == "claude-sonnet-4-5"
    with pytest.raises(InvalidInput, match="write anthropic:claude-sonnet-4-5 or work:claude-sonnet-4-5"):
        house.router.check("claude-sonnet-4-5")
    alone = House(second)
    assert alone.router.resolved("claude-sonnet-4-5") == "work:claude-sonnet-4-5"
    with pytest.raises(InvalidInput, match="names no provider"):
        House().router.check("claude-sonnet-4-5")


async def test_settings_override_what_is_known() -> None:
    house = House(Provider("openai", "http://proxy/v1", api_key="sk-2"))
    await house.ask("openai:gpt-x")
    assert house.made[0].provider.base_url == "http://proxy/v1"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("opanai:gpt-x", "did you mean 'openai'"),
        ("nobody:gpt-x", "anthropic, bedrock"),
        ("gpt-x", "provider:model"),
        ("offlin", "did you mean 'offline'"),
        ("", "provider:model"),
        ("openai:", "names no model"),
        (":gpt-x", "provider:model"),
        ("lba:" + "x" * 5000, "did you mean 'lab'"),
    ],
)
async def test_a_name_that_leads_nowhere_names_the_remedy(model: str, says: str) -> None:
    house = House(Provider("lab", "http://host/v1"), OPENAI_API_KEY="sk-1")
    with pytest.raises(InvalidInput, match=says) as checked:
        house.router.check(model)
    assert len(str(checked.value)) < 500
    await house.ask("openai:gpt-x")  # a known adapter is no way around the checks
    with pytest.raises(ModelError, match=says) as caught:
        await house.ask(model)
    assert caught.value.trouble is Trouble.BAD_REQUEST
    assert not caught.value.is_sent


async def test_a_missing_key_names_the_variable_and_can_be_set_later() -> None:
    environment: dict[str, str] = {}
    house = House()
    house.router = Router((), offline=house.offline, library=house.make, environment=environment)
    with pytest.raises(InvalidInput, match="ANTHROPIC_API_KEY"):
        house.router.check("anthropic:claude-x")
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY") as caught:
        await house.ask("anthropic:claude-x")
    assert (caught.value.trouble, caught.value.is_sent) == (Trouble.AUTH, False)
    environment["ANTHROPIC_API_KEY"] = "sk-3"
    assert (await house.ask("anthropic:claude-x")).text == "anthropic says"


async def test_a_direct_provider_is_reached_over_the_wire() -> None:
    async with Providers(lambda _: Reply([Text("hello")])) as server:
        house = House(Provider("lab", server.openai_url, adapter=AdapterKind.DIRECT))
        assert (await house.ask("lab:small")).text == "hello"
        assert server.log.calls[0].request.model == "small"
        await house.router.aclose()
    assert not house.made
