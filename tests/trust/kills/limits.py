"""Spawn limits under load: many processes spawn in every way at once: `python -m tests.trust.kills.limits ADDRESS`.

All of them run whole engines on one PostgreSQL and share a few main sessions. At random each speaks to an agent, whose
answer spawns (and whose children spawn again, one level down), spawns as a program, retries and continues what is
finished. Meanwhile a watcher on a connection of its own counts what the tables hold, over and over. It must never see
more active children of one session, more tasks alive below a root, or a deeper child than the limits allow.

`off-by-one` is the planted bug: the count that admission is given is one too low.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.process import BaseProcess
from types import MappingProxyType
from typing import Any, Final

from clutch.core.messages import Answer, Call, Input, Usage
from clutch.core.model import Lane
from clutch.core.policy import Announcing, Limits, Policy, Work
from clutch.core.spawn import SpawnCounts
from clutch.errors import ClutchError
from clutch.ports import ModelRequest, OnDelta
from clutch.store.transaction import Tx
from clutch.testing.postgres import temporary_server
from clutch.transactions import spawn
from clutch.transactions.conditions import IS_WORKING
from clutch.wiring import Clutch, SystemClock
from tests.trust.processes import last_line

LIMITS: Final = Limits(children_max=3, depth_max=2, descendants_max=8, retained_max=200)
POLICY: Final = Policy(
    limits=LIMITS,
    announcing=Announcing(debounce_s=0.02),
    work=Work(lanes=MappingProxyType({Lane.MAIN: 16, Lane.SUBAGENT: 64}), tick_s=0.05, stop_s=1.0),
)
SESSIONS: Final = tuple(f"agent:main:chat:fire-{number}" for number in range(4))
WAYS: Final = ("tool", *["api"] * 6, *["retry", "continue"] * 3)
OFF_BY_ONE: Final = "off-by-one"
GO: Final = "spawn what you can"
SAMPLE: Final = (
    "SELECT COALESCE((SELECT MAX(n) FROM (SELECT COUNT(*) n FROM tasks"  # noqa: S608 (constant words)
    f" WHERE {IS_WORKING} GROUP BY requester_id) a), 0),"
    f" COALESCE((SELECT MAX(n) FROM (SELECT COUNT(*) n FROM tasks WHERE {IS_WORKING} GROUP BY root_id) b), 0),"
    " COALESCE((SELECT MAX(depth) FROM tasks), 0)"
)


@dataclass(frozen=True, slots=True)
class LimitLoad:
    processes: int
    samples: int
    children: int  #: the most that were ever seen of one requester
    descendants: int  #: ... below one root
    depth: int
    accepted: dict[str, int]  #: by way
    refused: dict[str, int]

    @property
    def is_over(self) -> bool:
        return (
            self.children > LIMITS.children_max
            or self.descendants > LIMITS.descendants_max
            or self.depth > LIMITS.depth_max
        )

    @property
    def is_hot(self) -> bool:
        """Were the limits reached at all?"""
        return self.children >= LIMITS.children_max and self.depth >= LIMITS.depth_max


class Eager:
    """A model that spawns once more than the limits allow, where it has the tool; a leaf works a moment."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del on_delta
        last = next((one for one in reversed(request.transcript) if not isinstance(one, Answer)), None)
        is_new = isinstance(last, Input) and (last.source in ("task", "instruction") or GO in last.text)
        if is_new and any(tool.name == "sessions_spawn" for tool in request.tools):
            calls = (Call("sessions_spawn", {"task": "work"}),) * (LIMITS.children_max + 1)
            return Answer("", calls, Usage(1, 1), "eager", "tools")
        await asyncio.sleep(random.random() * 0.05)
        return Answer("done", (), Usage(1, 1), "eager")


async def _attack(address: str, acts: int) -> Counter[str]:
    """Act so many times in one process. Returns how often each way was accepted or refused."""
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="clutch-fire-") as state_directory:
        clutch = Clutch(database=address, state=state_directory, models=Eager(), policy=POLICY)
        async with clutch as c:
            done: list[str] = []
            for _ in range(acts):
                way, session = random.choice(WAYS), random.choice(SESSIONS)
                if way == "tool":
                    await c.say(GO, session=session)
                elif way == "api":
                    wanted = {"task": "work"} | random.choice(({}, {"tools": ["read"]}))
                    answer = await c.local_gateway.spawn(wanted, session, "reject")
                    told[f"api:{answer['status']}"] += 1
                    done += [answer["taskId"]] if answer["status"] == "accepted" else []
                elif done:
                    told[f"{way}:{await _again(c, random.choice(done), way)}"] += 1
                await asyncio.sleep(random.random() * 0.02)
    return told


async def _again(c: Clutch, task_id: str, way: str) -> str:
    task = await c.get(task_id)
    try:
        await (task.retry() if way == "retry" else task.continue_("more"))
    except ClutchError as error:
        return "forbidden" if "is refused" in str(error) else "too early"
    return "accepted"


# ---- processes ---------------------------------------------------------------------------------------


def _one_too_few() -> None:
    count = spawn.count

    def planted(*args: Any) -> Tx[SpawnCounts]:
        counted = yield from count(*args)
        return replace(counted, children=max(0, counted.children - 1))

    spawn.count = planted  # type: ignore[assignment]


def _run_one(address: str, acts: int, answers: multiprocessing.SimpleQueue[dict[str, int]]) -> None:
    told: dict[str, int] = {}
    try:
        told = dict(asyncio.run(_attack(address, acts)))
    finally:
        answers.put(told)


async def _watch(
    address: str, running: Sequence[BaseProcess]
) -> tuple[int, tuple[int, int, int], dict[str, int]]:
    from clutch.store.postgres import PostgresStore  # an optional dependency

    samples, most = 0, (0, 0, 0)
    async with PostgresStore(address, SystemClock()) as db:
        while any(one.is_alive() for one in running):
            seen = await db.read(_sample)
            most = (max(most[0], seen[0]), max(most[1], seen[1]), max(most[2], seen[2]))
            samples += 1
        tools = await db.read(_said_to_agents)
    return samples, most, tools


def _sample(now: float) -> Tx[tuple[int, int, int]]:
    del now
    children, descendants, depth = (yield SAMPLE, ())[0]
    return int(children), int(descendants), int(depth)


def _said_to_agents(now: float) -> Tx[dict[str, int]]:
    """What the tool answered, by how deep the caller was."""
    del now
    rows = yield (
        "SELECT s.depth, m.body FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.kind = 'results'",
        (),
    )
    told: Counter[str] = Counter()
    for depth, body in rows:
        for word in ("accepted", "forbidden"):
            told[f"tool at depth {depth + 1}:{word}"] += body.count(f'\\"status\\": \\"{word}\\"')
    return dict(told)


def run(address: str, processes: int, acts: int, plant: str = "") -> LimitLoad:
    """Forks, so it belongs into a process without threads."""
    if plant == OFF_BY_ONE:
        _one_too_few()
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[dict[str, int]] = context.SimpleQueue()
    running = [context.Process(target=_run_one, args=(address, acts, answers)) for _ in range(processes)]
    for one in running:
        one.start()
    samples, most, told = asyncio.run(_watch(address, running))
    total = Counter(told)
    for _ in running:
        total.update(answers.get())
    return LimitLoad(processes, samples, *most, _of(total, "accepted"), _of(total, "forbidden"))


def _of(told: Counter[str], word: str) -> dict[str, int]:
    return {
        way: count
        for key, count in sorted(told.items())
        if (way := key.rpartition(":")[0]) and key.endswith(f":{word}")
    }


def run_limits(processes: int = 8, acts: int = 100, plant: str = "") -> LimitLoad:
    """On a server of its own, in a process of its own."""
    server = temporary_server(fsync=False)  # nobody crashes here
    address = server.start()
    try:
        words = ["--processes", str(processes), "--acts", str(acts), "--plant", plant, address]
        return LimitLoad(**json.loads(last_line("tests.trust.kills.limits", *words)))
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="of a PostgreSQL database")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--acts", type=int, default=100)
    parser.add_argument("--plant", default="", choices=["", OFF_BY_ONE])
    said = parser.parse_args()
    with suppress(KeyboardInterrupt):
        print(json.dumps(asdict(run(said.address, said.processes, said.acts, said.plant))))


if __name__ == "__main__":
    main()
