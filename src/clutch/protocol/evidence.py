"""What a task did, as its ledger and its transcript show it: written down with the outcome, in its transaction."""

from __future__ import annotations

from collections.abc import Sequence

from clutch.core import events as ev
from clutch.core import messages
from clutch.core.authority import Role
from clutch.core.evidence import WRITING_TOOLS, Evidence, files_touched, stop_reason
from clutch.core.model import Task
from clutch.protocol import task_rows
from clutch.protocol.conditions import IS_WORKING
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Row, Tx

_WRITES = "name IN ('" + "', '".join(WRITING_TOOLS) + "')"
_LOAD = (
    f"SELECT {task_rows.COLUMNS}, (SELECT COUNT(*) FROM calls c WHERE c.session_id = tasks.id AND c.seq > ?),"  # noqa: S608
    f" (SELECT COUNT(*) FROM calls c WHERE c.session_id = tasks.id AND c.seq > ? AND {_WRITES}),"
    " (SELECT COUNT(*) FROM tasks k WHERE k.requester_id = tasks.id AND k.delivery = 'delivered')"
    " FROM tasks WHERE id = ? {lock}"
)
#: Answers with calls that write, each with its results.
_WRITTEN_WITH = (
    "SELECT DISTINCT m.seq, m.kind, m.body FROM calls c JOIN messages m ON m.session_id = c.session_id"  # noqa: S608
    f" AND m.seq BETWEEN c.seq AND c.seq + 1 WHERE c.session_id = ? AND c.seq > ? AND c.{_WRITES} ORDER BY m.seq"
)
_STILL_OUT = f"SELECT label FROM tasks WHERE requester_id = ? AND {IS_WORKING} ORDER BY spawn_order, id"  # noqa: S608


def load(session: SessionRow) -> Tx[tuple[Task, Row]]:
    """The task, locked, and what the ledger counts of its work: calls, those that write, children it heard."""
    rows = yield _LOAD, (session.base, session.base, session.id)
    return task_rows.from_row(rows[0][: task_rows.SIZE]), rows[0][task_rows.SIZE :]


def gather(session: SessionRow, task: Task, event: ev.Event, calls: int, writes: int, joined: int) -> Tx[str]:
    """The ledger came with the task; the rest is read where there is any."""
    files: tuple[str, ...] = ()
    if writes:
        rows = yield _WRITTEN_WITH, (session.id, session.base)
        files = files_touched([messages.load(kind, body) for _, kind, body in rows])
    missing: Sequence[Row] = ()
    # Whoever ends in order has heard all its children, and a leaf has none.
    if session.role != Role.LEAF and not isinstance(event, ev.Ended):
        missing = yield _STILL_OUT, (session.id,)
    labels = tuple(row[0] for row in missing)
    return Evidence(calls, files, joined, labels, stop_reason(task)).to_text(task.generation)
