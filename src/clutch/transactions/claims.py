"""Claims: what a worker finds to do, and the sessions it gets.

`peek` only reads, so an idle process writes nothing. *Claim*: due sessions get an owner and a new fence, as many as
their lane has room for; a run that was executing at several deaths of its process is a suspect and is claimed alone.
It runs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from clutch.core import fair_share, run
from clutch.core.fair_share import DueSession, Positions, Queue, Root, Weights, Working
from clutch.core.model import Lane
from clutch.core.policy import Life
from clutch.core.run import Admission
from clutch.core.workers import HOME_WAIT_S, Resident, awaited_places, is_left_to_others
from clutch.store.transaction import Tx
from clutch.transactions import sessions
from clutch.transactions.sessions import Stale

Condition: TypeAlias = tuple[Any, ...]  #: on sessions: SQL, and its parameters

UNSEEN_MAX: Final = 200  # sessions with new letters that one look reports


@dataclass(frozen=True, slots=True)
class Claimed:
    session_id: int
    fence: int
    #: fixed at spawn; resuming may give up a call they paid for
    purses: str = field(default="", compare=False)
    model: str | None = field(default=None, compare=False)
    agent_id: str = field(default="", compare=False)
    tried_at: float | None = field(default=None, compare=False)  #: a suspect, claimed alone


LANES = tuple(sorted(Lane))


@dataclass(frozen=True, slots=True)
class Suspect:
    """A session whose run was executing at deaths of its process and has committed nothing since."""

    session_id: int
    owner: int | None
    due: float | None
    lane: str
    place: str | None = None
    progress_at: float | None = None

    def is_due(self, now: float, lanes: Sequence[str], awaited: Collection[str] = ()) -> bool:
        """`awaited`: places whose sessions are left to others."""
        if self.owner is not None or self.due is None or self.due > now or self.lane not in lanes:
            return False
        return not is_left_to_others(self.place, awaited, now - max(self.due, self.progress_at or 0.0))


@dataclass(frozen=True, slots=True)
class Trial:
    """What a worker remembers of suspects: the one it claimed alone, and since when it claims nothing for another."""

    crashes: int = run.suspect_from(Life())
    tried: Claimed | None = None
    waits_since: float | None = None

    def tried_since(self, suspects: Sequence[Suspect], worker_id: int) -> float | None:
        """None: it holds none, or the one it holds has committed something."""
        held = {suspect.session_id for suspect in suspects if suspect.owner == worker_id}
        return self.tried.tried_at if self.tried is not None and self.tried.session_id in held else None


NO_TRIAL: Final = Trial()
NO_WEIGHTS: Final[Weights] = MappingProxyType({})


def claim(
    now: float,
    worker_id: int,
    room: int,
    lanes: Sequence[Lane] = LANES,
    trial: Trial = NO_TRIAL,
    *,
    weights: Weights = NO_WEIGHTS,
) -> Tx[list[Claimed]]:
    """Sessions in the order of `core.fair_share`. The lane's row is locked, so that two workers never fill the same
    slot."""
    found = yield "SELECT draining, place FROM workers WHERE id = ? {keep}", (worker_id,)
    if not found:
        raise Stale(f"worker {worker_id} was declared dead")
    if found[0][0]:
        return []
    awaited = yield from _awaited(now, found[0][1])
    at_home = _at_home(now, awaited)
    suspects = yield from _suspects(trial.crashes)
    if not suspects:
        return (yield from _claim_lanes(now, worker_id, room, lanes, weights=weights, only=at_home))
    waiting = [suspect for suspect in suspects if suspect.is_due(now, lanes, awaited)]
    owned = yield "SELECT COUNT(*) FROM sessions WHERE owner = ?", (worker_id,)
    admission = run.admission(
        now,
        tried_since=trial.tried_since(suspects, worker_id),
        waits_since=(trial.waits_since or now) if waiting else None,
        is_idle=not owned[0][0],
    )
    if admission is Admission.NOTHING:
        return []
    if admission is Admission.SUSPECT:
        lane, only = Lane(waiting[0].lane), ("AND id = ?", waiting[0].session_id)
        alone = yield from _claim_lane(now, worker_id, lane, 1, weights=weights, only=only)
        return [replace(one, tried_at=now) for one in alone]
    condition, *parameters = at_home
    others = (f"AND NOT (id {{any}}) {condition}", [one.session_id for one in suspects], *parameters)
    return (yield from _claim_lanes(now, worker_id, room, lanes, weights=weights, only=others))


def _awaited(now: float, here: str | None) -> Tx[frozenset[str]]:
    """Other places whose sessions this worker leaves to them. One machine alone asks nothing."""
    if here is None:
        return frozenset()
    rows = yield "SELECT place, lease_until, draining FROM workers WHERE place <> ?", (here,)
    return awaited_places(now, [Resident(place, until, bool(drains)) for place, until, drains in rows], here)


def _at_home(now: float, awaited: frozenset[str]) -> Condition:
    """The sessions that `core.workers.is_left_to_others` does not leave to others. Most have no place."""
    if not awaited:
        return ("",)
    moment = now - HOME_WAIT_S
    sql = "AND (place IS NULL OR NOT (place {any}) OR (due <= ? AND COALESCE(progress_at, 0) <= ?))"
    return sql, sorted(awaited), moment, moment


_OF_SUSPECTS = (
    # CROSS: SQLite then keeps the order, and does not go through all sessions instead.
    "FROM runs r CROSS JOIN sessions s WHERE s.id = r.session_id AND s.run_id = r.id AND r.crashes > 0"
    " AND r.ended_at IS NULL AND r.crashes >= ? AND r.progress_head = s.head"
)


def _suspects(crashes: int) -> Tx[tuple[Suspect, ...]]:
    """None nearly always: `runs_crashed` holds only open runs that were executing at a death of their process."""
    sql = f"SELECT s.id, s.owner, s.due, s.lane, s.place, s.progress_at {_OF_SUSPECTS} ORDER BY s.due, s.id"
    rows = yield sql, (crashes,)
    return tuple(Suspect(*row) for row in rows)


def _claim_lanes(
    now: float,
    worker_id: int,
    room: int,
    lanes: Sequence[Lane],
    *,
    weights: Weights,
    only: Condition | None = None,
) -> Tx[list[Claimed]]:
    claimed: list[Claimed] = []
    for lane in lanes:
        left = room - len(claimed)
        if left > 0:
            claimed += yield from _claim_lane(now, worker_id, lane, left, weights=weights, only=only)
    return claimed


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of a lane, as a claim found them under the lock. `positions` changes while it reads."""

    lane: str
    working: Working
    weights: Weights
    passed: int
    positions: Positions
    only: Condition | None = None  #: a further condition on the sessions


def _claim_lane(
    now: float, worker_id: int, lane: Lane, room: int, *, weights: Weights, only: Condition | None = None
) -> Tx[list[Claimed]]:
    rows = yield "SELECT cap, passed, positions FROM lanes WHERE name = ? {lock}", (lane.value,)
    cap, passed, positions = rows[0]
    counted = yield (
        "SELECT share, root_id, COUNT(*) FROM sessions WHERE lane = ? AND owner IS NOT NULL GROUP BY share, root_id",
        (lane.value,),
    )
    working = {Root(share, root_id): int(count) for share, root_id, count in counted}
    free = min(cap - sum(working.values()), room)
    if free <= 0:
        return []
    slots = Slots(lane.value, working, weights, passed, Positions.load(positions), only)
    chosen = yield from choose(now, slots, free)
    if not chosen:
        return []
    rows = yield from sessions.claim(now, worker_id, [session.id for session in chosen])
    return [Claimed(*row) for row in sorted(rows)]


# --------------------------------------------------------------------------------------------------
# Which sessions go first (`core.fair_share`), found without reading all that wait: no claim reads more than so many
# rows and probes of an index, however many sessions, roots and shares wait.

SHARES_MAX: Final = 64  # of each priority that one claim compares; the next claim continues behind them
ROOTS_MAX: Final = 64  # of one share and priority, likewise
CHOSEN_MAX: Final = 32  # more slots are filled by the next claim, which follows at once


def choose(now: float, slots: Slots, free: int) -> Tx[list[DueSession]]:
    waiting = yield from first_due(now, slots, _seen_max(free))
    if len(waiting) <= free:
        return waiting
    free, before = min(free, CHOSEN_MAX), slots.positions.dump()
    heads = yield from queues_due(now, slots)
    for queues in fair_share.wanted(heads, slots.working, slots.weights, free):
        found = 0
        for queue in queues:
            if found < free:
                known = (
                    waiting if len(heads) == 1 else (yield from first_due(now, slots, _seen_max(free), queue))
                )
                first = yield from _with_hidden_roots(now, slots, free, queue, known)
                waiting, found = waiting + first, found + len(first)
    choice = fair_share.choose(waiting, slots.working, slots.weights, free, passed=slots.passed)
    positions = slots.positions.dump()
    if (choice.passed, positions) != (slots.passed, before):
        yield (
            "UPDATE lanes SET passed = ?, positions = ? WHERE name = ?",
            (choice.passed, positions, slots.lane),
        )
    return choice.sessions


def _seen_max(free: int) -> int:
    """Mostly enough to see that the oldest sessions are of so many roots."""
    return 2 * free + 16


def _with_hidden_roots(
    now: float, slots: Slots, free: int, queue: Queue, oldest: list[DueSession]
) -> Tx[list[DueSession]]:
    """The oldest sessions of a queue; if they are mostly of roots at work, also those of roots behind them."""
    if len(oldest) < _seen_max(free) or fair_share.is_settled(oldest, slots.working, free):
        return oldest
    roots = yield from roots_due(now, slots, queue)
    least = sorted(roots, key=lambda root: (slots.working.get(Root(queue.share, root), 0), root))[:free]
    each, seen = min(free, 2 * -(-free // max(1, len(least)))), Counter(one.root_id for one in oldest)
    found = list(oldest)
    for root in least:
        if seen[root] < each:
            found += yield from first_due(now, slots, each, queue, root)
    return found


def first_due(
    now: float, slots: Slots, count: int, queue: Queue | None = None, root_id: int | None = None
) -> Tx[list[DueSession]]:
    """The sessions that have waited longest in a lane, in one of its queues, or of one root in a queue."""
    where, known = "lane = ?", list[Any]((slots.lane,))
    condition, *chosen = slots.only or ("",)
    if queue is not None:
        where, known = where + " AND priority = ? AND share = ?", [*known, *queue]
    if root_id is not None:
        where, known = where + " AND root_id = ?", [*known, root_id]
    rows = yield (
        f"SELECT due, id, root_id, share, priority FROM sessions WHERE {where} AND owner IS NULL AND due <= ?"  # noqa: S608
        f" {condition} ORDER BY due, id LIMIT ?",
        (*known, now, *chosen, count),
    )
    return [DueSession(*row) for row in rows]


_WAITING = "FROM sessions WHERE lane = ? AND owner IS NULL AND due IS NOT NULL"


def queues_due(now: float, slots: Slots) -> Tx[dict[Queue, float]]:
    """Shares and priorities with a session that is due, and since when their first one is."""
    shares = slots.positions.shares
    after = [shares.get(str(rank), "") for rank in fair_share.PRIORITIES]
    rows = yield (
        "WITH RECURSIVE queues(priority, share, place) AS (SELECT p.priority,"  # noqa: S608
        f" (SELECT MIN(share) {_WAITING} AND priority = p.priority AND share > p.behind), 1 FROM"
        " (SELECT 0 AS priority, ? AS behind UNION ALL SELECT 1, ? UNION ALL SELECT 2, ?) p"
        f" UNION ALL SELECT priority, (SELECT MIN(share) {_WAITING} AND priority = queues.priority"
        " AND share > queues.share), place + 1 FROM queues WHERE queues.share IS NOT NULL AND place < ?)"
        f" SELECT priority, share, place, (SELECT MIN(due) {_WAITING} AND priority = queues.priority"
        " AND share = queues.share) FROM queues WHERE share IS NOT NULL ORDER BY priority, share",
        (slots.lane, *after, slots.lane, SHARES_MAX, slots.lane),
    )
    shares.clear()
    shares.update({str(rank): share for rank, share, place, _ in rows if place == SHARES_MAX})
    return {Queue(rank, share): due for rank, share, _, due in rows if due <= now}


def roots_due(now: float, slots: Slots, queue: Queue) -> Tx[list[int]]:
    """Roots with a session that is due: as many probes of the index as there are roots, up to a count."""
    waiting, mine = f"{_WAITING} AND priority = ? AND share = ?", (slots.lane, *queue)
    known = slots.positions.roots
    rows = yield (
        f"WITH RECURSIVE roots(id, place) AS (SELECT (SELECT MIN(root_id) {waiting} AND root_id > ?), 1 UNION ALL"  # noqa: S608
        f" SELECT (SELECT MIN(root_id) {waiting} AND root_id > roots.id), place + 1 FROM roots"
        " WHERE roots.id IS NOT NULL AND place < ?)"
        f" SELECT id, EXISTS (SELECT 1 {waiting} AND root_id = roots.id AND due <= ?) FROM roots"
        " WHERE id IS NOT NULL ORDER BY id",
        (*mine, known.pop(str(queue), 0), *mine, ROOTS_MAX, *mine, now),
    )
    if len(rows) == ROOTS_MAX:
        known[str(queue)] = rows[-1][0]
    return [root_id for root_id, is_due in rows if is_due]


def set_lanes(now: float, lanes: Mapping[Lane, int]) -> Tx[None]:
    del now
    for lane, cap in lanes.items():
        yield "UPDATE lanes SET cap = ? WHERE name = ? AND cap <> ?", (cap, lane.value, cap)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What there is to do, and when there will be more."""

    due_at: float | None  #: a session that a lane has room for
    due_lanes: tuple[Lane, ...]  #: lanes with room for one that is due already
    is_lane_full: bool  #: a session that is due waits for the end of another turn
    alarms: tuple[int, ...]  #: tasks whose timer is due
    alarm_at: float | None
    beat_at: float | None  #: a session looks up by itself then
    unseen: tuple[int, ...]  #: sessions with letters that `wake` has not looked at
    suspects: tuple[Suspect, ...] = ()
    slot_at: float | None = None  #: a schedule has something to decide then


def _of_lane(lane: Lane) -> str:
    first = f"SELECT MIN(due) FROM sessions WHERE lane = '{lane}' AND owner IS NULL AND due IS NOT NULL"  # noqa: S608
    used = f"SELECT COUNT(*) FROM sessions WHERE lane = '{lane}' AND owner IS NOT NULL"  # noqa: S608
    # Whether a lane has a free slot matters only when one of its sessions is due: to count is not free.
    free = f"SELECT cap - ({used}) FROM lanes WHERE name = '{lane}'"  # noqa: S608
    return f"({first}), CASE WHEN ({first}) <= ? THEN ({free}) ELSE 1 END"


#: One statement of one row, because every worker runs it all the time; what may be many is a text. SQLite compiles
#: a statement again for each new value of `lane = ?` and `LIMIT ?`, so what never changes is no parameter.
_PEEK = (
    f"SELECT {', '.join(map(_of_lane, LANES))},"  # noqa: S608 (constants)
    " (SELECT MIN(wake_at) FROM tasks WHERE wake_at IS NOT NULL),"
    " (SELECT MIN(heartbeat_at) FROM sessions WHERE heartbeat_at IS NOT NULL),"
    " (SELECT MIN(next_at) FROM schedules WHERE next_at IS NOT NULL),"
    " (SELECT {joined}(id || '', ',') FROM (SELECT id FROM tasks WHERE wake_at <= ?"
    # The clock of a run stands while its owner is out of reach. If it is dead, its burial comes first.
    " AND NOT EXISTS (SELECT 1 FROM sessions s JOIN workers w ON w.id = s.owner"
    " WHERE s.id = tasks.id AND w.lease_until < ?) ORDER BY wake_at, id LIMIT 200) AS alarms),"
    " (SELECT {joined}(session_id || '', ',') FROM (SELECT DISTINCT session_id FROM inbox"
    f" WHERE seen = 0 ORDER BY session_id LIMIT {UNSEEN_MAX}) AS unseen),"
    " (SELECT {joined}(s.id || ' ' || COALESCE(s.owner || '', '') || ' ' || COALESCE(s.due || '', '') || ' ' || s.lane,"
    f" ',') {_OF_SUSPECTS})"
)


def peek(now: float, crashes: int = NO_TRIAL.crashes) -> Tx[Prospect]:
    """`crashes`: from how many on a run is a suspect."""
    rows = yield _PEEK, (*[now for _ in LANES], now, now, crashes)
    *of_lanes, alarm_at, beat_at, slot_at, alarms, unseen, suspects = rows[0]
    first_due = {
        lane: moment for lane, moment in zip(LANES, of_lanes[::2], strict=True) if moment is not None
    }
    free = dict(zip(LANES, of_lanes[1::2], strict=True))
    open_at = {lane: moment for lane, moment in first_due.items() if free[lane] > 0}
    return Prospect(
        min(open_at.values(), default=None),
        tuple(lane for lane, moment in open_at.items() if moment <= now),
        len(open_at) < len(first_due),
        tuple(map(int, _listed(alarms))),
        alarm_at,
        beat_at,
        tuple(map(int, _listed(unseen))),
        tuple(map(_suspect, _listed(suspects))),
        slot_at,
    )


def _listed(text: str | None) -> list[str]:
    return text.split(",") if text else []


def _suspect(text: str) -> Suspect:
    number, owner, due, lane = text.split(" ")
    return Suspect(int(number), int(owner) if owner else None, float(due) if due else None, lane)
