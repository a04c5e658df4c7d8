"""Verbs over HTTP: spawn, everything that can be done to a task, and the needs-you inbox."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import ConfigDict, Field

from clutch.core.authority import Scope
from clutch.core.events import Verdict
from clutch.errors import InvalidInput
from clutch.gateway import reads
from clutch.gateway.api import MAIN_SESSION
from clutch.protocol.questions import Decision
from clutch.surfaces.http.bodies import Body, Query
from clutch.surfaces.http.routes import Ask, Entry, Reply

SPAWN_BYTES_MAX = 8 * 1024 * 1024  #: attachments travel with it
ROOM_WAIT_S = 20.0  #: with `onFull: "queue"`; a client waits no longer for an answer
SEND_WAIT_S_MAX = 60.0


class SpawnBody(Body):
    """The parameters of `sessions_spawn`, checked where that tool's are, and these."""

    model_config = ConfigDict(extra="allow")

    requester: str = MAIN_SESSION
    on_full: Annotated[Literal["queue", "reject"], Field(alias="onFull")] = "queue"


class Why(Body):
    reason: str = "killed"


class Words(Body):
    text: str


class MaybeWords(Body):
    text: str = ""


class Sending(Body):
    text: str
    wait_seconds: Annotated[
        float | None, Field(alias="waitSeconds", ge=0, le=SEND_WAIT_S_MAX, strict=False)
    ] = None


class Approval(Body):
    plan_hash: Annotated[str, Field(alias="planHash")]
    text: str = ""


class Rejection(Body):
    plan_hash: Annotated[str, Field(alias="planHash")]
    reason: str
    then: Literal["revise", "end"] = "revise"


class Answering(Body):
    decision: Literal["approve", "reject", "answer"]
    text: str = ""
    hash: str


async def spawn(ask: Ask[SpawnBody, Query]) -> Reply:
    """201 accepted; 403, 400 and 409 the same object with `status` and `error`."""
    body = ask.body
    args, desk = body.model_extra or {}, ask.house.desk
    key = ask.key or uuid4().hex  # one for both tries: the first may have been cut off after its commit
    try:
        async with asyncio.timeout(ROOM_WAIT_S):
            answer = await desk.spawn(args, body.requester, body.on_full, key)
    except TimeoutError:
        answer = await desk.spawn(args, body.requester, "reject", key)
    except InvalidInput as error:
        raise InvalidInput("requester" if error.field == "session" else error.field, error.rule) from error
    is_conflict = answer.get("code") == "idempotency_conflict"
    return Reply(answer, 409 if is_conflict else _SPAWN_STATUS[answer["status"]])


_SPAWN_STATUS = {"accepted": 201, "forbidden": 403, "error": 400}


async def kill(ask: Ask[Why, Query]) -> Reply:
    return Reply(await ask.house.desk.kill(ask.caller, ask.target, ask.body.reason))


async def steer(ask: Ask[Words, Query]) -> Reply:
    return Reply(await ask.house.desk.steer(ask.caller, ask.target, ask.body.text, ask.key))


async def send(ask: Ask[Sending, Query]) -> Reply:
    body = ask.body
    return Reply(await ask.house.desk.send(ask.caller, ask.target, body.text, body.wait_seconds, ask.key))


async def pause(ask: Ask[Body, Query]) -> Reply:
    return Reply(await ask.house.desk.pause(ask.caller, ask.target))


async def resume(ask: Ask[Body, Query]) -> Reply:
    return Reply(await ask.house.desk.resume(ask.caller, ask.target))


async def retry(ask: Ask[MaybeWords, Query]) -> Reply:
    return Reply(await ask.house.desk.retry(ask.caller, ask.target, ask.body.text, ask.key), 201)


async def continue_(ask: Ask[MaybeWords, Query]) -> Reply:
    return Reply(await ask.house.desk.continue_(ask.caller, ask.target, ask.body.text, ask.key), 201)


async def remove(ask: Ask[Body, Query]) -> Reply:
    return Reply(await ask.house.desk.remove(ask.caller, ask.target))


async def redeliver(ask: Ask[Body, Query]) -> Reply:
    return Reply(await ask.house.desk.redeliver(ask.caller, ask.target))


async def dismiss(ask: Ask[Body, Query]) -> Reply:
    return Reply(await ask.house.desk.dismiss(ask.caller, ask.target))


async def approve(ask: Ask[Approval, Query]) -> Reply:
    return Reply(await ask.house.desk.approve(ask.caller, ask.target, ask.body.plan_hash, ask.body.text))


async def reject(ask: Ask[Rejection, Query]) -> Reply:
    body, then = ask.body, Verdict(ask.body.then)
    return Reply(await ask.house.desk.reject(ask.caller, ask.target, body.plan_hash, body.reason, then))


async def inbox(ask: Ask[Body, Query]) -> Reply:
    return Reply(await ask.house.reads(reads.inbox))


async def answer(ask: Ask[Answering, Query]) -> Reply:
    body, decision = ask.body, Decision(ask.body.decision)
    return Reply(await ask.house.desk.answer(ask.caller, ask.path["item"], decision, body.text, body.hash))


def _verb(name: str, handler: Any, body: type[Body] = Body, scope: Scope = Scope.WRITE) -> Entry:
    return Entry("POST", f"/v1/tasks/{{target}}/{name}", scope, handler, body)


ENTRIES = (
    Entry("POST", "/v1/tasks", Scope.WRITE, spawn, SpawnBody, bytes_max=SPAWN_BYTES_MAX),
    _verb("kill", kill, Why),
    _verb("steer", steer, Words),
    _verb("send", send, Sending),
    _verb("pause", pause),
    _verb("resume", resume),
    _verb("retry", retry, MaybeWords),
    _verb("continue", continue_, MaybeWords),
    _verb("remove", remove),
    _verb("redeliver", redeliver),
    _verb("dismiss", dismiss),
    _verb("approve", approve, Approval, Scope.APPROVE),
    _verb("reject", reject, Rejection, Scope.APPROVE),
    Entry("GET", "/v1/inbox", Scope.READ, inbox),
    Entry("POST", "/v1/inbox/{item}", Scope.APPROVE, answer, Answering),
)
