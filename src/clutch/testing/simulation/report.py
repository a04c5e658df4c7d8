"""What became of one simulated world."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    detail: str
    at: float


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    world: str
    tasks: int
    commits: int
    faults: Counter[str]
    verbs: Counter[str]
    edges: frozenset[tuple[str, str]]
    evaluations: Counter[str]
    asked: frozenset[str]  #: sentences of the invariants that were checked
    violations: tuple[Violation, ...]
    raised: tuple[str, ...]
    virtual_s: float
    log: tuple[str, ...]
    timeline: tuple[str, ...]  #: what became of tasks and of the deliveries of their results
    digest: str
