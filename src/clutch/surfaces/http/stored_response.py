"""One response of OpenAI's Responses API, as the store has it: its object, and the events of a stream of it.

All of it is read from the store, also after a restart and by another client: the id of a response names the session
and the message. A stream resumes at any event, because the number of an event says how much text stands before it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from typing_extensions import TypedDict

from clutch.api.feed import FeedWatcher
from clutch.api.gateway import letter_of
from clutch.api.problems import Problem, problem_of
from clutch.api.wait import ANSWER_PAUSE_S, NEEDS_YOU, STOPPING, PendingAnswer, first
from clutch.core.authority import OperatorCaller
from clutch.errors import ClutchError, Draining
from clutch.surfaces.http.completions import PING_S, live_text, openai_error
from clutch.surfaces.http.routes import AppState
from clutch.transactions.read import answers
from clutch.transactions.read.answers import AnswerState, Spent

# --------------------------------------------------------------------------------------------------
# Which response is meant

_ID = re.compile(r"resp_([0-9a-f]{1,15})_([bf])([0-9a-f]{24})")


@dataclass(frozen=True, slots=True)
class ResponseName:
    """`nonce`: chosen for the request; the same for the same `Idempotency-Key`."""

    session_id: int
    is_background: bool
    nonce: str

    def __str__(self) -> str:
        return f"resp_{self.session_id:x}_{'b' if self.is_background else 'f'}{self.nonce}"

    def letter(self, caller: OperatorCaller) -> str:
        return letter_of(self.session_id, str(self), caller)


def parsed(text: str, field: str = "id") -> ResponseName:
    found = _ID.fullmatch(text)
    if found is None:
        raise unknown(text, field)
    return ResponseName(int(found[1], 16), found[2] == "b", found[3])


def unknown(text: str, field: str) -> Problem:
    said = (
        f"there is no response {text[:80]!r}: its session may be deleted, or another token has asked for it"
    )
    return Problem("not_found", said, field=field)


# --------------------------------------------------------------------------------------------------
# The object that clients read

Status = Literal["queued", "in_progress", "completed", "failed", "cancelled"]


def status_of(state: AnswerState) -> Status:
    if state.is_cancelled or state.is_void:
        return "cancelled"
    if state.reply is not None:
        return "completed" if state.reply.error is None else "failed"
    if not state.is_taken:
        return "queued"
    if state.question is None and state.is_quiet:
        return "completed" if state.failure is None else "failed"
    return "in_progress"


def text_so_far(state: AnswerState) -> str:
    """Return all that was answered, a paragraph each. A reply that is in no transcript comes last."""
    texts = list(state.texts)
    if state.reply is not None and state.reply.error is None and state.reply.body.strip() not in texts[-1:]:
        texts.append(state.reply.body.strip())
    return "\n\n".join(texts)


class ResponseErrorObject(TypedDict):
    code: Literal["server_error"]
    message: str


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseObject(TypedDict):
    id: str
    object: Literal["response"]
    created_at: float
    status: Status
    background: bool
    model: str
    conversation: dict[str, str]
    previous_response_id: str | None
    output: list[dict[str, Any]]
    error: ResponseErrorObject | None
    incomplete_details: None
    instructions: None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: None
    top_p: None
    tool_choice: Literal["auto"]
    tools: list[Any]
    usage: ResponseUsage | None


def response_object(name: ResponseName, state: AnswerState, spent: Spent | None = None) -> ResponseObject:
    status, text = status_of(state), text_so_far(state)
    is_over = status not in ("queued", "in_progress")
    output = [_item(name, text, "completed" if is_over else "in_progress")] if text else []
    if state.question is not None and not is_over:
        asked = NEEDS_YOU.format(text=state.question.text, id=state.question.id)
        output.append(_item(name, asked, "incomplete", number=len(output)))
    failed = (state.reply.error if state.reply else None) or state.failure
    previous = _ID.search(state.previous or "")
    return {
        "id": str(name),
        "object": "response",
        "created_at": state.at,
        "status": status,
        "background": name.is_background,
        "model": state.agent_id,
        "conversation": {"id": state.session_key},
        "previous_response_id": previous and previous[0],
        "output": output,
        "error": {"code": "server_error", "message": failed} if failed and status == "failed" else None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": False,
        "temperature": None,
        "top_p": None,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if spent is None or not is_over else _usage(spent),
    }


def _usage(spent: Spent) -> ResponseUsage:
    return {
        "input_tokens": spent.input,
        "input_tokens_details": {"cached_tokens": spent.cache_read, "cache_write_tokens": 0},
        "output_tokens": spent.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.input + spent.output,
    }


def _item(name: ResponseName, text: str, status: str, number: int = 0) -> dict[str, Any]:
    content = [_part(text)] if text else []
    kind = {"type": "message", "role": "assistant", "status": status, "content": content}
    return {"id": f"msg_{name.session_id:x}_{name.nonce}_{number}", **kind}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# --------------------------------------------------------------------------------------------------
# One response, read from the store


@dataclass(frozen=True, slots=True)
class StoredResponse:
    app: AppState
    name: ResponseName
    answering: PendingAnswer
    field: str = "id"  #: of the request that names it

    async def state(self) -> AnswerState:
        """Raises Problem."""
        found = await self.app.read(answers.state_of, self.answering.letter)
        if found is None:
            raise unknown(str(self.name), self.field)
        return found

    async def object(self) -> ResponseObject:
        return response_object(self.name, await self.state(), await self.answering.spent())

    async def answered(self) -> ResponseObject:
        """Wait for the answer, or for a question to the user. Raises Draining."""
        await self.answering.answer(self.app.closing)
        return await self.object()

    async def heard(self) -> None:
        """A client has the answer: it does not wait in the session any more."""
        state = await self.state()
        if state.reply is not None:
            await self.answering.heard(state.reply)


def stored_response(
    app: AppState, name: ResponseName, caller: OperatorCaller, field: str = "id"
) -> StoredResponse:
    answering = PendingAnswer(app.gateway.services, name.session_id, name.letter(caller))
    return StoredResponse(app, name, answering, field)


# --------------------------------------------------------------------------------------------------
# Streams
#
#     0 created   1 queued   2 in progress   3 item   4 part   4 + n: text up to its n-th character   then the ends
#
# So the number of an event follows from the text alone, and a stream resumes at any of them: after a lost
# connection, in another gateway, after a restart. Text of an answer that was never committed may differ from the one
# that a restart asks for again; `response.output_text.done` has the text that counts.

_BEFORE_TEXT: Final = 4


class SentEvent(NamedTuple):
    number: int
    kind: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        data = {"type": self.kind, "sequence_number": self.number, **self.fields}
        return f"event: {self.kind}\ndata: {json.dumps(data)}\n\n"


@dataclass(slots=True)
class StreamedText:
    """The text that a stream has sent, and what follows. `draft`: of the answer that is being written; None: this
    stream has not seen its beginning."""

    sent: str
    draft: str | None

    def hear(self, pieces: Sequence[tuple[int, str | None]]) -> None:
        for _, piece in pieces:
            if piece is None:
                self.draft = ""
            elif self.draft is not None:
                self.draft += piece

    def grown(self, state: AnswerState) -> str:
        """Return the characters that have come since, and count them as sent."""
        texts, draft = list(state.texts), (self.draft or "").strip()
        # The mark of its end may come after the commit that has the answer.
        if draft and not (texts and texts[-1].startswith(draft)):
            texts.append(draft)
        return self.grown_to("\n\n".join(texts))

    def grown_to(self, whole: str) -> str:
        """As above. Nothing, if a restart has written another text than the one that was sent."""
        if not whole.startswith(self.sent):
            return ""
        more, self.sent = whole[len(self.sent) :], whole
        return more


def _opening(stored: StoredResponse, state: AnswerState) -> Iterator[SentEvent]:
    blank = response_object(stored.name, state._replace(texts=(), reply=None, failure=None, question=None))
    yield SentEvent(0, "response.created", {"response": blank})
    yield SentEvent(1, "response.queued", {"response": blank | {"status": "queued"}})
    yield SentEvent(2, "response.in_progress", {"response": blank | {"status": "in_progress"}})
    item = _item(stored.name, "", "in_progress")
    yield SentEvent(3, "response.output_item.added", {"output_index": 0, "item": item})
    where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    yield SentEvent(_BEFORE_TEXT, "response.content_part.added", {**where, "part": _part("")})


def _ending(stored: StoredResponse, made: ResponseObject, text: str) -> Iterator[SentEvent]:
    number = _BEFORE_TEXT + len(text)
    item = _item(stored.name, text, "completed")
    where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    yield SentEvent(number + 1, "response.output_text.done", {**where, "text": text, "logprobs": []})
    yield SentEvent(number + 2, "response.content_part.done", {**where, "part": _part(text)})
    yield SentEvent(number + 3, "response.output_item.done", {"output_index": 0, "item": item})
    # The format has no event of its own for a cancelled response.
    kind = {"completed": "completed", "failed": "failed"}.get(made["status"], "incomplete")
    yield SentEvent(number + 4, f"response.{kind}", {"response": made})


async def events_of(
    app: AppState, session_id: int, after: int, begun: Callable[[], Awaitable[StoredResponse]]
) -> AsyncGenerator[str, None]:
    """All events with a number above `after`, as they come, until the response is over or waits for the user."""
    watcher = FeedWatcher(task_id=session_id)
    async with app.feed.watching(watcher):
        stored = await begun()
        state = await stored.state()
        told = StreamedText("", "" if status_of(state) == "queued" else None)
        for event in _opening(stored, state):
            if event.number > after:
                yield str(event)
        try:
            async with aclosing(_deltas(stored, watcher, told, after)) as deltas:
                async for text in deltas:
                    yield text
            async for text in _last(stored, told, after):
                yield text
        except ClutchError as error:
            said = openai_error(problem_of(error))["error"]
            fields = {name: said.get(name) for name in ("code", "message", "param")}
            yield str(SentEvent(_BEFORE_TEXT + len(told.sent), "error", fields))


async def _deltas(
    stored: StoredResponse, watcher: FeedWatcher, told: StreamedText, after: int
) -> AsyncGenerator[str, None]:
    """The text while it is written. Returns when no more will come. Raises Draining."""
    services, app = stored.answering.services, stored.app
    while True:
        change = services.changes.next_change
        # The pieces first: those that come during the look may be of a later answer than the state has.
        told.hear(await live_text(app, stored.answering, watcher))
        state = await stored.state()
        if status_of(state) not in ("queued", "in_progress") or state.question is not None:
            return
        if piece := _delta(stored, told, told.grown(state), after):
            yield piece
        if app.closing.is_set():
            raise Draining(STOPPING)
        await asyncio.sleep(ANSWER_PAUSE_S)
        if not await first(services.changes.until(change), watcher.came.wait(), within_s=PING_S):
            yield ": ping\n\n"


def _delta(stored: StoredResponse, told: StreamedText, more: str, after: int) -> str:
    """Return the event for the characters that a client does not have yet. Empty: it has them all."""
    number = _BEFORE_TEXT + len(told.sent)
    unseen = more[max(0, after - (number - len(more))) :]
    if not unseen:
        return ""
    where = {"item_id": _item(stored.name, "", "")["id"], "output_index": 0, "content_index": 0}
    return str(SentEvent(number, "response.output_text.delta", {**where, "delta": unseen, "logprobs": []}))


async def _last(stored: StoredResponse, told: StreamedText, after: int) -> AsyncGenerator[str, None]:
    state, made = await stored.state(), await stored.object()
    text = text_so_far(state)
    if piece := _delta(stored, told, told.grown_to(text), after):
        yield piece
    if made["status"] in ("queued", "in_progress"):
        # It waits for the user. The number is that of the text, so that the stream resumes behind it.
        yield str(SentEvent(_BEFORE_TEXT + len(text), "response.incomplete", {"response": made}))
        return
    for event in _ending(stored, made, text):
        if event.number > after:
            yield str(event)
    await stored.heard()
