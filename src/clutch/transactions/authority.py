"""The one guard, asked in the transaction of the verb itself: whose child is the target, and may the caller?

Who stands where is read from the store; nothing of it comes from a parameter. Nothing is locked here: what is
above a session never changes, and a caller that is being killed loses its targets in the same commit."""

from __future__ import annotations

import json

from clutch.core import ids, session_tools
from clutch.core.authority import AgentCaller, Caller, Denied, Target, Verb, can
from clutch.core.model import NO_SESSION
from clutch.errors import Forbidden, NotFound
from clutch.store.transaction import P, T, Tx, TxFunction
from clutch.transactions import sessions
from clutch.transactions.sessions import SessionRow, is_owner


def guarded(
    now: float,
    caller: Caller,
    verb: Verb,
    session_id: int,
    fn: TxFunction[P, T],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Tx[T]:
    """Run `fn(now, ...)` if the caller may do that to the session. Raises Forbidden, NotFound."""
    yield from allow(caller, verb, session_id)
    return (yield from fn(now, *args, **kwargs))


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
    """A run that was killed, steered or taken over must not act on any session any more."""
    if caller.fence is None:
        return
    rows = yield "SELECT owner, fence FROM sessions WHERE id = ?", (caller.session_id,)
    if not rows or not is_owner(rows[0][0], rows[0][1], caller.fence):
        raise sessions.stale(caller.session_id)


def target(session_id: int) -> Tx[Target]:
    """Also of a task whose session was deleted."""
    if session_id == NO_SESSION:
        return Target(NO_SESSION, "")
    rows = yield "SELECT agent_id, key FROM sessions WHERE id = ?", (session_id,)
    above = yield from ancestors(session_id)
    if not rows and not above:
        raise NotFound(f"there is no session or task {ids.task_id(session_id)}")
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
    """The sessions that its letters reached because the one that asked for them was closed."""
    rows = yield (
        "SELECT i.session_id FROM inbox i JOIN tasks t ON t.id = i.task_id AND t.generation = i.generation"
        " WHERE i.task_id = ? AND i.bubbled_from IS NOT NULL ORDER BY i.id DESC LIMIT 1",
        (session_id,),
    )
    return int(rows[0][0]) if rows else None


# --------------------------------------------------------------------------------------------------
# The sessions that a chain of messages between agents has passed, as far as one run continues it.
#
# A run continues the letter of another agent that it answers, and with the results of children that were sent out
# by such a run: a circle is one whether or not there was a child on the way.

FIELD = "hops"  #: in what a task is known to be asked for

_READ_NOW = (
    "SELECT t.spec FROM tasks t JOIN inbox i ON i.task_id = t.id WHERE t.root_id = ? AND t.spec LIKE ?"
    " AND i.session_id = ? AND i.taken_run = ? AND i.kind = 'announce' ORDER BY t.id"
)


def of_run(session: SessionRow) -> Tx[tuple[int, ...]]:
    """In the order they were passed; none without an open run."""
    if session.is_task:
        rows = yield "SELECT spec FROM tasks WHERE id = ?", (session.id,)
    elif session.run_id is None:
        return ()
    else:
        rows = yield _READ_NOW, (session.root_id, f'%"{FIELD}"%', session.id, session.run_id)
    passed = [hop for (spec,) in rows for hop in json.loads(spec).get(FIELD, ())]
    if session.letter_id is not None and session.run_id is not None:
        letter = yield "SELECT body FROM inbox WHERE id = ? AND kind = 'peer'", (session.letter_id,)
        passed += [hop for (body,) in letter for hop in session_tools.load(body).hops]
    return tuple(dict.fromkeys(passed))
