"""What a requester hears of a child beside its result: that it asks a person, that it was killed, what it said anyway.

Such a letter has its own words and moves no task: that of a killed one stays skipped, not announced.
"""

from __future__ import annotations

from clutch.core import keys, wording
from clutch.core.model import LetterKind, Outcome, Task
from clutch.core.policy import Announcing
from clutch.protocol import letters
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx


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
    shown = wording.payload(text or "", rules.payload, rules.inline_chars_max, rules.summary_chars_max)
    finding = wording.Finding(
        rows[0][0], keys.task_id(session.id), session.key, Outcome.KILLED, task.error, shown.text or None,
        summary_only=shown.is_summary, late=late,
    )  # fmt: skip
    audience = wording.Audience.PARENT if depth else wording.Audience.WAITING_PERSON
    key = f"{'late' if late else 'killed'}:v1:{session.key}:{task.generation}"
    body = wording.announcement([finding], audience, nonce)
    yield from letters.post(now, reader_id, key, LetterKind.NEWS, body, session.route or "")


def ask(now: float, rules: Announcing, session: SessionRow, question: str, key: str, nonce: str) -> Tx[None]:
    """The child sleeps until a person answers; whoever waits for it should know."""
    rows = yield "SELECT label FROM tasks WHERE id = ?", (session.id,)
    reader = yield from _reader(session.parent_id)
    if reader is None:
        return
    shown = wording.payload(question, rules.payload, rules.inline_chars_max, rules.summary_chars_max)
    body = wording.question_asked(rows[0][0], keys.task_id(session.id), shown.text, nonce)
    yield from letters.post(
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
