"""What the model said and what came of it. Between two steps a run is steered, interrupted, paused or put to sleep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from clutch.core import events as ev
from clutch.core.admission import Refused
from clutch.core.delivery import Point, Running
from clutch.core.messages import Answer, Call, Input, Result, Results
from clutch.core.policy import Policy
from clutch.core.wording.calls import main_argument
from clutch.protocol import sessions, taking, tasks
from clutch.protocol.redacting import reword
from clutch.protocol.sessions import SessionRow
from clutch.protocol.spawn import Accepted, Order, spawn
from clutch.protocol.turns import writing
from clutch.store.door import Many, Tx

NO_CHILD = "no child of yours is at work and nothing is left to report: there is nothing to wait for"

YIELDED = "waiting: you will be woken once, when all your children have settled"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Between two steps: what was injected, and whether the run may go on.

    `interrupts`: letters want a turn of their own in place of this one (`interrupt`)."""

    inputs: tuple[Input, ...] = ()
    goes_on: bool = True
    interrupts: bool = False
    is_unanswered: bool = False
    senders: tuple[int, ...] = ()


_ON = Boundary()


def respond(
    now: float,
    policy: Policy,
    session_id: int,
    fence: int,
    run_id: int,
    answer: Answer,
    replay_safe: Sequence[bool],
    is_unanswered: bool,
    usd: Decimal | None = None,
    events_upto: int = 0,
) -> Tx[int]:
    """The model spoke and wants tools: its words and its intents, before anything is done. The new head."""
    session = yield from sessions.own_step(session_id, fence)
    yield from writing.say(now, policy, session, run_id, answer, is_unanswered, usd, events_upto)
    yield (
        "INSERT INTO calls(session_id, seq, idx, run_id, name, replay_safe) VALUES(?, ?, ?, ?, ?, ?)",
        Many(
            (session.id, session.head, index, run_id, call.name, int(replay_safe[index]))
            for index, call in enumerate(answer.calls)
        ),
    )
    yield sessions.moved(now, session)
    return session.head


def journal(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, said: Answer, gave: Results
) -> Tx[int]:
    """Calls that foreign code has made by itself: done when they are told, so none is ever open. The new head."""
    del policy
    session = yield from sessions.own_step(session_id, fence)
    yield from writing.append(now, session, run_id, [said, gave])
    yield (
        "INSERT INTO calls(session_id, seq, idx, run_id, name, replay_safe) VALUES(?, ?, ?, ?, ?, 0)",
        Many(
            (session_id, session.head - 1, index, run_id, call.name) for index, call in enumerate(said.calls)
        ),
    )
    yield sessions.moved(now, session)
    return session.head


def spoke(now: float, policy: Policy, session_id: int, fence: int, run_id: int) -> Tx[None]:
    """Foreign code has said something on the way: a sign of life."""
    del policy, run_id
    yield sessions.moved(now, (yield from sessions.own_step(session_id, fence)))


def doing(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, call: Call | None
) -> Tx[None]:
    """What foreign code does right now, for whoever looks; None: nothing that it tells of."""
    yield from spoke(now, policy, session_id, fence, run_id)
    yield "DELETE FROM doing WHERE session_id = ?", (session_id,)
    if call is not None:
        yield (
            "INSERT INTO doing(session_id, run_id, name, arg, at) VALUES(?, ?, ?, ?, ?)",
            (session_id, run_id, call.name, main_argument(call.args), now),
        )


def results(
    now: float,
    policy: Policy,
    session_id: int,
    fence: int,
    run_id: int,
    outcome: Results,
    nonce: str,
    instead: Answer | None = None,
) -> Tx[Boundary]:
    """What the calls gave, and what arrived meanwhile. Here a run is steered, interrupted or parked.

    `instead`: how their answer is kept from now on, without the contents of files it gave away."""
    step, is_more = yield from sessions.own_at_step(session_id, fence)
    if instead is not None:
        yield from reword(step, instead)
    if is_more:
        return (yield from _results_and_mail(now, policy, session_id, fence, run_id, outcome, nonce))
    yield writing.MESSAGE, writing.line(now, step, run_id, outcome)
    yield sessions.moved(now, step)
    yield from writing.foresee(now, policy, step, run_id)
    return _ON


def _results_and_mail(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, outcome: Results, nonce: str
) -> Tx[Boundary]:
    session = yield from sessions.own(session_id, fence)
    yield writing.MESSAGE, writing.line(now, session, run_id, outcome)
    if session.paused:
        session.progress_at = now
        yield from writing.stay_paused(now, policy, session)
        return Boundary(goes_on=False)
    return (yield from read_on(now, policy, session, run_id, nonce))


def read_on(now: float, policy: Policy, session: SessionRow, run_id: int, nonce: str) -> Tx[Boundary]:
    rows = yield "SELECT by_person, route FROM runs WHERE id = ?", (run_id,)
    running = Running(bool(rows[0][0]), rows[0][1] or "")
    taken = yield from taking.take(now, policy, session, run_id, Point.STEP, nonce, running=running)
    yield from writing.append(now, session, run_id, taken.inputs)
    if session.paused:
        session.progress_at = now
        yield from writing.stay_paused(now, policy, session)
        return Boundary(goes_on=False)
    yield sessions.moved(now, session)
    yield from writing.foresee(now, policy, session, run_id)
    return Boundary(taken.inputs, True, taken.interrupts, taken.is_any, taken.senders)


def yields(
    now: float,
    policy: Policy,
    session_id: int,
    fence: int,
    run_id: int,
    outcome: Results,
    places: Sequence[int],
    nonce: str,
    instead: Answer | None = None,
) -> Tx[Boundary]:
    """`sessions_yield`: results, end of run and hold in one commit; a crash between them would un-yield."""
    session = yield from sessions.own(session_id, fence)
    if not (yield from sessions.untold(session_id)):
        said = with_yields(outcome, places, NO_CHILD)
        return (yield from results(now, policy, session_id, fence, run_id, said, nonce, instead))
    if instead is not None:
        yield from reword(session, instead)
    yield writing.MESSAGE, writing.line(now, session, run_id, with_yields(outcome, places, YIELDED))
    session.progress_at = now
    yield from writing.end_run(now, session, run_id, "yield")
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Yielded(now))
    else:
        yield from tasks.forget_notes(session.id)
    session.hold, session.hold_until = 1, now + policy.life.settle_expiry_s
    yield from sessions.save(now, policy, session)
    return Boundary(goes_on=False)


def with_yields(outcome: Results, places: Sequence[int], text: str) -> Results:
    """Every call has a result, also the second yield of an answer."""
    return in_order([*outcome.results, *(Result(place, "sessions_yield", text) for place in places)])


def in_order(gave: Iterable[Result]) -> Results:
    return Results(tuple(sorted(gave, key=lambda result: result.index)))


def delegate(
    now: float,
    policy: Policy,
    session_id: int,
    fence: int,
    run_id: int,
    root_id: int,
    orders: Sequence[Order],
    wrong: Sequence[Result],
    sleeps: Sequence[int],
    nonce: str,
    in_words: Callable[[Order, Accepted | Refused], Result],
) -> Tx[tuple[Results, Boundary]]:
    """An answer that spawns and calls no other tool: children, results and perhaps the hold in one commit.

    `wrong`: results of the spawn calls that made no sense; `sleeps`: the places of its yields."""
    answers = yield from spawn(now, policy, session_id, root_id, fence, orders)
    given = [in_words(order, got) for order, got in zip(orders, answers, strict=True)]
    outcome, known = in_order([*wrong, *given]), (policy, session_id, fence, run_id)
    if not sleeps:
        return outcome, (yield from results(now, *known, outcome, nonce))
    boundary = yield from yields(now, *known, outcome, sleeps, nonce)
    return with_yields(outcome, sleeps, NO_CHILD), boundary


def remind(
    now: float,
    policy: Policy,
    session_id: int,
    fence: int,
    run_id: int,
    answer: Answer,
    note: Input,
    is_unanswered: bool,
    usd: Decimal | None = None,
) -> Tx[int]:
    """It spoke where something else was asked for: its words and a note, and the run goes on. The new head."""
    session = yield from sessions.own(session_id, fence)
    yield from writing.say(now, policy, session, run_id, answer, is_unanswered, usd)
    yield from writing.append(now, session, run_id, [note])
    session.progress_at = now
    yield from sessions.save(now, policy, session)
    yield from writing.foresee(now, policy, session, run_id)
    return session.head
