"""Answers kept under the key of the request they answered, so that asking again does nothing again."""

from __future__ import annotations

from dataclasses import dataclass

from clutch.store.door import Tx

KEPT_S = 24 * 3600.0  # longer than anybody repeats a request by himself


@dataclass(frozen=True, slots=True)
class Kept:
    request: str  #: a digest of what was asked
    status: int
    body: str


def kept(now: float, key: str) -> Tx[Kept | None]:
    rows = yield (
        "SELECT request, status, body FROM replies WHERE key = ? AND at > ?",
        (key, now - KEPT_S),
    )
    return Kept(*rows[0]) if rows else None


def keep(now: float, key: str, request: str, status: int, body: str) -> Tx[None]:
    """The first answer stays; those that are too old leave."""
    yield "DELETE FROM replies WHERE at <= ?", (now - KEPT_S,)
    yield (
        "INSERT INTO replies(key, request, status, body, at) VALUES(?, ?, ?, ?, ?) ON CONFLICT(key) DO NOTHING",
        (key, request, status, body, now),
    )
