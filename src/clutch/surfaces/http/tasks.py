"""Tasks over HTTP: reading them, waiting for them."""

from __future__ import annotations

import base64
from typing import Annotated

from pydantic import Field

from clutch.core import keys
from clutch.core.authority import Scope
from clutch.core.model import Outcome, Phase
from clutch.gateway import reads
from clutch.gateway.desk import Until
from clutch.protocol import targets
from clutch.protocol.listing import LIMIT_MAX
from clutch.surfaces.http import answers
from clutch.surfaces.http.bodies import Body, PageQuery, Query
from clutch.surfaces.http.routes import Ask, Entry, Reply

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


async def listed(ask: Ask[Body, ListQuery]) -> Reply:
    """Tasks, oldest first, with their phase, outcome, usage and delivery, and how many there are of each kind."""
    wanted = ask.query.model_dump()
    is_numbered = wanted.pop("numbered")
    page = await ask.house.reads(reads.tasks, ask.who, reads.Filter(**wanted))
    if is_numbered:
        shown = [keys.parse_task_id(task["taskId"]) for task in page["tasks"]]
        await ask.house.writes(targets.remember, ask.who.viewer, shown)
    return Reply({**page, "stalledAfterSeconds": ask.house.gateway.kit.policy.life.stalled_s})


async def one(ask: Ask[Body, Query]) -> Reply:
    return Reply(await ask.house.reads(reads.task, ask.who, ask.target))


async def tree(ask: Ask[Body, Query]) -> Reply:
    """A task with everything below it."""
    return Reply(await ask.house.reads(reads.tree, ask.who, ask.target))


async def transcript(ask: Ask[Body, PageQuery]) -> Reply:
    return Reply(
        await ask.house.reads(reads.transcript, ask.who, ask.target, ask.query.after, ask.query.limit)
    )


async def why(ask: Ask[Body, Query]) -> Reply:
    """How a task came to where it is: its timeline, how its result was told, and the gate it waits at."""
    return Reply(await ask.house.reads(reads.why, ask.who, ask.target, True, ask.house.state))


async def replay(ask: Ask[Body, PageQuery]) -> Reply:
    known = (ask.who, ask.target, ask.query.after, ask.query.limit)
    return Reply(await ask.house.reads(reads.replay, *known))


async def file(ask: Ask[Body, Query]) -> Reply:
    """A file that a task hands over, as long as it is kept; `content` in base64."""
    found = await ask.house.reads(reads.task, ask.who, ask.target)
    content = await ask.house.gateway.read_file(found["taskId"], ask.path["name"])
    return Reply({"name": ask.path["name"], "content": base64.b64encode(content).decode()})


async def result(ask: Ask[Body, Query]) -> Reply:
    """What a task that has ended said last; `value` if a form was asked for, and the files it hands over."""
    return Reply(await ask.house.reads(reads.result, ask.who, ask.target))


async def wait(ask: Ask[Body, WaitQuery]) -> Reply:
    """Wait for a task to end. `pending`: not yet. `needs_you`: it, or one below it, waits for a decision."""
    query, house = ask.query, ask.house
    waited = house.desk.wait(ask.caller, ask.target, query.timeout_seconds, query.until, house.closing)
    return Reply(await waited)


ENTRIES = (
    Entry("GET", "/v1/tasks", Scope.READ, listed, query=ListQuery, answer=answers.Tasks, tool="list"),
    Entry("GET", "/v1/tasks/{target}", Scope.READ, one, answer=answers.Task),
    Entry("GET", "/v1/tasks/{target}/tree", Scope.READ, tree, answer=answers.Tree, tool="tree"),
    Entry(
        "GET",
        "/v1/tasks/{target}/transcript",
        Scope.READ,
        transcript,
        query=PageQuery,
        answer=answers.Messages,
    ),
    Entry("GET", "/v1/tasks/{target}/why", Scope.READ, why, answer=answers.Why, tool="why"),
    Entry("GET", "/v1/tasks/{target}/replay", Scope.READ, replay, query=PageQuery, answer=answers.Journal),
    Entry("GET", "/v1/tasks/{target}/files/{name}", Scope.READ, file, answer=answers.FileContent),
    Entry("GET", "/v1/tasks/{target}/result", Scope.READ, result, answer=answers.Result, tool="result"),
    Entry(
        "GET",
        "/v1/tasks/{target}/wait",
        Scope.READ,
        wait,
        query=WaitQuery,
        answer=answers.Waited,
        tool="wait",
    ),
)
