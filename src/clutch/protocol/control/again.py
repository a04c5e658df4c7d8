"""What may become of a finished task: a new run, another try to tell it, or out of the lists."""

from __future__ import annotations

import json
from pathlib import PurePath

from clutch.core import authority, cleaning, keys, wording
from clutch.core import events as ev
from clutch.core.hooks import Removal
from clutch.core.model import FINISHED, Delivery, LetterKind, Phase, Task, Workspace
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
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx

CLEANING = "what it left is being removed; try again in a moment"


def again(now: float, policy: Policy, task_id: int, how: str, idem: str, text: str, actor: str) -> Tx[Task]:
    """`retry` (empty transcript) or `continue`: a task that has ended gets a new run, admitted like a spawn.

    A letter of the old one that was not taken is void (`taking`); one that was is told, and so is the new one."""
    requester, words = yield from lock_above(task_id)
    session, task = yield from locked(task_id)
    if (yield "SELECT 1 FROM inbox WHERE idem = ?", (idem,)):
        return task
    event = ev.Again(now, how, is_being_read=(yield from _is_being_read(task)))
    must_move(task, event, policy, _why_not(task))
    is_stripped = yield from _stripped(task)
    yield "UPDATE tasks SET retained = 0 WHERE id = ?", (task_id,)  # it makes room for itself
    yield from must_fit(policy, requester, words, f"{how} of {keys.task_id(task_id)}")
    yield "UPDATE tasks SET retained = 1, archived_at = NULL, value = NULL WHERE id = ?", (task_id,)
    if is_stripped:
        yield "UPDATE tasks SET shelf = shelf + 1, files = NULL WHERE id = ?", (task_id,)
    if how == "retry":
        is_retained = policy.limits.attachments.retain_on_keep or task.phase not in FINISHED
        has_files = is_retained and not is_stripped
        first = yield from _first_message(session, text or words, has_files=has_files)
        yield from letters.post(now, session.id, idem, LetterKind.TASK, first)
    else:
        yield from letters.post(now, session.id, idem, LetterKind.INSTRUCTION, text or words)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield from sessions.save(now, policy, session)
    return changed


def _is_being_read(task: Task) -> Tx[bool]:
    rows = yield (
        "SELECT 1 FROM inbox WHERE task_id = ? AND generation = ? AND kind = ? AND state = 0 AND taken_run IS NOT NULL",
        (task.id, task.generation, LetterKind.ANNOUNCE.value),
    )
    return bool(rows)


def _why_not(task: Task) -> str:
    match task.phase:
        case Phase.CLEANUP_PENDING | Phase.COMPLETED | Phase.COMPLETED_GIVEUP:
            return CLEANING
        case Phase.AWAITING_APPROVAL:
            return "its plan waits; use `approve` or `reject`"
        case _:
            return "it has not ended; use `steer`"


def _stripped(task: Task) -> Tx[bool]:
    """Whether its files were to go. Raises NotPossible when too much of it is gone to work again at all."""
    rows = yield (
        "SELECT t.spec, t.archived_at, s.deleted_at, s.workspace FROM tasks t JOIN sessions s ON s.id = t.id"
        " WHERE t.id = ?",
        (task.id,),
    )
    spec, archived_at, deleted_at, workspace = rows[0]
    is_begun = task.started_at is not None
    if deleted_at is not None:
        raise NotPossible(f"the session of {keys.task_id(task.id)} was deleted: spawn a new task")
    # Older rows do not say what was asked for; a directory of its own is named after its task.
    had_own = json.loads(spec).get("workspace") == Workspace.ISOLATED or (
        workspace is not None and PurePath(workspace).name == str(task.id)
    )
    if not is_begun and had_own:
        raise NotPossible(f"{keys.task_id(task.id)} never began, its own workspace is gone: spawn a new task")
    return cleaning.is_stripped(outcome=task.outcome, is_begun=is_begun, is_archived=archived_at is not None)


def _first_message(session: SessionRow, words: str, *, has_files: bool) -> Tx[str]:
    """As when it was born. `has_files`: those given with it did not go with its last end."""
    rows = yield (
        "SELECT t.spec, s.rights FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.id = ?",
        (session.id,),
    )
    spec, rights = rows[0]
    names = [name for name, *_ in json.loads(spec).get("attachments", ())] if has_files else []
    return wording.first_message(words, session.depth, authority.from_text(rights).depth_max, names)


def redeliver(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    return (yield from plainly(now, policy, task_id, ev.Redelivered(now), "it is not a dead letter", actor))


def dismiss(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    return (yield from plainly(now, policy, task_id, ev.Dismissed(now), "it is not a dead letter", actor))


def remove(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    """Archived at once, out of the quota of its requester. Its transcript stays; a second remove changes nothing."""
    session, task = yield from locked(task_id)
    if task.outcome is None:
        raise refusal(task, "only a finished task can be removed; use `kill` first")
    if task.phase not in FINISHED:
        raise refusal(task, "possible as soon as its requester has heard the result, and it is completed")
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
