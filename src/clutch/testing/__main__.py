"""`python -m clutch.testing replay`: print the event log of one simulated world."""

from __future__ import annotations

import argparse
import sys

from clutch.testing.simulation.schedules import NAME, play
from clutch.testing.simulation.settings import SETTINGS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clutch.testing")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("replay", help="print the event log of one simulated world")
    command.add_argument("--seed", type=int, required=True)
    command.add_argument("--world", choices=[*SETTINGS, NAME], default="storm")
    arguments = parser.parse_args()
    report = play(arguments.seed, arguments.world)
    sys.stdout.write("".join(f"{line}\n" for line in report.log))
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
