"""Planted bugs: does the simulation find what it is there to find?

A mutant replaces named functions of the product for the length of one world. It must be found by an
invariant, of ours or of the tables; that the patched code raises is no find. A mutant whose target does not
exist any more, or takes other arguments, is an error, so that no refactoring can disarm it silently.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from clutch.testing.promises.probes import all_probes
from clutch.testing.simulation.settings import SETTINGS
from clutch.testing.simulation.world import simulate

#: What only says that something was raised finds no mutant.
RAISED = frozenset({"constraint", "no-crash"})


PROBED = "probe"  #: in the place of a world


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


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    target: str
    found_by: str
    world: str
    seed: int
    seeds: int  #: worlds played
    seconds: float


@dataclass(frozen=True, slots=True)
class NotFound:
    name: str
    target: str
    seeds: int
    seconds: float
    why: str


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
            setattr(holder, name, new)
        yield
    finally:
        for holder, name, original in places:
            setattr(holder, name, original)


def _check_fit(original: Any, new: Any) -> None:
    """A replacement that cannot even be called breaks everything and is found by nobody."""
    asked = inspect.signature(original).parameters.values()
    by_place = [one for one in asked if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    by_name = {one.name: one for one in asked if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(new, follow_wrapped=False).bind(*by_place, **by_name)
    except TypeError as error:
        raise TargetGone(f"{original.__qualname__} takes other arguments now: {error}") from error


def hunt(mutant: Mutant, seconds: float, first_seed: int = 1) -> Found | NotFound:
    """In worlds, or, without any, with the probes of its promises."""
    return _hunt_in_worlds(mutant, seconds, first_seed) if mutant.worlds else _hunt_with_probes(mutant)


def _hunt_with_probes(mutant: Mutant) -> Found | NotFound:
    """A probe that also complains without the planted bug, or that raises, is no find."""
    started, others = time.process_time(), list[str]()
    target = mutant.targets[0]
    for probe in (all_probes()[name] for name in sorted(mutant.expected)):
        with planted(mutant):
            wrong = probe.wrong()
        known = (1, round(time.process_time() - started, 2))
        if wrong is not None and (sound := probe.wrong()) is not None:
            return NotFound(mutant.name, target, *known, f"without it, too: {sound}")
        if wrong is not None:
            return Found(mutant.name, target, probe.invariant, PROBED, 0, *known)
        others.append(probe.invariant)
    return NotFound(
        mutant.name, target, len(others), round(time.process_time() - started, 2), "no invariant was violated"
    )


def _hunt_in_worlds(mutant: Mutant, seconds: float, first_seed: int) -> Found | NotFound:
    """Play worlds until an expected invariant accuses, or the time is over: our own, not that of a busy machine.

    A world in which the patched code broke is no find, nor is one where any of these worlds fails by itself."""
    started = time.process_time()
    played, others = list[tuple[int, str]](), set[str]()
    target = mutant.targets[0]
    while time.process_time() - started < seconds:
        turn, place = divmod(len(played), len(mutant.worlds))
        seed, world = first_seed + turn, mutant.worlds[place]
        with planted(mutant):
            report = simulate(seed, world, is_mutant=True)
        played.append((seed, world))
        named = [violation.invariant for violation in report.violations]
        hits = [name for name in named if name in mutant.expected]
        if hits and not report.raised:  # else who knows what it would have come to
            known = (len(played), round(time.process_time() - started, 2))
            if unsound := [one for one in played if not _is_sound(*one)]:
                return NotFound(mutant.name, target, *known, f"without it, too: {unsound}")
            return Found(mutant.name, target, hits[0], world, seed, *known)
        others.update(named)
        others.update(error[:80] for error in report.raised[:1])
    why = f"only {sorted(others)[:5]}" if others else "no invariant was violated"
    return NotFound(mutant.name, target, len(played), round(time.process_time() - started, 2), why)


@cache
def _is_sound(seed: int, world: str) -> bool:
    """Does it pass without any planted bug?"""
    return not simulate(seed, world).violations


@cache
def mutants() -> Mapping[str, Mutant]:
    """All of them. Late import: the planted bugs know the whole product."""
    from clutch.testing.mutants import (
        in_channels,
        in_core,
        in_delivery,
        in_engine,
        in_leaving,
        in_letters,
        in_money,
        in_promises,
        in_protected_files,
        in_protocol,
        in_sending,
        in_stopping,
    )

    files = (
        in_core, in_protocol, in_letters, in_delivery, in_engine, in_money, in_leaving, in_promises, in_sending,
        in_stopping, in_channels, in_protected_files,
    )  # fmt: skip
    every: list[Mutant] = [mutant for file in files for mutant in file.MUTANTS]
    named = {mutant.name: mutant for mutant in every}
    assert len(named) == len(every), "two mutants have one name"
    assert not any(mutant.expected & RAISED for mutant in every), "an exception is no find"
    assert all(world in SETTINGS for mutant in every for world in mutant.worlds)
    assert all(mutant.worlds or mutant.expected <= set(all_probes()) for mutant in every)
    return MappingProxyType(named)
