"""`channels` of a config: people behind a webhook, from the file to the request that reaches them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from typer.testing import CliRunner

from clutch import Clutch
from clutch.api import reads
from clutch.channels import WebhookChannel, post
from clutch.cli.app import app
from clutch.config import load
from clutch.core.authority import EVERY_SCOPE, OperatorCaller
from clutch.core.delivery import SendUnsure
from clutch.core.messages import Answer
from clutch.errors import ConfigInvalid
from clutch.ports import ModelRequest, OnDelta, ThreadFailed
from clutch.wiring import config_warnings
from tests.answering import answering

pytestmark = pytest.mark.anyio

WHO = reads.standpoint(OperatorCaller(EVERY_SCOPE))


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


@asynccontextmanager
async def cutting(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Reads a whole request, answers with these bytes and closes the connection."""
    read: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])  # type: ignore[index]
        read.append(await reader.readexactly(length))
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/room?secret=canary", read


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n",
        b"no HTTP at all\r\n\r\n",
    ],
)
async def test_a_connection_that_is_cut_after_the_request_was_read_is_unsure(answer: bytes) -> None:
    async with cutting(answer) as (url, read):
        with pytest.raises(SendUnsure) as unsure:
            await WebhookChannel("ops", url).send("", "words", "k")
    assert (len(read), "canary" in str(unsure.value)) == (1, False)
    with pytest.raises(ConnectionError, match="cannot be reached") as refused:
        await WebhookChannel("ops", url).send("", "words", "k")
    assert not isinstance(refused.value, SendUnsure)


async def test_a_message_whose_connection_was_cut_is_sent_once_and_shown_with_channel_and_reason(
    tmp_path: Path,
) -> None:
    file = tmp_path / "clutch.json"
    async with cutting(b"") as (url, read):
        config: dict[str, Any] = {
            "channels": {"ops": {"url": url}},
            "agents": {"list": [{"id": "main", "heartbeat": {"every": "1h", "target": "ops:night"}}]},
            "announce": {"retry": {"firstMs": 5}},
        }
        file.write_text(json.dumps(config))
        file.chmod(0o600)
        async with Clutch(state=tmp_path / "state", config=file, models=Alert(), serve=False) as c:
            await c.notify("disk at 99 %")
            await c.wake()
            changes = c.services.changes
            with anyio.fail_after(20):
                change = changes.next_change
                while not (inbox := await c.services.db.read(reads.inbox, WHO))["unsent"]:
                    await changes.until(change)
                    change = changes.next_change
            page = await c.services.db.read(reads.tasks, WHO, reads.Filter())
    (message,) = inbox["unsent"]
    assert len(read) == 1
    assert (message["channel"], message["target"], message["text"]) == ("ops", "night", "the disk is full")
    assert (message["outcome"], message["attempts"]) == ("unsure", 1)
    assert "closed the connection without an answer" in message["error"]
    assert page["summary"]["unsent"] == 1
    shown = CliRunner().invoke(app, ["ps", "--state", str(tmp_path / "state")])
    listed = CliRunner().invoke(app, ["inbox", "--state", str(tmp_path / "state")])
    for said in (shown.stdout, listed.stdout):
        assert 'Message "the disk is full" to ops:night: unsure whether it arrived' in said


async def test_an_operator_sends_an_unsure_message_again_or_dismisses_it(tmp_path: Path) -> None:
    file, state = tmp_path / "clutch.json", str(tmp_path / "state")

    async def run(*words: str) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--state", state])
        return f"{done.exit_code} {done.stdout}{done.stderr}"

    async with cutting(b"") as (url, read):
        channels = {"ops": {"url": url}}
        beat = {"id": "main", "heartbeat": {"every": "1h", "target": "ops:night"}}
        file.write_text(json.dumps({"channels": channels, "agents": {"list": [beat]}}))
        file.chmod(0o600)
        async with Clutch(state=state, config=file, models=Alert()) as c:

            async def unsure(times: int) -> str:
                changes = c.services.changes
                with anyio.fail_after(20):
                    while True:
                        change = changes.next_change
                        found = (await c.services.db.read(reads.inbox, WHO))["unsent"]
                        if found and len(read) == times:
                            return str(found[0]["id"])
                        await changes.until(change)

            await c.notify("disk at 99 %")
            await c.wake()
            message = await unsure(times=1)
            assert f"Send it again: `clutch redeliver {message}`" in await run("inbox")
            assert await run("redeliver", message) == "0 sending\n"
            assert await unsure(times=2) == message
            assert await run("dismiss", message) == "0 dismissed\n"
            assert "Message" not in await run("inbox")
            assert "needs no decision" in await run("redeliver", message)
            assert "there is no message" in await run("dismiss", "m_zzzzz9")
            page = await c.services.db.read(reads.tasks, WHO, reads.Filter())
    assert page["summary"]["unsent"] == 0
    assert len(read) == 2


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
    def read(text: str) -> load.Config:
        return load.read(text, Path("clutch.json"), 0o600, {})

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
        ((b'{"ok": fal',), SendUnsure),
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
        if heard is SendUnsure:
            with pytest.raises(SendUnsure, match="broken"):
                await post(address, {}, {}, "k")
        else:
            assert await post(address, {}, {}, "k") == heard
