"""What model calls cost over time: the bars of a period, the burn rate, and when a budget is exhausted at that rate.

A price that is not known is never counted as 0: sums name the calls without a price beside the known dollars."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple, TypeVar

from clutch.core.budget import WARN_PERCENT, Budget, BudgetKind, Measure, measures, used_percent
from clutch.core.views import NOTHING_USED, Tally

K = TypeVar("K", bound=Hashable)

DAY_S = 86_400
HOUR_S = 3600.0
BURN_MINUTES = 15  #: shorter and one long call decides the rate; longer and a burst is noticed late
BARS_MAX = 92  #: a quarter in days; more bars are too thin to point at
OFFSET_MINUTES_MAX = 14 * 60


class BarUnit(StrEnum):
    MINUTES = "5 minutes"
    HOUR = "hour"
    DAY = "day"

    @property
    def seconds(self) -> int:
        return {BarUnit.MINUTES: 300, BarUnit.HOUR: 3600, BarUnit.DAY: DAY_S}[self]


def unit_of(hours: float | None) -> BarUnit:
    """Return what one bar of a period stands for. None: all time."""
    if hours is None or hours > 48:
        return BarUnit.DAY
    return BarUnit.MINUTES if hours <= 2 else BarUnit.HOUR


@dataclass(frozen=True, slots=True)
class CostRow:
    """Ended calls of one bar, tree, agent and model. `bar`: its number in the caller's time zone.

    `top`: the first task of the tree; None: calls of the main session itself."""

    bar: int
    model: str
    agent: str
    root: str
    top: int | None
    label: str | None
    used: Tally
    unpriced_tokens: int = 0  #: of the calls in `used` without a price


class LedgerPlace(NamedTuple):
    """The key of a row of the ledger."""

    session_id: int
    call_no: int


class OldCall(NamedTuple):
    """An answered call of the ledger, or several that were added up."""

    session_id: int
    call_no: int
    run_id: int
    at: float
    model: str
    effective: str | None
    input: int
    output: int
    cache_read: int
    cache_write: int
    usd: Decimal | None
    calls: int
    reserved_tokens: int

    @property
    def place(self) -> LedgerPlace:
        """The key of its row."""
        return LedgerPlace(self.session_id, self.call_no)


class SummedCalls(NamedTuple):
    """`total` stands for `replaced` and for the call whose number it has."""

    total: OldCall
    replaced: tuple[OldCall, ...]


#: All time zones differ from UTC by a multiple of it: sums of it are in the right hour and on the right day everywhere.
QUARTER_S = 900


def summed(calls: Iterable[OldCall]) -> list[SummedCalls]:
    """Add up the calls of a run, model and quarter of an hour. Groups of one are not among the answer.

    Calls without a price stay apart from those with one, because a sum names them beside the known dollars."""
    found: dict[Hashable, list[OldCall]] = {}
    for one in calls:
        group = (one.session_id, one.run_id, one.model, one.effective, one.at // QUARTER_S, one.usd is None)
        found.setdefault(group, []).append(one)
    return [SummedCalls(_sum(group), tuple(group[:-1])) for group in found.values() if len(group) > 1]


def _sum(group: Sequence[OldCall]) -> OldCall:
    known = [one.usd for one in group if one.usd is not None]
    return group[-1]._replace(
        input=sum(one.input for one in group),
        output=sum(one.output for one in group),
        cache_read=sum(one.cache_read for one in group),
        cache_write=sum(one.cache_write for one in group),
        usd=sum(known, Decimal()) if known else None,
        calls=sum(one.calls for one in group),
        reserved_tokens=max(one.reserved_tokens for one in group),
    )


def grouped(rows: Iterable[CostRow], key: Callable[[CostRow], K]) -> dict[K, Tally]:
    """Add up the rows by a key. Every call is in one group, so the groups add up to the whole."""
    found: dict[K, Tally] = {}
    for row in rows:
        about = key(row)
        found[about] = found.get(about, NOTHING_USED) + row.used
    return found


def dearest(found: Mapping[K, Tally]) -> list[tuple[K, Tally]]:
    """Order groups by cost, then by tokens; those without any known price stand behind."""
    return sorted(found.items(), key=lambda one: (-(one[1].usd or 0), -one[1].tokens, str(one[0])))


def bars(
    rows: Sequence[CostRow], unit: BarUnit, since: float | None, now: float, offset_s: float
) -> list[tuple[float, Tally]]:
    """Return the start of each bar with its calls, also of empty ones; of a long period the last `BARS_MAX`."""
    used = grouped(rows, lambda row: row.bar)
    last = math.floor((now + offset_s) / unit.seconds)
    first = min(used, default=last) if since is None else math.floor((since + offset_s) / unit.seconds)
    first = max(min(first, last), last - BARS_MAX + 1)
    return [
        (number * unit.seconds - offset_s, used.get(number, NOTHING_USED))
        for number in range(first, last + 1)
    ]


# ---- burn rate and budgets -----------------------------------------------------------------------------------


def per_hour(used: Tally, window_s: float) -> tuple[Decimal | None, int]:
    """Return dollars and tokens an hour. Dollars None: no call of the window has a known price."""
    share = HOUR_S / window_s
    usd = None if used.usd is None else used.usd * Decimal(share)
    return usd, round(used.tokens * share)


class BudgetState(StrEnum):
    OK = "ok"
    WARNING = "warning"  #: 80 % or more is spent
    EXHAUSTED = "exhausted"


def budget_state(budget: Budget) -> BudgetState:
    percent = used_percent(budget)
    if percent >= 100:
        return BudgetState.EXHAUSTED
    return BudgetState.WARNING if percent >= WARN_PERCENT else BudgetState.OK


def exhausted_at(budget: Budget, used: Tally, window_s: float, now: float) -> float | None:
    """Return when the budget is exhausted if its calls continue as in the window. `used`: what those calls used.

    None: they use nothing, or the day of a daily budget ends before. What is exhausted already is so now."""
    spending = {Measure.TOKENS: Decimal(used.tokens), Measure.USD: used.usd or Decimal(0)}
    ends = []
    for measure, limit, spent, _ in measures(budget):
        if limit is None:
            continue
        if spent >= limit:
            return now
        if spending[measure] > 0:
            ends.append(now + window_s * float((limit - spent) / spending[measure]))
    end = min(ends, default=None)
    if end is not None and budget.kind is BudgetKind.DAY and end >= day_end(now):
        return None
    return end


def day_end(now: float) -> float:
    """Return when the day of a daily budget ends: it counts in UTC."""
    return (now // DAY_S + 1) * DAY_S
