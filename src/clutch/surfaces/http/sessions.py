"""Sessions over HTTP: a person's words to a main agent."""

from __future__ import annotations

from clutch.core.authority import Scope
from clutch.surfaces.http.bodies import Body, Query
from clutch.surfaces.http.routes import Ask, Entry, Reply


class Words(Body):
    text: str


async def say(ask: Ask[Words, Query]) -> Reply:
    letter = await ask.house.gateway.say(ask.body.text, session=ask.path["key"], idempotency_key=ask.key)
    return Reply({"letterId": letter}, 202)


ENTRIES = (Entry("POST", "/v1/sessions/{key}/messages", Scope.WRITE, say, Words),)
