"""OpenAI's official client in front of a main agent: whole answers and streamed ones, talks of their own, what is wrong
in its words; and whoever leaves in the middle has lost nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from clutch.core.messages import Answer, Call, Input, Usage
from clutch.ports import Delta, DeltaKind, ModelRequest, OnDelta
from tests.surfaces.served import FAST, PATIENCE_S, Served, served


class Agent:
    """Repeats what it hears word by word; `delegate` gives it to a child that works until it is let go."""

    def __init__(self) -> None:
        self.go, self.is_working = asyncio.Event(), asyncio.Event()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        told = [message for message in request.transcript if isinstance(message, Input)]
        said = told[-1].text.rpartition("\n")[2]
        if told[0].text.startswith("[Subagent task"):
            self.is_working.set()
            await self.go.wait()
            return Answer("found it", model="agent")
        if told[-1].source == "announce":
            return _streamed("The child has found it.", on_delta)
        if said == "delegate":
            on_delta(Delta(DeltaKind.TEXT, "A child does that. "))
            return Answer(
                "A child does that. ", (Call("sessions_spawn", {"task": "look"}), Call("sessions_yield", {}))
            )
        if said == "ask" and not isinstance(request.transcript[-1], Input):
            return Answer("thanks", model="agent")
        if said == "ask":
            return Answer("", (Call("ask_human", {"question": "Which one?"}),), model="agent")
        return _streamed(f"{len(told)}: {said}", on_delta)


def _streamed(text: str, on_delta: OnDelta) -> Answer:
    for word in text.split(" "):
        on_delta(Delta(DeltaKind.TEXT, f"{word} "))
    return Answer(text, usage=Usage(input=10, output=3, cache_read=4), model="agent")


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("door") / "state", Agent(), FAST) as here:
        yield here


def speaking(door: Served) -> OpenAI:
    return OpenAI(base_url=f"{door.clutch.url}/v1", api_key=door.token, max_retries=0, timeout=PATIENCE_S)


@pytest.fixture
def client(door: Served) -> Iterator[OpenAI]:
    with speaking(door) as made:
        yield made


def words(text: str) -> list[ChatCompletionMessageParam]:
    return [
        {"role": "system", "content": "You are somebody else."},
        {"role": "user", "content": "what was said before"},
        {"role": "assistant", "content": "what was answered before"},
        {"role": "user", "content": text},
    ]


def test_the_last_message_is_said_and_the_session_remembers_the_others(client: OpenAI) -> None:
    first = client.chat.completions.create(model="main", messages=words("hello"), user="ada", temperature=0.2)
    second = client.chat.completions.create(model="main", messages=words("again"), user="ada")
    other = client.chat.completions.create(
        model="main", messages=[{"role": "user", "content": [{"type": "text", "text": "me"}]}], user="bob"
    )
    assert [one.choices[0].message.content for one in (first, second, other)] == [
        "1: hello",
        "2: again",
        "1: me",
    ]
    assert first.choices[0].finish_reason == "stop"
    assert first.id != second.id
    for one in (first, second):
        assert one.usage is not None
        assert (one.usage.prompt_tokens, one.usage.completion_tokens, one.usage.total_tokens) == (10, 3, 13)
        assert one.usage.prompt_tokens_details is not None
        assert one.usage.prompt_tokens_details.cached_tokens == 4


def test_a_stream_says_what_was_used_in_a_last_piece_if_that_is_wanted(client: OpenAI) -> None:
    *pieces, last = client.chat.completions.create(
        model="main", messages=words("one"), user="una", stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 13
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_words_come_as_they_are_said_and_none_twice(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="main", messages=words("one two three"), user="eve", stream=True
    )
    pieces = [chunk.choices[0] for chunk in stream]
    assert len(pieces) > 4
    assert "".join(piece.delta.content or "" for piece in pieces).strip() == "1: one two three"
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]


def test_a_command_is_answered_like_words(client: OpenAI) -> None:
    said = client.chat.completions.create(model="main", messages=words("/subagents list"), user="cyd")
    assert said.choices[0].message.content == "No subagents."
    assert said.usage is not None
    assert said.usage.total_tokens == 0, "no model was asked"


@pytest.mark.parametrize(("first", "second"), [("one", "two"), ("one", "/agents"), ("/agents", "one")])
@pytest.mark.parametrize("streams", [False, True])
def test_another_message_under_a_used_key_is_refused_and_not_lost(
    client: OpenAI, first: str, second: str, streams: bool
) -> None:
    key = {"Idempotency-Key": f"{first} {second} {streams}".replace(" ", "-")}
    said = partial(client.chat.completions.create, model="main", user="hal", extra_headers=key)
    answers = [said(messages=words(first)).choices[0].message.content for _ in range(2)]
    assert answers[0] == answers[1]
    with pytest.raises(openai.ConflictError) as refused:
        said(messages=words(second), stream=streams)
    assert refused.value.code == "idempotency_conflict"


def test_who_leaves_in_the_middle_finds_the_answer_under_its_key(door: Served, client: OpenAI) -> None:
    models: Agent = door.models
    key = {"Idempotency-Key": "one-message"}
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(
            model="main", messages=words("delegate"), user="dan", timeout=0.5, extra_headers=key
        )
    door.run(asyncio.wait_for(models.is_working.wait(), PATIENCE_S))
    door.let_go()
    again = client.chat.completions.create(
        model="main", messages=words("delegate"), user="dan", extra_headers=key
    )
    assert again.choices[0].message.content == "The child has found it."
    (task,) = door.client.get("/v1/tasks?requester=agent:main:chat:dan")["tasks"]
    assert task["outcome"] == "ok"
    deadline = time.monotonic() + PATIENCE_S
    while (
        door.client.post("/v1/sessions/agent:main:chat:dan/replies", {"waitSeconds": 0})["reply"] is not None
    ):
        assert time.monotonic() < deadline, "it was heard, and waits all the same"


def test_what_it_says_before_it_delegates_is_streamed_too(door: Served, client: OpenAI) -> None:
    door.let_go()
    stream = client.chat.completions.create(model="main", messages=words("delegate"), user="fay", stream=True)
    told = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert told.startswith("A child does that.")
    assert told.rstrip().endswith("The child has found it.")
    assert told.count("found it") == 1


def test_a_question_to_a_person_is_an_answer_that_says_where_to_decide(door: Served, client: OpenAI) -> None:
    asked = client.chat.completions.create(model="main", messages=words("ask"), user="gus")
    content = asked.choices[0].message.content or ""
    assert "Which one?" in content
    (item,) = door.client.get("/v1/inbox")["items"]
    assert f"/v1/inbox/{item['id']}" in content


def test_agents_are_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["main"]


def test_what_is_wrong_is_said_in_its_words(door: Served, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=words("hello"))
    assert (unknown.value.param, unknown.value.code, unknown.value.type) == (
        "model",
        "not_found",
        "invalid_request_error",
    )
    with pytest.raises(openai.BadRequestError) as extra:
        client.chat.completions.create(model="main", messages=words("hello"), logprobs=True)
    assert extra.value.param == "logprobs"
    with pytest.raises(openai.BadRequestError) as role:
        client.chat.completions.create(model="main", messages=words("hello")[:1])
    assert role.value.param == "role"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="main", messages=words("hello"), user="../x", stream=True)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_who_waits_when_the_gateway_stops_is_told_to_come_back(tmp_path: Path) -> None:
    """And finds the answer with the next one, under its key."""
    key = {"Idempotency-Key": "k"}
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        with served(tmp_path / "state", Agent(), FAST) as here:
            client = stack.enter_context(speaking(here))
            waiting = pool.submit(
                client.chat.completions.create, model="main", messages=words("delegate"), extra_headers=key
            )
            here.run(asyncio.wait_for(here.models.is_working.wait(), PATIENCE_S))
        with pytest.raises(openai.InternalServerError, match="same key"):
            waiting.result(PATIENCE_S)
    with served(tmp_path / "state", Agent(), FAST) as there, speaking(there) as client:
        there.let_go()
        said = client.chat.completions.create(model="main", messages=words("delegate"), extra_headers=key)
        assert said.choices[0].message.content == "The child has found it."
