"""One gateway of a chaos run as the run sees it: its process, its clock, its links, and when it was disturbed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clutch.errors import ClutchError
from clutch.surfaces.http_client import GatewayClient, connect
from tests.chaos.gateway import SHIFT
from tests.chaos.link import Link

ROOT: Final = Path(__file__).parents[2]
START_S: Final = 60.0  #: of a gateway, on a busy machine and while the database is away
START_TRIES: Final = 5


@dataclass(slots=True)
class Life:
    """One process of a gateway. `stopped`: between SIGSTOP and SIGCONT."""

    pid: int
    ended_at: float | None = None
    stopped: list[tuple[float, float | None]] | None = None

    def was_running(self, since: float, until: float) -> bool:
        """Whether it lived and was not stopped during all of this time."""
        if self.ended_at is not None and self.ended_at <= until:
            return False
        return not any(begin <= until and (end is None or end >= since) for begin, end in self.stopped or ())


class Node:
    source = ROOT / "src"  #: the version of Clutch that it runs

    def __init__(self, number: int, folder: Path, links: Sequence[Link], provider: str) -> None:
        self.number, self.name, self.links = number, f"node-{number}", links
        self.home = folder / self.name
        self.home.mkdir(mode=0o700)
        self.log = folder / f"{self.name}.log"
        self.marks = folder / "marks"
        self.lives: list[Life] = []
        self.shift_s = 0.0
        self._clock = folder / f"{self.name}.clock"
        self._provider = provider
        self._process: asyncio.subprocess.Process | None = None
        self.is_up = False
        self.changing = asyncio.Lock()  #: one fault at a time has the process
        self.set_clock(0.0)

    def set_clock(self, shift_s: float) -> None:
        """The file is overwritten in place: a running gateway has it mapped."""
        self.shift_s = shift_s
        file = os.open(self._clock, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(file, SHIFT.pack(shift_s), 0)
        os.close(file)

    def database(self, name: str) -> str:
        hosts = ",".join(f"127.0.0.1:{link.port}" for link in self.links)
        return f"postgresql://postgres@{hosts}/{name}?target_session_attrs=read-write"

    async def start(self, database: str) -> None:
        """A start may meet a database that is away, and ends then; it is repeated, as a service manager would."""
        for _ in range(START_TRIES):
            if await self._try_start(database):
                self.is_up = True
                return
        raise RuntimeError(f"{self.name} does not start; see {self.log}")

    async def _try_start(self, database: str) -> bool:
        with self.log.open("ab") as log:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.gateway", "--node", self.name, "--state", str(self.home),
                "--database", self.database(database), "--provider", self._provider,
                "--marks", str(self.marks), "--clock", str(self._clock),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(self.source)},
            )  # fmt: skip
        self.lives.append(Life(process.pid, stopped=[]))
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if line.startswith(b"http"):
            return True
        await self.kill()
        return False

    async def kill(self) -> None:
        self.is_up = False
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self.lives[-1].ended_at = time.time()

    def stop(self) -> None:
        assert self._process is not None
        self.is_up = False
        stopped = self.lives[-1].stopped
        assert stopped is not None
        stopped.append((time.time(), None))
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        stopped = self.lives[-1].stopped
        if self._process is None or self._process.returncode is not None or not stopped:
            return
        self._process.send_signal(signal.SIGCONT)
        stopped[-1] = (stopped[-1][0], time.time())
        self.is_up = True

    @property
    def has_ended(self) -> bool:
        """The process has ended, and the run did not kill it."""
        return self.is_up and self._process is not None and self._process.returncode is not None

    async def leave(self) -> None:
        """End in order, as with SIGTERM."""
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                async with asyncio.timeout(START_S):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def client(self) -> GatewayClient | None:
        """None: it does not answer now."""
        if not self.is_up:
            return None
        try:
            return connect(self.home)
        except (ClutchError, OSError):
            return None
