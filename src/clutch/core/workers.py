"""When a worker counts as dead, as seen by another one: a rule that counts heartbeats and reads no clock.

Each heartbeat changes a worker's row. A worker counts its own heartbeats since it last saw the row of another one
change. Its own count stands still while it cannot reach the database, so an outage of the server, a freeze of this
process or a step of any clock makes no other worker look silent.

A free process lock says that a connection ended, which a restart of the server does to all workers at once. It only
shortens the wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

#: A lease is so many heartbeats long: four may be late or lost before it is over.
BEATS_PER_LEASE: Final = 5

#: The process that holds the lock of a state directory is alive and needs no heartbeat.
NO_LEASE_S: Final = 1e12

#: Own heartbeats without a sign of the other: more than a lease, which is measured from the other's last heartbeat.
LEASE_BEATS: Final = BEATS_PER_LEASE + 1

#: The same when its lock is free. Three span two intervals, in which a worker that lives has sent at least one.
FREE_LOCK_BEATS: Final = 3

#: Intervals between two own heartbeats after which the other workers may have been cut off as well.
GAP_BEATS: Final = 2.5


#: What each heartbeat changes in a worker's row: the end of its lease, and the count of its heartbeats. Versions that
#: do not count change the first.
Mark: TypeAlias = tuple[float, int]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another worker, as last seen. `beats`: own heartbeats when its row was first seen like this."""

    mark: Mark
    beats: int
    is_after_gap: bool = (
        False  #: unchanged since this worker itself was cut off; it may still be on its way back
    )


def beat_s(lease_s: float) -> float:
    """Return the time between two heartbeats."""
    return lease_s / BEATS_PER_LEASE


def observed(known: Mapping[int, Peer], rows: Mapping[int, Mark], beats: int) -> dict[int, Peer]:
    """Return the workers of these rows; `beats`: own heartbeats so far."""
    return {
        number: known[number] if number in known and known[number].mark == mark else Peer(mark, beats)
        for number, mark in rows.items()
    }


def after_gap(known: Mapping[int, Peer], beats: int) -> dict[int, Peer]:
    """Return the workers when this one reaches the database again: each gets a whole lease to come back, too."""
    return {number: replace(peer, beats=beats, is_after_gap=True) for number, peer in known.items()}


def is_gap(since_last_s: float, lease_s: float) -> bool:
    """Return whether so long a time between two own heartbeats means that the database was out of reach."""
    return since_last_s > GAP_BEATS * beat_s(lease_s)


def is_doubtful(peer: Peer, beats: int) -> bool:
    """Return whether it is silent for so long that the state of its lock matters."""
    return beats - peer.beats >= FREE_LOCK_BEATS


def is_dead(peer: Peer, beats: int, *, is_lock_free: bool) -> bool:
    """Return whether another worker takes over. `is_lock_free`: False also where the database knows no such locks."""
    needed = FREE_LOCK_BEATS if is_lock_free and not peer.is_after_gap else LEASE_BEATS
    return beats - peer.beats >= needed
