"""A main agent behind the wire format of OpenAI's chat completions, for clients that speak nothing else.

An agent is a model here (`model`: its id), and its session has the memory: of `messages` only the last one is said, the
rest it knows. The turn, and the children it starts, go on whether somebody waits or not; words that reached nobody wait
where `replies` finds them. The same `Idempotency-Key` is the same message, and gets the same answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from clutch.core import keys
from clutch.core.authority import Scope
from clutch.core.choosing import known_agents
from clutch.errors import ClutchError
from clutch.gateway.answering import Answering
from clutch.gateway.feed import Watcher
from clutch.protocol.outbox import AtCounter, Spent
from clutch.surfaces.http import answers
from clutch.surfaces.http.bodies import Body, Query, checked_body
from clutch.surfaces.http.late import Late, first
from clutch.surfaces.http.routes import Ask, Entry, House, Reply
from clutch.surfaces.problems import Problem, problem_of

PING_S = 15.0
MESSAGES_MAX = 10_000  # clients send all there was, each time

Ignored = Annotated[Any, Field(description="taken, and without effect: an agent has settings of its own")]


class Part(Body):
    type: Literal["text"]
    text: str


class Said(Body):
    """What a person says: words."""

    role: Literal["user"]
    content: str | list[Part]
    name: str | None = None

    @property
    def text(self) -> str:
        return (
            self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        )


class StreamOptions(Body):
    include_usage: Annotated[bool | None, Field(description="a last piece without choices says it")] = None
    include_obfuscation: Ignored = None


class Completing(Body):
    model: Annotated[str, Field(description="the id of an agent")]
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MESSAGES_MAX)]
    user: Annotated[str | None, Field(description="whose talk it is: agent:MODEL:chat:USER")] = None
    stream: bool | None = None
    n: Literal[1] | None = None
    stream_options: StreamOptions | None = None
    temperature: Ignored = None
    top_p: Ignored = None
    max_tokens: Ignored = None
    max_completion_tokens: Ignored = None
    presence_penalty: Ignored = None
    frequency_penalty: Ignored = None
    seed: Ignored = None
    stop: Ignored = None
    reasoning_effort: Ignored = None
    metadata: Ignored = None
    store: Ignored = None


class Answered(NamedTuple):
    words: AtCounter
    usage: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Talk:
    """One message under way, and its answer in the form of a completion."""

    house: House
    model: str
    answering: Answering

    async def answer(self) -> Answered:
        words = await self.answering.answer(self.house.closing)
        spent = await self.answering.spent()
        return Answered(words, None if spent is None else _usage(spent))

    async def heard(self, said: Answered) -> None:
        await self.answering.heard(said.words)

    async def live(self, watcher: Watcher) -> list[tuple[int, str]]:
        """The pieces that have come since, and of which run; an empty one: a tool was called."""
        self.house.feed.tell_at_once(watcher)
        came = [
            (keys.parse_run_id(data["runId"]) or 0, data["text"] if news.name == "assistant:text" else "")
            for told in watcher.take()
            for news in told.news
            if news.name in ("assistant:text", "tool:start")
            for data in (json.loads(news.data),)
        ]
        ours = {run_id for run_id in {run_id for run_id, _ in came} if await self.answering.is_of(run_id)}
        return [one for one in came if one[0] in ours]

    def form(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{hashlib.sha256(self.answering.letter.encode()).hexdigest()[:24]}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "choices": choices,
            **more,
        }

    def whole(self, said: Answered) -> Response:
        message = {"role": "assistant", "content": said.words.body}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(self.form("chat.completion", [choice], usage=said.usage))

    def piece(self, finish: str | None = None, **delta: str) -> str:
        return self.chunk([{"index": 0, "delta": delta, "finish_reason": finish}])

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps(self.form('chat.completion.chunk', choices, **more))}\n\n"


def _usage(spent: Spent) -> dict[str, Any]:
    return {
        "prompt_tokens": spent.input,
        "completion_tokens": spent.output,
        "total_tokens": spent.input + spent.output,
        "prompt_tokens_details": {"cached_tokens": spent.cache_read},
    }


async def models(ask: Ask[Body, Query]) -> Reply:
    """The agents, as OpenAI's clients list models."""
    known = sorted(known_agents(ask.house.gateway.kit.policy))
    made = [{"id": one, "object": "model", "created": 0, "owned_by": "clutch"} for one in known]
    return Reply({"object": "list", "data": made})


async def completions(ask: Ask[Completing, Query]) -> Response:
    """Says the last message to an agent, and gives its answer as OpenAI's chat completions do."""
    body, gateway = ask.body, ask.house.gateway
    agents = known_agents(gateway.kit.policy)
    if body.model not in agents:
        near = keys.hint(body.model, agents)
        raise Problem(
            "not_found", f"there is no such agent{near}; GET /v1/models has them all", field="model"
        )
    said = checked_body(json.dumps(body.messages[-1]).encode(), Said)
    session = f"agent:{body.model}:{'main' if body.user is None else f'chat:{body.user}'}"
    number, _ = await gateway.session(session)

    async def begun() -> Talk:
        letter = await gateway.say(said.text, session, ask.key, ask.caller)
        return Talk(ask.house, body.model, Answering(gateway.kit, number, letter))

    if not body.stream:
        talk = await begun()
        return Late(talk.answer, talk.whole, talk.heard, in_their_words)
    counts = body.stream_options is not None and bool(body.stream_options.include_usage)
    pieces = _pieces(ask.house, Watcher(task_id=number), begun, counts=counts)
    opening = await anext(pieces)  # what is wrong is said before an answer begins
    return StreamingResponse(_after(opening, pieces), media_type="text/event-stream")


async def _pieces(
    house: House, watcher: Watcher, begun: Callable[[], Awaitable[Talk]], *, counts: bool
) -> AsyncGenerator[str, None]:
    """Words as they come, also those between two calls of tools; at the end, what was not told of the answer."""
    told, speaker = "", 0  # since the last call of a tool, by which run
    async with house.feed.watching(watcher):
        talk = await begun()
        yield talk.piece(role="assistant", content="")
        answering = asyncio.ensure_future(talk.answer())
        try:
            while not answering.done():
                if not await first(asyncio.wait({answering}), watcher.came.wait(), within_s=PING_S):
                    yield ": ping\n\n"
                for run_id, text in await talk.live(watcher):
                    goes_on = bool(text) and run_id == speaker
                    yield talk.piece(content=text if goes_on or not told else f"\n\n{text}")
                    told, speaker = (told + text if goes_on else text), run_id
            said, usage = answering.result()
        except ClutchError as error:
            yield f"data: {json.dumps(in_their_words(problem_of(error)))}\n\n"
            return
        finally:
            answering.cancel()
    if told.strip() != said.body.strip():
        is_begun = said.body.startswith(told)
        yield talk.piece(content=said.body.removeprefix(told) if is_begun else f"\n\n{said.body}")
    yield talk.piece("stop")
    if counts:
        yield talk.chunk([], usage=usage)
    yield "data: [DONE]\n\n"
    await talk.answering.heard(said)


async def _after(opening: str, pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    async with aclosing(pieces):
        yield opening
        async for piece in pieces:
            yield piece


def in_their_words(problem: Problem) -> dict[str, Any]:
    """Ours, and the two fields that OpenAI's errors have beside them."""
    kind = "server_error" if problem.status >= 500 else "invalid_request_error"
    return {"error": {**problem.to_json()["error"], "type": kind, "param": problem.field}}


ENTRIES = (
    Entry("GET", "/v1/models", Scope.READ, models, answer=answers.Models),
    Entry(
        "POST", "/v1/chat/completions", Scope.WRITE, completions, Completing,
        answer=answers.Completion, in_words=in_their_words,
    ),
)  # fmt: skip
