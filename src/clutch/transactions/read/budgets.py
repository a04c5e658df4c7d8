"""The rows of budgets as values. `usage` decides which call draws on which.

Apart from `usage`, because `clutch ps` reads a store with these and loads no policy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from clutch.core.budget import Budget, BudgetKind
from clutch.store.transaction import Row, Tx

COLUMNS = (
    "name, kind, tokens_max, usd_max, tokens_spent, tokens_reserved, usd_spent, usd_reserved, unpriced_calls,"
    " warned"
)


def look(names: Sequence[str]) -> Tx[list[Budget]]:
    """Only to show them: nothing is locked, and what is spent may be more by now."""
    sql = f"SELECT {COLUMNS} FROM purses WHERE name {{any}} ORDER BY name"  # noqa: S608 (constant columns)
    return [budget_of(row) for row in (yield sql, (list(names),))]


def day_name(at: float) -> str:
    """Return the name of the budget of the day, which counts in UTC."""
    return f"{BudgetKind.DAY}:{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def budget_of(row: Row) -> Budget:
    (
        name,
        kind,
        tokens_max,
        usd_max,
        tokens_spent,
        tokens_reserved,
        usd_spent,
        usd_reserved,
        unpriced,
        warned,
    ) = row
    return Budget(
        BudgetKind(kind), name, tokens_max, money(usd_max), tokens_spent, tokens_reserved, Decimal(usd_spent),
        Decimal(usd_reserved), unpriced, bool(warned),
    )  # fmt: skip


def money(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
