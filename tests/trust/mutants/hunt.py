"""Looks for planted bugs in simulated worlds, on several cores: `python -m tests.trust hunt`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

from clutch.testing.invariants.probes import all_probes
from clutch.testing.simulation.world import simulate
from tests.trust.mutants.mutant import Mutant, mutants, planted

PROBED = "probe"  #: in the place of a world


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    target: str
    found_by: str
    world: str
    seed: int
    seeds: int  #: worlds played
    seconds: float


@dataclass(frozen=True, slots=True)
class NotFound:
    name: str
    target: str
    seeds: int
    seconds: float
    why: str


def hunt(mutant: Mutant, seconds: float, first_seed: int = 1) -> Found | NotFound:
    """In worlds, or, without any, with the probes of its promises."""
    return _hunt_in_worlds(mutant, seconds, first_seed) if mutant.worlds else _hunt_with_probes(mutant)


def _hunt_with_probes(mutant: Mutant) -> Found | NotFound:
    """A probe that also complains without the planted bug, or that raises, is no find."""
    started, others = time.process_time(), list[str]()
    target = mutant.targets[0]
    for probe in (all_probes()[name] for name in sorted(mutant.expected)):
        with planted(mutant):
            wrong = probe.wrong()
        known = (1, round(time.process_time() - started, 2))
        if wrong is not None and (sound := probe.wrong()) is not None:
            return NotFound(mutant.name, target, *known, f"without it, too: {sound}")
        if wrong is not None:
            return Found(mutant.name, target, probe.invariant, PROBED, 0, *known)
        others.append(probe.invariant)
    return NotFound(
        mutant.name, target, len(others), round(time.process_time() - started, 2), "no invariant was violated"
    )


def _hunt_in_worlds(mutant: Mutant, seconds: float, first_seed: int) -> Found | NotFound:
    """Play worlds until an expected invariant accuses, or the time is over: our own, not that of a busy machine.

    A world in which the patched code broke is no find, nor is one where any of these worlds fails by itself."""
    started = time.process_time()
    played, others = list[tuple[int, str]](), set[str]()
    target = mutant.targets[0]
    while time.process_time() - started < seconds:
        turn, place = divmod(len(played), len(mutant.worlds))
        seed, world = first_seed + turn, mutant.worlds[place]
        with planted(mutant):
            report = simulate(seed, world, is_mutant=True)
        played.append((seed, world))
        named = [violation.invariant for violation in report.violations]
        hits = [name for name in named if name in mutant.expected]
        if hits and not report.raised:  # else who knows what it would have come to
            known = (len(played), round(time.process_time() - started, 2))
            if unsound := [one for one in played if not _is_sound(*one)]:
                return NotFound(mutant.name, target, *known, f"without it, too: {unsound}")
            return Found(mutant.name, target, hits[0], world, seed, *known)
        others.update(named)
        others.update(error[:80] for error in report.raised[:1])
    why = f"only {sorted(others)[:5]}" if others else "no invariant was violated"
    return NotFound(mutant.name, target, len(played), round(time.process_time() - started, 2), why)


@cache
def _is_sound(seed: int, world: str) -> bool:
    """Does it pass without any planted bug?"""
    return not simulate(seed, world).violations


def hunt_all(seconds_each: float, processes: int = 1, names: Sequence[str] = ()) -> list[Found | NotFound]:
    """Each at most so long; in the order of the mutants. Processes of their own: a mutant patches the product."""
    hunts = [(name, seconds_each) for name in names or mutants()]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return pool.starmap(_hunt, hunts, chunksize=1)


def _hunt(name: str, seconds: float) -> Found | NotFound:
    return hunt(mutants()[name], seconds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="default: all")
    parser.add_argument("--seconds", type=float, default=30.0, help="at most, for each")
    parser.add_argument("--processes", type=int, default=2)


def run(said: argparse.Namespace) -> int:
    ended = hunt_all(said.seconds, said.processes, said.names)
    for one in ended:
        print(one, file=sys.stderr)
    print(json.dumps([asdict(one) for one in ended]))
    return 0 if all(isinstance(one, Found) for one in ended) else 1
