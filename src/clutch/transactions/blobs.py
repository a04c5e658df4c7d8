"""Contents of files in the database, for machines that do not share a disk."""

from __future__ import annotations

from clutch.store.transaction import Tx

IDENTITY = "identity"  #: a row of its own, so that a move takes it along with the files


def identity(now: float, new: str) -> Tx[tuple[str, int]]:
    """Return the name of this database in stores that several fleets share, and the last process number given before
    it had one. The first caller gives the name."""
    del now
    yield (
        "INSERT INTO blobs(name, content, at) VALUES(?, ?, (SELECT value FROM counters WHERE name = 'process'))"
        " ON CONFLICT(name) DO NOTHING",
        (IDENTITY, new.encode()),
    )
    rows = yield "SELECT content, at FROM blobs WHERE name = ?", (IDENTITY,)
    return bytes(rows[0][0]).decode(), int(rows[0][1])


def put(now: float, name: str, content: bytes) -> Tx[None]:
    yield (
        "INSERT INTO blobs(name, content, at) VALUES(?, ?, ?)"
        " ON CONFLICT(name) DO UPDATE SET content = excluded.content, at = excluded.at",
        (name, content, now),
    )


def get(now: float, name: str) -> Tx[bytes | None]:
    del now
    rows = yield "SELECT content FROM blobs WHERE name = ?", (name,)
    return bytes(rows[0][0]) if rows else None


def names(now: float, folder: str) -> Tx[list[str]]:
    """The names beneath `folder/`. `0` is the character after `/`, so that the index finds them as one range."""
    del now
    rows = yield (
        "SELECT name FROM blobs WHERE name > ? AND name < ? ORDER BY name",
        (f"{folder}/", f"{folder}0"),
    )
    return [row[0] for row in rows]


def delete(now: float, folder: str) -> Tx[None]:
    del now
    yield "DELETE FROM blobs WHERE name > ? AND name < ?", (f"{folder}/", f"{folder}0")
