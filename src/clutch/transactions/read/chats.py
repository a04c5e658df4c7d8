"""Reads of main sessions as conversations: which there are, what they do, and the messages of one from its end.

What was sent and not read yet is a letter; what was read is an entry of the transcript. Both are read in one
transaction, so a message is in exactly one of the two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from clutch.core.model import PERSON_KINDS, LetterKind, RunState, TaskStatus
from clutch.core.redaction import redact
from clutch.core.status import session_status
from clutch.core.text.format import visible
from clutch.core.views import TranscriptEntry
from clutch.errors import InvalidInput
from clutch.store.transaction import Row, Tx
from clutch.transactions.conditions import IS_OPEN, IS_WORKING
from clutch.transactions.read.lists import PAGE_MAX
from clutch.transactions.read.transcripts import NEWEST

CHATS_MAX = 100  # conversations in a list, the latest active first
LINE_CHARS_MAX = 160  # of the last line of a conversation
LAST_ENTRIES = 5  # that are searched for it
ENTRY_CHARS_MAX = 64 * 1024  # of those; a longer one is data
WAITING_MAX = 50  # messages that are shown before they are read
_PERSON = ", ".join(f"'{kind}'" for kind in sorted(PERSON_KINDS))
_CHILDREN_KINDS = frozenset({LetterKind.ANNOUNCE, LetterKind.PLAN, LetterKind.NEWS})


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A main session. `head`: the number of its last entry. `letters`: messages of users that it has not read."""

    session_id: int
    key: str
    agent_id: str
    head: int
    moved_at: float
    status: TaskStatus | None
    since: float | None  #: when its open run began
    letters: int
    children: int


_CHATS = (
    "SELECT s.id, s.key, s.agent_id, s.head, COALESCE(s.progress_at, s.created_at) AS moved_at, s.owner,"  # noqa: S608
    " r.state, r.failures, r.started_at,"
    f" (SELECT COUNT(*) FROM inbox i WHERE i.session_id = s.id AND i.{IS_OPEN} AND i.taken_seq IS NULL"
    f" AND i.kind IN ({_PERSON})),"
    f" (SELECT COUNT(*) FROM tasks WHERE requester_id = s.id AND {IS_WORKING})"
    " FROM sessions s LEFT JOIN runs r ON r.id = s.run_id WHERE s.is_task = 0 AND s.closed = 0"
    " AND s.deleted_at IS NULL"
)


def chats(now: float) -> Tx[list[ChatRow]]:
    del now
    rows = yield f"{_CHATS} ORDER BY moved_at DESC, s.id LIMIT ?", (CHATS_MAX,)
    return [_chat(row) for row in rows]


def one_chat(now: float, session_id: int) -> Tx[ChatRow | None]:
    del now
    rows = yield f"{_CHATS} AND s.id = ?", (session_id,)
    return _chat(rows[0]) if rows else None


def _chat(row: Row) -> ChatRow:
    session_id, key, agent_id, head, moved_at, owner, state, failures, started_at, letters, children = row
    status = session_status(
        None if state is None else RunState(state),
        is_owned=owner is not None,
        has_failed=bool(failures),
        letters=letters,
        children=children,
    )
    return ChatRow(session_id, key, agent_id, head, moved_at, status, started_at, letters, children)


def last_line(now: float, session_id: int) -> Tx[str]:
    """Return the last line that the user or the agent wrote."""
    del now
    rows = yield (
        "SELECT kind, body FROM messages WHERE session_id = ? AND kind IN ('input', 'answer') AND LENGTH(body) <= ?"
        " ORDER BY seq DESC LIMIT ?",
        (session_id, ENTRY_CHARS_MAX, LAST_ENTRIES),
    )
    for kind, body in rows:
        said = json.loads(body)
        lines = [line.strip() for line in said["text"].splitlines() if line.strip()]
        if lines and (kind == "answer" or said["source"] in PERSON_KINDS):
            return visible(redact(lines[-1]).text, LINE_CHARS_MAX)
    return ""


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    letter: str
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A run of the session. `stop_reason`: how it ended, if it has."""

    run_id: int
    started_at: float
    ended_at: float | None
    stop_reason: str | None


@dataclass(frozen=True, slots=True)
class DeliveredResult:
    """`seq`: the entry of the parent's transcript in which it was delivered."""

    seq: int
    task_id: int
    label: str
    outcome: str | None


@dataclass(frozen=True, slots=True)
class ChatPage:
    """A piece of a transcript. `earlier`: there are entries before this number. `more`: there are entries behind it."""

    lines: tuple[TranscriptEntry, ...]
    earlier: int | None
    more: bool
    waiting: tuple[WaitingMessage, ...]
    turns: tuple[Turn, ...]
    delivered: tuple[DeliveredResult, ...]


def conversation(
    now: float, session_id: int, *, before: int | None = None, after: int | None = None, limit: int = PAGE_MAX
) -> Tx[ChatPage]:
    """The newest entries, those before a number, or those after one; always in order."""
    del now
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidInput("limit", f"must be from 1 to {PAGE_MAX}")
    columns = "SELECT seq, at, run_id, kind, body FROM messages WHERE session_id = ?"
    if after is not None:
        rows = yield f"{columns} AND seq > ? ORDER BY seq LIMIT ?", (session_id, after, limit + 1)
    else:
        place = (session_id, NEWEST if before is None else before, limit + 1)
        rows = yield f"{columns} AND seq < ? ORDER BY seq DESC LIMIT ?", place
    lines = [TranscriptEntry(*row) for row in rows[:limit]]
    is_more = len(rows) > limit
    if after is None:
        lines.reverse()
    waiting = yield (
        "SELECT idem, body, at FROM inbox"  # noqa: S608
        f" WHERE session_id = ? AND {IS_OPEN} AND taken_seq IS NULL AND kind IN ({_PERSON}) ORDER BY id LIMIT ?",
        (session_id, WAITING_MAX),
    )
    return ChatPage(
        tuple(lines),
        lines[0].seq if is_more and after is None else None,
        is_more and after is not None,
        tuple(WaitingMessage(*row) for row in waiting),
        (yield from _turns(lines)),
        (yield from _delivered(session_id, lines)),
    )


def _turns(lines: Sequence[TranscriptEntry]) -> Tx[tuple[Turn, ...]]:
    runs = sorted({line.run_id for line in lines if line.run_id})
    if not runs:
        return ()
    rows = yield "SELECT id, started_at, ended_at, stop_reason FROM runs WHERE id {any} ORDER BY id", (runs,)
    return tuple(Turn(*row) for row in rows)


def _delivered(session_id: int, lines: Sequence[TranscriptEntry]) -> Tx[tuple[DeliveredResult, ...]]:
    """Most pieces hold no result of a child, and are not looked for among the children."""
    seqs = [
        line.seq
        for line in lines
        if line.kind == "input" and json.loads(line.body).get("source") in _CHILDREN_KINDS
    ]
    if not seqs:
        return ()
    rows = yield (
        "SELECT i.taken_seq, t.id, t.label, t.outcome FROM tasks t JOIN inbox i ON i.task_id = t.id"
        " WHERE t.root_id = ? AND i.session_id = ? AND i.taken_seq BETWEEN ? AND ? AND i.silent = 0"
        " ORDER BY i.taken_seq, t.spawn_order, t.id",
        (session_id, session_id, seqs[0], seqs[-1]),
    )
    return tuple(DeliveredResult(*row) for row in rows)


def workspace_of(now: float, key: str) -> Tx[str | None]:
    """Return the workspace of a main session; None: there is no such session yet."""
    del now
    rows = yield "SELECT workspace FROM sessions WHERE key = ? AND is_task = 0 AND deleted_at IS NULL", (key,)
    return rows[0][0] if rows else None
