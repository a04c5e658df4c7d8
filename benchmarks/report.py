"""What a benchmark says: one JSON line per row, then the summary. Every row is printed, failed ones too.

Values of targets are ratios of medians within this run, so that a slow machine is slow on both sides.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

SCHEMA: Final = "clutch.bench/1"


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement of one system. `figures` are the fields of its bench; None = not known here."""

    bench: str
    system: str
    backend: str
    n: int
    rep: int
    ok: bool
    cpu_s: float | None
    wall_s: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    why: str | None = None

    def as_json(self) -> dict[str, Any]:
        common = asdict(self)
        figures = common.pop("figures")
        if self.why is None:
            del common["why"]
        return {"schema": SCHEMA, **common, **figures}


@dataclass(frozen=True, slots=True)
class Target:
    """`is_ceiling`: the value may not be above the limit; else not below. No value: nothing was measured."""

    name: str
    value: float | None
    limit: float
    is_ceiling: bool

    @property
    def ok(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.limit if self.is_ceiling else self.value >= self.limit

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "limit": self.limit, "ok": self.ok}


def at_most(name: str, value: float | None, limit: float) -> Target:
    return Target(name, _rounded(value), limit, is_ceiling=True)


def at_least(name: str, value: float | None, limit: float) -> Target:
    return Target(name, _rounded(value), limit, is_ceiling=False)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


class Report:
    """Prints rows as they come and keeps them for the targets."""

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        self.rows: list[Row] = []
        self.targets: list[Target] = []
        self.config: dict[str, Any] = {}
        self.ratios: dict[str, float | None] = {}  #: said in the summary, not judged
        self._write = write or _print

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._write(json.dumps(row.as_json()))

    def median(self, field_name: str, **where: Any) -> float | None:
        """Of the good rows whose fields have these values."""
        return _median(self._figures(field_name, where))

    def ratio(self, field_name: str, above: Mapping[str, Any], below: Mapping[str, Any]) -> float | None:
        top, bottom = self.median(field_name, **above), self.median(field_name, **below)
        return None if top is None or not bottom else top / bottom

    def _figures(self, field_name: str, where: Mapping[str, Any]) -> Iterator[float]:
        for row in self.rows:
            fields = row.as_json()
            if row.ok and fields.get(field_name) is not None and where.items() <= fields.items():
                yield fields[field_name]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows) and all(target.ok for target in self.targets)

    def finish(self, machine: Mapping[str, Any]) -> bool:
        summary = {
            "schema": SCHEMA,
            "bench": "summary",
            "ok": self.ok,
            "machine": dict(machine),
            "config": self.config,
            "targets": [target.as_json() for target in self.targets],
        }
        if self.ratios:
            summary["ratios"] = {name: _rounded(value) for name, value in self.ratios.items()}
        self._write(json.dumps(summary))
        return self.ok


def _median(figures: Iterator[float]) -> float | None:
    known = list(figures)
    return median(known) if known else None


def percentile(sorted_values: list[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def say(words: str) -> None:
    """For people; data goes to stdout."""
    print(words, file=sys.stderr, flush=True)


def _print(line: str) -> None:
    print(line, flush=True)
