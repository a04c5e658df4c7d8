"""Waking sessions, keyed by the receiver: new letters are marked as seen, and the session's due time is computed.

A closed session's letters move one level up. A lost hint costs time only: `seen = 0` is indexed. How letters get
into a transcript is in `delivery`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clutch.core import agents, delivery, ids
from clutch.core import events as ev
from clutch.core.agents import Heartbeat
from clutch.core.model import LetterKind, Reason, RunState
from clutch.core.policy import Policy
from clutch.errors import IdempotencyConflict
from clutch.store.transaction import HINT, Tx
from clutch.transactions import inbox, sessions, tasks
from clutch.transactions.conditions import IS_OPEN, IS_WORKING
from clutch.transactions.sessions import SessionRow


def say(
    now: float, policy: Policy, session_id: int, idem: str, kind: LetterKind, *, body: str, route: str = ""
) -> Tx[None]:
    """Post a letter and wake its receiver, in a transaction that may lock the receiver.

    `route`: where the user wrote it and wants the answer; empty: the route of the session."""
    yield from inbox.insert(now, session_id, idem, kind, body, route=route)
    yield from wake(now, policy, session_id)


def say_once(
    now: float, policy: Policy, session_id: int, idem: str, kind: LetterKind, *, body: str, route: str
) -> Tx[None]:
    """Post a user's message. Raises IdempotencyConflict when its key was used for another message or a command."""
    yield from say(now, policy, session_id, idem, kind, body=body, route=route)
    yield from is_known(idem, body)


def is_known(idem: str, body: str) -> Tx[bool]:
    """Whether this message was posted before. Raises IdempotencyConflict when its key was used for another message or a
    command: neither of the two may be lost in silence."""
    rows = yield "SELECT body FROM inbox WHERE idem = ?", (idem,)
    is_other = rows and rows[0][0] != body
    if is_other or (yield "SELECT 1 FROM outbox WHERE idem = ?", (f"command:{idem}",)):
        raise IdempotencyConflict()
    return bool(rows)


def root_of(now: float, idem: str) -> Tx[int | None]:
    """Return the main session at the top of the session that got this letter."""
    del now
    rows = yield (
        "SELECT s.root_id FROM inbox i JOIN sessions s ON s.id = i.session_id WHERE i.idem = ?",
        (idem,),
    )
    return int(rows[0][0]) if rows else None


def is_said(now: float, idem: str) -> Tx[bool]:
    del now
    return bool((yield "SELECT 1 FROM inbox WHERE idem = ?", (idem,)))


def wake(now: float, policy: Policy, session_id: int) -> Tx[bool]:
    """True: no session is left for the letters; the caller must run `orphan` alone."""
    session = yield from sessions.lock(session_id)
    if session is None:
        return True
    if session.closed:
        return (yield from _pass_on(session))
    yield from inbox.mark_seen(session_id)
    if session.owner is None:
        yield from sessions.reschedule(now, policy, session)
    yield from put_off(now, policy, session)
    return False


def put_off(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    """Record why results wait that this session does not read now: when they arrive, and when a turn ends at night.

    A session that is about to read them costs no statement."""
    hours = policy.waking_hours(session.agent_id, session.depth)
    if session.run_id is None and hours is None:
        return
    rows = yield (
        "SELECT t.id, t.generation, t.expects_completion FROM inbox i JOIN tasks t ON t.id = i.task_id"  # noqa: S608
        f" AND t.generation = i.generation WHERE i.session_id = ? AND i.{IS_OPEN} AND i.kind = 'announce'"
        " AND i.silent = 0 AND i.taken_run IS NULL AND i.ready_at <= ? AND t.delivery IN ('waiting', 'deferred')"
        " AND t.delivery_reason {any} ORDER BY t.id",
        (session.id, now, [""] if session.run_id is not None else ["", Reason.BUSY]),
    )
    rules = delivery.applied(policy.announcing, session.queue)
    events: dict[int, ev.Event] = {}
    for task_id, generation, expects_completion in rows:
        why = delivery.put_off(
            now=now,
            has_open_run=session.run_id is not None,
            is_held=bool(session.hold),
            expects_completion=bool(expects_completion),
            rules=rules,
            hours=hours,
        )
        if why is not None:
            events[task_id] = ev.Deferred(now, why.reason, generation, why.until)
    yield from tasks.record_senders(now, policy, events)


def set_queue(now: float, policy: Policy, session_id: int, queue: str | None) -> Tx[bool]:
    """A session's own way to queue (`core.delivery`); None: as configured again. What waits is looked at anew."""
    session = yield from sessions.lock(session_id)
    if session is None or session.closed:
        return False
    session.queue = queue
    yield from sessions.set_column(session_id, "queue", queue)
    if session.owner is None:
        yield from sessions.reschedule(now, policy, session)
    return True


def worth_waking(now: float, session_ids: Sequence[int]) -> Tx[list[int]]:
    """Leave out held sessions of which a child still works: their due time does not change.

    A read. Of a fan-out only the last letter costs a transaction; it marks the others as seen, too. No session is
    forgotten: the child that works posts a letter in its turn, and unseen letters are looked at in every round."""
    del now
    rows = yield (
        "SELECT id FROM sessions WHERE id {any} AND hold = 1 AND closed = 0"  # noqa: S608 (constant words)
        f" AND EXISTS (SELECT 1 FROM tasks WHERE requester_id = sessions.id AND {IS_WORKING} AND outcome IS NULL)"
        f" AND NOT EXISTS (SELECT 1 FROM inbox WHERE session_id = sessions.id AND seen = 0 AND {IS_OPEN}"
        " AND (kind <> 'announce' OR taken_seq IS NOT NULL))",
        (list(session_ids),),
    )
    asleep = {row[0] for row in rows}
    return [session_id for session_id in session_ids if session_id not in asleep]


def _pass_on(session: SessionRow) -> Tx[bool]:
    """The letters of a closed session. True: results are left for which there is no parent."""
    if session.parent_id is not None:
        yield from inbox.move_up(session, session.parent_id)
    yield from inbox.void_own(session)
    yield from inbox.mark_closed_seen(session.id)
    if session.parent_id is not None:
        return False
    left = yield f"SELECT 1 FROM inbox WHERE session_id = ? AND {IS_OPEN} LIMIT 1", (session.id,)  # noqa: S608
    return bool(left)


def orphan(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """No session is left above: the results wait until one is opened again, then they are given up. Alone."""
    session = yield from sessions.lock(session_id)
    if session is not None and not session.closed:
        return
    rows = yield from inbox.mark_orphaned(session_id)
    told = sorted(
        (generation, task_id)
        for task_id, kind, silent, generation in rows
        if kind == "announce" and not silent
    )
    # Of two results of one task the newer has the say.
    gone: dict[int, ev.Event] = {task_id: ev.RequesterGone(now, generation) for generation, task_id in told}
    yield from tasks.record_senders(now, policy, gone)


# --------------------------------------------------------------------------------------------------
# The timer of a main session that looks up by itself: armed, brought forward, rung.
#
# `sessions.heartbeat_at` is the whole schedule. Ringing decides (`core.agents.pulse`): later, not at all, or a
# letter that has a turn of its own. Two workers may ring the same timer: the second finds it moved on.

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
            yield from sessions.beat_by(now + rules.every_s, "key", str(ids.main_key(agent_id)))


def wake_for_heartbeat(now: float, policy: Policy, session_id: int) -> Tx[bool]:
    """Bring the next heartbeat forward; requests until then share it. False: there is no such open main session."""
    session = yield from sessions.lock(session_id)
    if session is None or session.closed or session.is_task:
        return False
    soon = now + _rules(policy, session).coalesce_s
    yield from sessions.beat_by(soon, "id", session_id)
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
    pulse = agents.pulse(
        rules,
        now=now,
        is_regular=policy.heartbeat_of(ids.agent_of(session.key)) is not None,
        has_reason=not session.closed and (bool(checklist) or (yield from _has_events(session_id))),
        free_at=(yield from _free_at(now, session)),
    )
    yield from sessions.set_column(session_id, "heartbeat_at", pulse.next_at)
    if pulse.next_at is not None:
        yield HINT, ("due", pulse.next_at)
    if pulse.beats and not (yield from _is_on_its_way(session_id)):
        words = f"{rules.prompt}\n\n{checklist}".strip()
        key = f"heartbeat:{session_id}:{rang_at!r}"
        yield from say(now, policy, session_id, key, LetterKind.HEARTBEAT, body=words)
    return pulse.beats


def _rules(policy: Policy, session: SessionRow) -> Heartbeat:
    return policy.heartbeat_of(ids.agent_of(session.key)) or Heartbeat()


def _has_events(session_id: int) -> Tx[bool]:
    sql = "SELECT 1 FROM system_events WHERE session_id = ? AND taken_run IS NULL LIMIT 1"
    return bool((yield sql, (session_id,)))


def _free_at(now: float, session: SessionRow) -> Tx[float | None]:
    """When the turn of this session may be over; None: it is in none."""
    if session.run_id is None and session.owner is None:
        return now + agents.LOOKS_AGAIN_S if session.paused else None
    rows = yield "SELECT state, parked_until FROM runs WHERE id = ?", (session.run_id or 0,)
    state, parked_until = rows[0] if rows else (None, None)
    return now + agents.LOOKS_AGAIN_S if state == RunState.ASKING else parked_until or now


def _is_on_its_way(session_id: int) -> Tx[bool]:
    """Whether a heartbeat waits to be read: a second one would say nothing more."""
    sql = (
        f"SELECT 1 FROM inbox WHERE session_id = ? AND {IS_OPEN} AND kind = 'heartbeat' AND taken_run IS NULL"  # noqa: S608
    )
    return bool((yield sql, (session_id,)))


# --------------------------------------------------------------------------------------------------
# System events: what happened around a session, shown to its model in the next turn, whatever that is about.
#
# At most so many wait; when there are more, the oldest go. They are read by `read.transcripts` and consumed with
# the answer of the turn that showed them. An event wakes no session: `wake_for_heartbeat` does.


def notify(now: float, policy: Policy, session_id: int, text: str) -> Tx[bool]:
    """Keyed by the session. False: the newest one that waits has the same text, or the session is closed."""
    session = yield from sessions.lock(session_id)
    if session is None or session.closed:
        return False
    events_max = (policy.heartbeat_of(ids.agent_of(session.key)) or Heartbeat()).events_max
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


def consume_events(session_id: int, run_id: int, upto: int) -> Tx[None]:
    """With the answer of the turn that showed them. Older ones that there was no room for go as well."""
    yield (
        "UPDATE system_events SET taken_run = ? WHERE session_id = ? AND taken_run IS NULL AND id <= ?",
        (run_id, session_id, upto),
    )


def forget_events(session_id: int) -> Tx[None]:
    yield "DELETE FROM system_events WHERE session_id = ?", (session_id,)
