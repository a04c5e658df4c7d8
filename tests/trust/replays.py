"""The same seed gives the same world, byte for byte, in any process: `python -m tests.trust.replays`.

Two processes with different hash seeds play the same worlds; the digests of their event logs are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator
from itertools import cycle, islice

from clutch.testing.simulation.settings import SETTINGS
from clutch.testing.simulation.world import simulate
from tests.trust.processes import start


def replays_identical(seed: int, count: int) -> int:
    """How many of `count` worlds were the same both times."""
    players = [_start(seed, count, hash_seed) for hash_seed in ("1", "2")]
    first, second = (_digests(player) for player in players)
    return sum(one == other for one, other in zip(first, second, strict=False))


def digests(seed: int, count: int) -> Iterator[str]:
    """Worlds of all kinds in turn."""
    for number, world in enumerate(islice(cycle(SETTINGS), count)):
        yield simulate(seed + number, world).digest


def _start(seed: int, count: int, hash_seed: str) -> subprocess.Popen[str]:
    words = ("--seed", str(seed), "--count", str(count))
    return start("tests.trust.replays", *words, env=os.environ | {"PYTHONHASHSEED": hash_seed})


def _digests(player: subprocess.Popen[str]) -> list[str]:
    said, _ = player.communicate()
    return list(json.loads(said)) if player.returncode == 0 else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    said = parser.parse_args()
    print(json.dumps(list(digests(said.seed, said.count))))


if __name__ == "__main__":
    main()
