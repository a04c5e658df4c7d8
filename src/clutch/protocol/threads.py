"""People in a thread that belongs to a session: what they say goes there, and they may take the thread back. Alone."""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core.model import Route
from clutch.core.policy import Policy
from clutch.errors import NotFound
from clutch.protocol import bindings, control, inbox, sessions, tasks
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


def focus(now: float, policy: Policy, session_id: int, thread: Route) -> Tx[None]:
    """The thread is this session's from now on, whoever had it before."""
    del policy
    before = yield from bindings.session_of(now, *bindings.name(thread))
    wanted = [session_id] if before is None else [before, session_id]
    found = {int(session.id): session for session in (yield from sessions.lock_all(wanted))}
    if session_id not in found or found[session_id].closed:
        raise NotFound("there is no such session, or it has ended")
    if before is not None and before in found:
        yield from bindings.unbind(found[before])
    yield from bindings.bind(now, found[session_id], thread)


def unfocus(now: float, policy: Policy, session_id: int, actor: str) -> Tx[bool]:
    """It has no thread any more; one that stayed only for that ends. False: it had none."""
    session = yield from sessions.lock(session_id)
    if session is None or not session.bound:
        return False
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.SessionEnded(now, UNFOCUSED), actor)
    if session.bound:
        yield from bindings.unbind(session)
    yield from sessions.save(now, policy, session)
    return True
