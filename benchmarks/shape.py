"""Transactions and statements per task, counted while the demo's own job runs, at a quicker pace.

The whole run: the start of the process, the first question, the main agent's turns and everything below it; whatever
is not a task's counts for the tasks. Reads count as nothing.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import apsw

from benchmarks.report import Report, at_most
from clutch.core.policy import Limits, Policy
from clutch.demo.job import QUESTION, SESSION
from clutch.store.transaction import DatabaseStats
from clutch.wiring import DATABASE_FILE, Clutch, offline_model

RUNS: Final = 1
PACE_S: Final = 0.02  # of every answer: children end one by one, as they do with a real model
# A task itself, and each of its steps with tool calls: `respond` and `results` are two transactions by design. How many
# steps the demo model makes is its own business. A task with the 8/7 steps of the first demo may have 7.9 and 60.
TRANSACTIONS: Final = (5.6, 2.0)
STATEMENTS: Final = (46.0, 12.25)
#: surveyed, as `make demo` does
FOLDER: Final = Path(__file__).resolve().parent.parent


async def judge(report: Report, runs: int = RUNS) -> None:
    counted: Counter[str] = Counter()
    for _ in range(runs):
        counted += await _demo()
    per_task = {name: round(count / counted["tasks"], 2) for name, count in sorted(counted.items())}
    report.config["shape"] = {"runs": runs, "tasks": counted["tasks"], "per_task": per_task}
    steps = counted["steps"] / counted["tasks"]
    for what, (own, per_step) in (("transactions", TRANSACTIONS), ("statements", STATEMENTS)):
        limit = own + per_step * steps
        report.targets.append(at_most(f"{what} per task", counted[what] / counted["tasks"], limit))


async def _demo() -> Counter[str]:
    with TemporaryDirectory(prefix="clutch-shape-") as state:
        policy = Policy(limits=Limits(depth_max=2))
        models = offline_model(lambda _: PACE_S)
        async with Clutch(state=state, policy=policy, models=models, workspace=FOLDER) as clutch:
            await clutch.say(QUESTION, session=SESSION)
            await clutch.wait_idle(session=SESSION)
            stats = clutch.stats
        return _counted(stats, _tasks(Path(state) / DATABASE_FILE))


def _tasks(database: Path) -> int:
    with closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return len(connection.execute("SELECT id FROM tasks").fetchall())


def _counted(stats: DatabaseStats, tasks: int) -> Counter[str]:
    by_function = {f"{name} statements": statements for name, (_, statements) in stats.by_function.items()}
    steps, _ = stats.by_function["results"]
    whole = Counter(tasks=tasks, steps=steps, transactions=stats.transactions, statements=stats.statements)
    return whole + Counter(by_function)
