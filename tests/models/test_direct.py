"""The direct adapter and the servers it meets: each says chat completions, and each a little differently."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from clutch.core.messages import Answer, Call, Input, Result, Results, Thought, Transcript, Usage
from clutch.core.model import Thinking
from clutch.models import chat_completions
from clutch.models.chat_completions import DirectModels
from clutch.models.provider import AdapterKind, Provider
from clutch.ports import Delta, DeltaKind, ModelError, ModelRequest, ToolSpec, Trouble
from clutch.testing.providers import Failure, Fault, Pause, Providers, Raw, Reply, Text, turns
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

HELLO: Transcript = (Input("hello"),)
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
SAID = b'data: {"model":"small","choices":[{"delta":{"content":"hi"}}]}'
STOPPED = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}'


def request(transcript: Transcript = HELLO, **changes: object) -> ModelRequest:
    return replace(ModelRequest("small", "", transcript, (), "s:1"), **changes)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def asking(url: str, **changes: object) -> AsyncIterator[DirectModels]:
    settings = Provider("lab", url, adapter=AdapterKind.DIRECT, idle_timeout_s=10 * PATIENCE_S)
    models = DirectModels(replace(settings, **changes), "sk-secret")  # type: ignore[arg-type]
    try:
        yield models
    finally:
        await models.aclose()


@contextlib.asynccontextmanager
async def speaking(said: bytes, *, keeps_open: bool = False) -> AsyncIterator[str]:
    """A server that says these bytes to everybody."""
    over = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        if keeps_open:
            await over.wait()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        over.set()


async def heard(said: bytes, *, keeps_open: bool = False) -> Answer:
    async with speaking(said, keeps_open=keeps_open) as url, asking(url) as models:
        return await asyncio.wait_for(models.ask(request(), lambda _: None), PATIENCE_S)


async def failed(said: bytes) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await heard(said)
    return caught.value


async def streamed(*deltas: str) -> Answer:
    """An answer made of these deltas."""
    events = [f'data: {{"choices":[{{"delta":{delta}}}]}}\n\n'.encode() for delta in deltas]
    return await heard(SSE + b"".join(events) + STOPPED + b"\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize(
    "line_end", [b"\n\n", b"\r\n\r\n", b"\n: keep-alive\n\n", b"\nid: 7\nevent: message\n\n"]
)
async def test_every_way_to_part_events_is_read(line_end: bytes) -> None:
    answer = await heard(SSE + line_end.join([SAID, STOPPED, b"data: [DONE]", b""]))
    assert (answer.text, answer.stop) == ("hi", "end")


async def test_a_space_after_the_colon_may_be_missing() -> None:
    answer = await heard(SSE + SAID.replace(b": ", b":", 1) + b"\n\n" + STOPPED + b"\n\ndata:[DONE]\n\n")
    assert answer.text == "hi"


async def test_the_last_word_may_be_missing_once_the_reason_is_told() -> None:
    assert (await heard(SSE + SAID + b"\n\n" + STOPPED)).text == "hi"


async def test_a_server_that_keeps_the_connection_open_does_not_hold_the_answer_up() -> None:
    said = SSE + SAID + b"\n\n" + STOPPED + b"\n\ndata: [DONE]\n\n"
    assert (await heard(said, keeps_open=True)).text == "hi"


async def test_a_server_that_does_not_stream_is_understood() -> None:
    message = {
        "role": "assistant",
        "content": "hi",
        "tool_calls": [{"id": "a", "function": {"name": "list"}}],
    }
    whole = {"model": "small", "choices": [{"message": message, "finish_reason": "tool_calls"}]}
    body = json.dumps({**whole, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = await heard(head + body)
    assert (answer.text, answer.usage, answer.stop) == ("hi", Usage(7, 2), "tools")
    assert [call.name for call in answer.calls] == ["list"]


async def test_calls_with_the_same_index_are_told_apart_by_their_ids() -> None:
    call = '{{"tool_calls":[{{"index":0,"id":"{}","function":{{"name":"read","arguments":"{}"}}}}]}}'
    answer = await streamed(
        call.format("a", '{\\"path\\":\\"a\\"}'), call.format("b", '{\\"path\\":\\"b\\"}')
    )
    assert [(one.id, dict(one.args)) for one in answer.calls] == [("a", {"path": "a"}), ("b", {"path": "b"})]
    assert answer.stop == "tools"


async def test_an_id_in_every_piece_does_not_split_a_call() -> None:
    piece = '{{"tool_calls":[{{"index":0,"id":"a","function":{{"name":"read","arguments":"{}"}}}}]}}'
    answer = await streamed(piece.format('{\\"path\\":'), piece.format('\\"a\\"}'))
    assert [dict(one.args) for one in answer.calls] == [{"path": "a"}]


async def test_calls_whose_pieces_are_mixed_are_put_together_by_index() -> None:
    def piece(index: int, text: str, name: str | None = None) -> str:
        function = {"arguments": text} | ({"name": name} if name else {})
        return json.dumps({"tool_calls": [{"index": index, "function": function}]})

    answer = await streamed(
        piece(0, "", "read"),
        piece(1, '{"path"', "list"),
        piece(0, '{"path":'),
        piece(1, ':"b"}'),
        piece(0, '"a"}'),
    )
    assert [(one.name, dict(one.args)) for one in answer.calls] == [
        ("read", {"path": "a"}),
        ("list", {"path": "b"}),
    ]


async def test_arguments_may_come_as_an_object() -> None:
    answer = await streamed('{"tool_calls":[{"id":"a","function":{"name":"read","arguments":{"path":"a"}}}]}')
    assert [dict(one.args) for one in answer.calls] == [{"path": "a"}]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_goes_by_two_names(field: str) -> None:
    answer = await streamed(json.dumps({field: "hm"}), '{"content":"so"}')
    assert answer.thoughts == (Thought("hm", provider="lab"),)


async def test_text_and_thinking_in_one_event_are_both_kept() -> None:
    answer = await streamed('{"reasoning":"hm","content":"so"}')
    assert (answer.text, answer.thoughts[0].text) == ("so", "hm")


@pytest.mark.parametrize(
    "event",
    [
        b"5",
        b"[]",
        b"null",
        b'{"choices":5}',
        b'{"choices":[5]}',
        b'{"choices":[{"delta":{"tool_calls":[5]}}]}',
        b"{",
    ],
)
async def test_an_event_of_the_wrong_shape_is_malformed(event: bytes) -> None:
    error = await failed(SSE + SAID + b"\n\ndata: " + event + b"\n\n" + STOPPED + b"\n\n")
    assert error.trouble is Trouble.MALFORMED


DEEP = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize(
    ("event", "named"),
    [
        ('{"choices":[{"delta":[{"content":"hi"}]}]}', "delta is a list, not an object"),
        ('{"choices":[{"delta":{"content":5}}]}', "delta.content is a number, not a text"),
        ('{"choices":[],"usage":3.5}', "usage is a number, not an object"),
        ('{"choices":[],"usage":{"prompt_tokens":7.5}}', "usage.prompt_tokens is 7.5, not a whole number"),
        ('{"choices":[],"usage":{"completion_tokens":"many"}}', "usage.completion_tokens is many"),
        (
            json.dumps(
                {
                    "choices": [
                        {
                            "delta": {
                                "tool_calls": [{"function": {"name": "read", "arguments": f'{{"a":{DEEP}}}'}}]
                            }
                        }
                    ]
                }
            ),
            "the arguments of the call of 'read' have more than 100 levels",
        ),
        (f'{{"choices":[{{"delta":{{"content":{DEEP}}}}}]}}', "nested too deep"),
        ('{"choices":[{"delta":{},"finish_reason":{"a":1}}]}', "finish_reason is no text"),
    ],
    ids=lambda value: str(value)[-40:],
)
async def test_a_malformed_answer_names_the_field(event: str, named: str) -> None:
    last = b"" if "finish_reason" in event else STOPPED + b"\n\n"
    error = await failed(SSE + SAID + b"\n\ndata: " + event.encode() + b"\n\n" + last)
    assert error.trouble is Trouble.MALFORMED
    assert named in str(error)


async def test_a_count_that_is_written_as_a_float_is_a_count() -> None:
    used = b'data: {"choices":[],"usage":{"prompt_tokens":7.0,"completion_tokens":2}}\n\n'
    answer = await heard(SSE + SAID + b"\n\n" + used + STOPPED + b"\n\n")
    assert answer.usage == Usage(7, 2)


async def test_something_that_is_no_http_is_malformed() -> None:
    assert (await failed(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")).trouble is Trouble.MALFORMED


async def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_completions, "LINE_MAX", 1000)
    error = await failed(SSE + b"data: " + b"x" * 5000)
    assert error.trouble is Trouble.MALFORMED
    assert "no end" in str(error)


async def test_a_page_instead_of_an_error_is_shown_in_short() -> None:
    page = b"<html>" + b"Bad gateway " * 1000
    error = await failed(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n" % len(page) + page)
    assert error.trouble is Trouble.OVERLOADED
    assert "status 502" in str(error)
    assert len(str(error)) < 700


async def test_an_error_that_is_only_a_text_is_shown() -> None:
    body = b'{"error":"model \\"small\\" not found, try pulling it first"}'
    error = await failed(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert error.trouble is Trouble.BAD_REQUEST
    assert "try pulling it" in str(error)


async def test_an_error_with_status_200_is_an_error() -> None:
    body = b'{"error":{"code":429,"message":"slow down"}}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    error = await failed(head + body)
    assert (error.trouble, error.is_begun) == (Trouble.RATE_LIMIT, False)


async def test_a_complaint_as_the_first_event_is_no_answer_that_was_begun() -> None:
    error = await failed(SSE + b'data: {"error":{"code":429,"message":"slow down"}}\n\n')
    assert (error.trouble, error.is_begun) == (Trouble.RATE_LIMIT, False)


async def test_the_key_is_not_carried_to_where_a_redirect_leads() -> None:
    async with Providers(lambda _: Reply([Text("stolen")])) as elsewhere:
        target = f"{elsewhere.openai_url}/chat/completions".encode()
        head = b"HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: " + target
        error = await failed(head + b"\r\n\r\n")
        assert error.trouble is Trouble.BAD_REQUEST
        assert "baseUrl" in str(error)
        assert not elsewhere.log.calls


async def test_a_key_in_a_complaint_is_not_shown() -> None:
    behaviour = Failure(Fault.AUTH, "Incorrect API key provided: sk-secret")
    async with Providers(lambda _: behaviour) as server, asking(server.openai_url) as models:
        with pytest.raises(ModelError, match="Incorrect API key") as caught:
            await models.ask(request(), lambda _: None)
    assert "sk-secret" not in str(caught.value)


async def test_a_request_that_never_left_has_cost_nothing() -> None:
    async with Providers(lambda _: Reply()) as gone:
        url = gone.openai_url
    async with asking(url) as models:
        with pytest.raises(ModelError) as caught:
            await models.ask(request(), lambda _: None)
    assert (caught.value.trouble, caught.value.is_sent) == (Trouble.NETWORK, False)
    async with Providers(lambda _: Failure(Fault.SERVER)) as server, asking(server.openai_url) as models:
        with pytest.raises(ModelError) as caught:
            await models.ask(request(), lambda _: None)
    assert caught.value.is_sent


async def test_one_connection_serves_one_call_after_the_other() -> None:
    """Also when the end of the body comes a little after the last event."""
    last = Raw(STOPPED + b"\n\ndata: [DONE]\n\n")
    async with Providers(lambda _: Reply([Text("a"), last, Pause(0.02)])) as server:
        async with asking(server.openai_url) as models:
            for _ in range(5):
                await models.ask(request(), lambda _: None)
        assert (server.log.count, server.connections) == (5, 1)


async def test_inputs_in_a_row_are_one_message_of_the_user() -> None:
    """Many chat templates refuse to render anything else."""
    async with Providers(lambda _: Reply([Text("ok")])) as server, asking(server.openai_url) as models:
        transcript = (Input("one"), Input("two"), Answer("ok"), Input("three"))
        await models.ask(request(transcript), lambda _: None)
        said = turns(server.log.calls[0].request)
    assert [(turn.role, turn.text) for turn in said] == [
        ("user", "one\n\ntwo"),
        ("assistant", "ok"),
        ("user", "three"),
    ]


async def test_thoughts_are_not_sent_back() -> None:
    async with Providers(lambda _: Reply([Text("ok")])) as server, asking(server.openai_url) as models:
        answer = Answer("", (Call("list", {}, "a"),), thoughts=(Thought("secret plan", "sig", "other"),))
        transcript = (Input("one"), answer, Results((Result(0, "list", "nothing"),)))
        await models.ask(request(transcript), lambda _: None)
        assert "secret plan" not in json.dumps(server.log.calls[0].request.body)


async def test_half_a_character_does_not_lose_the_call() -> None:
    async with Providers(lambda _: Reply([Text("ok")])) as server, asking(server.openai_url) as models:
        await models.ask(request((Input("torn \ud83d apart"),)), lambda _: None)
        assert server.log.calls[0].request.messages[0]["content"] == "torn ? apart"


async def test_a_level_of_thinking_is_sent_in_the_words_of_the_endpoint() -> None:
    efforts = {Thinking.OFF: "none", Thinking.MAX: "high"}
    async with Providers(lambda _: Reply([Text("ok")])) as server:
        async with asking(server.openai_url, efforts=efforts) as models:
            for level in (Thinking.OFF, Thinking.MAX, Thinking.LOW, None):
                await models.ask(request(thinking=level), lambda _: None)
        sent = [call.request.body.get("reasoning_effort") for call in server.log.calls]
    assert sent == ["none", "high", None, None]


async def test_tools_that_change_are_sent_anew() -> None:
    """What was encoded is kept by identity: a new spec must never be taken for an old one."""
    async with Providers(lambda _: Reply([Text("ok")])) as server, asking(server.openai_url) as models:
        for number in range(200):
            tools = [ToolSpec(f"tool_{number}", "Does it.", {"type": "object"})]
            await models.ask(request(tools=tools), lambda _: None)
        sent = [call.request.tools[0]["function"]["name"] for call in server.log.calls]
    assert sent == [f"tool_{number}" for number in range(200)]


async def test_an_error_after_the_last_event_does_not_spoil_the_answer() -> None:
    said = SSE.replace(b"\r\n\r\n", b"\r\nContent-Length: 99999\r\n\r\n")
    assert (await heard(said + SAID + b"\n\n" + STOPPED + b"\n\ndata: [DONE]\n\n")).text == "hi"


async def test_pieces_of_a_call_name_it_first() -> None:
    seen: list[Delta] = []
    call = b'{"index":0,"function":{"name":"list","arguments":"{}"}}'
    event = b'data: {"choices":[{"delta":{"tool_calls":[%s]}}]}\n\n' % call
    async with Providers(lambda _: Reply([Raw(event)])) as server, asking(server.openai_url) as models:
        await models.ask(request(), seen.append)
    assert seen == [Delta(DeltaKind.CALL, "list", 0), Delta(DeltaKind.CALL, "{}", 0)]


async def test_importing_the_adapter_does_not_import_its_http_library() -> None:
    program = (
        "import sys, clutch.models.chat_completions, clutch.models.router; print('aiohttp' in sys.modules)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.read()).strip() == b"False"
    await process.wait()
