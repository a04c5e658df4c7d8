"""Small simulated worlds of every kind: a seed gives the same timelines before and after a refactoring."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from clutch.testing.simulation.report import Report
from clutch.testing.simulation.settings import SETTINGS
from clutch.testing.simulation.world import World, finish

SEED = 1
WHOLE = ("busy", "storm", "thrift")  #: their timelines are kept line by line, of the others the digests only
_TRANSACTION = re.compile(r"^(\S+ \S+) \w+ [\[(].*$")


def worlds() -> str:
    return "".join(f"{line}\n" for name in SETTINGS for line in _world(name))


def _world(name: str) -> Iterator[str]:
    played = finish(World(SEED, replace(SETTINGS[name], mains=2, storm_s=10.0)))
    faults, verbs = played.faults.total(), played.verbs.total()
    yield f"# {name} {SEED}: {played.tasks} tasks, {played.commits} commits, {faults} faults, {verbs} actions"
    yield f"timeline {_digest(played.timeline)} of {len(played.timeline)} lines"
    yield f"steps {_digest(_steps(played))}"
    yield from played.timeline if name in WHOLE else ()
    yield from (f"VIOLATION {one.invariant} {one.detail}" for one in played.violations)


def _steps(played: Report) -> list[str]:
    """Return the log of the world without the names and arguments of transactions: they may be renamed."""
    return [_TRANSACTION.sub(r"\1 commits", line) for line in played.log]


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
