"""`python -m clutch.testing trust|replay|hunt`: what the project shows about itself, and single pieces of it."""

from __future__ import annotations

import argparse
import sys

from clutch.testing import trust
from clutch.testing.mutants import hunting
from clutch.testing.simulation.settings import SETTINGS
from clutch.testing.simulation.world import replay


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clutch.testing")
    commands = parser.add_subparsers(required=True)
    everything = commands.add_parser("trust", help="simulation, replays, mutants, kills and races, summed up")
    trust.add_arguments(everything)
    everything.set_defaults(run=trust.run)
    again = commands.add_parser("replay", help="the event log of one simulated world")
    again.add_argument("--seed", type=int, required=True)
    again.add_argument("--world", choices=list(SETTINGS), default="storm")
    again.set_defaults(run=_replay)
    bugs = commands.add_parser("hunt", help="plant bugs in the product and look for them")
    hunting.add_arguments(bugs)
    bugs.set_defaults(run=hunting.run)
    said = parser.parse_args()
    return int(said.run(said))


def _replay(said: argparse.Namespace) -> int:
    return 1 if replay(said.seed, said.world).violations else 0


if __name__ == "__main__":
    sys.exit(main())
