"""Sessions over HTTP: those there are, what was said in them, and a person's words to a main agent."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field

from clutch.core.authority import Scope
from clutch.core.keys import ROW_NUMBER_MAX
from clutch.core.routes import COUNTER
from clutch.gateway import objects, reads
from clutch.protocol import history, sending
from clutch.protocol.listing import LIMIT_MAX
from clutch.surfaces.http import answers
from clutch.surfaces.http.bodies import Body, PageQuery, Query, Words
from clutch.surfaces.http.routes import Ask, Entry, Reply

WAIT_S_MAX = 60.0


class SessionsQuery(Query):
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 50
    active_minutes: Annotated[float | None, Field(alias="activeMinutes", ge=0)] = None


async def listed(ask: Ask[Body, SessionsQuery]) -> Reply:
    query, rules = ask.query, ask.house.gateway.kit.policy.history
    active_s = None if query.active_minutes is None else 60 * query.active_minutes
    lines = await ask.house.reads(history.sessions, ask.caller, rules, (), query.limit, active_s)
    return Reply(objects.sessions(lines))


async def transcript(ask: Ask[Body, PageQuery]) -> Reply:
    query = ask.query
    return Reply(
        await ask.house.reads(reads.session_transcript, ask.who, ask.path["key"], query.after, query.limit)
    )


async def say(ask: Ask[Words, Query]) -> Reply:
    letter = await ask.house.gateway.say(ask.body.text, ask.path["key"], ask.key, ask.caller)
    return Reply({"letterId": letter}, 202)


class InThread(Words):
    channel: str
    thread: str
    account: str = ""


async def in_thread(ask: Ask[InThread, Query]) -> Reply:
    """Somebody wrote in a thread of a channel: the session that has it reads it."""
    said = ask.body
    await ask.house.gateway.heard(said.channel, said.thread, said.text, said.account, ask.key, ask.caller)
    return Reply({"status": "accepted"}, 202)


class Listening(Body):
    wait_seconds: Annotated[float, Field(alias="waitSeconds", ge=0, le=WAIT_S_MAX, strict=False)] = 25.0
    until_quiet: Annotated[bool, Field(alias="untilQuiet")] = False
    heard: Annotated[int | None, Field(ge=0, le=ROW_NUMBER_MAX)] = None
    known: str | None = None


async def hear(ask: Ask[Listening, Query]) -> Reply:
    """The next words for the person, the same ones until their `id` comes back as `heard`. `known`: a task whose
    result was read, so that nobody need be told of it."""
    body, gateway, key = ask.body, ask.house.gateway, ask.path["key"]
    number, _ = await gateway.session(key)
    if body.known is not None:
        task = await ask.house.reads(reads.task_number, ask.who, body.known)
        known = (gateway.kit.policy, number, COUNTER, task)
        await gateway.kit.door.alone(sending.known_already, *known)
    said, is_quiet = await gateway.next_words(
        key, body.wait_seconds, until_quiet=body.until_quiet, heard=body.heard
    )
    words = {"id": None, "reply": None} if said is None else {"id": said.parcel_id, "reply": said.body}
    return Reply({**words, "quiet": is_quiet})


async def halt(ask: Ask[Body, Query]) -> Reply:
    return Reply({"stopped": await ask.house.desk.halt(ask.caller, ask.path["key"])})


class Line(Body):
    line: str


async def command(ask: Ask[Line, Query]) -> Reply:
    """A slash command, and the text that answers it."""
    said = await ask.house.gateway.command(ask.body.line, ask.path["key"], ask.key, ask.caller)
    return Reply({"text": said})


async def notify(ask: Ask[Words, Query]) -> Reply:
    """Something happened: the agent reads it in its next turn."""
    return Reply({"isNew": await ask.house.gateway.notify(ask.body.text, ask.path["key"])})


async def wake(ask: Ask[Body, Query]) -> Reply:
    """The agent looks up, or does so after its turn."""
    await ask.house.gateway.wake(ask.path["key"])
    return Reply({"status": "accepted"}, 202)


class SettledQuery(Query):
    timeout_seconds: Annotated[float, Field(alias="timeoutSeconds", ge=0, le=WAIT_S_MAX)] = 30.0


async def settled(ask: Ask[Body, SettledQuery]) -> Reply:
    """Whether nothing is left to do for this session or anywhere below it; waits for that."""
    waited = ask.house.gateway.settled(ask.path["key"])
    closing = asyncio.ensure_future(ask.house.closing.wait())
    waiting = asyncio.ensure_future(waited)
    try:
        await asyncio.wait(
            {closing, waiting}, timeout=ask.query.timeout_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if waiting.done():
            waiting.result()
        return Reply({"settled": waiting.done()})
    finally:
        closing.cancel()
        waiting.cancel()


class DeleteQuery(Query):
    kill: bool = False
    force: bool = False
    keep_transcript: Annotated[bool, Field(alias="keepTranscript")] = False


async def delete(ask: Ask[Body, DeleteQuery]) -> Reply:
    query = ask.query
    return Reply(
        await ask.house.desk.delete(
            ask.caller,
            ask.path["key"],
            kills=query.kill,
            force=query.force,
            keep_transcript=query.keep_transcript,
        )
    )


ENTRIES = (
    Entry("GET", "/v1/sessions", Scope.READ, listed, query=SessionsQuery, answer=answers.Sessions),
    Entry(
        "GET",
        "/v1/sessions/{key}/transcript",
        Scope.READ,
        transcript,
        query=PageQuery,
        answer=answers.Messages,
    ),
    Entry("DELETE", "/v1/sessions/{key}", Scope.ADMIN, delete, query=DeleteQuery, answer=answers.Deleted),
    Entry("POST", "/v1/sessions/{key}/messages", Scope.WRITE, say, Words, answer=answers.Letter, status=202),
    Entry("POST", "/v1/threads/messages", Scope.WRITE, in_thread, InThread, answer=answers.Woken, status=202),
    Entry("POST", "/v1/sessions/{key}/replies", Scope.WRITE, hear, Listening, answer=answers.NextWords),
    Entry("POST", "/v1/sessions/{key}/halt", Scope.WRITE, halt, answer=answers.Halted),
    Entry("POST", "/v1/sessions/{key}/command", Scope.WRITE, command, Line, answer=answers.CommandText),
    Entry("POST", "/v1/sessions/{key}/notify", Scope.WRITE, notify, Words, answer=answers.Notified),
    Entry("POST", "/v1/sessions/{key}/wake", Scope.WRITE, wake, answer=answers.Woken, status=202),
    Entry(
        "GET",
        "/v1/sessions/{key}/settled",
        Scope.READ,
        settled,
        query=SettledQuery,
        answer=answers.Settled,
    ),
)
