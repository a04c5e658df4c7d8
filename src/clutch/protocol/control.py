"""The verbs of people and parents on a task: kill, steer, pause, decide, again, redeliver, dismiss.

All run alone: they are rare, some write many sessions, and their row locks then order them against
whatever batches do. Authority is checked before (`core.authority`); here only the task's state decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clutch.core import events as ev
from clutch.core.admission import Refused, SpawnRequest, admit
from clutch.core.lifecycle import step
from clutch.core.model import LetterKind, Phase, Task
from clutch.core.policy import Policy
from clutch.errors import ClutchError
from clutch.protocol import letters, sessions, tasks
from clutch.protocol.pages import plan_hash
from clutch.protocol.sessions import ParentRow, SessionRow
from clutch.protocol.spawn import census
from clutch.store.door import HINT, Tx


class NotPossible(ClutchError):
    """The task is not in a state in which this can be done."""


class UnknownTask(ClutchError):
    """There is no such task."""


class PlanChanged(ClutchError):
    """The plan is not the one that was shown."""


@dataclass(frozen=True, slots=True)
class KillReport:
    stopped: tuple[int, ...]
    already_finished: tuple[int, ...]


def kill(now: float, policy: Policy, task_id: int, reason: str, actor: str) -> Tx[KillReport]:
    """The task and everything below it, also below an ended one. One commit; nothing can be born after it."""
    session, task = yield from _task(task_id)
    below = yield from tasks.lock_below(session.id)
    is_live = bool(step(task, ev.Killed(now, reason), policy).moves)
    dying = [session, *below] if is_live else below
    descendants = [one.id for one in below]
    yield from tasks.skip_letters(now, policy, [one.id for one in dying], descendants, actor)
    stopped = yield from tasks.kill_all(now, policy, dying, reason, actor)
    return KillReport(tuple(stopped), () if is_live else (task_id,))


def steer(now: float, policy: Policy, task_id: int, idem: str, text: str, actor: str) -> Tx[Task]:
    """A new instruction supersedes what runs; same task, same session, a new generation."""
    requester, words = yield from _lock_above(task_id)
    session, task = yield from _task(task_id)
    if (yield "SELECT 1 FROM inbox WHERE idem = ?", (idem,)):
        return task
    announce = letters.announce_key(session.key, task.generation)
    rows = yield "SELECT taken_seq FROM inbox WHERE idem = ? AND state = 0", (announce,)
    is_taken = any(row[0] is not None for row in rows)
    event = ev.Steered(now, taken=is_taken or (task.phase is Phase.ANNOUNCING and not rows))
    _must_move(
        task, event, policy, "use `continue`" if task.phase is not Phase.AWAITING_APPROVAL else "use `reject`"
    )
    if task.outcome is not None:  # it has left the count of active children and comes back into it
        yield from _must_fit(policy, requester, words, f"steer of task {task_id}", is_known=True)
    yield from letters.post(now, session.id, idem, LetterKind.INSTRUCTION, text)
    yield "UPDATE tasks SET value = NULL WHERE id = ?", (task_id,)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield from sessions.save(now, policy, session)
    return changed


def pause(now: float, policy: Policy, task_id: int, actor: str) -> Tx[tuple[int, ...]]:
    """The subtree parks at the next boundary of each. Whoever is not owned is at one already."""
    changed = []
    for session in (yield from _subtree(task_id)):
        if session.closed or session.paused:
            continue
        session.paused = 1
        if session.owner is None:
            if session.run_id is not None:
                yield (
                    "UPDATE runs SET parked_until = COALESCE(parked_until, ?) WHERE id = ?",
                    (now, session.run_id),
                )
            yield from tasks.record(now, policy, session, ev.Paused(now), actor)
        yield from sessions.save(now, policy, session)
        changed.append(int(session.id))
    return tuple(changed)


def resume(now: float, policy: Policy, task_id: int, actor: str) -> Tx[tuple[int, ...]]:
    changed = []
    for session in (yield from _subtree(task_id)):
        if session.paused:
            session.paused = 0
            yield from tasks.record(now, policy, session, ev.Unpaused(now), actor)
            yield from sessions.save(now, policy, session)
            changed.append(int(session.id))
    return tuple(changed)


def decide(
    now: float, policy: Policy, task_id: int, verdict: ev.Verdict, seen_hash: str, text: str, actor: str
) -> Tx[Task]:
    """Bound to the task and to the words of the plan that was shown."""
    session, task = yield from _task(task_id)
    event = ev.Decided(now, verdict, text)
    _must_move(task, event, policy, "only a plan that awaits approval can be decided")
    if seen_hash != plan_hash(task.result or ""):
        raise PlanChanged(f"the plan of task {task_id} is not the one that was decided on; read it again")
    changed = yield from tasks.record(now, policy, session, event, actor)
    if changed.phase is Phase.QUEUED:
        said = f"{verdict.value.upper()}D: {text}" if verdict is ev.Verdict.APPROVE else f"REJECTED: {text}"
        yield from letters.post(
            now, session.id, f"decision:{task_id}:{task.generation}", LetterKind.DECISION, said
        )
    yield from sessions.save(now, policy, session)
    return changed


def again(now: float, policy: Policy, task_id: int, how: str, idem: str, text: str, actor: str) -> Tx[Task]:
    """`retry` (empty transcript) or `continue`: a finished task gets a new run, admitted like a spawn."""
    requester, words = yield from _lock_above(task_id)
    session, task = yield from _task(task_id)
    if (yield "SELECT 1 FROM inbox WHERE idem = ?", (idem,)):
        return task
    event = ev.Again(now, how)
    _must_move(task, event, policy, "it has not finished; use `steer`")
    yield from _must_fit(policy, requester, words, f"{how} of task {task_id}")
    yield "UPDATE tasks SET retained = 1, value = NULL WHERE id = ?", (task_id,)
    kind = LetterKind.TASK if how == "retry" else LetterKind.INSTRUCTION
    yield from letters.post(now, session.id, idem, kind, text or words)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield from sessions.save(now, policy, session)
    return changed


def redeliver(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    return (yield from _plain(now, policy, task_id, ev.Redelivered(now), "it is not a dead letter", actor))


def dismiss(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    return (yield from _plain(now, policy, task_id, ev.Dismissed(now), "it is not a dead letter", actor))


def cleaned(now: float, policy: Policy, task_id: int) -> Tx[Task]:
    """The files are gone and the hooks have fired."""
    session, _ = yield from _task(task_id)
    changed = yield from tasks.record(now, policy, session, ev.Cleaned(now))
    yield from sessions.save(now, policy, session)
    return changed


def close_main(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """A main session leaves (archived): what its children find waits for somebody to come back."""
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task or session.closed:
        return
    yield from tasks.stop(now, policy, session, "closed")
    session.closed, session.hold, session.hold_until = 1, 0, None
    yield from letters.unsee(session.id)
    yield from sessions.save(now, policy, session)


def open_main(now: float, policy: Policy, session_id: int) -> Tx[None]:
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task or not session.closed:
        return
    session.closed = 0
    rows = yield (
        "SELECT task_id FROM inbox WHERE session_id = ? AND state = 0 AND kind = 'announce' AND silent = 0",
        (session_id,),
    )
    back: dict[int, ev.Event] = {row[0]: ev.RequesterBack(now) for row in rows}
    yield from tasks.record_senders(now, policy, back)
    yield from sessions.save(now, policy, session)


def _plain(now: float, policy: Policy, task_id: int, event: ev.Event, otherwise: str, actor: str) -> Tx[Task]:
    session, task = yield from _task(task_id)
    _must_move(task, event, policy, otherwise)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield HINT, ("task", task_id)
    return changed


def _must_move(task: Task, event: ev.Event, policy: Policy, otherwise: str) -> None:
    """A refusal comes before the first write. What is possible is asked of the state machine itself."""
    if not step(task, event, policy).moves:
        raise NotPossible(f"task {task.id} is {task.phase} ({task.reason}): {otherwise}")


def _lock_above(task_id: int) -> Tx[tuple[ParentRow | None, str]]:
    """The requester, locked before the task's own session, and the words of the task."""
    rows = yield "SELECT requester_id, root_id, task FROM tasks WHERE id = ?", (task_id,)
    if not rows:
        raise UnknownTask(f"there is no task {task_id}")
    requester_id, root_id, words = rows[0]
    if root_id != requester_id:
        yield from sessions.lock(root_id)
    return (yield from sessions.lock_parent(requester_id)), words


def _must_fit(
    policy: Policy, requester: ParentRow | None, words: str, what: str, *, is_known: bool = False
) -> Tx[None]:
    """Whoever starts to work again is admitted like a new child.

    `is_known`: its record was never let go, so only the counts of those at work can refuse it."""
    if requester is None:
        return
    counted = yield from census(requester, policy.limits, frozenset())
    if is_known:
        counted = replace(counted, is_closed=False, retained=0, undelivered=0)
    verdict = admit(SpawnRequest(words), counted, policy.limits)
    if isinstance(verdict, Refused):
        raise NotPossible(f"{what} is refused: {verdict.error}")


def _task(task_id: int) -> Tx[tuple[SessionRow, Task]]:
    session = yield from sessions.lock(task_id)
    if session is None or not session.is_task:
        raise UnknownTask(f"there is no task {task_id}")
    (task,) = yield from tasks.load([task_id])
    return session, task


def _subtree(task_id: int) -> Tx[list[SessionRow]]:
    session, _ = yield from _task(task_id)
    return [session, *(yield from tasks.lock_below(task_id))]
