"""The figures of a finished demo: counted from the database and from the witnesses, never assumed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clutch.cli.demo.job import SESSION, Job
from clutch.cli.demo.supervisor import kills_of
from clutch.cli.demo.witness import Account, account_of, lines
from clutch.cli.demo.worker import LIVES, STATS
from clutch.core import keys
from clutch.core.model import Outcome
from clutch.looking import looking_at
from clutch.protocol import figures, queries
from clutch.protocol.figures import Figures
from clutch.protocol.queries import TimelineRow, TreeRow
from clutch.wiring import findings_of

SCHEMA = "clutch.demo/1"
RESUMED = "resumed @step "
KILLS_WANTED_MIN = 5  # in flight; fewer prove little


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the database says."""

    tree: Sequence[TreeRow]
    timeline: Sequence[TimelineRow]
    figures: Figures
    results: Mapping[int, str]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [
            {"task_id": keys.task_id(row.task_id), "label": row.label} | asdict(one)
            for row in self.tree
            for one in findings_of(self.results.get(row.task_id, ""))
        ]

    @property
    def resumes(self) -> list[dict[str, Any]]:
        return [
            {"task_id": keys.task_id(line.task_id), "step": int(line.reason.removeprefix(RESUMED))}
            for line in self.timeline
            if line.reason.startswith(RESUMED)
        ]


def ledger_of(state: Path) -> Ledger:
    with looking_at(state) as look:
        root = look(queries.session_id, SESSION)
        return Ledger(
            look(queries.tree, root),
            look(queries.timeline, root),
            look(figures.figures, root),
            look(figures.frozen_results, root),
        )


def report(job: Job, wall_s: float, plain: Ledger | None) -> dict[str, Any]:
    """`plain`: the same work without chaos, to compare the findings with."""
    ledger, heard = ledger_of(job.state), account_of(job.state)
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "ok": False,
        "model": ", ".join(ledger.figures.models),
        "dir": str(job.folder),
        **_counted(ledger, heard),
        "findings": ledger.findings,
        "answer": ledger.figures.replies[-1] if ledger.figures.replies else None,
        "wall_s": round(wall_s, 2),
        "state_dir": str(job.state),
        **_cost(job, len(ledger.tree)),
    }
    if plain is not None:
        told |= _chaos(job, ledger, heard, plain)
    told["problems"] = list(problems(told))
    told["ok"] = not told["problems"]
    return told


def _counted(ledger: Ledger, heard: Account) -> dict[str, Any]:
    tasks = {keys.task_id(row.task_id) for row in ledger.tree}
    outcomes = Counter(row.outcome for row in ledger.tree)
    deliveries = Counter(row.delivery for row in ledger.tree)
    return {
        "tasks": len(tasks),
        "max_depth": max((row.depth for row in ledger.tree), default=0),
        "outcomes": {outcome.value: outcomes[outcome] for outcome in Outcome},
        "delivered": deliveries["delivered"],
        "undelivered": deliveries["undelivered"],
        "lost": sum(not heard.told.get(task_id) for task_id in tasks | heard.accepted),
        "twice": sum(max(0, count - 1) for count in heard.told.values()),
        "parent_turns": ledger.figures.root_turns,
        "tool_calls": ledger.figures.tool_calls,
    }


def _cost(job: Job, tasks: int) -> dict[str, Any]:
    """Known only when one worker did it all: the counters of one that was killed died with it."""
    stats = _stats(job.state) if len(lines(job.state / LIVES)) == 1 else None
    counters = {"transactions_per_task": "transactions", "statements_per_task": "statements"}
    return {name: round(stats[key] / tasks, 1) if stats and tasks else None for name, key in counters.items()}


def _stats(state: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((state / STATS).read_text())
    return read


def _chaos(job: Job, ledger: Ledger, heard: Account, plain: Ledger) -> dict[str, Any]:
    kills = kills_of(job.state)
    return {
        "kills": len(kills),
        "kills_in_flight": sum(kill["in_flight"] > 0 for kill in kills),
        "resumed": len(ledger.resumes),
        "resumes": ledger.resumes,
        "repeated_model_calls": heard.repeated_calls,
        "repeated_unsafe_tools": heard.repeated_notes,
        "same_findings": _comparable(ledger) == _comparable(plain),
    }


def _comparable(ledger: Ledger) -> list[tuple[Any, ...]]:
    return sorted((one["label"], one["file"], one["line"], one["text"]) for one in ledger.findings)


def problems(told: Mapping[str, Any]) -> Iterator[str]:
    """Why this run is not ok, in words; nothing when it is."""
    if told["outcomes"]["ok"] != told["tasks"]:
        yield "not every task ended ok"
    if told["delivered"] != told["tasks"]:
        yield "not every result was delivered"
    if not told["answer"]:
        yield "the main agent gave no answer"
    for name in ("lost", "twice", "undelivered", "repeated_unsafe_tools"):
        if told.get(name):
            yield f"{name}: {told[name]}"
    # Without tasks there is nothing to hit.
    if told["tasks"] and told.get("kills_in_flight", KILLS_WANTED_MIN) < KILLS_WANTED_MIN:
        yield f"only {told['kills_in_flight']} kills in flight; fewer than {KILLS_WANTED_MIN} prove little"
    if not told.get("same_findings", True):
        yield "the findings differ from those without chaos; did the folder change meanwhile?"
