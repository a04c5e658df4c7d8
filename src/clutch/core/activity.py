"""What the time of a task went into: the segments of its timeline bar, and the group of the task in a list.

A segment is a span with one activity. Phases come from the timeline of the task; inside a run, the entries of the
transcript tell a model call (until its answer) from the tools that the answer called (until their results)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from clutch.core.model import NEEDS_USER, Delivery, Outcome, Phase, Reason, TaskStatus
from clutch.core.status import task_status
from clutch.core.views import TaskView

#: A bar is about as many pixels wide; finer segments cannot be seen.
SEGMENTS_MAX: Final = 60


class Activity(StrEnum):
    QUEUED = "queued"
    THINKING = "thinking"
    TOOL = "tool"
    SUBAGENTS = "subagents"  #: waits for them
    USER = "user"  #: waits for a decision
    PROVIDER = "provider"  #: rate limited, retrying, or out of budget for now
    PAUSED = "paused"
    DELIVERING = "delivering"


class TaskGroup(StrEnum):
    """Who has to act: the user, the task itself, the operator, or none of them."""

    ATTENTION = "needs attention"
    ACTIVE = "active"
    UNDELIVERED = "undelivered"
    FINISHED = "finished"


#: Outcomes after which a retry may bring a result.
FAILED: Final = frozenset({Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST})

_PAUSED: Final[Mapping[Reason, Activity]] = {
    Reason.CHILDREN: Activity.SUBAGENTS,
    Reason.NEEDS_YOU: Activity.USER,
    Reason.QUOTA: Activity.PROVIDER,
    Reason.PROVIDER: Activity.PROVIDER,
    Reason.BUDGET: Activity.PROVIDER,
    Reason.RESTART: Activity.QUEUED,
    Reason.INTERRUPT: Activity.QUEUED,
}
_PHASES: Final[Mapping[Phase, Activity]] = {
    Phase.SPAWNING: Activity.QUEUED,
    Phase.QUEUED: Activity.QUEUED,
    Phase.RUNNING: Activity.THINKING,
    Phase.AWAITING_APPROVAL: Activity.USER,
    Phase.ENDING: Activity.PROVIDER,
    Phase.ANNOUNCE_DEFERRED: Activity.SUBAGENTS,
    Phase.ANNOUNCING: Activity.DELIVERING,
}
_STATUSES: Final[Mapping[TaskStatus, Activity]] = {
    TaskStatus.STARTING: Activity.QUEUED,
    TaskStatus.QUEUED: Activity.QUEUED,
    TaskStatus.RUNNING: Activity.THINKING,
    TaskStatus.WAITING: Activity.SUBAGENTS,
    TaskStatus.NEEDS_APPROVAL: Activity.USER,
    TaskStatus.NEEDS_ANSWER: Activity.USER,
    TaskStatus.PAUSED: Activity.PAUSED,
    TaskStatus.RATE_LIMITED: Activity.PROVIDER,
    TaskStatus.FAILING: Activity.PROVIDER,
}


def activity_now(view: TaskView) -> Activity | None:
    """Return what the task does now; None: nothing any more."""
    if view.outcome is not None:
        is_underway = view.delivery.state in (Delivery.WAITING, Delivery.DEFERRED)
        return Activity.DELIVERING if is_underway else None
    status = task_status(view)
    if status is TaskStatus.RUNNING and view.current_tool is not None:
        return Activity.TOOL
    if status is TaskStatus.WAITING and view.cause is Reason.BUDGET:
        return Activity.PROVIDER
    return _STATUSES.get(status)


def group_of(view: TaskView) -> TaskGroup:
    if view.outcome is None:
        return TaskGroup.ATTENTION if task_status(view) in NEEDS_USER else TaskGroup.ACTIVE
    is_undelivered = view.delivery.state is Delivery.UNDELIVERED
    return TaskGroup.UNDELIVERED if is_undelivered else TaskGroup.FINISHED


def phase_activity(phase: Phase, reason: Reason) -> Activity | None:
    """Return what a task does from the moment it enters a phase; None: it has ended."""
    if phase is Phase.PAUSED:
        return _PAUSED.get(reason, Activity.PAUSED)
    return _PHASES.get(phase)


class Change(NamedTuple):
    """From `at` on the task has this activity; None: no activity."""

    at: float
    activity: Activity | None


class Segment(NamedTuple):
    """`start` and `end` in seconds since the task was created; `end` is None for what still lasts."""

    activity: Activity
    start: float
    end: float | None


def transcript_activity(kind: str) -> Activity:
    """Return what a run does after an entry of its transcript. Tools work from an answer to their results."""
    return Activity.TOOL if kind == "answer" else Activity.THINKING


def segments(
    created_at: float, now: float, changes: Iterable[Change], most: int = SEGMENTS_MAX
) -> list[Segment]:
    """Return the segments in order, without overlap, at most `most`; neighbours differ.

    `changes` are in the order of time. A change before the creation is part of a copied conversation and is left out;
    so are moments without length."""
    known = [change for change in changes if created_at <= change.at <= now]
    spans: list[Segment] = []
    for change, following in pairwise([*known, Change(now, None)]):
        _append(spans, change.activity, change.at - created_at, following.at - created_at)
    found = _coarse(spans, most) if len(spans) > most else spans
    if known and known[-1].activity is not None:
        return _open(found, known[-1].activity, now - created_at, most)
    return found


def _append(spans: list[Segment], activity: Activity | None, start: float, end: float) -> None:
    """Add a span, or extend the last one if it has the same activity and ends where this one starts."""
    if activity is None or end <= start:
        return
    if spans and spans[-1].activity is activity and spans[-1].end == start:
        spans[-1] = spans[-1]._replace(end=end)
    else:
        spans.append(Segment(activity, start, end))


def _open(found: list[Segment], activity: Activity, now: float, most: int) -> list[Segment]:
    """Leave the last segment open: it lasts."""
    if found and found[-1].activity is activity and found[-1].end == now:
        return [*found[:-1], found[-1]._replace(end=None)]
    return [*found[: most - 1], Segment(activity, now, None)]


def _coarse(spans: Sequence[Segment], most: int) -> list[Segment]:
    """Divide the time into `most` equal slots, each with the activity that took most of it."""
    first, last = spans[0].start, spans[-1].end or 0.0
    width = (last - first) / most
    shares: list[dict[Activity, float]] = [{} for _ in range(most)]
    for activity, start, end in spans:
        place = min(int((start - first) / width), most - 1)
        while place < most:
            left, right = first + place * width, first + (place + 1) * width
            part = min(end or last, right) - max(start, left)
            if part > 0:
                shares[place][activity] = shares[place].get(activity, 0.0) + part
            if (end or last) <= right:
                break
            place += 1
    made: list[Segment] = []
    for place, share in enumerate(shares):
        end = last if place == most - 1 else first + (place + 1) * width
        longest = max(share, key=lambda one: share[one]) if share else None
        _append(made, longest, first + place * width, end)
    return made
