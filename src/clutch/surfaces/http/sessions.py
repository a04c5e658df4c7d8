"""Sessions over HTTP: those there are, what was said in them, and a person's words to a main agent."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from clutch.core.authority import Scope
from clutch.gateway import objects, reads
from clutch.protocol import history
from clutch.protocol.listing import LIMIT_MAX
from clutch.surfaces.http import answers
from clutch.surfaces.http.bodies import Body, PageQuery, Query, Words
from clutch.surfaces.http.routes import Ask, Entry, Reply


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
    letter = await ask.house.gateway.say(
        ask.body.text, session=ask.path["key"], idempotency_key=ask.key, caller=ask.caller
    )
    return Reply({"letterId": letter}, 202)


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
)
