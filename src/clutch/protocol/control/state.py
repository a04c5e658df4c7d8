"""What every verb asks first: is there such a task, and does its state allow this? Refusals come before any write."""

from __future__ import annotations

from dataclasses import replace

from clutch.core import events as ev
from clutch.core import keys
from clutch.core.admission import Refused, SpawnRequest, admit
from clutch.core.lifecycle import step
from clutch.core.model import FINISHED, Task
from clutch.core.policy import Policy
from clutch.errors import ClutchError, NotFound
from clutch.protocol import census, sessions, tasks
from clutch.protocol.sessions import ParentRow, SessionRow
from clutch.store.door import HINT, Tx


class NotPossible(ClutchError):
    """The task is not in a state in which this can be done."""


class AlreadyFinished(NotPossible):
    """The task has finished; this is for one that works."""


class UnknownTask(NotFound):
    """There is no such task."""


class PlanChanged(ClutchError):
    """The plan is not the one that was shown."""


def locked(task_id: int) -> Tx[tuple[SessionRow, Task]]:
    session = yield from sessions.lock(task_id)
    if session is None or not session.is_task:
        raise UnknownTask(f"there is no task {keys.task_id(task_id)}")
    (task,) = yield from tasks.load([task_id])
    return session, task


def subtree(task_id: int) -> Tx[list[SessionRow]]:
    session, _ = yield from locked(task_id)
    return [session, *(yield from sessions.lock_below(task_id))]


def must_move(task: Task, event: ev.Event, policy: Policy, otherwise: str) -> None:
    """What is possible is asked of the state machine itself."""
    if not step(task, event, policy).moves:
        raise refusal(task, otherwise)


def refusal(task: Task, otherwise: str) -> NotPossible:
    kind = AlreadyFinished if task.phase in FINISHED else NotPossible
    return kind(f"{keys.task_id(task.id)} is {task.phase} ({task.reason}): {otherwise}")


def lock_above(task_id: int) -> Tx[tuple[ParentRow | None, str]]:
    """The requester, locked before the task's own session, and the words of the task."""
    rows = yield "SELECT requester_id, root_id, task FROM tasks WHERE id = ?", (task_id,)
    if not rows:
        raise UnknownTask(f"there is no task {keys.task_id(task_id)}")
    requester_id, root_id, words = rows[0]
    if root_id != requester_id:
        yield from sessions.lock(root_id)
    return (yield from sessions.lock_parent(requester_id)), words


def must_fit(
    policy: Policy, requester: ParentRow | None, words: str, what: str, *, is_known: bool = False
) -> Tx[None]:
    """Whoever starts to work again is admitted like a new child.

    `is_known`: its record was never let go, so only the counts of those at work can refuse it."""
    if requester is None:
        return
    counted = yield from census.count(requester, policy.limits, frozenset({requester.agent_id}), [])
    if is_known:
        counted = replace(counted, is_closed=False, retained=0, undelivered=0)
    verdict = admit(SpawnRequest(words, agent_id=requester.agent_id), counted, policy.limits)
    if isinstance(verdict, Refused):
        raise NotPossible(f"{what} is refused: {verdict.error}")
    if verdict.evict:
        yield from census.evict(requester.id, verdict.evict)


def record_or_note(
    now: float, policy: Policy, session: SessionRow, event: ev.Event, note: str, actor: str
) -> Tx[Task]:
    """An act that moves nothing leaves its line all the same."""
    task = yield from tasks.load_one(session.id)
    said = event if step(task, event, policy).moves else ev.Noted(event.at, note)
    return (yield from tasks.record(now, policy, session, said, actor))


def plainly(
    now: float, policy: Policy, task_id: int, event: ev.Event, otherwise: str, actor: str
) -> Tx[Task]:
    session, task = yield from locked(task_id)
    must_move(task, event, policy, otherwise)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield HINT, ("task", task_id)
    return changed
