"""Planted bugs of the kinds people met elsewhere: wrong words, wrong reader, wrong rights, wrong model."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

from clutch.core.authority import EVERY_TOOL, Rights
from clutch.transactions.conditions import IS_WORKING
from tests.trust.mutants.mutant import STORMS, Mutant, mutant_of
from tests.trust.mutants.statements import reworded, tampered


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


def _tells_all(payload: Any) -> tuple[Any, ...]:
    @wraps(payload)
    def bug(text: str, mode: Any, inline_chars_max: int, summary_chars_max: int) -> Any:
        return payload(text, mode, 1000 * inline_chars_max, summary_chars_max)

    return (bug,)


def _one_by_one(settled: Any) -> tuple[Any, ...]:
    @wraps(settled)
    def bug(background: Any, urgent: Any, rules: Any) -> Any:
        return settled(background[:1], urgent, rules)

    return (bug,)


def _sleepers_left_alone(worth_waking: Any) -> tuple[Any, ...]:
    """The mailman does not see that the last child has settled, too."""
    works = f" AND EXISTS (SELECT 1 FROM tasks WHERE requester_id = sessions.id AND {IS_WORKING} AND outcome IS NULL)"  # noqa: S608
    return (tampered(worth_waking, say=reworded("SELECT id FROM sessions", works, "")),)


def _under_another_place(order: Any) -> tuple[Any, ...]:
    def bug(idem: str, *rest: Any) -> Any:
        return order(f"{idem}7", *rest)

    return (bug,)


MUTANTS = (
    Mutant(
        "results_told_in_full",
        ("clutch.transactions.transcript.payload",),
        frozenset({"N33"}),
        STORMS,
        _tells_all,
        "a result of any length is put into the transcript of whoever asked",
    ),
    Mutant(
        "woken_for_each_result",
        ("clutch.core.delivery._settled",),
        frozenset({"N16"}),
        STORMS,
        _one_by_one,
        "a parent that waited for all is woken for one after the other",
    ),
    mutant_of(
        "sleepers_left_alone",
        "wake.worth_waking",
        "N16",
        STORMS,
        _sleepers_left_alone,
        "nobody looks at the letters of a parent that sleeps",
    ),
    Mutant(
        "child_of_no_call",
        ("clutch.engine.spawn.ChildRequest",),
        frozenset({"N2"}),
        STORMS,
        _under_another_place,
        "a child is written down under a call that was never made",
    ),
    Mutant(
        "result_rewritten",
        ("clutch.core.lifecycle_run.frozen",),
        frozenset({"N8"}),
        STORMS,
        _promotes,
        "the result is not what the child said",
    ),
    Mutant(
        "failure_without_cause",
        ("clutch.core.lifecycle_run.settle",),
        frozenset({"N9"}),
        ("sick", "storm"),
        _nameless,
        "a task fails and nobody can tell why",
    ),
    mutant_of(
        "route_of_somebody_else",
        "inbox.announce",
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
