"""The rows of a transcript: its entries, the calls of its answers, and the call that foreign code makes now.

An entry is written once. Only the contents of files leave it later: a spawn call holds what it gives until that is on
disk, because after a crash the run goes on from its transcript. With the results of the call, or when its run has
ended without carrying it out, only name, size and hash stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clutch.core import messages
from clutch.core.attachments import SPAWN, redacted
from clutch.core.messages import Answer, Call, Entry, Message, Summary
from clutch.core.text.format import main_argument
from clutch.store.transaction import ManyRows, Row, Tx
from clutch.transactions import sessions
from clutch.transactions.sessions import OwnedRun, StepRow

NO_RUN = 0  # of entries that no run of this session has written

_INSERT = "INSERT INTO messages(session_id, seq, run_id, kind, body, at) VALUES(?, ?, ?, ?, ?, ?)"


def append(now: float, session: StepRow, run_id: int, new: Sequence[Entry]) -> Tx[None]:
    if new:
        yield _INSERT, ManyRows([_line(now, session, run_id, entry) for entry in new])


def append_one(now: float, session: StepRow, run_id: int, entry: Entry) -> Tx[None]:
    yield _INSERT, _line(now, session, run_id, entry)


def _line(now: float, session: StepRow, run_id: int, entry: Entry) -> Row:
    session.head += 1
    return (session.id, session.head, run_id, messages.kind(entry), messages.dump(entry), now)


def insert(session_id: int, run_id: int, entries: Iterable[tuple[Message, float]]) -> Tx[None]:
    """Begin the transcript of a new session with these entries and their times."""
    yield (
        _INSERT,
        ManyRows(
            (session_id, seq, run_id, messages.kind(entry), messages.dump(entry), at)
            for seq, (entry, at) in enumerate(entries, start=1)
        ),
    )


def compact(now: float, owned: OwnedRun, summary: Summary) -> Tx[int]:
    """Append a summary; the new head. Only between two steps: results must follow their answer directly."""
    session_id = owned.session_id
    session = yield from sessions.own(session_id, owned.fence)
    is_open = yield "SELECT 1 FROM calls WHERE session_id = ? AND seq = ?", (session_id, session.head)
    assert not is_open, f"session {session_id} has open calls at {session.head}"
    assert session.base < summary.upto <= session.head, f"there is no entry {summary.upto}"
    yield from append_one(now, session, owned.run_id, summary)
    session.progress_at = now
    yield from sessions.save(now, owned.policy, session)
    return session.head


def fork(now: float, child_id: int, copied: Sequence[Message]) -> Tx[None]:
    """Begin the transcript of a child with a copy, in the transaction that makes its session.

    No run of the child has written it, so it counts neither as steps nor as final text."""
    yield from insert(child_id, NO_RUN, ((entry, now) for entry in copied))
    yield from sessions.set_column(child_id, "head", len(copied))


def reword(session: StepRow, instead: Answer) -> Tx[None]:
    """Replace the last entry, before anything follows it."""
    known = (messages.dump(instead), session.id, session.head)
    yield "UPDATE messages SET body = ? WHERE session_id = ? AND seq = ?", known


def redact_open(session: StepRow) -> Tx[None]:
    """Remove the contents of files from an answer whose calls are not carried out any more."""
    rows = yield (
        "SELECT kind, body FROM messages WHERE session_id = ? AND seq = ? AND EXISTS (SELECT 1 FROM calls c"
        " WHERE c.session_id = messages.session_id AND c.seq = messages.seq AND c.name = ?)",
        (session.id, session.head, SPAWN),
    )
    for kind, body in rows:
        answer = messages.load(kind, body)
        if isinstance(answer, Answer) and (instead := redacted(answer)) is not answer:
            yield from reword(session, instead)


def open_calls(session: StepRow, run_id: int, seq: int, calls: Iterable[tuple[Call, bool]]) -> Tx[None]:
    """The calls of the answer at `seq`, each with whether it may be repeated after a crash."""
    yield (
        "INSERT INTO calls(session_id, seq, idx, run_id, name, replay_safe) VALUES(?, ?, ?, ?, ?, ?)",
        ManyRows(
            (session.id, seq, index, run_id, call.name, int(is_safe))
            for index, (call, is_safe) in enumerate(calls)
        ),
    )


def doing(now: float, session_id: int, run_id: int, call: Call | None) -> Tx[None]:
    """The call that foreign code makes right now; None: none that it reports."""
    yield "DELETE FROM doing WHERE session_id = ?", (session_id,)
    if call is not None:
        yield (
            "INSERT INTO doing(session_id, run_id, name, arg, at) VALUES(?, ?, ?, ?, ?)",
            (session_id, run_id, call.name, main_argument(call.args), now),
        )


def delete(session_id: int) -> Tx[None]:
    yield "DELETE FROM messages WHERE session_id = ?", (session_id,)


def forget(session_id: int) -> Tx[None]:
    """The session is deleted: entries, calls, and the call of the moment."""
    yield from delete(session_id)
    yield "DELETE FROM calls WHERE session_id = ?", (session_id,)
    yield "DELETE FROM doing WHERE session_id = ?", (session_id,)
