"""How a forecast reads: the price of tasks before they are spawned, and where a budget is heading."""

from __future__ import annotations

from decimal import Decimal

from clutch.core.budget import Measure
from clutch.core.forecast import SAMPLES_MIN, Basis, BudgetLeft, CostRange, Forecast, Heading, rounded
from clutch.core.text.format import counted, money, tokens

_BASES = {
    Basis.AGENT_AND_MODEL: "same agent and model",
    Basis.AGENT: "same agent",
    Basis.MODEL: "same model",
    Basis.ALL: "any agent and model",
}


def price(found: Forecast) -> str:
    """One sentence: `Tasks like this (same agent, last 12): median 8.1k tokens, $0.04; p90 15k tokens, $0.07.`"""
    what = "Tasks like this" if found.count == 1 else f"{found.count} tasks like this"
    if found.basis is None:
        return f"{what}: cost unknown, fewer than {SAMPLES_MIN} tasks have finished."
    about = f"{what} ({_BASES[found.basis]}, last {found.samples})"
    if found.tokens is None and found.usd is None:
        return f"{about}: cost unknown."
    return f"{about}: median {_cost(found, 'median')}; p90 {_cost(found, 'p90')}."


def left(found: BudgetLeft) -> str:
    """Empty where no budget limits anything."""
    parts = (
        None if found.tokens is None else f"{tokens(found.tokens)} tokens",
        None if found.usd is None else money(found.usd),
    )
    text = ", ".join(filter(None, parts))
    return text and f"Left of the budget: {text}."


def prompt_line(found: Forecast, rest: BudgetLeft) -> str:
    """For a system prompt. Empty where nothing is known and nothing is limited.

    The numbers are round, so that the prompt stays the same from turn to turn and providers can cache it."""
    around = Forecast(
        found.basis,
        int(rounded(found.samples, is_down=True)),
        found.count,
        _rounded(found.tokens),
        _rounded(found.usd),
    )
    remainder = BudgetLeft(
        None if rest.tokens is None else int(rounded(rest.tokens, is_down=True)),
        None if rest.usd is None else rounded(rest.usd, is_down=True),
    )
    is_known = found.tokens is not None or found.usd is not None
    spoken = price(around).replace("Tasks like this", "Subagents", 1) if is_known or left(remainder) else ""
    return " ".join(filter(None, (spoken, left(remainder))))


def heading(found: Heading, measure: Measure, limit: Decimal) -> str:
    """One sentence about a budget during a run."""
    when = f"when {counted(found.tasks, 'open task')} {'has' if found.tasks == 1 else 'have'} ended"
    if found.at is None:
        return f"Heading: unknown {when}."
    median, p90, whole = (_of(measure, one) for one in (*found.at, limit))
    return f"Heading for {median} (p90 {p90}) of {whole} {when}."


def _cost(found: Forecast, which: str) -> str:
    return ", ".join(
        (
            "tokens unknown"
            if found.tokens is None
            else f"{tokens(int(getattr(found.tokens, which)))} tokens",
            "price unknown" if found.usd is None else money(getattr(found.usd, which)),
        )
    )


def _of(measure: Measure, value: Decimal) -> str:
    return money(value) if measure is Measure.USD else f"{tokens(int(value))} tokens"


def _rounded(found: CostRange | None) -> CostRange | None:
    return None if found is None else CostRange(rounded(found.median), rounded(found.p90))
