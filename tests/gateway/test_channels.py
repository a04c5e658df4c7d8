"""`channels` of a config: people behind a webhook, from the file to the request that reaches them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from clutch import Clutch
from clutch.channels.posting import post
from clutch.channels.webhook import WebhookChannel
from clutch.config import files
from clutch.core.messages import Answer
from clutch.errors import ConfigInvalid
from clutch.ports import ModelRequest, OnDelta, ThreadFailed
from clutch.wiring import config_warnings
from tests.answering import answering

pytestmark = pytest.mark.anyio


class Alert:
    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        return Answer("the disk is full", model="alert")


class Posted(list[web.Request]):
    arrived = asyncio.Condition()

    async def number(self, count: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self) >= count)


@asynccontextmanager
async def receiver(*answers: web.Response) -> AsyncIterator[tuple[str, Posted]]:
    """Answers one after the other; the last one again and again."""
    posted = Posted()

    async def receive(request: web.Request) -> web.Response:
        await request.read()
        async with posted.arrived:
            posted.append(request)
            posted.arrived.notify_all()
        chosen = answers[min(len(posted), len(answers)) - 1]
        return web.Response(status=chosen.status, body=chosen.body, headers=chosen.headers)

    async with answering(receive, "POST") as address:
        yield f"{address}/room?secret=canary", posted


async def test_what_a_heartbeat_says_reaches_the_channel_its_config_names_until_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOM_TOKEN", "Bearer s3cret")
    async with receiver(web.Response(status=503), web.json_response({"id": 7})) as (url, posted):
        config: dict[str, Any] = {
            "channels": {"ops": {"url": url, "headers": {"Authorization": {"env": "ROOM_TOKEN"}}}},
            "agents": {"list": [{"id": "main", "heartbeat": {"every": "1h", "target": "ops:night"}}]},
            "announce": {"retry": {"firstMs": 5}},
        }
        file = tmp_path / "clutch.json"
        file.write_text(json.dumps(config))
        file.chmod(0o600)
        async with Clutch(state=tmp_path / "state", config=file, models=Alert(), serve=False) as c:
            await c.notify("disk at 99 %")
            await c.wake()
            with anyio.fail_after(20):
                await posted.number(2)
    said = [
        (await one.json(), one.headers["Idempotency-Key"], one.headers["Authorization"]) for one in posted
    ]
    assert said[0] == said[1]
    (body, key, token) = said[0]
    assert body == {"text": "the disk is full", "to": "night", "key": key}
    assert token == "Bearer s3cret"


async def test_a_refusal_is_for_good_a_redirect_is_not_followed_and_neither_names_the_secret_address() -> (
    None
):
    elsewhere = web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"})
    async with receiver(web.Response(status=404), elsewhere) as (url, posted):
        channel = WebhookChannel("ops", url)
        with pytest.raises(PermissionError, match=r"127\.0\.0\.1 says 404") as refused:
            await channel.send("", "words", "k")
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1 says 302") as moved:
            await channel.send("", "words", "k")
    with pytest.raises(ConnectionError, match="cannot be reached") as gone:
        await channel.send("", "words", "k")
    assert "canary" not in f"{refused.value}{moved.value}{gone.value}{channel!r}"
    assert [await one.json() for one in posted] == [{"text": "words", "key": "k"}] * 2


async def test_a_channel_with_threads_asks_its_receiver_for_one_and_posts_into_it() -> None:
    async with receiver(web.json_response({"thread": "T1"}), web.Response(text="ok")) as (url, posted):
        channel = WebhookChannel("ops", url, threads=True)
        assert await channel.open_thread("night", "research", "thread:1") == "T1"
        assert await channel.send('{"to": "night", "thread": "T1"}', "found it", "k") is None
        with pytest.raises(ThreadFailed, match="named none"):
            await channel.open_thread("", "research", "thread:2")
        with pytest.raises(ThreadFailed, match=r"channels\.ops\.threads is false"):
            await WebhookChannel("ops", url).open_thread("", "research", "thread:3")
    first, second, _ = [await one.json() for one in posted]
    assert first == {"openThread": "research", "to": "night", "key": "thread:1"}
    assert second == {"text": "found it", "to": "night", "thread": "T1", "key": "k"}


def test_a_channel_that_cannot_be_is_a_problem_with_a_place_and_one_that_nobody_has_a_note() -> None:
    def read(text: str) -> files.Config:
        return files.read(text, Path("clutch.json"), 0o600, {})

    for wrong, said in (
        ('{channels: {ops: {url: "ftp://h/"}}}', "channels.ops.url: must be an address"),
        ("{channels: {ops: {header: {}}}}", "channels.ops.header: not known; did you mean headers?"),
        ("{channels: {ops: {}}}", "channels.ops: lacks url"),
        ('{channels: {api: {url: "http://h/"}}}', "channels.api: a name is up to 32 of"),
    ):
        with pytest.raises(ConfigInvalid) as refused:
            read(wrong)
        assert said in refused.value.problems[0], wrong
    beat = 'agents: {defaults: {heartbeat: {target: "ops:night"}}, list: [{id: "main"}]}'
    assert "there is no channels.ops" in str(config_warnings(read(f"{{{beat}}}").settings))
    assert config_warnings(read(f'{{channels: {{ops: {{url: "http://h/"}}}}, {beat}}}').settings) == []
    assert "none is listed" in str(config_warnings(read("{agents: {defaults: {heartbeat: {}}}}").settings))


@pytest.mark.parametrize(
    ("pieces", "heard"),
    [
        ((b'{"ok": false,', b' "error": "no"}'), {"ok": False, "error": "no"}),
        ((b"th", b"anks"), None),
        ((b'{"ok": fal',), ConnectionError),
    ],
)
async def test_answer_is_heard_in_however_many_pieces_it_comes(
    pieces: tuple[bytes, ...], heard: object
) -> None:
    """A veto must not get lost on the way."""

    async def receive(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0.02)
        return response

    async with answering(receive, "POST") as address:
        if heard is ConnectionError:
            with pytest.raises(ConnectionError, match="broken"):
                await post(address, {}, {}, "k")
        else:
            assert await post(address, {}, {}, "k") == heard
