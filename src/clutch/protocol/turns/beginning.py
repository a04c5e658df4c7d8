"""After a claim: a new run with what waits, or the open one where it was. A turn that takes another's place, too."""

from __future__ import annotations

from dataclasses import dataclass

from clutch.core import events as ev
from clutch.core import runs, wording
from clutch.core.delivery import Point
from clutch.core.messages import Result, Results
from clutch.core.model import ANSWERED, Wait
from clutch.core.policy import ExpiryFrom, Policy
from clutch.protocol import outbox, sessions, taking, tasks, usage
from clutch.protocol.sessions import SessionRow
from clutch.protocol.taking import Taken
from clutch.protocol.turns import below, endings, leaving, writing
from clutch.protocol.usage import Fate
from clutch.store.door import Tx


@dataclass(frozen=True, slots=True)
class Begun:
    """A run to work on. `unanswered`: letters wait for the model's first response; `senders` wrote them."""

    run_id: int
    head: int
    base: int
    depth: int
    is_resumed: bool = False
    is_unanswered: bool = False
    senders: tuple[int, ...] = ()
    is_answered: bool = False  #: a person has decided what it waited for, and nobody has acted on it yet


def begin(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, nonce: str
) -> Tx[Begun | None]:
    """After a claim: go on with the open run, or open one with what waits. None: nothing to do, released."""
    session = yield from sessions.own(session_id, fence)
    if session.paused:
        yield from writing.stay_paused(now, policy, session)
        return None
    if session.run_id is not None:
        return (yield from _go_on(now, policy, session))
    return (yield from _open_run(now, policy, session, run_id, nonce))


def _go_on(now: float, policy: Policy, session: SessionRow) -> Tx[Begun | None]:
    run_id = session.run_id or 0
    rows = yield "SELECT parked_until, crashes, failures, progress_head FROM runs WHERE id = ?", (run_id,)
    parked_until, *counted = rows[0]
    if parked_until is not None:
        yield "UPDATE runs SET parked_until = NULL WHERE id = ?", (run_id,)
        event: ev.Event = ev.Started(now)
    elif not (yield from _take_over(now, policy, session, runs.Counters(*counted))):
        return None
    else:
        lost_s = max(0.0, now - (session.progress_at or now))
        event = ev.Resumed(now, lost_s, step=session.head - session.base)
    if session.is_task:
        yield from tasks.record(now, policy, session, event)
    rows = yield (
        "SELECT task_id, kind, silent FROM inbox WHERE session_id = ? AND state = 0 AND taken_run = ?",
        (session.id, run_id),
    )
    senders = tuple(row[0] for row in rows if row[1] == "announce" and not row[2])
    session.progress_at = now
    yield from sessions.save(now, policy, session)
    if not (yield from _has_open_calls(session)):
        yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
        yield from writing.foresee(now, policy, session, run_id)
    # Answered: it parked before its calls were started, so nobody can have interrupted them.
    is_answered = parked_until == ANSWERED
    return Begun(
        run_id, session.head, session.base, session.depth, not is_answered, bool(rows), senders, is_answered
    )


def _take_over(now: float, policy: Policy, session: SessionRow, counted: runs.Counters) -> Tx[bool]:
    """From an owner that died. False: too many have died of it, and the run has ended."""
    run_id, counters = session.run_id or 0, runs.taken_over(counted, session.head)
    if runs.is_crash_loop(counters, policy.life):
        yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
        text = yield from leaving.partial(session.id, run_id)
        yield from endings.end(now, policy, session, "crash loop", text, is_final=True)
        return False
    yield from writing.count(run_id, counters)
    return True


def _open_run(now: float, policy: Policy, session: SessionRow, run_id: int, nonce: str) -> Tx[Begun | None]:
    if session.is_task and session.idle_at is None:
        run_id = session.id  # its first: the spawn could name it, because numbers are given once for all
    children = (yield from sessions.working(session.id)) if session.hold else 0
    if session.hold and children and session.hold_until is not None and now >= session.hold_until:
        moved_at = yield from _sign_of_life(now, policy, session.id)
        if moved_at is not None and moved_at + policy.life.settle_expiry_s > now:
            session.hold_until = moved_at + policy.life.settle_expiry_s
        else:
            children = 0  # waited long enough: take what there is, name the missing
    is_settled = bool(session.hold) and not children
    if session.head > session.base:
        yield from _close_calls(now, session, run_id)
    taken = yield from taking.take(now, policy, session, run_id, Point.START, nonce, is_settled=is_settled)
    if not taken.is_any:
        if is_settled:
            session.hold, session.hold_until = 0, None
        yield from writing.release(now, policy, session)
        return None
    if is_settled and not taken.by_person:
        session.hold, session.hold_until = 0, None
    yield from writing.append(now, session, run_id, taken.inputs)
    if taken.verbatim:
        yield from _send(now, policy, session, run_id, taken)
        return None
    generation = 0
    if session.is_task:
        generation = (yield from tasks.record(now, policy, session, ev.Started(now))).generation
    yield from _new_run(now, session, run_id, generation, taken)
    yield from sessions.save(now, policy, session)
    yield from writing.foresee(now, policy, session, run_id)
    return Begun(run_id, session.head, session.base, session.depth, False, True, taken.senders)


def _new_run(now: float, session: SessionRow, run_id: int, generation: int, taken: Taken) -> Tx[None]:
    yield (
        "INSERT INTO runs(id, session_id, generation, by_person, started_at, route) VALUES(?, ?, ?, ?, ?, ?)",
        (run_id, session.id, generation, int(taken.by_person), now, taken.route),
    )
    if taken.by_person and taken.route is not None and taken.route != session.route:
        session.route = taken.route  # from now on this is where it speaks by itself
        yield "UPDATE sessions SET route = ? WHERE id = ?", (taken.route, session.id)
    session.run_id, session.progress_at, session.letter_id = run_id, now, taken.solo


def _close_calls(now: float, session: SessionRow, run_id: int) -> Tx[None]:
    """Calls an older run left open get a synthetic result: a transcript never has an unanswered call."""
    rows = yield (
        "SELECT idx, name FROM calls WHERE session_id = ? AND seq = ? ORDER BY idx",
        (session.id, session.head),
    )
    if rows:
        unknown = tuple(Result(index, name, wording.OUTCOME_UNKNOWN, failed=True) for index, name in rows)
        yield from writing.append(now, session, run_id, [Results(unknown)])


def _has_open_calls(session: SessionRow) -> Tx[bool]:
    """Then tools come first, and their results foresee the next model call."""
    rows = yield "SELECT 1 FROM calls WHERE session_id = ? AND seq = ?", (session.id, session.head)
    return bool(rows)


def _sign_of_life(now: float, policy: Policy, session_id: int) -> Tx[float | None]:
    if policy.life.settle_expiry_from is ExpiryFrom.END:
        return None
    return (
        now if (yield from below.person_waits(session_id)) else (yield from below.progress_below(session_id))
    )


def _send(now: float, policy: Policy, session: SessionRow, run_id: int, taken: Taken) -> Tx[None]:
    """`announce.direct: send`: a turn without a model. What becomes of each parcel is told to its task."""
    yield (
        "INSERT INTO runs(id, session_id, generation, by_person, started_at, ended_at, stop_reason, route)"
        " VALUES(?, ?, 0, 0, ?, ?, 'sent', ?)",
        (run_id, session.id, now, now, taken.route),
    )
    for one in taken.verbatim:
        yield from outbox.post_result(now, session.id, taken.route or "", one)
    session.idle_at = now
    yield from writing.release(now, policy, session)


def interrupt(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, next_run_id: int, nonce: str
) -> Tx[bool]:
    """After a boundary that said so: this turn is cancelled there, and a new one stands in its place, open and
    parked until somebody claims it. False: whatever wanted it is not there any more, and the turn goes on."""
    session = yield from sessions.own(session_id, fence)
    session.idle_at = now  # until this moment it was busy
    taken = yield from taking.take(now, policy, session, next_run_id, Point.START, nonce, needs_model=True)
    if not taken.is_any:
        return False
    yield from usage.give_up(now, policy, session, Fate.UNSENT)
    yield from writing.end_run(now, session, run_id, "interrupted")
    yield from writing.append(now, session, next_run_id, taken.inputs)
    generation = 0
    if session.is_task:
        parked = ev.Parked(now, Wait.INTERRUPT)
        generation = (yield from tasks.record(now, policy, session, parked)).generation
    yield from _new_run(now, session, next_run_id, generation, taken)
    yield from writing.release(now, policy, session, parked_until=now)
    return True
