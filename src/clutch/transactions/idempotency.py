"""Answers kept under the key of the request they answered, so that asking again does nothing again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from clutch.store.transaction import Tx

KEPT_S = 24 * 3600.0  # longer than anybody repeats a request by himself


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
    yield "DELETE FROM replies WHERE at <= ?", (now - KEPT_S,)
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
        yield "UPDATE sessions SET history = NULL WHERE id = ?", (rows[0][0],)
    return found


def leave(now: float, session_id: int, history: str) -> Tx[None]:
    """The conversation of this session has been answered up to here."""
    del now
    yield "UPDATE sessions SET history = ? WHERE id = ?", (history, session_id)
