"""Costs as a JSON object: one read with every grouping, for HTTP, the dashboard and `clutch cost`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clutch.api import views
from clutch.core import costs as rules
from clutch.core import forecast, ids
from clutch.core.budget import Budget, BudgetKind, Measure, measures
from clutch.core.costs import BURN_MINUTES, OFFSET_MINUTES_MAX, BarUnit, CostRow
from clutch.core.forecast import Heading, OpenTask, PastTask
from clutch.core.text import announce, prices
from clutch.core.views import NOTHING_USED, Tally
from clutch.errors import InvalidInput
from clutch.store.transaction import Tx
from clutch.transactions.read import costs
from clutch.transactions.read import forecast as costs_ahead
from clutch.transactions.read.costs import DELETED, BudgetOwner, Burn, By
from clutch.transactions.read.tasks import day_name

if TYPE_CHECKING:
    from clutch.api import report_objects as objects
    from clutch.api.forecast_objects import HeadingObject
    from clutch.core.policy import Policy

HOURS_MAX = 24 * 366 * 10
ROWS_MAX = 200  #: further trees are added up in one row


@dataclass(frozen=True, slots=True)
class CostQuery:
    """`hours`: the period up to now; None: all time. `utc_offset_minutes`: of the caller's time zone, east of UTC."""

    by: By = By.ROOT
    hours: float | None = None
    utc_offset_minutes: int = 0


def parsed(by: str, hours: float | None = None, utc_offset_minutes: int = 0) -> CostQuery:
    """Check what a command was given; the HTTP API checks its own query. Raises InvalidInput."""
    if by not in set(By):
        raise InvalidInput("by", f"must be one of: {', '.join(By)}")
    if hours is not None and not 0 < hours <= HOURS_MAX:
        raise InvalidInput("hours", f"must be more than 0 and at most {HOURS_MAX}")
    if abs(utc_offset_minutes) > OFFSET_MINUTES_MAX:
        raise InvalidInput("utcOffsetMinutes", f"must be within {OFFSET_MINUTES_MAX} minutes")
    return CostQuery(By(by), hours, utc_offset_minutes)


def spending(now: float, asked: CostQuery, policy: Policy | None = None) -> Tx[objects.Spending]:
    """`policy`: of the gateway; without one what happens at a limit is not known."""
    since = None if asked.hours is None else now - 3600 * asked.hours
    unit, offset_s = rules.unit_of(asked.hours), 60.0 * asked.utc_offset_minutes
    rows = yield from costs.ledger(now, since or 0.0, unit, offset_s, by_tree=asked.by is By.TREE)
    window_s = 60.0 * BURN_MINUTES
    burn = yield from costs.burn(now, window_s, since or 0.0)
    budgets = _known(burn, now, policy)
    outlook = yield from _outlook(now, budgets)
    bars = rules.bars(rows, unit, since, now, offset_s)
    total = sum((row.used for row in rows), NOTHING_USED)
    return {
        "by": asked.by.value,
        "usage": _usage(rows, asked.by, unit),
        "since": views.moment(since),
        "until": views.moment(now),
        "utcOffsetMinutes": asked.utc_offset_minutes,
        "total": views.tally(total),
        "timeline": {
            "unit": unit.value,
            "bars": [{"start": views.moment(start), **views.tally(used)} for start, used in bars],
        },
        "unpriced": _unpriced(rows),
        "burn": _rate(burn.used, window_s),
        "budgets": [_budget(one, window_s, now, policy, outlook) for one in budgets],
    }


def _usage(rows: Sequence[CostRow], by: By, unit: BarUnit) -> list[objects.NamedUse]:
    if by is By.TREE:
        return _trees(rows)
    found = costs.named(rows, by, unit)
    ordered = sorted(found.items()) if by is By.DAY else rules.dearest(found)
    return [
        _row(name, used, session=name if by is By.ROOT and name != DELETED else None)
        for name, used in ordered
    ]


def _trees(rows: Sequence[CostRow]) -> list[objects.NamedUse]:
    found = rules.dearest(rules.grouped(rows, lambda row: (row.top, row.label, row.root)))
    shown = [
        _row(
            root if top is None else label or ids.task_id(top),
            used,
            None if top is None else ids.task_id(top),
            None if root == DELETED else root,
        )
        for (top, label, root), used in found[:ROWS_MAX]
    ]
    rest = found[ROWS_MAX:]
    others = sum((used for _, used in rest), NOTHING_USED)
    return [*shown, *([_row(f"({len(rest)} others)", others)] if rest else ())]


def _row(name: str, used: Tally, task: str | None = None, session: str | None = None) -> objects.NamedUse:
    return {"name": name, "taskId": task, "sessionKey": session, **views.tally(used)}


def _unpriced(rows: Sequence[CostRow]) -> list[objects.UnpricedCalls]:
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        calls, tokens = found.get(row.model, (0, 0))
        found[row.model] = (calls + row.used.unpriced, tokens + row.unpriced_tokens)
    return [
        {"model": model, "calls": calls, "tokens": tokens}
        for model, (calls, tokens) in sorted(found.items())
        if calls
    ]


def _rate(used: Tally, window_s: float) -> objects.BurnRate:
    usd, tokens = rules.per_hour(used, window_s)
    return {
        "minutes": BURN_MINUTES,
        "calls": used.calls,
        "usdPerHour": None if usd is None else format(usd, ".6f"),
        "tokensPerHour": tokens,
        "unpricedCalls": used.unpriced,
    }


def _known(burn: Burn, now: float, policy: Policy | None) -> list[BudgetOwner]:
    """Return the budgets, the day's first. The first call of a day makes its row; its limit is known before."""
    has_row = any(one.budget.kind is BudgetKind.DAY for one in burn.budgets)
    if policy is None or has_row or not policy.budgets.has_day:
        return burn.budgets
    limits = policy.budgets
    today = Budget(BudgetKind.DAY, day_name(now), limits.day_tokens, limits.day_usd)
    return [BudgetOwner(today, None, None, None, burn.used), *burn.budgets]


class _Outlook(NamedTuple):
    """`open`: None = too many tasks are open."""

    past: list[PastTask]
    open: list[OpenTask] | None


def _outlook(now: float, budgets: Sequence[BudgetOwner]) -> Tx[_Outlook]:
    if not budgets:
        return _Outlook([], [])
    found = yield from costs_ahead.open_tasks(now)
    return _Outlook((yield from costs_ahead.past(now)) if found else [], found)


def _heading(budget: Budget, measure: Measure, outlook: _Outlook) -> HeadingObject | None:
    (limit, spent), *_ = [one[1:3] for one in measures(budget) if one[0] is measure]
    if limit is None or outlook.open == []:
        return None
    if outlook.open is None:
        found = Heading(costs_ahead.OPEN_MAX, None)
    else:
        is_day = budget.kind is BudgetKind.DAY  # which all tasks draw on, and none names
        drawing = [one for one in outlook.open if is_day or budget.name in one.purses]
        if not drawing:
            return None
        found = forecast.heading(spent, drawing, outlook.past, measure)
    return {
        "tasks": found.tasks,
        "median": None if found.at is None else forecast.plain(found.at.median),
        "p90": None if found.at is None else forecast.plain(found.at.p90),
        "text": prices.heading(found, measure, limit),
    }


def _budget(
    owner: BudgetOwner, window_s: float, now: float, policy: Policy | None, outlook: _Outlook
) -> objects.BudgetReport:
    budget = owner.budget
    shown: list[objects.BudgetMeasure] = [
        {
            "measure": measure.value,
            "limit": format(limit, "f"),
            "spent": format(spent, "f"),
            "reserved": format(reserved, "f"),
            "percent": 100 if limit <= 0 else int(spent * 100 / limit),
            "heading": _heading(budget, measure, outlook),
        }
        for measure, limit, spent, reserved in measures(budget)
        if limit is not None
    ]
    return {
        "name": budget.name,
        "kind": budget.kind.value,
        "taskId": None if owner.task_id is None else ids.task_id(owner.task_id),
        "label": owner.label,
        "sessionKey": owner.session_key,
        "measures": shown,
        "state": rules.budget_state(budget).value,
        "unpricedCalls": budget.unpriced_calls,
        "exhaustedAt": views.moment(rules.exhausted_at(budget, owner.used, window_s, now)),
        "atLimit": None
        if policy is None
        else announce.at_budget_limit(policy.budgets.on_budget, is_headless=policy.is_headless),
    }
