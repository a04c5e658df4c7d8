"""When a worker counts as dead, as seen by another one: a rule that counts heartbeats and reads no clock.

Each heartbeat changes a worker's row. A worker counts its own heartbeats since it last saw the row of another one
change. Its own count stands still while it cannot reach the database, so an outage of the server, a freeze of this
process or a step of any clock makes no other worker look silent.

A free process lock says that a connection ended, which a restart of the server does to all workers at once. It only
shortens the wait. Each worker has a lease of its own length, which its row tells."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

#: A lease is so many heartbeats long: four may be late or lost before it is over.
BEATS_PER_LEASE: Final = 5

#: The process that holds the lock of a state directory is alive and needs no heartbeat.
NO_LEASE_S: Final = 1e12

#: When its lock is free, a worker is dead after so many of its intervals: one that lives has sent a heartbeat in them.
#: A worker may use what is its own for as long after a heartbeat, so two would stop it when a single one is late.
FREE_LOCK_INTERVALS: Final = 3

#: Intervals between two own heartbeats after which the other workers may have been cut off as well.
GAP_BEATS: Final = 2.5


#: How long a session waits for a worker of the machine that has its files, while one is alive and not draining. A
#: machine frees a slot in less, and to fetch its files takes seconds; one that is full for longer must not hold it up.
HOME_WAIT_S: Final = 30.0


#: What each heartbeat changes in a worker's row: the end of its lease, and the count of its heartbeats. Versions that
#: do not count change the first.
Mark: TypeAlias = str


class Sign(NamedTuple):
    """What a row says of its worker. `lease_s`: None of a version that does not write it."""

    mark: Mark
    lease_s: float | None


@dataclass(frozen=True, slots=True)
class Peer:
    """Another worker, as last seen. `beats`: own heartbeats when its row was first seen like this."""

    sign: Sign
    beats: int
    is_after_gap: bool = (
        False  #: unchanged since this worker itself was cut off; it may still be on its way back
    )


def beat_s(lease_s: float) -> float:
    """Return the time between two heartbeats."""
    return lease_s / BEATS_PER_LEASE


def observed(known: Mapping[int, Peer], rows: Mapping[int, Sign], beats: int) -> dict[int, Peer]:
    """Return the workers of these rows; `beats`: own heartbeats so far."""
    return {
        number: known[number] if number in known and known[number].sign == sign else Peer(sign, beats)
        for number, sign in rows.items()
    }


def after_gap(known: Mapping[int, Peer], beats: int) -> dict[int, Peer]:
    """Return the workers when this one reaches the database again: each gets a whole lease to come back, too."""
    return {number: replace(peer, beats=beats, is_after_gap=True) for number, peer in known.items()}


def is_gap(since_last_s: float, lease_s: float) -> bool:
    """Return whether so long a time between two own heartbeats means that the database was out of reach."""
    return since_last_s > GAP_BEATS * beat_s(lease_s)


def certain_s(lease_s: float) -> float:
    """Return how long after a heartbeat no other worker can have declared this one dead.

    It may lose its lock without a sign at any moment, so this is the wait of those who find it free."""
    return FREE_LOCK_INTERVALS * beat_s(lease_s)


def is_doubtful(peer: Peer, beats: int, lease_s: float) -> bool:
    """Return whether it is silent for so long that the state of its lock matters. `lease_s`: the own lease."""
    return beats - peer.beats >= _needed(certain_s(peer.sign.lease_s or lease_s), lease_s)


def is_dead(peer: Peer, beats: int, lease_s: float, *, is_lock_free: bool) -> bool:
    """Return whether another worker takes over. `is_lock_free`: False also where the database knows no such locks."""
    theirs_s = peer.sign.lease_s or lease_s
    is_sooner = is_lock_free and not peer.is_after_gap
    return beats - peer.beats >= _needed(certain_s(theirs_s) if is_sooner else theirs_s, lease_s)


def _needed(seconds: float, lease_s: float) -> int:
    """Own heartbeats that span more than this time: the other one's last may be as old as one of them when it is
    first seen."""
    return math.ceil(round(seconds / beat_s(lease_s), 6)) + 1


# --------------------------------------------------------------------------------------------------
# Which machine a session with files resumes on. A place is a state directory, so a gateway that restarts on it is still
# at home there.


class Resident(NamedTuple):
    """A worker, as a claim sees it. `place`: None for a version that does not name it."""

    place: str | None
    lease_until: float
    is_draining: bool


def awaited_places(now: float, workers: Iterable[Resident], here: str | None) -> frozenset[str]:
    """Return the other places with a worker that may claim their sessions."""
    return frozenset(
        one.place
        for one in workers
        if one.place is not None and one.place != here and one.lease_until >= now and not one.is_draining
    )


def is_left_to_others(place: str | None, awaited: Collection[str], waits_s: float) -> bool:
    """Return whether a claim leaves a session to the workers of its place. `waits_s`: since it is due, and since its
    run moved: the due time of an interrupted run is 0."""
    return place is not None and place in awaited and waits_s < HOME_WAIT_S
