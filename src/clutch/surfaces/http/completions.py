"""A main agent behind the wire format of OpenAI's chat completions, for clients that speak nothing else.

An agent is a model here (`model`: its id), and its session has the memory: of `messages` only the last one is said, the
rest it knows. `user` names the session; without it the history does (`core/session_tools.py`). Each request has its own
turn. The turn, and the children it starts, continue whether a client waits or not; replies that no client received wait
where `replies` finds them. The same `Idempotency-Key` is the same message, and gets the same answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import uuid4

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope
from typing_extensions import TypedDict

from clutch.api.feed import FeedWatcher
from clutch.api.problems import Problem, problem_of
from clutch.api.slash import is_command
from clutch.api.wait import PendingAnswer, first
from clutch.contain import BackgroundTasks
from clutch.core import ids, session_tools
from clutch.core.model import LetterKind
from clutch.core.session_tools import ConversationMessage
from clutch.core.spawn import known_agents
from clutch.errors import ClutchError
from clutch.surfaces.http.auth import refusal
from clutch.surfaces.http.browser import PRIVATE
from clutch.surfaces.http.routes import AppState, Ask, Body, Reply, checked_body, route
from clutch.transactions import idempotency
from clutch.transactions.idempotency import Conversation
from clutch.transactions.read.answers import AnswerText, Spent

# --------------------------------------------------------------------------------------------------
# An answer that may take long: it is awaited as long as the client is connected.

T = TypeVar("T")


class DelayedResponse(Response, Generic[T]):
    """`sent` is called with the answer after all of it was sent, and not at all when the client has gone."""

    def __init__(
        self,
        answer: Callable[[], Coroutine[Any, Any, T]],
        rendered: Callable[[T], Response],
        sent: Callable[[T], Awaitable[None]],
        error_json: Callable[[Problem], Any],
    ) -> None:
        super().__init__()
        self._answer, self._rendered, self._sent, self._error_json = answer, rendered, sent, error_json

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            async with BackgroundTasks() as tasks:
                answering = tasks.call(self._answer(), "answer of a completion")
                await first(asyncio.wait({answering}), _gone(receive))
                if not answering.done():
                    return
                said = answering.result()
        except ClutchError as error:
            return await refusal(problem_of(error), self._error_json)(scope, receive, send)
        response = self._rendered(said)
        response.headers.update(PRIVATE)
        await response(scope, receive, send)
        await self._sent(said)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


PING_S = 15.0
KIND_CHARS_MAX = 40
MESSAGES_MAX = 10_000  # clients send all there was, each time
ROLES = ("system", "developer", "user", "assistant")

Ignored = Annotated[Any, Field(description="accepted: it says nothing about the answer")]
Refused = Annotated[Any, Field(description="only a value that asks for nothing is accepted")]
#: What a parameter that is not supported may say, beside null: one that was ignored would surprise its sender.
ASKS_FOR_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "temperature": (1,),
    "top_p": (1,),
    "max_tokens": (),
    "max_completion_tokens": (),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "seed": (),
    "stop": ([],),
    "reasoning_effort": (),
    "logit_bias": ({},),
    "service_tier": ("auto", "default"),
    "verbosity": (),
    "prediction": (),
    "store": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
}


def asks_for_nothing(value: Any, allowed: Collection[Any]) -> Any:
    """Return the value of a parameter that is not supported. Raises PydanticCustomError if it asks for something."""
    if value is None or value in allowed:
        return value
    shown = " or ".join(map(json.dumps, allowed)) or "null"
    rule = f"not supported: leave it out, or send {shown} (an agent has settings and tools of its own)"
    raise PydanticCustomError("unsupported", "{rule}", {"rule": rule})


class Part(Body):
    type: Literal["text"]
    text: str


class Said(Body):
    """The message of a user, as text."""

    role: Literal["user"]
    content: str | list[Part]
    name: str | None = None


class StreamOptions(Body):
    include_usage: Annotated[bool | None, Field(description="a last piece without choices says it")] = None
    include_obfuscation: Ignored = None


class Completing(Body):
    model: Annotated[str, Field(description="the id of an agent")]
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MESSAGES_MAX)]
    user: Annotated[
        str | None,
        Field(
            description="the session: agent:MODEL:chat:USER, or a whole key; without it the history decides"
        ),
    ] = None
    stream: bool | None = None
    n: Refused = None
    stream_options: StreamOptions | None = None
    temperature: Refused = None
    top_p: Refused = None
    max_tokens: Refused = None
    max_completion_tokens: Refused = None
    presence_penalty: Refused = None
    frequency_penalty: Refused = None
    seed: Refused = None
    stop: Refused = None
    reasoning_effort: Refused = None
    metadata: Ignored = None
    store: Refused = None
    logit_bias: Refused = None
    service_tier: Refused = None
    parallel_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    prompt_cache_options: Ignored = None
    safety_identifier: Ignored = None
    verbosity: Refused = None
    prediction: Refused = None
    tools: Refused = None
    tool_choice: Refused = None
    functions: Refused = None
    function_call: Refused = None
    response_format: Refused = None
    modalities: Refused = None
    audio: Refused = None
    logprobs: Refused = None
    top_logprobs: Refused = None
    web_search_options: Refused = None
    moderation: Refused = None

    @field_validator(*ASKS_FOR_NOTHING)
    @classmethod
    def _asks_for_nothing(cls, value: Any, info: ValidationInfo) -> Any:
        return asks_for_nothing(value, ASKS_FOR_NOTHING[info.field_name or ""])

    @property
    def text(self) -> str:
        """The message to answer. Raises Problem."""
        last, place = self.messages[-1], f"messages.{len(self.messages) - 1}"
        check_parts(last.get("content"), f"{place}.content")
        return text_of(checked_body(json.dumps(last).encode(), Said).model_dump()["content"])

    @property
    def earlier(self) -> list[ConversationMessage]:
        """Return what a session that has none of it must know: instructions too."""
        known = [one for one in self.messages[:-1] if one.get("role") in ROLES]
        return [ConversationMessage(one["role"], text_of(one.get("content"))) for one in known]

    @property
    def lines(self) -> list[ConversationMessage]:
        """Return the earlier messages of user and assistant, which name the conversation."""
        return [one for one in self.earlier if one.role in ("user", "assistant")]


def check_parts(content: Any, place: str, text_type: str = "text") -> None:
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != text_type:
            field = f"{place}.{number}.type"
            shown = str(kind)[:KIND_CHARS_MAX]
            rule = f"{shown!r} is not supported: an agent reads text only; send parts of type {text_type!r}"
            raise Problem("invalid_input", f"{field}: {rule}", field=field, rule=rule)


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


class CompletionAnswer(NamedTuple):
    reply: AnswerText
    usage: CompletionUsage | None

    @property
    def problem(self) -> Problem | None:
        """The error that a client gets instead of an answer."""
        error = self.reply.error
        return None if error is None else Problem("turn_failed", f"the turn of the agent failed: {error}")


@dataclass(frozen=True, slots=True)
class PendingCompletion:
    """One message under way, and its answer in the form of a completion."""

    app: AppState
    model: str
    answering: PendingAnswer
    lines: (
        Sequence[ConversationMessage] | None
    )  #: of a conversation that is known by its history, with this message
    owner: str
    _spoken: list[str] = field(default_factory=list, init=False)  #: the pieces of a stream

    async def answer(self) -> CompletionAnswer:
        reply = await self.answering.answer(self.app.closing)
        spent = await self.answering.spent()
        return CompletionAnswer(reply, None if spent is None else _usage(spent))

    async def answer_whole(self) -> CompletionAnswer:
        said = await self.answer()
        await self.left(said.reply.body)
        return said

    async def left(self, text: str) -> None:
        """The history a next request will have; before the answer is sent, so that none comes too early."""
        if self.lines is not None:
            history = session_tools.digest(self.owner, [*self.lines, ConversationMessage("assistant", text)])
            number = self.answering.number
            await self.app.gateway.services.db.tx(number, idempotency.leave, number, history)

    async def heard(self, said: CompletionAnswer) -> None:
        await self.answering.heard(said.reply)

    def form(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{hashlib.sha256(self.answering.letter.encode()).hexdigest()[:24]}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "choices": choices,
            **more,
        }

    def whole(self, said: CompletionAnswer) -> Response:
        if said.problem is not None:
            return refusal(said.problem, openai_error, closes=False)
        message = {"role": "assistant", "content": said.reply.body}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(self.form("chat.completion", [choice], usage=said.usage))

    def piece(self, finish: str | None = None, **delta: str) -> str:
        self._spoken.append(delta.get("content", ""))
        return self.chunk([{"index": 0, "delta": delta, "finish_reason": finish}])

    @property
    def spoken(self) -> str:
        return "".join(self._spoken)

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps(self.form('chat.completion.chunk', choices, **more))}\n\n"


async def live_text(
    app: AppState, answering: PendingAnswer, watcher: FeedWatcher
) -> list[tuple[int, str | None]]:
    """The pieces that have come since, and of which run; None: an answer of the model is complete."""
    app.feed.tell_at_once(watcher)
    came = [
        (ids.parse_run_id(data["runId"]) or 0, data["text"] if news.name == "assistant:text" else None)
        for told in watcher.take()
        for news in told.news
        if news.name in ("assistant:text", "usage")
        for data in (json.loads(news.data),)
    ]
    ours = {run_id for run_id in {run_id for run_id, _ in came} if await answering.is_of(run_id)}
    return [one for one in came if one[0] in ours]


def _usage(spent: Spent) -> CompletionUsage:
    return {
        "prompt_tokens": spent.input,
        "completion_tokens": spent.output,
        "total_tokens": spent.input + spent.output,
        "prompt_tokens_details": {"cached_tokens": spent.cache_read},
    }


def openai_error(problem: Problem) -> dict[str, Any]:
    """Return our error object with the two fields that OpenAI's errors have beside ours."""
    kind = "server_error" if problem.status >= 500 else "invalid_request_error"
    return {"error": {**problem.to_json()["error"], "type": kind, "param": problem.field}}


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsObject(TypedDict):
    object: Literal["list"]
    data: list[Model]


class Spoken(TypedDict):
    role: Literal["assistant"]
    content: str


class Choice(TypedDict):
    index: int
    message: Spoken
    finish_reason: Literal["stop"]


class CachedTokens(TypedDict):
    cached_tokens: int


class CompletionUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Completion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage | None


@route("GET", "/v1/models", error_json=openai_error)
async def models(ask: Ask) -> Reply[ModelsObject]:
    """The agents, as OpenAI's clients list models."""
    known = sorted(known_agents(ask.app.gateway.services.policy))
    return Reply({"object": "list", "data": [_model(one) for one in known]})


@route("GET", "/v1/models/{id}", error_json=openai_error)
async def model(ask: Ask) -> Reply[Model]:
    """One agent, as OpenAI's clients retrieve a model."""
    check_agent(ask.app, ask.path["id"])
    return Reply(_model(ask.path["id"]))


def _model(agent_id: str) -> Model:
    return {"id": agent_id, "object": "model", "created": 0, "owned_by": "clutch"}


def check_agent(app: AppState, agent_id: str) -> None:
    agents = known_agents(app.gateway.services.policy)
    if agent_id not in agents:
        near = ids.hint(agent_id, agents)
        raise Problem(
            "not_found", f"there is no such agent{near}; GET /v1/models has them all", field="model"
        )


@route("POST", "/v1/chat/completions", answer=Completion, error_json=openai_error)
async def completions(ask: Ask[Completing]) -> Response:
    """Says the last message to an agent, and gives its answer as OpenAI's chat completions do."""
    body, gateway = ask.body, ask.app.gateway
    check_agent(ask.app, body.model)
    text, lines, owner = body.text, body.lines, f"{ask.caller.actor}\n{body.model}"
    if body.user is None:
        session, is_new = await _conversation(ask, session_tools.digest(owner, lines))
    else:
        is_whole_key = body.user.startswith(f"agent:{body.model}:")
        session, is_new = body.user if is_whole_key else f"agent:{body.model}:chat:{body.user}", False
    number, _ = await gateway.session(session)
    is_introduced = is_new and bool(body.earlier) and not is_command(text)
    bytes_max = gateway.services.policy.limits.task_bytes_max
    said = session_tools.introduced(body.earlier, text, bytes_max) if is_introduced else text

    async def begun() -> PendingCompletion:
        letter = await gateway.say(said, session, ask.key, ask.caller, LetterKind.REQUEST)
        known = [*lines, ConversationMessage("user", text)] if body.user is None else None
        return PendingCompletion(
            ask.app, body.model, PendingAnswer(gateway.services, number, letter), known, owner
        )

    if not body.stream:
        talk = await begun()
        return DelayedResponse(talk.answer_whole, talk.whole, talk.heard, openai_error)
    counts = body.stream_options is not None and bool(body.stream_options.include_usage)
    pieces = _pieces(ask.app, FeedWatcher(task_id=number), begun, counts=counts)
    opening = await anext(pieces)  # what is wrong is said before an answer begins
    return StreamingResponse(_after(opening, pieces), media_type="text/event-stream")


async def _conversation(ask: Ask[Completing], history: str) -> Conversation:
    key = None if ask.key is None else f"conversation\n{ask.caller.actor}\n{ask.key}"
    fresh = f"agent:{ask.body.model}:chat:openai-{uuid4().hex[:16]}"
    return await ask.app.write(idempotency.find, key, history, fresh)


async def _pieces(
    app: AppState, watcher: FeedWatcher, begun: Callable[[], Awaitable[PendingCompletion]], *, counts: bool
) -> AsyncGenerator[str, None]:
    """The answers of the turn as they come, each a paragraph; at the end, what was not sent of the last one."""
    told, speaker, is_complete = "", 0, False  # the last answer of which something came, and its run
    async with app.feed.watching(watcher), BackgroundTasks() as tasks:
        talk = await begun()
        yield talk.piece(role="assistant", content="")
        answering = tasks.call(talk.answer(), "answer of a stream")
        try:
            while not answering.done():
                if not await first(asyncio.wait({answering}), watcher.came.wait(), within_s=PING_S):
                    yield ": ping\n\n"
                for run_id, text in await live_text(app, talk.answering, watcher):
                    is_complete = is_complete or text is None or run_id != speaker
                    if text:
                        yield talk.piece(content=f"\n\n{text}" if told and is_complete else text)
                        told, speaker, is_complete = (text if is_complete else told + text), run_id, False
            answered = answering.result()
        except ClutchError as error:
            yield f"data: {json.dumps(openai_error(problem_of(error)))}\n\n"
            return
    said = answered.reply
    if answered.problem is not None:
        await talk.heard(answered)  # before it is sent: clients hang up at an error
        yield f"data: {json.dumps(openai_error(answered.problem))}\n\n"
        return
    if told.strip() != said.body.strip():
        is_begun = said.body.startswith(told)
        yield talk.piece(content=said.body.removeprefix(told) if is_begun else f"\n\n{said.body}")
    await talk.left(talk.spoken)
    yield talk.piece("stop")
    if counts:
        yield talk.chunk([], usage=answered.usage)
    yield "data: [DONE]\n\n"
    await talk.heard(answered)


async def _after(opening: str, pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    async with aclosing(pieces):
        yield opening
        async for piece in pieces:
            yield piece


ENTRIES = (models, model, completions)
