"""What blocks a task, if anything does: one cause, decided from the rows and from nothing else.

A task that is running, that is about to be claimed, or that has finished is not blocked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from clutch.core.model import Delivery, Outcome, Phase, Reason

# Letters wait a moment for others. A session that is due later than this is in quiet hours or backs off.
COLLECTING_S = 60.0


class Gate(StrEnum):
    LANE_FULL = "lane-full"
    LEASE = "lease"  #: it has no owner: no worker is alive, or its own is dead and not yet replaced
    CRASHES = "crashes"  #: its process died several times while it was executing: it is tried alone
    DESCENDANTS_ACTIVE = "descendants-active"
    REQUESTER_BUSY = "requester-busy"
    REQUESTER_MISSING = "requester-missing"
    BACKOFF = "backoff"
    NEEDS_YOU = "needs-you"
    QUOTA = "quota"
    BUDGET = "budget"
    PAUSED = "paused"
    QUIET_HOURS = "quiet-hours"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class BlockingSession:
    """A session that can block a task: its own, or the one that reads its letter."""

    id: int
    key: str
    is_task: bool = True
    lane: str = "subagent"
    is_owned: bool = False
    lease_until: float | None = None  #: of its owner; None: the owner is gone
    due: float | None = None
    is_paused: bool = False
    is_held: bool = False  #: it waits until its children have finished
    is_closed: bool = False
    has_run: bool = False
    parked_until: float | None = None
    is_answered: bool = False  #: a user has answered its run, which is about to resume
    hold_until: float | None = None
    working: tuple[int, ...] = ()  #: its children that have not finished
    suspected: int = 0  #: deaths of its process in which it was executing, if it is to be tried alone


@dataclass(frozen=True, slots=True)
class SlotLine:
    """The line for the slots of a full lane, as a session in it sees it."""

    share: str
    working: int  #: sessions of its share that have a slot
    urgent: int = 0  #: due sessions of its share with a higher priority
    shares: tuple[str, ...] = ()  #: other shares with sessions that are due


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rows say about one task at one moment."""

    at: float
    task_id: int
    phase: Phase
    reason: Reason
    delivery: Delivery
    since: float  #: when it came to where it stands
    own: BlockingSession | None  #: None: deleted
    outcome: Outcome | None = None
    wake_at: float | None = None
    reader: BlockingSession | None = None  #: with whom its letter lies
    ready_at: float | None = None  #: of the letter; None: there is none
    put_off: Reason = Reason.NONE  #: why the parent does not read the letter now
    is_seen: bool = True  #: the mailman has looked at it
    is_taken: bool = False  #: a run has read it and not answered yet
    lanes: Mapping[str, tuple[int, int]] | None = None  #: used and cap, by lane
    workers: int = 0  #: alive
    line: SlotLine | None = None  #: that its own session waits in
    questions: tuple[str, ...] = ()  #: ids of what a person was asked
    plan_hash: str | None = None  #: of the plan that awaits a decision


@dataclass(frozen=True, slots=True)
class Blocker:
    """`room`: the session that blocks it. `until`: when it unblocks by itself."""

    gate: Gate
    since: float
    room: BlockingSession | None = None
    children: tuple[int, ...] = ()
    questions: tuple[str, ...] = ()
    plan_hash: str | None = None
    until: float | None = None
    slots: int | None = None  #: of a lane that is full
    line: SlotLine | None = None
    is_served: bool = False  #: others are alive and will take it over
    crashes: int = 0  #: deaths of its process in which it was executing


def unserved(facts: Facts) -> Facts:
    """Return the facts as they are without a live worker, whatever the rows of the last worker say."""
    own = facts.own
    if own is not None and own.is_owned:
        own = replace(own, is_owned=False, due=facts.at)
    return replace(facts, workers=0, own=own)


def gate_of(facts: Facts) -> Blocker | None:
    match facts.phase:
        case Phase.QUEUED | Phase.RUNNING:
            return _to_be_worked_on(facts, facts.own)
        case Phase.PAUSED:
            return _paused(facts)
        case Phase.AWAITING_APPROVAL:
            return Blocker(
                Gate.NEEDS_YOU, facts.since, facts.own, plan_hash=facts.plan_hash, until=facts.wake_at
            )
        case Phase.ENDING | Phase.CLEANUP_PENDING:
            return Blocker(Gate.BACKOFF, facts.since, facts.own, until=facts.wake_at)
        case Phase.ANNOUNCE_DEFERRED:
            return _deferred(facts)
        case Phase.ANNOUNCING:
            return _to_be_delivered(facts)
        case Phase.COMPLETED_GIVEUP if facts.delivery is Delivery.UNDELIVERED:
            return Blocker(Gate.DEAD_LETTER, facts.since, until=facts.wake_at)
        case Phase.SPAWNING | Phase.COMPLETED | Phase.COMPLETED_GIVEUP:
            return None
        case _:
            assert_never(facts.phase)


def session_gate(facts: Facts) -> Blocker | None:
    """Return what blocks a main session, which has no phase: its row and its run decide."""
    room = facts.own
    if room is None:
        return None
    if room.is_paused:
        return Blocker(Gate.PAUSED, facts.since, room)
    if facts.questions:
        return Blocker(Gate.NEEDS_YOU, facts.since, room, questions=facts.questions)
    is_waiting = room.is_held and not room.has_run
    return (_children(facts, room) if is_waiting else None) or _to_be_worked_on(facts, room)


def _to_be_worked_on(facts: Facts, room: BlockingSession | None) -> Blocker | None:
    """Return what keeps a worker from executing the session, or None while one does."""
    if room is None:
        return None
    if room.is_owned:
        if room.lease_until is not None and room.lease_until >= facts.at:
            return None
        since = room.lease_until or facts.since
        return Blocker(Gate.LEASE, since, room, is_served=facts.workers > 0)
    if room.due is None:
        return None
    if not facts.workers:
        return Blocker(Gate.LEASE, facts.since, room)
    if room.due > facts.at + COLLECTING_S:
        # It became due under a clock that was ahead. The sweeper corrects that; until then the moment is named.
        return Blocker(Gate.BACKOFF, min(facts.since, facts.at), room, until=room.due)
    if room.due > facts.at:
        return None
    used, cap = (facts.lanes or {}).get(room.lane, (0, 1))
    if used >= cap:
        line = facts.line if room == facts.own else None
        return Blocker(Gate.LANE_FULL, facts.since, room, slots=cap, line=line)
    return Blocker(Gate.CRASHES, facts.since, room, crashes=room.suspected) if room.suspected else None


_WAITS = {
    Reason.NEEDS_YOU: Gate.NEEDS_YOU,
    Reason.QUOTA: Gate.QUOTA,
    Reason.BUDGET: Gate.BUDGET,
    Reason.PROVIDER: Gate.BACKOFF,
}


def _paused(facts: Facts) -> Blocker | None:
    room = facts.own
    if facts.reason is Reason.PAUSE or (room is not None and room.is_paused):
        return Blocker(Gate.PAUSED, facts.since, room)
    if facts.reason is Reason.CHILDREN:
        return _children(facts, room) or _to_be_worked_on(facts, room)
    until = None if room is None else room.parked_until
    gate = _WAITS.get(facts.reason)
    is_answered = room is not None and room.is_answered
    if gate is None or is_answered or (until is not None and until <= facts.at):
        return _to_be_worked_on(facts, room)
    return Blocker(gate, facts.since, room, questions=facts.questions, until=until)


def _children(facts: Facts, room: BlockingSession | None) -> Blocker | None:
    if room is None or not room.working:
        return None
    until = room.hold_until if facts.wake_at is None else facts.wake_at
    return Blocker(Gate.DESCENDANTS_ACTIVE, facts.since, room, children=room.working, until=until)


def _deferred(facts: Facts) -> Blocker | None:
    match facts.reason:
        case Reason.DESCENDANTS:
            return _children(facts, facts.own) or _to_be_worked_on(facts, facts.own)
        case Reason.MISSING:
            return Blocker(Gate.REQUESTER_MISSING, facts.since, facts.reader, until=facts.wake_at)
        case _:
            return _to_be_delivered(facts)


def _to_be_delivered(facts: Facts) -> Blocker | None:
    reader = facts.reader
    if reader is None or reader.is_closed:
        return Blocker(Gate.REQUESTER_MISSING, facts.since, reader, until=facts.wake_at)
    if facts.ready_at is None:
        return None
    if facts.ready_at > facts.at:
        return Blocker(Gate.BACKOFF, facts.since, reader, until=facts.ready_at)
    if reader.is_paused:
        return Blocker(Gate.PAUSED, facts.since, reader)
    if not facts.workers:
        return Blocker(Gate.LEASE, facts.since, reader)
    if facts.is_taken or reader.is_owned or reader.has_run:
        return Blocker(Gate.REQUESTER_BUSY, facts.since, reader)
    if reader.is_held and reader.working:
        return Blocker(
            Gate.DESCENDANTS_ACTIVE, facts.since, reader, children=reader.working, until=reader.hold_until
        )
    if not facts.is_seen:
        return None
    if reader.due is None or reader.due > facts.at + COLLECTING_S:
        # Outside quiet hours, only a long collection of letters makes a session due so late.
        gate = Gate.QUIET_HOURS if facts.put_off is Reason.QUIET_HOURS else Gate.BACKOFF
        return Blocker(gate, facts.since, reader, until=reader.due)
    return _to_be_worked_on(facts, reader)
