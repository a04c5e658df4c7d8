"""The server the adapters are tested against speaks as the providers' own clients expect."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest
from anthropic import APIStatusError as AnthropicError
from anthropic import AsyncAnthropic
from openai import APIStatusError, AsyncOpenAI

from clutch.core.messages import Usage
from clutch.testing.providers import (
    Failure,
    Fault,
    How,
    Piece,
    Providers,
    Refusal,
    Reply,
    Silence,
    Text,
    Thinking,
    ToolCall,
)
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

PIECES: list[Piece] = [
    Thinking("hm", "signed"),
    Text("Hel"),
    Text("lo 😀"),
    ToolCall("read", ('{"pa', 'th":"x"}')),
    ToolCall("list", ("{}",)),
]
REPLY = Reply(PIECES, Usage(100, 20, 30, 5), split_bytes=7)


@pytest.fixture
async def server() -> AsyncIterator[Providers]:
    async with Providers(lambda _: REPLY) as server:
        yield server


@pytest.fixture
async def openai(server: Providers) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.openai_url, api_key="sk-1", max_retries=0) as client:
        yield client


@pytest.fixture
async def anthropic(server: Providers) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=server.anthropic_url, api_key="sk-1", max_retries=0) as client:
        yield client


async def test_chat_completions_are_what_the_official_client_expects(openai: AsyncOpenAI) -> None:
    async with openai.chat.completions.stream(
        model="m", messages=[{"role": "user", "content": "hi"}], stream_options={"include_usage": True}
    ) as stream:
        streamed = await stream.get_final_completion()
    whole = await openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    for completion in (streamed, whole):
        [choice] = completion.choices
        assert (choice.message.content, choice.finish_reason) == ("Hello 😀", "tool_calls")
        calls = choice.message.tool_calls or []
        assert [call.function.arguments for call in calls if call.type == "function"] == [
            '{"path":"x"}',
            "{}",
        ]
        assert completion.usage is not None
        assert completion.usage.total_tokens == 120


async def test_responses_are_what_the_official_client_expects(openai: AsyncOpenAI) -> None:
    async with openai.responses.stream(model="m", input=[{"role": "user", "content": "hi"}]) as stream:
        streamed = await stream.get_final_response()
    whole = await openai.responses.create(model="m", input=[{"role": "user", "content": "hi"}])
    for response in (streamed, whole):
        assert [item.type for item in response.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        assert (response.output_text, response.status) == ("Hello 😀", "completed")
        assert response.usage is not None
        assert response.usage.input_tokens_details.cached_tokens == 30


async def test_messages_are_what_the_official_client_expects(anthropic: AsyncAnthropic) -> None:
    async with anthropic.messages.stream(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
    ) as stream:
        streamed = await stream.get_final_message()
    whole = await anthropic.messages.create(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
    )
    for message in (streamed, whole):
        assert "".join(block.text for block in message.content if block.type == "text") == "Hello 😀"
        assert [block.input for block in message.content if block.type == "tool_use"] == [{"path": "x"}, {}]
        assert [block.signature for block in message.content if block.type == "thinking"] == ["signed"]
        assert (message.stop_reason, message.usage.input_tokens) == ("tool_use", 65)


async def test_refusals_and_cut_answers_are_told(server: Providers, openai: AsyncOpenAI) -> None:
    server.behave = lambda _: Reply([Refusal("no")], stop="refusal")
    refused = await openai.responses.create(model="m", input="hi")
    [item] = refused.output
    assert item.type == "message"
    assert item.content[0].type == "refusal"
    server.behave = lambda _: Reply([Text("half")], stop="length")
    cut = await openai.responses.create(model="m", input="hi")
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


async def test_failures_have_the_status_and_the_words_of_the_provider(
    server: Providers, openai: AsyncOpenAI, anthropic: AsyncAnthropic
) -> None:
    server.behave = lambda _: Failure(Fault.CONTEXT, headers={"Retry-After": "3"})
    with pytest.raises(APIStatusError, match="maximum context length") as chat:
        await openai.chat.completions.create(model="m", messages=[])
    with pytest.raises(APIStatusError, match="context window"):
        await openai.responses.create(model="m", input="hi")
    with pytest.raises(AnthropicError, match="prompt is too long") as messages:
        await anthropic.messages.create(model="m", max_tokens=9, messages=[])
    assert (chat.value.status_code, messages.value.status_code) == (400, 400)
    assert chat.value.response.headers["retry-after"] == "3"
    assert [call.status for call in server.log.calls] == [400] * 3


async def test_the_log_counts_keys_tokens_and_who_left(server: Providers) -> None:
    body = {"model": "m", "messages": []}
    async with aiohttp.ClientSession() as session:
        for key in ("a", "b", "a"):
            await session.post(
                f"{server.openai_url}/chat/completions", json=body, headers={"X-Clutch-Call": key}
            )
        server.behave = lambda _: Silence()
        leaving = session.post(f"{server.openai_url}/chat/completions", json=body)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(leaving, 0.1)
    await asyncio.wait_for(server.log.calls[-1].ended.wait(), PATIENCE_S)
    assert [call.how for call in server.log.calls] == [How.DONE, How.DONE, How.DONE, How.LEFT]
    assert server.log.repeated == {"a": 2}
    assert server.log.billed == Usage(300, 60, 90, 15)
    assert (server.log.in_flight, server.log.in_flight_max) == (0, 1)


async def test_a_process_of_its_own_plays_an_agent_and_ends_with_its_starter() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "clutch.testing.providers", "--calls", "1", "--latency", "0"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stderr is not None
    url = (await process.stdout.readline()).decode().strip()
    async with aiohttp.ClientSession() as session:
        asked: list[dict[str, str]] = [{"role": "user", "content": "hi"}]
        reasons = []
        for _ in range(2):
            sent = {"model": "m", "messages": asked}
            async with session.post(f"{url}/v1/chat/completions", json=sent) as response:
                reasons.append((await response.json())["choices"][0]["finish_reason"])
            asked.append({"role": "tool", "content": "text", "tool_call_id": "x"})
        async with session.get(f"{url}/log") as response:
            counted = json.loads(await response.text())
    assert reasons == ["tool_calls", "stop"]
    assert (counted["calls"], counted["in_flight"]) == (2, 0)
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    words = (await process.stderr.read()).decode()
    assert f"OpenAI and compatible: baseUrl {url}/v1\n" in words
    assert words.endswith("standard input has ended, and so has this server\n")


async def test_a_process_that_stays_does_not_look_at_its_input_and_ends_when_interrupted() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "clutch.testing.providers", "--stay"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    async with aiohttp.ClientSession() as session, session.get(f"{url}/log") as response:
        assert response.status == 200
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
