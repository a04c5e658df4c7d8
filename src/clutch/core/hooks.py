"""What others may listen to or decide about a subagent's life. Names only: who listens is wiring's to know."""

from __future__ import annotations

from enum import StrEnum


class Hook(StrEnum):
    SPAWNING = "subagent_spawning"  #: asked before a spawn comes about; may veto, may bring a thread
    SPAWNED = "subagent_spawned"
    ENDED = "subagent_ended"  #: once for each generation: told, given up, killed, or its session has ended
    REMOVED = "subagent_removed"  #: its session and transcript are gone
    NEEDS_ME = "needs_me"  #: a question, an approval, an empty purse or a plan waits for a person
    DELIVERY_TARGET = "subagent_delivery_target"  #: asked where a requester's reply to a result goes


#: Asked while somebody waits; the others are told through the outbox.
ASKED = frozenset({Hook.SPAWNING, Hook.DELIVERY_TARGET})


class Removal(StrEnum):
    """Why a session is gone."""

    DELETED = "deleted"
    SWEPT = "swept"
    REMOVED = "removed"
    ORPHANED = "orphaned"
