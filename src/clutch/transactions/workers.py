"""Workers: who is alive, what a dead one held, and the timers of tasks.

*Bury*: a dead worker's sessions are free again, interrupted runs first; it runs alone. What a worker finds and claims
is in `claims`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, NoReturn

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.delivery import CLOCK_SLACK_S, is_put_back, letter_wait_max_s, put_right, timer_max_s
from clutch.core.lifecycle import step
from clutch.core.model import FINISHED, Delivery, Lane, Phase, Reason
from clutch.core.policy import Policy
from clutch.core.spawn import SpawnRefusal
from clutch.core.workers import Mark, Sign
from clutch.errors import ClutchError
from clutch.store.transaction import HINT, Tx
from clutch.transactions import claims, inbox, outbox, runs, sessions, tasks, turn, turn_begin, usage
from clutch.transactions.claims import Claimed
from clutch.transactions.conditions import IS_OPEN
from clutch.transactions.read.move import check_open
from clutch.transactions.sessions import NewMain, SessionRow, Stale
from clutch.transactions.spawn import Accepted, ChildRequest, spawn

NO_LANES: Final[Mapping[Lane, int]] = MappingProxyType({})


def next_number(now: float) -> Tx[int]:
    """A number that was never used: a worker's name, and the block its ids are taken from. Raises StoreMoved."""
    yield from check_open(now)
    return (yield from next_value("process"))


def next_value(counter: Literal["process", "mcp"]) -> Tx[int]:
    rows = yield "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value", (counter,)
    return int(rows[0][0])


def register(
    now: float,
    worker_id: int,
    lease_s: float,
    host: str,
    pid: int,
    *,
    version: str,
    lanes: Mapping[Lane, int] = NO_LANES,
    is_draining: bool = False,
    place: str | None = None,
) -> Tx[None]:
    """The worker that registers last sets the capacity of the lanes. `place`: its state directory, where several
    machines share the database. Raises StoreMoved."""
    yield from check_open(now)
    yield (
        "INSERT INTO workers(id, lease_until, lease_s, host, pid, version, started_at, seen_at, draining, place)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(id) DO UPDATE SET lease_until = excluded.lease_until, seen_at = excluded.seen_at",
        (worker_id, now + lease_s, lease_s, host, pid, version, now, now, int(is_draining), place),
    )
    yield from claims.set_lanes(now, lanes)


class HeartbeatAnswer(NamedTuple):
    """What a heartbeat brings back. `clock`: the database's; None where it has none."""

    clock: float | None
    is_draining: bool
    others: Mapping[int, Sign]  #: workers beside this one


#: `core.workers.Mark` of a row
_MARK: Final = "workers.lease_until || ' ' || workers.beats"


def heartbeat(
    now: float, worker_id: int, lease_s: float, clock_offset: float | None = None
) -> Tx[HeartbeatAnswer]:
    """One statement, which may run twice (`Database.urgent`): most of what an idle gateway sends are its heartbeats.

    `clock_offset`: how far the clock of this machine is ahead of the database's."""
    rows = yield (
        "UPDATE workers SET lease_until = ?, lease_s = ?, seen_at = ?, clock_offset = ?, beats = beats + 1"
        " WHERE id = ? RETURNING {clock}, draining,"
        " (SELECT {joined}(o.id || ' ' || COALESCE(o.lease_s, 0) || ' ' || o.lease_until || ' ' || o.beats, ',')"
        " FROM workers o WHERE o.id <> workers.id)",
        (now + lease_s, lease_s, now, clock_offset, worker_id),
    )
    if not rows:
        raise Stale(f"worker {worker_id} was declared dead")
    clock, is_draining, others = rows[0]
    return HeartbeatAnswer(clock, bool(is_draining), dict(map(_sign, others.split(",") if others else ())))


def _sign(text: str) -> tuple[int, Sign]:
    number, lease_s, mark = text.split(" ", 2)
    return int(number), Sign(mark, float(lease_s) or None)


def drain(now: float, worker_id: int, is_draining: bool) -> Tx[None]:
    """From the commit on the worker claims nothing; its next heartbeat tells it to hand over what it runs."""
    del now
    yield "SELECT 1 FROM workers WHERE id = ? {lock}", (worker_id,)  # after a claim that is under way
    yield "UPDATE workers SET draining = ? WHERE id = ?", (int(is_draining), worker_id)


def leave(now: float, worker_id: int) -> Tx[None]:
    """An orderly end: no worker has to bury it. What it owns or was sending is freed: a release may have failed."""
    yield from disown(now, worker_id, ())
    yield from outbox.free_all(now, [worker_id])
    yield "DELETE FROM workers WHERE id = ?", (worker_id,)


def rested(now: float, turns: Sequence[tuple[int, int]]) -> Tx[None]:
    """Notify other processes that these turns, by session and fence, have ended."""
    del now
    for session_id, fence in turns:
        yield HINT, ("rested", session_id, fence)


def disown(now: float, worker_id: int, held: Sequence[Claimed]) -> Tx[None]:
    """A claim whose answer was lost may have succeeded: what this worker does not know it owns is free again."""
    del now
    rows = yield "SELECT id, fence FROM sessions WHERE owner = ? ORDER BY depth, id {lock}", (worker_id,)
    yield from _free([row[0] for row in rows if Claimed(*row) not in held])


def thaw(now: float, policy: Policy, worker_id: int, lost_s: float) -> Tx[None]:
    """This worker was frozen for so long: the runs it works on get the time back. One that began or took a step since
    gets no more than the time since then. Alone: it writes many sessions."""
    rows = yield (
        "SELECT s.id FROM sessions s JOIN tasks t ON t.id = s.id WHERE s.owner = ? AND t.phase = 'running'"
        " AND t.deadline_at IS NOT NULL ORDER BY s.depth, s.id",
        (worker_id,),
    )
    for session in (yield from sessions.lock_all([row[0] for row in rows])):
        lost = min(lost_s, now - (session.progress_at or now))
        if session.owner == worker_id and lost > 0:
            yield from tasks.record(now, policy, session, ev.Thawed(now, lost))


def bury(now: float, worker_id: int, mark: Mark | None = None) -> Tx[list[int]]:
    """Release what this worker held. `mark`: as it was when the worker was found dead (`core.workers`); a heartbeat
    since then has changed it, and nothing happens."""
    found = yield f"SELECT {_MARK} FROM workers WHERE id = ? {{lock}}", (worker_id,)  # noqa: S608
    if not found or mark not in (None, found[0][0]):
        return []
    yield "DELETE FROM workers WHERE id = ?", (worker_id,)
    rows = yield "SELECT id FROM sessions WHERE owner = ? ORDER BY depth, id {lock}", (worker_id,)
    yield from _free([row[0] for row in rows])
    yield from outbox.free_all(now, [worker_id])
    return [worker_id]


def _free(session_ids: list[int]) -> Tx[None]:
    """Locked before, ancestors first. Interrupted runs go before everything that is merely due."""
    if session_ids:
        yield from sessions.free(session_ids)
        yield HINT, ("due", 0.0)


def bury_all_but(now: float, worker_id: int) -> Tx[list[int]]:
    """On SQLite the process with the lock is the only one alive."""
    dead: list[int] = []
    for (gone,) in (yield "SELECT id FROM workers WHERE id <> ? ORDER BY id", (worker_id,)):
        dead += yield from bury(now, gone)
    return dead


def _ring_without_session(now: float, policy: Policy, task_id: int) -> Tx[None]:
    """A dead letter needs no session. Of the others, a task that works waits for the sweeper, which adopts it."""
    known = yield from tasks.load([task_id])
    if not known:  # a spawn that another process has undone
        return
    (task,) = known
    if task.delivery is Delivery.UNDELIVERED:
        yield from tasks.record_senders(now, policy, {task_id: ev.Woke(now)})
    else:
        later = None if task.phase in FINISHED else now + policy.keeping.sweep_s
        yield from tasks.set_column(task_id, "wake_at", later)


def ring(now: float, policy: Policy, task_id: int) -> Tx[str | None]:
    """A task's timer is due. Returns the reason when its spawn took too long: the caller must undo it, alone."""
    session = yield from sessions.lock(task_id)
    if session is None:
        yield from _ring_without_session(now, policy, task_id)
        return None
    rows = yield "SELECT phase, reason, deadline_at FROM tasks WHERE id = ?", (task_id,)
    phase, reason, deadline_at = rows[0]
    if phase == Phase.SPAWNING:
        overdue = step((yield from tasks.load_one(task_id)), ev.Woke(now), policy).effects
        return next((effect.reason for effect in overdue if isinstance(effect, fx.Unmake)), None)
    if phase == Phase.RUNNING and deadline_at is not None and now >= deadline_at:
        yield from turn.time_out(now, policy, session)
        return None
    progress_at, person_waits = None, False
    if phase in FINISHED:
        progress_at = session.progress_at  # of a session that stayed
    if phase == Phase.ANNOUNCE_DEFERRED and reason == Reason.DESCENDANTS:
        progress_at = yield from turn_begin.progress_below(task_id)
        person_waits = yield from turn_begin.person_waits(task_id)
    woke = ev.Woke(now, session.owner is not None, progress_at, person_waits)
    yield from tasks.record(now, policy, session, woke)
    yield from sessions.save(now, policy, session)
    return None


# --------------------------------------------------------------------------------------------------
# What lies ahead: sessions that work or are about to, and whether any work needs a gateway.

SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class Working:
    """`label` and `phase` are of its task; None for a main agent's own turn."""

    session_id: int
    session_key: str
    label: str | None
    phase: str | None


def working(now: float, within_s: float) -> Tx[list[Working]]:
    """Sessions that are owned, due by then, or have unseen letters. One that waits for a user is not among them."""
    rows = yield (
        "SELECT s.id, s.key, t.label, t.phase FROM sessions s LEFT JOIN tasks t ON t.id = s.id WHERE s.id IN ("
        " SELECT id FROM sessions WHERE owner IS NOT NULL"
        " UNION SELECT id FROM sessions WHERE owner IS NULL AND due IS NOT NULL AND due <= ?"
        " UNION SELECT session_id FROM inbox WHERE seen = 0)"
        " ORDER BY s.depth, s.id LIMIT ?",
        (now + within_s, SHOWN_MAX),
    )
    return [Working(*row) for row in rows]


def is_anything(now: float, channels: Sequence[str]) -> Tx[bool]:
    """Something that happens only while a gateway is there. `channels`: those it sends to."""
    del now
    rows = yield (
        "SELECT 1 FROM sessions WHERE owner IS NOT NULL"
        " UNION ALL SELECT 1 FROM sessions WHERE owner IS NULL AND due IS NOT NULL"
        " UNION ALL SELECT 1 FROM sessions WHERE heartbeat_at IS NOT NULL"
        " UNION ALL SELECT 1 FROM schedules WHERE next_at IS NOT NULL"
        " UNION ALL SELECT 1 FROM inbox WHERE seen = 0"
        # The timer of one that is over, a dead letter's last day, can wait for the next gateway.
        " UNION ALL SELECT 1 FROM tasks WHERE wake_at IS NOT NULL"
        " AND phase <> 'completed' AND phase <> 'completed_giveup' LIMIT 1",
        (),
    )
    for channel in () if rows else channels:
        rows = yield "SELECT 1 FROM outbox WHERE due IS NOT NULL AND channel = ? LIMIT 1", (channel,)
        if rows:
            break
    return bool(rows)


# --------------------------------------------------------------------------------------------------
# Health of the gateway: how much runs, how much waits, and how much is undelivered.


@dataclass(frozen=True, slots=True)
class GatewayHealth:
    schema: int
    workers: int
    running: int  #: sessions with an owner
    queued: int  #: tasks that wait for their turn
    undelivered: int


def health(now: float) -> Tx[GatewayHealth]:
    del now
    rows = yield (
        "SELECT (SELECT value FROM meta WHERE name = 'schema_version'),"
        " (SELECT COUNT(*) FROM workers),"
        " (SELECT COUNT(*) FROM sessions WHERE owner IS NOT NULL),"
        # The other phases repeat the condition of the index of what is alive.
        " (SELECT COUNT(*) FROM tasks WHERE phase = 'queued'"
        " AND phase <> 'cleanup_pending' AND phase <> 'completed' AND phase <> 'completed_giveup'),"
        " (SELECT COUNT(*) FROM tasks WHERE delivery = 'undelivered')",
        (),
    )
    return GatewayHealth(*map(int, rows[0]))


# --------------------------------------------------------------------------------------------------
# Waits that were written down under a clock that was ahead: once the clock is put right they must not last that long.
#
# A row tells by itself that its clock was wrong: it was written later than now, or its timer is further ahead than any
# timer of its kind. Correcting it removes the sign, so that nothing is corrected twice.

FOUND_MAX = 200  # sessions, and tasks, that one look reports; the next sweep finds the rest


class Misdated(NamedTuple):
    """What waits because of a moment that was computed under a clock that was ahead."""

    sessions: list[int]
    tasks: list[int]


def misdated(now: float, policy: Policy) -> Tx[Misdated]:
    """A read."""
    return Misdated((yield from _misdated_sessions(now, policy)), (yield from _misset_tasks(now, policy)))


def _misdated_sessions(now: float, policy: Policy) -> Tx[list[int]]:
    limit = now + CLOCK_SLACK_S
    rows = yield (
        "SELECT s.id FROM sessions s WHERE s.owner IS NULL AND s.due > ? AND (s.progress_at > ? OR EXISTS (SELECT 1"  # noqa: S608
        f" FROM inbox i WHERE i.session_id = s.id AND i.{IS_OPEN} AND (i.at > ? OR i.ready_at > ?)))"
        " ORDER BY s.depth, s.id LIMIT ?",
        (limit, limit, limit, limit + letter_wait_max_s(policy), FOUND_MAX),
    )
    return [row[0] for row in rows]


def _misset_tasks(now: float, policy: Policy) -> Tx[list[int]]:
    rows = yield (
        "SELECT id, phase, timeout_s, wake_at FROM tasks WHERE wake_at > ? AND phase NOT IN ('completed',"
        " 'completed_giveup') ORDER BY id",
        (now + CLOCK_SLACK_S,),
    )
    # The limit comes after the check: a timer that is rightly far ahead must not hide a wrong one behind it.
    return [row[0] for row in rows if _is_misset(now, policy, *row[1:])][:FOUND_MAX]


def _is_misset(now: float, policy: Policy, phase: str, timeout_s: float, wake_at: float | None) -> bool:
    longest_s = timer_max_s(Phase(phase), timeout_s, policy)
    return longest_s is not None and wake_at is not None and is_put_back(wake_at, now, longest_s)


def reset_timer(now: float, policy: Policy, task_id: int) -> Tx[None]:
    """The wait begins anew, so that it is at most as long as it was meant to be."""
    yield from sessions.lock(task_id)
    rows = yield "SELECT phase, timeout_s, wake_at FROM tasks WHERE id = ? {lock}", (task_id,)
    if not rows or not _is_misset(now, policy, *rows[0]):
        return
    wake_at = now + (timer_max_s(Phase(rows[0][0]), rows[0][1], policy) or 0.0)
    yield from tasks.set_column(task_id, "wake_at", wake_at)
    if rows[0][0] == Phase.RUNNING:
        yield from tasks.set_column(task_id, "deadline_at", wake_at)
    yield HINT, ("task", task_id)


def correct(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """What is left of each wait counts from now. Alone: `wake` may look at the same letters."""
    session = yield from sessions.lock(session_id)
    if session is None or session.owner is not None:
        return
    limit = now + CLOCK_SLACK_S
    letters = yield (
        f"SELECT id, at, ready_at FROM inbox WHERE session_id = ? AND {IS_OPEN} AND (at > ? OR ready_at > ?)"  # noqa: S608
        " ORDER BY id",
        (session_id, limit, limit + letter_wait_max_s(policy)),
    )
    for letter_id, at, ready_at in letters:
        if at > limit:
            yield from inbox.redate(letter_id, now, put_right(ready_at, at, now))
        else:
            # It was posted before. Its delivery failed under that clock, and only the next attempt is too far ahead.
            yield from inbox.redate(letter_id, at, now)
    if session.progress_at is not None:
        yield from _correct_run(now, session, session.progress_at)
    yield from sessions.save(now, policy, session)


def _correct_run(now: float, session: SessionRow, written_at: float) -> Tx[None]:
    rows = yield "SELECT parked_until FROM runs WHERE id = ?", (session.run_id or 0,)
    parked_until = rows[0][0] if rows else None
    if parked_until is not None:
        yield from runs.redate(session.run_id, put_right(parked_until, written_at, now))
    if session.hold_until is not None:
        session.hold_until = put_right(session.hold_until, written_at, now)
    session.progress_at = min(written_at, now)


# --------------------------------------------------------------------------------------------------
# The answer to a spawn in a session that does not exist yet: tried, and undone. A refused spawn leaves no row.


class TrialRollback(ClutchError):
    """The answers of a trial. Raised, so that nothing of it is kept."""

    def __init__(self, answers: Sequence[Accepted | SpawnRefusal]) -> None:
        super().__init__()
        self.answers = tuple(answers)


def trial(now: float, policy: Policy, main: NewMain, order: ChildRequest) -> Tx[NoReturn]:
    """Alone. Raises TrialRollback."""
    opened = yield from usage.open_root(now, policy, main)
    raise TrialRollback((yield from spawn(now, policy, opened, opened, [order])))
