"""The one guard, asked in the transaction of the verb itself: whose child is the target, and may the caller?

Who stands where is read from the store; nothing of it comes from a parameter. Nothing is locked here: what is
above a session never changes, and a caller that is being killed loses its targets in the same commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from clutch.core import keys
from clutch.core.authority import AgentCaller, Caller, Denied, Target, Verb, can
from clutch.core.pins import HOUSE
from clutch.errors import Forbidden, NotFound
from clutch.protocol.sessions import Stale, is_owner
from clutch.store.door import Tx

T = TypeVar("T")


def guarded(
    now: float, caller: Caller, verb: Verb, session_id: int, fn: Callable[..., Tx[T]], *args: Any
) -> Tx[T]:
    """`fn(now, *args)`, if the caller may do that to the session. Raises Forbidden, NotFound."""
    yield from allow(caller, verb, session_id)
    return (yield from fn(now, *args))


def check(now: float, caller: Caller, verb: Verb, session_id: int) -> Tx[None]:
    """For what happens outside the store. Raises Forbidden, NotFound."""
    del now
    yield from allow(caller, verb, session_id)


def allow(caller: Caller, verb: Verb, session_id: int) -> Tx[None]:
    if isinstance(caller, AgentCaller):
        yield from _still_runs(caller)
    answer = can(caller, verb, (yield from target(session_id)))
    if isinstance(answer, Denied):
        raise Forbidden(answer.rule, answer.reason)


def _still_runs(caller: AgentCaller) -> Tx[None]:
    """A run that was killed, steered or taken over must not act on anybody any more."""
    if caller.fence is None:
        return
    rows = yield "SELECT owner, fence FROM sessions WHERE id = ?", (caller.session_id,)
    if not rows or not is_owner(rows[0][0], rows[0][1], caller.fence):
        raise Stale(f"session {caller.session_id} is owned by somebody else now")


def target(session_id: int) -> Tx[Target]:
    """Also of a task whose session was deleted."""
    if session_id == HOUSE:
        return Target(HOUSE, "")
    rows = yield "SELECT agent_id, key FROM sessions WHERE id = ?", (session_id,)
    above = yield from ancestors(session_id)
    if not rows and not above:
        raise NotFound(f"there is no session or task {keys.task_id(session_id)}")
    agent_id = rows[0][0] if rows else ""
    return Target(session_id, agent_id, above, (yield from _controller(session_id)))


def ancestors(session_id: int) -> Tx[tuple[int, ...]]:
    """Parent first. A chain that bites its tail ends there."""
    above: list[int] = []
    at = session_id
    while True:
        rows = yield (
            "SELECT parent_id FROM sessions WHERE id = ? AND parent_id IS NOT NULL"
            " UNION SELECT requester_id FROM tasks WHERE id = ?",
            (at, at),
        )
        if not rows or rows[0][0] in (*above, session_id):
            return tuple(above)
        at = rows[0][0]
        above.append(at)


def _controller(session_id: int) -> Tx[int | None]:
    """Whom its letters reached because whoever asked for them was gone."""
    rows = yield (
        "SELECT i.session_id FROM inbox i JOIN tasks t ON t.id = i.task_id AND t.generation = i.generation"
        " WHERE i.task_id = ? AND i.bubbled_from IS NOT NULL ORDER BY i.id DESC LIMIT 1",
        (session_id,),
    )
    return int(rows[0][0]) if rows else None
