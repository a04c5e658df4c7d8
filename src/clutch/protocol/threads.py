"""People in a thread that belongs to a session: what they say goes there, and they may take the thread back. Alone."""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core.model import Route
from clutch.core.policy import Policy
from clutch.errors import NotFound
from clutch.protocol import bindings, control, inbox, sessions, tasks
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx

UNFOCUSED = "unfocused"


def heard(
    now: float, policy: Policy, channel: str, account: str, thread: str, idem: str, text: str
) -> Tx[int]:
    """Somebody wrote in a thread. The session it belongs to. Raises NotFound when it belongs to none,
    IdempotencyConflict for other words under a key that was used."""
    session_id = yield from bindings.session_of(now, channel, account, thread)
    session = None if session_id is None else (yield from sessions.lock(session_id))
    if session is None or session.closed:
        raise NotFound(f"no session has the thread {thread[:80]!r} of {channel[:40]!r}")
    yield (
        "UPDATE bindings SET used_at = ? WHERE channel = ? AND account = ? AND thread = ?",
        (now, channel, account, thread),
    )
    if session.is_task:
        yield from control.send(now, policy, session.id, idem, text, f"thread {channel}:{thread}")
    else:
        yield from inbox.say_once(now, policy, session.id, idem, text, "")
    return int(session.id)


def focus(now: float, policy: Policy, session_id: int, thread: Route, actor: str) -> Tx[None]:
    """The thread is this session's from now on, whoever had it before."""
    before = yield from bindings.session_of(now, *bindings.name(thread))
    wanted = [session_id] if before is None else [before, session_id]
    found = {int(session.id): session for session in (yield from sessions.lock_all(wanted))}
    if session_id not in found or found[session_id].closed:
        raise NotFound("there is no such session, or it has ended")
    if before is not None and before != session_id and before in found:
        yield from _lose(now, policy, found[before], thread, actor)
    yield from bindings.bind(now, found[session_id], thread)


def unfocus(now: float, policy: Policy, thread: Route, actor: str) -> Tx[bool]:
    """The thread is nobody's any more. False: it was nobody's."""
    owner = yield from bindings.session_of(now, *bindings.name(thread))
    session = None if owner is None else (yield from sessions.lock(owner))
    if session is None:
        return False
    yield from _lose(now, policy, session, thread, actor)
    return True


def _lose(now: float, policy: Policy, session: SessionRow, thread: Route, actor: str) -> Tx[None]:
    """One that stayed only for its threads ends with the last."""
    yield from bindings.let_go(session, thread)
    if session.is_task and not session.bound:
        yield from tasks.record(now, policy, session, ev.SessionEnded(now, UNFOCUSED), actor)
        yield from sessions.save(now, policy, session)
