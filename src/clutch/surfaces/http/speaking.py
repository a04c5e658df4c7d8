"""A caller that speaks from a session (`Clutch-Session: agent:main:chat:NAME`) has nothing but what is below it.

An MCP client, or any program that should not meddle with what others started, says the header with each request. It
has the paths that are tools, and there the guard and every list know nothing outside of its tree.
"""

from __future__ import annotations

from dataclasses import replace

from clutch.core.authority import OperatorCaller, Scope
from clutch.gateway import reads
from clutch.surfaces.http.routes import Entry, House
from clutch.surfaces.problems import Problem

HEADER = "clutch-session"


async def admitted(house: House, entry: Entry, caller: OperatorCaller, session: str | None) -> OperatorCaller:
    """Raises Problem, InvalidInput for what is no main session, NotFound for a new one of who may only read."""
    if not caller.scopes & {entry.scope, Scope.ADMIN}:
        raise Problem("forbidden", f"this token does not have the scope {entry.scope}", rule="scope")
    if session is None:
        return caller
    if entry.tool is None:
        raise Problem("forbidden", "who speaks from a session cannot ask for this", rule="session")
    if caller.scopes & {Scope.WRITE, Scope.ADMIN}:
        number, _ = await house.gateway.session(session)
    else:
        number = await house.reads(reads.session_number, reads.standpoint(caller), session)
    return replace(caller, actor=session, within=number)
