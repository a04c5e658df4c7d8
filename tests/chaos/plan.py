"""Which faults a chaos run makes, and when: everything that chance decides comes from its seed.

A run is divided into rounds. In each round every kind of fault happens once, in another order, on tracks that run at
the same time: two for gateways and their links, one for the database server, one for snapshots, one for the provider.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

ROUND_S: Final = 40.0  #: of every kind one; 600 s have twelve of them


class FaultKind(StrEnum):
    KILL = "kill"  #: kill -9 of a gateway, which is started again
    STOP = "stop"  #: SIGSTOP of a gateway past its lease, then SIGCONT
    CUT_LINK = "cut_link"  #: between a gateway and the servers: connections break, or nothing passes
    SLOW_LINK = "slow_link"
    RESTART_SERVER = "restart_server"  #: immediate shutdown of the primary, and recovery
    PROMOTE_STANDBY = "promote_standby"  #: the old primary stays up and refuses writes
    SKEW_CLOCK = "skew_clock"  #: up to ten minutes, of a running gateway or at its start
    DISK_FULL = "disk_full"  #: of the primary
    HELD_SNAPSHOT = "held_snapshot"  #: a transaction that keeps dead rows
    SLOW_PROVIDER = "slow_provider"
    FAILING_PROVIDER = "failing_provider"  #: 429, 500, broken streams


#: What cannot overlap shares a track.
TRACKS: Final[Mapping[str, Sequence[FaultKind]]] = {
    "gateways": (FaultKind.KILL, FaultKind.STOP, FaultKind.SKEW_CLOCK),
    "links": (FaultKind.CUT_LINK, FaultKind.SLOW_LINK),
    "server": (FaultKind.RESTART_SERVER, FaultKind.PROMOTE_STANDBY, FaultKind.DISK_FULL),
    "snapshots": (FaultKind.HELD_SNAPSHOT,),
    "provider": (FaultKind.SLOW_PROVIDER, FaultKind.FAILING_PROVIDER),
}

#: Seconds that a fault lasts, from and to. Of the others the end is their own.
LASTS: Final[Mapping[FaultKind, tuple[float, float]]] = {
    FaultKind.KILL: (0.0, 2.0),  # until it is started again
    FaultKind.STOP: (1.2, 2.0),  # leases
    FaultKind.CUT_LINK: (0.5, 6.0),
    FaultKind.SLOW_LINK: (2.0, 8.0),
    FaultKind.RESTART_SERVER: (0.0, 2.0),  # while it is away
    FaultKind.PROMOTE_STANDBY: (2.0, 4.0),  # until the old primary is rebuilt
    FaultKind.SKEW_CLOCK: (0.0, 0.0),  # stays until the next one
    FaultKind.DISK_FULL: (1.0, 4.0),
    FaultKind.HELD_SNAPSHOT: (5.0, 20.0),
    FaultKind.SLOW_PROVIDER: (2.0, 6.0),
    FaultKind.FAILING_PROVIDER: (2.0, 6.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: seconds after the beginning, no earlier. `node`: which gateway, of faults that have one. `chance`: 0 to 1,
    decides between the variants of a kind."""

    kind: FaultKind
    at: float
    node: int
    lasts: float
    chance: float


def plan(
    seed: int, seconds: float, nodes: int, kinds: Collection[FaultKind]
) -> Mapping[str, Sequence[Fault]]:
    """Return the faults of each track, in their order."""
    random = Random(seed)
    rounds = max(1, int(seconds / ROUND_S))
    length = seconds / rounds
    tracks: dict[str, list[Fault]] = {}
    for track, all_kinds in TRACKS.items():
        known = [kind for kind in all_kinds if kind in kinds]
        faults = tracks[track] = []
        for number in range(rounds):
            order = random.sample(known, len(known))
            for place, kind in enumerate(order):
                slot = length / len(order)
                at = number * length + (place + random.uniform(0.0, 0.3)) * slot
                lasts = random.uniform(*LASTS[kind])
                faults.append(Fault(kind, at, random.randrange(nodes), lasts, random.random()))
    return tracks
