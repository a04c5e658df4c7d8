"""Promises about a commit: how one is written down, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from clutch.testing.disk import SimDisk
from clutch.testing.history import Change, History
from clutch.testing.invariants import WORKING_WORDS


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


@dataclass(frozen=True, slots=True)
class Transition:
    """`about`: a table, asked when the commit wrote rows of it; or names of transactions."""

    invariant: str
    promise: str
    about: str | frozenset[str]
    check: Check

    def is_asked(self, change: Change, names: frozenset[str]) -> bool:
        if isinstance(self.about, str):
            return bool(getattr(change, self.about))
        return not self.about.isdisjoint(names)


TRANSITIONS: list[Transition] = []


def promises(invariant: str, about: str | frozenset[str], promise: str) -> Callable[[Check], Check]:
    def enlist(check: Check) -> Check:
        TRANSITIONS.append(Transition(invariant, promise, about, check))
        return check

    return enlist
