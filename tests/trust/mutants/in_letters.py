"""Planted bugs in what becomes of letters: posting, taking, answering."""

from __future__ import annotations

from functools import wraps
from typing import Any

from clutch.store.transaction import Statement, Tx
from clutch.transactions.sessions import SessionRow
from tests.trust.mutants.mutant import STORMS, Mutant
from tests.trust.mutants.mutant import mutant_of as _mutant
from tests.trust.mutants.statements import answering_only, reworded, tampered


def _letter_unannounced(announce: Any) -> tuple[Any, ...]:
    def say(sql: str, parameters: Any) -> Statement:
        return sql, (*parameters[:-1], 1)

    return (tampered(announce, say=say, hints=False),)


def _kill_leaves_no_letter(announce: Any) -> tuple[Any, ...]:
    @wraps(announce)
    def bug(*args: Any, silent: bool) -> Tx[None]:
        if not silent:
            yield from announce(*args, silent=silent)

    return (bug,)


def _taken_before_appended(take: Any) -> tuple[Any, ...]:
    @wraps(take)
    def bug(*args: Any, **kwargs: Any) -> Tx[Any]:
        taken = yield from take(*args, **kwargs)
        return taken._replace(inputs=())

    return (bug,)


def _appended_twice(take: Any) -> tuple[Any, ...]:
    @wraps(take)
    def bug(*args: Any, **kwargs: Any) -> Tx[Any]:
        taken = yield from take(*args, **kwargs)
        return taken._replace(inputs=taken.inputs * 2)

    return (bug,)


def _given_back_again(letter: Any) -> tuple[Any, ...]:
    return (wraps(letter)(lambda *columns: letter(*columns)._replace(taken_seq=None)),)


def _senders_not_stepped(answer: Any) -> tuple[Any, ...]:
    @wraps(answer)
    def bug(now: float, policy: Any, session: SessionRow, run_id: int) -> Tx[None]:
        del now, policy
        yield (
            "UPDATE inbox SET state = 1 WHERE session_id = ? AND state = 0 AND taken_run = ?",
            (session.id, run_id),
        )

    return (bug,)


def _homeless_are_seen(pass_on: Any) -> tuple[Any, ...]:
    return (tampered(pass_on, say=reworded("SET seen = 1", " AND NOT state = 0", "")),)


def _in_order_of_letters(findings: Any) -> tuple[Any, ...]:
    @wraps(findings)
    def bug(page: Any, chosen: Any) -> Any:
        known = [letter for letter in chosen if letter.task_id is not None]
        return [page._finding(page.senders[letter.task_id], letter) for letter in reversed(known)]

    return (bug,)


def _in_silence(tell_people: Any) -> tuple[Any, ...]:
    @wraps(tell_people)
    def bug(now: float, given_up: Any) -> Tx[None]:
        del now, given_up
        yield from ()

    return (bug,)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "routes_mixed_in_a_turn",
        ("clutch.core.delivery._same_route",),
        frozenset({"N14"}),
        ("tight", "busy", "gone"),
        lambda same_route: (wraps(same_route)(lambda letters: letters),),
        "results for two places share a turn",
    ),
    _mutant(
        "given_up_in_silence",
        "outbox.tell_given_up",
        "N10",
        ("sick", "gone", "storm"),
        _in_silence,
        "a result is given up and nobody hears of it",
    ),
    _mutant(
        "lost_wake_up_at_a_join",
        "inbox.announce",
        "N16",
        STORMS,
        _letter_unannounced,
        "a letter is born seen, and nobody is hinted",
    ),
    _mutant(
        "kill_leaves_no_letter",
        "inbox.announce",
        "T2",
        ("busy",),
        _kill_leaves_no_letter,
        "a killed child never settles",
    ),
    _mutant(
        "taken_but_not_appended",
        "delivery.take",
        "N12",
        STORMS,
        _taken_before_appended,
        "taken, and not to be read",
    ),
    _mutant(
        "appended_twice",
        "delivery.take",
        "N12",
        STORMS,
        _appended_twice,
        "the same letter stands there twice",
    ),
    _mutant(
        "take_not_marked",
        "delivery._mark",
        "N12",
        STORMS,
        lambda mark: (answering_only(mark),),
        "read, and still waiting",
    ),
    _mutant(
        "given_back_appended_again",
        "delivery._letter",
        "N12",
        ("sick",),
        _given_back_again,
        "a letter given back is appended once more",
    ),
    _mutant(
        "senders_not_stepped",
        "delivery.answer",
        "T2",
        STORMS,
        _senders_not_stepped,
        "told, but nobody notes it",
    ),
    _mutant(
        "homeless_letters_forgotten",
        "wake._pass_on",
        "N16",
        ("gone",),
        _homeless_are_seen,
        "a letter to nobody is marked as seen before its sender knows",
    ),
    _mutant(
        "findings_out_of_order",
        "transcript.LetterRenderer._findings",
        "T11",
        STORMS,
        _in_order_of_letters,
        "findings come in the order of their letters",
    ),
)
