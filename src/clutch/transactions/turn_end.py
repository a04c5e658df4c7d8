"""The ways a run stops: with its final text, with an error, parked for later, or handed over to the next worker."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from clutch.core import agents, ids, run, session_tools
from clutch.core import delivery as delivery_rules
from clutch.core import events as ev
from clutch.core.agents import Heartbeat
from clutch.core.authority import Role
from clutch.core.messages import Answer
from clutch.core.model import LetterKind, Reason
from clutch.core.policy import IdleWake, Policy
from clutch.core.questions import QuestionKind
from clutch.core.session_tools import Exchange, Stage
from clutch.core.text.tasks import silence
from clutch.store.transaction import HINT, Tx
from clutch.transactions import (
    checks,
    inbox,
    outbox,
    questions,
    runs,
    sessions,
    tasks,
    transcript,
    turn,
    usage,
    wake,
)
from clutch.transactions import delivery as delivery_tx
from clutch.transactions.conditions import IS_OPEN
from clutch.transactions.questions import NewQuestion
from clutch.transactions.sessions import OwnedRun, SessionRow
from clutch.transactions.turn import Boundary, ModelAnswer
from clutch.transactions.usage import Fate

# --------------------------------------------------------------------------------------------------
# Where the final text of a main agent goes: to its user, or where the letter it answers says.
#
# In the transaction that ends the run. Silence is the agent's own choice and never posted.


def reply(
    now: float,
    policy: Policy,
    session: SessionRow,
    run_id: int,
    text: str,
    *,
    is_error: bool = False,
    is_tried_again: bool = False,
) -> Tx[None]:
    """`is_error`: words of ours about a turn that failed.

    `is_tried_again`: the results it read are delivered later; until then only a user who asked is notified."""
    if session.letter_id is None:
        return (yield from _to_people(now, policy, session, run_id, text, is_tried_again=is_tried_again))
    rows = yield "SELECT kind, body FROM inbox WHERE id = ?", (session.letter_id,)
    match LetterKind(rows[0][0]):
        case LetterKind.HEARTBEAT:
            yield from _alert(now, policy, session, run_id, text)
        case LetterKind.PEER if not is_error:  # a turn that failed gives no answer: the talk is over
            yield from _answer(now, session, run_id, session_tools.load(rows[0][1]), text)
        case LetterKind.PEER:
            pass
        case other:
            raise AssertionError(f"a {other} has no turn of its own")


def _to_people(
    now: float, policy: Policy, session: SessionRow, run_id: int, text: str, *, is_tried_again: bool
) -> Tx[None]:
    if session.is_task and not session.bound:
        return
    rows = yield "SELECT route, by_person FROM runs WHERE id = ?", (run_id,)
    route, by_person = rows[0]
    if is_tried_again and not by_person:
        return
    if session.is_task:
        return (yield from _in_thread(now, session, run_id, text))
    said = _worth_telling(policy, session, text, by_person)
    yield from outbox.reply(now, session.id, run_id, route or session.route, said)
    if not by_person:
        yield from delivery_tx.reply_of_known(now, policy, session.id, delivery_rules.LOCAL_CHANNEL)


def _worth_telling(policy: Policy, session: SessionRow, text: str, by_person: int) -> str:
    """Where results come as heartbeats, so does the answer to them."""
    if by_person or policy.announcing.idle_wake is IdleWake.TURN:
        return text
    rules = policy.heartbeat_of(session.agent_id) or Heartbeat()
    return agents.alert(text, rules.ack_chars_max) or ""


def _in_thread(now: float, session: SessionRow, run_id: int, text: str) -> Tx[None]:
    """A child's words are posted nowhere but in its own thread; among those of a chat, with its name in front."""
    bound = yield from sessions.thread_of(session)
    route = (
        None if bound is None else delivery_rules.merged(bound, delivery_rules.from_text(session.route or ""))
    )
    if bound is None or route is None or not text.strip() or silence(text) is not None:
        return
    speaker, chat = session.id, delivery_rules.chat_of(bound)
    if chat is not None and (rows := (yield "SELECT id FROM sessions WHERE key = ?", (chat,))):
        speaker, text = rows[0][0], f"[{ids.task_id(session.id)}] {text}"
    yield from outbox.reply(now, speaker, run_id, delivery_rules.to_text(route), text)


def _alert(now: float, policy: Policy, session: SessionRow, run_id: int, text: str) -> Tx[None]:
    """Send what a heartbeat found, unless it is nothing or was sent lately."""
    rules = policy.heartbeat_of(ids.agent_of(session.key)) or Heartbeat()
    said = agents.alert(text, rules.ack_chars_max)
    if said is None or rules.target == agents.NO_TARGET:
        return
    sha = hashlib.sha256(said.encode()).hexdigest()
    yield "DELETE FROM alerts WHERE session_id = ? AND at <= ?", (session.id, now - rules.dedupe_s)
    if (yield "SELECT 1 FROM alerts WHERE session_id = ? AND sha = ?", (session.id, sha)):
        return
    yield "INSERT INTO alerts(session_id, sha, at) VALUES(?, ?, ?)", (session.id, sha, now)
    route = session.route if rules.target == agents.LAST else rules.target
    yield from outbox.reply(now, session.id, run_id, route, said)


def _answer(now: float, session: SessionRow, run_id: int, exchange: Exchange, text: str) -> Tx[None]:
    """The next letter of a talk with another agent, or its summary for the user."""
    if exchange.stage is Stage.ANNOUNCE and not session_tools.is_silent(text):
        return (yield from outbox.reply(now, session.id, run_id, session.route, text))
    following = session_tools.answered(exchange, text)
    if following is not None:
        idem = f"peer:{following.key}:{following.stage}:{following.turn}"
        yield from inbox.post(now, following.reader_id, idem, LetterKind.PEER, session_tools.dump(following))


def finish(
    now: float,
    owned: OwnedRun,
    said: ModelAnswer,
    *,
    value: str | None = None,
    nonce: str = "",
    arrived_at: float | None = None,
) -> Tx[Boundary | None]:
    """Commit the final answer: message, end of run, the task's step, its letter and the release of the session.

    It is not the last one if a message was added to the task meanwhile: then the run continues with that message.
    `arrived_at`: when the answer arrived. An answer that arrived after the deadline is late."""
    policy, run_id, text = owned.policy, owned.run_id, said.answer.text
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from turn.say(now, policy, session, run_id, said)
    if (yield from turn.overdue(now, policy, session, arrived_at)):
        yield from turn.late(now, policy, session.id, text, nonce)
        return None
    if (yield from _was_told_more(session)):
        return (yield from turn.read_on(now, policy, session, run_id, nonce))
    if value is not None:
        yield from tasks.set_column(session.id, "value", value)
    yield from _end_in_order(now, policy, session, run_id, text, arrived_at=arrived_at)
    return None


def _was_told_more(session: SessionRow) -> Tx[bool]:
    """A main session reads it in its next turn; a task has none. The closing of the session uses the same query."""
    if not session.is_task or (yield from _outlives_its_task(session)):
        return False
    rows = yield f"SELECT kind, taken_run FROM inbox WHERE session_id = ? AND {IS_OPEN}", (session.id,)  # noqa: S608
    session.has_mail = bool(rows)
    return any(kind == LetterKind.INSTRUCTION and taken_run is None for kind, taken_run in rows)


def _outlives_its_task(session: SessionRow) -> Tx[bool]:
    """Session mode after the end of the task: what is said now is a talk in its thread, as with a main session."""
    if not (session.is_task and session.bound):
        return False
    return bool((yield "SELECT 1 FROM tasks WHERE id = ? AND outcome IS NOT NULL", (session.id,)))


def _end_in_order(
    now: float,
    policy: Policy,
    session: SessionRow,
    run_id: int,
    text: str,
    *,
    arrived_at: float | None = None,
) -> Tx[None]:
    yield from turn.end_run(now, session, run_id, "end")
    if session.is_task and not (yield from _outlives_its_task(session)):
        # The rights of a leaf never let it spawn, so there is nothing to count.
        children = 0 if session.role == Role.LEAF else (yield from sessions.untold(session.id))
        ended = ev.Ended(now if arrived_at is None else arrived_at, text, children)
        yield from tasks.record(now, policy, session, ended)
    else:
        yield from inbox.void_notes(session.id)  # a warning that came with the final text starts no turn
        yield from reply(now, policy, session, run_id, text)
    session.progress_at = now
    yield from _leave(now, policy, session)


def _leave(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    yield from sessions.save(now, policy, session)
    yield from wake.put_off(now, policy, session)


class CheckedResult(NamedTuple):
    """What a run ends with. `checked`: what its checks gave; None: none were due."""

    text: str
    value: str | None
    checked: str | None


def submit(
    now: float, owned: OwnedRun, value: str, nonce: str = "", checked: str | None = None
) -> Tx[Boundary | None]:
    """End the run with the value that was accepted with its last results; no further model call is made.

    Like the answer of `finish`, it is not the last one if a message was added to the task. `checked`: what its checks
    gave; None: none were due."""
    return (yield from conclude(now, owned, CheckedResult(value, value, checked), nonce, Answer(value)))


def conclude(
    now: float, owned: OwnedRun, result: CheckedResult, nonce: str, said: Answer | None = None
) -> Tx[Boundary | None]:
    """The same for a final answer that `keep_final` has committed. `said`: one that is still to be committed."""
    text, value, checked = result
    policy, run_id = owned.policy, owned.run_id
    session = yield from sessions.own(owned.session_id, owned.fence)
    if checked is None:
        if (yield from checks.due(now, session.id)) is not None:
            return Boundary()  # the last child has ended since the engine looked: the checks come first
        yield from checks.forget(session.id)
    yield from usage.give_up(now, policy, session, Fate.UNSENT)
    if (yield from turn.overdue(now, policy, session)):
        yield from turn.late(now, policy, session.id, text, nonce)
        return None
    if (yield from _was_told_more(session)):
        return (yield from turn.read_on(now, policy, session, run_id, nonce))
    yield from delivery_tx.answer(now, policy, session, run_id)
    if said is not None:
        yield from transcript.append(now, session, run_id, [said])
    if value is not None:
        yield from tasks.set_column(session.id, "value", value)
    if checked is not None:
        yield from tasks.note_all(now, policy, [session.id], ev.Noted(now, checked, Reason.CHECKED))
    yield from _end_in_order(now, policy, session, run_id, text)
    return None


def keep_final(
    now: float, owned: OwnedRun, said: ModelAnswer, *, nonce: str, arrived_at: float
) -> Tx[int | None]:
    """Commit the final answer of a task before its checks; the run stays open. Return the new head.

    None: the answer arrived after the deadline."""
    policy = owned.policy
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from turn.say(now, policy, session, owned.run_id, said)
    if (yield from turn.overdue(now, policy, session, arrived_at)):
        yield from turn.late(now, policy, session.id, said.answer.text, nonce)
        return None
    session.progress_at = now
    yield from sessions.save(now, policy, session)
    return session.head


def stumble(
    now: float,
    owned: OwnedRun,
    error: str,
    is_retryable: bool,
    retry_at: float | None,
    *,
    fate: Fate = Fate.UNKNOWN,
    is_limited: bool = True,
) -> Tx[float | None]:
    """The model call failed: park and return when it is tried again, or end the run with the error and return None."""
    policy, run_id = owned.policy, owned.run_id
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from usage.give_up(now, policy, session, fate)
    if (yield from turn.overdue(now, policy, session)):
        return None
    rows = yield "SELECT crashes, failures, progress_head FROM runs WHERE id = ?", (run_id,)
    decision = run.provider_failed(
        run.Counters(*rows[0]),
        session.head,
        at=now,
        error=error,
        is_retryable=is_retryable,
        retry_at=retry_at,
        life=policy.life,
        is_sent=fate is not Fate.UNSENT or retry_at is None,  # else it only waits in line
        is_limited=is_limited,
    )
    if isinstance(decision, run.GiveUp):
        text = yield from turn.partial(session.id, run_id)
        yield from end(now, policy, session, decision.error, text, is_final=decision.is_permanent)
        return None
    yield from runs.count(run_id, decision.counters)
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Parked(now, decision.reason))
    yield from turn.release(now, policy, session, parked_until=decision.until)
    return decision.until


def fail(now: float, owned: OwnedRun, error: str, is_final: bool, cut: ModelAnswer | None = None) -> Tx[None]:
    """End a run that cannot continue for a reason of its own: a bound, or an answer that was `cut`.

    The missing part of the answer may belong to its calls: they are not stored and never run."""
    policy, run_id = owned.policy, owned.run_id
    session = yield from sessions.own(owned.session_id, owned.fence)
    if cut is not None:
        without_calls = replace(cut, answer=replace(cut.answer, calls=()))
        yield from turn.say(now, policy, session, run_id, without_calls)
    else:
        yield from usage.give_up(now, policy, session, Fate.UNSENT)
    if (yield from turn.overdue(now, policy, session)):
        if cut is not None and (text := run.last_text(cut.answer)):
            yield from turn.late(now, policy, session.id, text)
        return
    text = yield from turn.partial(session.id, run_id)
    yield from end(now, policy, session, error, text, is_final=is_final)


def crash(now: float, policy: Policy, session_id: int, fence: int, error: str) -> Tx[None]:
    """A defect of ours or of an adapter stopped the turn. It must not stop the worker's other turns."""
    session = yield from sessions.own(session_id, fence)
    if session.run_id is None:
        return (yield from turn.release(now, policy, session))
    if (yield from turn.overdue(now, policy, session)):
        return
    yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
    text = yield from turn.partial(session_id, session.run_id)
    yield from end(now, policy, session, error, text, is_final=False)


def end(
    now: float, policy: Policy, session: SessionRow, error: str, text: str, *, is_final: bool
) -> Tx[None]:
    run_id = session.run_id or 0
    is_tried_again = yield from delivery_tx.refuse(now, policy, session, run_id, error)
    yield from inbox.void_notes(session.id)
    yield from transcript.redact_open(session)
    yield from turn.end_run(now, session, run_id, f"{run.ERROR}{error}")
    if session.is_task and not (yield from _outlives_its_task(session)):
        yield from tasks.record(now, policy, session, ev.Failed(now, error, text, is_final))
    else:
        yield from reply(
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
    """An orderly stop of the worker: the next one resumes the run, and it counts neither as crash nor as failure.

    `fate`: of the model call that was foreseen or under way."""
    session = yield from sessions.own(session_id, fence)
    yield from usage.give_up(now, policy, session, fate)
    if session.is_task and session.run_id is not None:
        yield from tasks.record(now, policy, session, ev.Parked(now, Reason.RESTART))
    yield from turn.release(now, policy, session, parked_until=now)


def wait(now: float, owned: OwnedRun, seconds: float) -> Tx[None]:
    """Park the run without a slot: calls of other runs hold the rest of a budget and may return some of it."""
    session = yield from sessions.own(owned.session_id, owned.fence)
    if session.is_task:
        yield from tasks.record(now, owned.policy, session, ev.Parked(now, Reason.BUDGET))
    yield from turn.release(now, owned.policy, session, parked_until=now + seconds)


def ask(now: float, owned: OwnedRun, seq: int, asked: Sequence[NewQuestion], nonce: str) -> Tx[None]:
    """Park the run until a user answers; asking again after a crash finds the same questions.

    The parent is notified of a question in words."""
    policy, session_id, run_id = owned.policy, owned.session_id, owned.run_id
    session = yield from sessions.own(session_id, owned.fence)
    yield from questions.insert(now, session_id, seq, asked)
    yield from runs.ask(run_id)
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Parked(now, Reason.NEEDS_YOU))
        words = "\n".join(one.words for one in asked if one.kind is QuestionKind.QUESTION)
        if words:
            yield from inbox.ask(now, policy.announcing, session, words, f"{run_id}:{seq}", nonce=nonce)
    yield from outbox.attention_required(
        now, policy, session_id, asked[0].kind.value, f"{seq}:{asked[0].index}"
    )
    session.owner = None
    yield from sessions.save(now, policy, session)
    yield HINT, ("question", session_id)
