"""What is kept for a client between two requests.

Answers under the key of their request, so that a repeated request does nothing again; the session of a conversation
without a name; the numbers of the tasks in the list that it was shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clutch.store.transaction import ManyRows, Tx
from clutch.transactions import sessions

KEPT_S = 24 * 3600.0  # longer than any client repeats a request by itself
LEAVING_MAX = 100  # old answers that one new answer deletes: more than come, few enough for its commit


@dataclass(frozen=True, slots=True)
class Kept:
    request: str  #: a digest of what was asked
    status: int
    body: str


def kept_reply(now: float, key: str) -> Tx[Kept | None]:
    rows = yield (
        "SELECT request, status, body FROM replies WHERE key = ? AND at > ?",
        (key, now - KEPT_S),
    )
    return Kept(*rows[0]) if rows else None


def exchange(now: float, key: str, body: str) -> Tx[None]:
    """Keep this in the place of what stands under the key. Empty: nothing is kept."""
    yield "DELETE FROM replies WHERE key = ?", (key,)
    if body:
        yield from keep(now, key, "", 0, body)


def keep(now: float, key: str, request: str, status: int, body: str) -> Tx[Kept]:
    """Return what is kept under the key: the first answer stays, which another gateway may have written since.
    Answers that are too old leave."""
    yield (
        "DELETE FROM replies WHERE key = ? AND at <= ? OR key IN (SELECT key FROM replies WHERE at <= ?"
        " ORDER BY at LIMIT ?)",
        (key, now - KEPT_S, now - KEPT_S, LEAVING_MAX),
    )
    yield (
        "INSERT INTO replies(key, request, status, body, at) VALUES(?, ?, ?, ?, ?) ON CONFLICT(key) DO NOTHING",
        (key, request, status, body, now),
    )
    return (yield from kept_reply(now, key)) or Kept(request, status, body)


# --------------------------------------------------------------------------------------------------
# Which session a conversation without a name has: the one that was left with the same history.

_FOUND, _NEW = 200, 201  # as statuses of the kept answer


class Conversation(NamedTuple):
    session_key: str
    is_new: bool  #: the session has none of the history


def find(now: float, key: str | None, history: str, fresh: str) -> Tx[Conversation]:
    """Return the session whose conversation stands at this history, else one with the key `fresh`. Alone.

    A session that was found stands there no more: a second request with the same history is another branch. `key`: of
    the request, which has the same session when it is repeated."""
    kept = None if key is None else (yield from kept_reply(now, key))
    if kept is not None:
        return Conversation(kept.body, kept.status == _NEW)
    rows = yield (
        "SELECT id, key FROM sessions WHERE history = ? AND closed = 0 ORDER BY id LIMIT 1 {lock}",
        (history,),
    )
    found = Conversation(rows[0][1] if rows else fresh, not rows)
    if key is not None:
        # Another gateway on the same database may have kept its answer first: both answer with that one.
        kept = yield from keep(now, key, history, _NEW if found.is_new else _FOUND, found.session_key)
        if kept.body != found.session_key:
            return Conversation(kept.body, kept.status == _NEW)
    if rows:
        yield from sessions.set_column(rows[0][0], "history", None)
    return found


def leave(now: float, session_id: int, history: str) -> Tx[None]:
    """The conversation of this session has been answered up to here."""
    del now
    yield from sessions.set_column(session_id, "history", history)


# --------------------------------------------------------------------------------------------------
# Which task a number means to a client: that of the list it was shown last.

NUMBERED_MAX = 200  # lines of one list


def remember(now: float, viewer: str, task_ids: Sequence[int], *, after: int = 0) -> Tx[None]:
    """The numbers of a list that was just shown: from now on `1` is the first of these to this viewer. Alone.

    `after`: of a further page, the number of tasks before it. Another list of the viewer may have come in between."""
    del now
    yield "DELETE FROM shown WHERE viewer = ? AND number > ?", (viewer, after)
    numbered = enumerate(task_ids[: max(0, NUMBERED_MAX - after)], start=after + 1)
    rows = ManyRows((viewer, number, task_id) for number, task_id in numbered)
    if rows:
        yield "INSERT INTO shown(viewer, number, task_id) VALUES(?, ?, ?)", rows
