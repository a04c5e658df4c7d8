"""System events: what happened around a session, shown to its model in the next turn, whatever that is about.

At most so many wait; when there are more, the oldest go. They are read by `context.around` and consumed with
the answer of the turn that showed them. An event wakes nobody: `heartbeat.wake` does.
"""

from __future__ import annotations

from clutch.core import keys
from clutch.core.agents import Heartbeat
from clutch.core.policy import Policy
from clutch.protocol import sessions
from clutch.store.door import Tx


def notify(now: float, policy: Policy, session_id: int, text: str) -> Tx[bool]:
    """Keyed by the session. False: the newest that waits says the same, or nobody is there to read it."""
    session = yield from sessions.lock(session_id)
    if session is None or session.closed:
        return False
    events_max = (policy.heartbeat_of(keys.agent_of(session.key)) or Heartbeat()).events_max
    rows = yield (
        "SELECT id, body FROM system_events WHERE session_id = ? AND taken_run IS NULL ORDER BY id DESC LIMIT ?",
        (session_id, events_max),
    )
    if rows and rows[0][1] == text:
        return False
    if len(rows) == events_max:
        yield (
            "DELETE FROM system_events WHERE session_id = ? AND taken_run IS NULL AND id <= ?",
            (session_id, rows[-1][0]),
        )
    yield "INSERT INTO system_events(session_id, body, at) VALUES(?, ?, ?)", (session_id, text, now)
    return True
