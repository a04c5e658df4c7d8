"""What finished and open tasks have cost, and what is left of a budget: the figures of a forecast.

Bounded, however long the ledger is: the newest finished tasks are found through an index, and so many tasks below
them and open tasks are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from clutch.core import budget
from clutch.core.budget import Budget, BudgetKind, CallState
from clutch.core.forecast import (
    UNLIMITED,
    WINDOW_TASKS,
    BudgetLeft,
    Forecast,
    KnownCost,
    OpenTask,
    PastTask,
    of_tasks,
)
from clutch.store.transaction import Tx
from clutch.transactions.conditions import IS_UNTOLD
from clutch.transactions.read.tasks import SPENT, budgets_named, day_name, tally

if TYPE_CHECKING:
    from clutch.core.policy import Budgets

BELOW_MAX = 2000  #: finished tasks with all that is below them
OPEN_MAX = 1000

_FINISHED = (
    "SELECT t.id, s.agent_id, s.model FROM tasks t JOIN sessions s ON s.id = t.id"
    " WHERE t.outcome IS NOT NULL AND t.started_at IS NOT NULL ORDER BY t.ended_at DESC, t.id DESC LIMIT ?"
)
_BELOW = (
    "WITH RECURSIVE below(top, id) AS (SELECT id, id FROM tasks WHERE id {any}"
    " UNION SELECT b.top, t.id FROM tasks t JOIN below b ON t.requester_id = b.id)"
    " SELECT b.top, b.id, CASE WHEN t.outcome IS NULL THEN 1 ELSE 0 END"
    " FROM (SELECT top, id FROM below LIMIT ?) b JOIN tasks t ON t.id = b.id"
)
_PARENTS = "SELECT DISTINCT requester_id FROM tasks WHERE requester_id {any}"
#: A call that is cut or still open has reported neither tokens nor a price, and one provider or another never does.
_COSTS = (
    f"SELECT u.session_id, {SPENT},"  # noqa: S608 (constant words)
    f" SUM(CASE WHEN u.input + u.output = 0 AND u.state <> {CallState.FREE:d} THEN u.calls ELSE 0 END)"
    " FROM usage u WHERE u.session_id {any} GROUP BY u.session_id"
)
_OPEN = (
    "SELECT t.id, s.agent_id, s.model, s.purses FROM tasks t JOIN sessions s ON s.id = t.id"  # noqa: S608
    f" WHERE {' AND '.join(f't.{one}' for one in IS_UNTOLD.split(' AND '))} AND t.outcome IS NULL LIMIT ?"
)


def past(now: float) -> Tx[list[PastTask]]:
    """The newest finished tasks with what they cost, the newest first. One that never started cost nothing, and says
    nothing about those that will."""
    del now
    rows = yield _FINISHED, (WINDOW_TASKS,)
    ids = [row[0] for row in rows]
    below = yield _BELOW, (ids, BELOW_MAX + 1)
    costs = yield from _costs({row[1] for row in below} | set(ids))
    parts = defaultdict(list)
    for top, task_id, is_open in below:
        parts[top].append(_LOWER if is_open else costs.get(task_id, _NOTHING))
    # What is missing beyond the bound can be below any task that has others below it.
    cut = frozenset(row[0] for row in (yield _PARENTS, (ids,))) if len(below) > BELOW_MAX else frozenset()
    return [
        PastTask(
            agent_id,
            model,
            costs.get(task_id, _NOTHING),
            sum(parts[task_id], _LOWER if task_id in cut else _NOTHING),
        )
        for task_id, agent_id, model in rows
    ]


def open_tasks(now: float) -> Tx[list[OpenTask] | None]:
    """What runs and what is queued, with what each has spent. None: there are too many to read."""
    del now
    rows = yield _OPEN, (OPEN_MAX + 1,)
    if len(rows) > OPEN_MAX:
        return None
    costs = yield from _costs({row[0] for row in rows})
    return [
        OpenTask(agent_id, model, costs.get(task_id, _NOTHING), tuple(purses.split()))
        for task_id, agent_id, model, purses in rows
    ]


def left(now: float, budgets: Budgets, purses: str) -> Tx[BudgetLeft]:
    """What a session that draws on these budgets has left. The first call of a day makes the row of its budget."""
    day = day_name(now)
    names = [*purses.split(), day] if budgets.has_day else purses.split()
    if not names:
        return UNLIMITED
    found = yield from budgets_named(names)
    if budgets.has_day and all(one.name != day for one in found):
        found.append(Budget(BudgetKind.DAY, day, budgets.day_tokens, budgets.day_usd))
    return BudgetLeft(*budget.remaining(found))


def of_spawn(
    now: float, agent_id: str, model: str | None, count: int, budgets: tuple[Budgets, str]
) -> Tx[tuple[Forecast, BudgetLeft]]:
    """The price of new tasks, and what is left to pay it. `budgets`: the limits, and the names of those drawn on."""
    found = yield from past(now)
    return of_tasks(found, agent_id, model, count), (yield from left(now, *budgets))


def _costs(ids: Iterable[int]) -> Tx[dict[int, KnownCost]]:
    found: dict[int, KnownCost] = {}
    for session_id, *spent, uncounted in (yield _COSTS, (sorted(ids),)):
        found[session_id] = _known(spent, int(uncounted))
    return found


def _known(spent: Sequence[object], uncounted: int) -> KnownCost:
    used = tally(spent)
    return KnownCost(used.tokens, used.usd or Decimal(0), uncounted, used.unpriced)


_NOTHING = KnownCost()
_LOWER = KnownCost(uncounted=1, unpriced=1)  #: more than nothing, and not known
