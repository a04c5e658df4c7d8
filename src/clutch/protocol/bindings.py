"""Threads of channels that belong to a session: bound when it is made, used by people, let go when it ends."""

from __future__ import annotations

from clutch.core.model import Route
from clutch.errors import ClutchError
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx


class ThreadTaken(ClutchError):
    """The thread belongs to another session already."""


def name(thread: Route) -> tuple[str, str, str]:
    return thread.channel, thread.account or "", thread.thread or ""


def bind(now: float, session: SessionRow, thread: Route) -> Tx[None]:
    """In a transaction keyed by the session. What a session that has ended kept of a thread is free."""
    named = name(thread)
    rows = yield (
        "SELECT 1 FROM bindings b JOIN sessions s ON s.id = b.session_id"
        " WHERE b.channel = ? AND b.account = ? AND b.thread = ? AND s.closed = 0 AND s.id <> ?",
        (*named, session.id),
    )
    if rows:
        raise ThreadTaken(f"the thread {thread.thread} of {thread.channel} belongs to another session")
    yield (
        "INSERT INTO bindings(channel, account, thread, session_id, bound_at, used_at) VALUES(?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(channel, account, thread) DO UPDATE SET session_id = excluded.session_id,"
        " bound_at = excluded.bound_at, used_at = excluded.used_at",
        (*named, session.id, now, now),
    )
    yield "UPDATE sessions SET bound = 1 WHERE id = ?", (session.id,)
    session.bound = 1


def let_go(session: SessionRow, thread: Route) -> Tx[None]:
    """This one; others it may keep."""
    yield (
        "DELETE FROM bindings WHERE channel = ? AND account = ? AND thread = ? AND session_id = ?",
        (*name(thread), session.id),
    )
    if not (yield "SELECT 1 FROM bindings WHERE session_id = ?", (session.id,)):
        yield from unbind(session)


def unbind(session: SessionRow) -> Tx[None]:
    yield "DELETE FROM bindings WHERE session_id = ?", (session.id,)
    yield "UPDATE sessions SET bound = 0 WHERE id = ?", (session.id,)
    session.bound = 0


def thread_of(session: SessionRow) -> Tx[Route | None]:
    rows = yield (
        "SELECT channel, account, thread FROM bindings WHERE session_id = ? ORDER BY bound_at DESC LIMIT 1",
        (session.id,),
    )
    return None if not rows else Route(rows[0][0], rows[0][1] or None, None, rows[0][2])


def session_of(now: float, channel: str, account: str, thread: str) -> Tx[int | None]:
    """A read. What a session that has ended kept of a thread is nobody's."""
    del now
    rows = yield (
        "SELECT b.session_id FROM bindings b JOIN sessions s ON s.id = b.session_id"
        " WHERE b.channel = ? AND b.account = ? AND b.thread = ? AND s.closed = 0",
        (channel, account, thread),
    )
    return int(rows[0][0]) if rows else None
