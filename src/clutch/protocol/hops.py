"""The sessions that a chain of messages between agents has passed, as far as one run goes on with it.

A run goes on with the letter of another agent that it answers, and with the results of children that were sent out by
such a run: a circle is one whether or not there was a child on the way.
"""

from __future__ import annotations

import json

from clutch.core import pingpong
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx

FIELD = "hops"  #: in what a task is known to be asked for

_READ_NOW = (
    "SELECT t.spec FROM tasks t JOIN inbox i ON i.task_id = t.id WHERE t.root_id = ? AND t.spec LIKE ?"
    " AND i.session_id = ? AND i.taken_run = ? AND i.kind = 'announce' ORDER BY t.id"
)


def of_run(session: SessionRow) -> Tx[tuple[int, ...]]:
    """In the order they were passed; none without an open run."""
    if session.is_task:
        rows = yield "SELECT spec FROM tasks WHERE id = ?", (session.id,)
    elif session.run_id is None:
        return ()
    else:
        rows = yield _READ_NOW, (session.root_id, f'%"{FIELD}"%', session.id, session.run_id)
    passed = [hop for (spec,) in rows for hop in json.loads(spec).get(FIELD, ())]
    if session.letter_id is not None and session.run_id is not None:
        letter = yield "SELECT body FROM inbox WHERE id = ? AND kind = 'peer'", (session.letter_id,)
        passed += [hop for (body,) in letter for hop in pingpong.load(body).hops]
    return tuple(dict.fromkeys(passed))
