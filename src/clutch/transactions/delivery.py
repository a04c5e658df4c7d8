"""How letters get into a transcript, and what is recorded at their senders.

take    letters become messages of the transcript, in the same transaction. Once, for ever.
answer  the model has answered: every letter that stands in the transcript is delivered, whichever run took it.
refuse  the run failed before that: its letters wait for another try, in their place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clutch.core import delivery, ids
from clutch.core import events as ev
from clutch.core.delivery import (
    BACKGROUND,
    PUSH_CHANNEL,
    LetterSelection,
    Point,
    RunningTurn,
    SendOutcome,
    choose,
    is_sent,
    left_behind,
    way_of,
)
from clutch.core.messages import Input
from clutch.core.model import (
    OWN_REPLY_KINDS,
    PERSON_KINDS,
    RETRIED_KINDS,
    Delivery,
    Letter,
    LetterKind,
    LetterState,
    Path,
    Reason,
)
from clutch.core.policy import Announcing, Policy
from clutch.store.transaction import HINT, ManyRows, Tx
from clutch.transactions import idempotency, inbox, outbox, tasks, transcript
from clutch.transactions.conditions import IS_ANSWERED, IS_DEAD, IS_OPEN
from clutch.transactions.control import NotPossible
from clutch.transactions.inbox import TracedLetter
from clutch.transactions.outbox import DecidedMessage, OutboxMessage
from clutch.transactions.sessions import SessionRow, StepRow


class Taken(NamedTuple):
    """What a run read. `senders` are the tasks whose results the model's next answer delivers."""

    inputs: tuple[Input, ...] = ()
    senders: tuple[int, ...] = ()
    is_any: bool = False
    by_person: bool = False
    interrupts: bool = False
    route: str | None = None  #: where the reply goes
    solo: int | None = None  #: the letter that has this turn for itself
    verbatim: tuple[transcript.Verbatim, ...] = ()  #: no model turn: the person reads these as they are


_NOTHING = Taken()
_LETTER = (
    "id, kind, body, at, ready_at, task_id, generation, silent, route, taken_seq, bubbled_from, hook_route, late,"
    " taken_run, state"
)
#: What waits to be taken; and what stands in the transcript unanswered, given up or sent to a person.
_WAITING = (
    f"SELECT {_LETTER} FROM inbox WHERE session_id = ? AND {IS_OPEN}"  # noqa: S608 (constant columns)
    f" UNION ALL SELECT {_LETTER} FROM inbox WHERE session_id = ? AND {IS_DEAD} AND taken_seq IS NOT NULL ORDER BY id"
)


def take(
    now: float,
    policy: Policy,
    session: SessionRow,
    run_id: int,
    point: Point,
    *,
    nonce: str,
    is_settled: bool = False,
    running: RunningTurn = BACKGROUND,
    needs_model: bool = False,
) -> Tx[Taken]:
    """`needs_model`: a model must continue what this turn leaves off, so no result is only sent."""
    rows = yield _WAITING, (session.id, session.id)
    if not rows and not is_settled:
        return _NOTHING
    waiting, senders = yield from _waiting(session, rows)
    answered = _results_standing(rows)
    rules, is_held = delivery.applied(policy.announcing, session.queue), bool(session.hold)
    choice = choose(
        waiting, point, now=now, rules=rules, is_held=is_held, is_settled=is_settled, running=running
    )
    if choice.dropped:
        yield from _drop(now, policy, choice)
    if choice or point is Point.STEP:
        yield from _tell_senders(now, policy, senders, choice, left_behind(waiting, choice, now=now))
    by_person = any(letter.kind in PERSON_KINDS for letter in choice.urgent)
    settles = is_settled and not by_person
    if not choice and not settles:
        return Taken(interrupts=choice.interrupts)
    route = transcript.of_turn(session, choice)
    absent = (yield from transcript.absent(session, choice, senders, route)) if settles else []
    if not choice and not absent and not session.is_task:
        return _NOTHING  # it has read everything between two steps of another turn
    told = [letter.task_id for letter in choice.announces if letter.task_id is not None]
    depths = [senders[task_id].depth for task_id in told]
    sends = point is Point.START and not needs_model and is_sent(choice, depths, rules, is_settled=settles)
    audience = transcript.audience(session, senders, policy.announcing, is_sent=sends)
    may_send = yield from transcript.may_send(session, choice)
    prompt = transcript.prompt(policy, session, by_person=by_person)
    page = transcript.LetterRenderer(
        rules, senders, {row[0] for row in rows if row[-3]}, nonce, audience, may_send, prompt
    )
    inputs = tuple(page.inputs(choice, point, absent))
    yield from _mark(session, run_id, choice, point, rules)
    solo = next((letter.id for letter in choice.urgent if letter.is_solo), None)
    verbatim = tuple(page.verbatim(choice)) if sends else ()
    deliverable = tuple(dict.fromkeys((*told, *answered)))
    return Taken(inputs, deliverable, True, by_person, choice.interrupts, route, solo, verbatim)


def _results_standing(rows: Sequence[Sequence[Any]]) -> list[int]:
    """The senders of results that are in the transcript already: the next answer delivers these, too."""
    return [row[5] for row in rows if row[1] == LetterKind.ANNOUNCE and not row[7] and row[9] is not None]


def _waiting(
    session: SessionRow, rows: Sequence[Sequence[Any]]
) -> Tx[tuple[list[Letter], dict[int, transcript.Sender]]]:
    """The letters that a run may take, with their routes, and who wrote them."""
    wrote = sorted({row[5] for row in rows if row[5] is not None})
    senders = (yield from transcript.senders(wrote)) if wrote else {}
    letters = [_letter(senders, row[:-4]) for row in rows if row[-2] is None]
    if wrote:
        letters = yield from _void_overtaken(letters, senders)
    given_up = {row[0] for row in rows if row[-1]}
    letters = [letter for letter in letters if letter.id not in given_up]
    hooked = {row[0]: row[-4] for row in rows if row[-4]}
    in_threads = [task_id for task_id, sender in senders.items() if sender.is_bound]
    return (yield from transcript.resolved(session, letters, hooked, in_threads)), senders


def _letter(senders: Mapping[int, transcript.Sender], row: Sequence[Any]) -> Letter:
    letter_id, kind, body, at, ready_at, task_id, generation, silent, route, taken_seq, bubbled_from = row
    sender = None if task_id is None else senders.get(task_id)
    expects_completion = sender is None or sender.expects_completion
    return Letter(
        letter_id, _KINDS[kind], body, at, ready_at, task_id, generation, bool(silent), route, taken_seq,
        expects_completion, bubbled_from=bubbled_from,
    )  # fmt: skip


_KINDS = {kind.value: kind for kind in LetterKind}


_OVERTAKEN = inbox.move(LetterState.OPEN, to=LetterState.VOID)
_ANSWERED = inbox.move(LetterState.OPEN, to=LetterState.ANSWERED)
_ANSWERED_AFTER_ALL = inbox.move(LetterState.OPEN, LetterState.DEAD, to=LetterState.ANSWERED)
_GIVEN_UP = inbox.move(LetterState.OPEN, to=LetterState.DEAD)


def _void_overtaken(waiting: list[Letter], senders: Mapping[int, transcript.Sender]) -> Tx[list[Letter]]:
    """A letter of an older generation has nothing to say: a newer run will make a new one.

    Nor has one that a kill has skipped since it was selected."""

    def overtaken(letter: Letter) -> bool:
        sender = senders.get(letter.task_id or 0)
        if letter.task_id is None:
            return False
        if sender is None or sender.generation != letter.generation:
            return True
        if letter.kind is LetterKind.PLAN and sender.outcome is not None:
            return True  # rejected or expired: there is nothing left to decide
        return sender.is_skipped and not letter.silent

    void = [letter for letter in waiting if overtaken(letter)]
    if not void:
        return waiting
    yield f"{_OVERTAKEN} AND id = ?", ManyRows((letter.id,) for letter in void)
    return [letter for letter in waiting if letter not in void]


def _drop(now: float, policy: Policy, choice: LetterSelection) -> Tx[None]:
    dropped: dict[int, ev.Event] = {
        letter.task_id: ev.Dropped(now) for letter in choice.dropped if letter.task_id is not None
    }
    yield from tasks.record_senders(now, policy, dropped)


def _tell_senders(
    now: float,
    policy: Policy,
    senders: Mapping[int, transcript.Sender],
    choice: LetterSelection,
    left: Sequence[Letter],
) -> Tx[None]:
    """Record at the senders which results wait for the end of this turn, and which are read now. Each once."""
    deferred = {number for number, sender in senders.items() if sender.is_deferred}
    events: dict[int, ev.Event] = {
        letter.task_id: ev.Deferred(now, Reason.BUSY, letter.generation or 0)
        for letter in left
        if letter.task_id is not None and letter.task_id not in deferred
    }
    for letter in choice.announces:
        if letter.task_id in deferred:
            events[letter.task_id] = ev.Read(now, letter.generation or 0)
    yield from tasks.record_senders(now, policy, events)


def _mark(
    session: SessionRow, run_id: int, choice: LetterSelection, point: Point, rules: Announcing
) -> Tx[None]:
    """Where it stands in the transcript is written once; a letter given back keeps its old place.

    Urgent letters have a message each, all announces share the one after them."""
    fresh = [letter.id for letter in choice.urgent if letter.taken_seq is None]
    seq_of = {letter_id: session.head + place for place, letter_id in enumerate(fresh, start=1)}
    shared = session.head + len(fresh) + 1
    rows = ManyRows()
    for letter in choice.taken:
        way = way_of(letter, point, rules.mode, idle_since=session.idle_at, was_held=bool(session.hold))
        known = (way.path, letter.route_mode, inbox.dumped(way.tried), letter.id)
        rows.append((run_id, seq_of.get(letter.id, shared), *known))
    if rows:
        yield (
            "UPDATE inbox SET taken_run = ?, taken_seq = COALESCE(taken_seq, ?), path = ?, route_mode = ?, tried = ?"
            " WHERE id = ?",
            rows,
        )


class Unanswered(NamedTuple):
    """A letter in the transcript that no model has answered."""

    id: int
    is_open: int  #: 0: it was given up, and stands there all the same
    is_result: int
    told: TracedLetter


def unanswered(session_id: int, run_id: int) -> Tx[list[Unanswered]]:
    """What the next answer of this run is an answer to: everything in the transcript that has none, whichever run
    put it there. Except a letter that has a turn of its own: its reply goes its own way."""
    rows = yield _UNANSWERED, (session_id, run_id, session_id)
    return [Unanswered(row[0], row[1], row[2], TracedLetter(*row[3:])) for row in rows]


def answer(now: float, policy: Policy, session: StepRow, run_id: int) -> Tx[None]:
    """The first model response after the taking is committed: this is delivery."""
    letters = yield from unanswered(session.id, run_id)
    # The tasks are locked before their letters, as everywhere where one is redelivered, dismissed or sent.
    told = sorted(letter.told for letter in letters if letter.is_result)
    events = {one.task_id: ev.Delivered(now, _PATHS[one.path], one.generation) for one in told}
    stepped = yield from tasks.record_senders(now, policy, events)
    delivered = {int(task.id) for task in stepped if task.delivery is Delivery.DELIVERED}
    heard = [
        letter
        for letter in letters
        if letter.is_open or not letter.is_result or letter.told.task_id in delivered
    ]
    if heard:
        yield f"{_ANSWERED_AFTER_ALL} AND id = ?", ManyRows([(letter.id,) for letter in heard])
    results = sorted(letter.told for letter in heard if letter.is_result)
    if results:
        attempts = {int(task.id): task.attempts for task in stepped}
        yield from inbox.delivered(now, session.id, run_id, results, attempts)


_PATHS = {path.value: path for path in Path}
OF_ITS_OWN = ", ".join(sorted(f"'{kind.value}'" for kind in OWN_REPLY_KINDS))
_STANDING = (
    f"SELECT id, CASE WHEN {IS_OPEN} THEN 1 ELSE 0 END, CASE WHEN kind = 'announce' AND silent = 0 THEN 1 ELSE 0 END,"  # noqa: S608
    f" {inbox.TRACED_COLUMNS} FROM inbox WHERE session_id = ? AND taken_seq IS NOT NULL AND "
)
_UNANSWERED = (
    f"{_STANDING}{IS_OPEN} AND (taken_run = ? OR kind NOT IN ({OF_ITS_OWN})) UNION ALL {_STANDING}{IS_DEAD}"
)


def refuse(now: float, policy: Policy, session: SessionRow, run_id: int, error: str) -> Tx[bool]:
    """The run failed before its model answered. Results and notices of children get another try; other letters count
    as read: the user is notified that the turn failed, and a talk between agents is over.

    Returns whether anything is tried again."""
    yield (
        f"{_ANSWERED} AND session_id = ? AND taken_run = ?"
        f" AND (kind NOT IN ({_FROM_CHILDREN}) OR silent = 1)",
        (session.id, run_id),
    )
    rows = yield (
        f"SELECT id, kind, attempts, {inbox.TRACED_COLUMNS} FROM inbox"  # noqa: S608 (constant columns)
        f" WHERE session_id = ? AND {IS_OPEN} AND taken_run = ?",
        (session.id, run_id),
    )
    failed = sorted(TracedLetter(*row[3:]) for row in rows if row[1] == "announce")
    yield (
        f"UPDATE inbox SET taken_run = NULL WHERE session_id = ? AND {IS_OPEN} AND taken_run = ?",  # noqa: S608
        (session.id, run_id),
    )
    yield from tasks.record_senders(
        now,
        policy,
        {one.task_id: ev.DeliveryFailed(now, error, generation=one.generation) for one in failed},
    )
    if failed:
        yield from inbox.failed(now, session.id, run_id, failed, error)
    waits = yield from _give_back(now, policy, [row[:3] for row in rows if row[1] != "announce"])
    return bool(failed) or waits


_FROM_CHILDREN = ", ".join(sorted(f"'{kind.value}'" for kind in RETRIED_KINDS))


def _give_back(now: float, policy: Policy, letters: Sequence[Sequence[Any]]) -> Tx[bool]:
    """Letters that move no task: tried as often as a result. A plan that is given up still waits for a person."""
    is_any = False
    for letter_id, _, attempts in letters:
        delay = policy.announcing.delay_s(attempts + 1, seed=letter_id)
        if delay is None:
            yield f"{_GIVEN_UP} AND id = ?", (letter_id,)
            continue
        is_any = True
        yield (
            "UPDATE inbox SET attempts = attempts + 1, ready_at = ? WHERE id = ?",
            (now + delay, letter_id),
        )
    return is_any


# --------------------------------------------------------------------------------------------------
# The outcome of a send: done, to be retried, given up, or not known.
#
# A reply of an agent is retried by its own row. A task's result that goes to a user as it is has one retry loop
# already, that of its letter: the task records every outcome, and a failed result goes back to the parent's inbox.

KNOWN_MAX = 20  #: results per session whose reply may still come; an older one is shown
REASON_CHARS_MAX = 200


def done(now: float, policy: Policy, worker_id: int, parcel: OutboxMessage, receipt: str | None) -> Tx[None]:
    """Sent. A worker that lost the row to another has no say: the other one reports."""
    if (yield from outbox.sent(now, worker_id, parcel, receipt)):
        yield from _told(now, policy, parcel)
    yield HINT, ("parcel", parcel.id)


def failed(now: float, policy: Policy, worker_id: int, parcel: OutboxMessage, error: str) -> Tx[float | None]:
    """Due again after a while. None: given up, and the row stays with its error."""
    delay_s = policy.announcing.delay_s(parcel.attempt, seed=parcel.id)
    due_at = None if delay_s is None or (yield from _is_retried_by_letter(parcel)) else now + delay_s
    if parcel.channel == PUSH_CHANNEL and due_at is None:
        yield from outbox.drop(now, worker_id, parcel, error)
        return None
    if (yield from outbox.let_go(now, worker_id, parcel, SendOutcome.FAILED, error, due_at=due_at)):
        yield from _refused(now, policy, parcel, error, is_permanent=False)
    return due_at


def refused(now: float, policy: Policy, worker_id: int, parcel: OutboxMessage, error: str) -> Tx[None]:
    """A permanent error: never to be sent again by itself."""
    if parcel.channel == PUSH_CHANNEL:
        yield from outbox.drop(now, worker_id, parcel, error)
        return
    if (yield from outbox.let_go(now, worker_id, parcel, SendOutcome.REFUSED, error)):
        yield from _refused(now, policy, parcel, error, is_permanent=True)


def unconfirmed(now: float, policy: Policy, worker_id: int, parcel: OutboxMessage, why: str) -> Tx[None]:
    """Sent, without an answer. After a second send the user might read it twice; a notification replaces itself."""
    if parcel.channel == PUSH_CHANNEL:
        yield from failed(now, policy, worker_id, parcel, why)
        return
    if (yield from outbox.let_go(now, worker_id, parcel, SendOutcome.UNSURE, why)):
        yield from _told(now, policy, parcel, unsure=f"{parcel.channel}: {why}"[:REASON_CHARS_MAX])


def resend(now: float, policy: Policy, message_id: int, actor: str) -> Tx[None]:
    """Send a message that is not sent again by itself, with all its attempts. The operator accepts that one whose
    outcome is unsure may arrive twice."""
    decided = yield from outbox.resend(now, message_id)
    channel = yield from _decided(now, policy, message_id, decided, "its message is sent again", actor=actor)
    yield HINT, ("outbox", channel)


def dismiss(now: float, policy: Policy, message_id: int, actor: str) -> Tx[None]:
    """Discard a message that is not sent again by itself. It leaves the lists; its row keeps the outcome."""
    decided = yield from outbox.dismiss(now, message_id)
    yield from _decided(now, policy, message_id, decided, "its message was dismissed", actor=actor)


def _decided(
    now: float, policy: Policy, message_id: int, decided: DecidedMessage | None, line: str, *, actor: str
) -> Tx[str]:
    if decided is None:
        raise NotPossible(
            f"{ids.message_id(message_id)} needs no decision: it was sent or dismissed, or it is sent again by itself"
        )
    if decided.task_id is not None:
        yield from tasks.note_all(now, policy, [decided.task_id], ev.Noted(now, line), actor)
    return decided.channel


def hand_out(
    now: float, policy: Policy, session_id: int, channel: str, parcel_id: int | None = None
) -> Tx[str | None]:
    """The oldest reply of one session, for a client of the local channel: claimed and done.

    `parcel_id`: the one that was shown to it, if no other client has taken it."""
    parcel = yield from outbox.hand_out(now, session_id, channel, parcel_id)
    if parcel is None:
        return None
    yield from _told(now, policy, parcel)
    return parcel.body


def known_already(now: float, policy: Policy, session_id: int, channel: str, task_id: int) -> Tx[None]:
    """The user has read this task's result: the agent's reply about it need not be read, too.

    A reply that is still to come is marked as read when it is written (`reply_of_known`)."""
    # The turn that writes the reply holds this lock, too: neither of the two misses what the other has written.
    yield "SELECT id FROM sessions WHERE id = ? {lock}", (session_id,)
    if not (yield from _hand_out_reply(now, policy, session_id, channel, task_id)):
        known = (yield from _known(now, session_id))[-KNOWN_MAX + 1 :]
        yield from idempotency.exchange(now, _known_key(session_id), json.dumps([*known, task_id]))


def reply_of_known(now: float, policy: Policy, session_id: int, channel: str) -> Tx[None]:
    """The agent has just replied: the reply is marked as read if the user knows the result it is about."""
    known, left = (yield from _known(now, session_id)), []
    for task_id in known:
        if not (yield from _hand_out_reply(now, policy, session_id, channel, task_id)):
            left.append(task_id)
    if left != known:
        yield from idempotency.exchange(now, _known_key(session_id), json.dumps(left) if left else "")


def _known(now: float, session_id: int) -> Tx[list[int]]:
    """Tasks whose results the user has read before the agent's reply about them."""
    kept = yield from idempotency.kept_reply(now, _known_key(session_id))
    return [] if kept is None else list(json.loads(kept.body))


def _known_key(session_id: int) -> str:
    return f"known:{session_id}"


def _hand_out_reply(now: float, policy: Policy, session_id: int, channel: str, task_id: int) -> Tx[bool]:
    """Only a reply about this task alone, in a turn that no message of a user or another session was part of."""
    rows = yield (
        "SELECT id FROM outbox WHERE session_id = ? AND idem IN (SELECT 'reply:' || d.run_id FROM deliveries d"
        " WHERE d.task_id = ? AND NOT EXISTS (SELECT 1 FROM deliveries o WHERE o.run_id = d.run_id"
        " AND o.task_id <> d.task_id) AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.session_id = ?"
        " AND i.taken_run = d.run_id AND i.kind <> ?))",
        (session_id, task_id, session_id, LetterKind.ANNOUNCE.value),
    )
    for (parcel_id,) in rows:
        yield from hand_out(now, policy, session_id, channel, parcel_id)
    return bool(rows)


def _is_retried_by_letter(parcel: OutboxMessage) -> Tx[bool]:
    """Not once a turn has answered the result: the letter is closed, and the message is retried by its own row."""
    if parcel.task_id is None:
        return False
    return not (yield f"SELECT 1 FROM inbox WHERE idem = ? AND {IS_ANSWERED}", (parcel.key,))  # noqa: S608


def _told(now: float, policy: Policy, parcel: OutboxMessage, *, unsure: str | None = None) -> Tx[None]:
    """`unsure`: it may have been read, and why this is not known."""
    if parcel.task_id is None or parcel.generation is None:
        return
    event = (
        ev.Delivered(now, Path.DIRECT, parcel.generation)
        if unsure is None
        else ev.Unconfirmed(now, parcel.generation, unsure)
    )
    (task,) = yield from tasks.record_senders(now, policy, {parcel.task_id: event})
    # A person may read what was given up: it is delivered then, and no turn delivers it again.
    start = _ANSWERED_AFTER_ALL if task.delivery is Delivery.DELIVERED else _ANSWERED
    rows = yield (
        f"{start} AND idem = ? RETURNING session_id, taken_run, {inbox.TRACED_COLUMNS}",
        (parcel.key,),
    )
    for session_id, run_id, *letter in rows:
        yield from inbox.delivered(
            now, session_id, run_id, [TracedLetter(*letter)], {task.id: task.attempts}, unsure=unsure
        )


def _refused(
    now: float, policy: Policy, parcel: OutboxMessage, error: str, *, is_permanent: bool
) -> Tx[None]:
    if parcel.task_id is None or parcel.generation is None:
        return
    rows = yield (
        f"SELECT session_id, taken_run, {inbox.TRACED_COLUMNS} FROM inbox WHERE idem = ? AND NOT {IS_ANSWERED}",  # noqa: S608
        (parcel.key,),
    )
    event = ev.DeliveryFailed(now, error, parcel.generation, is_permanent)
    yield from tasks.record_senders(now, policy, {parcel.task_id: event})
    for session_id, run_id, *letter in rows:
        yield from inbox.failed(now, session_id, run_id, [TracedLetter(*letter)], error)
        yield f"UPDATE inbox SET seen = 0 WHERE idem = ? AND {IS_OPEN}", (parcel.key,)  # noqa: S608
        yield HINT, ("mail", session_id)
