"""One chaos run: work and faults at the same time, then only work until all of it is delivered, then the verdict."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.chaos import faults, story
from tests.chaos.driver import Driver
from tests.chaos.fleet import Fleet
from tests.chaos.node import ROOT
from tests.chaos.plan import Fault, FaultKind, plan
from tests.chaos.witness import Findings, Witness, percentile

SCHEMA: Final = "clutch.chaos/1"
SETTLE_SHARE: Final = 0.25  #: of the run, at most a minute, is left for work that the faults held up
SETTLE_S: Final = 60.0
#: Beyond this, work that is not delivered counts as lost. After a 429 gateways ask slowly for a minute and more.
SETTLE_MAX_S: Final = 200.0
LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Wishes:
    seed: int
    seconds: float
    nodes: int
    kinds: frozenset[FaultKind]

    @property
    def command(self) -> str:
        """Repeats the same plan. Which call a fault meets is up to the machine."""
        return f"make chaos SECONDS={self.seconds:g} SEED={self.seed}"


class ChaosRun:
    def __init__(self, wishes: Wishes, folder: Path) -> None:
        self._wishes = wishes
        self._fleet = Fleet(folder, wishes.seed, wishes.nodes)
        self._driver = Driver(self._fleet, wishes.seed)
        self._witness = Witness(self._fleet, self._driver)
        self._postgres = ""

    async def run(self) -> dict[str, Any]:
        ends_at = time.monotonic() + self._wishes.seconds
        async with self._fleet.running():
            await self._witness.prepare()
            self._postgres = str((await self._fleet.rows("SHOW server_version"))[0][0])
            self._fleet.say(f"{self._wishes.nodes} gateways on PostgreSQL {self._postgres} with a standby")
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._witness.watch())
                await self._disturb(ends_at - min(SETTLE_S, SETTLE_SHARE * self._wishes.seconds))
                await self._settle()
                watch.cancel()
            found = await self._witness.conclude()
        return self.summary(found)

    async def _disturb(self, until: float) -> None:
        kinds = self._wishes.kinds & faults.possible(self._fleet)
        began, window = time.monotonic(), max(1.0, until - time.monotonic())
        tracks = plan(self._wishes.seed, window, self._wishes.nodes, kinds)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._driver.run(until))
            for track in tracks.values():
                group.create_task(self._track(track, began))

    async def _track(self, track: Sequence[Fault], began: float) -> None:
        """One after the other; one that comes too late because of the one before is made at once."""
        for fault in track:
            await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
            await faults.make(self._fleet, fault)

    async def _settle(self) -> None:
        """Return when nothing is left to do, or when it takes too long."""
        self._fleet.say("no more faults: waiting until all work is delivered")
        for node in self._fleet.nodes:
            node.set_clock(0.0)
        until = time.monotonic() + SETTLE_MAX_S
        while time.monotonic() < until:
            left = await self._driver.unfinished()
            if left == 0:
                self._fleet.say("all work is delivered")
                return
            await asyncio.sleep(LOOK_S)
        self._fleet.say(f"after {SETTLE_MAX_S:.0f} s there is work left")

    def summary(self, found: Findings) -> dict[str, Any]:
        self._fleet.say(f"answers that were lost with their commit, by fault: {dict(found.paid_twice)}")
        for complaint in found.complaints:
            self._fleet.say(complaint)
        self._fleet.provider.ledger.write(self._fleet.folder / "calls.jsonl", self._fleet.began_at)
        return {
            "schema": SCHEMA,
            "ok": not found.complaints,
            "seed": self._wishes.seed,
            "nodes": self._wishes.nodes,
            "postgres": self._postgres,
            "faults_by_kind": {kind.value: self._fleet.counts[kind] for kind in FaultKind},
            "tasks": found.tasks,
            "delivered": found.delivered,
            "lost": len(found.lost),
            "twice": len(found.twice),
            "over_limit": len(found.over_limit),
            "executed_twice": len(found.executed_twice),
            "live_buried": len(found.live_buried),
            "paid_twice": found.paid_twice.total(),
            "takeover_s": {"p50": percentile(found.takeovers, 0.5), "p99": percentile(found.takeovers, 0.99)},
            "lease_s": story.LEASE_S,
        }


def keep(folder: Path, wishes: Wishes) -> Path:
    """Copy the logs and the timeline of a run that failed, with the command that repeats it."""
    kept = ROOT / "build" / "chaos" / str(wishes.seed)
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for pattern in ("*.log", "timeline.txt", "calls.jsonl", "marks", "*/log"):
        for file in folder.glob(pattern):
            shutil.copy(file, kept / shlex.quote("-".join(file.relative_to(folder).parts)))
    (kept / "command.txt").write_text(f"{wishes.command}\n", encoding="utf-8")
    return kept
