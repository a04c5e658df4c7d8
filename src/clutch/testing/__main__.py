"""`python -m clutch.testing replay`: print the event log of one simulated world."""

from __future__ import annotations

import argparse
import sys

from clutch.testing.simulation.settings import SETTINGS
from clutch.testing.simulation.world import replay


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clutch.testing")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("replay", help="print the event log of one simulated world")
    command.add_argument("--seed", type=int, required=True)
    command.add_argument("--world", choices=list(SETTINGS), default="storm")
    arguments = parser.parse_args()
    return 1 if replay(arguments.seed, arguments.world).violations else 0


if __name__ == "__main__":
    sys.exit(main())
