"""`python -m tests.trust`: the campaign of `make trust`. `python -m tests.trust hunt`: single planted bugs."""

from __future__ import annotations

import argparse
import sys

from tests.trust import campaign
from tests.trust.mutants import hunt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trust", description=campaign.__doc__)
    campaign.add_arguments(parser)
    parser.set_defaults(run=campaign.run)
    commands = parser.add_subparsers()
    command = commands.add_parser("hunt", help="plant bugs in the product and look for them")
    hunt.add_arguments(command)
    command.set_defaults(run=hunt.run)
    arguments = parser.parse_args()
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
