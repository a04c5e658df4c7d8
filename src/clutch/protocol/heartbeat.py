"""The timer of a main session that looks up by itself: armed, brought forward, rung.

`sessions.heartbeat_at` is the whole schedule. Ringing decides (`core.heartbeat.pulse`): later, not at all, or a
letter that has a turn of its own. Two workers may ring the same timer: the second finds it moved on.
"""

from __future__ import annotations

from dataclasses import dataclass

from clutch.core import heartbeat, keys
from clutch.core.agents import Heartbeat
from clutch.core.model import UNTIL_ANSWERED, LetterKind
from clutch.core.policy import Policy
from clutch.protocol import inbox, sessions
from clutch.protocol.sessions import SessionRow
from clutch.store.door import HINT, Tx

RUNG_MAX = 100  # timers that one look reports


@dataclass(frozen=True, slots=True)
class Ringing:
    session_id: int
    workspace: str | None


def arm(now: float, policy: Policy) -> Tx[None]:
    """The main sessions of agents that have a heartbeat. At a start, and when such a session is made; alone."""
    for agent_id in sorted(policy.agents):
        rules = policy.heartbeat_of(agent_id)
        if rules is not None:
            at = now + rules.every_s
            yield (
                "UPDATE sessions SET heartbeat_at = ? WHERE key = ?"
                " AND (heartbeat_at IS NULL OR heartbeat_at > ?)",
                (at, str(keys.main_key(agent_id)), at),
            )


def wake(now: float, policy: Policy, session_id: int) -> Tx[bool]:
    """Soon, and once for everybody who asks until then. False: there is nobody to wake."""
    session = yield from sessions.lock(session_id)
    if session is None or session.closed or session.is_task:
        return False
    soon = now + _rules(policy, session).coalesce_s
    yield (
        "UPDATE sessions SET heartbeat_at = ? WHERE id = ? AND (heartbeat_at IS NULL OR heartbeat_at > ?)",
        (soon, session_id, soon),
    )
    yield HINT, ("due", soon)
    return True


def ringing(now: float) -> Tx[list[Ringing]]:
    rows = yield (
        "SELECT id, workspace FROM sessions WHERE heartbeat_at <= ? ORDER BY heartbeat_at, id LIMIT ?",
        (now, RUNG_MAX),
    )
    return [Ringing(*row) for row in rows]


def ring(now: float, policy: Policy, session_id: int, checklist: str) -> Tx[bool]:
    """Keyed by the session. `checklist`: of its workspace, empty without one. True: it reads a letter now."""
    session = yield from sessions.lock(session_id)
    if session is None:
        return False
    (rang_at,) = (yield "SELECT heartbeat_at FROM sessions WHERE id = ?", (session_id,))[0]
    if rang_at is None or rang_at > now:
        return False
    rules = _rules(policy, session)
    pulse = heartbeat.pulse(
        rules,
        now=now,
        is_regular=policy.heartbeat_of(keys.agent_of(session.key)) is not None,
        has_reason=not session.closed and (bool(checklist) or (yield from _has_events(session_id))),
        free_at=(yield from _free_at(now, session)),
    )
    yield "UPDATE sessions SET heartbeat_at = ? WHERE id = ?", (pulse.next_at, session_id)
    if pulse.next_at is not None:
        yield HINT, ("due", pulse.next_at)
    if pulse.beats and not (yield from _is_on_its_way(session_id)):
        words = f"{rules.prompt}\n\n{checklist}".strip()
        key = f"heartbeat:{session_id}:{rang_at!r}"
        yield from inbox.say(now, policy, session_id, key, LetterKind.HEARTBEAT, words)
    return pulse.beats


def _rules(policy: Policy, session: SessionRow) -> Heartbeat:
    return policy.heartbeat_of(keys.agent_of(session.key)) or Heartbeat()


def _has_events(session_id: int) -> Tx[bool]:
    sql = "SELECT 1 FROM system_events WHERE session_id = ? AND taken_run IS NULL LIMIT 1"
    return bool((yield sql, (session_id,)))


def _free_at(now: float, session: SessionRow) -> Tx[float | None]:
    """When whoever is in a turn may be done with it; None = nobody is."""
    if session.run_id is None and session.owner is None:
        return now + heartbeat.LOOKS_AGAIN_S if session.paused else None
    rows = yield "SELECT parked_until FROM runs WHERE id = ?", (session.run_id or 0,)
    parked_until = rows[0][0] if rows else None
    return now + heartbeat.LOOKS_AGAIN_S if parked_until == UNTIL_ANSWERED else parked_until or now


def _is_on_its_way(session_id: int) -> Tx[bool]:
    """One that nobody has read yet says all that another would say."""
    sql = (
        "SELECT 1 FROM inbox WHERE session_id = ? AND state = 0 AND kind = 'heartbeat' AND taken_run IS NULL"
    )
    return bool((yield sql, (session_id,)))
