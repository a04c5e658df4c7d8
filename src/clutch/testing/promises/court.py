"""Promises about a commit: how one is written down, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from clutch.testing.promises.history import Change, History
from clutch.testing.simulation.disk import SimDisk
from clutch.transactions.invariants.core import WORKING_WORDS


@dataclass(frozen=True, slots=True)
class Court:
    """What a check may look at besides the change itself."""

    disk: SimDisk
    history: History

    def count(self, sql: str, *parameters: object) -> int:
        return int(self.disk.query(sql, *parameters)[0][0])

    def working(self, session_id: int) -> int:
        sql = f"SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND phase IN {WORKING_WORDS} AND outcome IS NULL"  # noqa: S608
        return self.count(sql, session_id)


Check: TypeAlias = Callable[[Change, Court], Iterator[str]]


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    invariant: str
    promise: str
    check: Check


TRANSITIONS: list[Transition] = []
#: by what makes them worth asking: a table of which the commit wrote rows, or the name of a transaction
ABOUT: dict[str, list[Transition]] = {}


def promises(invariant: str, about: str | frozenset[str], promise: str) -> Callable[[Check], Check]:
    """Enlist a check: asked when the commit wrote to the table, or was made by one of the transactions."""

    def enlist(check: Check) -> Check:
        transition = Transition(invariant, promise, check)
        TRANSITIONS.append(transition)
        for reason in {about} if isinstance(about, str) else about:
            ABOUT.setdefault(reason, []).append(transition)
        return check

    return enlist
