"""Planted bugs in what runs before a child may start, what it may spend, and what people are asked about it."""

from __future__ import annotations

from functools import wraps
from typing import Any

from clutch.core.model import Reason
from clutch.store.transaction import Statement
from tests.trust.mutants.mutant import STORMS, Mutant
from tests.trust.mutants.statements import Say, answering_only, tampered

THRIFT = ("thrift",)
SIDE_WORK = ("crash", "sick", "storm")


def _without(*beginnings: str) -> Say:
    """Statements that begin so are never said."""

    def say(sql: str, parameters: Any) -> Statement | None:
        return None if sql.startswith(beginnings) else (sql, parameters)

    return say


def _silently(function: Any) -> tuple[Any, ...]:
    """Instead of what it does: nothing."""

    @wraps(function)
    async def bug(*args: Any) -> None:
        del args

    return (bug,)


def _nobody_decides(decisions: Any) -> tuple[Any, ...]:
    @wraps(decisions)
    async def bug(*args: Any) -> dict[int, Any]:
        del args
        return {}

    return (bug,)


def _no_is_yes(one: Any) -> tuple[Any, ...]:
    @wraps(one)
    async def bug(run: Any, call: Any, place: int, said: Any, interrupted: bool) -> Any:
        return await one(run, call, place, said if call.name == "ask_human" else None, interrupted)

    return (bug,)


def _whatever_was_shown(check: Any) -> tuple[Any, ...]:
    @wraps(check)
    def bug(item: Any, decision: Any, text: str, seen_hash: str) -> None:
        del seen_hash
        check(item, decision, text, item.hash)

    return (bug,)


def _no_timer(reserved: Any) -> tuple[Any, ...]:
    @wraps(reserved)
    def bug(story: Any, event: Any) -> None:
        del event
        story.note(Reason.RESERVED)

    return (bug,)


def _mutant(name: str, target: str, expected: str, worlds: tuple[str, ...], plant: Any, about: str) -> Mutant:
    return Mutant(name, (f"clutch.{target}",), frozenset(expected.split()), worlds, plant, about)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "limit_of_a_purse_not_asked",
        "core.budget._refusal",
        "T16",
        THRIFT,
        lambda refusal: (wraps(refusal)(lambda *_: None),),
        "a call is made although nothing is left",
    ),
    _mutant(
        "purses_not_locked",
        "transactions.usage.keys",
        "T16 lockdep",
        ("thrift", "lockstep"),
        lambda keys: (wraps(keys)(lambda *_: ()),),
        "two calls take the same rest of a purse at the same time",
    ),
    _mutant(
        "call_before_its_row",
        "transactions.turn.foresee",
        "T16",
        STORMS,
        lambda foresee: (answering_only(foresee),),
        "a model is called before its call is in the reader",
    ),
    _mutant(
        "call_without_reservation",
        "engine.model_call._reserve",
        "T16",
        THRIFT,
        _silently,
        "a budget is looked at when the bill comes",
    ),
    _mutant(
        "stopped_call_keeps_its_reservation",
        "transactions.tasks.stop",
        "T16",
        THRIFT,
        lambda stop: (tampered(stop, say=_without("UPDATE purses", "UPDATE usage")),),
        "what a killed run had reserved is never given back",
    ),
    _mutant(
        "approval_not_waited_for",
        "engine.tool_calls._decisions",
        "N31",
        THRIFT,
        _nobody_decides,
        "a tool that needs a person's word runs without it",
    ),
    _mutant(
        "rejection_not_heard",
        "engine.tool_calls._one",
        "N31",
        THRIFT,
        _no_is_yes,
        "whatever the person says, the tool runs",
    ),
    _mutant(
        "answer_wakes_nobody",
        "transactions.messages._resume",
        "N31",
        THRIFT,
        lambda go_on: (tampered(go_on, say=_without("UPDATE runs")),),
        "the person has answered, and the run still waits",
    ),
    _mutant(
        "decision_about_another_item",
        "transactions.messages.check",
        "N31",
        THRIFT,
        _whatever_was_shown,
        "a decision counts for an item other than the one that was shown",
    ),
    _mutant(
        "empty_answer_taken",
        "core.questions._check_answer",
        "N31",
        THRIFT,
        lambda check: (wraps(check)(lambda *_: None),),
        "an empty answer answers a question",
    ),
    _mutant(
        "question_outlives_its_run",
        "transactions.tasks.stop",
        "N31",
        THRIFT,
        lambda stop: (tampered(stop, say=_without("UPDATE questions")),),
        "a person is asked about a run that was killed",
    ),
    _mutant(
        "undone_spawn_keeps_its_session",
        "transactions.tasks.unmake",
        "N1",
        SIDE_WORK,
        lambda unmake: (tampered(unmake, say=_without("DELETE FROM sessions")),),
        "a spawn that failed leaves a session nobody owns",
    ),
    _mutant(
        "undone_spawn_keeps_its_purse",
        "transactions.tasks.unmake",
        "N1",
        THRIFT,
        lambda unmake: (tampered(unmake, say=_without("DELETE FROM purses")),),
        "a spawn that failed leaves a budget",
    ),
    _mutant(
        "undone_spawn_keeps_its_files",
        "engine.task_files._drop_workspaces",
        "T14",
        SIDE_WORK,
        _silently,
        "a spawn that failed leaves a directory",
    ),
    _mutant(
        "reservation_without_a_timer",
        "core.lifecycle_run.reserved",
        "N6",
        SIDE_WORK,
        _no_timer,
        "a spawn whose maker died stays for ever",
    ),
)
