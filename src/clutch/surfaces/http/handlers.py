"""The HTTP paths: tasks, sessions, the gateway itself, its end, spawn, the inbox, and all actions."""

from __future__ import annotations

import asyncio
import base64
import os
from contextlib import suppress
from functools import cache
from operator import itemgetter
from typing import Annotated, Any, Literal, get_type_hints
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, create_model
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from clutch.api import agents as agent_views
from clutch.api import objects, reads, schedules, views
from clutch.api.actions import ACTIONS, ActionBody, ChatMessage, InThread, Until, Words
from clutch.api.gateway import Leaving
from clutch.api.problems import Problem
from clutch.api.report_objects import Agents, TreeTimeline
from clutch.api.slash import MAIN_SESSION
from clutch.api.spawn import MEANINGS, SpawnOptions
from clutch.api.views import Object
from clutch.api.wait import first
from clutch.contain import BackgroundTasks
from clutch.core import ids
from clutch.core.authority import Scope
from clutch.core.delivery import LOCAL_CHANNEL
from clutch.core.families import in_families
from clutch.core.ids import ROW_NUMBER_MAX
from clutch.core.model import Outcome, Phase
from clutch.errors import DiskFull, Forbidden, InvalidInput
from clutch.surfaces.http.routes import Ask, Body, PageQuery, Query, Reply, action_route, route
from clutch.transactions import delivery, idempotency, messages
from clutch.transactions.read import transcripts
from clutch.transactions.read.lists import LIMIT_MAX, ListState
from clutch.transactions.workers import Working

WAIT_S_MAX = 60.0


class ListQuery(Query):
    root: str | None = None
    requester: str | None = None
    phase: Phase | None = None
    outcome: Outcome | None = None
    label: str | None = None
    undelivered: bool = False
    recent_minutes: Annotated[float | None, Field(alias="recentMinutes", ge=0)] = None
    recent_count: Annotated[int, Field(alias="recentCount", ge=0, le=LIMIT_MAX)] = 0
    state: ListState | None = None
    agent: str | None = None
    text: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    include: Literal["segments"] | None = None
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 50
    cursor: str | None = None
    numbered: bool = False  #: from now on `#1` is the first of these for this caller
    #: Of a further page: how many tasks of the list came before it.
    numbered_after: Annotated[int, Field(alias="numberedAfter", ge=0, le=ROW_NUMBER_MAX)] = 0


class WaitQuery(Query):
    timeout_seconds: Annotated[float, Field(alias="timeoutSeconds", ge=0, le=WAIT_S_MAX)] = 30.0
    until: Until = Until.ENDED


class TimelineQuery(Query):
    subtree: bool = False  #: from the task itself on, and not from the topmost task above it


@route("GET", "/v1/tasks", tool="list")
async def list_tasks(ask: Ask[ActionBody, ListQuery]) -> Reply[objects.Tasks]:
    """Tasks with their phase, outcome, usage and delivery, and how many there are of each kind.

    Order: tasks that need the user, undelivered results, active tasks, then finished tasks, newest first. The first
    page has all active tasks, also beyond `limit`, and the `recentCount` newest finished ones; `next` is the `cursor`
    of the page with older ones."""
    wanted = ask.query.model_dump()
    is_numbered, after = wanted.pop("numbered"), wanted.pop("numbered_after")
    page = await ask.app.read(reads.tasks, ask.who, reads.Filter(**wanted))
    if is_numbered:
        rows = in_families(page["tasks"], itemgetter("taskId"), itemgetter("parentTaskId"))
        parsed = (ids.parse_task_id(task["taskId"]) for _, task in rows)
        shown = [number for number in parsed if number is not None]
        # A list is needed most when the disk is full; only the meaning of its numbers is lost then.
        with suppress(DiskFull):
            await ask.app.write(idempotency.remember, ask.who.viewer, shown, after=after)
    return Reply({**page, "stalledAfterSeconds": ask.app.gateway.services.policy.life.stalled_s})


@route("GET", "/v1/tasks/{target}")
async def one(ask: Ask) -> Reply[objects.TaskObject]:
    """A task: its phase, outcome, usage, budget and delivery."""
    return Reply(await ask.app.read(reads.task, ask.who, ask.target))


@route("GET", "/v1/tasks/{target}/tree", tool="tree")
async def tree(ask: Ask) -> Reply[objects.Tree]:
    """A task with everything below it."""
    return Reply(await ask.app.read(reads.tree, ask.who, ask.target))


@route("GET", "/v1/tasks/{target}/transcript", resource="transcript")
async def task_transcript(ask: Ask[ActionBody, PageQuery]) -> Reply[objects.Messages]:
    """The messages of a task, oldest first, from `after` on."""
    return Reply(await ask.app.read(reads.transcript, ask.who, ask.target, ask.query.after, ask.query.limit))


@route("GET", "/v1/tasks/{target}/why", tool="why", answer=objects.WhyObject)
async def why(ask: Ask) -> Reply[objects.WhyDocument]:
    """Explain the status of a task: its timeline, its delivery attempts, and what blocks it."""
    return Reply(await ask.app.read(reads.why, ask.who, ask.target, True, ask.app.state))


@route("GET", "/v1/tasks/{target}/replay")
async def replay(ask: Ask[ActionBody, PageQuery]) -> Reply[objects.Journal]:
    """Every recorded step of a task, oldest first: letters, model calls, tools, deliveries."""
    known = (ask.who, ask.target, ask.query.after, ask.query.limit)
    return Reply(await ask.app.read(reads.replay, *known))


@route("GET", "/v1/tasks/{target}/timeline")
async def timeline(ask: Ask[ActionBody, TimelineQuery]) -> Reply[TreeTimeline]:
    """The tree of a task over time: what each task did from moment to moment, its tool calls, when and where its result
    was delivered, and the critical path."""
    return Reply(await ask.app.read(reads.tree_timeline, ask.who, ask.target, ask.query.subtree))


@route("GET", "/v1/tasks/{target}/files/{name}")
async def file(ask: Ask) -> Reply[objects.FileContent]:
    """A file that a task hands over, as long as it is kept; `content` in base64."""
    found = await ask.app.read(reads.task, ask.who, ask.target)
    content = await ask.app.gateway.read_file(found["taskId"], ask.path["name"])
    return Reply({"name": ask.path["name"], "content": base64.b64encode(content).decode()})


@route("GET", "/v1/tasks/{target}/result", tool="result", resource="result")
async def result(ask: Ask) -> Reply[objects.ResultObject]:
    """What a task that has ended said last; `value` if a form was asked for, and the files it hands over."""
    return Reply(await ask.app.read(reads.result, ask.who, ask.target))


@route("GET", "/v1/tasks/{target}/messages/{message}")
async def receipt(ask: Ask) -> Reply[objects.ReceiptObject]:
    """What became of a message that was sent with this `Idempotency-Key`: sent, seen at a step, acted on, or not
    acted on because the attempt ended."""
    number = await ask.app.read(reads.task_number, ask.who, ask.target)
    return Reply(views.receipt(await ask.app.read(messages.receipt, number, ask.path["message"])))


@route("GET", "/v1/tasks/{target}/wait", tool="wait")
async def wait(ask: Ask[ActionBody, WaitQuery]) -> Reply[objects.Waited]:
    """Wait for a task to end. `pending`: not yet. `needs_you`: it, or one below it, waits for a decision."""
    query, app = ask.query, ask.app
    waited = app.actions.wait(ask.caller, ask.target, query.timeout_seconds, query.until, app.closing)
    return Reply(await waited)


# --------------------------------------------------------------------------------------------------
# Sessions: lists, transcripts, and messages of a user to a main agent.


class SessionsQuery(Query):
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 50
    active_minutes: Annotated[float | None, Field(alias="activeMinutes", ge=0)] = None


@route("GET", "/v1/sessions")
async def list_sessions(ask: Ask[ActionBody, SessionsQuery]) -> Reply[objects.Sessions]:
    """Sessions, the latest active first."""
    query, rules = ask.query, ask.app.gateway.services.policy.history
    active_s = None if query.active_minutes is None else 60 * query.active_minutes
    lines = await ask.app.read(
        transcripts.sessions, ask.caller, rules, kinds=(), limit=query.limit, active_s=active_s
    )
    return Reply(views.sessions(lines))


@route("GET", "/v1/sessions/{key}/transcript")
async def session_transcript(ask: Ask[ActionBody, PageQuery]) -> Reply[objects.Messages]:
    """The messages of a session, oldest first, from `after` on."""
    query = ask.query
    return Reply(
        await ask.app.read(reads.session_transcript, ask.who, ask.path["key"], query.after, query.limit)
    )


@route("POST", "/v1/sessions/{key}/messages", status=202)
async def say(ask: Ask[ChatMessage]) -> Reply[objects.LetterObject]:
    """A person's message to a main agent; a slash command is carried out instead. With `files` the text of each file
    that it mentions as `@path` is added, beneath the agent's workspace."""
    gateway, key = ask.app.gateway, ask.path["key"]
    text = await gateway.with_files(ask.body.text, key) if ask.body.files else ask.body.text
    letter = await gateway.say(text, key, ask.key, ask.caller)
    return Reply({"letterId": letter})


@route("POST", "/v1/threads/messages", status=202)
async def in_thread(ask: Ask[InThread]) -> Reply[objects.Woken]:
    """Receive a message of a channel thread: the session that the thread is bound to reads it."""
    await ask.app.gateway.receive_thread_message(ask.body, ask.key, ask.caller)
    return Reply({"status": "accepted"})


class Listening(Body):
    wait_seconds: Annotated[float, Field(alias="waitSeconds", ge=0, le=WAIT_S_MAX, strict=False)] = 25.0
    until_quiet: Annotated[bool, Field(alias="untilQuiet")] = False
    heard: Annotated[int | None, Field(ge=0, le=ROW_NUMBER_MAX)] = None
    after: Annotated[int, Field(ge=0, le=ROW_NUMBER_MAX)] = 0
    known: str | None = None


@route("POST", "/v1/sessions/{key}/replies")
async def hear(ask: Ask[Listening]) -> Reply[objects.NextWords]:
    """The next reply for the user, the same one until its `id` comes back as `heard`. `known`: a task whose result was
    read; the reply about it is marked as read. `after`: only replies behind that `id`, and nothing is marked."""
    body, gateway, key = ask.body, ask.app.gateway, ask.path["key"]
    number, _ = await gateway.session(key)
    if body.known is not None:
        task = await ask.app.read(reads.task_number, ask.who, body.known)
        known = (gateway.services.policy, number, LOCAL_CHANNEL, task)
        await gateway.services.db.alone(delivery.known_already, *known)
    said, is_quiet = await gateway.next_reply(
        key, body.wait_seconds, until_quiet=body.until_quiet, heard=body.heard, after=body.after
    )
    if said is None:
        return Reply({"id": None, "reply": None, "quiet": is_quiet})
    return Reply({"id": said.parcel_id, "reply": said.body, "quiet": is_quiet})


@route("POST", "/v1/sessions/{key}/halt")
async def halt(ask: Ask) -> Reply[objects.Halted]:
    """Stop the current turn of a main session; its subagents keep running."""
    number, _ = await ask.app.gateway.session(ask.path["key"])
    return Reply(await ask.app.actions.halt(ask.caller, number))


class Line(Body):
    line: str


@route("POST", "/v1/sessions/{key}/command")
async def command(ask: Ask[Line]) -> Reply[objects.CommandText]:
    """A slash command, and the text that answers it."""
    said = await ask.app.gateway.command(ask.body.line, ask.path["key"], ask.key, ask.caller)
    return Reply({"text": said})


@route("POST", "/v1/sessions/{key}/notify")
async def notify(ask: Ask[Words]) -> Reply[objects.Notified]:
    """Something happened: the agent reads it in its next turn."""
    return Reply({"isNew": await ask.app.gateway.notify(ask.body.text, ask.path["key"])})


@route("POST", "/v1/sessions/{key}/wake", status=202)
async def wake(ask: Ask) -> Reply[objects.Woken]:
    """The agent looks up, or does so after its turn."""
    await ask.app.gateway.wake(ask.path["key"])
    return Reply({"status": "accepted"})


class SettledQuery(Query):
    timeout_seconds: Annotated[float, Field(alias="timeoutSeconds", ge=0, le=WAIT_S_MAX)] = 30.0


@route("GET", "/v1/sessions/{key}/settled")
async def settled(ask: Ask[ActionBody, SettledQuery]) -> Reply[objects.Settled]:
    """Wait until this session and all sessions below it are idle; say whether they are."""
    async with BackgroundTasks() as tasks:
        waiting = tasks.call(ask.app.gateway.wait_idle(ask.path["key"]), "idle session")
        await first(asyncio.wait({waiting}), ask.app.closing.wait(), within_s=ask.query.timeout_seconds)
        if waiting.done():
            waiting.result()
        return Reply({"settled": waiting.done()})


class DeleteQuery(Query):
    kill: bool = False
    force: bool = False
    keep_transcript: Annotated[bool, Field(alias="keepTranscript")] = False


@route("DELETE", "/v1/sessions/{key}", Scope.ADMIN)
async def delete(ask: Ask[ActionBody, DeleteQuery]) -> Reply[objects.Deleted]:
    """Delete a session with its transcript, or with `keepTranscript` only archive it."""
    query = ask.query
    return Reply(
        await ask.app.actions.delete(
            ask.caller,
            ask.path["key"],
            kills=query.kill,
            force=query.force,
            keep_transcript=query.keep_transcript,
        )
    )


# --------------------------------------------------------------------------------------------------
# The gateway itself: its agents and its files. Health and costs are in `health.py`.


@route("GET", "/v1/agents")
async def agents(ask: Ask) -> Reply[Agents]:
    """The agents that can be used, and the files that define agents and skills, with their states."""
    services = ask.app.gateway.services
    if services.definitions is None:
        return Reply(agent_views.agents(services.policy, ()))
    await services.definitions.refresh(at_once=True)
    return Reply(agent_views.agents(services.policy, services.definitions.definitions))


class Sweeping(Body):
    dry_run: Annotated[bool, Field(alias="dryRun")] = True


@route("POST", "/v1/gc", Scope.ADMIN)
async def sweep(ask: Ask[Sweeping]) -> Reply[objects.Swept]:
    """Archive and delete what is older than the config keeps; a dry run, unless `dryRun` is false."""
    return Reply(await ask.app.actions.sweep(is_dry=ask.body.dry_run))


@route("GET", "/v1/openapi.json")
async def openapi(ask: Ask) -> Reply[objects.Document]:
    """All of this, for programs that read it."""
    del ask
    return Reply(await asyncio.to_thread(_document))


@cache
def _document() -> Any:
    from clutch.surfaces.http.app import ENTRIES as EVERY
    from clutch.surfaces.http.routes import document

    return document(EVERY)


# --------------------------------------------------------------------------------------------------
# The end of a gateway: at once, or when its accepted work is done. A gateway inside a program ends with that program.


class DrainBody(Body):
    timeout_seconds: Annotated[float | None, Field(alias="timeoutSeconds", ge=0, strict=False)] = None


@route("POST", "/v1/stop", Scope.ADMIN, status=202)
async def stop(ask: Ask) -> Reply[objects.Ending]:
    """Stop the gateway now; its work is resumed by the next one."""
    leaving = _leaving(ask)
    leaving.stop("requested")
    return Reply({"status": "stopping", "pid": os.getpid()})


@route("POST", "/v1/drain", Scope.ADMIN, status=202)
async def drain(ask: Ask[DrainBody]) -> Reply[objects.Ending]:
    """Accept no new work and stop when the current work is done. Asked again, it says what it still waits for."""
    leaving = _leaving(ask)
    leaving.drain(ask.body.timeout_seconds)
    waiting = [] if leaving.told.is_set() else [_waited_for(one) for one in await leaving.working()]
    status: Literal["stopping", "draining"] = "stopping" if leaving.told.is_set() else "draining"
    return Reply({"status": status, "pid": os.getpid(), "waitingFor": waiting})


def _leaving(ask: Ask[Any, Any]) -> Leaving:
    leaving = ask.app.gateway.leaving
    if leaving is None:
        raise Problem(
            "forbidden",
            f"this gateway is part of another program (pid {os.getpid()}); end that program",
            rule="embedded",
        )
    return leaving


def _waited_for(one: Working) -> objects.WaitedFor:
    return {
        "taskId": None if one.phase is None else ids.task_id(one.session_id),
        "sessionKey": one.session_key,
        "label": one.label,
        "phase": one.phase,
    }


ENTRIES = (
    list_tasks, one, tree, task_transcript, why, replay, timeline, file, result, receipt, wait,
    list_sessions, session_transcript, delete, say, in_thread, hear, halt, command, notify, wake, settled,
    openapi, agents, sweep, stop, drain,
)  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Actions: spawn, the inbox, and one route for each action of `api/actions.py`


SPAWN_BYTES_MAX = 8 * 1024 * 1024  #: attachments travel with it
CAPACITY_WAIT_S = 20.0  #: with `onFull: "queue"`; a client waits no longer for an answer


def _parameters() -> type[BaseModel]:
    """Return the parameters of a spawn, as agents write them."""
    said: dict[str, Any] = {
        **get_type_hints(SpawnOptions),
        "checks": list[dict[str, Any]],
        "attachments": list[Attached],
        "dry_run": bool,
        "count": int,
    }
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
    """Start a background task; the answer comes at once, when the task is on disk, and the work outlives the caller.

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
    return Reply(await ask.app.read(reads.inbox, ask.who, ask.app.gateway.services.policy))


@route("GET", "/v1/inbox/{id}")
async def inbox_item(ask: Ask) -> Reply[objects.Item]:
    """One item of the inbox: by its id, or by the task or session that asks, in any form of a target."""
    policy = ask.app.gateway.services.policy
    return Reply(await ask.app.read(reads.inbox_item, ask.who, ask.path["id"], policy))


@route("GET", "/v1/schedules", Scope.ADMIN)
async def list_schedules(ask: Ask) -> Reply[objects.Schedules]:
    """All schedules, with their next times and what became of their newest slots."""
    return Reply(await ask.app.read(schedules.listed))


@route("GET", "/v1/schedules/{name}", Scope.ADMIN)
async def one_schedule(ask: Ask) -> Reply[objects.ScheduleObject]:
    """A schedule, with its next times and what became of its slots."""
    return Reply(await ask.app.read(schedules.one, ask.path["name"]))


ACTION_ENTRIES = (spawn, inbox, inbox_item, list_schedules, one_schedule, *map(action_route, ACTIONS))
