"""Actions over HTTP: spawn, the inbox, and one route for each action of `api/actions.py`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, get_type_hints
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, create_model
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from clutch.api import objects, reads
from clutch.api.actions import ACTIONS
from clutch.api.slash import MAIN_SESSION
from clutch.api.spawn import MEANINGS, SpawnOptions
from clutch.api.views import Object
from clutch.errors import Forbidden, InvalidInput
from clutch.surfaces.http.routes import Ask, Body, Reply, action_route, route

SPAWN_BYTES_MAX = 8 * 1024 * 1024  #: attachments travel with it
CAPACITY_WAIT_S = 20.0  #: with `onFull: "queue"`; a client waits no longer for an answer


def _parameters() -> type[BaseModel]:
    """Return the parameters of a spawn, as agents write them."""
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
        """Return the schema with the parameters of a spawn beside our own."""
        own = handler(core)
        known = handler(SpawnParameters.__pydantic_core_schema__)
        own["properties"] = {**handler.resolve_ref_schema(known)["properties"], **own["properties"]}
        return {**own, "required": ["task"], "additionalProperties": False}


@route(
    "POST",
    "/v1/tasks",
    bytes_max=SPAWN_BYTES_MAX,
    answer=objects.Spawned,
    tool="spawn",
    refusal=objects.SpawnRefusedObject,
    status=201,
    dry_status=200,
)
async def spawn(ask: Ask[SpawnBody]) -> Reply[Object]:
    """Start a background task; the answer comes at once, on disk, and the work survives whoever asked for it.

    201 accepted; 200 for a dry run; 403, 400 and 409 the same object with `status` and `error`."""
    body = ask.body
    args, gateway = body.model_extra or {}, ask.app.gateway
    requester = _requester(ask)
    # One key for both tries: the first may have been cut off after its commit.
    args = {"idempotencyKey": ask.key or uuid4().hex, **args}
    try:
        async with asyncio.timeout(CAPACITY_WAIT_S):
            answer = await gateway.spawn(args, requester, body.on_full)
    except TimeoutError:
        answer = await gateway.spawn(args, requester, "reject")
    except InvalidInput as error:
        raise InvalidInput("requester" if error.field == "session" else error.field, error.rule) from error
    is_conflict = answer.get("code") == "idempotency_conflict"
    is_dry = answer["status"] == "accepted" and answer["taskId"] is None
    return Reply(answer, 409 if is_conflict else 200 if is_dry else _SPAWN_STATUS[answer["status"]])


def _requester(ask: Ask[SpawnBody]) -> str:
    """Return the session that spawns. A caller with a session spawns for that session only."""
    asked, own = ask.body.requester, ask.session
    if own is not None and asked not in (None, own):
        raise Forbidden("session", f"this caller spawns for {own} only")
    return asked or own or MAIN_SESSION


_SPAWN_STATUS = {"accepted": 201, "forbidden": 403, "error": 400}


@route("GET", "/v1/inbox", tool="inbox")
async def inbox(ask: Ask) -> Reply[objects.Inbox]:
    """Everything that waits for a decision: approvals, questions, plans, budgets."""
    return Reply(await ask.app.read(reads.inbox, ask.who))


@route("GET", "/v1/inbox/{id}")
async def inbox_item(ask: Ask) -> Reply[objects.Item]:
    """One item of the inbox: by its id, or by the task or session that asks, in any form of a target."""
    return Reply(await ask.app.read(reads.inbox_item, ask.who, ask.path["id"]))


ENTRIES = (spawn, inbox, inbox_item, *map(action_route, ACTIONS))
