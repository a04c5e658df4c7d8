"""A run's requests repeat its transcript: what adapters made of it is kept, and a request looks as if nothing was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from clutch.core.messages import Answer, Call, Input, Message, Result, Results
from clutch.models import prices
from clutch.models.chat_completions import request_body
from clutch.models.library import messages as library
from clutch.models.library.clients import connect
from clutch.models.provider import Provider, converted
from clutch.ports import ModelRequest

PROVIDER = Provider("local", "http://127.0.0.1:1/v1", speaks="openai-chat")


def step(number: int) -> list[Message]:
    calls = (Call("read", {"path": f"{number}"}, "same"), Call("list", {"depth": number}, f"id{number}"))
    results = (Result(0, "read", f"text {number}"), Result(1, "list", "none", failed=True))
    said: list[Message] = [Input("faster"), Input("and better")] if number == 3 else []
    return [Answer("", calls), Results(results), *said]


STEPS: list[Message] = [message for number in range(6) for message in step(number)]
GROWN: Sequence[Sequence[Message]] = [
    *[(Input("look"), *STEPS[:upto]) for upto in range(len(STEPS) + 1)],
    (Input("look"), Input("in short: all read", "summary"), *STEPS[8:]),  # a summary took the place of a part
    (Input("look"), Input("in short: all read", "summary"), *STEPS[8:], Answer("done"), Input("again")),
    (Input("all that was said, to be summarised"),),
    (Input("look"), *STEPS),
]


def request(transcript: Sequence[Message]) -> ModelRequest:
    return ModelRequest("small", "Be brief.", tuple(transcript), (), "s:1")


def test_requests_of_a_run_are_what_each_would_be_alone() -> None:
    kept: dict[object, Any] = {}
    for transcript in GROWN:
        alone = request(transcript)
        one_of_many = replace(request(transcript), converted=kept)
        assert request_body(one_of_many, "", None) == request_body(alone, "", None)
        assert prices.tokens(one_of_many) == prices.tokens(alone)


@pytest.mark.anyio
async def test_requests_of_a_run_through_the_library_are_what_each_would_be_alone() -> None:
    client = connect(PROVIDER, "")
    model: Any = client.model("small", profile=None)

    async def sent(asked: ModelRequest) -> object:
        made = converted(asked, "library", lambda: library.LibraryMessages(PROVIDER, model)).all()
        return await model._map_messages(made, library.parameters(asked, []))

    kept: dict[object, Any] = {}
    for transcript in GROWN:
        again = replace(request(transcript), converted=kept)
        assert await sent(again) == await sent(again) == await sent(request(transcript))
    await client.aclose()


class Counted:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, message: Message) -> None:
        assert isinstance(message, Input)
        self.texts.append(message.text)
        if message.text == "bad":
            raise ValueError("no text of ours")


def test_each_entry_is_converted_once_and_a_failure_leaves_nothing_behind() -> None:
    kept: dict[object, Any] = {}
    one, two, bad = Input("one"), Input("two"), Input("bad")
    first = converted(replace(request([one]), converted=kept), "x", Counted)
    assert converted(replace(request([one, two]), converted=kept), "x", Counted) is first
    assert first.texts == ["one", "two"]
    with pytest.raises(ValueError, match="no text"):
        converted(replace(request([one, two, bad]), converted=kept), "x", Counted)
    assert not kept
