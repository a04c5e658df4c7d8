"""`make chaos`: several gateways on one PostgreSQL with a standby, faults of every kind, and a witness that counts.

Example: make chaos SECONDS=600 SEED=7
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import SystemRandom
from typing import Any

from tests.chaos.plan import FaultKind
from tests.chaos.run import ChaosRun, Wishes, keep


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="length of the run (default: 120)")
    parser.add_argument("--seed", type=int, help="repeats the plan of faults of an earlier run")
    parser.add_argument("--nodes", type=int, default=3, help="gateways (default: 3)")
    parser.add_argument("--only", default="", help="kinds of faults, separated by commas (default: all)")
    given = parser.parse_args()
    seed = SystemRandom().randrange(1, 1_000_000) if given.seed is None else given.seed
    kinds = frozenset(FaultKind(kind) for kind in given.only.split(",") if kind) or frozenset(FaultKind)
    return run(Wishes(seed, given.seconds, given.nodes, kinds))


def run(wishes: Wishes) -> int:
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.chmod(0o755)  # the server runs as another user
    chaos = ChaosRun(wishes, folder)
    code = 1
    try:
        summary = asyncio.run(chaos.run())
        code = exit_code(summary)
    finally:
        if code:
            kept = keep(folder, wishes)
            print(f"Logs and timeline: {kept}\nRepeat with: {wishes.command}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(summary, separators=(",", ":")), flush=True)
    return code


def exit_code(summary: Mapping[str, Any]) -> int:
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
