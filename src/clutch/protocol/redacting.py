"""Contents of files leave the transcript as soon as nobody needs them there.

A spawn call holds what it gives until it is on disk: after a crash the run goes on from its transcript. With the
results of the call, or when its run has ended without carrying it out, only name, size and hash stay.
"""

from __future__ import annotations

from clutch.core import messages
from clutch.core.attachments import SPAWN, redacted
from clutch.core.messages import Answer
from clutch.protocol.sessions import StepRow
from clutch.store.door import Tx


def reword(session: StepRow, instead: Answer) -> Tx[None]:
    """The last message, before anything follows it."""
    known = (messages.dump(instead), session.id, session.head)
    yield "UPDATE messages SET body = ? WHERE session_id = ? AND seq = ?", known


def redact_open(session: StepRow) -> Tx[None]:
    """Of an answer that nobody carries out any more."""
    rows = yield (
        "SELECT kind, body FROM messages WHERE session_id = ? AND seq = ? AND EXISTS (SELECT 1 FROM calls c"
        " WHERE c.session_id = messages.session_id AND c.seq = messages.seq AND c.name = ?)",
        (session.id, session.head, SPAWN),
    )
    for kind, body in rows:
        answer = messages.load(kind, body)
        if isinstance(answer, Answer) and (instead := redacted(answer)) is not answer:
            yield from reword(session, instead)
