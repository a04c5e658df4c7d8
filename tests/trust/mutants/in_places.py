"""Planted bugs in where a session with files resumes. Simulated gateways share one disk: a probe finds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.trust.mutants.mutant import Mutant

_PLACES = frozenset({"N35"})


def _any_place(awaited_places: Any) -> tuple[Any, ...]:
    del awaited_places

    def bug(now: float, workers: Any, here: Any) -> frozenset[str]:
        del now, workers, here
        return frozenset()

    return (bug,)


def _says_nothing(arrive: Any) -> tuple[Any, ...]:
    def bug(now: float, owned: Any, arrival: Any) -> Any:
        return arrive(now, owned, replace(arrival, note=""))

    return (bug,)


MUTANTS = (
    Mutant(
        "sessions_claimed_away_from_their_files",
        ("clutch.transactions.claims.awaited_places",),
        _PLACES,
        (),
        _any_place,
        "any worker claims a session, also while one of the machine with its files is free",
    ),
    Mutant(
        "missing_files_not_told",
        ("clutch.transactions.turn_begin.arrive",),
        _PLACES,
        (),
        _says_nothing,
        "a session resumes on another machine, and its model is not told what is missing",
    ),
)
