"""A letter from its sender's side: posted with one insert and a hint, given back, buried, sent again.

Nothing of the receiver is read or locked."""

from __future__ import annotations

from clutch.core import ids
from clutch.core.model import LetterKind, Outcome, Task
from clutch.core.policy import Announcing
from clutch.core.text import announce as announce_text
from clutch.core.text import results
from clutch.store.transaction import HINT, Tx
from clutch.transactions.sessions import SessionRow

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


def leave_transcript(session_id: int) -> Tx[None]:
    """The transcript begins anew, or is gone: what stood in it unanswered must be read again.

    Two statements, because each state has an index of its own."""
    yield "UPDATE inbox SET taken_seq = NULL WHERE session_id = ? AND state = 0", (session_id,)
    yield "UPDATE inbox SET taken_seq = NULL WHERE session_id = ? AND state = 2", (session_id,)


def redrive(now: float, task_id: int, generation: int) -> Tx[None]:
    """A dead letter is open again. One that stands in a transcript keeps its place: it is never written twice."""
    rows = yield (
        "UPDATE inbox SET state = 0, seen = 0, ready_at = ?"
        " WHERE task_id = ? AND generation = ? AND kind = 'announce' RETURNING session_id",
        (now, task_id, generation),
    )
    for (session_id,) in rows:
        yield HINT, ("mail", session_id)


# --------------------------------------------------------------------------------------------------
# What a requester hears of a child beside its result: that it asks a person, that it was killed, what it said anyway.
#
# Such a letter has its own words and moves no task: that of a killed one stays skipped, not announced.


def tell(
    now: float,
    rules: Announcing,
    session: SessionRow,
    task: Task,
    text: str | None,
    nonce: str,
    *,
    late: bool,
) -> Tx[None]:
    """To the nearest session above that is still there; nobody there, nobody told."""
    rows = yield "SELECT label FROM tasks WHERE id = ?", (session.id,)
    reader = yield from _reader(session.parent_id)
    if reader is None:
        return
    reader_id, depth = reader
    shown = results.payload(text or "", rules.payload, rules.inline_chars_max, rules.summary_chars_max)
    finding = announce_text.AnnouncedResult(
        rows[0][0], ids.task_id(session.id), session.key, Outcome.KILLED, task.error, shown.text or None,
        summary_only=shown.is_summary, late=late,
    )  # fmt: skip
    audience = announce_text.Audience.PARENT if depth else announce_text.Audience.WAITING_PERSON
    key = f"{'late' if late else 'killed'}:v1:{session.key}:{task.generation}"
    body = announce_text.announcement([finding], audience, nonce)
    yield from post(now, reader_id, key, LetterKind.NEWS, body, session.route or "")


def ask(now: float, rules: Announcing, session: SessionRow, question: str, key: str, nonce: str) -> Tx[None]:
    """The child sleeps until a person answers; whoever waits for it should know."""
    rows = yield "SELECT label FROM tasks WHERE id = ?", (session.id,)
    reader = yield from _reader(session.parent_id)
    if reader is None:
        return
    shown = results.payload(question, rules.payload, rules.inline_chars_max, rules.summary_chars_max)
    body = announce_text.question_asked(rows[0][0], ids.task_id(session.id), shown.text, nonce)
    yield from post(
        now, reader[0], f"question:v1:{session.key}:{key}", LetterKind.NEWS, body, session.route or ""
    )


def _reader(session_id: int | None) -> Tx[tuple[int, int] | None]:
    while session_id is not None:
        rows = yield "SELECT closed, parent_id, depth FROM sessions WHERE id = ?", (session_id,)
        if not rows:
            return None
        closed, parent_id, depth = rows[0]
        if not closed:
            return session_id, depth
        session_id = parent_id
    return None
