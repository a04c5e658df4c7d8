"""A main agent behind the wire format of OpenAI's Responses API: answers that outlive the client that asked for them.

A response is one message to a session and what its turn answers (`stored_response.py`)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final
from uuid import uuid4

from pydantic import Field, ValidationInfo, field_validator
from starlette.responses import JSONResponse, Response, StreamingResponse

from clutch.api.problems import Problem
from clutch.api.slash import is_command
from clutch.core import session_tools
from clutch.core.authority import Scope
from clutch.core.model import LetterKind
from clutch.core.session_tools import ConversationMessage
from clutch.engine.actions import TaskActions
from clutch.errors import NotFound
from clutch.surfaces.http.completions import (
    MESSAGES_MAX,
    ROLES,
    DelayedResponse,
    Ignored,
    Refused,
    asks_for_nothing,
    check_agent,
    check_parts,
    openai_error,
    text_of,
)
from clutch.surfaces.http.routes import Ask, Body, Query, Reply, route
from clutch.surfaces.http.stored_response import (
    ResponseName,
    ResponseObject,
    StoredResponse,
    events_of,
    parsed,
    status_of,
    stored_response,
    unknown,
)

# --------------------------------------------------------------------------------------------------
# What a client may send

#: What a parameter that is not supported may say, beside null.
ASKS_FOR_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    "access_programs": (),
    "context_management": ([],),
    "image": (),
    "include": ([],),
    "max_output_tokens": (),
    "max_tool_calls": (),
    "metadata": ({},),
    "moderation": (),
    "prompt": (),
    "reasoning": ({},),
    "service_tier": ("auto", "default"),
    "store": (True,),  # every response is kept with its session
    "temperature": (1,),
    "text": ({}, {"format": {"type": "text"}}),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "top_p": (1,),
    "truncation": ("disabled",),
    "user": (),  # `conversation` names a session
}


class ConversationName(Body):
    id: str


class ResponseStreamOptions(Body):
    include_obfuscation: Ignored = None


class Responding(Body):
    model: Annotated[str, Field(description="the id of an agent")]
    input: Annotated[
        str | Annotated[list[dict[str, Any]], Field(max_length=MESSAGES_MAX)],
        Field(description="a text, or messages of which the last is the user's"),
    ]
    instructions: Annotated[str | None, Field(description="given to the agent before the message")] = None
    previous_response_id: Annotated[
        str | None, Field(description="continues the conversation of the newest response")
    ] = None
    conversation: Annotated[
        str | ConversationName | None, Field(description="the session: agent:MODEL:chat:NAME, or a whole key")
    ] = None
    background: Annotated[bool | None, Field(description="answer at once, and work on")] = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    parallel_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    access_programs: Refused = None
    context_management: Refused = None
    image: Refused = None
    include: Refused = None
    max_output_tokens: Refused = None
    max_tool_calls: Refused = None
    metadata: Refused = None
    moderation: Refused = None
    prompt: Refused = None
    reasoning: Refused = None
    service_tier: Refused = None
    store: Refused = None
    temperature: Refused = None
    text: Refused = None
    tool_choice: Refused = None
    tools: Refused = None
    top_logprobs: Refused = None
    top_p: Refused = None
    truncation: Refused = None
    user: Refused = None

    @field_validator(*ASKS_FOR_NOTHING)
    @classmethod
    def _asks_for_nothing(cls, value: Any, info: ValidationInfo) -> Any:
        return asks_for_nothing(value, ASKS_FOR_NOTHING[info.field_name or ""])

    @property
    def messages(self) -> list[ConversationMessage]:
        """Return the instructions and all messages, the one to answer last. Raises Problem."""
        given = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        read = [_message(item, f"input.{number}") for number, item in enumerate(given)]
        if not read or read[-1].role != "user" or not read[-1].text.strip():
            raise _unsupported("input", "the last item must be a message of the user with a text")
        if is_command(read[-1].text):
            raise _unsupported("input", "slash commands are for chats: send it to /v1/chat/completions")
        told = [] if self.instructions is None else [ConversationMessage("system", self.instructions)]
        return [*told, *read]


def _message(item: Mapping[str, Any], place: str) -> ConversationMessage:
    kind, role, content = item.get("type", "message"), item.get("role"), item.get("content")
    if kind != "message":
        raise _unsupported(f"{place}.type", "only messages are supported: an agent has tools of its own")
    if role not in ROLES:
        raise _unsupported(f"{place}.role", f"must be one of {', '.join(ROLES)}")
    check_parts(content, f"{place}.content", "output_text" if role == "assistant" else "input_text")
    return ConversationMessage(role, text_of(content))


def _unsupported(name: str, rule: str) -> Problem:
    return Problem("invalid_input", f"{name}: {rule}", field=name, rule=rule)


# --------------------------------------------------------------------------------------------------
# The paths


@route("POST", "/v1/responses", answer=ResponseObject, error_json=openai_error)
async def respond(ask: Ask[Responding]) -> Reply[ResponseObject] | Response:
    """Says a message to an agent as OpenAI's Responses do; with `background`, the answer is read later by its id."""
    body, app = ask.body, ask.app
    check_agent(app, body.model)
    *earlier, message = body.messages
    own = f"{ask.caller.actor}\n{ask.key}"
    nonce = (uuid4().hex if ask.key is None else hashlib.sha256(own.encode()).hexdigest())[:24]
    session = await _session(ask, nonce)
    number, _ = await app.gateway.session(session)
    name = ResponseName(number, bool(body.background), nonce)
    stored = stored_response(app, name, ask.caller)
    bytes_max = app.gateway.services.policy.limits.task_bytes_max
    said = session_tools.introduced(earlier, message.text, bytes_max) if earlier else message.text

    async def begun() -> StoredResponse:
        await app.gateway.say(said, session, str(name), ask.caller, LetterKind.REQUEST)
        return stored

    if body.stream:
        return await _streamed(events_of(app, number, -1, begun))
    await begun()
    if body.background:
        return Reply(await stored.object())

    async def sent(_: ResponseObject) -> None:
        await stored.heard()

    return DelayedResponse(stored.answered, JSONResponse, sent, openai_error)


async def _session(ask: Ask[Responding], nonce: str) -> str:
    """Return the session of the conversation. Raises Problem."""
    body = ask.body
    if body.previous_response_id is not None:
        if body.conversation is not None:
            rule = "only one of conversation and previous_response_id can be given"
            raise _unsupported("conversation", rule)
        return await _continued(ask, body.previous_response_id, nonce)
    if body.conversation is None:
        return f"agent:{body.model}:chat:response-{nonce}"
    named = body.conversation if isinstance(body.conversation, str) else body.conversation.id
    return named if named.startswith(f"agent:{body.model}:") else f"agent:{body.model}:chat:{named}"


async def _continued(ask: Ask[Responding], previous: str, nonce: str) -> str:
    field, name = "previous_response_id", parsed(previous, "previous_response_id")
    before = await stored_response(ask.app, name, ask.caller, field).state()
    if before.agent_id != ask.body.model:
        raise _unsupported("model", "the conversation belongs to another agent")
    own = ResponseName(name.session_id, bool(ask.body.background), nonce).letter(ask.caller)
    if before.following not in (None, own):  # its own: a repeated request
        rule = "is not the newest response of its conversation: continue that one, an agent has one history"
        raise _unsupported(field, rule)
    return before.session_key


async def _streamed(events: AsyncGenerator[str, None]) -> Response:
    opening = await anext(events, None)  # what is wrong is said before an answer begins
    return StreamingResponse(_after(opening, events), media_type="text/event-stream")


async def _after(opening: str | None, events: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    async with aclosing(events):
        if opening is not None:
            yield opening
        async for event in events:
            yield event


class RetrieveQuery(Query):
    stream: bool = False
    starting_after: Annotated[int | None, Field(ge=0)] = None
    include_obfuscation: Ignored = None


@route("GET", "/v1/responses/{id}", answer=ResponseObject, error_json=openai_error)
async def retrieve(ask: Ask[Any, RetrieveQuery]) -> Reply[ResponseObject] | Response:
    """A response as it stands; with `stream`, its events, from the one after `starting_after`."""
    query, name = ask.query, parsed(ask.path["id"])
    stored = stored_response(ask.app, name, ask.caller)
    if not query.stream:
        if query.starting_after is not None:
            raise _unsupported("starting_after", "needs stream=true")
        made = await stored.object()
        if made["status"] not in ("queued", "in_progress"):
            await stored.heard()
        return Reply(made)

    async def begun() -> StoredResponse:
        return stored

    after = -1 if query.starting_after is None else query.starting_after
    return await _streamed(events_of(ask.app, name.session_id, after, begun))


@route("POST", "/v1/responses/{id}/cancel", Scope.WRITE, answer=ResponseObject, error_json=openai_error)
async def cancel(ask: Ask) -> Reply[ResponseObject]:
    """Cancels a response of the background: its turn stops, with all subagents of its session."""
    name = parsed(ask.path["id"])
    stored = stored_response(ask.app, name, ask.caller)
    state = await stored.state()
    if not name.is_background:
        raise _unsupported(
            "id", "only a response with background: true can be cancelled; close the connection"
        )
    is_left = (
        state.is_cancelled and state.is_taken and not state.is_quiet
    )  # a crash came before the turn was cut
    if status_of(state) in ("queued", "in_progress") or is_left:
        actions = TaskActions(ask.app.gateway.services)
        try:
            await actions.cancel(ask.caller, name.session_id, stored.answering.letter)
        except NotFound:
            raise unknown(str(name), "id") from None
    return Reply(await stored.object())


ENTRIES = (respond, retrieve, cancel)
