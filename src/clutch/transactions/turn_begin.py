"""After a claim: a new run with what waits, or the open one where it was. A turn that takes another's place, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from clutch.core import events as ev
from clutch.core import messages, run
from clutch.core.checks import FIELD, CheckKind, CheckReport, from_text, report_of
from clutch.core.delivery import Point
from clutch.core.messages import Input, Result, Results
from clutch.core.model import LetterKind, Reason, RunState
from clutch.core.policy import ExpiryFrom, Policy
from clutch.core.text import announce, prompts
from clutch.store.transaction import Tx
from clutch.transactions import (
    delivery,
    inbox,
    outbox,
    runs,
    sessions,
    tasks,
    transcript,
    turn,
    turn_end,
    usage,
)
from clutch.transactions.delivery import Taken
from clutch.transactions.sessions import OwnedRun, SessionRow
from clutch.transactions.usage import Fate

# --------------------------------------------------------------------------------------------------
# Progress of descendants: a session that waits for them asks whether one still works.


def progress_below(session_id: int) -> Tx[float | None]:
    """The latest sign of life of any descendant."""
    rows = yield (
        "WITH RECURSIVE below(id, at) AS (SELECT id, progress_at FROM sessions WHERE parent_id = ?"
        " UNION SELECT s.id, s.progress_at FROM sessions s JOIN below b ON s.parent_id = b.id)"
        " SELECT MAX(at) FROM below",
        (session_id,),
    )
    return None if rows[0][0] is None else float(rows[0][0])


def person_waits(session_id: int) -> Tx[bool]:
    """Whether a descendant waits for a user: then no descendant counts as late."""
    rows = yield (
        "WITH RECURSIVE below(id) AS (SELECT id FROM tasks WHERE requester_id = ?"
        " UNION SELECT t.id FROM tasks t JOIN below b ON t.requester_id = b.id)"
        " SELECT COUNT(*) FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.id IN (SELECT id FROM below)"
        " AND (s.paused = 1 OR t.phase = 'awaiting_approval' OR (t.phase = 'paused' AND t.reason = 'needs-you'))",
        (session_id,),
    )
    return bool(rows[0][0])


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
    is_answered: bool = False  #: a user has decided what it waited for, and no call has been started since
    #: Tasks of other servers that carry out its open calls, by the place of the call.
    remote_tasks: Mapping[int, str] = field(default_factory=dict)


def begin(now: float, owned: OwnedRun, nonce: str) -> Tx[Begun | None]:
    """After a claim: resume the open run, or open the given one with the letters that wait.

    None: there is nothing to do, and the session is released."""
    policy = owned.policy
    session = yield from sessions.own(owned.session_id, owned.fence)
    if session.paused:
        yield from turn.stay_paused(now, policy, session)
        return None
    if session.run_id is not None:
        return (yield from _go_on(now, policy, session))
    return (yield from _open_run(now, policy, session, owned.run_id, nonce))


def _go_on(now: float, policy: Policy, session: SessionRow) -> Tx[Begun | None]:
    run_id = session.run_id or 0
    rows = yield "SELECT state, crashes, failures, progress_head FROM runs WHERE id = ?", (run_id,)
    state, *counted = rows[0]
    if state != RunState.RUNNING:
        yield from runs.resume(run_id)
        event: ev.Event = ev.Started(now)
    elif not (yield from _take_over(now, policy, session, run.Counters(*counted))):
        return None
    else:
        lost_s = max(0.0, now - (session.progress_at or now))
        event = ev.Resumed(now, lost_s, step=session.head - session.base)
    if session.is_task:
        yield from tasks.record(now, policy, session, event)
    letters = yield from delivery.unanswered(session.id, run_id)
    senders = tuple(letter.told.task_id for letter in letters if letter.is_result)
    session.progress_at = now
    yield from sessions.save(now, policy, session)
    calls = yield from transcript.opened(session.id, session.head)
    if not calls:
        yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
        yield from turn.foresee(now, policy, session, run_id)
    # Answered: it parked before its calls were started, so they cannot have been interrupted.
    is_answered = state == RunState.ANSWERED
    return Begun(
        run_id,
        session.head,
        session.base,
        session.depth,
        not is_answered,
        bool(letters),
        senders,
        is_answered,
        {place: task for place, task in calls.items() if task is not None},
    )


def _take_over(now: float, policy: Policy, session: SessionRow, counted: run.Counters) -> Tx[bool]:
    """From an owner that died. False: too many have died of it, and the run has ended."""
    run_id, was_executing = session.run_id or 0, (yield from _was_executing(session))
    counters = run.taken_over(counted, session.head, was_executing=was_executing)
    if run.is_crash_loop(counters, policy.life):
        yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
        text = yield from turn.partial(session.id, run_id)
        yield from turn_end.end(now, policy, session, "crash loop", text, is_final=True)
        return False
    yield from runs.count(run_id, counters)
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
    taken = yield from delivery.take(
        now, policy, session, run_id, Point.START, nonce=nonce, is_settled=is_settled
    )
    if not taken.is_any:
        if is_settled:
            session.hold, session.hold_until = 0, None
        yield from turn.release(now, policy, session)
        return None
    if is_settled and not taken.by_person:
        session.hold, session.hold_until = 0, None
    yield from transcript.append(now, session, run_id, taken.inputs or (yield from _prompt(session)))
    if taken.verbatim:
        yield from _send(now, policy, session, run_id, taken)
        return None
    generation = 0
    if session.is_task:
        generation = (yield from tasks.record(now, policy, session, ev.Started(now))).generation
    yield from _new_run(now, session, run_id, generation, taken)
    yield from sessions.save(now, policy, session)
    yield from turn.foresee(now, policy, session, run_id)
    return Begun(run_id, session.head, session.base, session.depth, False, True, taken.senders)


@dataclass(frozen=True, slots=True)
class FileArrival:
    """A session is on another machine. `workspace`: its own, there. `note`: what the model must know of its files."""

    place: str
    workspace: str | None
    note: str = ""
    names: str = ""  #: of the missing files, for the timeline


def arrive(now: float, owned: OwnedRun, arrival: FileArrival) -> Tx[Input | None]:
    """The place and the note are one commit, so the model reads each note once. Returns the note if it is part of the
    transcript now; while calls are open, it is a letter, which the run takes with their results."""
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from sessions.set_column(session.id, "place", arrival.place)
    if arrival.workspace is not None:
        yield from sessions.set_column(session.id, "workspace", arrival.workspace)
    if not arrival.note:
        return None
    if session.is_task:
        said = ev.Noted(now, arrival.names, Reason.FILES_MISSING)
        yield from tasks.note_all(now, owned.policy, [session.id], said)
    if (yield from _has_open_calls(session)):
        yield from inbox.insert(now, session.id, f"files:{session.fence}", LetterKind.NOTE, arrival.note)
        return None
    note = Input(arrival.note, LetterKind.NOTE.value)
    yield from transcript.append(now, session, owned.run_id, [note])
    session.progress_at = now
    yield from sessions.save(now, owned.policy, session)
    return note


def _prompt(session: SessionRow) -> Tx[tuple[Input, ...]]:
    """What a turn with nothing new to read begins with. No request ends with the model's own answer: some providers
    refuse that, and the others continue it in mid-sentence."""
    rows = yield "SELECT kind FROM messages WHERE session_id = ? AND seq = ?", (session.id, session.head)
    is_answered = not rows or rows[0][0] == "answer"
    # It may be about results of children, so its turn is as wary as one that reads them.
    return (Input(announce.NOTHING_NEW, LetterKind.ANNOUNCE.value),) if is_answered else ()


def _new_run(now: float, session: SessionRow, run_id: int, generation: int, taken: Taken) -> Tx[None]:
    yield from runs.begin(now, session.id, run_id, generation, by_person=taken.by_person, route=taken.route)
    if taken.by_person and taken.route is not None and taken.route != session.route:
        session.route = taken.route  # from now on this is where it speaks by itself
        yield from sessions.set_column(session.id, "route", taken.route)
    session.run_id, session.progress_at, session.letter_id = run_id, now, taken.solo


def _close_calls(now: float, session: SessionRow, run_id: int) -> Tx[None]:
    """Calls an older run left open get a synthetic result: a transcript never has an unanswered call."""
    rows = yield (
        "SELECT idx, name FROM calls WHERE session_id = ? AND seq = ? ORDER BY idx",
        (session.id, session.head),
    )
    if rows:
        unknown = tuple(Result(index, name, prompts.OUTCOME_UNKNOWN, failed=True) for index, name in rows)
        yield from transcript.append(now, session, run_id, [Results(unknown)])


def _was_executing(session: SessionRow) -> Tx[bool]:
    """Whether code of this run was at work in its owner: a tool, a check, or a runtime that is not our own loop."""
    if (yield from _has_open_calls(session)):
        return True
    rows = yield "SELECT spec, checks, generation FROM tasks WHERE id = ?", (session.id,)
    if not rows:
        return False
    spec, stored, generation = rows[0]
    said = json.loads(spec)
    is_checking = yield from _is_checking(session, report_of(stored, generation), said.get(FIELD))
    return is_checking or said.get("runtime") is not None


def _is_checking(session: SessionRow, report: CheckReport | None, declared: str | None) -> Tx[bool]:
    """Whether a check of the present answer was running, behind which there may be notes. An agent that reviews it is
    a model call: that kills no process."""
    place = None if report is None else report.running
    if report is None or place is None or from_text(declared)[place].kind is CheckKind.AGENT:
        return False
    rows = yield (
        "SELECT kind, body FROM messages WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT 20",
        (session.id, report.seq),
    )
    return run.notes_after([messages.load(*row) for row in rows]) == len(rows)


def _has_open_calls(session: SessionRow) -> Tx[bool]:
    """Then tools come first, and their results foresee the next model call."""
    return bool((yield from transcript.opened(session.id, session.head)))


def _sign_of_life(now: float, policy: Policy, session_id: int) -> Tx[float | None]:
    if policy.life.settle_expiry_from is ExpiryFrom.END:
        return None
    return now if (yield from person_waits(session_id)) else (yield from progress_below(session_id))


def _send(now: float, policy: Policy, session: SessionRow, run_id: int, taken: Taken) -> Tx[None]:
    """`announce.direct: send`: a turn without a model. The outcome of each send is recorded at its task."""
    yield from runs.sent(now, session.id, run_id, taken.route)
    for one in taken.verbatim:
        yield from outbox.post_result(now, session.id, taken.route or "", one)
    session.idle_at = now
    yield from turn.release(now, policy, session)


def interrupt(now: float, owned: OwnedRun, next_run_id: int, nonce: str) -> Tx[bool]:
    """End the run at a boundary that letters interrupt, and open the next run with them, parked until it is claimed.

    False: the letters are gone, and the run continues."""
    policy = owned.policy
    session = yield from sessions.own(owned.session_id, owned.fence)
    session.idle_at = now  # until this moment it was busy
    taken = yield from delivery.take(
        now, policy, session, next_run_id, Point.START, nonce=nonce, needs_model=True
    )
    if not taken.is_any:
        return False
    yield from usage.give_up(now, policy, session, Fate.UNSENT)
    yield from turn.end_run(now, session, owned.run_id, "interrupted")
    yield from transcript.append(now, session, next_run_id, taken.inputs)
    generation = 0
    if session.is_task:
        parked = ev.Parked(now, Reason.INTERRUPT)
        generation = (yield from tasks.record(now, policy, session, parked)).generation
    yield from _new_run(now, session, next_run_id, generation, taken)
    yield from turn.release(now, policy, session, parked_until=now)
    return True
