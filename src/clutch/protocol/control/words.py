"""Words to a child that works: steer supersedes what it does, send adds to it, decide answers its plan."""

from __future__ import annotations

from dataclasses import dataclass

from clutch.core import events as ev
from clutch.core import keys, messages
from clutch.core.messages import Answer
from clutch.core.model import LetterKind, Phase, Task
from clutch.core.policy import Policy
from clutch.errors import NotFound, RateLimited
from clutch.protocol import inbox, letters, sessions, tasks
from clutch.protocol.control.state import (
    AlreadyFinished,
    PlanChanged,
    lock_above,
    locked,
    must_fit,
    must_move,
    refusal,
)
from clutch.protocol.pages import plan_hash
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx

APPROVED, REJECTED = "APPROVED:", "REJECTED:"


@dataclass(frozen=True, slots=True)
class Steered:
    """`supersedes`: the run that was cut, if one was open."""

    task: Task
    supersedes: int | None = None


def steer(now: float, policy: Policy, task_id: int, idem: str, text: str, actor: str) -> Tx[Steered]:
    """A new instruction supersedes what runs; same task, same session, a new generation."""
    requester, words = yield from lock_above(task_id)
    session, task = yield from locked(task_id)
    if (yield from inbox.is_known(idem, text)):
        return Steered(task)
    announce = letters.announce_key(session.key, task.generation)
    rows = yield "SELECT taken_seq FROM inbox WHERE idem = ? AND state = 0", (announce,)
    is_taken = any(row[0] is not None for row in rows)
    event = ev.Steered(now, taken=is_taken or (task.phase is Phase.ANNOUNCING and not rows))
    must_move(
        task, event, policy, "use `continue`" if task.phase is not Phase.AWAITING_APPROVAL else "use `reject`"
    )
    yield from _not_too_often(now, policy, task_id, actor)
    if task.outcome is not None:  # it has left the count of active children and comes back into it
        yield from must_fit(policy, requester, words, f"steer of {keys.task_id(task_id)}", is_known=True)
    supersedes = session.run_id
    yield from letters.post(now, session.id, idem, LetterKind.INSTRUCTION, text)
    yield from _give_tools_a_moment(now, policy, session, idem)
    yield "UPDATE tasks SET value = NULL WHERE id = ?", (task_id,)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield from sessions.save(now, policy, session)
    return Steered(changed, supersedes)


def _give_tools_a_moment(now: float, policy: Policy, session: SessionRow, idem: str) -> Tx[None]:
    """The next run waits for tools that are running: what they give in time is its to read (`turns.leave`)."""
    if session.owner is None:
        return
    if (yield "SELECT 1 FROM calls WHERE session_id = ? AND seq = ?", (session.id, session.head)):
        yield "UPDATE inbox SET ready_at = ? WHERE idem = ?", (now + policy.work.tool_grace_s, idem)


def _not_too_often(now: float, policy: Policy, task_id: int, actor: str) -> Tx[None]:
    """Each steer cuts a model call that was paid for; a caller in a loop must not burn them."""
    rows = yield (
        "SELECT MAX(at) FROM events WHERE task_id = ? AND actor = ? AND substr(reason, 1, 7) = 'steered'",
        (task_id, actor),
    )
    wait_s = 0.0 if rows[0][0] is None else rows[0][0] + policy.control.steer_interval_s - now
    if wait_s > 0:
        raise RateLimited(f"{keys.task_id(task_id)} was steered a moment ago", retry_after_s=wait_s)


def send(now: float, policy: Policy, session_id: int, idem: str, text: str, actor: str) -> Tx[None]:
    """A follow-up: read at the next step of a run, or it starts one."""
    session = yield from sessions.lock(session_id)
    if session is None:
        raise NotFound(f"there is no session {session_id}")
    if (yield from inbox.is_known(idem, text)):
        return
    if session.is_task:
        task = yield from tasks.load_one(session_id)
        if task.phase is Phase.SPAWNING:  # a letter would start it before its files are there
            raise refusal(task, "try again in a moment")
        if task.phase is Phase.AWAITING_APPROVAL:
            raise refusal(task, "use `approve` or `reject`")
        if session.closed:
            raise AlreadyFinished(f"{keys.task_id(session_id)} has finished ({task.outcome}): use `continue`")
        yield from tasks.record(now, policy, session, ev.Noted(now, "a message was sent to it"), actor)
    elif session.closed:
        raise AlreadyFinished(f"the session {session.key} is archived")
    yield from inbox.say(now, policy, session_id, idem, LetterKind.INSTRUCTION, text)


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


def decide(
    now: float, policy: Policy, task_id: int, verdict: ev.Verdict, seen_hash: str, text: str, actor: str
) -> Tx[Task]:
    """Bound to the task and to the words of the plan that was shown. The same decision again changes nothing."""
    session, task = yield from locked(task_id)
    event, said = ev.Decided(now, verdict, text), _verdict_words(verdict, text)
    if (yield from _was_decided(task, said, text)):
        return task
    must_move(task, event, policy, "only a plan that awaits approval can be decided")
    if seen_hash != plan_hash(task.result or ""):
        raise PlanChanged(
            f"the plan of {keys.task_id(task_id)} is not the one that was decided on; read it again"
        )
    changed = yield from tasks.record(now, policy, session, event, actor)
    if changed.phase is Phase.QUEUED:
        key = _decision_key(task_id, task.generation)
        yield from letters.post(now, session.id, key, LetterKind.DECISION, said)
    yield from sessions.save(now, policy, session)
    return changed


def _verdict_words(verdict: ev.Verdict, text: str) -> str:
    return f"{APPROVED if verdict is ev.Verdict.APPROVE else REJECTED} {text}".rstrip()


def _decision_key(task_id: int, generation: int) -> str:
    return f"decision:{task_id}:{generation}"


def _was_decided(task: Task, said: str, text: str) -> Tx[bool]:
    """Whoever lost the answer asks again, in the same words."""
    if task.outcome is not None:
        return said.startswith(REJECTED) and task.error == f"plan rejected: {text}"
    rows = yield "SELECT body FROM inbox WHERE idem = ?", (_decision_key(task.id, task.generation - 1),)
    return bool(rows) and rows[0][0] == said and task.phase is not Phase.AWAITING_APPROVAL


def decide_as_read(
    now: float, policy: Policy, task_id: int, reader_id: int, message: str, actor: str
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
        raise PlanChanged(f"you have not read the plan of {keys.task_id(task_id)} as it is now")
    verdict, text = spoken
    return (yield from decide(now, policy, task_id, verdict, plan_hash(plan or ""), text, actor))


def spoken_verdict(message: str, policy: Policy) -> tuple[ev.Verdict, str] | None:
    said = message.strip()
    if said.startswith(APPROVED):
        return ev.Verdict.APPROVE, said.removeprefix(APPROVED).strip()
    if said.startswith(REJECTED):
        return ev.Verdict(policy.life.on_reject), said.removeprefix(REJECTED).strip()
    return None
