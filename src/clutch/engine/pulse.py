"""When the loops of this process last came round, for whoever wonders whether they still do. Kept in memory only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Beat(NamedTuple):
    at: float
    period_s: float  #: it comes at least so often


@dataclass(slots=True)
class Pulses:
    """By the name of the loop."""

    beats: dict[str, Beat] = field(default_factory=dict)

    def beat(self, name: str, at: float, period_s: float) -> None:
        self.beats[name] = Beat(at, period_s)
