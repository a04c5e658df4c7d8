"""How a victim is to die: at a named point, at a random moment, or just after it came up.

Seeded. Points that were hit least come first, so that a run of any length spreads over all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.trust.kills.points import RECOVERY

#: of all lives: killed from outside at a random moment; within the first moments after coming up; while it
#: is still coming up
_RANDOM_SHARE: Final = 0.27
_EARLY_SHARE: Final = 0.10
_UNBORN_SHARE: Final = 0.03

#: How long after it came up, in start-up times: the one measure of how fast this machine is just now. A life
#: that has not reached its point by then is killed anyway, so that a story goes on dying.
_POINT: Final = (1.5, 5.0)
_RANDOM: Final = (0.0, 3.0)
_EARLY: Final = (0.0, 0.5)
#: The same after birth.
_UNBORN: Final = (0.05, 1.0)
_FIRST_GUESS_S: Final = 0.03

#: Reached once or twice in a whole story, so waiting for the fifth time would be in vain.
_RARE: Final = frozenset(
    {"register", "bury", "yields", "delegate", "spawn", "ring", "stumble", "steer", "kill"}
)
_NTH_MAX: Final = 6

#: Before the first death there is nothing to bury and nothing unfinished when the process registers.
_ONLY_LATER: Final = frozenset({*RECOVERY, "before:register", "after:register", "before:bury", "after:bury"})


@dataclass(frozen=True, slots=True)
class KillPlan:
    """`after_s`: from the moment it has its worker number, or from birth. Neither time nor point: it may live."""

    point: str = ""
    nth: int = 1
    after_s: float | None = None
    from_birth: bool = False


class Chooser:
    """`takeover_s`: how long a new process waits before it takes over from a dead one. A life that ends earlier finds
    no work in progress."""

    def __init__(self, dice: random.Random, points: Sequence[str], takeover_s: float = 0.0) -> None:
        self.dice, self._takeover_s = dice, takeover_s
        self._startup_s = _FIRST_GUESS_S
        self._hits = Counter(dict.fromkeys(points, 0))

    def hit(self, point: str) -> None:
        if point in self._hits:
            self._hits[point] += 1

    def came_up(self, after_s: float) -> None:
        """So long after its birth a victim had committed its first wish."""
        self._startup_s = 0.8 * self._startup_s + 0.2 * after_s

    def choose(self, *, is_first: bool) -> KillPlan:
        kind = self.dice.random()
        if kind < _RANDOM_SHARE:
            return self._timed(_RANDOM, idle_s=0.0 if is_first else self._takeover_s)
        if kind < _RANDOM_SHARE + _EARLY_SHARE and not is_first:
            return self._timed(_EARLY)
        if kind < _RANDOM_SHARE + _EARLY_SHARE + _UNBORN_SHARE and not is_first:
            return self._timed(_UNBORN, from_birth=True)
        possible = [point for point in self._hits if not (is_first and point in _ONLY_LATER)]
        point = min(possible, key=lambda one: (self._hits[one], self.dice.random()))
        timed = self._timed(_POINT, idle_s=0.0 if is_first else self._takeover_s)
        return replace(timed, point=point, nth=self._nth(point))

    def _timed(self, span: tuple[float, float], *, idle_s: float = 0.0, from_birth: bool = False) -> KillPlan:
        after_s = idle_s + self.dice.uniform(*span) * self._startup_s
        return KillPlan(after_s=after_s, from_birth=from_birth)

    def _nth(self, point: str) -> int:
        side, _, name = point.partition(":")
        return 1 if side == "recovery" or name in _RARE else self.dice.randint(1, _NTH_MAX)
