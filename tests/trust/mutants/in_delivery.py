"""Planted bugs in what delivers a letter that was read before: other turns, redelivery, records that should be gone."""

from __future__ import annotations

from typing import Any

from clutch.transactions.delivery import OF_ITS_OWN
from tests.trust.mutants.mutant import Mutant
from tests.trust.mutants.mutant import mutant_of as _mutant
from tests.trust.mutants.statements import answering_only, reworded, tampered

_OTHERS = f" OR kind NOT IN ({OF_ITS_OWN})"


def _say(part: str, old: str, new: str) -> Any:
    return lambda original: (tampered(original, say=reworded(part, old, new)),)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "answer_delivers_only_its_own_letters",
        "delivery.unanswered",
        "N11",
        ("sick", "upgrade"),
        _say("taken_seq IS NOT NULL", _OTHERS, ""),
        "a result that a failed turn left in the transcript is answered and stays waiting",
    ),
    _mutant(
        "given_up_stays_undelivered",
        "delivery.unanswered",
        "N11",
        ("sick",),
        _say("taken_seq IS NOT NULL", "state = 2", "state = 2 AND 1 = 0"),
        "a result that was given up is answered and stays undelivered",
    ),
    _mutant(
        "redelivered_as_second_copy",
        "inbox.redrive",
        "N12",
        ("sick",),
        _say("SET state = 0", "seen = 0,", "seen = 0, taken_run = NULL, taken_seq = NULL,"),
        "redelivery writes the result into the transcript a second time",
    ),
    _mutant(
        "deleted_record_is_retained",
        "tasks.archive",
        "N24",
        ("calm", "tidy"),
        lambda archive: (answering_only(archive),),
        "the record of a deleted task stays in lists and quota",
    ),
    _mutant(
        "killed_children_wait_for_ever",
        "read.status.status",
        "N10",
        ("busy", "storm"),
        _say("FROM inbox", " AND silent = 0", ""),
        "the letter of a killed child is counted as waiting",
    ),
    _mutant(
        "works_again_below_a_killed_parent",
        "control.must_have_reader",
        "T5",
        ("busy", "deep", "tidy"),
        lambda must_have_reader: (answering_only(must_have_reader),),
        "a task is retried although the parent above it was killed",
    ),
)
