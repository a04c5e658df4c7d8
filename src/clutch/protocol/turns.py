"""The transactions of one run: begin, respond, results, and the ways it stops.

Each is guarded by the owner's fence. Two per step: `respond` commits what the model said and what it
means to do, `results` what came of it together with the letters that arrived meanwhile. So after a
kill -9 the transcript says exactly where to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from clutch.core import events as ev
from clutch.core import messages, runs, wording
from clutch.core.admission import Refused
from clutch.core.authority import Role
from clutch.core.delivery import Point, Running
from clutch.core.messages import Answer, Input, Message, Result, Results
from clutch.core.model import ANSWERED, LetterKind, Outcome, Wait
from clutch.core.policy import ExpiryFrom, LateResult, Policy
from clutch.protocol import context, last_words, news, outbox, sessions, taking, tasks, usage
from clutch.protocol.redacting import redact_open, reword
from clutch.protocol.sessions import SessionRow, StepRow
from clutch.protocol.spawn import Accepted, Order, spawn
from clutch.protocol.taking import Taken
from clutch.protocol.usage import Fate
from clutch.store.door import Many, Row, Tx

NO_CHILD = "no child of yours is at work and nothing is left to report: there is nothing to wait for"
YIELDED = "waiting: you will be woken once, when all your children have settled"


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


def begin(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, nonce: str
) -> Tx[Begun | None]:
    """After a claim: go on with the open run, or open one with what waits. None: nothing to do, released."""
    session = yield from sessions.own(session_id, fence)
    if session.paused:
        yield from _stay_paused(now, policy, session)
        return None
    if session.run_id is not None:
        return (yield from _go_on(now, policy, session))
    return (yield from _open_run(now, policy, session, run_id, nonce))


def _stay_paused(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    yield from usage.give_up(now, policy, session, Fate.UNKNOWN)  # of an owner that died
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Paused(now))
    yield from _release(now, policy, session, parked_until=now)


def _go_on(now: float, policy: Policy, session: SessionRow) -> Tx[Begun | None]:
    rows = yield (
        "SELECT parked_until, crashes, failures, progress_head FROM runs WHERE id = ?",
        (session.run_id,),
    )
    parked_until, *counted = rows[0]
    run_id = session.run_id or 0
    if parked_until is not None:
        yield "UPDATE runs SET parked_until = NULL WHERE id = ?", (run_id,)
        event: ev.Event = ev.Started(now)
    else:
        counters = runs.taken_over(runs.Counters(*counted), session.head)
        if runs.is_crash_loop(counters, policy.life):
            yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
            text = yield from partial(session.id, run_id)
            yield from _end(now, policy, session, "crash loop", text, is_final=True)
            return None
        yield (
            "UPDATE runs SET crashes = ?, failures = ?, progress_head = ? WHERE id = ?",
            (counters.crashes, counters.failures, counters.progress_head, run_id),
        )
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
        yield from _foresee(now, policy, session, run_id)
    # Answered: it parked before its calls were started, so nobody can have interrupted them.
    is_answered = parked_until == ANSWERED
    return Begun(
        run_id, session.head, session.base, session.depth, not is_answered, bool(rows), senders, is_answered
    )


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
        yield from _release(now, policy, session)
        return None
    if is_settled and not taken.by_person:
        session.hold, session.hold_until = 0, None
    yield from _append(now, session, run_id, taken.inputs)
    if taken.verbatim:
        yield from _send(now, policy, session, run_id, taken)
        return None
    generation = 0
    if session.is_task:
        generation = (yield from tasks.record(now, policy, session, ev.Started(now))).generation
    yield from _new_run(now, session, run_id, generation, taken)
    yield from sessions.save(now, policy, session)
    yield from _foresee(now, policy, session, run_id)
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
    yield from _release(now, policy, session)


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
    yield from _end_run(now, session, run_id, "interrupted")
    yield from _append(now, session, next_run_id, taken.inputs)
    generation = 0
    if session.is_task:
        parked = ev.Parked(now, Wait.INTERRUPT)
        generation = (yield from tasks.record(now, policy, session, parked)).generation
    yield from _new_run(now, session, next_run_id, generation, taken)
    yield from _release(now, policy, session, parked_until=now)
    return True


def _sign_of_life(now: float, policy: Policy, session_id: int) -> Tx[float | None]:
    if policy.life.settle_expiry_from is ExpiryFrom.END:
        return None
    return now if (yield from person_waits(session_id)) else (yield from progress_below(session_id))


def _has_open_calls(session: SessionRow) -> Tx[bool]:
    """Then tools come first, and their results foresee the next model call."""
    rows = yield "SELECT 1 FROM calls WHERE session_id = ? AND seq = ?", (session.id, session.head)
    return bool(rows)


def _foresee(now: float, policy: Policy, session: StepRow, run_id: int) -> Tx[None]:
    """With a budget the call must be reserved, which takes a transaction of its own."""
    if not usage.is_budgeted(policy, session.purses):
        yield from usage.foresee(now, session.id, run_id, session.model or policy.model_of(session.agent_id))


def _close_calls(now: float, session: SessionRow, run_id: int) -> Tx[None]:
    """Calls an older run left open get a synthetic result: a transcript never has an unanswered call."""
    rows = yield (
        "SELECT idx, name FROM calls WHERE session_id = ? AND seq = ? ORDER BY idx",
        (session.id, session.head),
    )
    if rows:
        unknown = tuple(Result(index, name, wording.OUTCOME_UNKNOWN, failed=True) for index, name in rows)
        yield from _append(now, session, run_id, [Results(unknown)])


def _append(now: float, session: StepRow, run_id: int, new: Sequence[Message]) -> Tx[None]:
    if new:
        yield _MESSAGE, Many([_line(now, session, run_id, message) for message in new])


_MESSAGE = "INSERT INTO messages(session_id, seq, run_id, kind, body, at) VALUES(?, ?, ?, ?, ?, ?)"


def _line(now: float, session: StepRow, run_id: int, message: Message) -> Row:
    session.head += 1
    return (session.id, session.head, run_id, messages.kind(message), messages.dump(message), now)


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
    yield from _say(now, policy, session, run_id, answer, is_unanswered, usd, events_upto)
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
    yield from _append(now, session, run_id, [said, gave])
    yield (
        "INSERT INTO calls(session_id, seq, idx, run_id, name, replay_safe) VALUES(?, ?, ?, ?, ?, 0)",
        Many(
            (session_id, session.head - 1, index, run_id, call.name) for index, call in enumerate(said.calls)
        ),
    )
    yield sessions.moved(now, session)
    return session.head


def _say(
    now: float,
    policy: Policy,
    session: StepRow,
    run_id: int,
    answer: Answer,
    is_unanswered: bool,
    usd: Decimal | None,
    events_upto: int = 0,
) -> Tx[None]:
    """`events_upto`: system events that its prompt showed; they are consumed with the answer."""
    yield _MESSAGE, _line(now, session, run_id, answer)
    yield from usage.settle(now, policy, session, answer, usd)
    if is_unanswered:
        yield from taking.answer(now, policy, session, run_id)
    if events_upto:
        yield from context.consume_events(session.id, run_id, events_upto)


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
    yield _MESSAGE, _line(now, step, run_id, outcome)
    yield sessions.moved(now, step)
    yield from _foresee(now, policy, step, run_id)
    return _ON


def _results_and_mail(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, outcome: Results, nonce: str
) -> Tx[Boundary]:
    session = yield from sessions.own(session_id, fence)
    yield _MESSAGE, _line(now, session, run_id, outcome)
    if session.paused:
        session.progress_at = now
        yield from _stay_paused(now, policy, session)
        return Boundary(goes_on=False)
    return (yield from _read_on(now, policy, session, run_id, nonce))


def _read_on(now: float, policy: Policy, session: SessionRow, run_id: int, nonce: str) -> Tx[Boundary]:
    rows = yield "SELECT by_person, route FROM runs WHERE id = ?", (run_id,)
    running = Running(bool(rows[0][0]), rows[0][1] or "")
    taken = yield from taking.take(now, policy, session, run_id, Point.STEP, nonce, running=running)
    yield from _append(now, session, run_id, taken.inputs)
    if session.paused:
        session.progress_at = now
        yield from _stay_paused(now, policy, session)
        return Boundary(goes_on=False)
    yield sessions.moved(now, session)
    yield from _foresee(now, policy, session, run_id)
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
    yield _MESSAGE, _line(now, session, run_id, with_yields(outcome, places, YIELDED))
    session.progress_at = now
    yield from _end_run(now, session, run_id, "yield")
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


def finish(
    now: float,
    policy: Policy,
    session_id: int,
    fence: int,
    run_id: int,
    answer: Answer,
    is_unanswered: bool,
    usd: Decimal | None = None,
    events_upto: int = 0,
    value: str | None = None,
    nonce: str = "",
) -> Tx[Boundary | None]:
    """The last word: message, end of run, the task's step, its letter and the release, in one commit.

    Not the last if somebody has added something to its task meanwhile: then the run goes on with that."""
    session = yield from sessions.own(session_id, fence)
    yield from _say(now, policy, session, run_id, answer, is_unanswered, usd, events_upto)
    if (yield from _was_told_more(session)):
        return (yield from _read_on(now, policy, session, run_id, nonce))
    if value is not None:
        yield "UPDATE tasks SET value = ? WHERE id = ?", (value, session_id)
    yield from _end_in_order(now, policy, session, run_id, answer.text)
    return None


def _was_told_more(session: SessionRow) -> Tx[bool]:
    """A main session reads it in its next turn; a task has none. One look, also for whoever closes the session."""
    if not session.is_task or (yield from _outlives_its_task(session)):
        return False
    rows = yield "SELECT kind, taken_run FROM inbox WHERE session_id = ? AND state = 0", (session.id,)
    session.has_mail = bool(rows)
    return any(kind == LetterKind.INSTRUCTION and taken_run is None for kind, taken_run in rows)


def _outlives_its_task(session: SessionRow) -> Tx[bool]:
    """Session mode after the end of the task: what is said now is a talk in its thread, as with a main session."""
    if not (session.is_task and session.bound):
        return False
    return bool((yield "SELECT 1 FROM tasks WHERE id = ? AND outcome IS NOT NULL", (session.id,)))


def _end_in_order(now: float, policy: Policy, session: SessionRow, run_id: int, text: str) -> Tx[None]:
    yield from _end_run(now, session, run_id, "end")
    if session.is_task and not (yield from _outlives_its_task(session)):
        # The rights of a leaf never let it spawn, so there is nothing to count.
        children = 0 if session.role == Role.LEAF else (yield from sessions.untold(session.id))
        yield from tasks.record(now, policy, session, ev.Ended(now, text, children))
    else:
        yield from tasks.forget_notes(session.id)  # a warning that came with the last words starts no turn
        yield from last_words.reply(now, policy, session, run_id, text)
    session.progress_at = now
    yield from sessions.save(now, policy, session)


def submit(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, value: str, nonce: str = ""
) -> Tx[Boundary | None]:
    """The value that was accepted with the last results is the last word; no further model call is made.

    Not the last, as above: then another will be submitted."""
    session = yield from sessions.own(session_id, fence)
    yield from usage.give_up(now, policy, session, Fate.UNSENT)
    if (yield from _was_told_more(session)):
        return (yield from _read_on(now, policy, session, run_id, nonce))
    yield from taking.answer(now, policy, session, run_id)
    yield from _append(now, session, run_id, [Answer(value)])
    yield "UPDATE tasks SET value = ? WHERE id = ?", (value, session_id)
    yield from _end_in_order(now, policy, session, run_id, value)
    return None


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
    yield from _say(now, policy, session, run_id, answer, is_unanswered, usd)
    yield from _append(now, session, run_id, [note])
    session.progress_at = now
    yield from sessions.save(now, policy, session)
    yield from _foresee(now, policy, session, run_id)
    return session.head


def wait(now: float, policy: Policy, session_id: int, fence: int, run_id: int, seconds: float) -> Tx[None]:
    """The calls of others hold what is left of a budget: without a slot, until they may be back."""
    del run_id
    session = yield from sessions.own(session_id, fence)
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Parked(now, Wait.BUDGET))
    yield from _release(now, policy, session, parked_until=now + seconds)


def _end_run(now: float, session: SessionRow, run_id: int, reason: str) -> Tx[None]:
    yield "UPDATE runs SET ended_at = ?, stop_reason = ? WHERE id = ?", (now, reason, run_id)
    session.run_id, session.owner, session.idle_at = None, None, now


def stumble(
    now: float,
    policy: Policy,
    session_id: int,
    fence: int,
    run_id: int,
    error: str,
    is_retryable: bool,
    retry_at: float | None,
    fate: Fate = Fate.UNKNOWN,
) -> Tx[None]:
    """The model call failed: park and try again later, or end the run with the error."""
    session = yield from sessions.own(session_id, fence)
    yield from usage.give_up(now, policy, session, fate)
    rows = yield "SELECT crashes, failures, progress_head FROM runs WHERE id = ?", (run_id,)
    decision = runs.provider_failed(
        runs.Counters(*rows[0]),
        session.head,
        at=now,
        error=error,
        is_retryable=is_retryable,
        retry_at=retry_at,
        life=policy.life,
        is_sent=fate is not Fate.UNSENT or retry_at is None,  # else it only waits in line
    )
    if isinstance(decision, runs.GiveUp):
        text = yield from partial(session_id, run_id)
        return (yield from _end(now, policy, session, decision.error, text, is_final=False))
    counters = decision.counters
    yield (
        "UPDATE runs SET crashes = ?, failures = ?, progress_head = ? WHERE id = ?",
        (counters.crashes, counters.failures, counters.progress_head, run_id),
    )
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Parked(now, decision.reason))
    yield from _release(now, policy, session, parked_until=decision.until)


def fail(
    now: float,
    policy: Policy,
    session_id: int,
    fence: int,
    run_id: int,
    error: str,
    is_final: bool,
    cut: Answer | None = None,
    is_unanswered: bool = False,
    usd: Decimal | None = None,
) -> Tx[None]:
    """The run cannot go on for a reason of its own: a bound, or an answer that was `cut`.

    What was cut off may have been part of its calls: they are not kept, and nobody will ever carry them out."""
    session = yield from sessions.own(session_id, fence)
    if cut is not None:
        yield from _say(now, policy, session, run_id, replace(cut, calls=()), is_unanswered, usd)
    else:
        yield from usage.give_up(now, policy, session, Fate.UNSENT)
    text = yield from partial(session_id, run_id)
    yield from _end(now, policy, session, error, text, is_final=is_final)


def crash(now: float, policy: Policy, session_id: int, fence: int, error: str) -> Tx[None]:
    """A defect of ours or of an adapter stopped the turn. It must not stop the worker's other turns."""
    session = yield from sessions.own(session_id, fence)
    if session.run_id is None:
        return (yield from _release(now, policy, session))
    yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
    text = yield from partial(session_id, session.run_id)
    yield from _end(now, policy, session, error, text, is_final=False)


def _end(
    now: float, policy: Policy, session: SessionRow, error: str, text: str, *, is_final: bool
) -> Tx[None]:
    run_id = session.run_id or 0
    is_tried_again = yield from taking.refuse(now, policy, session, run_id, error)
    yield from tasks.forget_notes(session.id)
    yield from redact_open(session)
    yield from _end_run(now, session, run_id, f"error: {error}")
    if session.is_task and not (yield from _outlives_its_task(session)):
        yield from tasks.record(now, policy, session, ev.Failed(now, error, text, is_final))
    else:
        yield from last_words.reply(
            now,
            policy,
            session,
            run_id,
            f"(this turn failed: {error})",
            is_error=True,
            is_tried_again=is_tried_again,
        )
    yield from sessions.save(now, policy, session)


def hand_over(now: float, policy: Policy, session_id: int, fence: int, fate: Fate = Fate.UNKNOWN) -> Tx[None]:
    """An orderly stop of the worker: whoever is next goes on, and it counts as nothing.

    `fate`: of the model call that was foreseen or under way."""
    session = yield from sessions.own(session_id, fence)
    yield from usage.give_up(now, policy, session, fate)
    if session.is_task and session.run_id is not None:
        yield from tasks.record(now, policy, session, ev.Parked(now, Wait.RESTART))
    yield from _release(now, policy, session, parked_until=now)


def _release(now: float, policy: Policy, session: SessionRow, parked_until: float | None = None) -> Tx[None]:
    if session.run_id is not None and parked_until is not None:
        # One that was parked already keeps why: it was claimed, and not begun.
        which = (parked_until, session.run_id)
        yield "UPDATE runs SET parked_until = COALESCE(parked_until, ?) WHERE id = ?", which
    session.owner = None
    yield from sessions.save(now, policy, session)


# ---- what a stopped run leaves behind ----------------------------------------------------------------


def partial(session_id: int, run_id: int) -> Tx[str]:
    """The last words of this run; without any, how far it came."""
    rows = yield (
        "SELECT body FROM messages WHERE session_id = ? AND run_id = ? AND kind = 'answer' ORDER BY seq DESC LIMIT 20",
        (session_id, run_id),
    )
    for (body,) in rows:
        said = messages.load("answer", body)
        if isinstance(said, Answer) and said.text.strip():
            return said.text
    calls = yield (
        "SELECT name FROM calls WHERE session_id = ? AND run_id = ? ORDER BY seq DESC, idx DESC",
        (session_id, run_id),
    )
    return wording.partial_progress(len(calls), calls[0][0]) if calls else ""


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
    """Does a descendant wait for a person? Then nobody below can be late."""
    rows = yield (
        "WITH RECURSIVE below(id) AS (SELECT id FROM tasks WHERE requester_id = ?"
        " UNION SELECT t.id FROM tasks t JOIN below b ON t.requester_id = b.id)"
        " SELECT COUNT(*) FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.id IN (SELECT id FROM below)"
        " AND (s.paused = 1 OR t.phase = 'awaiting_approval' OR (t.phase = 'paused' AND t.reason = 'needs-you'))",
        (session_id,),
    )
    return bool(rows[0][0])


def late(now: float, policy: Policy, session_id: int, text: str, nonce: str = "") -> Tx[None]:
    """A run that lost its session still said something: kept in the timeline, and it changes no outcome."""
    session = yield from sessions.lock(session_id)
    if session is None or not session.is_task:
        return
    task = yield from tasks.record(now, policy, session, ev.Late(now, text))
    kept = wording.freeze(text, policy.life.result_bytes_max).text
    if task.outcome is not Outcome.KILLED or kept is None:
        return
    yield "UPDATE tasks SET late_text = ?, late_at = ? WHERE id = ?", (kept, now, session_id)
    if policy.control.late_result is LateResult.DELIVER:
        yield from news.tell(now, session, task, kept, nonce, late=True)


def leave(
    now: float,
    policy: Policy,
    session_id: int,
    run_id: int,
    head: int,
    outcome: Results,
    instead: Answer | None = None,
) -> Tx[bool]:
    """What the calls of a superseded run gave in the time they had. False: the next run went on without.

    `instead`: as in `results`."""
    session = yield from sessions.lock(session_id)
    if session is None or session.closed or session.owner is not None or session.head != head:
        return False
    if instead is not None:
        yield from reword(session, instead)
    yield _MESSAGE, _line(now, session, run_id, outcome)
    yield (
        "UPDATE inbox SET ready_at = ? WHERE session_id = ? AND state = 0 AND kind = 'instruction' AND ready_at > ?",
        (now, session_id, now),
    )
    yield from sessions.save(now, policy, session)
    return True
