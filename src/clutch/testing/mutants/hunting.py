"""All planted bugs, hunted on several cores: `python -m clutch.testing hunt`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import asdict

from clutch.testing.mutants.planting import Found, NotFound, hunt, mutants


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
