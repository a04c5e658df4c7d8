"""A small streaming client for OpenAI-compatible chat completions: vLLM, Ollama, LM Studio, proxies.

For users who run hundreds of children against their own endpoint. It never retries and never waits for a free slot:
the rate limiter and the engine see all runs and decide that."""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from clutch.core.messages import Answer, Call, Input, Message, Results, Thought, Usage
from clutch.models import provider
from clutch.models.provider import Provider, check_depth, converted, count, malformed, too_deep
from clutch.ports import Delta, DeltaKind, ModelError, ModelRequest, OnDelta, ToolSpec, Trouble

if TYPE_CHECKING:
    import aiohttp

_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "a boolean",
}


def wrong_event(event: Any) -> str:
    """Name the first field of a chat-completions event that is of another kind than it should be."""
    choice = _first(event, "choices")
    delta = None if not isinstance(choice, dict) else choice.get("delta") or choice.get("message")
    call = _first(delta, "tool_calls")
    wanted: tuple[tuple[str, Any, type], ...] = (
        ("the event", event, dict),
        ("choices", _of(event, "choices"), list),
        ("choices[0]", choice, dict),
        ("delta", delta, dict),
        ("delta.content", _of(delta, "content"), str),
        ("delta.tool_calls", _of(delta, "tool_calls"), list),
        ("delta.tool_calls[0]", call, dict),
        ("delta.tool_calls[0].function", _of(call, "function"), dict),
        ("usage", _of(event, "usage"), dict),
    )
    for name, value, kind in wanted:
        if value is not None and not isinstance(value, kind):
            return f"{name} is {_NAMES.get(type(value), 'something else')}, not {_NAMES[kind]}"
    return "an event has not the form of chat completions"


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _first(value: Any, name: str) -> Any:
    found = _of(value, name)
    return found[0] if isinstance(found, list) and found else None


# --------------------------------------------------------------------------------------------------
# The format: a request of ours as a JSON body, the events of a stream as an Answer. No network.
#
# The JSON is written by hand where each call or each chunk passes: encoding is most of what a call costs.

CALL_ID_MAX = 40  # characters OpenAI takes; others take less care
# fmt: off
_STOPS = {
    "stop": "end", "tool_calls": "tools", "function_call": "tools", "length": "length", "content_filter": "filter",
}
# fmt: on
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_text = json.encoder.encode_basestring  # what the encoder does with a text, without its type check


# --- the request ------------------------------------------------------------------------------------------


def request_body(request: ModelRequest, tools: str, effort: str | None) -> bytes:
    """`tools` is what `tools_text` made of the request's tools; they rarely change, so the caller may keep it."""
    said = converted(request, _Messages, _Messages).text(request.system)
    limit = f',"max_tokens":{request.output_tokens_max:d}' if request.output_tokens_max is not None else ""
    thinking = f',"reasoning_effort":{_text(effort)}' if effort is not None else ""
    text = (
        f'{{"model":{_text(request.model)},"messages":[{said}]{tools}{limit}{thinking},'
        '"stream":true,"stream_options":{"include_usage":true}}'
    )
    return text.encode("utf-8", "replace")  # halves of surrogate pairs cannot be sent


def tools_text(tools: Sequence[ToolSpec]) -> str:
    if not tools:
        return ""
    functions = [
        f'{{"type":"function","function":{{"name":{_text(spec.name)},"description":{_text(spec.description)},'
        f'"parameters":{_encode(dict(spec.parameters))}}}}}'
        for spec in tools
    ]
    return f',"tools":[{",".join(functions)}]'


class _Messages:
    """The messages of a transcript as JSON."""

    def __init__(self) -> None:
        self._done: list[str] = []
        # Consecutive inputs are sent as one message: many chat templates refuse two messages of the user in a row.
        self._inputs: list[str] = []
        self._used: set[str] = set()
        self._ids: list[str] = []

    def add(self, message: Message) -> None:
        if self._inputs and not isinstance(message, Input):
            self._done.append(_user(self._inputs))
            self._inputs = []
        match message:
            case Input(text):
                self._inputs.append(text)
            case Answer():
                self._ids = [_call_id(call, self._used) for call in message.calls]
                self._done.append(_assistant(message, self._ids))
            case Results(results):
                for result in results:
                    called = _text(self._ids[result.index])
                    self._done.append(
                        f'{{"role":"tool","tool_call_id":{called},"content":{_text(result.text)}}}'
                    )
            case _:
                assert_never(message)

    def text(self, system: str) -> str:
        first = [f'{{"role":"system","content":{_text(system)}}}'] if system else []
        return ",".join([*first, *self._done, *([_user(self._inputs)] if self._inputs else [])])


def _user(inputs: Sequence[str]) -> str:
    text = _text("\n\n".join(inputs))
    return f'{{"role":"user","content":{text}}}'


def _call_id(call: Call, used: set[str]) -> str:
    """Return the provider's own id, or nine letters, which every provider takes, where it is unusable or not unique."""
    is_usable = 0 < len(call.id) <= CALL_ID_MAX and call.id not in used
    chosen = call.id if is_usable else f"c{len(used):08d}"
    used.add(chosen)
    return chosen


def _assistant(answer: Answer, ids: Sequence[str]) -> str:
    content = _text(answer.text) if answer.text or not answer.calls else "null"
    if not answer.calls:
        return f'{{"role":"assistant","content":{content}}}'
    calls = [
        f'{{"id":{_text(called)},"type":"function","function":{{"name":{_text(call.name)},'
        f'"arguments":{_text(_encode(dict(call.args)))}}}}}'
        for call, called in zip(answer.calls, ids, strict=True)
    ]
    return f'{{"role":"assistant","content":{content},"tool_calls":[{",".join(calls)}]}}'


# --- the answer -------------------------------------------------------------------------------------------


class _OpenCall:
    """A tool call while its pieces come."""

    __slots__ = ("arguments", "id", "name", "place")

    def __init__(self, place: int, id: str, name: str) -> None:
        self.place = place
        self.id = id
        self.name = name
        self.arguments: list[str] = []


class StreamReader:
    """Reads the events of one stream, passes pieces on, and builds the answer.

    An event of a wrong shape raises TypeError, AttributeError or LookupError; the caller names what is wrong."""

    # fmt: off
    __slots__ = (
        "_by_index", "_calls", "_is_refused", "_on_delta", "_text", "_thinking", "_usage", "finish", "is_begun", "model"
    )
    # fmt: on

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_OpenCall] = []
        self._by_index: dict[int, _OpenCall] = {}
        self._usage: Mapping[str, Any] | None = None
        self._is_refused = False
        self.is_begun = False  #: an event has come
        self.model = ""
        self.finish: str | None = None  #: None: the answer is not complete

    def feed(self, event: Mapping[str, Any]) -> None:
        self.is_begun = True
        if not self.model:
            self.model = event.get("model") or ""
        if choices := event.get("choices"):
            choice = choices[0]
            if delta := choice.get("delta") or choice.get("message"):
                self._take(delta)
            self.finish = choice.get("finish_reason") or self.finish
        if usage := event.get("usage"):
            self._usage = usage

    def _take(self, delta: Mapping[str, Any]) -> None:
        if thinking := delta.get("reasoning_content") or delta.get("reasoning"):
            self._thinking.append(thinking)
            self._on_delta(Delta(DeltaKind.THINKING, thinking))
        if text := delta.get("content"):
            if not isinstance(text, str):
                raise TypeError
            self._text.append(text)
            self._on_delta(Delta(DeltaKind.TEXT, text))
        if calls := delta.get("tool_calls"):
            for piece in calls:
                self._take_call(piece)
        if refusal := delta.get("refusal"):
            self._is_refused = True
            self._text.append(refusal)
            self._on_delta(Delta(DeltaKind.TEXT, refusal))

    def _take_call(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        call = self._open_call(piece, function)
        if arguments := function.get("arguments"):
            if not isinstance(arguments, str):  # some local servers send the object itself
                arguments = _encode(arguments)
            call.arguments.append(arguments)
            self._on_delta(Delta(DeltaKind.CALL, arguments, call.place))

    def _open_call(self, piece: Mapping[str, Any], function: Mapping[str, Any]) -> _OpenCall:
        """Pieces belong together by index. Servers that give all calls the same one, or none, give each an id."""
        index, name = piece.get("index") or 0, function.get("name")
        known = self._by_index.get(index)
        if known is not None and (not name or piece.get("id") in (None, "", known.id)):
            return known
        opened = _OpenCall(len(self._calls), piece.get("id") or "", name or "")
        self._calls.append(opened)
        self._by_index[index] = opened
        self._on_delta(Delta(DeltaKind.CALL, opened.name, opened.place))
        return opened

    def answer(self, provider: str) -> Answer:
        """Raises ModelError where the stream did not bring a whole answer."""
        if self.finish is None:
            raise ModelError(Trouble.MALFORMED, "the stream ended without saying why")
        if not isinstance(self.finish, str):
            raise malformed("finish_reason is no text")
        stop = _STOPS.get(self.finish, self.finish)
        calls = tuple(_calls(self._calls, may_be_cut=stop == "length"))
        if stop in ("end", "tools"):
            stop = "tools" if calls else "refusal" if self._is_refused else "end"
        thinking = "".join(self._thinking)
        thoughts = (Thought(thinking, provider=provider),) if thinking else ()
        usage = _usage(self._usage) if self._usage else Usage()
        return Answer("".join(self._text), calls, usage, self.model, stop, thoughts)


def _calls(opened: Sequence[_OpenCall], *, may_be_cut: bool) -> Iterator[Call]:
    """A call with unreadable arguments is left out where the length limit cut it, else the answer is malformed."""
    for call in opened:
        text = "".join(call.arguments)
        try:
            arguments = json.loads(text) if text else {}
        except ValueError:
            arguments = None
        except RecursionError as error:
            raise too_deep(call.name) from error
        if isinstance(arguments, dict) and call.name:
            check_depth(call.name, arguments)
            yield Call(call.name, arguments, call.id)
        elif not may_be_cut:
            raise ModelError(
                Trouble.MALFORMED,
                f"the arguments of the call of {call.name!r} are no JSON object: {text[:100]!r}",
            )


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        raise malformed(wrong_event({"usage": usage}))
    details = usage.get("prompt_tokens_details")
    if not isinstance(details, dict):
        details = {}
    cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens")
    return Usage(
        count("usage.prompt_tokens", usage.get("prompt_tokens")),
        count("usage.completion_tokens", usage.get("completion_tokens")),
        count("usage.prompt_tokens_details.cached_tokens", cached),
        count("usage.prompt_tokens_details.cache_write_tokens", details.get("cache_write_tokens")),
    )


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
        reading = StreamReader(on_delta)
        effort = self._provider.efforts.get(request.thinking) if request.thinking is not None else None
        body = request_body(request, self._tools_text(request.tools), effort)
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
        self, asking: Awaitable[aiohttp.ClientResponse], reading: StreamReader, model: str
    ) -> None:
        try:
            response = await asking
            try:
                await self._read(response, reading, model)
            except BaseException:
                response.close()  # at once: a provider that is still read continues working
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
            known = self._tools[identity] = (tuple(tools), tools_text(tools))
        return known[1]

    async def _read(self, response: aiohttp.ClientResponse, reading: StreamReader, model: str) -> None:
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

    def _take(self, data: bytes, reading: StreamReader, model: str) -> bool:
        """True when this was the last event."""
        is_first, event = not reading.model, None
        try:
            text = data.decode().strip()
            if text == "[DONE]":
                return True
            event = json.loads(text)
            if event.get("error"):
                raise self._complaint(0, event, {})
            reading.feed(event)
        except ValueError as error:
            raise ModelError(Trouble.MALFORMED, f"no event of a stream: {data[:100]!r}") from error
        except RecursionError as error:
            raise malformed("an event is nested too deep to be read") from error
        except (TypeError, AttributeError, LookupError) as error:
            raise malformed(f"{wrong_event(event)}: {data[:100]!r}") from error
        if is_first and not self._provider.allow_model_mismatch:
            wrong = provider.mismatch(model, reading.model)
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

    # --- failures ---------------------------------------------------------------------------------------------

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
        """Some providers nest the message in `error`, some do not, some send only a text."""
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
        return provider.failure(status, wording, message, headers, self._clock())

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
