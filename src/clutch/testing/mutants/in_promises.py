"""Planted bugs of the kinds people met elsewhere: wrong words, wrong reader, wrong rights, wrong model."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

from clutch.core.authority import Rights
from clutch.core.authority.tools import EVERY_TOOL
from clutch.testing.mutants.planting import STORMS, Mutant, mutant_of


def _promotes(frozen: Any) -> tuple[Any, ...]:
    """The report is dressed up on its way into the row."""

    @wraps(frozen)
    def bug(story: Any, text: str | None) -> Any:
        return frozen(story, f"In short: {text}" if text else text)

    return (bug,)


def _nameless(settle: Any) -> tuple[Any, ...]:
    @wraps(settle)
    def bug(story: Any, *args: Any, **known: Any) -> None:
        settle(story, *args, **(known | {"error": None}))

    return (bug,)


def _anywhere(announce: Any) -> tuple[Any, ...]:
    @wraps(announce)
    def bug(now: Any, session: Any, *args: Any, **known: Any) -> Any:
        return announce(now, replace(session, route="terminal:0"), *args, **known)

    return (bug,)


def _all_tools(given: Any) -> tuple[Any, ...]:
    @wraps(given)
    def bug(*args: Any) -> Any:
        rights = given(*args)
        return replace(rights, tools=EVERY_TOOL) if isinstance(rights, Rights) else rights

    return (bug,)


MUTANTS = (
    Mutant(
        "result_rewritten",
        ("clutch.core.lifecycle.ending.frozen",),
        frozenset({"N8"}),
        STORMS,
        _promotes,
        "the result is not what the child said",
    ),
    Mutant(
        "failure_without_cause",
        ("clutch.core.lifecycle.ending.settle",),
        frozenset({"N9"}),
        ("sick", "storm"),
        _nameless,
        "a task fails and nobody can tell why",
    ),
    mutant_of(
        "route_of_somebody_else",
        "letters.announce",
        "N14",
        STORMS,
        _anywhere,
        "a result takes the route of another conversation",
    ),
    mutant_of(
        "child_with_every_tool",
        "spawn._given",
        "N30",
        ("deep",),
        _all_tools,
        "a child has the tools that no child may have",
    ),
)
