"""What may become of a finished task: a new run, another try to tell it, or out of the lists."""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core import keys
from clutch.core.hooks import Removal
from clutch.core.model import FINISHED, Delivery, LetterKind, Task
from clutch.core.policy import Policy
from clutch.protocol import hooks, letters, sessions, tasks
from clutch.protocol.control.state import (
    NotPossible,
    lock_above,
    locked,
    must_fit,
    must_move,
    plainly,
    refusal,
)
from clutch.protocol.forgetting import is_forgotten
from clutch.store.door import Tx


def again(now: float, policy: Policy, task_id: int, how: str, idem: str, text: str, actor: str) -> Tx[Task]:
    """`retry` (empty transcript) or `continue`: a finished task gets a new run, admitted like a spawn."""
    requester, words = yield from lock_above(task_id)
    session, task = yield from locked(task_id)
    if (yield "SELECT 1 FROM inbox WHERE idem = ?", (idem,)):
        return task
    event = ev.Again(now, how)
    must_move(task, event, policy, "it has not finished; use `steer`")
    if (yield from is_forgotten(task_id)):
        raise NotPossible(f"the session of {keys.task_id(task_id)} was deleted: spawn a new task")
    yield "UPDATE tasks SET retained = 0 WHERE id = ?", (task_id,)  # it makes room for itself
    yield from must_fit(policy, requester, words, f"{how} of {keys.task_id(task_id)}")
    yield "UPDATE tasks SET retained = 1, archived_at = NULL, value = NULL WHERE id = ?", (task_id,)
    kind = LetterKind.TASK if how == "retry" else LetterKind.INSTRUCTION
    yield from letters.post(now, session.id, idem, kind, text or words)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield from sessions.save(now, policy, session)
    return changed


def redeliver(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    return (yield from plainly(now, policy, task_id, ev.Redelivered(now), "it is not a dead letter", actor))


def dismiss(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    return (yield from plainly(now, policy, task_id, ev.Dismissed(now), "it is not a dead letter", actor))


def remove(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    """Archived at once, out of the quota of its requester. Its transcript stays; a second remove changes nothing."""
    session, task = yield from locked(task_id)
    if task.phase not in FINISHED:
        raise refusal(task, "only a finished task can be removed; use `kill` first")
    if task.delivery is Delivery.UNDELIVERED:
        raise NotPossible(
            f"the result of {keys.task_id(task_id)} was not delivered: use `redeliver` or `dismiss` first"
        )
    if task.stays:
        raise refusal(task, "its session stays for follow-ups; use `kill` first")
    taken = yield (
        "UPDATE tasks SET retained = 0, archived_at = ? WHERE id = ? AND archived_at IS NULL RETURNING id",
        (now, task_id),
    )
    if not taken:
        return task
    rows = yield "SELECT workspace FROM sessions WHERE id = ?", (task_id,)
    yield from hooks.removed(now, policy, task_id, session.key, Removal.REMOVED, rows[0][0])
    return (yield from tasks.record(now, policy, session, ev.Noted(now, "removed"), actor))
