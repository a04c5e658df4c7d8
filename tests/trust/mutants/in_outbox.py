"""Planted bugs in the outbox: messages to users, and the keys under which receivers know what they got."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

from clutch.core.policy import Policy
from clutch.store.transaction import Row, Statement, Tx
from clutch.transactions import delivery
from clutch.transactions.outbox import OutboxMessage
from tests.trust.mutants.mutant import CRASHES, STORMS, Mutant, mutant_of
from tests.trust.mutants.statements import reworded, tampered


def _sends_again(unconfirmed: Any) -> tuple[Any, ...]:
    @wraps(unconfirmed)
    def bug(now: float, policy: Policy, worker_id: int, parcel: OutboxMessage, why: str) -> Tx[None]:
        yield from delivery.failed(now, policy, worker_id, parcel, why)

    return (bug,)


def _key_of_the_try(claim: Any) -> tuple[Any, ...]:
    def hear(sql: str, parameters: Any, rows: Sequence[Row]) -> Sequence[Row]:
        del parameters
        if "UPDATE outbox" not in sql:
            return rows
        return [(number, f"{key}:{rest[3]}", *rest) for number, key, *rest in rows]

    return (tampered(claim, hear=hear),)


def _key_of_nobody(context: Any) -> tuple[Any, ...]:
    def bug(*args: Any, **known: Any) -> Any:
        return context(*args, **(known | {"key": f"{known['key']}0"}))

    return (bug,)


def _keeps_parcels(bury: Any, free: Any) -> tuple[Any, ...]:
    def say(sql: str, parameters: Any) -> Statement | None:
        return None if sql.startswith("UPDATE outbox") else (sql, parameters)

    mine_only = reworded("UPDATE outbox", " OR owner NOT IN (SELECT id FROM workers)", "")
    return tampered(bury, say=say), tampered(free, say=mine_only)


def _cut_is_failed(may_have_arrived: Any) -> tuple[Any, ...]:
    del may_have_arrived

    def bug(error: Exception) -> bool:
        del error
        return False

    return (bug,)


def _unsure_is_due(free: Any, is_stranded: Any) -> tuple[Any, ...]:
    words = "AND owner IS NOT NULL AND (", "AND (outcome = 'unsure' OR "
    return (
        tampered(free, say=reworded("UPDATE outbox", *words)),
        tampered(is_stranded, say=reworded("SELECT 1 FROM outbox", *words)),
    )


MUTANTS = (
    Mutant(
        "sent_again_after_a_cut",
        ("clutch.engine.outbox.may_have_arrived",),
        frozenset({"N34"}),
        STORMS,
        _cut_is_failed,
        "a connection that was cut counts as refused",
    ),
    mutant_of(
        "unsure_messages_sent_after_a_restart",
        ("outbox.free", "outbox.is_stranded"),
        "N34",
        STORMS,
        _unsure_is_due,
        "a courier that starts sends what may have been read",
    ),
    mutant_of(
        "sent_again_after_silence",
        "delivery.unconfirmed",
        "N12 N34",
        STORMS,
        _sends_again,
        "what may have been read is sent once more",
    ),
    mutant_of(
        "words_under_the_key_of_a_try",
        "outbox.claim",
        "T18",
        STORMS,
        _key_of_the_try,
        "a channel cannot tell that it has seen this",
    ),
    Mutant(
        "tools_under_a_key_of_their_own",
        ("clutch.engine.tool_calls.ToolContext",),
        frozenset({"T18"}),
        STORMS,
        _key_of_nobody,
        "a tool cannot tell that it has done this",
    ),
    mutant_of(
        "dead_couriers_keep_their_parcels",
        ("workers.bury", "outbox.free"),
        "T8",
        CRASHES,
        _keeps_parcels,
        "what a dead process was sending is never sent",
    ),
)
