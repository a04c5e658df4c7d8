"""Money and tokens: reserve before a model call, settle after it.

A call draws on a chain of budgets at once: its task's, those of the tasks above it, the root's, the day's.
A budget covers a whole subtree, so children share what their parent has left. Reserving takes from all
budgets of the chain or from none.

    committed = spent + reserved          what is gone or may be gone
    a new call is made only while committed < limit, in every budget and for tokens as for dollars

So all calls in flight together can exceed a limit by less than the last of them reserved, however many
ask at the same time. A price that is not known is None and never 0: a budget with a dollar limit refuses
such a call, because it could not tell when the limit is reached.

The caller keeps the budgets in rows and runs these functions inside the transaction that writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import IntEnum, StrEnum

WARN_PERCENT = 80
ZERO = Decimal(0)


class BudgetKind(StrEnum):
    TASK = "task"
    ROOT = "root"
    DAY = "day"
    SCHEDULE = "schedule"  #: all runs of a schedule together


class CallState(IntEnum):
    """Where a model call of the ledger stands, as its row stores it."""

    OPEN = 0  #: sent, or about to be; only the newest call of a session can be open
    ANSWERED = 1
    UNKNOWN = 2  #: cut on the way, charged as reserved
    FREE = 3  #: the provider refused it before it worked


class Measure(StrEnum):
    TOKENS = "tokens"
    USD = "usd"


@dataclass(frozen=True, slots=True)
class Amount:
    tokens: int
    usd: Decimal | None  #: None = the price is not known

    def __post_init__(self) -> None:
        if self.tokens < 0 or (self.usd is not None and self.usd < 0):
            raise ValueError(f"an amount is never negative: {self}")


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget and what is gone of it. A limit of None is no limit."""

    kind: BudgetKind
    name: str  #: whose: a task id, a root's key, a date
    tokens_max: int | None = None
    usd_max: Decimal | None = None
    tokens_spent: int = 0
    tokens_reserved: int = 0
    usd_spent: Decimal = ZERO
    usd_reserved: Decimal = ZERO
    unpriced_calls: int = 0  #: finished without a price; while there are any, `usd_spent` is a lower bound
    warned: bool = False  #: 80 % was said; it is said once


@dataclass(frozen=True, slots=True)
class Reservation:
    purses: tuple[Budget, ...]
    estimate: Amount  #: keep it with the call; settling gives it back


@dataclass(frozen=True, slots=True)
class BudgetExhausted:
    """The first budget of the chain that is exhausted, and its numbers."""

    kind: BudgetKind
    name: str
    measure: Measure
    limit: Decimal
    spent: Decimal
    reserved: Decimal
    is_unpriced: bool = False  #: refused because the price is unknown, whatever is left

    @property
    def may_free_up(self) -> bool:
        """Only calls in flight block this one; their end may free enough again."""
        return not self.is_unpriced and self.spent < self.limit


@dataclass(frozen=True, slots=True)
class Settlement:
    purses: tuple[Budget, ...]
    warnings: tuple[Budget, ...]  #: those that reached 80 % with this call


def raised(purse: Budget, tokens: int | None = None, usd: Decimal | None = None) -> Budget:
    """Return the budget after a user raised it, from where it is now: the last call may have gone far beyond the old
    limit. Without a figure: as much again."""
    if tokens is None and usd is None:
        tokens, usd = purse.tokens_max, purse.usd_max
    return replace(
        purse,
        tokens_max=None
        if purse.tokens_max is None
        else max(purse.tokens_max, purse.tokens_spent) + (tokens or 0),
        usd_max=None if purse.usd_max is None else max(purse.usd_max, purse.usd_spent) + (usd or 0),
    )


def reserve(purses: Sequence[Budget], estimate: Amount) -> Reservation | BudgetExhausted:
    for purse in purses:
        refusal = _refusal(purse, estimate)
        if refusal is not None:
            return refusal
    return Reservation(tuple(_with_reserved(purse, estimate, +1) for purse in purses), estimate)


def is_last(held: Reservation) -> bool:
    """Return whether this call uses the rest of a budget and so must answer with what it has."""
    estimates = {Measure.TOKENS: Decimal(held.estimate.tokens), Measure.USD: held.estimate.usd or ZERO}
    return any(
        limit is not None and spent * 100 >= limit * WARN_PERCENT and spent + estimates[measure] >= limit
        for purse in held.purses
        for measure, limit, spent, _ in measures(purse)
    )


def settle(purses: Sequence[Budget], estimate: Amount, actual: Amount | None) -> Settlement:
    """`actual` None: the cost of the call is unknown (a crash, a cut stream); the estimate is charged."""
    cost = _priced(estimate if actual is None else actual, estimate, is_known=actual is not None)
    charged = [_charged(_with_reserved(purse, estimate, -1), cost) for purse in purses]
    warnings = tuple(purse for purse in charged if not purse.warned and used_percent(purse) >= WARN_PERCENT)
    return Settlement(tuple(replace(p, warned=True) if p in warnings else p for p in charged), warnings)


def used_percent(purse: Budget) -> int:
    """Of what is spent, by the measure that is further gone; 0 without a limit."""
    percents = [
        100 if limit <= 0 else int(spent * 100 / limit)
        for _, limit, spent, _ in measures(purse)
        if limit is not None
    ]
    return max(percents, default=0)


def remaining(purses: Iterable[Budget]) -> tuple[int | None, Decimal | None]:
    """Tokens and dollars that are neither spent nor reserved in the chain; None = no limit."""
    purses = tuple(purses)
    token_rests = [
        p.tokens_max - p.tokens_spent - p.tokens_reserved for p in purses if p.tokens_max is not None
    ]
    usd_rests = [p.usd_max - p.usd_spent - p.usd_reserved for p in purses if p.usd_max is not None]
    tokens = max(0, min(token_rests)) if token_rests else None
    return tokens, max(ZERO, min(usd_rests)) if usd_rests else None


def child_limits(
    tokens: int | None, usd: Decimal | None, purses: Iterable[Budget]
) -> tuple[int | None, Decimal | None]:
    """What a child that asks for these limits gets: never more than its parent has left."""
    tokens_left, usd_left = remaining(purses)
    return (
        tokens_left if tokens is None else min(tokens, tokens if tokens_left is None else tokens_left),
        usd_left if usd is None else min(usd, usd if usd_left is None else usd_left),
    )


def measures(purse: Budget) -> Iterable[tuple[Measure, Decimal | None, Decimal, Decimal]]:
    """Yield for tokens and dollars: the limit, what is spent, what is reserved."""
    limit = None if purse.tokens_max is None else Decimal(purse.tokens_max)
    yield Measure.TOKENS, limit, Decimal(purse.tokens_spent), Decimal(purse.tokens_reserved)
    yield Measure.USD, purse.usd_max, purse.usd_spent, purse.usd_reserved


def _refusal(purse: Budget, estimate: Amount) -> BudgetExhausted | None:
    for measure, limit, spent, reserved in measures(purse):
        if limit is None:
            continue
        is_unpriced = measure is Measure.USD and estimate.usd is None
        if is_unpriced or spent + reserved >= limit:
            return BudgetExhausted(purse.kind, purse.name, measure, limit, spent, reserved, is_unpriced)
    return None


def _with_reserved(purse: Budget, estimate: Amount, sign: int) -> Budget:
    return replace(
        purse,
        tokens_reserved=purse.tokens_reserved + sign * estimate.tokens,
        usd_reserved=purse.usd_reserved + sign * (estimate.usd or ZERO),
    )


def _priced(cost: Amount, estimate: Amount, *, is_known: bool) -> Amount:
    """A call without a reported price is not free; where nothing was reserved, its cost is unknown."""
    if is_known and cost.usd is not None:
        return cost
    return replace(cost, usd=estimate.usd if estimate.tokens else None)


def _charged(purse: Budget, cost: Amount) -> Budget:
    return replace(
        purse,
        tokens_spent=purse.tokens_spent + cost.tokens,
        usd_spent=purse.usd_spent + (cost.usd or ZERO),
        unpriced_calls=purse.unpriced_calls + (cost.usd is None),
    )
