"""What model calls have used, added up by root, tree, agent, model or time. Reads; the ledger outlives transcripts.

One statement reads the ledger of a period in groups that are fine enough for every question of one answer, so that
its totals, bars and tables belong to one moment and agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from clutch.core.budget import Budget, BudgetKind, CallState
from clutch.core.costs import DAY_S, BarUnit, CostRow, grouped
from clutch.core.views import NOTHING_USED, Tally
from clutch.store.transaction import Tx
from clutch.transactions.conditions import IS_UNTOLD
from clutch.transactions.read.tasks import BUDGET_COLUMNS, IS_ENDED_CALL, SPENT, budget_of, day_name, tally

DELETED = "(deleted)"


class By(StrEnum):
    ROOT = "root"
    AGENT = "agent"
    MODEL = "model"
    DAY = "day"  #: in the time zone of the caller
    TREE = "tree"  #: a task of a main session with everything below it


#: A call without an answer is counted with the model that answers to this name, in the same period: to look for it in
#: the whole ledger costs as much as the whole ledger.
_KNOWN = (
    " LEFT JOIN (SELECT model, MAX(effective) AS effective FROM usage WHERE at >= ? GROUP BY model) k"
    " ON k.model = u.model"
)
#: The task at the top of each tree. One whose parent is no task is a top; imported tasks that are each other's parents
#: have none, and UNION ends at them.
_TOPS = (
    "WITH RECURSIVE up(id, above) AS (SELECT t.id, t.id FROM tasks t"
    " WHERE t.id IN (SELECT v.session_id FROM usage v WHERE v.at >= ?)"
    " UNION SELECT up.id, t.requester_id FROM up JOIN tasks t ON t.id = up.above),"
    " tops AS (SELECT up.id, t.id AS top, t.label FROM up JOIN tasks t ON t.id = up.above"
    " WHERE NOT EXISTS (SELECT 1 FROM tasks p WHERE p.id = t.requester_id)) "
)
#: A deleted session belongs to no task any more, but what it used is not forgotten.
_LEDGER = (
    "SELECT CAST(FLOOR((u.at + ?) / ?) AS {{big}}) AS bar, COALESCE(u.effective, k.effective, u.model) AS named,"  # noqa: S608
    f" COALESCE(s.agent_id, '{DELETED}') AS agent, COALESCE(r.key, '{DELETED}') AS root_key, {{tree}},"
    f" {SPENT.replace('{', '{{').replace('}', '}}')},"
    f" SUM(CASE WHEN u.usd IS NULL AND u.state <> {CallState.FREE:d} THEN u.input + u.output ELSE 0 END)"
    " FROM usage u LEFT JOIN sessions s ON s.id = u.session_id LEFT JOIN sessions r ON r.id = s.root_id"
    f"{_KNOWN}{{join}} WHERE u.at >= ? AND {IS_ENDED_CALL} GROUP BY bar, named, agent, root_key{{group}}"
)
_PLAIN_LEDGER = _LEDGER.format(tree="NULL, NULL", join="", group="")
_TREE_LEDGER = _TOPS + _LEDGER.format(
    tree="o.top, o.label", join=" LEFT JOIN tops o ON o.id = u.session_id", group=", o.top, o.label"
)


def ledger(
    now: float, since: float, unit: BarUnit, offset_s: float = 0.0, *, by_tree: bool = False
) -> Tx[list[CostRow]]:
    """Ended calls since a moment. `offset_s`: of the time zone whose days and hours are counted, east of UTC.

    `by_tree`: also in which tree; only then the tasks above each call are looked for."""
    del now
    grid = (float(offset_s), float(unit.seconds), since, since)
    rows = yield (_TREE_LEDGER, (since, *grid)) if by_tree else (_PLAIN_LEDGER, grid)
    return [
        CostRow(bar, model, agent, root, top, label, tally(spent), int(unpriced))
        for bar, model, agent, root, top, label, *spent, unpriced in rows
    ]


def spending(now: float, by: By) -> Tx[list[tuple[str, Tally]]]:
    """All that was ever used, by name; days in UTC."""
    rows = yield from ledger(now, 0.0, BarUnit.DAY)
    return sorted(named(rows, by, BarUnit.DAY).items())


def named(rows: Iterable[CostRow], by: By, unit: BarUnit) -> dict[str, Tally]:
    """Add up the rows under the names that users know. Trees have no unique name and are not among them."""
    names = {
        By.ROOT: lambda row: row.root,
        By.AGENT: lambda row: row.agent,
        By.MODEL: lambda row: row.model,
        By.DAY: lambda row: (
            datetime.fromtimestamp(row.bar * unit.seconds // DAY_S * DAY_S, UTC).date().isoformat()
        ),
    }
    return grouped(rows, names[by])


# ---- budgets -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BudgetOwner:
    """A budget and whose it is. `used`: what its calls used since the beginning of the window of the burn rate."""

    budget: Budget
    task_id: int | None
    label: str | None
    session_key: str | None
    used: Tally = NOTHING_USED


@dataclass(frozen=True, slots=True)
class Burn:
    """`used`: all calls of the window."""

    used: Tally
    budgets: list[BudgetOwner]


def burn(now: float, window_s: float, since: float = 0.0) -> Tx[Burn]:
    """Read the budgets that calls can draw on now: the day's, of tasks that are not over, of main sessions that
    worked since then. With each what its own calls used in the window."""
    spent = yield (
        f"SELECT COALESCE(s.purses, '') AS purses, {SPENT} FROM usage u LEFT JOIN sessions s ON s.id = u.session_id"  # noqa: S608
        f" WHERE u.at >= ? AND {IS_ENDED_CALL} GROUP BY COALESCE(s.purses, '')",
        (now - window_s,),
    )
    used = [(row[0].split(), tally(row[1:])) for row in spent]
    found = [BudgetOwner(budget_of(row), None, None, None) for row in (yield _BUDGETS[0], (day_name(now),))]
    for row in (yield _BUDGETS[1], (since,)):
        found.append(BudgetOwner(budget_of(row[:-1]), None, None, row[-1]))
    for row in (yield _BUDGETS[2], ()):
        found.append(BudgetOwner(budget_of(row[:-3]), *row[-3:]))
    total = sum((one for _, one in used), NOTHING_USED)
    return Burn(total, [_with_use(one, used, total) for one in found])


def _with_use(owner: BudgetOwner, used: Iterable[tuple[list[str], Tally]], total: Tally) -> BudgetOwner:
    """A session names the budgets it draws on, except the day's, which all calls draw on."""
    if owner.budget.kind is BudgetKind.DAY:
        return replace(owner, used=total)
    own = (one for names, one in used if owner.budget.name in names)
    return replace(owner, used=sum(own, NOTHING_USED))


_PURSE = ", ".join(f"b.{column.strip()}" for column in BUDGET_COLUMNS.split(","))
_BUDGETS = (
    f"SELECT {_PURSE} FROM purses b WHERE b.name = ?",  # noqa: S608 (constant columns)
    f"SELECT {_PURSE}, s.key FROM sessions s JOIN purses b ON b.name = 'root:' || s.id WHERE s.parent_id IS NULL"  # noqa: S608
    " AND s.progress_at >= ? ORDER BY s.progress_at DESC, s.id LIMIT 50",
    f"SELECT {_PURSE}, t.id, t.label, s.key FROM tasks t JOIN purses b ON b.name = 'task:' || t.id"  # noqa: S608
    f" LEFT JOIN sessions s ON s.id = t.id WHERE {' AND '.join(f't.{one}' for one in IS_UNTOLD.split(' AND '))}"
    " ORDER BY t.created_at DESC, t.id LIMIT 50",
)
