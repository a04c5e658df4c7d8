"""Tasks whose session row is gone: a backup that was half restored, somebody's hand in the database.

Without its session a task can do nothing and be found by nobody below it. So it gets another row, which knows its
transcript but not its rights, and goes the usual way: what it had said is told, without any it is lost. It is found
by looking, at every sweep; a store that cannot be read finds nothing and removes nothing.
"""

from __future__ import annotations

from clutch.core import authority, keys
from clutch.core import events as ev
from clutch.core.authority import Rights, Role
from clutch.core.authority.tools import ToolFilter
from clutch.core.hooks import Removal
from clutch.core.lifecycle import ORPHANED
from clutch.core.model import Phase
from clutch.core.policy import OnOrphan, Policy
from clutch.protocol import hooks, sessions, tasks
from clutch.protocol.sessions import IS_UNTOLD
from clutch.store.door import Tx

BATCH_MAX = 100
#: Those it had are gone with the row; what nobody remembers nobody may use.
_NO_RIGHTS = authority.to_text(Rights(Role.LEAF, 0, 0, ToolFilter(deny=frozenset("*"))))


def find(now: float) -> Tx[list[int]]:
    del now
    rows = yield (
        f"SELECT id FROM tasks WHERE {IS_UNTOLD}"  # noqa: S608 (constant words)
        " AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = tasks.id) ORDER BY id LIMIT ?",
        (BATCH_MAX,),
    )
    return [row[0] for row in rows]


def adopt(now: float, policy: Policy, task_id: int) -> Tx[None]:
    """Alone. Nothing, if the session has come back, the task is over, or another sweep was first."""
    rows = yield "SELECT requester_id, root_id, depth, phase, outcome FROM tasks WHERE id = ?", (task_id,)
    if not rows:
        return
    requester_id, root_id, depth, phase, outcome = rows[0]
    requester = yield from sessions.lock_parent(requester_id)
    if (yield from sessions.lock(task_id)) is not None:
        return
    if phase == Phase.SPAWNING:
        return (yield from tasks.unmake(now, task_id, ORPHANED))
    agent_id = "main" if requester is None else requester.agent_id
    key = f"agent:{agent_id}:subagent:gone-{keys.task_id(task_id)}"
    yield (
        "INSERT INTO sessions(id, key, agent_id, parent_id, root_id, depth, lane, role, is_task, rights, route,"
        " created_at, closed, head) VALUES(?, ?, ?, ?, ?, ?, 'subagent', 'leaf', 1, ?, ?, ?, ?,"
        " (SELECT COALESCE(MAX(seq), 0) FROM messages WHERE session_id = ?))",
        (
            task_id, key, agent_id, requester_id, root_id, depth, _NO_RIGHTS,
            None if requester is None else requester.route, now, int(outcome is not None), task_id,
        ),
    )  # fmt: skip
    session = yield from sessions.lock(task_id)
    assert session is not None
    yield from hooks.removed(now, policy, task_id, key, Removal.ORPHANED, None)
    yield from tasks.record(
        now, policy, session, ev.Orphaned(now, policy.keeping.on_orphan is OnOrphan.PRUNE)
    )
    yield from sessions.save(now, policy, session)
