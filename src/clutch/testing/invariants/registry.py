"""Invariants about a single commit: how one is registered, and what its check may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from clutch.testing.invariants.history import Change, History
from clutch.testing.simulation.disk import SimDisk
from clutch.transactions.conditions import WORKING_PHASES


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a check may read besides the change itself."""

    disk: SimDisk
    history: History

    def count(self, sql: str, *parameters: object) -> int:
        return int(self.disk.query(sql, *parameters)[0][0])

    def working(self, session_id: int) -> int:
        sql = f"SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND phase IN {WORKING_PHASES} AND outcome IS NULL"  # noqa: S608
        return self.count(sql, session_id)


Check: TypeAlias = Callable[[Change, CheckContext], Iterator[str]]


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    invariant: str
    promise: str
    check: Check


TRANSITIONS: list[Transition] = []
#: by what triggers them: a table whose rows the commit wrote, or the name of a transaction
ABOUT: dict[str, list[Transition]] = {}


def invariant(name: str, about: str | frozenset[str], promise: str) -> Callable[[Check], Check]:
    """Register a check. It runs when a commit writes the table `about`, or is made by one of these transactions."""

    def register(check: Check) -> Check:
        transition = Transition(name, promise, check)
        TRANSITIONS.append(transition)
        for trigger in {about} if isinstance(about, str) else about:
            ABOUT.setdefault(trigger, []).append(transition)
        return check

    return register
