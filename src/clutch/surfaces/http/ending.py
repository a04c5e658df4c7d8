"""Ending a gateway over HTTP: at once, or when what it has accepted is done. One inside a program is that program's."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import Field

from clutch.core import keys
from clutch.core.authority import Scope
from clutch.gateway.leaving import Leaving
from clutch.protocol.ahead import Working
from clutch.surfaces.http import answers
from clutch.surfaces.http.bodies import Body, Query
from clutch.surfaces.http.routes import Ask, Entry, Reply
from clutch.surfaces.problems import Problem


class DrainBody(Body):
    timeout_seconds: Annotated[float | None, Field(alias="timeoutSeconds", ge=0, strict=False)] = None


async def stop(ask: Ask[Body, Query]) -> Reply:
    leaving = _leaving(ask)
    leaving.stop("told to")
    return Reply({"status": "stopping", "pid": os.getpid()}, 202)


async def drain(ask: Ask[DrainBody, Query]) -> Reply:
    """Asked again, it says what it still waits for."""
    leaving = _leaving(ask)
    leaving.drain(ask.body.timeout_seconds)
    waiting = [] if leaving.told.is_set() else [_waited_for(one) for one in await leaving.working()]
    status = "stopping" if leaving.told.is_set() else "draining"
    return Reply({"status": status, "pid": os.getpid(), "waitingFor": waiting}, 202)


def _leaving(ask: Ask[Any, Any]) -> Leaving:
    leaving = ask.house.gateway.leaving
    if leaving is None:
        raise Problem(
            "forbidden",
            f"this gateway is part of another program (pid {os.getpid()}); end that program",
            rule="embedded",
        )
    return leaving


def _waited_for(one: Working) -> dict[str, str | None]:
    return {
        "taskId": None if one.phase is None else keys.task_id(one.session_id),
        "sessionKey": one.session_key,
        "label": one.label,
        "phase": one.phase,
    }


ENTRIES = (
    Entry("POST", "/v1/stop", Scope.ADMIN, stop, answer=answers.Ending, status=202),
    Entry("POST", "/v1/drain", Scope.ADMIN, drain, DrainBody, answer=answers.Ending, status=202),
)
