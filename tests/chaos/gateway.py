"""One gateway of a chaos run, as a process of its own: `python -m tests.chaos.gateway`.

Its clock is that of the machine plus the seconds in a file, which the run changes while the gateway works. Nothing of
Clutch is imported before the clock is in place.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Final

SHIFT: Final = struct.Struct("d")
_PR_SET_PDEATHSIG: Final = 1


def shift_clock(file: Path) -> None:
    """`time.time` of this process follows the file from now on."""
    descriptor = os.open(file, os.O_RDONLY)
    shared = mmap.mmap(descriptor, SHIFT.size, prot=mmap.PROT_READ)
    real = time.time

    def shifted() -> float:
        return real() + float(SHIFT.unpack_from(shared)[0])

    time.time = shifted


def end_with_parent() -> None:
    """Also while this process is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def serve(given: argparse.Namespace) -> None:
    from clutch.api.gateway import Leaving
    from clutch.models.provider import AdapterKind, Provider
    from clutch.wiring import Clutch
    from tests.chaos import story

    provider = Provider(
        story.PROVIDER,
        base_url=given.provider,
        api_key="chaos",
        adapter=AdapterKind.DIRECT,
        speaks="openai-chat",
        headers={story.NODE_HEADER: given.node},
        concurrency_max=story.PROVIDER_CALLS_MAX,
    )
    clutch = Clutch(
        given.state,
        database=given.database,
        policy=story.POLICY,
        providers=[provider],
        model=story.MODEL,
        workspace=given.state,
    )

    @clutch.tool
    async def mark(label: str) -> str:
        """Leave a mark that must not be made twice."""
        file = os.open(given.marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, f"{label} {given.node} {os.getpid()}\n".encode())
        os.close(file)
        await asyncio.sleep(0.1)
        return f"marked {label}"

    clutch.leaving = Leaving(clutch, None)  # a process of its own, as `clutch serve` is
    async with clutch:
        print(clutch.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--provider", required=True)
    parser.add_argument("--marks", type=Path, required=True)
    parser.add_argument("--clock", type=Path, required=True)
    given = parser.parse_args()
    end_with_parent()
    shift_clock(given.clock)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(serve(given))


if __name__ == "__main__":
    main()
