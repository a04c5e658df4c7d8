"""The tables of `docs/benchmarks.md`, made from recorded JSON lines: medians of good rows, `-` where there is none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.peers.registry import CLUTCH, PEERS

RECORDED: Final = Path(__file__).parent / "recorded.jsonl"
_NAMES: Final[Mapping[str, str]] = {
    "clutch": "Clutch",
    "clutch_direct": "Clutch, `direct`",
    "langgraph": "LangGraph",
    "deepagents": "Deep Agents",
    "openai_agents": "OpenAI Agents SDK",
    "pydantic_ai": "Pydantic AI + DBOS",
    "pydantic_ai_harness": "Pydantic AI Harness",
    "agno": "Agno",
    "nanobot": "nanobot",
}
_WHY_CHARS: Final = 120


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a table. `per` divides it; `digits` after the point."""

    title: str
    figure: str
    per: float = 1
    digits: int = 0


_KB: Final = 1024
_TABLES: Final[Mapping[str, tuple[Column, ...]]] = {
    "w1": (
        Column("CPU ms per child", "cpu_ms_per_child", digits=1),
        Column("memory KB per child", "rss_kb_per_child"),
        Column("stored KB per child", "stored_bytes_per_child", _KB, 1),
        Column("written KB per child", "written_bytes_per_child", _KB),
        Column("sent KB per child", "request_bytes_per_child", _KB, 1),
        Column("model calls", "llm_calls"),
    ),
    "w2": (
        Column("calls before the kill", "calls_before_kill"),
        Column("open at the kill", "in_flight_at_kill"),
        Column("calls made again", "repeated_calls"),
        Column("of these answered before", "repaid_calls"),
        Column("side effects repeated", "side_effects_repeated"),
        Column("results lost", "lost"),
        Column("results shown twice", "twice"),
    ),
    "fanin": (
        Column("parent's turns", "parent_turns"),
        Column("results shown", "results_shown"),
        Column("shown twice", "shown_twice"),
        Column("CPU s", "cpu_s", digits=2),
    ),
}
#: Tables with a column per length of the run.
_GROWTH: Final[Mapping[str, Column]] = {
    "history-stored": Column("calls", "stored_bytes_per_call", _KB, 1),
    "history-cpu": Column("calls", "cpu_ms_per_call", digits=1),
}

Row = Mapping[str, Any]


class Recorded:
    """The rows and summaries of a file of JSON lines."""

    def __init__(self, lines: Iterable[str]) -> None:
        found = [json.loads(line) for line in lines if line.strip()]
        self.rows: list[Row] = [row for row in found if row["bench"] != "summary"]
        self.summaries: list[Row] = [row for row in found if row["bench"] == "summary"]

    def of(self, bench: str, system: str, n: int | None = None) -> list[Row]:
        return [
            row
            for row in self.rows
            if (row["bench"], row["system"]) == (bench, system) and n in (None, row["n"])
        ]

    def median(self, bench: str, system: str, figure: str, n: int | None = None) -> float | None:
        known = [
            row[figure] for row in self.of(bench, system, n) if row["ok"] and row.get(figure) is not None
        ]
        return median(known) if known else None

    def sizes(self, bench: str) -> list[int]:
        return sorted({row["n"] for row in self.rows if row["bench"] == bench})

    def failures(self) -> list[str]:
        """A sentence for each system that has no good row of a workload and size."""
        keys = dict.fromkeys((row["bench"], row["system"], row["n"]) for row in self.rows)
        found = []
        for bench, system, n in keys:
            rows = self.of(bench, system, n)
            if not any(row["ok"] for row in rows):
                found.append(
                    f"{_NAMES[system]}, `{bench}` with n = {n}: {str(rows[0]['why'])[:_WHY_CHARS].rstrip(': ')}"
                )
        return found


def read(path: Path = RECORDED) -> Recorded:
    return Recorded(path.read_text().splitlines())


def name_of(system: str) -> str:
    return _NAMES[system]


def tables(recorded: Recorded) -> dict[str, str]:
    """Every table of the page by the name of its place there."""
    made = {bench: _table(recorded, bench, columns) for bench, columns in _TABLES.items()}
    made |= {name: _growth(recorded, column) for name, column in _GROWTH.items()}
    made["versions"] = _versions(recorded)
    made["failures"] = "\n".join(f"- {line}" for line in recorded.failures()) or "Every run finished."
    return made


def _table(recorded: Recorded, bench: str, columns: Sequence[Column]) -> str:
    with_ratio = bench == "w1"
    titles = ["system", *(column.title for column in columns)]
    if with_ratio:
        titles.insert(2, "× Clutch")
    lines = []
    for system in PEERS:
        cells = [_cell(recorded.median(bench, system, column.figure), column) for column in columns]
        if with_ratio:
            cells.insert(1, _ratio(recorded, bench, system, columns[0].figure))
        lines.append([_NAMES[system], *cells])
    return _markdown(titles, lines)


def _ratio(recorded: Recorded, bench: str, system: str, figure: str) -> str:
    mine, ours = recorded.median(bench, system, figure), recorded.median(bench, CLUTCH, figure)
    return "-" if mine is None or not ours else f"{mine / ours:.1f}"


def _growth(recorded: Recorded, column: Column) -> str:
    sizes = recorded.sizes("history")
    lines = [
        [
            _NAMES[system],
            *(_cell(recorded.median("history", system, column.figure, n), column) for n in sizes),
        ]
        for system in PEERS
    ]
    return _markdown(["system", *(f"{n} {column.title}" for n in sizes)], lines)


def _versions(recorded: Recorded) -> str:
    known = recorded.summaries[-1]["config"]["versions"]
    lines = [
        [
            _NAMES[peer.name],
            ", ".join(f"{name} {known[peer.name][name]}" for name in peer.packages),
            peer.children,
        ]
        for peer in PEERS.values()
    ]
    return _markdown(["system", "packages", "how its children run"], lines, rule="---")


def _cell(value: float | None, column: Column) -> str:
    return "-" if value is None else f"{value / column.per:,.{column.digits}f}"


def _markdown(titles: Sequence[str], lines: Iterable[Sequence[str]], rule: str = "--:") -> str:
    rules = ["---", *(rule for _ in titles[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rules, *lines))
