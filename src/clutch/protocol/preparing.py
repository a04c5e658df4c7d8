"""A spawn with side work: reserved in `spawning`, queued when its files are there, or undone.

Whoever spawned makes the files and says `ready`. If it dies in between, the task's timer undoes the spawn, and a
parent that goes on finds it by its key and makes the files again.
"""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core import wording
from clutch.core.model import LetterKind, Phase
from clutch.core.policy import Policy
from clutch.protocol import letters, sessions, tasks
from clutch.store.door import Tx


def ready(now: float, policy: Policy, task_id: int, workspace: str) -> Tx[bool]:
    """False: it was killed or undone meanwhile, and the files are not wanted any more."""
    session = yield from sessions.lock(task_id)
    if session is None or (yield from tasks.load_one(task_id)).phase is not Phase.SPAWNING:
        return session is not None and not session.closed
    words = yield "SELECT task FROM tasks WHERE id = ?", (task_id,)
    first = wording.first_message(words[0][0], session.depth, policy.limits.depth_max)
    yield "UPDATE sessions SET workspace = ? WHERE id = ?", (workspace, task_id)
    yield from letters.insert(now, task_id, f"task:{task_id}", LetterKind.TASK, first)
    yield from tasks.record(now, policy, session, ev.Admitted(now))
    yield from sessions.save(now, policy, session)
    return True


def undo(now: float, task_id: int, why: str) -> Tx[None]:
    """Alone. Nothing is left of it but one line in the timeline."""
    session = yield from sessions.lock(task_id)
    if session is not None and (yield from tasks.load_one(task_id)).phase is Phase.SPAWNING:
        yield from tasks.unmake(now, task_id, why)
