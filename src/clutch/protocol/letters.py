"""Posting: a letter is one insert and a hint. Nothing of the receiver is read or locked."""

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
