"""Transactions and statements per task, counted at the door while the engine runs families like the demo's.

A family: a main agent spawns its children and yields in one answer; each child takes two tool steps and ends; the
parent reads all results in one turn. Counted from the answer that spawns to the answer that tells; whatever the parent
does in between counts for its children. Reads count as nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.report import Report, at_most
from benchmarks.task import ROOT_RIGHTS, WORKSPACE
from clutch.core.admission import SpawnRequest
from clutch.core.messages import Answer, Call, Usage
from clutch.core.model import LetterKind
from clutch.ports import HumanQuestion, ModelRequest, OnDelta, ToolContext, ToolSpec
from clutch.protocol import letters, queries, sessions
from clutch.store.door import DoorStats
from clutch.wiring import Engine, running_engine

CHILDREN: Final = 5  # as many as one agent may have at a time by default
FAMILIES: Final = 10
TRANSACTIONS_MAX: Final = 8.0
STATEMENTS_MAX: Final = 60.0
_LOOK_S: Final = 0.01
_STEPS: Final = 2


class Family:
    """Model and tools of a parent and its children. `begins` is told when the parent is about to spawn."""

    def __init__(self) -> None:
        self.begins: Callable[[], None] = lambda: None

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del on_delta
        answered = sum(isinstance(message, Answer) for message in request.transcript)
        if "Subagent" in str(request.transcript[0]):
            return _child(answered)
        if not answered:
            self.begins()
        return _parent(answered)

    def specs(self) -> Sequence[ToolSpec]:
        names = ("read", "sessions_spawn", "sessions_yield")
        return [ToolSpec(name, "", {}, replay_safe=True, read_only=True) for name in names]

    async def run(self, name: str, args: Mapping[str, Any], context: ToolContext) -> str:
        del name, args, context
        return "def part(): ..."

    def human_question(self, args: Mapping[str, Any]) -> HumanQuestion:
        return HumanQuestion(**args)

    def spawn_request(self, args: Mapping[str, Any]) -> SpawnRequest:
        return SpawnRequest(**args)


def _parent(answered: int) -> Answer:
    if answered:
        return Answer("All read.", (), _USAGE, "bench")
    spawns = [Call("sessions_spawn", {"task": f"Read part {number}."}) for number in range(CHILDREN)]
    return _calls(*spawns, Call("sessions_yield", {}))


def _child(answered: int) -> Answer:
    if answered < _STEPS:
        return _calls(Call("read", {"path": f"part_{answered}.py"}))
    return Answer("It filters tokens.", (), _USAGE, "bench")


_USAGE: Final = Usage(900, 60)


def _calls(*calls: Call) -> Answer:
    return Answer("", calls, _USAGE, "bench", "tools")


async def judge(report: Report, families: int = FAMILIES) -> None:
    family, counted = Family(), Counter[str]()
    with TemporaryDirectory(prefix="clutch-shape-") as state:
        async with running_engine(state=Path(state), models=family, toolbox=family) as engine:
            for number in range(families):
                counted += await _one(engine, family, number)
    tasks = families * CHILDREN
    per_task = {name: round(count / tasks, 2) for name, count in sorted(counted.items())}
    report.config["shape"] = {"tasks": tasks, "children_per_parent": CHILDREN, "per_task": per_task}
    report.targets.append(at_most("transactions per task", counted["transactions"] / tasks, TRANSACTIONS_MAX))
    report.targets.append(at_most("statements per task", counted["statements"] / tasks, STATEMENTS_MAX))


def _counted(stats: DoorStats) -> Counter[str]:
    by_function = {f"{name} statements": statements for name, (_, statements) in stats.by_function.items()}
    return Counter(transactions=stats.transactions, statements=stats.statements) + Counter(by_function)


async def _one(engine: Engine, family: Family, number: int) -> Counter[str]:
    door, root_id = engine.door, engine.kit.ids.next()
    key = f"agent:main:chat:shape-{number}"
    begun: list[Counter[str]] = []
    family.begins = lambda: begun.append(_counted(door.stats))
    await door.tx(root_id, sessions.open_session, root_id, key, "main", ROOT_RIGHTS, None, WORKSPACE)
    await door.tx(root_id, letters.post, root_id, f"shape:{number}", LetterKind.USER, "Have it read.")
    while not await door.read(queries.is_quiet, root_id):  # noqa: ASYNC110 - asks a database
        await asyncio.sleep(_LOOK_S)
    return _counted(door.stats) - begun[0]
