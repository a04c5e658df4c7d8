"""What a synced write takes on the same disk under `load`, in a process that does nothing else.

Until its stdin is closed; then a line for each write: how many milliseconds it took.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from benchmarks.machine import synced_write_ms

EVERY_S: Final = 0.1


def probe(place: Path) -> list[float]:
    took: list[float] = []
    with TemporaryFile(dir=place) as file:
        while not select.select([sys.stdin], [], [], EVERY_S)[0]:
            took.append(synced_write_ms(file.fileno()))
            os.lseek(file.fileno(), 0, os.SEEK_SET)
    return took


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", type=Path, required=True)
    print(*probe(parser.parse_args().place), sep="\n", flush=True)
