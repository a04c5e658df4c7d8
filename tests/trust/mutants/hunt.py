"""Looks for planted bugs in simulated worlds, on several cores: `python -m tests.trust hunt`."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

from clutch.testing.invariants.probes import all_probes
from clutch.testing.simulation.schedules import play
from tests.trust.mutants.mutant import Mutant, mutants, planted
from tests.trust.processes import progress

PROBED = "probe"  #: in the place of a world
CUT = "the time limit ended the hunt"

#: Several times what the rarest of them needs. A count, so that a busy machine misses none.
WORLDS_MAX = 400


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


def hunt(mutant: Mutant, worlds_max: int = WORLDS_MAX, until: float = math.inf) -> Found | NotFound:
    """Look for it in so many worlds, or, if no world has this part of the product, with the probes it names.

    `until`: a time of `time.monotonic`, which all processes of a machine share."""
    return _hunt_in_worlds(mutant, worlds_max, until) if mutant.worlds else _hunt_with_probes(mutant)


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


def _hunt_in_worlds(mutant: Mutant, worlds_max: int, until: float) -> Found | NotFound:
    """Play worlds until an expected invariant is violated.

    A world in which the patched code broke is no find, nor is one where any of these worlds fails by itself."""
    started = time.process_time()
    played, others = list[tuple[int, str]](), set[str]()
    target = mutant.targets[0]
    while len(played) < worlds_max:
        if time.monotonic() >= until:
            return _cut(mutant, len(played), time.process_time() - started)
        turn, place = divmod(len(played), len(mutant.worlds))
        seed, world = 1 + turn, mutant.worlds[place]
        with planted(mutant):
            report = play(seed, world, is_mutant=True)
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


def _cut(mutant: Mutant, played: int, seconds: float) -> NotFound:
    return NotFound(mutant.name, mutant.targets[0], played, round(seconds, 2), CUT)


@cache
def _is_sound(seed: int, world: str) -> bool:
    """Does it pass without any planted bug?"""
    return not play(seed, world).violations


def hunt_all(
    processes: int = 1, names: Sequence[str] = (), worlds_max: int = WORLDS_MAX, seconds_max: float = math.inf
) -> list[Found | NotFound]:
    """In the order of the mutants. In processes of their own, because a mutant patches the product."""
    until = time.monotonic() + seconds_max
    hunts = [(name, worlds_max, until) for name in names or mutants()]
    ended = list[Found | NotFound]()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for one in pool.imap(_hunt, hunts, chunksize=1):
            ended.append(one)
            progress(f"mutant {len(ended)} of {len(hunts)}: {_outcome(one)}")
    return ended


def _outcome(one: Found | NotFound) -> str:
    if isinstance(one, Found):
        return f"{one.name} found by {one.found_by} ({one.world}, seed {one.seed}, {one.seeds} worlds)"
    return f"{one.name} NOT FOUND in {one.seeds} worlds: {one.why}"


def _hunt(wish: tuple[str, int, float]) -> Found | NotFound:
    name, worlds_max, until = wish
    return hunt(mutants()[name], worlds_max, until)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="default: all")
    parser.add_argument("--worlds", type=int, default=WORLDS_MAX, help="at most, for each")
    parser.add_argument("--processes", type=int, default=2)


def run(arguments: argparse.Namespace) -> int:
    ended = hunt_all(arguments.processes, arguments.names, arguments.worlds)
    print(json.dumps([asdict(one) for one in ended]))
    return 0 if all(isinstance(one, Found) for one in ended) else 1
