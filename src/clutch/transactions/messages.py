"""Messages to a session: steer replaces what a child does, send adds to it, decide and answer reply to it, cancel takes
one back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from clutch.core import events as ev
from clutch.core import ids, messages, session_tools
from clutch.core.ids import plan_hash
from clutch.core.messages import Answer
from clutch.core.model import LetterKind, Phase, Reason, Route, Task
from clutch.core.policy import Policy
from clutch.core.questions import Decision, OpenItem, QuestionKind, check
from clutch.errors import Forbidden, NotFound, RateLimited
from clutch.store.transaction import Tx
from clutch.transactions import (
    authority,
    control,
    inbox,
    outbox,
    questions,
    runs,
    sessions,
    tasks,
    usage,
    wake,
)
from clutch.transactions.conditions import IS_OPEN
from clutch.transactions.control import (
    AlreadyFinished,
    PlanChanged,
    lock_above,
    locked,
    must_fit,
    must_move,
    refusal,
)
from clutch.transactions.questions import UnknownQuestion
from clutch.transactions.read import answers
from clutch.transactions.sessions import SessionRow

APPROVED, REJECTED = "APPROVED:", "REJECTED:"


@dataclass(frozen=True, slots=True)
class SteerResult:
    """`supersedes`: the run that was cut, if one was open."""

    task: Task
    supersedes: int | None = None


def steer(now: float, policy: Policy, task_id: int, idem: str, text: str, *, actor: str) -> Tx[SteerResult]:
    """A new instruction supersedes what runs; same task, same session, a new generation."""
    requester, words = yield from lock_above(task_id)
    session, task = yield from locked(task_id)
    if (yield from wake.is_known(idem, text)):
        return SteerResult(task)
    announce = inbox.announce_key(session.key, task.generation)
    rows = yield f"SELECT taken_seq FROM inbox WHERE idem = ? AND {IS_OPEN}", (announce,)  # noqa: S608
    is_taken = any(row[0] is not None for row in rows)
    event = ev.Steered(now, taken=is_taken or (task.phase is Phase.ANNOUNCING and not rows))
    must_move(
        task, event, policy, "use `continue`" if task.phase is not Phase.AWAITING_APPROVAL else "use `reject`"
    )
    yield from _not_too_often(now, policy, task_id, actor)
    if task.outcome is not None:  # it has left the count of active children and comes back into it
        yield from must_fit(policy, requester, words, f"steer of {ids.task_id(task_id)}", is_known=True)
    supersedes = session.run_id
    yield from inbox.post(now, session.id, idem, LetterKind.INSTRUCTION, text)
    yield from _give_tools_a_moment(now, policy, session, idem)
    yield from tasks.set_column(task_id, "value", None)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield from sessions.save(now, policy, session)
    return SteerResult(changed, supersedes)


def run_of(now: float, task_id: int, generation: int) -> Tx[int | None]:
    """Return the latest run of this generation; None: it has not begun."""
    del now
    rows = yield (
        "SELECT id FROM runs WHERE session_id = ? AND generation = ? ORDER BY started_at DESC, id DESC LIMIT 1",
        (task_id, generation),
    )
    return int(rows[0][0]) if rows else None


def _give_tools_a_moment(now: float, policy: Policy, session: SessionRow, idem: str) -> Tx[None]:
    """The next run waits for tools that are running: what they give in time is its to read (`turn.leave`)."""
    if session.owner is None:
        return
    if (yield "SELECT 1 FROM calls WHERE session_id = ? AND seq = ?", (session.id, session.head)):
        yield from inbox.defer(idem, now + policy.work.tool_grace_s)


def _not_too_often(now: float, policy: Policy, task_id: int, actor: str) -> Tx[None]:
    """Each steer cuts a model call that was paid for; a caller in a loop must not burn them."""
    rows = yield (
        "SELECT MAX(at) FROM events WHERE task_id = ? AND actor = ? AND reason IN (?, ?)",
        (task_id, actor, Reason.STEERED, Reason.STEER_JOINS),
    )
    wait_s = 0.0 if rows[0][0] is None else rows[0][0] + policy.control.steer_interval_s - now
    if wait_s > 0:
        raise RateLimited(f"{ids.task_id(task_id)} was steered a moment ago", retry_after_s=wait_s)


def send(now: float, policy: Policy, session_id: int, idem: str, text: str, *, actor: str) -> Tx[None]:
    """A follow-up: read at the next step of a run, or it starts one."""
    session = yield from sessions.lock(session_id)
    if session is None:
        raise NotFound(f"there is no session {session_id}")
    if (yield from wake.is_known(idem, text)):
        return
    if session.is_task:
        task = yield from tasks.load_one(session_id)
        if task.phase is Phase.SPAWNING:  # a letter would start it before its files are there
            raise refusal(task, "try again in a moment")
        if task.phase is Phase.AWAITING_APPROVAL:
            raise refusal(task, "use `approve` or `reject`")
        if session.closed:
            raise AlreadyFinished(f"{ids.task_id(session_id)} has finished ({task.outcome}): use `continue`")
        yield from tasks.record(now, policy, session, ev.Noted(now, "a message was sent to it"), actor)
    elif session.closed:
        raise AlreadyFinished(f"the session {session.key} is archived")
    yield from wake.say(now, policy, session_id, idem, LetterKind.INSTRUCTION, body=text)


def heard(now: float, idem: str) -> Tx[str | None]:
    """The first words of the model after it read the letter; None while there are none. A read."""
    del now
    rows = yield "SELECT session_id, taken_run, taken_seq FROM inbox WHERE idem = ?", (idem,)
    if not rows or rows[0][1] is None:
        return None
    said = yield (
        "SELECT body FROM messages WHERE session_id = ? AND run_id = ? AND seq > ? AND kind = 'answer' ORDER BY seq",
        rows[0],
    )
    for (body,) in said:
        answer = messages.load("answer", body)
        if isinstance(answer, Answer) and answer.text.strip():
            return answer.text
    return None


class ReceiptState(StrEnum):
    SENT = "sent"
    SEEN = "seen"  #: the task has read it
    ACTED = "acted on"  #: the model has answered after it read it
    MISSED = "not acted on"  #: its attempt ended before that


class Receipt(NamedTuple):
    state: ReceiptState
    step: int | None = None

    @property
    def text(self) -> str:
        return self.state.value if self.step is None else f"{self.state} at step {self.step}"


def receipt(now: float, task_id: int, key: str) -> Tx[Receipt]:
    """Return what became of a message or an instruction that was sent under this key. A read. Raises NotFound."""
    del now
    # A retry moves the base behind everything that was read before: an answer of the new attempt is none to it.
    rows = yield (
        "SELECT i.taken_seq - s.base, (SELECT MIN(m.seq) - s.base FROM messages m WHERE m.session_id = i.session_id"  # noqa: S608
        " AND m.seq > i.taken_seq AND m.kind = 'answer' AND (i.taken_seq > s.base OR m.seq <= s.base)),"
        f" CASE WHEN {IS_OPEN} THEN 1 ELSE 0 END FROM inbox i JOIN sessions s ON s.id = i.session_id"
        " WHERE i.idem IN (?, ?)",
        (f"send:{task_id}:{key}", f"steer:{task_id}:{key}"),
    )
    if not rows:
        raise NotFound(f"no message was sent to {ids.task_id(task_id)} under the key {key[:40]!r}")
    seen, acted, is_open = rows[0]
    if acted is not None:
        return Receipt(ReceiptState.ACTED, int(acted) if acted > 0 else None)
    if not is_open:
        return Receipt(ReceiptState.MISSED)
    return Receipt(ReceiptState.SENT) if seen is None else Receipt(ReceiptState.SEEN, int(seen))


def decide(
    now: float,
    policy: Policy,
    task_id: int,
    verdict: ev.PlanVerdict,
    seen_hash: str,
    *,
    text: str,
    actor: str,
) -> Tx[Task]:
    """Bound to the task and to the words of the plan that was shown. The same decision again changes nothing."""
    session, task = yield from locked(task_id)
    event, said = ev.Decided(now, verdict, text), _verdict_words(verdict, text)
    if (yield from _was_decided(task, said, text)):
        return task
    must_move(task, event, policy, "only a plan that awaits approval can be decided")
    if seen_hash != plan_hash(task.result or ""):
        raise PlanChanged(
            f"the plan of {ids.task_id(task_id)} is not the one that was decided on; read it again"
        )
    changed = yield from tasks.record(now, policy, session, event, actor)
    if changed.phase in (Phase.QUEUED, Phase.PAUSED):
        key = _decision_key(task_id, task.generation)
        yield from inbox.post(now, session.id, key, LetterKind.DECISION, said)
    yield from sessions.save(now, policy, session)
    return changed


def _verdict_words(verdict: ev.PlanVerdict, text: str) -> str:
    return f"{APPROVED if verdict is ev.PlanVerdict.APPROVE else REJECTED} {text}".rstrip()


def _decision_key(task_id: int, generation: int) -> str:
    return f"decision:{task_id}:{generation}"


def _was_decided(task: Task, said: str, text: str) -> Tx[bool]:
    """Whether this decision was made before: a caller that lost the answer repeats its request."""
    if task.outcome is not None:
        return said.startswith(REJECTED) and task.error == f"plan rejected: {text}"
    rows = yield "SELECT body FROM inbox WHERE idem = ?", (_decision_key(task.id, task.generation - 1),)
    return bool(rows) and rows[0][0] == said and task.phase is not Phase.AWAITING_APPROVAL


def decide_as_read(
    now: float, policy: Policy, task_id: int, reader_id: int, message: str, *, actor: str
) -> Tx[Task | None]:
    """`APPROVED: …` or `REJECTED: …` of a session that has read the plan as it is now. None: no such message, or
    there is nothing to decide."""
    spoken = spoken_verdict(message, policy)
    rows = yield "SELECT phase, result, generation FROM tasks WHERE id = ?", (task_id,)
    if spoken is None or not rows:
        return None
    if rows[0][0] != Phase.AWAITING_APPROVAL:
        task = yield from tasks.load_one(task_id)
        is_repeated = yield from _was_decided(task, _verdict_words(*spoken), spoken[1])
        return task if is_repeated else None
    _, plan, generation = rows[0]
    read = yield (
        "SELECT 1 FROM inbox WHERE task_id = ? AND generation = ? AND kind = 'plan' AND session_id = ?"
        " AND taken_seq IS NOT NULL",
        (task_id, generation, reader_id),
    )
    if not read:
        raise PlanChanged(f"you have not read the plan of {ids.task_id(task_id)} as it is now")
    verdict, text = spoken
    return (yield from decide(now, policy, task_id, verdict, plan_hash(plan or ""), text=text, actor=actor))


def spoken_verdict(message: str, policy: Policy) -> tuple[ev.PlanVerdict, str] | None:
    said = message.strip()
    if said.startswith(APPROVED):
        return ev.PlanVerdict.APPROVE, said.removeprefix(APPROVED).strip()
    if said.startswith(REJECTED):
        return ev.PlanVerdict(policy.life.on_reject), said.removeprefix(REJECTED).strip()
    return None


# --------------------------------------------------------------------------------------------------
# A user answers the question of a run (`turn_end.ask`), which resumes with the last answer.


def answer(
    now: float, policy: Policy, question_id: int, decision: Decision, text: str, *, seen_hash: str, actor: str
) -> Tx[int]:
    """The session whose question it was. Alone: it may raise a budget that others draw on."""
    rows = yield "SELECT session_id, kind, body, hash FROM questions WHERE id = ?", (question_id,)
    if not rows:
        raise UnknownQuestion()
    session_id, kind, body, wanted = rows[0]
    check(_item(kind, body, wanted), decision, text, seen_hash)
    raises = kind == QuestionKind.BUDGET and decision is Decision.APPROVE
    purse = json.loads(body)["purse"] if raises else None
    same = {} if purse is None else (yield from _about_same_purse(purse))
    same[question_id] = session_id
    locked = yield from sessions.lock_all(sorted(set(same.values())))
    # Only now: the question may have been answered, or its run ended, while this waited for the lock.
    if question_id not in (yield from questions.decide(now, sorted(same), decision, text, actor)):
        raise UnknownQuestion()
    if purse is not None:
        yield from usage.raise_limit(purse, None, None)
    for session in locked:
        if session.is_task:
            said = ev.Noted(now, f"answered: {decision.value} ({kind})")
            yield from tasks.record(now, policy, session, said, actor)
        yield from _resume(now, policy, session)
    return int(session_id)


def _item(kind: str, body: str, shown: str) -> OpenItem:
    return OpenItem(QuestionKind(kind), shown, tuple(json.loads(body).get("choices", ())))


def _about_same_purse(purse: str) -> Tx[dict[int, int]]:
    """A raised budget answers every question about it: each run asked on its own, none is asked twice."""
    rows = yield (
        "SELECT id, session_id, body FROM questions WHERE kind = 'budget' AND answered_at IS NULL",
        (),
    )
    return {number: session for number, session, body in rows if json.loads(body)["purse"] == purse}


def _resume(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    """With the last answer the run is due."""
    still = yield "SELECT 1 FROM questions WHERE session_id = ? AND answered_at IS NULL", (session.id,)
    if still or session.run_id is None:
        return
    yield from runs.answered(session.run_id)
    yield from sessions.save(now, policy, session)


# --------------------------------------------------------------------------------------------------
# The first letter of a talk between main sessions of two families; `turn_end` writes all that follow.
#
# Whether two agents may talk at all is asked before (`core.authority`).

CYCLE = "cycle"


def send_to_session(
    now: float, policy: Policy, target_id: int, idem: str, text: str, *, sender_id: int, actor: str
) -> Tx[None]:
    """Alone. Within a family, and to a child, it is a follow-up like any other; raises Forbidden for a circle."""
    above = yield from authority.ancestors(target_id)
    beneath = yield from authority.ancestors(sender_id)
    found = {int(session.id): session for session in (yield from sessions.lock_all([sender_id, target_id]))}
    sender, target = found.get(sender_id), found.get(target_id)
    if sender is None or target is None:
        raise NotFound("the session is gone")
    if sender_id in above or target_id in beneath or target.is_task:
        return (yield from send(now, policy, target_id, idem, text, actor=actor))
    if (yield "SELECT 1 FROM inbox WHERE idem = ?", (idem,)):
        return
    if target.closed:
        raise control.AlreadyFinished(f"the session {target.key} is archived")
    exchange = session_tools.begins(
        idem,
        (sender.id, sender.key),
        (target.id, target.key),
        text,
        hops=(yield from authority.of_run(sender)),
        turns_max=policy.peers.turns_max,
    )
    if exchange is None:
        raise Forbidden(CYCLE, f"a message to {target.key} would go round in a circle; reply instead")
    yield from inbox.post(now, target.id, idem, LetterKind.PEER, session_tools.dump(exchange))


# --------------------------------------------------------------------------------------------------
# People in a thread that belongs to a session: what they say goes there, and they may take the thread back. Alone.

UNFOCUSED = "unfocused"


def heard_in_thread(now: float, policy: Policy, where: sessions.ThreadName, idem: str, text: str) -> Tx[int]:
    """A user wrote in a thread. Returns the session it is bound to. Raises NotFound when it is bound to none,
    IdempotencyConflict for other words under a key that was used."""
    channel, _, thread = where
    session_id = yield from sessions.session_of(now, *where)
    session = None if session_id is None else (yield from sessions.lock(session_id))
    if session is None or session.closed:
        raise unbound(channel, thread)
    yield from sessions.thread_used(now, *where)
    if session.is_task:
        yield from send(now, policy, session.id, idem, text, actor=f"thread {channel}:{thread}")
    else:
        yield from wake.say_once(now, policy, session.id, idem, LetterKind.USER, body=text, route="")
    return int(session.id)


def unbound(channel: str, thread: str) -> NotFound:
    return NotFound(f"thread {thread[:80]!r} of channel {channel[:40]!r} is bound to no session")


def focus(now: float, policy: Policy, session_id: int, thread: Route, actor: str) -> Tx[None]:
    """Bind the thread to this session, and release it from the one it was bound to."""
    before = yield from sessions.session_of(now, *sessions.name(thread))
    wanted = [session_id] if before is None else [before, session_id]
    found = {int(session.id): session for session in (yield from sessions.lock_all(wanted))}
    if session_id not in found or found[session_id].closed:
        raise NotFound("there is no such session, or it has ended")
    if before is not None and before != session_id and before in found:
        yield from _lose(now, policy, found[before], thread, actor)
    yield from sessions.bind(now, found[session_id], thread)
    if found[session_id].is_task:
        # The users of the thread read the parent's reply to the result.
        yield from tasks.set_column(session_id, "notify_parent", 1)


def unfocus(now: float, policy: Policy, thread: Route, actor: str) -> Tx[bool]:
    """Release the thread. False: it was bound to no session."""
    owner = yield from sessions.session_of(now, *sessions.name(thread))
    session = None if owner is None else (yield from sessions.lock(owner))
    if session is None:
        return False
    yield from _lose(now, policy, session, thread, actor)
    return True


def _lose(now: float, policy: Policy, session: SessionRow, thread: Route, actor: str) -> Tx[None]:
    """One that stayed only for its threads ends with the last."""
    yield from sessions.let_go(session, thread)
    if session.is_task and not session.bound:
        yield from tasks.record(now, policy, session, ev.SessionEnded(now, UNFOCUSED), actor)
        yield from sessions.save(now, policy, session)


def cancel(now: float, policy: Policy, session_id: int, letter: str, actor: str) -> Tx[tuple[int, ...]]:
    """Cancel a user's message: no turn reads it, or the turn that answers it stops with all tasks below the session.

    Returns the sessions whose turns were cut. A second call finishes what a crash left of the first."""
    session = yield from sessions.lock(session_id)
    if session is None:
        raise NotFound(f"there is no session {session_id}")
    if (yield from answers.answer_to(now, letter)) is not None:
        return ()  # the answer came first: what works now is for later messages
    yield from outbox.cancelled(now, session_id, letter)
    if (yield from inbox.void_unread(letter)) and session.owner is None:
        yield from sessions.reschedule(now, policy, session)
    if not (yield from inbox.is_taken(letter)):
        return ()
    stopped = yield from control.stop_below(now, policy, session_id, "cancelled", actor)
    if session.run_id is None or not (yield from answers.answers(now, letter, session.run_id)):
        return stopped  # the turn that is open answers another message
    yield from control.fall_silent(now, policy, session)
    return (session_id, *stopped)
