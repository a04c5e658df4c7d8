"""A letter from its sender's side: posted with one insert and a hint, given back, buried, sent again.

Nothing of the receiver is read or locked.
"""

from __future__ import annotations

from clutch.core.model import LetterKind
from clutch.protocol.sessions import SessionRow
from clutch.store.door import HINT, Tx

_INSERT = (
    "INSERT INTO inbox(session_id, idem, kind, silent, body, route, task_id, generation, at, ready_at, seen)"
    " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(idem) DO NOTHING"
)


def insert(now: float, session_id: int, idem: str, kind: LetterKind, body: str, route: str = "") -> Tx[None]:
    yield _INSERT, (session_id, idem, kind.value, 0, body, route, None, None, now, now, 0)


def post(now: float, session_id: int, idem: str, kind: LetterKind, body: str, route: str = "") -> Tx[None]:
    yield from insert(now, session_id, idem, kind, body, route)
    yield HINT, ("mail", session_id)


def announce_key(session_key: str, generation: int) -> str:
    return f"announce:v1:{session_key}:{generation}"


def announce(
    now: float, session: SessionRow, requester_id: int, generation: int, *, silent: bool
) -> Tx[None]:
    """A letter says who ended, not what it said: the result is read from the task when the letter is taken."""
    idem = announce_key(session.key, generation)
    kind, route = LetterKind.ANNOUNCE.value, session.route or ""
    yield _INSERT, (requester_id, idem, kind, int(silent), "", route, session.id, generation, now, now, 0)
    yield HINT, ("mail", requester_id)


def ask_approval(now: float, session: SessionRow, requester_id: int, generation: int) -> Tx[None]:
    idem, kind = f"plan:v1:{session.key}:{generation}", LetterKind.PLAN.value
    yield _INSERT, (requester_id, idem, kind, 0, "", session.route or "", session.id, generation, now, now, 0)
    yield HINT, ("mail", requester_id)


def unsee(session: SessionRow) -> Tx[None]:
    """The session closes: the mailman must look again at what nobody took."""
    if session.has_mail is None:
        rows = yield "SELECT 1 FROM inbox WHERE session_id = ? AND state = 0 LIMIT 1", (session.id,)
        session.has_mail = bool(rows)
    if session.has_mail:
        yield "UPDATE inbox SET seen = 0, taken_run = NULL WHERE session_id = ? AND state = 0", (session.id,)
        yield HINT, ("mail", session.id)


def give_back(task_id: int, generation: int, ready_at: float) -> Tx[None]:
    yield (
        "UPDATE inbox SET taken_run = NULL, ready_at = ?"
        " WHERE task_id = ? AND generation = ? AND kind = 'announce'",
        (ready_at, task_id, generation),
    )


def bury(task_id: int, generation: int) -> Tx[None]:
    yield (
        "UPDATE inbox SET state = 2, taken_run = NULL"
        " WHERE task_id = ? AND generation = ? AND kind = 'announce'",
        (task_id, generation),
    )


def redrive(now: float, task_id: int, generation: int) -> Tx[None]:
    """A dead letter is open again, and nobody has read it."""
    rows = yield (
        "UPDATE inbox SET state = 0, seen = 0, taken_run = NULL, taken_seq = NULL, ready_at = ?"
        " WHERE task_id = ? AND generation = ? AND kind = 'announce' RETURNING session_id",
        (now, task_id, generation),
    )
    for (session_id,) in rows:
        yield HINT, ("mail", session_id)
