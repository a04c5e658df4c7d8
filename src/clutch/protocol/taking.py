"""How letters get into a transcript, and what becomes of their senders.

take    letters become messages of the transcript, in the same transaction. Once, for ever.
answer  the model has answered: the senders' tasks are told so.
refuse  the run failed before that: its letters wait for another try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clutch.core import events as ev
from clutch.core import queueing
from clutch.core.delivery import BACKGROUND, Choice, Point, Running, choose, is_sent, left_behind, way_of
from clutch.core.lifecycle import BUSY
from clutch.core.messages import Input
from clutch.core.model import RETRIED_KINDS, Letter, LetterId, LetterKind, Path, SessionId, TaskId
from clutch.core.policy import Announcing, Policy
from clutch.protocol import pages, routes, tasks, trace
from clutch.protocol.sessions import SessionRow, StepRow
from clutch.protocol.trace import Told
from clutch.store.door import Many, Tx


class Taken(NamedTuple):
    """What a run read. `senders` are the tasks that are told when the model answers."""

    inputs: tuple[Input, ...] = ()
    senders: tuple[int, ...] = ()
    is_any: bool = False
    by_person: bool = False
    interrupts: bool = False
    route: str | None = None  #: where the reply goes
    solo: int | None = None  #: the letter that has this turn for itself
    verbatim: tuple[pages.Verbatim, ...] = ()  #: no model turn: the person reads these as they are


_NOTHING = Taken()
_WAITING = (
    "SELECT id, kind, body, at, ready_at, task_id, generation, silent, route, taken_seq, bubbled_from, hook_route,"
    " late FROM inbox WHERE session_id = ? AND state = 0 AND taken_run IS NULL ORDER BY id"
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
    running: Running = BACKGROUND,
    needs_model: bool = False,
) -> Tx[Taken]:
    """`needs_model`: somebody must go on with what this turn leaves off, so nothing is only sent."""
    rows = yield _WAITING, (session.id,)
    if not rows and not is_settled:
        return _NOTHING
    waiting, senders = yield from _waiting(session, rows)
    rules, is_held = queueing.applied(policy.announcing, session.queue), bool(session.hold)
    choice = choose(
        waiting, point, now=now, rules=rules, is_held=is_held, is_settled=is_settled, running=running
    )
    if choice.dropped:
        yield from _drop(now, policy, choice)
    if choice or point is Point.STEP:
        yield from _tell_senders(now, policy, senders, choice, left_behind(waiting, choice, now=now))
    by_person = any(letter.kind is LetterKind.USER for letter in choice.urgent)
    settles = is_settled and not by_person
    if not choice and not settles:
        return Taken(interrupts=choice.interrupts)
    route = routes.of_turn(session, choice)
    absent = (yield from pages.absent(session, choice, senders, route)) if settles else []
    if not choice and not absent and not session.is_task:
        return _NOTHING  # it has heard everything between two steps of another turn
    told = [letter.task_id for letter in choice.announces if letter.task_id is not None]
    depths = [senders[task_id].depth for task_id in told]
    sends = point is Point.START and not needs_model and is_sent(choice, depths, rules, is_settled=settles)
    audience = pages.audience(session, senders, policy.announcing, is_sent=sends)
    may_send = yield from pages.may_send(session, choice)
    page = pages.Page(rules, senders, {row[0] for row in rows if row[-1]}, nonce, audience, may_send)
    inputs = tuple(page.inputs(choice, point, absent))
    yield from _mark(session, run_id, choice, point, rules)
    solo = next((letter.id for letter in choice.urgent if letter.is_solo), None)
    verbatim = tuple(page.verbatim(choice)) if sends else ()
    return Taken(inputs, tuple(told), True, by_person, choice.interrupts, route, solo, verbatim)


def _waiting(
    session: SessionRow, rows: Sequence[Sequence[Any]]
) -> Tx[tuple[list[Letter], dict[int, pages.Sender]]]:
    """The letters that still have something to say, with their routes, and who wrote them."""
    wrote = sorted({row[5] for row in rows if row[5] is not None})
    senders = (yield from pages.senders(wrote)) if wrote else {}
    letters = [_letter(senders, *row[:-2]) for row in rows]
    if wrote:
        letters = yield from _void_overtaken(letters, senders)
    hooked = {row[0]: row[-2] for row in rows if row[-2]}
    in_threads = [task_id for task_id, sender in senders.items() if sender.is_bound]
    return (yield from routes.resolved(session, letters, hooked, in_threads)), senders


def _letter(
    senders: Mapping[int, pages.Sender],
    letter_id: LetterId,
    kind: str,
    body: str,
    at: float,
    ready_at: float,
    task_id: TaskId | None,
    generation: int | None,
    silent: int,
    route: str,
    taken_seq: int | None,
    bubbled_from: SessionId | None,
) -> Letter:
    sender = None if task_id is None else senders.get(task_id)
    expects_completion = sender is None or sender.expects_completion
    return Letter(
        letter_id, _KINDS[kind], body, at, ready_at, task_id, generation, bool(silent), route, taken_seq,
        expects_completion, bubbled_from=bubbled_from,
    )  # fmt: skip


_KINDS = {kind.value: kind for kind in LetterKind}


def _void_overtaken(waiting: list[Letter], senders: Mapping[int, pages.Sender]) -> Tx[list[Letter]]:
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
    yield "UPDATE inbox SET state = 3 WHERE id = ?", Many((letter.id,) for letter in void)
    return [letter for letter in waiting if letter not in void]


def _drop(now: float, policy: Policy, choice: Choice) -> Tx[None]:
    dropped: dict[int, ev.Event] = {
        letter.task_id: ev.Dropped(now) for letter in choice.dropped if letter.task_id is not None
    }
    yield from tasks.record_senders(now, policy, dropped)


def _tell_senders(
    now: float, policy: Policy, senders: Mapping[int, pages.Sender], choice: Choice, left: Sequence[Letter]
) -> Tx[None]:
    """Of a turn: who waits for the end of it, and who has waited long enough. Each is told once."""
    deferred = {number for number, sender in senders.items() if sender.is_deferred}
    events: dict[int, ev.Event] = {
        letter.task_id: ev.Deferred(now, BUSY, letter.generation or 0)
        for letter in left
        if letter.task_id is not None and letter.task_id not in deferred
    }
    for letter in choice.announces:
        if letter.task_id in deferred:
            events[letter.task_id] = ev.Read(now, letter.generation or 0)
    yield from tasks.record_senders(now, policy, events)


def _mark(session: SessionRow, run_id: int, choice: Choice, point: Point, rules: Announcing) -> Tx[None]:
    """Where it stands in the transcript is written once; a letter given back keeps its old place.

    Urgent letters have a message each, all announces share the one after them."""
    fresh = [letter.id for letter in choice.urgent if letter.taken_seq is None]
    seq_of = {letter_id: session.head + place for place, letter_id in enumerate(fresh, start=1)}
    shared = session.head + len(fresh) + 1
    rows = Many()
    for letter in choice.taken:
        way = way_of(letter, point, rules.mode, idle_since=session.idle_at, was_held=bool(session.hold))
        known = (way.path, letter.route_mode, trace.dumped(way.tried), letter.id)
        rows.append((run_id, seq_of.get(letter.id, shared), *known))
    if rows:
        yield (
            "UPDATE inbox SET taken_run = ?, taken_seq = COALESCE(taken_seq, ?), path = ?, route_mode = ?, tried = ?"
            " WHERE id = ?",
            rows,
        )


def answer(now: float, policy: Policy, session: StepRow, run_id: int) -> Tx[None]:
    """The first model response after the taking is committed: this is delivery."""
    rows = yield _TAKEN, (session.id, run_id)
    if rows:
        yield "UPDATE inbox SET state = 1 WHERE id = ?", Many([(row[0],) for row in rows])
    told = sorted([Told(*row[3:]) for row in rows if row[1] == "announce" and not row[2]])
    if not told:
        return
    delivered = {one.task_id: ev.Delivered(now, _PATHS[one.path], one.generation) for one in told}
    stepped = yield from tasks.record_senders(now, policy, delivered)
    attempts = {int(task.id): task.attempts for task in stepped}
    yield from trace.delivered(now, session.id, run_id, told, attempts)


_PATHS = {path.value: path for path in Path}
#: Locked and then changed by number: on SQLite an UPDATE with RETURNING costs three times as much as both.
_TAKEN = (
    f"SELECT id, kind, silent, {trace.COLUMNS} FROM inbox"  # noqa: S608 (constant columns)
    " WHERE session_id = ? AND state = 0 AND taken_run = ? {lock}"
)


def refuse(now: float, policy: Policy, session: SessionRow, run_id: int, error: str) -> Tx[bool]:
    """The run failed before its model answered. What children have to tell gets another try; what others said was
    heard: a person is told that the turn failed, and a talk between agents is over.

    Is anything tried again?"""
    yield (
        "UPDATE inbox SET state = 1 WHERE session_id = ? AND state = 0 AND taken_run = ?"  # noqa: S608
        f" AND (kind NOT IN ({_FROM_CHILDREN}) OR silent = 1)",
        (session.id, run_id),
    )
    rows = yield (
        f"SELECT id, kind, attempts, {trace.COLUMNS} FROM inbox"  # noqa: S608 (constant columns)
        " WHERE session_id = ? AND state = 0 AND taken_run = ?",
        (session.id, run_id),
    )
    failed = sorted(Told(*row[3:]) for row in rows if row[1] == "announce")
    yield (
        "UPDATE inbox SET taken_run = NULL WHERE session_id = ? AND state = 0 AND taken_run = ?",
        (session.id, run_id),
    )
    yield from tasks.record_senders(
        now,
        policy,
        {one.task_id: ev.DeliveryFailed(now, error, generation=one.generation) for one in failed},
    )
    if failed:
        yield from trace.failed(now, session.id, run_id, failed, error)
    waits = yield from _give_back(now, policy, [row[:3] for row in rows if row[1] != "announce"])
    return bool(failed) or waits


_FROM_CHILDREN = ", ".join(sorted(f"'{kind.value}'" for kind in RETRIED_KINDS))


def _give_back(now: float, policy: Policy, letters: Sequence[Sequence[Any]]) -> Tx[bool]:
    """Letters that move no task: tried as often as a result. A plan that is given up still waits for a person."""
    is_any = False
    for letter_id, _, attempts in letters:
        delay = policy.announcing.delay_s(attempts + 1, seed=letter_id)
        if delay is None:
            yield "UPDATE inbox SET state = 2 WHERE id = ?", (letter_id,)
            continue
        is_any = True
        yield (
            "UPDATE inbox SET attempts = attempts + 1, ready_at = ? WHERE id = ?",
            (now + delay, letter_id),
        )
    return is_any
