"""A main session leaves, comes back, begins anew, changes its model, is summarised."""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core.policy import Policy
from clutch.errors import NotFound
from clutch.protocol import letters, sessions, tasks
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx


def close_main(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """It is archived: what its children find waits for somebody to come back."""
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task or session.closed:
        return
    yield from tasks.stop(now, policy, session, "closed")
    session.closed, session.hold, session.hold_until = 1, 0, None
    yield from letters.unsee(session)
    yield from sessions.save(now, policy, session)


def open_main(now: float, policy: Policy, session_id: int) -> Tx[None]:
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task or not session.closed:
        return
    session.closed = 0
    rows = yield (
        "SELECT task_id FROM inbox WHERE session_id = ? AND state = 0 AND kind = 'announce' AND silent = 0",
        (session_id,),
    )
    back: dict[int, ev.Event] = {row[0]: ev.RequesterBack(now) for row in rows}
    yield from tasks.record_senders(now, policy, back)
    yield from sessions.save(now, policy, session)


def begin_anew(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """`/new`: the talk starts from an empty page; what was said before is kept. Its children go on."""
    session = yield from _main(session_id)
    if session.run_id is not None or session.owner is not None:
        yield from tasks.stop(now, policy, session, "a new talk")
    yield (
        "UPDATE inbox SET state = 1 WHERE session_id = ? AND state = 0 AND taken_seq IS NOT NULL"
        " AND kind <> 'announce'",
        (session_id,),
    )
    # Results it has read and not answered stand on the old page: they are told again on the new one.
    yield "UPDATE inbox SET taken_seq = NULL WHERE session_id = ? AND state = 0", (session_id,)
    session.base = session.head
    yield from sessions.save(now, policy, session)


def use_model(now: float, session_id: int, model: str | None) -> Tx[None]:
    """From its next turn on; None: as configured."""
    del now
    session = yield from _main(session_id)
    yield "UPDATE sessions SET model = ? WHERE id = ?", (model, session.id)


def want_summary(now: float, session_id: int) -> Tx[None]:
    """`/compact`: what was said so far is summarised before the next model call."""
    del now
    session = yield from _main(session_id)
    yield "UPDATE sessions SET compact_at = ? WHERE id = ?", (session.head, session.id)


def _main(session_id: int) -> Tx[SessionRow]:
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task:
        raise NotFound("there is no such main session")
    return session
