"""Planted bugs in what goes and what stays: cleanup, archive, deleted sessions."""

from __future__ import annotations

from functools import wraps
from typing import Any

from clutch.core.model import Delivery
from clutch.store.transaction import Statement, Tx
from tests.trust.mutants.mutant import STORMS, Mutant
from tests.trust.mutants.mutant import mutant_of as _mutant
from tests.trust.mutants.statements import answering_only, tampered


def _dead_letters_deleted(removal: Any) -> tuple[Any, ...]:
    @wraps(removal)
    def bug(**known: Any) -> Any:
        return removal(**(known | {"delivery": Delivery.DELIVERED}))

    return (bug,)


def _undelivered_archived(due: Any, archive: Any) -> tuple[Any, ...]:
    def say(sql: str, parameters: Any) -> Statement:
        return sql.replace("AND t.delivery <> 'undelivered' AND t.wake_at IS NULL", ""), parameters

    return tampered(due, say=say), tampered(archive, say=say)


def _details_of(condition: str, *originals: Any) -> tuple[Any, ...]:
    def say(sql: str, parameters: Any) -> Statement:
        return sql.replace(condition, "? IS NOT NULL"), parameters

    return tuple(tampered(one, say=say) for one in originals)


def _usage_forgotten(forget: Any) -> tuple[Any, ...]:
    @wraps(forget)
    def bug(now: float, policy: Any, session: Any, why: Any) -> Tx[None]:
        yield from forget(now, policy, session, why)
        yield "DELETE FROM usage WHERE session_id = ?", (session.id,)

    return (bug,)


def _words_half_forgotten(forget: Any) -> tuple[Any, ...]:
    return (tampered(forget, say=lambda sql, given: None if "FROM calls" in sql else (sql, given)),)


def _on_the_old_shelf(is_stripped: Any) -> tuple[Any, ...]:
    return (wraps(is_stripped)(lambda **_: False),)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "old_shelves_stay",
        "task_files.unwanted_files",
        "T14",
        ("tidy",),
        lambda unwanted_files: (answering_only(unwanted_files, []),),
        "nobody removes what a task left when it began anew",
    ),
    Mutant(
        "works_again_on_the_old_shelf",
        ("clutch.core.attachments.is_stripped",),
        frozenset({"T14"}),
        ("tidy",),
        _on_the_old_shelf,
        "whoever removes late takes what a task has made since",
    ),
    Mutant(
        "dead_letters_deleted",
        ("clutch.core.attachments.removal",),
        frozenset({"N24", "T14"}),
        ("modes", *STORMS),
        _dead_letters_deleted,
        "a result that nobody has heard loses its session",
    ),
    _mutant(
        "undelivered_archived",
        ("retention.due", "retention.archive"),
        "N24",
        ("modes", *STORMS),
        _undelivered_archived,
        "a dead letter leaves the lists by itself",
    ),
    _mutant(
        "details_of_retained_deleted",
        ("retention.trimmable", "retention.trim"),
        "N25",
        STORMS,
        lambda trimmable, trim: (
            *_details_of("t.archived_at > ?", *_details_of("t.archived_at <= ?", trimmable)),
            *_details_of("t.archived_at <= ?", trim),
        ),
        "the timeline of a task that is still listed goes",
    ),
    _mutant(
        "archived_without_a_line",
        "tasks.note_all",
        "N24",
        STORMS,
        lambda note_all: (answering_only(note_all),),
        "the timeline of a task does not say that it was archived",
    ),
    _mutant(
        "usage_goes_with_the_words",
        ("task_files.forget", "retention.forget"),
        "T16 N26",
        STORMS,
        lambda cleaning, archiving: (*_usage_forgotten(cleaning), *_usage_forgotten(archiving)),
        "what a deleted session has cost is forgotten with it",
    ),
    _mutant(
        "words_half_forgotten",
        ("task_files.forget", "retention.forget"),
        "N24 N22",
        STORMS,
        lambda cleaning, archiving: (*_words_half_forgotten(cleaning), *_words_half_forgotten(archiving)),
        "a deleted session keeps part of its words",
    ),
)
