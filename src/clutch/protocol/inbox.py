"""Reading: letters are seen by the mailman, taken into a transcript, answered by the model.

wake    the mailman, keyed by the receiver: marks letters seen and recomputes when the session is due;
        a closed session's letters move one level up. A lost hint costs time only: `seen = 0` is indexed.
take    letters become messages of the transcript, in the same transaction. Once, for ever.
answer  the model has answered: the senders' tasks are told so.
refuse  the run failed before that: its letters wait for another try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clutch.core import events as ev
from clutch.core.delivery import Choice, Point, choose, path_of
from clutch.core.messages import Input
from clutch.core.model import Letter, LetterId, LetterKind, Path, TaskId
from clutch.core.policy import Policy
from clutch.protocol import letters, pages, sessions, tasks
from clutch.protocol.sessions import IS_WORKING, SessionRow, StepRow
from clutch.store.door import HINT, Many, Tx


def say(now: float, policy: Policy, session_id: int, idem: str, kind: LetterKind, body: str) -> Tx[None]:
    """A letter by somebody who may lock the receiver: posted and seen in one transaction."""
    yield from letters.insert(now, session_id, idem, kind, body)
    yield from wake(now, policy, session_id)


def wake(now: float, policy: Policy, session_id: int) -> Tx[bool]:
    """True: the letters have nobody to go to; somebody must run `orphan` alone."""
    session = yield from sessions.lock(session_id)
    if session is None:
        return True
    if session.closed:
        return (yield from _pass_on(session))
    yield "UPDATE inbox SET seen = 1 WHERE session_id = ? AND seen = 0", (session_id,)
    if session.owner is None:
        yield from sessions.reschedule(now, policy, session)
    return False


def worth_waking(now: float, session_ids: Sequence[int]) -> Tx[list[int]]:
    """Leaves out whoever sleeps until its children have settled while one still works: its due time stands.

    A read. Of a fan-out only the last letter costs a transaction; that one marks the others as seen, too. Nobody is
    forgotten: the child that works leaves a letter in its turn, and what is unseen is looked at in every round."""
    del now
    rows = yield (
        "SELECT id FROM sessions WHERE id {any} AND hold = 1 AND closed = 0"  # noqa: S608 (constant words)
        f" AND EXISTS (SELECT 1 FROM tasks WHERE requester_id = sessions.id AND {IS_WORKING} AND outcome IS NULL)"
        " AND NOT EXISTS (SELECT 1 FROM inbox WHERE session_id = sessions.id AND seen = 0 AND state = 0"
        " AND (kind <> 'announce' OR taken_seq IS NOT NULL))",
        (list(session_ids),),
    )
    asleep = {row[0] for row in rows}
    return [session_id for session_id in session_ids if session_id not in asleep]


def _pass_on(session: SessionRow) -> Tx[bool]:
    """One level up, marked late. Silent ones and words to the closed session itself are void."""
    if session.parent_id is not None:
        moved = yield (
            "UPDATE inbox SET session_id = ?, seen = 0, late = 1, bubbled_from = COALESCE(bubbled_from, session_id),"
            " taken_run = NULL, taken_seq = NULL"
            " WHERE session_id = ? AND state = 0 AND kind = 'announce' AND silent = 0 RETURNING id",
            (session.parent_id, session.id),
        )
        if moved:
            yield HINT, ("mail", session.parent_id)
    yield (
        "UPDATE inbox SET state = 3 WHERE session_id = ? AND state = 0 AND (kind <> 'announce' OR silent = 1)",
        (session.id,),
    )
    # What is left open stays unseen until `orphan` has told its senders: whoever runs that may die before.
    yield "UPDATE inbox SET seen = 1 WHERE session_id = ? AND seen = 0 AND state <> 0", (session.id,)
    if session.parent_id is not None:
        return False
    left = yield "SELECT 1 FROM inbox WHERE session_id = ? AND state = 0 LIMIT 1", (session.id,)
    return bool(left)


def orphan(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """Nobody is left above: the senders wait for somebody to come back, then give up. Alone."""
    session = yield from sessions.lock(session_id)
    if session is not None and not session.closed:
        return
    rows = yield (
        "UPDATE inbox SET seen = 1 WHERE session_id = ? AND state = 0 RETURNING task_id, kind, silent",
        (session_id,),
    )
    senders = {
        task_id: ev.RequesterGone(now) for task_id, kind, silent in rows if kind == "announce" and not silent
    }
    yield from tasks.record_senders(now, policy, senders)


# ---- taking ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run read. `senders` are the tasks that are told when the model answers."""

    inputs: tuple[Input, ...] = ()
    senders: tuple[int, ...] = ()
    is_any: bool = False
    by_person: bool = False
    interrupts: bool = False
    solo: int | None = None  #: the letter that has this turn for itself


_NOTHING = Taken()
_WAITING = (
    "SELECT id, kind, body, at, ready_at, task_id, generation, silent, route, taken_seq, late FROM inbox"
    " WHERE session_id = ? AND state = 0 AND taken_run IS NULL ORDER BY id"
)


def take(
    now: float,
    policy: Policy,
    session: SessionRow,
    run_id: int,
    point: Point,
    nonce: str,
    *,
    is_settled: bool = False,
    started_by_person: bool = False,
) -> Tx[Taken]:
    rows = yield _WAITING, (session.id,)
    if not rows and not is_settled:
        return _NOTHING
    late = {row[0] for row in rows if row[-1]}
    waiting = [_letter(*row[:-1]) for row in rows]
    senders: dict[int, pages.Sender] = {}
    if any(letter.task_id for letter in waiting):
        senders = yield from pages.senders(waiting)
        waiting = yield from _void_overtaken(waiting, senders)
    choice = choose(
        waiting,
        point,
        now=now,
        rules=policy.announcing,
        is_held=bool(session.hold),
        is_settled=is_settled,
        expects_completion=all(sender.expects_completion for sender in senders.values()),
        started_by_person=started_by_person,
    )
    if choice.dropped:
        yield from _drop(now, policy, choice)
    by_person = any(letter.kind is LetterKind.USER for letter in choice.urgent)
    settles = is_settled and not by_person
    if not choice and not settles:
        return Taken(interrupts=choice.interrupts)
    absent = (yield from pages.absent(session.id, choice, senders)) if settles else []
    if not choice and not absent and not session.is_task:
        return _NOTHING  # it has heard everything between two steps of another turn
    page = pages.Page(policy.announcing, senders, late, nonce, pages.audience(session, senders))
    inputs = tuple(page.inputs(choice, point, absent))
    yield from _mark(session, run_id, choice, point)
    told = tuple(letter.task_id for letter in choice.announces if letter.task_id is not None)
    solo = next((letter.id for letter in choice.urgent if letter.is_solo), None)
    return Taken(inputs, told, is_any=True, by_person=by_person, interrupts=choice.interrupts, solo=solo)


def _letter(
    letter_id: int,
    kind: str,
    body: str,
    at: float,
    ready_at: float,
    task_id: int | None,
    generation: int | None,
    silent: int,
    route: str,
    taken_seq: int | None,
) -> Letter:
    sender = None if task_id is None else TaskId(task_id)
    is_silent = bool(silent)
    return Letter(
        LetterId(letter_id),
        LetterKind(kind),
        body,
        at,
        ready_at,
        sender,
        generation,
        is_silent,
        route,
        taken_seq,
    )


def _void_overtaken(waiting: list[Letter], senders: Mapping[int, pages.Sender]) -> Tx[list[Letter]]:
    """A letter of an older generation has nothing to say: a newer run will make a new one.

    Nor has one that a kill has skipped since it was selected."""

    def overtaken(letter: Letter) -> bool:
        sender = senders.get(letter.task_id or 0)
        if letter.task_id is None:
            return False
        if sender is None or sender.generation != letter.generation:
            return True
        return sender.is_skipped and not letter.silent

    void = [letter for letter in waiting if overtaken(letter)]
    if not void:
        return waiting
    yield "UPDATE inbox SET state = 3 WHERE id = ?", Many((letter.id,) for letter in void)
    return [letter for letter in waiting if letter not in void]


def _drop(now: float, policy: Policy, choice: Choice) -> Tx[None]:
    dropped: dict[int, ev.Event] = {
        letter.task_id: ev.Dropped(now) for letter in choice.dropped if letter.task_id is not None
    }
    yield from tasks.record_senders(now, policy, dropped)


def _mark(session: SessionRow, run_id: int, choice: Choice, point: Point) -> Tx[None]:
    """Where it stands in the transcript is written once; a letter given back keeps its old place.

    Urgent letters have a message each, all announces share the one after them."""
    fresh = [letter.id for letter in choice.urgent if letter.taken_seq is None]
    seq_of = {letter_id: session.head + place for place, letter_id in enumerate(fresh, start=1)}
    shared = session.head + len(fresh) + 1
    rows = Many(
        (run_id, seq_of.get(letter.id, shared), path_of(letter, point, session.idle_at).value, letter.id)
        for letter in choice.taken
    )
    if rows:
        yield (
            "UPDATE inbox SET taken_run = ?, taken_seq = COALESCE(taken_seq, ?), path = ? WHERE id = ?",
            rows,
        )


def answer(now: float, policy: Policy, session: StepRow, run_id: int) -> Tx[None]:
    """The first model response after the taking is committed: this is delivery."""
    rows = yield _TAKEN, (session.id, run_id)
    if rows:
        yield "UPDATE inbox SET state = 1 WHERE id = ?", Many([(row[0],) for row in rows])
    told = sorted([row[3:] for row in rows if row[1] == "announce" and not row[2]])
    if not told:
        return
    delivered = {row[0]: ev.Delivered(now, _PATHS[row[2]], row[1]) for row in told}
    attempts = {task.id: task.attempts for task in (yield from tasks.record_senders(now, policy, delivered))}
    yield (
        _TRACE_DELIVERED,
        Many(
            [
                (task_id, generation, idem, session.id, attempts[task_id] + 1, now, path, path, run_id, seq)
                for task_id, generation, path, idem, seq in told
            ]
        ),
    )


_PATHS = {path.value: path for path in Path}
#: Locked and then changed by number: on SQLite an UPDATE with RETURNING costs three times as much as both.
_TAKEN = (
    "SELECT id, kind, silent, task_id, generation, path, idem, taken_seq FROM inbox"
    " WHERE session_id = ? AND state = 0 AND taken_run = ? {lock}"
)


def refuse(now: float, policy: Policy, session: SessionRow, run_id: int, error: str) -> Tx[None]:
    """The run failed before its model answered. Announces get another try; what people said was heard."""
    yield (
        "UPDATE inbox SET state = 1"
        " WHERE session_id = ? AND state = 0 AND taken_run = ? AND (kind <> 'announce' OR silent = 1)",
        (session.id, run_id),
    )
    rows = yield (
        "SELECT task_id, generation, path, idem, taken_seq FROM inbox"
        " WHERE session_id = ? AND state = 0 AND taken_run = ?",
        (session.id, run_id),
    )
    failed = sorted(rows)
    yield (
        "UPDATE inbox SET taken_run = NULL WHERE session_id = ? AND state = 0 AND taken_run = ?",
        (session.id, run_id),
    )
    yield from tasks.record_senders(
        now, policy, {row[0]: ev.DeliveryFailed(now, error, generation=row[1]) for row in failed}
    )
    if failed:
        why = error[:200]
        yield (
            _TRACE_FAILED,
            Many(
                [
                    (task_id, generation, idem, session.id, task_id, now, path, why, idem, run_id, seq)
                    for task_id, generation, path, idem, seq in failed
                ]
            ),
        )


#: One line per attempt: its number is the count of failed ones, this one included.
_TRACE_DELIVERED = (
    "INSERT INTO deliveries(task_id, generation, letter, to_session, attempt, at, path, outcome, reason, run_id,"
    " transcript_seq) VALUES(?, ?, ?, ?, ?, ?, ?, 'delivered', ?, ?, ?)"
)
_TRACE_FAILED = (
    "INSERT INTO deliveries(task_id, generation, letter, to_session, attempt, at, path, outcome, reason, next_at,"
    " run_id, transcript_seq) VALUES(?, ?, ?, ?, (SELECT attempts FROM tasks WHERE id = ?), ?, ?, 'failed', ?,"
    " (SELECT ready_at FROM inbox WHERE idem = ? AND state = 0), ?, ?)"
)
