"""The checks of a task: whether they are due, the journal of a round, what they ask of the store.

The journal is a column of the task: before a check starts it is committed as running, and with its result as ended, so
that a worker that takes over runs only what has no result."""

from __future__ import annotations

import json
from typing import NamedTuple

from clutch.core import events as ev
from clutch.core import messages
from clutch.core.attachments import SPAWN
from clutch.core.checks import FIELD, CheckReport, report_of
from clutch.core.messages import Call, Input, Results
from clutch.core.model import Reason
from clutch.core.run import successes
from clutch.store.transaction import Tx
from clutch.transactions import sessions, tasks, transcript, turn, usage
from clutch.transactions.sessions import OwnedRun
from clutch.transactions.usage import Fate


class DueChecks(NamedTuple):
    """`report`: what is stored of an earlier round, or of this one before a crash."""

    task: str
    generation: int
    report: CheckReport | None


def due(now: float, session_id: int) -> Tx[DueChecks | None]:
    """None: it has none, or the end of the run is not that of the task: children work, or the task has ended before."""
    del now
    rows = yield (
        "SELECT task, generation, spec, checks FROM tasks WHERE id = ? AND outcome IS NULL",
        (session_id,),
    )
    if not rows or FIELD not in json.loads(rows[0][2]) or (yield from sessions.untold(session_id)):
        return None
    task, generation, _, stored = rows[0]
    return DueChecks(task, generation, report_of(stored, generation))


def forget(session_id: int) -> Tx[None]:
    """Delete the report about an earlier answer: if the wait for the children of this one expires, it is delivered
    unchecked. The report of a task that has ended stays."""
    rows = yield "SELECT checks FROM tasks WHERE id = ? AND outcome IS NULL", (session_id,)
    if rows and rows[0][0] is not None:
        yield from tasks.set_column(session_id, "checks", None)


def record_check(
    now: float, owned: OwnedRun, report: CheckReport, running: Call | None, model: str | None
) -> Tx[None]:
    """Store the report. `running`: the check that starts now, as lists show it. `model`: that it calls."""
    session = yield from sessions.own_step(owned.session_id, owned.fence)
    yield from tasks.set_column(session.id, "checks", report.to_text())
    yield from transcript.doing(now, session.id, owned.run_id, running)
    yield sessions.moved(now, session)
    if model is not None and not usage.is_budgeted(owned.policy, session.purses):
        yield from usage.give_up(now, owned.policy, session, Fate.UNSENT)
        yield from usage.foresee(now, session.id, owned.run_id, model)


def repair(now: float, owned: OwnedRun, note: Input, checked: str) -> Tx[int]:
    """The child reads what failed and continues. Return the new head."""
    session = yield from sessions.own(owned.session_id, owned.fence)
    yield from usage.give_up(now, owned.policy, session, Fate.UNSENT)
    yield from transcript.append(now, session, owned.run_id, [note])
    yield from tasks.note_all(now, owned.policy, [session.id], ev.Noted(now, checked, Reason.CHECKED))
    session.progress_at = now
    yield from sessions.save(now, owned.policy, session)
    yield from turn.foresee(now, owned.policy, session, owned.run_id)
    return session.head


def calls_made(now: float, session_id: int, tool: str) -> Tx[int]:
    """Count the successful calls of a tool since the transcript began; of a spawn, the children that succeeded."""
    del now
    rows = yield (
        "SELECT DISTINCT m.seq, m.body FROM calls c JOIN sessions s ON s.id = c.session_id"
        " JOIN messages m ON m.session_id = c.session_id AND m.seq = c.seq + 1 AND m.kind = 'results'"
        " WHERE c.session_id = ? AND c.seq > s.base",
        (session_id,),
    )
    results = [messages.load("results", body) for _, body in rows]
    count = successes([one for one in results if isinstance(one, Results)], tool)
    if tool != SPAWN:
        return count
    # The order of a child begins with the place of its call in the transcript.
    ended = yield (
        "SELECT COUNT(*) FROM tasks t JOIN sessions s ON s.id = t.requester_id WHERE t.requester_id = ?"
        " AND t.outcome = 'ok' AND t.spawn_order > s.base * 1000",
        (session_id,),
    )
    return min(count, int(ended[0][0]))
