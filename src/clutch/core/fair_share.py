"""Which of the sessions that are due go first: none waits behind all the work of another root.

Interrupted runs first, then sessions of the root that has the fewest at work, then the one that has waited longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class DueSession(NamedTuple):
    due: float  #: 0: its run was interrupted
    id: int
    root_id: int


def in_order(waiting: Iterable[DueSession], working: Mapping[int, int]) -> list[DueSession]:
    """`working`: how many sessions of each root have a slot. The one that gets a slot counts for those behind it."""
    counted = Counter(working)
    ranked: list[tuple[bool, int, DueSession]] = []
    for session in sorted(set(waiting)):
        ranked.append((session.due > 0, counted[session.root_id], session))
        counted[session.root_id] += 1
    return [session for _, _, session in sorted(ranked)]


def is_settled(waiting: Iterable[DueSession], working: Mapping[int, int], count: int) -> bool:
    """Whether the oldest sessions are enough to know which go first: so many are of a root without any at work."""
    return len({one.root_id for one in waiting if one.root_id not in working}) >= count
