"""The small fakes that are shipped for other people's tests."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.core.messages import Answer, Input
from clutch.ports import Delta, ModelError, ModelRequest, Trouble
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import Tx
from clutch.testing.channels import RecordingChannel, Sent
from clutch.testing.clock import FakeClock
from clutch.testing.crash import CrashAt
from clutch.testing.models import ScriptedModel, ScriptExhausted

pytestmark = pytest.mark.anyio


def request(text: str = "hello") -> ModelRequest:
    return ModelRequest("any", "", (Input(text),), (), "agent:main:main:1")


async def test_a_scripted_model_answers_in_order_and_remembers_what_it_was_asked() -> None:
    heard: list[Delta] = []
    model = ScriptedModel(["one", Answer("two", stop="length")])
    answers = [await model.ask(request(), heard.append), await model.ask(request("more"), heard.append)]
    assert [(answer.text, answer.stop) for answer in answers] == [("one", "end"), ("two", "length")]
    assert [delta.text for delta in heard] == ["one", "two"]
    assert [asked.transcript[0] for asked in model.requests] == [Input("hello"), Input("more")]


async def test_a_script_may_be_a_function_of_the_request() -> None:
    model = ScriptedModel(lambda asked: f"you said {len(asked.transcript)} thing")
    assert (await model.ask(request(), lambda text: None)).text == "you said 1 thing"


async def test_a_scripted_model_fails_as_told_and_says_when_the_script_is_over() -> None:
    model = ScriptedModel([ModelError(Trouble.AUTH, "no key")])
    with pytest.raises(ModelError, match="no key"):
        await model.ask(request(), lambda text: None)
    with pytest.raises(ScriptExhausted, match="call 2 of a script with 1 answers"):
        await model.ask(request(), lambda text: None)


async def test_a_recording_channel_keeps_what_was_sent_and_fails_as_told() -> None:
    channel = RecordingChannel()
    channel.fail_next(ConnectionError("down"))
    with pytest.raises(ConnectionError):
        await channel.send("you", "hi", "key-1")
    assert [await channel.send("you", "hi", "key-1"), await channel.send("you", "hi", "key-1")] == [
        "receipt-1",
        "receipt-2",
    ]
    assert channel.sent == [Sent("you", "hi", "key-1")] * 2
    assert channel.bodies("you") == ["hi"]


async def test_a_fake_clock_goes_when_told() -> None:
    clock = FakeClock(100.0)
    clock.advance(5)
    assert clock.now() == 105
    clock.set(1.0)
    assert clock.now() == 1


class Died(Exception):
    pass


def _die() -> None:
    raise Died


def _count(now: float, name: str) -> Tx[None]:
    yield "INSERT INTO counters(name, value) VALUES(?, 1)", (name,)


def _names(now: float) -> Tx[list[Any]]:
    return [
        row[0]
        for row in (yield "SELECT name FROM counters WHERE name NOT IN ('process', 'mcp') ORDER BY name", ())
    ]


async def test_before_a_commit_nothing_is_left_behind() -> None:
    async with SqliteStore(":memory:", FakeClock()) as store:
        db = CrashAt(store, "_count:before", nth=2, die=_die)
        await db.alone(_count, "a")
        with pytest.raises(Died):
            await db.tx(1, _count, "b")
        assert await db.read(_names) == ["a"]


async def test_after_a_commit_it_is_there_and_nobody_knows() -> None:
    async with SqliteStore(":memory:", FakeClock()) as store:
        db = CrashAt(store, "_count:after", die=_die)
        with pytest.raises(Died):
            await db.alone(_count, "a")
        assert await db.read(_names) == ["a"]


async def test_a_point_without_a_side_is_refused() -> None:
    async with SqliteStore(":memory:", FakeClock()) as store:
        with pytest.raises(ValueError, match="NAME:before or NAME:after"):
            CrashAt(store, "finish")
