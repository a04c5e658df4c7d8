"""OpenAI's official client in front of a main agent: whole answers and streamed ones, talks of their own, what is wrong
in its words; and whoever leaves in the middle has lost nothing."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from clutch.core.messages import Answer, Call, Input, Usage
from clutch.ports import Delta, DeltaKind, ModelError, ModelRequest, OnDelta, Trouble
from clutch.store.transaction import Tx
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served


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
        if said == "both" and isinstance(request.transcript[-1], Input):
            return replace(
                _streamed("A child does that.", on_delta), calls=(Call("sessions_spawn", {"task": "look"}),)
            )
        if said == "both":
            return _streamed("Until then: all is well.", on_delta)
        if said == "hold":
            await self.go.wait()
        if said == "fail":
            raise ModelError(Trouble.AUTH, "the key was revoked")
        if said == "history":
            return _streamed(" | ".join(message.text for message in told), on_delta)
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
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("gateway") / "state", Agent(), FAST) as here:
        yield here


def speaking(db: Served) -> OpenAI:
    return OpenAI(base_url=f"{db.clutch.url}/v1", api_key=db.token, max_retries=0, timeout=PATIENCE_S)


@pytest.fixture
def client(db: Served) -> Iterator[OpenAI]:
    with speaking(db) as made:
        yield made


def words(text: str) -> list[ChatCompletionMessageParam]:
    return [
        {"role": "system", "content": "You are somebody else."},
        {"role": "user", "content": "what was said before"},
        {"role": "assistant", "content": "what was answered before"},
        {"role": "user", "content": text},
    ]


def test_the_last_message_is_said_and_the_session_remembers_the_others(client: OpenAI) -> None:
    first = client.chat.completions.create(model="main", messages=words("hello"), user="ada", temperature=1)
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


def test_who_leaves_in_the_middle_finds_the_answer_under_its_key(db: Served, client: OpenAI) -> None:
    models: Agent = db.models
    key = {"Idempotency-Key": "one-message"}
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(
            model="main", messages=words("delegate"), user="dan", timeout=0.5, extra_headers=key
        )
    db.run(asyncio.wait_for(models.is_working.wait(), PATIENCE_S))
    db.let_go()
    again = client.chat.completions.create(
        model="main", messages=words("delegate"), user="dan", extra_headers=key
    )
    assert again.choices[0].message.content == "The child has found it."
    (task,) = db.client.get("/v1/tasks?requester=agent:main:chat:dan")["tasks"]
    assert task["outcome"] == "ok"
    deadline = time.monotonic() + PATIENCE_S
    while db.client.post("/v1/sessions/agent:main:chat:dan/replies", {"waitSeconds": 0})["reply"] is not None:
        assert time.monotonic() < deadline, "it was heard, and waits all the same"


def test_what_it_says_before_it_delegates_is_streamed_too(db: Served, client: OpenAI) -> None:
    db.let_go()
    stream = client.chat.completions.create(model="main", messages=words("delegate"), user="fay", stream=True)
    told = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert told.startswith("A child does that.")
    assert told.rstrip().endswith("The child has found it.")
    assert told.count("found it") == 1


def test_answers_before_and_after_a_spawn_are_streamed_once_and_apart(tmp_path: Path) -> None:
    """No tool:start stands between the two answers of this turn."""
    with served(tmp_path / "state", Agent(), FAST) as here, speaking(here) as client:
        said = talk(client, "both", streams=True, user="kim")
    assert said.split("\n\n") == ["A child does that. ", "Until then: all is well. "]


def test_a_question_to_a_person_is_an_answer_that_says_where_to_decide(db: Served, client: OpenAI) -> None:
    asked = client.chat.completions.create(model="main", messages=words("ask"), user="gus")
    content = asked.choices[0].message.content or ""
    assert "Which one?" in content
    (item,) = db.client.get("/v1/inbox")["items"]
    assert f"/v1/inbox/{item['id']}" in content


def test_agents_are_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["main"]
    assert client.models.retrieve("main").id == "main"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("gpt-9")
    assert (unknown.value.code, unknown.value.param) == ("not_found", "model")


# --- one session, several requests ------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
def test_concurrent_requests_of_one_session_have_an_answer_each(tmp_path: Path, streams: bool) -> None:
    """In the order they came: the session has one turn for each, and a turn's answer belongs to one request."""

    def asked(text: str) -> str:
        with speaking(here) as client:
            return talk(client, text, streams=streams, user="batch").strip()

    with served(tmp_path / "state", Agent(), FAST) as here, ThreadPoolExecutor(4) as pool:
        answers = []
        for number, text in enumerate(("hold", "green", "blue", "grey"), start=1):
            answers.append(pool.submit(asked, text))
            here.run(until_there_are(here, number))  # the first one is held until all have come
        here.let_go()
        assert [one.result(PATIENCE_S) for one in answers] == ["1: hold", "2: green", "3: blue", "4: grey"]


async def until_there_are(here: Served, count: int) -> None:
    def letters(now: float) -> Tx[int]:
        del now
        rows = yield "SELECT COUNT(*) FROM inbox", ()
        return int(rows[0][0])

    services = here.clutch.services
    async with asyncio.timeout(PATIENCE_S):
        while True:
            change = services.changes.next_change
            if await services.db.read(letters) >= count:
                return
            await services.changes.until(change)


# --- conversations without `user` -------------------------------------------------------------------------


def talk(client: OpenAI, *lines: str, streams: bool = False, **options: Any) -> str:
    """Send a conversation as clients do, all of it each time: lines of the user and answers, in turns."""
    roles = itertools.cycle(("user", "assistant"))
    said: Any = [{"role": "system", "content": "Be brief."}]
    said += [{"role": role, "content": line} for role, line in zip(roles, lines, strict=False)]
    create: Any = partial(client.chat.completions.create, model="main", messages=said, **options)
    if not streams:
        return create().choices[0].message.content or ""
    return "".join(piece.choices[0].delta.content or "" for piece in create(stream=True))


@pytest.mark.parametrize("streams", [False, True])
def test_without_a_user_the_history_says_which_conversation_it_is(client: OpenAI, streams: bool) -> None:
    said = partial(talk, client, streams=streams)
    first = said("hello")
    assert first.strip() == said("hello").strip() == "1: hello", "each conversation begins anew"
    second = said("hello", first, "again")
    assert second.strip() == "2: again", "its session has the memory"
    assert said("hello", first, "again", second, "more").strip() == "3: more"


def test_history_that_no_session_has_is_given_to_a_new_one(client: OpenAI) -> None:
    """A conversation that was begun elsewhere, shortened, or taken up a second time at an earlier place."""
    first = talk(client, "tea")
    assert talk(client, "tea", first, "milk") == "2: milk"
    branched = talk(client, "tea", first, "history")
    assert "milk" not in branched
    assert "system: Be brief." in branched, "instructions too"
    assert branched.index("user: tea") < branched.index(f"assistant: {first}") < branched.rindex("history")
    assert talk(client, "tea", first, "history", branched, "sugar") == "2: sugar"


def test_the_same_key_is_the_same_message_of_the_same_conversation(client: OpenAI) -> None:
    key: Any = {"extra_headers": {"Idempotency-Key": "conversation"}}
    first = talk(client, "ping")
    again = [talk(client, "ping", first, "pong", **key) for _ in range(2)]
    assert again == ["2: pong", "2: pong"]
    with pytest.raises(openai.ConflictError):
        talk(client, "ping", first, "other", **key)


def test_user_may_name_a_whole_session(db: Served, client: OpenAI) -> None:
    assert talk(client, "hello", user="agent:main:main") == "1: hello"
    keys = [one["sessionKey"] for one in db.client.get("/v1/sessions")["sessions"]]
    assert "agent:main:main" in keys
    assert "agent:main:chat:agent:main:main" not in keys


# --- what fails -------------------------------------------------------------------------------------------


def test_a_failed_turn_is_an_error(db: Served, client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="the key was revoked") as failed:
        client.chat.completions.create(model="main", messages=words("fail"), user="ivy")
    assert (failed.value.status_code, failed.value.code) == (502, "turn_failed")
    with pytest.raises(openai.APIError, match="the key was revoked"):
        list(client.chat.completions.create(model="main", messages=words("fail"), user="ivy", stream=True))
    unread = db.client.post("/v1/sessions/agent:main:chat:ivy/replies", {"waitSeconds": 0})
    assert unread["reply"] is None, "the error was received"
    assert talk(client, "hello", user="ivy") == "3: hello"


#: What OpenAI's client can send that says nothing about the answer; and what is refused unless it asks for nothing.
WITHOUT_EFFECT: dict[str, Any] = {
    "metadata": {"a": "b"}, "parallel_tool_calls": True, "prompt_cache_key": "k", "prompt_cache_retention": "24h",
    "prompt_cache_options": {}, "safety_identifier": "s",
}  # fmt: skip
ASKS_FOR_NOTHING: dict[str, tuple[Any, Any]] = {
    "temperature": (1, 0.5),
    "top_p": (1, 0.5),
    "max_tokens": (None, 9),
    "max_completion_tokens": (None, 9),
    "presence_penalty": (0, 1.0),
    "frequency_penalty": (0, 1.0),
    "seed": (None, 1),
    "stop": ([], ["x"]),
    "reasoning_effort": (None, "low"),
    "store": (False, True),
    "logit_bias": ({}, {"50256": -100}),
    "service_tier": ("auto", "flex"),
    "verbosity": (None, "low"),
    "prediction": (None, {"type": "content", "content": "x"}),
    "tools": ([], [{"type": "function", "function": {"name": "f"}}]),
    "functions": ([], [{"name": "f"}]),
    "tool_choice": ("auto", "required"),
    "function_call": ("none", {"name": "f"}),
    "response_format": ({"type": "text"}, {"type": "json_object"}),
    "modalities": (["text"], ["text", "audio"]),
    "audio": (None, {"voice": "alloy", "format": "wav"}),
    "logprobs": (False, True),
    "top_logprobs": (0, 3),
    "n": (1, 2),
    "web_search_options": (None, {}),
    "moderation": (None, {"model": "m"}),
}
USED = {"model", "messages", "user", "stream_options"}


def test_every_parameter_of_the_client_is_known() -> None:
    known = set(CompletionCreateParamsBase.__annotations__)
    assert known == USED | set(WITHOUT_EFFECT) | set(ASKS_FOR_NOTHING)


@pytest.mark.parametrize("name", [*WITHOUT_EFFECT, *ASKS_FOR_NOTHING])
def test_parameters_that_ask_for_nothing_are_accepted_and_others_refused_by_name(
    db: Served, name: str
) -> None:
    said = {"model": "main", "user": "zoe", "messages": words("/status")}
    accepted = WITHOUT_EFFECT[name] if name in WITHOUT_EFFECT else ASKS_FOR_NOTHING[name][0]
    for value in (accepted, None):
        answer = db.post("/v1/chat/completions", {**said, name: value})
        assert answer.status == 200, answer.body
    if name in ASKS_FOR_NOTHING:
        refused = db.post("/v1/chat/completions", {**said, name: ASKS_FOR_NOTHING[name][1]})
        assert (refused.status, refused.body["error"]["param"]) == (400, name)
        assert "leave it out" in refused.body["error"]["message"]


def test_an_image_is_refused_with_what_can_be_sent(client: OpenAI) -> None:
    picture: Any = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="main", messages=[{"role": "user", "content": picture}])
    assert refused.value.param == "messages.0.content.1.type"
    assert "image_url" in str(refused.value)
    assert "text" in str(refused.value)


def test_what_is_wrong_is_said_in_its_words(db: Served, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=words("hello"))
    assert (unknown.value.param, unknown.value.code, unknown.value.type) == (
        "model",
        "not_found",
        "invalid_request_error",
    )
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
