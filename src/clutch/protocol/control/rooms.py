"""A main session leaves and comes back."""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core.policy import Policy
from clutch.protocol import letters, sessions, tasks
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
