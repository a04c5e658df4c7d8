"""Streams are live, can be stopped at once, and a thousand of them run side by side."""

from __future__ import annotations

import asyncio

import pytest

from clutch.core.messages import Input
from clutch.ports import Delta, DeltaKind, ModelRequest
from clutch.testing.providers import Gate, How, Piece, Reply, Silence, Text, WireRequest
from tests.examples import scaled
from tests.models.contract.adapters import ADAPTERS, MODEL
from tests.models.contract.conftest import Talk
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

MANY = scaled(1000)


async def test_the_next_chunk_is_sent_only_after_the_watcher_saw_the_one_before(talk: Talk) -> None:
    words = ["one ", "two ", "three ", "four"]
    gates = [asyncio.Event() for _ in words]
    pieces: list[Piece] = [
        piece for word, gate in zip(words, gates, strict=True) for piece in (Text(word), Gate(gate))
    ]
    talk.behave(Reply(pieces))

    def watch(delta: Delta) -> None:
        talk.watch(delta)
        if delta.kind is DeltaKind.TEXT:
            seen = talk.streamed(DeltaKind.TEXT)
            for count, gate in enumerate(gates, 1):
                if seen.startswith("".join(words[:count])):
                    gate.set()

    request = ModelRequest(MODEL, "", (Input("hello"),), (), "s:1")
    answer = await asyncio.wait_for(talk.models().ask(request, watch), PATIENCE_S)
    assert answer.text == "one two three four"


@pytest.mark.parametrize("behaviour", [Silence(), Reply([Text("half"), Silence()], drip_s=0.01)])
async def test_cancelling_closes_the_connection_at_once(talk: Talk, behaviour: Silence | Reply) -> None:
    arrived, streaming = asyncio.Event(), asyncio.Event()

    def behave(_: WireRequest) -> Silence | Reply:
        arrived.set()
        return behaviour

    talk.server.behave = behave
    models = talk.models()
    request = ModelRequest(MODEL, "", (Input("hello"),), (), "s:1")
    asking = asyncio.create_task(models.ask(request, lambda _: streaming.set()))
    begun = streaming if isinstance(behaviour, Reply) else arrived
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.wait_for(talk.last.ended.wait(), PATIENCE_S)
    assert talk.last.how is How.LEFT


@pytest.mark.slow
@pytest.mark.scaled
@pytest.mark.parametrize(
    "talk", [one for one in ADAPTERS if one.is_crowded], indirect=True, ids=lambda one: one.name
)
async def test_a_thousand_requests_are_in_flight_at_once(talk: Talk) -> None:
    """The server answers nobody before all have arrived: a pool with a limit would never get there."""
    everybody = asyncio.Event()

    def behave(request: WireRequest) -> Reply:
        if request.ordinal == MANY:
            everybody.set()
        return Reply([Gate(everybody), Text(request.key)])

    talk.server.behave = behave
    models = talk.models(idle_timeout_s=120.0)
    requests = [ModelRequest(MODEL, "", (Input("hello"),), (), f"s:{number}") for number in range(MANY)]
    asking = asyncio.gather(*(models.ask(one, lambda _: None) for one in requests))
    answers = await asyncio.wait_for(asking, 120.0)
    assert [answer.text for answer in answers] == [one.key for one in requests]
    assert talk.server.log.in_flight_max == MANY
    assert not talk.server.log.repeated
