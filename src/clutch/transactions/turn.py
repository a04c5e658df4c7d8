"""What the model said and what came of it. Between two steps a run is steered, interrupted, paused or parked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from clutch.core import events as ev
from clutch.core import messages, run
from clutch.core.delivery import Point, RunningTurn
from clutch.core.lifecycle_run import is_past
from clutch.core.messages import Answer, Call, Input, Result, Results
from clutch.core.model import Outcome
from clutch.core.policy import LateResult, Policy
from clutch.core.spawn import SpawnRefusal
from clutch.core.text import prompts
from clutch.core.text.tasks import freeze, silence
from clutch.store.transaction import Tx
from clutch.transactions import delivery, inbox, runs, sessions, tasks, transcript, usage, wake
from clutch.transactions.sessions import LostRun, OwnedRun, SessionRow, StepRow
from clutch.transactions.spawn import Accepted, ChildRequest, spawn
from clutch.transactions.usage import Fate

# --------------------------------------------------------------------------------------------------
# What many transactions of a run write: lines of its transcript, the model call it foresees, its end, its release.


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """An answer and what is committed with it.

    `is_unanswered`: letters of the run waited for this answer. `usd`: its price, None if that is unknown.
    `events_upto`: the last system event that its prompt showed; these events are consumed with the answer."""

    answer: Answer
    is_unanswered: bool
    usd: Decimal | None = None
    events_upto: int = 0


def say(now: float, policy: Policy, session: StepRow, run_id: int, said: ModelAnswer) -> Tx[None]:
    yield from transcript.append_one(now, session, run_id, said.answer)
    yield from usage.settle(now, policy, session, said.answer, said.usd)
    if said.is_unanswered:
        yield from delivery.answer(now, policy, session, run_id)
    if said.events_upto:
        yield from wake.consume_events(session.id, run_id, said.events_upto)


def foresee(now: float, policy: Policy, session: StepRow, run_id: int) -> Tx[None]:
    """With a budget the call must be reserved, which takes a transaction of its own."""
    if not usage.is_budgeted(policy, session.purses):
        yield from usage.foresee(now, session.id, run_id, session.model or policy.model_of(session.agent_id))


def end_run(now: float, session: SessionRow, run_id: int, reason: str) -> Tx[None]:
    yield from runs.end(now, run_id, reason)
    session.run_id, session.owner, session.idle_at = None, None, now


def release(now: float, policy: Policy, session: SessionRow, parked_until: float | None = None) -> Tx[None]:
    if session.run_id is not None and parked_until is not None:
        yield from runs.park(session.run_id, parked_until)
    session.owner = None
    yield from sessions.save(now, policy, session)


def stay_paused(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    yield from usage.give_up(now, policy, session, Fate.UNKNOWN)  # of an owner that died
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Paused(now))
    yield from release(now, policy, session, parked_until=now)


# --------------------------------------------------------------------------------------------------
# What a stopped run leaves behind: its partial words, and what came after it had lost its session.


def partial(session_id: int, run_id: int, until: float = math.inf) -> Tx[str]:
    """The last text of this run until then; without any, how far it came."""
    rows = yield (
        "SELECT body, at FROM messages WHERE session_id = ? AND run_id = ? AND kind = 'answer'"
        " ORDER BY seq DESC LIMIT 20",
        (session_id, run_id),
    )
    for body, at in rows:
        if at > until:
            continue
        said = messages.load("answer", body)
        if isinstance(said, Answer) and said.text.strip() and silence(said.text) is None:
            return said.text
    calls = yield (
        "SELECT name FROM calls WHERE session_id = ? AND run_id = ? ORDER BY seq DESC, idx DESC",
        (session_id, run_id),
    )
    return prompts.partial_progress(len(calls), calls[0][0]) if calls else ""


def overdue(now: float, policy: Policy, session: SessionRow, arrived_at: float | None = None) -> Tx[bool]:
    """Whether the deadline of the run came before a signal that arrived at this time (None = now). If so, the timeout
    is recorded."""
    arrived_at = now if arrived_at is None else arrived_at
    if not is_past((yield from deadline(session)), arrived_at):
        return False
    # The clock may have been put back since the signal arrived.
    yield from time_out(max(now, arrived_at), policy, session)
    return True


def deadline(session: SessionRow) -> Tx[float | None]:
    """None: the session has no task, or the clock of its run stands."""
    if not session.is_task:
        return None
    rows = yield "SELECT deadline_at FROM tasks WHERE id = ? AND phase = 'running'", (session.id,)
    return rows[0][0] if rows else None


def time_out(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    """The partial result is what the run had said by its deadline."""
    text = yield from partial(session.id, session.run_id or 0, (yield from deadline(session)) or now)
    yield from tasks.record(now, policy, session, ev.Woke(now, session.owner is not None, partial=text))
    yield from sessions.save(now, policy, session)


def late(now: float, policy: Policy, session_id: int, text: str, nonce: str = "") -> Tx[None]:
    """Keep the text of a run that lost its session: in the timeline, and with the result of a killed or timed out task.

    It changes no outcome."""
    session = yield from sessions.lock(session_id)
    if session is not None and session.is_task:
        yield from _keep_late(now, policy, session, text, nonce)


def has_moved(now: float, owned: OwnedRun, head: int) -> Tx[bool]:
    """Whether the transcript has entries behind `head`. Not a read: the lock waits for a transaction whose connection
    is gone, and which may still be committed. Raises Stale if the run has ended or has another owner."""
    del now
    session = yield from sessions.own(owned.session_id, owned.fence)
    return session.head != head


def late_in_turn(now: float, lost: LostRun, text: str, nonce: str) -> Tx[None]:
    """`late`, reported by the turn that made the text.

    While the turn still owns the session nothing is late: the run is handed over and works again. What the turn has
    committed is not late either."""
    session = yield from sessions.lock(lost.session_id)
    if session is None or not session.is_task:
        return
    if sessions.is_owner(session.owner, session.fence, lost.fence):
        return
    if not (yield from _is_committed(lost, text)):
        yield from _keep_late(now, lost.policy, session, text, nonce)


def _keep_late(now: float, policy: Policy, session: SessionRow, text: str, nonce: str) -> Tx[None]:
    task = yield from tasks.record(now, policy, session, ev.Late(now, text))
    kept = freeze(text, policy.life.result_bytes_max).text
    if task.outcome not in (Outcome.KILLED, Outcome.TIMEOUT) or kept is None:
        return
    yield from tasks.keep_late(now, session.id, kept)
    if task.outcome is Outcome.KILLED and policy.control.late_result is LateResult.DELIVER:
        yield from inbox.tell(now, policy.announcing, session, task, kept, nonce=nonce, late=True)


def _is_committed(lost: LostRun, text: str) -> Tx[bool]:
    """A turn may be cancelled between the commit of its text and the news of that commit."""
    rows = yield (
        "SELECT body FROM messages WHERE session_id = ? AND run_id = ? AND seq > ? AND kind = 'answer'",
        (lost.session_id, lost.run_id, lost.head),
    )
    said = [messages.load("answer", body) for (body,) in rows]
    return any(isinstance(one, Answer) and run.last_text(one) == text for one in said)


def leave(now: float, lost: LostRun, outcome: Results, instead: Answer | None = None) -> Tx[bool]:
    """What the calls of a superseded run gave in the time they had. False: the next run continued without.

    `instead`: as in `results`."""
    session = yield from sessions.lock(lost.session_id)
    if session is None or session.closed or session.owner is not None or session.head != lost.head:
        return False
    if instead is not None:
        yield from transcript.reword(session, instead)
    yield from transcript.append_one(now, session, lost.run_id, outcome)
    yield from inbox.release_instructions(now, session.id)
    yield from sessions.save(now, lost.policy, session)
    return True


NO_CHILD = "no child of yours is at work and nothing is left to report: there is nothing to wait for"
TOO_LATE = "The deadline of this task has passed: there is no time left to wait."

YIELDED = "waiting: you will be resumed once, when all your children have finished"


@dataclass(frozen=True, slots=True)
class Boundary:
    """Between two steps: what was injected, and whether the run may continue.

    `interrupts`: letters want a turn of their own in place of this one (`interrupt`)."""

    inputs: tuple[Input, ...] = ()
    goes_on: bool = True
    interrupts: bool = False
    is_unanswered: bool = False
    senders: tuple[int, ...] = ()


_ON = Boundary()


def respond(now: float, owned: OwnedRun, said: ModelAnswer, replay_safe: Sequence[bool]) -> Tx[int]:
    """Commit an answer that calls tools, with its open calls, before any of them runs. Return the new head."""
    session = yield from sessions.own_step(owned.session_id, owned.fence)
    yield from say(now, owned.policy, session, owned.run_id, said)
    safe = zip(said.answer.calls, replay_safe, strict=True)
    yield from transcript.open_calls(session, owned.run_id, session.head, safe)
    yield sessions.moved(now, session)
    return session.head


def went_remote(now: float, owned: OwnedRun, place: int, task: str) -> Tx[None]:
    """Record that a task of another server carries out an open call of the last answer."""
    session = yield from sessions.own_step(owned.session_id, owned.fence)
    yield from transcript.went_remote(session.id, session.head, place, task)
    yield sessions.moved(now, session)


def awaits_remote(now: float, session_id: int, run_id: int, task: str) -> Tx[bool]:
    """Whether the run is open, in whatever worker, and a task of another server carries out one of its open calls."""
    del now
    rows = yield (
        "SELECT 1 FROM calls c JOIN sessions s ON s.id = c.session_id AND s.head = c.seq"
        " WHERE c.session_id = ? AND s.run_id = ? AND c.remote = ?",
        (session_id, run_id, task),
    )
    return bool(rows)


def journal(now: float, owned: OwnedRun, said: Answer, gave: Results) -> Tx[int]:
    """Commit calls that foreign code has made: they have ended, so none is ever open. Return the new head."""
    session = yield from sessions.own_step(owned.session_id, owned.fence)
    yield from transcript.append(now, session, owned.run_id, [said, gave])
    done = ((call, False) for call in said.calls)
    yield from transcript.open_calls(session, owned.run_id, session.head - 1, done)
    yield sessions.moved(now, session)
    return session.head


def spoke(now: float, owned: OwnedRun) -> Tx[None]:
    """Foreign code has said something on the way: a sign of life."""
    yield sessions.moved(now, (yield from sessions.own_step(owned.session_id, owned.fence)))


def doing(now: float, owned: OwnedRun, call: Call | None) -> Tx[None]:
    """Record the call that foreign code makes right now; None: none that it reports."""
    yield from spoke(now, owned)
    yield from transcript.doing(now, owned.session_id, owned.run_id, call)


def results(
    now: float, owned: OwnedRun, outcome: Results, nonce: str, instead: Answer | None = None
) -> Tx[Boundary]:
    """What the calls gave, and what arrived meanwhile. Here a run is steered, interrupted or parked.

    `instead`: how their answer is kept from now on, without the contents of files it gave away."""
    step, is_more = yield from sessions.own_at_step(owned.session_id, owned.fence)
    if instead is not None:
        yield from transcript.reword(step, instead)
    if is_more:
        return (yield from _results_and_mail(now, owned, outcome, nonce))
    yield from transcript.append_one(now, step, owned.run_id, outcome)
    yield sessions.moved(now, step)
    yield from foresee(now, owned.policy, step, owned.run_id)
    return _ON


def _results_and_mail(now: float, owned: OwnedRun, outcome: Results, nonce: str) -> Tx[Boundary]:
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from transcript.append_one(now, session, owned.run_id, outcome)
    if session.paused:
        session.progress_at = now
        yield from stay_paused(now, owned.policy, session)
        return Boundary(goes_on=False)
    return (yield from read_on(now, owned.policy, session, owned.run_id, nonce))


def read_on(now: float, policy: Policy, session: SessionRow, run_id: int, nonce: str) -> Tx[Boundary]:
    rows = yield "SELECT by_person, route FROM runs WHERE id = ?", (run_id,)
    running = RunningTurn(bool(rows[0][0]), rows[0][1] or "")
    taken = yield from delivery.take(now, policy, session, run_id, Point.STEP, nonce=nonce, running=running)
    yield from transcript.append(now, session, run_id, taken.inputs)
    if session.paused:
        session.progress_at = now
        yield from stay_paused(now, policy, session)
        return Boundary(goes_on=False)
    yield sessions.moved(now, session)
    yield from foresee(now, policy, session, run_id)
    return Boundary(taken.inputs, True, taken.interrupts, taken.is_any, taken.senders)


def yields(
    now: float,
    owned: OwnedRun,
    outcome: Results,
    places: Sequence[int],
    nonce: str,
    *,
    instead: Answer | None = None,
) -> Tx[Boundary]:
    """`sessions_yield`: results, end of run and hold in one commit; a crash between them would un-yield."""
    policy, run_id = owned.policy, owned.run_id
    session = yield from sessions.own(owned.session_id, owned.fence)
    is_over = is_past((yield from deadline(session)), now)
    if is_over or not (yield from sessions.untold(session.id)):
        # A run past its deadline cannot stop its clock by waiting: the alarm ends it at its next step.
        said = with_yields(outcome, places, TOO_LATE if is_over else NO_CHILD)
        return (yield from results(now, owned, said, nonce, instead))
    if instead is not None:
        yield from transcript.reword(session, instead)
    yield from transcript.append_one(now, session, run_id, with_yields(outcome, places, YIELDED))
    session.progress_at = now
    yield from end_run(now, session, run_id, "yield")
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Yielded(now))
    else:
        yield from inbox.void_notes(session.id)
    session.hold, session.hold_until = 1, now + policy.life.settle_expiry_s
    yield from sessions.save(now, policy, session)
    return Boundary(goes_on=False)


def with_yields(outcome: Results, places: Sequence[int], text: str) -> Results:
    """Every call has a result, also the second yield of an answer."""
    return in_order([*outcome.results, *(Result(place, "sessions_yield", text) for place in places)])


def in_order(gave: Iterable[Result]) -> Results:
    return Results(tuple(sorted(gave, key=lambda result: result.index)))


@dataclass(frozen=True, slots=True)
class SpawnBatch:
    """An answer that spawns and calls no other tool.

    `refused`: results of the spawn calls that made no sense. `sleeps`: the places of its yields. `in_words`: makes the
    result of a spawn call."""

    root_id: int
    orders: Sequence[ChildRequest]
    refused: Sequence[Result]
    sleeps: Sequence[int]
    in_words: Callable[[ChildRequest, Accepted | SpawnRefusal], Result]


def delegate(now: float, owned: OwnedRun, what: SpawnBatch, nonce: str) -> Tx[tuple[Results, Boundary]]:
    """Commit the children, the results of their calls and perhaps the hold in one transaction."""
    spawned = yield from spawn(
        now, owned.policy, owned.session_id, what.root_id, what.orders, fence=owned.fence
    )
    given = [what.in_words(order, got) for order, got in zip(what.orders, spawned, strict=True)]
    outcome = in_order([*what.refused, *given])
    if not what.sleeps:
        return outcome, (yield from results(now, owned, outcome, nonce))
    boundary = yield from yields(now, owned, outcome, what.sleeps, nonce)
    return with_yields(outcome, what.sleeps, NO_CHILD), boundary


def placed(now: float, owned: OwnedRun, place: str) -> Tx[None]:
    """The session has written its first files: where they lie."""
    del now
    yield from sessions.own_step(owned.session_id, owned.fence)
    yield from sessions.set_column(owned.session_id, "place", place)


def saved(now: float, owned: OwnedRun, place: str, saved: str) -> Tx[None]:
    """What the session wrote is stored for other machines. A worker that lost the session must not make its older list
    current."""
    yield from placed(now, owned, place)
    yield from sessions.set_column(owned.session_id, "saved", saved)


def remind(now: float, owned: OwnedRun, said: ModelAnswer, note: Input) -> Tx[int]:
    """Commit an answer that is not what was asked for, and a note that says so. Return the new head."""
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from say(now, owned.policy, session, owned.run_id, said)
    yield from transcript.append(now, session, owned.run_id, [note])
    session.progress_at = now
    yield from sessions.save(now, owned.policy, session)
    yield from foresee(now, owned.policy, session, owned.run_id)
    return session.head
