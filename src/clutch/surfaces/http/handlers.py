"""Tasks over HTTP: reading them, waiting for them."""

from __future__ import annotations

import asyncio
import base64
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import JSONResponse, Response

from clutch import __version__
from clutch.api import objects, reads, views
from clutch.api.actions import Until, Words
from clutch.api.problems import Problem
from clutch.api.shutdown import Leaving
from clutch.api.wait import first
from clutch.contain import BackgroundTasks
from clutch.core import ids
from clutch.core.agents import MAIN
from clutch.core.authority import Scope
from clutch.core.delivery import LOCAL_CHANNEL
from clutch.core.ids import ROW_NUMBER_MAX
from clutch.core.model import Outcome, Phase
from clutch.core.policy import Policy
from clutch.errors import DiskFull
from clutch.surfaces.http.auth import BROWSER_PATH, cookie_name
from clutch.surfaces.http.routes import Ask, Body, HttpRoute, PageQuery, Query, Reply
from clutch.transactions import delivery, workers
from clutch.transactions.read import sessions, targets, tasks
from clutch.transactions.read.lists import LIMIT_MAX
from clutch.transactions.read.tasks import By
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
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 50
    cursor: str | None = None
    numbered: bool = False  #: from now on `#1` is the first of these to whoever asked


class WaitQuery(Query):
    timeout_seconds: Annotated[float, Field(alias="timeoutSeconds", ge=0, le=WAIT_S_MAX)] = 30.0
    until: Until = Until.ENDED


async def list_tasks(ask: Ask[Body, ListQuery]) -> Reply:
    """Tasks with their phase, outcome, usage and delivery, and how many there are of each kind.

    Order: tasks that need the user, undelivered results, active tasks, then finished tasks, newest first. The first
    page has all active tasks, also beyond `limit`; `next` is the `cursor` of the page with older finished ones."""
    wanted = ask.query.model_dump()
    is_numbered = wanted.pop("numbered")
    page = await ask.app.read(reads.tasks, ask.who, reads.Filter(**wanted))
    if is_numbered:
        parsed = (ids.parse_task_id(task["taskId"]) for task in page["tasks"])
        shown = [number for number in parsed if number is not None]
        # A list is needed most when the disk is full; only the meaning of its numbers is lost then.
        with suppress(DiskFull):
            await ask.app.write(targets.remember, ask.who.viewer, shown)
    return Reply({**page, "stalledAfterSeconds": ask.app.gateway.services.policy.life.stalled_s})


async def one(ask: Ask[Body, Query]) -> Reply:
    """A task: its phase, outcome, usage, budget and delivery."""
    return Reply(await ask.app.read(reads.task, ask.who, ask.target))


async def tree(ask: Ask[Body, Query]) -> Reply:
    """A task with everything below it."""
    return Reply(await ask.app.read(reads.tree, ask.who, ask.target))


async def task_transcript(ask: Ask[Body, PageQuery]) -> Reply:
    """The messages of a task, oldest first, from `after` on."""
    return Reply(await ask.app.read(reads.transcript, ask.who, ask.target, ask.query.after, ask.query.limit))


async def why(ask: Ask[Body, Query]) -> Reply:
    """How a task came to where it is: its timeline, how its result was told, and the gate it waits at."""
    return Reply(await ask.app.read(reads.why, ask.who, ask.target, True, ask.app.state))


async def replay(ask: Ask[Body, PageQuery]) -> Reply:
    """Every recorded step of a task, oldest first: letters, model calls, tools, deliveries."""
    known = (ask.who, ask.target, ask.query.after, ask.query.limit)
    return Reply(await ask.app.read(reads.replay, *known))


async def file(ask: Ask[Body, Query]) -> Reply:
    """A file that a task hands over, as long as it is kept; `content` in base64."""
    found = await ask.app.read(reads.task, ask.who, ask.target)
    content = await ask.app.gateway.read_file(found["taskId"], ask.path["name"])
    return Reply({"name": ask.path["name"], "content": base64.b64encode(content).decode()})


async def result(ask: Ask[Body, Query]) -> Reply:
    """What a task that has ended said last; `value` if a form was asked for, and the files it hands over."""
    return Reply(await ask.app.read(reads.result, ask.who, ask.target))


async def wait(ask: Ask[Body, WaitQuery]) -> Reply:
    """Wait for a task to end. `pending`: not yet. `needs_you`: it, or one below it, waits for a decision."""
    query, app = ask.query, ask.app
    waited = app.actions.wait(ask.caller, ask.target, query.timeout_seconds, query.until, app.closing)
    return Reply(await waited)


TASK_ENTRIES = (
    HttpRoute("GET", "/v1/tasks", Scope.READ, list_tasks, query=ListQuery, answer=objects.Tasks, tool="list"),
    HttpRoute("GET", "/v1/tasks/{target}", Scope.READ, one, answer=objects.TaskObject),
    HttpRoute("GET", "/v1/tasks/{target}/tree", Scope.READ, tree, answer=objects.Tree, tool="tree"),
    HttpRoute(
        "GET",
        "/v1/tasks/{target}/transcript",
        Scope.READ,
        task_transcript,
        query=PageQuery,
        answer=objects.Messages,
    ),
    HttpRoute("GET", "/v1/tasks/{target}/why", Scope.READ, why, answer=objects.Why, tool="why"),
    HttpRoute(
        "GET", "/v1/tasks/{target}/replay", Scope.READ, replay, query=PageQuery, answer=objects.Journal
    ),
    HttpRoute("GET", "/v1/tasks/{target}/files/{name}", Scope.READ, file, answer=objects.FileContent),
    HttpRoute(
        "GET", "/v1/tasks/{target}/result", Scope.READ, result, answer=objects.ResultObject, tool="result"
    ),
    HttpRoute(
        "GET",
        "/v1/tasks/{target}/wait",
        Scope.READ,
        wait,
        query=WaitQuery,
        answer=objects.Waited,
        tool="wait",
    ),
)


# --------------------------------------------------------------------------------------------------
# Sessions over HTTP: those there are, what was said in them, and a person's words to a main agent.


class SessionsQuery(Query):
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX)] = 50
    active_minutes: Annotated[float | None, Field(alias="activeMinutes", ge=0)] = None


async def list_sessions(ask: Ask[Body, SessionsQuery]) -> Reply:
    """Sessions, the latest active first."""
    query, rules = ask.query, ask.app.gateway.services.policy.history
    active_s = None if query.active_minutes is None else 60 * query.active_minutes
    lines = await ask.app.read(sessions.sessions, ask.caller, rules, (), query.limit, active_s)
    return Reply(views.sessions(lines))


async def session_transcript(ask: Ask[Body, PageQuery]) -> Reply:
    """The messages of a session, oldest first, from `after` on."""
    query = ask.query
    return Reply(
        await ask.app.read(reads.session_transcript, ask.who, ask.path["key"], query.after, query.limit)
    )


async def say(ask: Ask[Words, Query]) -> Reply:
    """A person's message to a main agent; a slash command is carried out instead."""
    letter = await ask.app.gateway.say(ask.body.text, ask.path["key"], ask.key, ask.caller)
    return Reply({"letterId": letter}, 202)


@dataclass(frozen=True, slots=True, kw_only=True)
class InThread(Words):
    channel: str
    thread: str
    account: str = ""


async def in_thread(ask: Ask[InThread, Query]) -> Reply:
    """Somebody wrote in a thread of a channel: the session that has it reads it."""
    said = ask.body
    await ask.app.gateway.heard(said.channel, said.thread, said.text, said.account, ask.key, ask.caller)
    return Reply({"status": "accepted"}, 202)


class Listening(Body):
    wait_seconds: Annotated[float, Field(alias="waitSeconds", ge=0, le=WAIT_S_MAX, strict=False)] = 25.0
    until_quiet: Annotated[bool, Field(alias="untilQuiet")] = False
    heard: Annotated[int | None, Field(ge=0, le=ROW_NUMBER_MAX)] = None
    after: Annotated[int, Field(ge=0, le=ROW_NUMBER_MAX)] = 0
    known: str | None = None


async def hear(ask: Ask[Listening, Query]) -> Reply:
    """The next reply for the user, the same one until its `id` comes back as `heard`. `known`: a task whose result was
    read; the reply about it is marked as read. `after`: only replies behind that `id`, and nothing is marked."""
    body, gateway, key = ask.body, ask.app.gateway, ask.path["key"]
    number, _ = await gateway.session(key)
    if body.known is not None:
        task = await ask.app.read(reads.task_number, ask.who, body.known)
        known = (gateway.services.policy, number, LOCAL_CHANNEL, task)
        await gateway.services.db.alone(delivery.known_already, *known)
    said, is_quiet = await gateway.next_words(
        key, body.wait_seconds, until_quiet=body.until_quiet, heard=body.heard, after=body.after
    )
    words = {"id": None, "reply": None} if said is None else {"id": said.parcel_id, "reply": said.body}
    return Reply({**words, "quiet": is_quiet})


async def halt(ask: Ask[Body, Query]) -> Reply:
    """Stop the current turn of a main session; its subagents keep running."""
    number, _ = await ask.app.gateway.session(ask.path["key"])
    return Reply(await ask.app.actions.halt(ask.caller, number))


class Line(Body):
    line: str


async def command(ask: Ask[Line, Query]) -> Reply:
    """A slash command, and the text that answers it."""
    said = await ask.app.gateway.command(ask.body.line, ask.path["key"], ask.key, ask.caller)
    return Reply({"text": said})


async def notify(ask: Ask[Words, Query]) -> Reply:
    """Something happened: the agent reads it in its next turn."""
    return Reply({"isNew": await ask.app.gateway.notify(ask.body.text, ask.path["key"])})


async def wake(ask: Ask[Body, Query]) -> Reply:
    """The agent looks up, or does so after its turn."""
    await ask.app.gateway.wake(ask.path["key"])
    return Reply({"status": "accepted"}, 202)


class SettledQuery(Query):
    timeout_seconds: Annotated[float, Field(alias="timeoutSeconds", ge=0, le=WAIT_S_MAX)] = 30.0


async def settled(ask: Ask[Body, SettledQuery]) -> Reply:
    """Whether nothing is left to do for this session or anywhere below it; waits for that."""
    async with BackgroundTasks() as tasks:
        waiting = tasks.call(ask.app.gateway.settled(ask.path["key"]), "settled session")
        await first(asyncio.wait({waiting}), ask.app.closing.wait(), within_s=ask.query.timeout_seconds)
        if waiting.done():
            waiting.result()
        return Reply({"settled": waiting.done()})


class DeleteQuery(Query):
    kill: bool = False
    force: bool = False
    keep_transcript: Annotated[bool, Field(alias="keepTranscript")] = False


async def delete(ask: Ask[Body, DeleteQuery]) -> Reply:
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


SESSION_ENTRIES = (
    HttpRoute("GET", "/v1/sessions", Scope.READ, list_sessions, query=SessionsQuery, answer=objects.Sessions),
    HttpRoute(
        "GET",
        "/v1/sessions/{key}/transcript",
        Scope.READ,
        session_transcript,
        query=PageQuery,
        answer=objects.Messages,
    ),
    HttpRoute("DELETE", "/v1/sessions/{key}", Scope.ADMIN, delete, query=DeleteQuery, answer=objects.Deleted),
    HttpRoute(
        "POST",
        "/v1/sessions/{key}/messages",
        Scope.WRITE,
        say,
        Words,
        answer=objects.LetterObject,
        status=202,
    ),
    HttpRoute(
        "POST", "/v1/threads/messages", Scope.WRITE, in_thread, InThread, answer=objects.Woken, status=202
    ),
    HttpRoute("POST", "/v1/sessions/{key}/replies", Scope.WRITE, hear, Listening, answer=objects.NextWords),
    HttpRoute("POST", "/v1/sessions/{key}/halt", Scope.WRITE, halt, answer=objects.Halted),
    HttpRoute("POST", "/v1/sessions/{key}/command", Scope.WRITE, command, Line, answer=objects.CommandText),
    HttpRoute("POST", "/v1/sessions/{key}/notify", Scope.WRITE, notify, Words, answer=objects.Notified),
    HttpRoute("POST", "/v1/sessions/{key}/wake", Scope.WRITE, wake, answer=objects.Woken, status=202),
    HttpRoute(
        "GET",
        "/v1/sessions/{key}/settled",
        Scope.READ,
        settled,
        query=SettledQuery,
        answer=objects.Settled,
    ),
)


# --------------------------------------------------------------------------------------------------
# The gateway itself: is it well, what has it used, which agents does it know.

DATABASE_S = 2.0  #: a monitor that asks for health wants to hear of a database that stands still


async def healthy(ask: Ask[Body, Query]) -> Reply:
    """Whether the gateway is well: its version, its database, and how much is running, queued and undelivered."""
    services, leaving = ask.app.gateway.services, ask.app.gateway.leaving
    is_ending = services.stopping.is_set() or (leaving is not None and leaving.is_draining)
    try:
        async with asyncio.timeout(DATABASE_S):
            found = await ask.app.read(workers.health)
    except TimeoutError as error:
        raise Problem("unavailable", f"the database has not answered for {DATABASE_S:g} s") from error
    return Reply(
        {
            "status": "draining" if is_ending else "ok",
            "version": __version__,
            "schema": found.schema,
            "database": "sqlite" if services.lives is None else "postgresql",
            "workers": found.workers,
            "running": found.running,
            "queued": found.queued,
            "undelivered": found.undelivered,
            "problems": [
                {"subject": one.subject, "detail": one.detail, "remedy": one.remedy, "isError": one.is_error}
                for one in services.problems()
            ],
            "pulses": {
                name: {"at": views.moment(beat.at), "everySeconds": beat.period_s}
                for name, beat in services.pulses.beats.items()
            },
        }
    )


class UsageQuery(Query):
    by: By = By.ROOT


async def usage(ask: Ask[Body, UsageQuery]) -> Reply:
    """Tokens and cost by root session, agent, model or day."""
    return Reply(views.spending(ask.query.by, await ask.app.read(tasks.spending, ask.query.by)))


async def agents(ask: Ask[Body, Query]) -> Reply:
    """The configured agents."""
    policy = ask.app.gateway.services.policy
    return Reply({"agents": [_agent(policy, name) for name in sorted({MAIN, *policy.agents})]})


def _agent(policy: Policy, name: str) -> dict[str, object]:
    model = policy.agents[name].model if name in policy.agents else None
    return {"agentId": name, "model": model or policy.defaults.model, "workspace": policy.workspace_of(name)}


class Sweeping(Body):
    dry_run: Annotated[bool, Field(alias="dryRun")] = True


async def sweep(ask: Ask[Sweeping, Query]) -> Reply:
    """Archive and delete what is older than the config keeps; a dry run, unless `dryRun` is false."""
    return Reply(await ask.app.actions.sweep(is_dry=ask.body.dry_run))


async def openapi(ask: Ask[Body, Query]) -> Reply:
    """All of this, for programs that read it."""
    del ask
    return Reply(await asyncio.to_thread(_document))


@cache
def _document() -> dict[str, object]:
    from clutch.surfaces.http.app import ENTRIES as EVERY
    from clutch.surfaces.http.openapi import document

    return document(EVERY)


GATEWAY_ENTRIES = (
    HttpRoute("GET", "/v1/openapi.json", Scope.READ, openapi, answer=objects.Document),
    HttpRoute("GET", "/v1/health", Scope.READ, healthy, answer=objects.Health),
    HttpRoute("GET", "/v1/usage", Scope.READ, usage, query=UsageQuery, answer=objects.Spending),
    HttpRoute("GET", "/v1/agents", Scope.READ, agents, answer=objects.Agents),
    HttpRoute("POST", "/v1/gc", Scope.ADMIN, sweep, Sweeping, answer=objects.Swept),
)


# --------------------------------------------------------------------------------------------------
# Ending a gateway over HTTP: at once, or when what it has accepted is done. One inside a program is that program's.


class DrainBody(Body):
    timeout_seconds: Annotated[float | None, Field(alias="timeoutSeconds", ge=0, strict=False)] = None


async def stop(ask: Ask[Body, Query]) -> Reply:
    """Stop the gateway now; its work is resumed by the next one."""
    leaving = _leaving(ask)
    leaving.stop("told to")
    return Reply({"status": "stopping", "pid": os.getpid()}, 202)


async def drain(ask: Ask[DrainBody, Query]) -> Reply:
    """Accept no new work and stop when the current work is done. Asked again, it says what it still waits for."""
    leaving = _leaving(ask)
    leaving.drain(ask.body.timeout_seconds)
    waiting = [] if leaving.told.is_set() else [_waited_for(one) for one in await leaving.working()]
    status = "stopping" if leaving.told.is_set() else "draining"
    return Reply({"status": status, "pid": os.getpid(), "waitingFor": waiting}, 202)


def _leaving(ask: Ask[Any, Any]) -> Leaving:
    leaving = ask.app.gateway.leaving
    if leaving is None:
        raise Problem(
            "forbidden",
            f"this gateway is part of another program (pid {os.getpid()}); end that program",
            rule="embedded",
        )
    return leaving


def _waited_for(one: Working) -> dict[str, str | None]:
    return {
        "taskId": None if one.phase is None else ids.task_id(one.session_id),
        "sessionKey": one.session_key,
        "label": one.label,
        "phase": one.phase,
    }


SHUTDOWN_ENTRIES = (
    HttpRoute("POST", "/v1/stop", Scope.ADMIN, stop, answer=objects.Ending, status=202),
    HttpRoute("POST", "/v1/drain", Scope.ADMIN, drain, DrainBody, answer=objects.Ending, status=202),
)


# --------------------------------------------------------------------------------------------------
# Letting a browser in: a one-time code, made for whoever has a token, is changed for a cookie that stands for it.
#
# The page that is opened with the code sends it as `Authorization: Code …`; no token is ever in an address, in a
# history or within reach of a script. A cookie is accepted from our own page only: see `_check_own_page`.


async def code(ask: Ask[Body, Query]) -> Response:
    """A code that lets a browser in, once and soon, with the scopes of this token."""
    rules = ask.app.gateway.services.policy.serving
    said = {"code": ask.app.browsers.code(ask.token), "expiresInSeconds": rules.code_s}
    return JSONResponse(said, 201)  # no `Reply`, which an `Idempotency-Key` would write to the database


async def let_in(ask: Ask[Body, Query]) -> Response:
    """Change the code in `Authorization: Code …` for a cookie."""
    if "authorization" not in ask.headers:  # a cookie opened this, and a cookie is no way to another one
        raise Problem(
            "invalid_input",
            "Authorization: must be given: `Code …` with a one-time code, or `Bearer …` with the token",
            field="Authorization",
            remedy="clutch open",
        )
    lasts_s = ask.app.gateway.services.policy.serving.browser_s
    said = JSONResponse({"status": "open", "expiresInSeconds": lasts_s})
    kind, _, given = ask.headers["authorization"].partition(" ")
    value = ask.app.browsers.cookie(ask.token, given.strip() if kind.lower() == "code" else None)
    said.set_cookie(cookie_name(ask.headers), value, max_age=int(lasts_s), httponly=True, samesite="strict")
    return said


BROWSER_ENTRIES = (
    HttpRoute("POST", "/v1/browser/code", Scope.READ, code, answer=objects.Code, status=201),
    HttpRoute("POST", BROWSER_PATH, Scope.READ, let_in, answer=objects.LetIn),
)
