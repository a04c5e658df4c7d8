"""`python -m clutch.testing trust|replay`: what the project shows about itself, and one simulated world again."""

from __future__ import annotations

import argparse
import sys

from clutch.testing import trust
from clutch.testing.settings import SETTINGS
from clutch.testing.world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clutch.testing")
    commands = parser.add_subparsers(required=True)
    everything = commands.add_parser("trust", help="simulation, replays, mutants, kills and races, summed up")
    trust.add_arguments(everything)
    everything.set_defaults(run=trust.run)
    again = commands.add_parser("replay", help="the event log of one simulated world")
    again.add_argument("--seed", type=int, required=True)
    again.add_argument("--world", choices=list(SETTINGS), default="storm")
    again.set_defaults(run=replay)
    said = parser.parse_args()
    return int(said.run(said))


def replay(said: argparse.Namespace) -> int:
    """The same bytes each time."""
    report = simulate(said.seed, said.world)
    print("\n".join(report.log))
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
