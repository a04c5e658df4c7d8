"""A small streaming client for OpenAI-compatible chat completions: vLLM, Ollama, LM Studio, proxies.

For people who run hundreds of children against their own endpoint. It never retries and never waits for a
seat: that is for whoever sees all runs. `chat` knows the format, this file the connection.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clutch.core.messages import Answer
from clutch.models import chat, failures
from clutch.models.settings import Provider
from clutch.ports import ModelError, ModelRequest, OnDelta, ToolSpec, Trouble

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 30.0
KEEP_ALIVE_S = 4.0  # the usual server drops an idle connection after 5: a request must not meet that
LINE_MAX = 4 * 2**20  # bytes; a chunk is some hundred
ANSWER_MAX = 64 * 2**20
COMPLAINT_MAX = 64 * 2**10
END_S = 0.25  # after the last event the body ends at once, or the connection is not worth keeping
TOOLS_KEPT_MAX = 64  # sets of tools in use at once: one for each role


class DirectModels:
    """Models over one connection pool without a limit. `request.model` is the provider's own name of it."""

    def __init__(self, provider: Provider, key: str, clock: Callable[[], float] = time.time) -> None:
        self._provider = provider
        self._url = provider.base_url.rstrip("/") + "/chat/completions"
        self._key = key
        self._clock = clock
        self._opening = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._broken: tuple[type[Exception], ...] = ()  #: how a connection fails
        #: By the identity of the specs, which are held so that no other can take their place.
        self._tools: dict[tuple[int, ...], tuple[Sequence[ToolSpec], str]] = {}

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        session = self._session or await self._opened()
        reading = chat.Reading(on_delta)
        effort = self._provider.efforts.get(request.thinking) if request.thinking is not None else None
        body = chat.body(request, self._tools_text(request.tools), effort)
        asking = session.post(
            self._url, data=body, headers={"Idempotency-Key": request.key}, allow_redirects=False
        )
        try:
            await self._answered(asking, reading, request.model)
            return reading.answer(self._provider.name)
        except ModelError as error:
            error.is_begun = reading.is_begun
            raise

    async def prepare(self, model: str) -> None:
        del model
        await self._opened()

    async def _answered(
        self, asking: Awaitable[aiohttp.ClientResponse], reading: chat.Reading, model: str
    ) -> None:
        try:
            response = await asking
            try:
                await self._read(response, reading, model)
            except BaseException:
                response.close()  # at once: a provider that is still read goes on working
                raise
            response.release()
        except self._broken as error:
            raise self._network(error) from error

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _opened(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._session is None:
                # Not on the event loop: the import takes longer than a heartbeat may be late.
                await asyncio.to_thread(importlib.import_module, "aiohttp")
                self._connect()
            assert self._session is not None
            return self._session

    def _connect(self) -> None:
        import aiohttp

        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",  # a packer would hold chunks back
            "User-Agent": "clutch",
            **self._provider.headers,
        }
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        idle = self._provider.idle_s
        self._broken = (aiohttp.ClientError, OSError, TimeoutError)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_S, idle), sock_read=idle),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
        )

    def _tools_text(self, tools: Sequence[ToolSpec]) -> str:
        identity = tuple([id(spec) for spec in tools])
        known = self._tools.get(identity)
        if known is None:
            if len(self._tools) >= TOOLS_KEPT_MAX:
                self._tools.clear()
            known = self._tools[identity] = (tuple(tools), chat.tools_text(tools))
        return known[1]

    async def _read(self, response: aiohttp.ClientResponse, reading: chat.Reading, model: str) -> None:
        if response.status != 200:
            raise await self._refused(response)
        if response.content_type == "application/json":  # it does not stream, or it complains
            self._take(await _whole(response, ANSWER_MAX), reading, model)
            return
        content, rest, size = response.content, b"", 0
        while chunk := await content.readany():
            size += len(chunk)
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if line.startswith(b"data:") and self._take(line[5:], reading, model):
                    await self._ended(content)
                    return
            if len(rest) > LINE_MAX or size > ANSWER_MAX:
                raise ModelError(Trouble.MALFORMED, f"the answer has no end after {size} bytes")
        if rest.startswith(b"data:"):
            self._take(rest[5:], reading, model)

    def _take(self, data: bytes, reading: chat.Reading, model: str) -> bool:
        """True when this was the last event."""
        is_first = not reading.model
        try:
            text = data.decode().strip()
            if text == "[DONE]":
                return True
            event = json.loads(text)
            if event.get("error"):
                raise self._complaint(0, event, {})
            reading.feed(event)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise ModelError(Trouble.MALFORMED, f"no event of a stream: {data[:100]!r}") from error
        if is_first and not self._provider.allow_model_mismatch:
            wrong = failures.mismatch(model, reading.model)
            if wrong is not None:
                raise wrong
        return False

    async def _ended(self, content: aiohttp.StreamReader) -> None:
        """The body ends with the last event or right after it: then the connection can be used again."""
        if content.is_eof():
            return
        try:
            async with asyncio.timeout(END_S):
                while await content.readany():
                    pass
        except self._broken:
            return  # the answer is complete all the same

    # --- what went wrong --------------------------------------------------------------------------------------

    async def _refused(self, response: aiohttp.ClientResponse) -> ModelError:
        if 300 <= response.status < 400:
            target = response.headers.get("Location", "nowhere")
            return ModelError(
                Trouble.BAD_REQUEST, f"{self._url} redirects to {target}: set baseUrl accordingly"
            )
        body = await _whole(response, COMPLAINT_MAX)
        try:
            said = json.loads(body)
        except ValueError:
            said = body.decode("utf-8", "replace").strip()
        return self._complaint(response.status, said, response.headers)

    def _complaint(self, status: int, said: Any, headers: Mapping[str, str]) -> ModelError:
        """Providers nest what they say in `error`, or don't, or only give a text."""
        error = said.get("error", said) if isinstance(said, dict) else said
        if isinstance(error, dict):
            message = str(error.get("message") or error.get("detail") or error)
            wording = f"{error.get('code')} {error.get('type')} {message}"
            code = error.get("code")
            status = status or (code if isinstance(code, int) else 0)
        else:
            message = wording = str(error)
        if self._key:
            message = message.replace(self._key, "…")
        return failures.failure(status, wording, message, headers, self._clock())

    def _network(self, error: Exception) -> ModelError:
        import aiohttp

        match error:
            case aiohttp.ConnectionTimeoutError():
                return ModelError(Trouble.NETWORK, f"no connection to {self._url} in time", is_sent=False)
            case TimeoutError():
                return ModelError(Trouble.NETWORK, f"silent for {self._provider.idle_s:g} s")
            case aiohttp.ClientConnectorError():
                return ModelError(Trouble.NETWORK, str(error), is_sent=False)
            case aiohttp.ClientResponseError():
                return ModelError(Trouble.MALFORMED, f"{self._url} does not speak HTTP: {error.message}")
            case _:
                return ModelError(Trouble.NETWORK, str(error) or type(error).__name__)


async def _whole(response: aiohttp.ClientResponse, size_max: int) -> bytes:
    body = bytearray()
    while len(body) < size_max and (chunk := await response.content.readany()):
        body += chunk
    return bytes(body)
