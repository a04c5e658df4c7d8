"""Planted bugs: does the simulation find what it is there to find?

A mutant replaces named functions of the product for the length of one world. It must be found by an
invariant, of ours or of the tables; that the patched code raises is no find. A mutant whose target does not
exist any more, or takes other arguments, is an error, so that no refactoring can disarm it silently.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from clutch.core import lifecycle
from clutch.testing.invariants.probes import all_probes
from clutch.testing.simulation import schedules as schedule_worlds
from clutch.testing.simulation.settings import SETTINGS

#: What only says that something was raised finds no mutant.
RAISED = frozenset({"constraint", "no-crash"})


class TargetGone(LookupError):
    """A mutant names a function that the product does not have."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`plant` is given the original functions in the order of `targets` and returns their replacements."""

    name: str
    targets: tuple[str, ...]
    expected: frozenset[str]  #: invariants that may find it
    worlds: tuple[
        str, ...
    ]  #: none: no world has this part of the product; the probes named in `expected` ask
    plant: Callable[..., tuple[Any, ...]]
    about: str


#: where most things go wrong, and where processes die most
STORMS = ("storm", "busy", "crash")
CRASHES = ("crash", "storm")


def mutant_of(
    name: str, targets: str | tuple[str, ...], expected: str, worlds: tuple[str, ...], plant: Any, about: str
) -> Mutant:
    """One in the transactions: targets are named below `clutch.transactions`, invariants in one text."""
    named = (targets,) if isinstance(targets, str) else targets
    places = tuple(f"clutch.transactions.{one}" for one in named)
    return Mutant(name, places, frozenset(expected.split()), worlds, plant, about)


def locate(target: str) -> tuple[Any, str, Any]:
    """The object that holds the target, the target's name in it, and the target."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            holder: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:-1]:
            holder = getattr(holder, name, None)
        if hasattr(holder, parts[-1]):
            return holder, parts[-1], getattr(holder, parts[-1])
        break
    raise TargetGone(f"there is no {target}; the mutant must follow the code")


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The bug is in the product inside this block, freshly made, and gone after it."""
    places = [locate(target) for target in mutant.targets]
    replacements = mutant.plant(*(original for _, _, original in places))
    try:
        for (holder, name, original), new in zip(places, replacements, strict=True):
            _check_fit(original, new)
            _put(holder, name, original, new)
        yield
    finally:
        for (holder, name, original), new in zip(places, replacements, strict=True):
            _put(holder, name, new, original)


def _put(holder: Any, name: str, old: Any, new: Any) -> None:
    """Replace a function in its module and in the table of handlers, which holds the function itself."""
    setattr(holder, name, new)
    handlers: dict[Any, Any] = lifecycle.TRANSITIONS  # type: ignore[assignment]  # only a planted bug writes it
    for pair in [pair for pair, handler in handlers.items() if handler is old]:
        handlers[pair] = new


def _check_fit(original: Any, new: Any) -> None:
    """A replacement that cannot even be called breaks everything and is found by no invariant."""
    asked = inspect.signature(original).parameters.values()
    by_place = [one for one in asked if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    by_name = {one.name: one for one in asked if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(new, follow_wrapped=False).bind(*by_place, **by_name)
    except TypeError as error:
        raise TargetGone(f"{original.__qualname__} takes other arguments now: {error}") from error


@cache
def mutants() -> Mapping[str, Mutant]:
    """All of them. Late import: the planted bugs know the whole product."""
    from tests.trust.mutants import (
        in_budgets,
        in_channels,
        in_checks,
        in_control,
        in_core,
        in_definitions,
        in_delivery,
        in_engine,
        in_fair_share,
        in_field_reports,
        in_letters,
        in_outbox,
        in_places,
        in_protected_files,
        in_retention,
        in_schedules,
        in_transactions,
    )

    files = (
        in_core, in_transactions, in_letters, in_delivery, in_engine, in_budgets, in_retention, in_field_reports,
        in_outbox, in_control, in_channels, in_places, in_protected_files, in_fair_share, in_schedules,
        in_definitions, in_checks,
    )  # fmt: skip
    every: list[Mutant] = [mutant for file in files for mutant in file.MUTANTS]
    named = {mutant.name: mutant for mutant in every}
    assert len(named) == len(every), "two mutants have one name"
    assert not any(mutant.expected & RAISED for mutant in every), "an exception is no find"
    known = {*SETTINGS, schedule_worlds.NAME}
    assert all(world in known for mutant in every for world in mutant.worlds)
    assert all(mutant.worlds or mutant.expected <= set(all_probes()) for mutant in every)
    return MappingProxyType(named)
