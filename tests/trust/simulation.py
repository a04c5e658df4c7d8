"""Many simulated worlds in several processes, added up: `python -m tests.trust.simulation`.

Each process plays every n-th seed, all kinds of worlds in turn, until it has finished enough tasks and met enough
faults. The size is a count, so a slow machine plays the same worlds. A violation names the command that replays it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from itertools import count, cycle

from clutch.core.events import EDGES
from clutch.testing.invariants.checker import all_names
from clutch.testing.invariants.probes import all_probes
from clutch.testing.simulation.background import DOINGS
from clutch.testing.simulation.faults import Fault
from clutch.testing.simulation.report import Report
from clutch.testing.simulation.settings import SETTINGS
from clutch.testing.simulation.user import VERBS
from clutch.testing.simulation.world import simulate
from tests.trust.processes import progress, start
from tests.trust.thresholds import NOT_SIMULATED

PROGRESS_EVERY = 2_500


@dataclass(slots=True)
class Simulated:
    """`runs`: tasks brought to an end. Faults, acts, edges and invariants that never came up are there with 0."""

    worlds: int = 0
    runs: int = 0
    commits: int = 0
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys([fault.value for fault in Fault], 0))
    acts: dict[str, int] = field(default_factory=lambda: dict.fromkeys([*VERBS, *DOINGS], 0))
    edges: list[str] = field(default_factory=list)
    invariants: dict[str, int] = field(default_factory=lambda: dict.fromkeys(all_names(), 0))
    violations: list[str] = field(default_factory=list)
    is_cut: bool = False  #: the time limit ended it before it was complete

    @property
    def edges_total(self) -> int:
        return len(EDGES - NOT_SIMULATED)

    def add(self, report: Report) -> None:
        self.worlds += 1
        self.runs += report.tasks
        self.commits += report.commits
        self.faults = _sum(self.faults, report.faults)
        self.acts = _sum(self.acts, report.verbs)
        self.edges = sorted(
            {*self.edges, *(f"{before} → {after}" for before, after in report.edges - NOT_SIMULATED)}
        )
        self.invariants = _sum(self.invariants, report.evaluations)
        again = f"python -m clutch.testing replay --seed {report.seed} --world {report.world}"
        self.violations += [f"{one.invariant}: {one.detail} ({again})" for one in report.violations]

    def probe(self) -> None:
        """Check the invariants of parts that no world has, once for each process."""
        for name, probe in all_probes().items():
            self.invariants[name] += 1
            if (wrong := probe.wrong()) is not None:
                self.violations.append(f"{name}: {wrong}")

    def join(self, other: Simulated) -> None:
        self.worlds += other.worlds
        self.runs += other.runs
        self.commits += other.commits
        self.faults = _sum(self.faults, other.faults)
        self.acts = _sum(self.acts, other.acts)
        self.edges = sorted({*self.edges, *other.edges})
        self.invariants = _sum(self.invariants, other.invariants)
        self.violations += other.violations
        self.is_cut |= other.is_cut


def _sum(one: dict[str, int], other: dict[str, int] | Counter[str]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


@dataclass(frozen=True, slots=True)
class Share:
    """What one process plays: tasks and faults to reach, and the seeds it takes them from."""

    runs: int
    faults: int
    seed: int
    stride: int = 1
    seconds_max: float = math.inf


def run_many(runs: int, faults: int, seed: int, processes: int, seconds_max: float = math.inf) -> Simulated:
    total = Simulated()
    share = Share(math.ceil(runs / processes), math.ceil(faults / processes), seed, processes, seconds_max)
    players = [_start(replace(share, seed=seed + number)) for number in range(processes)]
    for player in players:
        said, _ = player.communicate()
        if player.returncode == 0:
            total.join(Simulated(**json.loads(said.splitlines()[-1])))
        else:
            total.violations.append(f"a simulating process ended with {player.returncode}")
    return total


def play(share: Share) -> Simulated:
    total = Simulated()
    total.probe()
    started, shown = time.monotonic(), 0
    for number, world in zip(count(share.seed, share.stride), cycle(SETTINGS), strict=False):
        if total.runs >= share.runs and sum(total.faults.values()) >= share.faults:
            break
        if time.monotonic() - started >= share.seconds_max:
            total.is_cut = True
            break
        total.add(simulate(number, world))
        if total.runs - shown >= PROGRESS_EVERY:
            shown = total.runs
            progress(f"simulation from seed {share.seed}: {total.runs:,} of {share.runs:,} tasks")
    return total


def _start(share: Share) -> subprocess.Popen[str]:
    words = [
        word for name, value in asdict(share).items() for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    return start("tests.trust.simulation", *words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500, help="tasks to bring to an end")
    parser.add_argument("--faults", type=int, default=0, help="faults to meet at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stride", type=int, default=1, help="play every n-th seed")
    parser.add_argument("--seconds-max", type=float, default=math.inf, help="stop after so long, incomplete")
    print(json.dumps(asdict(play(Share(**vars(parser.parse_args()))))))


if __name__ == "__main__":
    main()
