"""The ways a run stops: with its last word, with an error, parked for later, or handed over to the next worker."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from clutch.core import events as ev
from clutch.core import runs
from clutch.core.authority import Role
from clutch.core.messages import Answer
from clutch.core.model import LetterKind, Wait
from clutch.core.policy import Policy
from clutch.protocol import inbox, last_words, sessions, taking, tasks, usage
from clutch.protocol.redacting import redact_open
from clutch.protocol.sessions import SessionRow
from clutch.protocol.turns import leaving, steps, writing
from clutch.protocol.turns.steps import Boundary
from clutch.protocol.usage import Fate
from clutch.store.door import Tx


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
    yield from writing.say(now, policy, session, run_id, answer, is_unanswered, usd, events_upto)
    if (yield from _was_told_more(session)):
        return (yield from steps.read_on(now, policy, session, run_id, nonce))
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
    yield from writing.end_run(now, session, run_id, "end")
    if session.is_task and not (yield from _outlives_its_task(session)):
        # The rights of a leaf never let it spawn, so there is nothing to count.
        children = 0 if session.role == Role.LEAF else (yield from sessions.untold(session.id))
        yield from tasks.record(now, policy, session, ev.Ended(now, text, children))
    else:
        yield from tasks.forget_notes(session.id)  # a warning that came with the last words starts no turn
        yield from last_words.reply(now, policy, session, run_id, text)
    session.progress_at = now
    yield from _leave(now, policy, session)


def _leave(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    yield from sessions.save(now, policy, session)
    yield from inbox.put_off(now, policy, session)


def submit(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, value: str, nonce: str = ""
) -> Tx[Boundary | None]:
    """The value that was accepted with the last results is the last word; no further model call is made.

    Not the last, as above: then another will be submitted."""
    session = yield from sessions.own(session_id, fence)
    yield from usage.give_up(now, policy, session, Fate.UNSENT)
    if (yield from _was_told_more(session)):
        return (yield from steps.read_on(now, policy, session, run_id, nonce))
    yield from taking.answer(now, policy, session, run_id)
    yield from writing.append(now, session, run_id, [Answer(value)])
    yield "UPDATE tasks SET value = ? WHERE id = ?", (value, session_id)
    yield from _end_in_order(now, policy, session, run_id, value)
    return None


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
        text = yield from leaving.partial(session_id, run_id)
        return (yield from end(now, policy, session, decision.error, text, is_final=False))
    yield from writing.count(run_id, decision.counters)
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Parked(now, decision.reason))
    yield from writing.release(now, policy, session, parked_until=decision.until)


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
        yield from writing.say(now, policy, session, run_id, replace(cut, calls=()), is_unanswered, usd)
    else:
        yield from usage.give_up(now, policy, session, Fate.UNSENT)
    text = yield from leaving.partial(session_id, run_id)
    yield from end(now, policy, session, error, text, is_final=is_final)


def crash(now: float, policy: Policy, session_id: int, fence: int, error: str) -> Tx[None]:
    """A defect of ours or of an adapter stopped the turn. It must not stop the worker's other turns."""
    session = yield from sessions.own(session_id, fence)
    if session.run_id is None:
        return (yield from writing.release(now, policy, session))
    yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
    text = yield from leaving.partial(session_id, session.run_id)
    yield from end(now, policy, session, error, text, is_final=False)


def end(
    now: float, policy: Policy, session: SessionRow, error: str, text: str, *, is_final: bool
) -> Tx[None]:
    run_id = session.run_id or 0
    is_tried_again = yield from taking.refuse(now, policy, session, run_id, error)
    yield from tasks.forget_notes(session.id)
    yield from redact_open(session)
    yield from writing.end_run(now, session, run_id, f"error: {error}")
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
    yield from _leave(now, policy, session)


def hand_over(now: float, policy: Policy, session_id: int, fence: int, fate: Fate = Fate.UNKNOWN) -> Tx[None]:
    """An orderly stop of the worker: whoever is next goes on, and it counts as nothing.

    `fate`: of the model call that was foreseen or under way."""
    session = yield from sessions.own(session_id, fence)
    yield from usage.give_up(now, policy, session, fate)
    if session.is_task and session.run_id is not None:
        yield from tasks.record(now, policy, session, ev.Parked(now, Wait.RESTART))
    yield from writing.release(now, policy, session, parked_until=now)


def wait(now: float, policy: Policy, session_id: int, fence: int, run_id: int, seconds: float) -> Tx[None]:
    """The calls of others hold what is left of a budget: without a slot, until they may be back."""
    del run_id
    session = yield from sessions.own(session_id, fence)
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Parked(now, Wait.BUDGET))
    yield from writing.release(now, policy, session, parked_until=now + seconds)
