"""What tasks like these cost: the median and p90 of one or of several, from what finished tasks have cost.

    like these    same agent and model; with too few of them the same agent, then the same model, then all
    one task      order statistics: of n costs, the one of rank p·(n + 1) covers the next task with probability p
    several       mean and variance of their sum, as a log-normal distribution has them

Only the newest tasks count, because models, prices and prompts change. A cost that is not known is never 0: a task
that has a call of unknown cost counts as the dearest, and where there are many such tasks, the forecast is unknown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum
from typing import NamedTuple

from clutch.core.budget import ZERO, Measure

SAMPLES_MIN = 5  #: the largest of five costs covers the next one in 5 of 6 cases; fewer say too little
SAMPLES_MAX = 50  #: more follow a change of costs too late, fewer make the p90 unsteady
WINDOW_TASKS = 200  #: the newest finished tasks, among which those like these are looked for
UNKNOWN_PERCENT_MAX = 10  #: with more tasks of unknown cost, the p90 is one of them
COUNT_MAX = 1000  #: tasks of one forecast
P50, P90 = 0.5, 0.9
P90_DEVIATIONS = 1.2815515655446004  #: of a normal distribution
_UNIT = {Measure.TOKENS: Decimal(1), Measure.USD: Decimal("0.000001")}
_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


class Basis(StrEnum):
    """What the tasks of a forecast have in common with the new one."""

    AGENT_AND_MODEL = "agent and model"
    AGENT = "agent"
    MODEL = "model"
    ALL = "all tasks"


@dataclass(frozen=True, slots=True)
class KnownCost:
    """What calls have cost; a lower bound where some report no tokens (`uncounted`) or have no price (`unpriced`)."""

    tokens: int = 0
    usd: Decimal = ZERO
    uncounted: int = 0
    unpriced: int = 0

    def __add__(self, other: KnownCost) -> KnownCost:
        return KnownCost(
            self.tokens + other.tokens,
            self.usd + other.usd,
            self.uncounted + other.uncounted,
            self.unpriced + other.unpriced,
        )

    def of(self, measure: Measure) -> float:
        return float(self.tokens if measure is Measure.TOKENS else self.usd)

    def is_known(self, measure: Measure) -> bool:
        return not (self.uncounted if measure is Measure.TOKENS else self.unpriced)


class PastTask(NamedTuple):
    """A finished task. `whole`: with everything below it, as a budget counts."""

    agent_id: str
    model: str | None
    own: KnownCost
    whole: KnownCost


class OpenTask(NamedTuple):
    """A task that is running or queued, and the names of the budgets it draws on. `spent`: by itself, up to now."""

    agent_id: str
    model: str | None
    spent: KnownCost
    purses: tuple[str, ...] = ()


class CostRange(NamedTuple):
    median: Decimal
    p90: Decimal


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of `count` tasks. `basis` None: too few tasks have finished. A range of None: not known."""

    basis: Basis | None
    samples: int
    count: int
    tokens: CostRange | None
    usd: CostRange | None


class BudgetLeft(NamedTuple):
    """None: no limit."""

    tokens: int | None = None
    usd: Decimal | None = None


UNLIMITED = BudgetLeft()


class Heading(NamedTuple):
    """What a budget will have spent when its `tasks` have ended. `at` None: not known."""

    tasks: int
    at: CostRange | None


def like(past: Sequence[PastTask], agent_id: str, model: str | None) -> tuple[Basis | None, list[PastTask]]:
    """Return the newest tasks that have most in common with the new one. `past`: the newest first."""
    of_agent = [one for one in past if one.agent_id == agent_id]
    choices = {
        Basis.AGENT_AND_MODEL: [one for one in of_agent if one.model == model],
        Basis.AGENT: of_agent,
        Basis.MODEL: [one for one in past if one.model == model],
        Basis.ALL: list(past),
    }
    for basis, found in choices.items():
        if len(found) >= SAMPLES_MIN:
            return basis, found[:SAMPLES_MAX]
    return None, []


def of_tasks(past: Sequence[PastTask], agent_id: str, model: str | None, count: int = 1) -> Forecast:
    """Return what `count` new tasks will cost, each with everything below it."""
    basis, found = like(past, agent_id, model)

    def total(measure: Measure) -> CostRange | None:
        costs = sample((one.whole for one in found), measure)
        return None if costs is None else _total([(costs, count)], measure)

    return Forecast(basis, len(found), count, total(Measure.TOKENS), total(Measure.USD))


def heading(spent: Decimal, tasks: Sequence[OpenTask], past: Sequence[PastTask], measure: Measure) -> Heading:
    """Return where a budget is heading: what is spent, and what the open tasks that draw on it will still cost.

    Each counts what it will spend by itself: the tasks below it are open tasks of their own, or not spawned yet."""
    groups: list[tuple[list[float], int]] = []
    alike = Counter((one.agent_id, one.model, one.spent.of(measure)) for one in tasks)
    for (agent_id, model, so_far), count in alike.items():
        costs = sample((one.own for one in like(past, agent_id, model)[1]), measure)
        if costs is None:
            return Heading(len(tasks), None)
        # One that has cost more than all of them may cost as much again.
        groups.append(([cost - so_far for cost in costs if cost > so_far] or costs, count))
    if not groups:
        return Heading(0, None)
    more = _total(groups, measure)
    return Heading(len(tasks), CostRange(spent + more.median, spent + more.p90))


def sample(costs: Iterable[KnownCost], measure: Measure) -> list[float] | None:
    """Return the costs in their order. None: there are too few, or too many of them are not known."""
    found = list(costs)
    known = [one.of(measure) for one in found if one.is_known(measure)]
    unknown = len(found) - len(known)
    if len(known) < SAMPLES_MIN or 100 * unknown > UNKNOWN_PERCENT_MAX * len(found):
        return None
    dearest = max(one.of(measure) for one in found)
    return sorted(known + [dearest] * unknown)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the cost that covers the next one with this probability, if the next is like them.

    The rank counts the next one too: of n costs and the next, each is equally likely to be the dearest. A share that so
    few costs cannot cover gets the dearest."""
    rank = math.ceil(share * (len(ordered) + 1) - 1e-9)
    return ordered[min(rank, len(ordered)) - 1]


def _total(groups: Sequence[tuple[Sequence[float], int]], measure: Measure) -> CostRange:
    """Add up, for each group of costs, as many tasks as it stands for."""
    if len(groups) == 1 and groups[0][1] == 1:
        ordered = groups[0][0]
        return _range(quantile(ordered, P50), quantile(ordered, P90), measure)
    mean = spread = 0.0
    for costs, count in groups:
        # The dearest counts twice: what comes may be dearer than all before, and a few costs hide how skewed they are.
        weighed = [*costs, max(costs)]
        middle = math.fsum(weighed) / len(weighed)
        variance = math.fsum((cost - middle) ** 2 for cost in weighed) / (len(weighed) - 1)
        mean += count * middle
        # The mean of the sample is uncertain, too, and this error is the same for all tasks of the group.
        spread += variance * (count + count * count / len(costs))
    if mean <= 0:
        return _range(0.0, 0.0, measure)
    scale = math.log(1 + spread / mean**2)
    centre = math.log(mean) - scale / 2
    far = centre + P90_DEVIATIONS * math.sqrt(scale)
    return _range(math.exp(centre), math.exp(far), measure)


def _range(median: float, p90: float, measure: Measure) -> CostRange:
    unit = _UNIT[measure]
    # Rounded in binary first: 0.1 as a float is a little more than 0.1.
    return CostRange(*(Decimal(repr(round(one, 9))).quantize(unit, ROUND_CEILING) for one in (median, p90)))


def plain(usd: Decimal) -> str:
    """Dollars as a JSON object has them, without trailing zeros."""
    return format(usd.normalize(), "f")


def rounded(value: float | Decimal, *, is_down: bool = False) -> Decimal:
    """Return the next round number above the value, or below it: a prompt can repeat it unchanged while the value
    changes a little."""
    if value <= 0:
        return ZERO
    power = math.floor(math.log10(value))
    ratio = float(value) / 10.0**power
    fits = [step for step in _STEPS if (step <= ratio + 1e-9 if is_down else step >= ratio - 1e-9)]
    step = (fits[-1] if is_down else fits[0]) if fits else 1.0
    return Decimal(str(step)).scaleb(power).normalize()
