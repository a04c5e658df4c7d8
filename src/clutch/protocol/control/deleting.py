"""Deleting a session, on a person's word: its words go, or with `keep_transcript` only its place in lists and quotas.

Refused while anything of it works, and while somebody has not heard its result or it has not heard somebody's;
with `force` those become dead letters, which keep the result and can be redelivered.
"""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core.hooks import Removal as Reason
from clutch.core.lifecycle import MISSING
from clutch.core.model import WORKING, Delivery, Phase, Task
from clutch.core.policy import Policy
from clutch.errors import NotFound
from clutch.protocol import sessions, tasks
from clutch.protocol.control.state import NotPossible
from clutch.protocol.forgetting import forget, is_forgotten
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx

DELETED = "deleted"


def delete(
    now: float, policy: Policy, session_id: int, force: bool, keep_transcript: bool, actor: str
) -> Tx[None]:
    """Alone. Nothing happens the second time."""
    session = yield from sessions.lock(session_id)
    if session is None:
        raise NotFound(f"there is no session {session_id}")
    if (yield from is_forgotten(session_id)):
        return
    below = yield from sessions.lock_below(session_id)
    if any(not one.closed for one in below):
        raise NotPossible(f"somebody still works below {session.key}: kill that first")
    if session.closed == 0 and (session.owner is not None or session.run_id is not None):
        raise NotPossible(f"{session.key} is in a turn: kill it first")
    if session.is_task:
        yield from _check_task(now, policy, session, force, actor)
        yield from _archive(now, session_id)
    else:
        yield from _check_main(now, policy, session, force, actor)
    yield from _gone(now, policy, session, keep_transcript)


def _gone(now: float, policy: Policy, session: SessionRow, keep_transcript: bool) -> Tx[None]:
    if not session.closed:
        session.closed, session.hold, session.hold_until = 1, 0, None
    if not keep_transcript:
        yield from forget(now, policy, session, Reason.DELETED)
        if not session.is_task:  # whoever opens one of this name gets a new one
            renamed = f"deleted:{session.id}:{session.key}"
            yield "UPDATE sessions SET key = ? WHERE id = ?", (renamed, session.id)
    yield from sessions.save(now, policy, session)


def _archive(now: float, task_id: int) -> Tx[None]:
    yield (
        "UPDATE tasks SET retained = 0, archived_at = COALESCE(archived_at, ?) WHERE id = ?",
        (now, task_id),
    )


# ---- a task's ----------------------------------------------------------------------------------------


def _check_task(now: float, policy: Policy, session: SessionRow, force: bool, actor: str) -> Tx[None]:
    task = yield from tasks.load_one(session.id)
    if task.phase in WORKING and not _waits_for_a_reader(task):
        raise NotPossible(f"{session.key} is {task.phase}: kill it first")
    is_unheard = _waits_for_a_reader(task) or task.delivery is Delivery.UNDELIVERED
    if is_unheard and not force:
        raise NotPossible(
            f"the result of {session.key} was not delivered: redeliver or dismiss it, or force (it is kept)"
        )
    if task.stays:
        yield from tasks.record(now, policy, session, ev.SessionEnded(now, DELETED), actor)
    if _waits_for_a_reader(task):
        yield from tasks.record(now, policy, session, ev.Abandoned(now, DELETED), actor)
    yield from tasks.record(now, policy, session, ev.Noted(now, DELETED), actor)


def _waits_for_a_reader(task: Task) -> bool:
    return task.phase is Phase.ANNOUNCING or (
        task.phase is Phase.ANNOUNCE_DEFERRED and task.reason == MISSING
    )


# ---- a main one --------------------------------------------------------------------------------------


def _check_main(now: float, policy: Policy, session: SessionRow, force: bool, actor: str) -> Tx[None]:
    rows = yield (
        "SELECT task_id, kind, silent FROM inbox WHERE session_id = ? AND state = 0 ORDER BY id",
        (session.id,),
    )
    if any(not silent for _, _, silent in rows) and not force:
        raise NotPossible(f"{session.key} has unread letters: let it read them, or force (results are kept)")
    told: dict[int, ev.Event] = {
        task_id: ev.Abandoned(now, DELETED)
        for task_id, kind, silent in rows
        if kind == "announce" and not silent
    }
    yield from tasks.record_senders(now, policy, told, actor)
    yield "UPDATE inbox SET state = 3, seen = 1 WHERE session_id = ? AND state = 0", (session.id,)
