"""A spawn with side work: reserved in `spawning`, queued when its files are there, or undone.

Whoever spawned makes the files and says `ready`. If it dies in between, the task's timer undoes the spawn, and a
parent that goes on before finds it by its key and makes the files again.
"""

from __future__ import annotations

from collections.abc import Sequence

from clutch.core import events as ev
from clutch.core import wording
from clutch.core.model import FINISHED, LetterKind, Phase
from clutch.core.policy import Policy
from clutch.protocol import letters, sessions, tasks
from clutch.store.door import Tx


def ready(now: float, policy: Policy, task_id: int, workspace: str) -> Tx[bool]:
    """False: it was undone or killed meanwhile, and the files are not wanted any more."""
    session = yield from sessions.lock(task_id)
    if session is None:
        return False
    phase = (yield from tasks.load_one(task_id)).phase
    if phase is not Phase.SPAWNING:  # somebody else was faster
        return phase is not Phase.CLEANUP_PENDING and phase not in FINISHED
    words = yield "SELECT task FROM tasks WHERE id = ?", (task_id,)
    first = wording.first_message(words[0][0], session.depth, policy.limits.depth_max)
    yield "UPDATE sessions SET workspace = ? WHERE id = ?", (workspace, task_id)
    yield from letters.insert(now, task_id, f"task:{task_id}", LetterKind.TASK, first)
    yield from tasks.record(now, policy, session, ev.Admitted(now))
    yield from sessions.save(now, policy, session)
    return True


def undo(now: float, policy: Policy, task_id: int, why: str) -> Tx[bool]:
    """Alone. Nothing is left of it but one line in the timeline, and a requester that waits waits for one less.

    False: it was queued or killed meanwhile, and its files are not ours to remove."""
    rows = yield "SELECT requester_id FROM tasks WHERE id = ?", (task_id,)
    requester = (yield from sessions.lock(rows[0][0])) if rows else None
    session = yield from sessions.lock(task_id)
    if session is None:
        return True
    if (yield from tasks.load_one(task_id)).phase is not Phase.SPAWNING:
        return False
    yield from tasks.unmake(now, task_id, why)
    if requester is not None and requester.owner is None:
        yield from sessions.reschedule(now, policy, requester)
    return True


def unwanted(now: float, task_ids: Sequence[int]) -> Tx[list[int]]:
    """Those whose files nobody needs: the spawn was undone, or killed before it began, or is over and cleaned up."""
    del now
    rows = yield (
        "SELECT id FROM tasks WHERE id {any} AND ((phase <> 'completed' AND phase <> 'completed_giveup')"
        " OR (has_cleanup = 0 AND started_at IS NOT NULL))",
        (list(task_ids),),
    )
    return sorted(set(task_ids).difference(row[0] for row in rows))
