"""Many processes want one state directory at once: `python -m tests.trust.kills.state_directory DIRECTORY`.

A barrier lets all processes go; the process that gets in stays until all have tried, then leaves. Every directory is
fought for twice: new, and left behind by another process. Exactly one may get in each time, and the others must be
told why not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from clutch.errors import StateDirectoryInUse
from clutch.store.state_directory import StateDirectory
from tests.trust.processes import last_line

WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class DirectoryRounds:
    processes: int
    rounds: int
    exactly_one: int  #: rounds in which one process got in and all others were refused


def run(place: Path, processes: int, rounds: int) -> DirectoryRounds:
    """Forks, so it belongs into a process without threads."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes)
    answers: multiprocessing.SimpleQueue[list[bool]] = context.SimpleQueue()
    runners = [context.Process(target=_run, args=(place, rounds, barrier, answers)) for _ in range(processes)]
    for runner in runners:
        runner.start()
    got_in = [answers.get() for _ in runners]
    for runner in runners:
        runner.join()
    return DirectoryRounds(processes, rounds, sum(sum(won) == 1 for won in zip(*got_in, strict=True)))


def _run(
    place: Path, rounds: int, barrier: Barrier, answers: multiprocessing.SimpleQueue[list[bool]]
) -> None:
    won = []
    for number in range(rounds):
        directory = StateDirectory(place / str(number // 2))  # every second round finds a used one
        barrier.wait(WAIT_S)
        try:
            directory.acquire()
            won.append(True)
        except StateDirectoryInUse:
            won.append(False)
        barrier.wait(WAIT_S)
        directory.release()
    answers.put(won)


def run_directories(processes: int = 8, rounds: int = 200) -> DirectoryRounds:
    with tempfile.TemporaryDirectory(prefix="clutch-lone-") as place:
        words = ["--processes", str(processes), "--rounds", str(rounds), place]
        line = last_line("tests.trust.kills.state_directory", *words)
    return DirectoryRounds(**json.loads(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=200)
    said: Any = parser.parse_args()
    print(json.dumps(asdict(run(said.place, said.processes, said.rounds))))


if __name__ == "__main__":
    main()
