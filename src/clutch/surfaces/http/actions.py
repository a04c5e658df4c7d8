"""Verbs over HTTP: spawn, everything that can be done to a task, and the needs-you inbox."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, get_type_hints
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, create_model
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from clutch.api import objects, reads
from clutch.api.slash import MAIN_SESSION
from clutch.api.spawn import MEANINGS, SpawnOptions
from clutch.core.authority import Scope
from clutch.core.events import Verdict
from clutch.core.questions import Decision
from clutch.errors import Forbidden, InvalidInput
from clutch.surfaces.http.routes import Ask, Body, HttpRoute, Query, Reply, Words

SPAWN_BYTES_MAX = 8 * 1024 * 1024  #: attachments travel with it
CAPACITY_WAIT_S = 20.0  #: with `onFull: "queue"`; a client waits no longer for an answer


def _parameters() -> type[BaseModel]:
    """What a program may say, as an agent would write it."""
    said: dict[str, Any] = {**get_type_hints(SpawnOptions), "attachments": list[Attached], "dry_run": bool}
    fields: dict[str, Any] = {
        name: (kind, Field(None, description=MEANINGS[name])) for name, kind in said.items()
    }
    task = (str, Field(description=MEANINGS["task"]))
    return create_model(
        "SpawnParameters", __config__=ConfigDict(alias_generator=to_camel), task=task, **fields
    )


class Attached(Body):
    name: str
    content: str
    encoding: Literal["utf8", "base64"] = "utf8"


SpawnParameters = _parameters()


class SpawnBody(Body):
    """The parameters of `sessions_spawn`, checked where that tool's are, and these."""

    model_config = ConfigDict(extra="allow")

    requester: Annotated[
        str | None, Field(description="Key of the session it works for; agent:main:main without it.")
    ] = None
    on_full: Annotated[
        Literal["queue", "reject"] | None,
        Field(alias="onFull", description="At a limit: wait for room (queue, up to 20 s), or fail (reject)."),
    ] = None

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """For whoever reads what can be said: the parameters of a spawn beside our own."""
        own = handler(core)
        known = handler(SpawnParameters.__pydantic_core_schema__)
        own["properties"] = {**handler.resolve_ref_schema(known)["properties"], **own["properties"]}
        return {**own, "required": ["task"], "additionalProperties": False}


class Killing(Body):
    reason: str = "killed"


class MaybeWords(Body):
    text: str = ""


class Sending(Body):
    text: str
    #: Longer than `control.sendWaitSeconds` nobody waits, whatever is asked for.
    wait_seconds: Annotated[float | None, Field(alias="waitSeconds", ge=0, strict=False)] = None


class Approval(Body):
    plan_hash: Annotated[str, Field(alias="planHash")]
    text: str = ""


class Rejection(Body):
    plan_hash: Annotated[str, Field(alias="planHash")]
    reason: str
    then: Literal["revise", "end"] | None = None


class Answering(Body):
    decision: Literal["approve", "reject", "answer"]
    text: str = ""
    hash: str


async def spawn(ask: Ask[SpawnBody, Query]) -> Reply:
    """Start a background task; the answer comes at once, on disk, and the work survives whoever asked for it.

    201 accepted; 200 for a dry run; 403, 400 and 409 the same object with `status` and `error`."""
    body = ask.body
    args, desk = body.model_extra or {}, ask.house.desk
    requester = _requester(ask)
    key = ask.key or uuid4().hex  # one for both tries: the first may have been cut off after its commit
    try:
        async with asyncio.timeout(CAPACITY_WAIT_S):
            answer = await desk.spawn(args, requester, body.on_full, key)
    except TimeoutError:
        answer = await desk.spawn(args, requester, "reject", key)
    except InvalidInput as error:
        raise InvalidInput("requester" if error.field == "session" else error.field, error.rule) from error
    is_conflict = answer.get("code") == "idempotency_conflict"
    is_dry = answer["status"] == "accepted" and answer["taskId"] is None
    return Reply(answer, 409 if is_conflict else 200 if is_dry else _SPAWN_STATUS[answer["status"]])


def _requester(ask: Ask[SpawnBody, Query]) -> str:
    """Who speaks from a session spawns in its name."""
    asked, own = ask.body.requester, ask.session
    if own is not None and asked not in (None, own):
        raise Forbidden("session", f"this caller spawns for {own} only")
    return asked or own or MAIN_SESSION


_SPAWN_STATUS = {"accepted": 201, "forbidden": 403, "error": 400}


async def kill(ask: Ask[Killing, Query]) -> Reply:
    """Stop a task and everything below it for good. Its result is never told."""
    return Reply(await ask.house.desk.kill(ask.caller, ask.target, ask.body.reason))


async def steer(ask: Ask[Words, Query]) -> Reply:
    """A new instruction takes the place of what the task does now."""
    return Reply(await ask.house.desk.steer(ask.caller, ask.target, ask.body.text, ask.key))


async def send(ask: Ask[Sending, Query]) -> Reply:
    """A follow-up message to a task; waits for its first new words."""
    body = ask.body
    return Reply(await ask.house.desk.send(ask.caller, ask.target, body.text, body.wait_seconds, ask.key))


async def pause(ask: Ask[Body, Query]) -> Reply:
    """A task and everything below it stop at their next step, until `resume`."""
    return Reply(await ask.house.desk.pause(ask.caller, ask.target))


async def resume(ask: Ask[Body, Query]) -> Reply:
    """A paused task and everything below it go on."""
    return Reply(await ask.house.desk.resume(ask.caller, ask.target))


async def retry(ask: Ask[MaybeWords, Query]) -> Reply:
    """Start a finished task again from an empty transcript; `text` is added to it."""
    return Reply(await ask.house.desk.retry(ask.caller, ask.target, ask.body.text, ask.key), 201)


async def continue_(ask: Ask[MaybeWords, Query]) -> Reply:
    """Resume a finished task in its transcript; `text` says what to do next."""
    return Reply(await ask.house.desk.continue_(ask.caller, ask.target, ask.body.text, ask.key), 201)


async def remove(ask: Ask[Body, Query]) -> Reply:
    """Archive a finished, delivered task: it leaves the lists and the limit of its parent."""
    return Reply(await ask.house.desk.remove(ask.caller, ask.target))


async def redeliver(ask: Ask[Body, Query]) -> Reply:
    """Deliver an undelivered result again."""
    return Reply(await ask.house.desk.redeliver(ask.caller, ask.target))


async def dismiss(ask: Ask[Body, Query]) -> Reply:
    """Discard an undelivered result; it stays readable."""
    return Reply(await ask.house.desk.dismiss(ask.caller, ask.target))


async def redeliver_message(ask: Ask[Body, Query]) -> Reply:
    """Send a message to a channel again that was not sent or may not have arrived; it may then arrive twice."""
    return Reply(await ask.house.desk.redeliver_message(ask.caller, ask.path["id"]))


async def dismiss_message(ask: Ask[Body, Query]) -> Reply:
    """Discard a message to a channel that was not sent or may not have arrived."""
    return Reply(await ask.house.desk.dismiss_message(ask.caller, ask.path["id"]))


async def approve(ask: Ask[Approval, Query]) -> Reply:
    """Approve the plan of a task; `planHash` is that of the plan as it was shown."""
    return Reply(await ask.house.desk.approve(ask.caller, ask.target, ask.body.plan_hash, ask.body.text))


async def reject(ask: Ask[Rejection, Query]) -> Reply:
    """Send the plan of a task back with a reason, or end the task; without `then` what `plan.onReject` says."""
    body, then = ask.body, None if ask.body.then is None else Verdict(ask.body.then)
    return Reply(await ask.house.desk.reject(ask.caller, ask.target, body.plan_hash, body.reason, then))


async def inbox(ask: Ask[Body, Query]) -> Reply:
    """Everything that waits for a decision: approvals, questions, plans, budgets."""
    return Reply(await ask.house.reads(reads.inbox, ask.who))


async def answer(ask: Ask[Answering, Query]) -> Reply:
    """Decide on an item of the inbox; `hash` is that of the item as it was shown."""
    body, decision = ask.body, Decision(ask.body.decision)
    return Reply(await ask.house.desk.answer(ask.caller, ask.path["id"], decision, body.text, body.hash))


def _verb(
    name: str,
    handler: Any,
    answer: Any,
    body: type[Body] = Body,
    scope: Scope = Scope.WRITE,
    *,
    is_tool: bool = True,
    status: int = 200,
) -> HttpRoute:
    path, tool = f"/v1/tasks/{{target}}/{name}", name if is_tool else None
    return HttpRoute("POST", path, scope, handler, body, answer=answer, tool=tool, status=status)


ENTRIES = (
    HttpRoute(
        "POST",
        "/v1/tasks",
        Scope.WRITE,
        spawn,
        SpawnBody,
        bytes_max=SPAWN_BYTES_MAX,
        answer=objects.Spawned,
        tool="spawn",
        refusal=objects.SpawnRefusedObject,
        status=201,
        dry_status=200,
    ),
    _verb("kill", kill, objects.KilledObject, Killing),
    _verb("steer", steer, objects.SteeredObject, Words),
    _verb("send", send, objects.Sent, Sending),
    _verb("pause", pause, objects.Changed),
    _verb("resume", resume, objects.Changed),
    _verb("retry", retry, objects.Spawned, MaybeWords, is_tool=False, status=201),
    _verb("continue", continue_, objects.Spawned, MaybeWords, is_tool=False, status=201),
    _verb("remove", remove, objects.TaskObject, is_tool=False),
    _verb("redeliver", redeliver, objects.TaskObject, is_tool=False),
    _verb("dismiss", dismiss, objects.TaskObject, is_tool=False),
    HttpRoute(
        "POST", "/v1/messages/{id}/redeliver", Scope.WRITE, redeliver_message, answer=objects.MessageDecided
    ),
    HttpRoute(
        "POST", "/v1/messages/{id}/dismiss", Scope.WRITE, dismiss_message, answer=objects.MessageDecided
    ),
    _verb("approve", approve, objects.DecidedObject, Approval, Scope.APPROVE),
    _verb("reject", reject, objects.DecidedObject, Rejection, Scope.APPROVE),
    HttpRoute("GET", "/v1/inbox", Scope.READ, inbox, answer=objects.Inbox, tool="inbox"),
    HttpRoute(
        "POST",
        "/v1/inbox/{id}",
        Scope.APPROVE,
        answer,
        Answering,
        answer=objects.Answered,
        tool="answer",
    ),
)
