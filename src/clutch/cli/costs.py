"""`clutch cost`: what model calls have used, added up, and what is known of their price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from clutch.cli import screen
from clutch.cli.asking import answering, print_object, say
from clutch.cli.reading import source
from clutch.core.shown import money, tokens, visible

COUNTED = ("calls", "input", "output", "cacheRead", "cacheWrite")
HEADINGS = ("CALLS", "INPUT", "OUTPUT", "CACHED", "COST")
NAME_CELLS = 38  #: what 80 columns leave beside the figures


def cost(state: Path | None, by: str, *, as_json: bool) -> None:
    with answering("cost", as_json=as_json), source(state) as here:
        said = here.usage(by)
        total = added_up(said["usage"])
        if as_json:
            print_object("cost", {**said, "total": total})
            return
        if said["usage"]:
            print(screen.coloured(_line(by.upper(), HEADINGS), "1"))
        for one in said["usage"]:
            print(_line(visible(one["name"], NAME_CELLS), _figures(one)))
        say(_line("in all", _figures(total)) if said["usage"] else "no model was asked yet")


def added_up(usage: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One that nobody knows the price of makes the sum unknown: null, never too little."""
    prices = [one["usd"] for one in usage]
    usd = None if None in prices else str(sum(map(Decimal, prices), Decimal(0)))
    return {**{name: sum(one[name] for one in usage) for name in COUNTED}, "usd": usd}


def _figures(one: Mapping[str, Any]) -> tuple[str, ...]:
    usd = "n/a" if one["usd"] is None else money(Decimal(one["usd"]))
    is_known = one["input"] or not one["calls"]  # of calls that nobody answered nobody knows what they used
    counts = [tokens(one[name]) if is_known else "n/a" for name in ("input", "output", "cacheRead")]
    return (str(one["calls"]), *counts, usd)


def _line(name: str, figures: Sequence[str]) -> str:
    return screen.fitted(name, NAME_CELLS) + "".join(f"{figure:>8}" for figure in figures)
