"""Invariants of parts that no simulated world has: short fixed scenarios, run with the product's own code.

A probe yields what is wrong, and nothing where the invariant holds. A mutant without worlds is hunted with the probes
it names. Scenarios import the product when they run, so that a world does not load it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Probe:
    invariant: str
    promise: str
    story: Callable[[], Iterator[str]]

    def wrong(self) -> str | None:
        """The first thing that is wrong."""
        return next(self.story(), None)


@cache
def all_probes() -> Mapping[str, Probe]:
    """Probes by the name of their invariant."""
    from clutch.testing.invariants import checks, definitions, places, protected_files, senders, slots

    every = (checks.PROBE, definitions.PROBE, places.PROBE, protected_files.PROBE, senders.PROBE, slots.PROBE)
    named = {probe.invariant: probe for probe in every}
    assert len(named) == len(every), "two probes have one name"
    return MappingProxyType(named)
