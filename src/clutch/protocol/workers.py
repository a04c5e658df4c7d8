"""Workers: who is alive, who owns which session, and what is due.

*Bury*: a dead worker's sessions are free again, interrupted runs first. *Claim*: due sessions get an
owner and a new fence, as many as their lane has room for. Both run alone. `peek` only reads, so an idle
process writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from clutch.core import effects as fx
from clutch.core import events as ev
from clutch.core.lifecycle import DESCENDANTS, step
from clutch.core.model import FINISHED, Delivery, Lane, Phase
from clutch.core.policy import Policy
from clutch.protocol import sessions, tasks, turns
from clutch.protocol.sessions import Stale
from clutch.store.door import HINT, Tx

NO_LANES: Final[Mapping[Lane, int]] = MappingProxyType({})
UNSEEN_MAX: Final = 200  # sessions with new letters that one look reports


def next_number(now: float) -> Tx[int]:
    """A number nobody ever had: a worker's name, and the block its ids are taken from."""
    del now
    rows = yield "UPDATE counters SET value = value + 1 WHERE name = 'process' RETURNING value", ()
    return int(rows[0][0])


def register(
    now: float,
    worker_id: int,
    lease_s: float,
    host: str,
    pid: int,
    version: str,
    lanes: Mapping[Lane, int] = NO_LANES,
) -> Tx[None]:
    """Whoever came last says how wide the lanes are."""
    yield (
        "INSERT INTO workers(id, lease_until, host, pid, version, started_at) VALUES(?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(id) DO UPDATE SET lease_until = excluded.lease_until",
        (worker_id, now + lease_s, host, pid, version, now),
    )
    yield from set_lanes(now, lanes)


def set_lanes(now: float, lanes: Mapping[Lane, int]) -> Tx[None]:
    del now
    for lane, cap in lanes.items():
        yield "UPDATE lanes SET cap = ? WHERE name = ? AND cap <> ?", (cap, lane.value, cap)


def heartbeat(now: float, worker_id: int, lease_s: float) -> Tx[None]:
    rows = yield "UPDATE workers SET lease_until = ? WHERE id = ? RETURNING id", (now + lease_s, worker_id)
    if not rows:
        raise Stale(f"worker {worker_id} was declared dead")


def leave(now: float, worker_id: int) -> Tx[None]:
    """An orderly end: it owns nothing any more, so nobody has to bury it."""
    # What it was sending: freeing it may have failed.
    yield "UPDATE outbox SET owner = NULL, due = ? WHERE owner = ?", (now, worker_id)
    yield "DELETE FROM workers WHERE id = ?", (worker_id,)


def rested(now: float, turns: Sequence[tuple[int, int]]) -> Tx[None]:
    """For whoever waits for it in another process: these turns, by session and fence, have ended."""
    del now
    for session_id, fence in turns:
        yield HINT, ("rested", session_id, fence)


def disown(now: float, worker_id: int, held: Sequence[Claimed]) -> Tx[None]:
    """A claim whose answer was lost may have succeeded: what this worker does not know it owns is free again."""
    del now
    rows = yield "SELECT id, fence FROM sessions WHERE owner = ? ORDER BY depth, id {lock}", (worker_id,)
    yield from _free([row[0] for row in rows if Claimed(*row) not in held])


def bury(now: float, worker_id: int | None = None) -> Tx[list[int]]:
    """Those whose lease is over, or the one that is known to be dead: its process lock is free."""
    rows = yield (
        "DELETE FROM workers WHERE lease_until < ? OR id = ? RETURNING id",
        (now, -1 if worker_id is None else worker_id),
    )
    dead = sorted(row[0] for row in rows)
    if dead:
        rows = yield "SELECT id FROM sessions WHERE owner {any} ORDER BY depth, id {lock}", (dead,)
        yield from _free([row[0] for row in rows])
        yield "UPDATE outbox SET owner = NULL, due = ? WHERE owner {any}", (now, dead)
    return dead


def _free(session_ids: list[int]) -> Tx[None]:
    """Locked before, ancestors first. Interrupted runs go before everything that is merely due."""
    if session_ids:
        yield "UPDATE sessions SET owner = NULL, fence = fence + 1, due = 0 WHERE id {any}", (session_ids,)
        yield HINT, ("due", 0.0)


def bury_all_but(now: float, worker_id: int) -> Tx[list[int]]:
    """On SQLite whoever holds the process lock is the only one alive."""
    dead: list[int] = []
    for (gone,) in (yield "SELECT id FROM workers WHERE id <> ? ORDER BY id", (worker_id,)):
        dead += yield from bury(now, gone)
    return dead


@dataclass(frozen=True, slots=True)
class Claimed:
    session_id: int
    fence: int
    #: fixed at birth; going on may give up a call they paid for
    purses: str = field(default="", compare=False)
    model: str | None = field(default=None, compare=False)
    agent_id: str = field(default="", compare=False)


LANES = tuple(sorted(Lane))


def claim(now: float, worker_id: int, room: int, lanes: Sequence[Lane] = LANES) -> Tx[list[Claimed]]:
    """Oldest due first. The lane's row is locked, so that two workers never fill the same slot."""
    if not (yield "SELECT 1 FROM workers WHERE id = ? {lock}", (worker_id,)):
        raise Stale(f"worker {worker_id} was declared dead")
    claimed: list[Claimed] = []
    for lane in lanes:
        left = room - len(claimed)
        if left > 0:
            claimed += yield from _claim_lane(now, worker_id, lane, left)
    return claimed


def _claim_lane(now: float, worker_id: int, lane: Lane, room: int) -> Tx[list[Claimed]]:
    rows = yield "SELECT cap FROM lanes WHERE name = ? {lock}", (lane.value,)
    cap = int(rows[0][0])
    used = yield "SELECT COUNT(*) FROM sessions WHERE lane = ? AND owner IS NOT NULL", (lane.value,)
    free = min(cap - used[0][0], room)
    if free <= 0:
        return []
    rows = yield (
        # Materialized: PostgreSQL may run a plain subquery again for every row, and would then pass the limit.
        "WITH first AS MATERIALIZED (SELECT id FROM sessions WHERE lane = ? AND owner IS NULL AND due <= ?"
        " ORDER BY due, id LIMIT ? {skip}) UPDATE sessions SET owner = ?, fence = fence + 1, due = NULL,"
        " progress_at = COALESCE(progress_at, ?) WHERE id IN (SELECT id FROM first) RETURNING id, fence,"
        " purses, model, agent_id",
        (lane.value, now, free, worker_id, now),
    )
    return [Claimed(*row) for row in sorted(rows)]


@dataclass(frozen=True, slots=True)
class Prospect:
    """What there is to do, and when there will be more."""

    due_at: float | None  #: a session that a lane has room for
    due_lanes: tuple[Lane, ...]  #: lanes with room for one that is due already
    alarms: tuple[int, ...]  #: tasks whose timer is due
    alarm_at: float | None
    beat_at: float | None  #: a session looks up by itself then
    unseen: tuple[int, ...]  #: sessions with letters the mailman has not looked at
    others: tuple[int, ...]  #: workers beside this one
    lease_at: float | None  #: when the next lease of one of them is over


def peek(now: float, worker_id: int) -> Tx[Prospect]:
    due = yield from _next_due(now)
    alarms = yield "SELECT id FROM tasks WHERE wake_at <= ? ORDER BY wake_at, id LIMIT 200", (now,)
    timers = yield (
        "SELECT (SELECT MIN(wake_at) FROM tasks WHERE wake_at IS NOT NULL),"
        " (SELECT MIN(heartbeat_at) FROM sessions WHERE heartbeat_at IS NOT NULL)",
        (),
    )
    unseen = yield (
        "SELECT DISTINCT session_id FROM inbox WHERE seen = 0 ORDER BY session_id LIMIT ?",
        (UNSEEN_MAX,),
    )
    others = yield "SELECT id, lease_until FROM workers WHERE id <> ? ORDER BY id", (worker_id,)
    return Prospect(
        min(due.values(), default=None),
        tuple(lane for lane, moment in due.items() if moment <= now),
        tuple(row[0] for row in alarms),
        timers[0][0],
        timers[0][1],
        tuple(row[0] for row in unseen),
        tuple(row[0] for row in others),
        min((row[1] for row in others), default=None),
    )


def _next_due(now: float) -> Tx[dict[Lane, float]]:
    """The earliest of each lane; one that is due but has no room in its lane waits for a turn to end."""
    moments = {}
    for lane in LANES:
        rows = yield (
            "SELECT MIN(due) FROM sessions WHERE lane = ? AND owner IS NULL AND due IS NOT NULL",
            (lane.value,),
        )
        moment = rows[0][0]
        if moment is not None and (moment > now or (yield from _has_room(lane))):
            moments[lane] = moment
    return moments


def _has_room(lane: Lane) -> Tx[bool]:
    rows = yield (
        "SELECT cap - (SELECT COUNT(*) FROM sessions WHERE lane = lanes.name AND owner IS NOT NULL)"
        " FROM lanes WHERE name = ?",
        (lane.value,),
    )
    return bool(rows[0][0] > 0)


def _ring_without_session(now: float, policy: Policy, task_id: int) -> Tx[None]:
    """A dead letter needs none. Who works waits for the sweeper, which adopts it; whoever is over waits for nothing."""
    known = yield from tasks.load([task_id])
    if not known:  # a spawn that somebody else has undone
        return
    (task,) = known
    if task.delivery is Delivery.UNDELIVERED:
        yield from tasks.record_senders(now, policy, {task_id: ev.Woke(now)})
    else:
        later = None if task.phase in FINISHED else now + policy.keeping.sweep_s
        yield "UPDATE tasks SET wake_at = ? WHERE id = ?", (later, task_id)


def ring(now: float, policy: Policy, task_id: int) -> Tx[str | None]:
    """A task's timer is due. A text: its spawn took too long, and somebody must undo it, alone."""
    session = yield from sessions.lock(task_id)
    if session is None:
        yield from _ring_without_session(now, policy, task_id)
        return None
    rows = yield "SELECT phase, reason, deadline_at FROM tasks WHERE id = ?", (task_id,)
    phase, reason, deadline_at = rows[0]
    if phase == Phase.SPAWNING:
        overdue = step((yield from tasks.load_one(task_id)), ev.Woke(now), policy).effects
        return next((effect.reason for effect in overdue if isinstance(effect, fx.Unmake)), None)
    text, progress_at, person_waits = None, None, False
    if phase == Phase.RUNNING and deadline_at is not None and now >= deadline_at and session.run_id:
        text = yield from turns.partial(task_id, session.run_id)
    if phase in FINISHED:
        progress_at = session.progress_at  # of a session that stayed
    if phase == Phase.ANNOUNCE_DEFERRED and reason == DESCENDANTS:
        progress_at = yield from turns.progress_below(task_id)
        person_waits = yield from turns.person_waits(task_id)
    woke = ev.Woke(now, session.owner is not None, progress_at, person_waits, text)
    yield from tasks.record(now, policy, session, woke)
    yield from sessions.save(now, policy, session)
    return None
