"""OpenAI's official client and the Responses API: answers in the background, read by another client and after a
restart, streams that are resumed, cancelled work, and what is not supported."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from clutch.surfaces.http.completions import MESSAGES_MAX
from clutch.surfaces.http.stored_response import StreamedText
from clutch.transactions.read.answers import AnswerState
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_completions import Agent, speaking


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("gateway") / "state", Agent(), FAST) as here:
        yield here


@pytest.fixture
def client(db: Served) -> Iterator[OpenAI]:
    db.models.go.clear()
    db.models.is_working.clear()
    with speaking(db) as made:
        yield made


def ended(here: Served, client: OpenAI, response: Response) -> Response:
    return until(here, client, response, "completed", "failed", "cancelled")


def until(here: Served, client: OpenAI, response: Response, *wanted: str) -> Response:
    """Wait for a status of a response, as a client that polls."""

    async def change() -> None:
        await here.clutch.services.changes.until(here.clutch.services.changes.next_change)

    async def poll() -> Response:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await asyncio.to_thread(client.responses.retrieve, response.id)
                if found.status in wanted:
                    return found
                await change()

    return here.run(poll())


def test_whole_answer_has_its_text_and_usage(client: OpenAI) -> None:
    answer = client.responses.create(model="main", input="hello")
    assert (answer.status, answer.output_text) == ("completed", "1: hello")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (10, 3, 13)
    assert client.responses.retrieve(answer.id).model_dump() == answer.model_dump()


def test_conversation_continues_from_its_newest_response(db: Served, client: OpenAI) -> None:
    first = client.responses.create(model="main", input="hello")
    second = client.responses.create(model="main", input="again", previous_response_id=first.id)
    assert (second.output_text, second.previous_response_id) == ("2: again", first.id)
    assert second.conversation == first.conversation
    with pytest.raises(openai.BadRequestError, match="newest") as refused:
        client.responses.create(model="main", input="branch", previous_response_id=first.id)
    assert refused.value.param == "previous_response_id"
    named = client.responses.create(model="main", input="here", conversation="agent:main:chat:kim")
    assert named.conversation is not None
    assert named.conversation.id == "agent:main:chat:kim"
    key = {"Idempotency-Key": "third"}
    for _ in range(2):
        said = client.responses.create(
            model="main", input="third", previous_response_id=second.id, extra_headers=key
        )
        assert said.output_text == "3: third", "a repeated request finds the response that it began"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(
            model="main", input="both", conversation="kim", previous_response_id=second.id
        )
    assert db.client.get("/v1/sessions")["sessions"]


def test_long_text_is_limited_like_any_message(client: OpenAI) -> None:
    text = "long " * MESSAGES_MAX
    assert text.strip() in client.responses.create(model="main", input=text).output_text


def test_instructions_and_earlier_messages_reach_the_agent(client: OpenAI) -> None:
    earlier: Any = [
        {"role": "user", "content": "tea?"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "With milk."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "history"}]},
    ]
    answer = client.responses.create(model="main", input=earlier, instructions="Be brief.")
    for said in ("system: Be brief.", "user: tea?", "assistant: With milk."):
        assert said in answer.output_text


#: A client that streams a response and says what it gets, until it is killed.
STREAMING = """
import sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
for event in client.responses.create(model="main", input="delegate", background=True, stream=True):
    name = event.response.id if event.type == "response.created" else event.type
    print(event.sequence_number, name, getattr(event, "delta", ""), flush=True)
"""


@pytest.mark.slow
def test_background_response_outlives_client_and_gateway(tmp_path: Path) -> None:
    """Its client is killed in the middle of the stream, then the gateway stops; another client reads the rest."""
    with served(tmp_path / "state", Agent(), FAST) as here, speaking(here) as client:
        command = [sys.executable, "-c", STREAMING, f"{here.clutch.url}/v1", here.token]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
            assert asking.stdout is not None
            _, name = asking.stdout.readline().split()
            said = next(line for line in asking.stdout if "delta" in line)
            here.run(asyncio.wait_for(here.models.is_working.wait(), PATIENCE_S))
            asking.kill()
        assert asking.returncode == -signal.SIGKILL
        working = client.responses.retrieve(name)
        assert (working.status, working.output_text, working.usage) == (
            "in_progress",
            "A child does that.",
            None,
        )
    number, _, seen = said.removesuffix("\n").split(" ", 2)
    with served(tmp_path / "state", Agent(), FAST) as there, speaking(there) as another:
        there.let_go()
        rest = _events(another.responses.retrieve(name, stream=True, starting_after=int(number)))
        text = seen + "".join(event.delta for event in rest if event.type == "response.output_text.delta")
        assert text == "A child does that.\n\nThe child has found it."
        answer = ended(there, another, rest[-1].response)
        assert (answer.status, answer.output_text) == ("completed", text)
        unread = there.client.post(
            f"/v1/sessions/{answer.conversation.id if answer.conversation else ''}/replies",
            {"waitSeconds": 0},
        )
        assert unread["reply"] is None, "it was received"


def _events(stream: Any) -> list[Any]:
    with stream:
        return list(stream)


def test_stream_has_the_events_of_the_format_and_the_text_once(client: OpenAI) -> None:
    events = _events(client.responses.create(model="main", input="one two three", stream=True))
    assert [event.type for event in events if event.type != "response.output_text.delta"] == [
        "response.created", "response.queued", "response.in_progress", "response.output_item.added",
        "response.content_part.added", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == "1: one two three"


def test_stream_resumes_at_every_event_with_the_rest(client: OpenAI) -> None:
    """The first stream is cut after each of its events; what the second one has is exactly what was missing."""
    asked = client.responses.create(model="main", input="one two three", background=True, stream=True)
    events = _events(asked)
    name, whole = events[0].response.id, events[-1].response.output_text
    for cut in events[:-1]:
        rest = _events(client.responses.retrieve(name, stream=True, starting_after=cut.sequence_number))
        seen = [event for event in events if event.sequence_number <= cut.sequence_number]
        assert rest[0].sequence_number > cut.sequence_number
        text = "".join(event.delta for event in [*seen, *rest] if event.type == "response.output_text.delta")
        assert text == whole
        assert rest[-1].type == "response.completed"


def test_stream_that_joins_in_the_middle_gets_all_of_it(db: Served, client: OpenAI) -> None:
    asked = client.responses.create(model="main", input="delegate", background=True)
    db.run(asyncio.wait_for(db.models.is_working.wait(), PATIENCE_S))
    stream = client.responses.retrieve(asked.id, stream=True)
    opening = next(iter(stream))
    assert opening.type == "response.created"
    db.let_go()
    text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == "A child does that.\n\nThe child has found it."


def test_queued_response_is_cancelled_unread(db: Served, client: OpenAI) -> None:
    held = client.responses.create(model="main", input="hold", background=True, conversation="queue")
    queued = client.responses.create(model="main", input="never", background=True, conversation="queue")
    assert client.responses.cancel(queued.id).status == "cancelled"
    assert client.responses.cancel(queued.id).status == "cancelled", "a second call changes nothing"
    db.let_go()
    assert ended(db, client, held).output_text == "1: hold"
    after = client.responses.create(model="main", input="after", conversation="queue")
    assert after.output_text == "2: after", "the cancelled message was read by no turn"


def test_working_response_is_cancelled_with_its_subagents(db: Served, client: OpenAI) -> None:
    asked = client.responses.create(model="main", input="delegate", background=True, conversation="stop")
    db.run(asyncio.wait_for(db.models.is_working.wait(), PATIENCE_S))
    assert client.responses.cancel(asked.id).status == "cancelled"
    (task,) = db.client.get("/v1/tasks?requester=agent:main:chat:stop")["tasks"]
    assert task["outcome"] == "killed"
    assert client.responses.retrieve(asked.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(client.responses.create(model="main", input="hello").id)


def test_cancelling_leaves_the_turn_of_another_message(db: Served, client: OpenAI) -> None:
    asked = client.responses.create(model="main", input="delegate", background=True, conversation="two")
    db.run(asyncio.wait_for(db.models.is_working.wait(), PATIENCE_S))
    other = client.responses.create(model="main", input="hold", background=True, conversation="two")
    until(db, client, other, "in_progress")
    assert client.responses.cancel(asked.id).status == "cancelled"
    assert client.responses.retrieve(other.id).status == "in_progress"
    db.let_go()
    assert ended(db, client, other).output_text.endswith("hold")


def test_failed_turn_is_a_failed_response(client: OpenAI) -> None:
    answer = client.responses.create(model="main", input="fail")
    assert answer.status == "failed"
    assert answer.error is not None
    assert "the key was revoked" in answer.error.message
    (*_, last) = _events(client.responses.create(model="main", input="fail", stream=True))
    assert (last.type, last.response.status) == ("response.failed", "failed")


def test_question_to_the_user_stands_in_the_output_until_it_is_answered(db: Served, client: OpenAI) -> None:
    asked = client.responses.create(model="main", input="ask")
    assert asked.status == "in_progress"
    assert "Which one?" in asked.output_text
    (*_, last) = _events(client.responses.retrieve(asked.id, stream=True))
    assert (last.type, last.response.status) == ("response.incomplete", "in_progress")
    (item,) = db.client.get("/v1/inbox")["items"]
    db.client.post(f"/v1/inbox/{item['id']}", {"decision": "answer", "text": "this", "hash": item["hash"]})
    assert ended(db, client, asked).output_text == "thanks"


def test_same_key_is_the_same_response(db: Served, client: OpenAI) -> None:
    key = {"Idempotency-Key": "one"}
    first, again = (client.responses.create(model="main", input="ping", extra_headers=key) for _ in range(2))
    assert (first.id, first.output_text) == (again.id, again.output_text)
    with pytest.raises(openai.ConflictError):
        client.responses.create(model="main", input="pong", extra_headers=key)


#: What the client can send and an agent cannot do: a value that asks for nothing, and one that is refused.
ASKS: dict[str, tuple[Any, Any]] = {
    "access_programs": (None, {}),
    "context_management": ([], [{"type": "compaction"}]),
    "image": (None, {}),
    "include": ([], ["reasoning.encrypted_content"]),
    "max_output_tokens": (None, 16),
    "max_tool_calls": (None, 1),
    "metadata": ({}, {"a": "b"}),
    "moderation": (None, {"model": "m"}),
    "prompt": (None, {"id": "p"}),
    "reasoning": ({}, {"effort": "low"}),
    "service_tier": ("auto", "flex"),
    "store": (True, False),
    "temperature": (1, 0.5),
    "text": ({"format": {"type": "text"}}, {"format": {"type": "json_object"}}),
    "tool_choice": ("auto", "required"),
    "tools": ([], [{"type": "web_search"}]),
    "top_logprobs": (0, 2),
    "top_p": (1, 0.5),
    "truncation": ("disabled", "auto"),
    "user": (None, "ada"),
}
HINTS = {"parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
USED = {"model", "input", "instructions", "previous_response_id", "conversation", "background"}


def test_every_parameter_of_the_client_is_known() -> None:
    known = set(ResponseCreateParamsBase.__annotations__)
    assert known == USED | set(ASKS) | HINTS | {"safety_identifier", "stream_options"}


def test_parameters_that_ask_for_nothing_are_accepted_together(db: Served) -> None:
    nothing = {name: accepted for name, (accepted, _) in ASKS.items()}
    answer = db.post("/v1/responses", {"model": "main", "input": "hello", **nothing})
    assert (answer.status, answer.body["status"]) == (200, "completed")


@pytest.mark.parametrize("name", ASKS)
def test_parameter_that_is_not_supported_is_refused_by_name(db: Served, name: str) -> None:
    refused = db.post("/v1/responses", {"model": "main", "input": "hello", name: ASKS[name][1]})
    assert (refused.status, refused.body["error"]["param"]) == (400, name)
    assert "leave it out" in refused.body["error"]["message"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "input"),
        ("/status", "input"),
        ([{"role": "assistant", "content": "x"}], "input"),
        ([{"type": "function_call_output", "call_id": "c", "output": "x"}], "input.0.type"),
        ([{"role": "tool", "content": "x"}], "input.0.role"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            "input.0.content.0.type",
        ),
    ],
)
def test_input_that_is_not_supported_is_refused_with_its_place(db: Served, given: Any, param: str) -> None:
    refused = db.post("/v1/responses", {"model": "main", "input": given})
    assert (refused.status, refused.body["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "name", ["resp_1", "nonsense", f"resp_1_b{'0' * 24}", f"resp_fffffffffffffff_b{'0' * 24}"]
)
def test_unknown_response_is_not_found(client: OpenAI, name: str) -> None:
    for call in (client.responses.retrieve, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(name)
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="main", input="hello", previous_response_id=name)
    assert unknown.value.param == "previous_response_id"


# --- the text of a stream ---------------------------------------------------------------------------------


def _state(*texts: str) -> AnswerState:
    return AnswerState(
        at=0.0,
        session_key="agent:main:main",
        agent_id="main",
        previous=None,
        following=None,
        is_taken=True,
        is_void=False,
        is_cancelled=False,
        is_quiet=False,
        texts=texts,
        reply=None,
        failure=None,
        question=None,
    )


def test_committed_text_repeats_nothing_of_its_draft() -> None:
    told = StreamedText("", "")
    told.hear([(1, "one "), (1, "two ")])
    assert told.grown(_state()) == "one two"
    assert told.grown(_state("one two")) == "", "committed before the mark of its end has come"
    told.hear([(1, None), (1, " three")])
    assert told.grown(_state("one two")) == "\n\nthree"


def test_draft_whose_beginning_was_missed_is_not_sent() -> None:
    told = StreamedText("", None)
    told.hear([(1, "wo ")])
    assert told.grown(_state()) == ""
    told.hear([(1, None)])
    assert told.grown(_state("one two")) == "one two"


def test_other_text_after_a_crash_adds_nothing_to_the_one_that_was_sent() -> None:
    told = StreamedText("", "")
    told.hear([(1, "one ")])
    assert told.grown(_state()) == "one"
    assert told.grown_to("another") == ""
    assert told.sent == "one"
