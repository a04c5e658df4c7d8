"""Why a task is where it is, and why its result is delivered or not: one word of a fixed list, and a detail.

Both are columns of `tasks`, `events` and `deliveries`. Code compares the word. What a person reads is made of both in
`reason_text`, and nothing reads that text back."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """A value is stored and shown. Beside it stands what the detail says, if there is one."""

    NONE = ""

    # Spawn and start.
    RESERVED = "reserved"
    ADMITTED = "admitted"
    SPAWN_FAILED = "spawn-failed"  #: why
    STARTED = "started"
    UNPARKED = "no longer waiting"  #: the reason of the wait
    RESTARTED = "grace cancelled"
    RESUMED = "resumed @step"  #: the number of the step
    THAWED = "process was frozen for"  #: a duration
    CHILDREN_SETTLED = "children settled"

    # Waits: the reasons of phase `paused`.
    PAUSE = "pause"  #: the user paused it
    CHILDREN = "children"  #: it yielded
    NEEDS_YOU = "needs-you"  #: a question or an approval
    QUOTA = "quota"  #: the provider named a time
    BUDGET = "budget"  #: the calls of others hold the rest of the budget
    PROVIDER = "provider"  #: the provider failed in a way that may pass
    RESTART = "restart"  #: its worker stopped in good order
    INTERRUPT = "interrupt"  #: its turn was cancelled for letters, which the next turn reads

    # Control.
    UNPAUSED = "resumed"
    STEERED = "steered"
    STEER_JOINS = "steered: joins what it reads next"
    RETRY = "retry"
    CONTINUE = "continue"
    PLAN_READY = "plan ready"
    PLAN_APPROVED = "plan approved"
    PLAN_SENT_BACK = "plan sent back"
    PLAN_REJECTED = "plan rejected"  #: the user's words
    PLAN_EXPIRED = "plan expired"

    # The end of a run. Those that are outcomes, too, have the same value.
    ENDED = "ended"  #: while children work
    OK = "ok"
    ERROR = "error"  #: within the grace period, the error
    TIMEOUT = "timeout"
    KILLED = "killed"  #: why
    LOST = "lost"
    PRUNED = "pruned"  #: why
    ORPHANED = "its session is gone"
    EXPIRED = "descendants expired"  #: it was announced without all its children

    # Delivery is deferred.
    DESCENDANTS = "descendants-active"
    MISSING = "missing-requester"
    BUSY = "requester-busy"
    QUIET_HOURS = "quiet-hours"
    DEFERRED = "deferred"  #: the reason of the deferral
    READ = "no longer deferred"
    REQUESTER_BACK = "requester is back"
    NOBODY_BACK = "nobody came back"  #: written by earlier versions

    # Delivery is over. The paths of a delivered result are `direct`, `queued` and `steered`.
    DELIVERED = "delivered"  #: the path
    DIRECT = "direct"
    QUEUED = "queued"
    UNSURE = "unsure"  #: the channel, and what happened
    SKIPPED = "skipped"  #: why
    ANNOUNCE_SKIP = "announce-skip"
    SILENT = "silent"
    REQUESTER_KILLED = "requester killed"
    SUPERSEDED = "superseded"
    ATTEMPT = "attempt"  #: its number, and the error
    FAILED = "failed"  #: an attempt, with its error
    UNDELIVERED = "undelivered"  #: why
    PERMANENT_ERROR = "permanent-error"
    RETRY_LIMIT = "retry-limit"
    EXPIRY = "expiry"
    NO_REQUESTER = "no-requester"
    DROPPED = "dropped"
    REDELIVERED = "redelivered"
    DISMISSED = "dismissed"
    LETTER_EXPIRED = "expired"

    # After the end.
    CLEANUP_FAILED = "cleanup failed"  #: the error
    SESSION_ENDED = "session ended"  #: why
    ARCHIVED = "archived"
    DELETED = "deleted"
    REMOVED = "removed"  #: archived, as written by earlier versions
    LATE = "late"  #: the text
    NOTE = "note"  #: the note itself


#: By value: to look it up is several times faster than to call the enum.
REASONS: Final[Mapping[str, Reason]] = {reason.value: reason for reason in Reason}
WAITS: Final = frozenset(
    {
        Reason.PAUSE, Reason.CHILDREN, Reason.NEEDS_YOU, Reason.QUOTA, Reason.BUDGET, Reason.PROVIDER, Reason.RESTART,
        Reason.INTERRUPT,
    }
)  # fmt: skip
#: The detail goes on with the sentence.
_SENTENCES: Final = frozenset({Reason.RESUMED, Reason.THAWED, Reason.ATTEMPT})


def reason_text(reason: str, detail: str) -> str:
    """Return what a person reads: in a timeline, in a status, in the field `reason` of the API."""
    if not detail:
        return str(reason)
    if reason == Reason.NOTE:
        return detail
    return f"{reason} {detail}" if reason in _SENTENCES else f"{reason}: {detail}"
