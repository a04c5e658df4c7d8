"""The library adapter beyond the contract: importing it stops nobody, and every provider can be made and asked."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from clutch.core.messages import Answer, Call, Input, Result, Results, Thought, Usage
from clutch.core.model import Thinking
from clutch.models import library
from clutch.models.library import LibraryModels
from clutch.models.provider import Provider
from clutch.ports import ModelError, ModelRequest, ToolSpec, Trouble
from clutch.testing.providers import Providers, Reply, Text, WireRequest
from clutch.testing.providers import Thinking as Thoughts

pytestmark = pytest.mark.anyio

TOOL = ToolSpec("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
ASKED = (
    Input("look into a"),
    Answer(
        "I look.", (Call("read", {"path": "a"}, "call_1"),), thoughts=(Thought("hm", "signed", "elsewhere"),)
    ),
    Results((Result(0, "read", "text of a"),)),
)


def request(
    thinking: Thinking | None = None, transcript: Any = ASKED, model: str = "small-model"
) -> ModelRequest:
    return ModelRequest(model, "Be brief.", transcript, (TOOL,), "s:1", thinking, 100)


def test_the_adapter_itself_loads_no_library() -> None:
    code = (
        "import sys, clutch.models.library, clutch.models.router; "
        "sys.exit(bool({'pydantic_ai', 'openai', 'anthropic', 'httpx2', 'aiohttp'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_anthropic_needs_no_client_of_openai() -> None:
    """The extra `anthropic` installs no `openai`."""
    code = (
        "import sys; sys.modules['openai'] = None; from clutch.models.provider import Provider;"
        "from clutch.models.library import clients, messages; clients.connect(Provider('anthropic'), 'k')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_many_first_calls_at_once_import_and_connect_only_once() -> None:
    async with Providers(lambda _: Reply([Text("ok")])) as server:
        models = LibraryModels(Provider("here", server.openai_url, "k"), "k")
        answers = await asyncio.gather(*(models.ask(request(), lambda _: None) for _ in range(20)))
        askers = await asyncio.gather(*(models.prepare("small-model") for _ in range(20)))
        assert [answer.text for answer in answers] == ["ok"] * 20
        assert len(set(map(id, askers))) == 1
        await models.aclose()


async def test_only_the_models_used_last_are_kept_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ASKERS_MAX", 2)
    models = LibraryModels(Provider("here", "http://127.0.0.1:9/v1", "k"), "k")
    used, unused = await models.prepare("used"), await models.prepare("unused")
    assert await models.prepare("used") is used
    await models.prepare("invented")
    assert await models.prepare("used") is used
    assert await models.prepare("unused") is not unused
    await models.aclose()


async def test_a_provider_that_nobody_knows_is_an_error_with_the_remedy() -> None:
    models = LibraryModels(Provider("acme"), "k")
    with pytest.raises(ModelError, match="baseUrl") as caught:
        await models.ask(request(), lambda _: None)
    assert (caught.value.trouble, caught.value.is_sent) == (Trouble.BAD_REQUEST, False)


async def test_bedrock_without_a_region_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ModelError, match="AWS_REGION"):
        await LibraryModels(Provider("bedrock"), "k").prepare("anthropic.claude-sonnet-4-5-20250929-v1:0")


# --- thoughts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speaks", "field"), [("anthropic", "signature"), ("openai-responses", "encrypted_content")]
)
async def test_a_signed_thought_goes_back_to_who_signed_it_and_to_nobody_else(
    speaks: str, field: str
) -> None:
    model = "claude-haiku-4-5" if speaks == "anthropic" else "gpt-5"
    async with Providers(lambda _: Reply([Thoughts("hm", signature="c2lnbmVk"), Text("so")])) as server:
        url = server.anthropic_url if speaks == "anthropic" else server.openai_url
        models = LibraryModels(Provider("here", url, "k", speaks=speaks), "k")
        first = await models.ask(request(transcript=(Input("hi"),), model=model), lambda _: None)
        assert first.thoughts[0].provider == "here"
        await models.ask(
            request(transcript=(Input("hi"), first, Input("go on")), model=model), lambda _: None
        )
        assert f'"{field}": "c2lnbmVk"' in json.dumps(server.log.calls[-1].request.body)
        stranger = LibraryModels(Provider("there", url, "k", speaks=speaks), "k")
        await stranger.ask(
            request(transcript=(Input("hi"), first, Input("go on")), model=model), lambda _: None
        )
        assert "c2lnbmVk" not in json.dumps(server.log.calls[-1].request.body)
        assert "hm" not in json.dumps(
            server.log.calls[-1].request.body["messages" if speaks == "anthropic" else "input"]
        )
        await models.aclose()
        await stranger.aclose()


@pytest.mark.parametrize(
    ("speaks", "model", "thinking", "expected"),
    [
        ("openai-chat", "gpt-5", Thinking.HIGH, {"reasoning_effort": "high"}),
        ("openai-chat", "gpt-5", Thinking.MINIMAL, {"reasoning_effort": "minimal"}),
        ("openai-responses", "gpt-5", Thinking.LOW, {"reasoning": {"effort": "low"}}),
        ("anthropic", "claude-haiku-4-5", Thinking.OFF, {}),
        ("anthropic", "claude-haiku-4-5", Thinking.HIGH, {"thinking": {"type": "enabled"}}),
    ],
)
async def test_thinking_levels_are_said_in_the_words_of_the_provider(
    speaks: str, model: str, thinking: Thinking, expected: Mapping[str, Any]
) -> None:
    async with Providers(lambda _: Reply([Text("ok")])) as server:
        url = server.anthropic_url if speaks == "anthropic" else server.openai_url
        models = LibraryModels(Provider("here", url, "k", speaks=speaks), "k")
        long = ModelRequest(model, "", (Input("hi"),), (), "s:1", thinking, 40_000)
        await models.ask(long, lambda _: None)
        body = server.log.calls[-1].request.body
        await models.aclose()
    for name, value in expected.items():
        assert body[name] == value or value.items() <= body[name].items()
    if not expected:
        assert body.get("thinking", {}).get("type") != "enabled"


async def test_efforts_of_an_own_endpoint_are_sent_as_written() -> None:
    async with Providers(lambda _: Reply([Text("ok")])) as server:
        own = Provider("here", server.openai_url, "k", efforts={Thinking.MAX: "ultra"})
        models = LibraryModels(own, "k")
        await models.ask(request(Thinking.MAX), lambda _: None)
        assert server.log.calls[-1].request.body["reasoning_effort"] == "ultra"
        await models.aclose()


async def test_anthropic_is_asked_to_cache_what_stays_the_same() -> None:
    async with Providers(lambda _: Reply([Text("ok")])) as server:
        models = LibraryModels(Provider("here", server.anthropic_url, "k", speaks="anthropic"), "k")
        await models.ask(request(model="claude-haiku-4-5"), lambda _: None)
        assert "cache_control" in json.dumps(server.log.calls[-1].request.body)
        await models.aclose()


# --- providers without a wire suite: a loopback server sees what would be sent -------------------------------


class Overheard:
    """Remembers each request and answers with an error: their formats are not spoken here."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Mapping[str, str], Any]] = []

    async def handle(self, asked: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((asked.path, asked.headers, json.loads(await asked.read())))
        return web.json_response(
            {"error": {"message": "overheard", "code": 429}, "message": "overheard"}, status=429
        )


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # in Google's client, when it is compiled first
@pytest.mark.parametrize(
    ("speaks", "model", "in_path"),
    [
        ("google", "gemini-2.5-flash", "gemini-2.5-flash:streamGenerateContent"),
        ("mistral", "mistral-large-latest", "/chat/completions"),
        ("groq", "llama-3.3-70b-versatile", "/chat/completions"),
        ("openrouter", "anthropic/claude-sonnet-4.5", "/chat/completions"),
        ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0", "converse-stream"),
    ],
)
async def test_providers_without_a_wire_suite_send_the_conversation_once_and_name_their_failure(
    speaks: str, model: str, in_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "secret-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-key")
    key = "" if speaks == "bedrock" else "secret-key"  # its own keys are sent over https only
    overheard = Overheard()
    server = web.Server(overheard.handle, access_log=None)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    models = LibraryModels(Provider("here", url, key, speaks=speaks), key)
    try:
        with pytest.raises(ModelError) as caught:
            await models.ask(request(model=model), lambda _: None)
    finally:
        await models.aclose()
        await server.shutdown(0.1)
        listening.close()
    assert caught.value.trouble is Trouble.RATE_LIMIT
    assert len(overheard.requests) == 1
    path, headers, body = overheard.requests[0]
    assert in_path in path
    assert any("secret-key" in value for value in headers.values())
    sent = json.dumps(body)
    assert all(
        words in sent for words in ("Be brief.", "look into a", "I look.", "text of a", "Reads a file.")
    )
    assert "signed" not in sent


async def test_bedrock_with_a_key_of_its_own_says_why_it_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    models = LibraryModels(Provider("here", "http://127.0.0.1:9", "k", speaks="bedrock"), "k")
    with pytest.raises(ModelError, match="HTTPS") as caught:
        await models.ask(request(model="amazon.nova-pro-v1:0"), lambda _: None)
    assert caught.value.trouble is Trouble.BAD_REQUEST


async def test_usage_is_what_the_provider_counted() -> None:
    def behave(asked: WireRequest) -> Reply:
        return Reply([Text("ok")], Usage(500, 7, cache_read=300))

    async with Providers(behave) as server:
        models = LibraryModels(Provider("here", server.openai_url, "k"), "k")
        answers = [await models.ask(request(), lambda _: None) for _ in range(3)]
        await models.aclose()
        assert sum(answer.usage.input for answer in answers) == server.log.billed.input
        assert sum(answer.usage.output for answer in answers) == server.log.billed.output


@pytest.mark.parametrize(
    ("events", "named"),
    [
        (['{"choices":[],"usage":{"prompt_tokens":7.5,"completion_tokens":1,"total_tokens":8.5}}'], "7.5"),
        (['{"choices":[{"index":0,"delta":[{"content":"hi"}]}]}'], "'list' object"),
        (
            [
                json.dumps(
                    {
                        "choices": [
                            {
                                "index": 0,
                                "delta": {
                                    "tool_calls": [
                                        {
                                            "index": 0,
                                            "id": "c",
                                            "function": {
                                                "name": "read",
                                                "arguments": '{"a":' + "[" * 50_000 + "]" * 50_000 + "}",
                                            },
                                        }
                                    ]
                                },
                            }
                        ]
                    }
                )
            ],
            "levels",
        ),
    ],
    ids=["usage", "delta", "deep"],
)
async def test_a_malformed_answer_is_an_error_of_the_provider(events: list[str], named: str) -> None:
    async def said(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        begun = '{"model":"small-model","choices":[{"index":0,"delta":{"content":"hi"}}]}'
        over = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
        for event in (begun, *events, over, "[DONE]"):
            await response.write(f"data: {event}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", said)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    models = LibraryModels(Provider("here", f"http://127.0.0.1:{port}/v1", "k"), "k")
    try:
        with pytest.raises(ModelError) as caught:
            await models.ask(request(transcript=(Input("hello"),)), lambda _: None)
    finally:
        await models.aclose()
        await runner.cleanup()
    assert caught.value.trouble is Trouble.MALFORMED
    assert named in str(caught.value)
