"""A task at every moment of its life, from what was recorded: its status, what it did, and where its result was.

One rule: the entries of the timeline up to a moment give the phase, the outcome and the delivery (`after`), and the
transcript gives the step and the tool. Both are put into the `TaskView` of the task (`history`), so that every text of
that moment is made by the functions that make the texts of the present.

A wait with an end of its own, as of a rate limit, lasts until the run resumes: when it was due is not recorded."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from clutch.core.model import REASONS, WORKING, Delivery, Outcome, Phase, Reason
from clutch.core.status import Activity, Segment
from clutch.core.text.why import TimelineEntry
from clutch.core.views import CurrentTool, OpenQuestion, TaskView, delivery_view


@dataclass(frozen=True, slots=True)
class Standing:
    """What the timeline alone says of a task at a moment. Equal to its row, which the same events made."""

    phase: Phase = Phase.SPAWNING
    cause: Reason = Reason.NONE
    detail: str = ""
    generation: int = 1
    outcome: Outcome | None = None
    delivery: Delivery = Delivery.NONE
    delivery_cause: Reason = Reason.NONE
    attempts: int = 0  #: deliveries that failed
    is_paused: bool = False  #: by the user
    error: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    delivery_at: float | None = None  #: when it was delivered or given up


_OUTCOMES: Final[Mapping[str, Outcome]] = {one.value: one for one in Outcome}
_WAITING: Final = (Delivery.WAITING, Reason.NONE)


def after(before: Standing, line: TimelineEntry) -> Standing:
    """Return the standing after one more entry."""
    now = before
    if line.generation != before.generation:
        now = replace(
            now, generation=line.generation, delivery=Delivery.NONE, delivery_cause=Reason.NONE, attempts=0,
            error=None, ended_at=None, delivery_at=None, outcome=None,
        )  # fmt: skip
    if not line.is_note:
        is_first = line.to_phase is Phase.RUNNING and now.started_at is None
        now = replace(now, phase=line.to_phase, cause=line.cause, detail=line.detail)
        now = replace(now, started_at=line.at) if is_first else now
    if line.cause in (Reason.ERROR, Reason.KILLED) and line.detail:
        now = replace(now, error=line.detail)
    delivery = _delivery(line)
    if delivery is not None:
        now = replace(now, delivery=delivery[0], delivery_cause=delivery[1])
        is_over = delivery[0] in (Delivery.DELIVERED, Delivery.UNDELIVERED)
        now = replace(now, delivery_at=line.at) if is_over else now
    if line.cause in (Reason.ATTEMPT, Reason.REDELIVERED):
        now = replace(now, attempts=now.attempts + 1 if line.cause is Reason.ATTEMPT else 0)
    outcome = None if line.outcome is None else _OUTCOMES[line.outcome]
    if outcome is not None and now.outcome is None:
        # The end of a task also ends the pause of its session.
        now = replace(now, ended_at=line.at, is_paused=False)
    return replace(now, outcome=outcome, is_paused=_is_paused(now, line))


def _is_paused(now: Standing, line: TimelineEntry) -> bool:
    if line.cause is Reason.PAUSE:
        return True
    return now.is_paused and line.cause is not Reason.UNPAUSED


def _delivery(line: TimelineEntry) -> tuple[Delivery, Reason] | None:
    """Return what an entry says of the delivery; None: nothing. The end of the cleanup repeats an old reason."""
    if not line.is_note and line.to_phase in (Phase.COMPLETED, Phase.COMPLETED_GIVEUP):
        return None
    why = REASONS.get(line.detail, Reason.NONE)
    match line.cause:
        case Reason.DELIVERED:
            return Delivery.DELIVERED, why
        case Reason.UNSURE:
            return Delivery.UNSURE, Reason.UNSURE
        case Reason.UNDELIVERED:
            return Delivery.UNDELIVERED, why
        case Reason.SKIPPED:
            return Delivery.SKIPPED, Reason.KILLED if why is Reason.REQUESTER_KILLED else why
        case Reason.DEFERRED:
            return Delivery.DEFERRED, why
        case Reason.READ | Reason.ATTEMPT:
            return _WAITING
        case Reason.DISMISSED | Reason.LETTER_EXPIRED:
            return Delivery.SKIPPED, line.cause
        case Reason.KILLED | Reason.PRUNED if line.to_phase is Phase.CLEANUP_PENDING:
            return Delivery.SKIPPED, line.cause
    if line.is_note:
        return None
    if line.to_phase is Phase.ANNOUNCE_DEFERRED:
        return Delivery.DEFERRED, line.cause
    return _WAITING if line.to_phase is Phase.ANNOUNCING else None


# --------------------------------------------------------------------------------------------------
# A task with all that was recorded of it.


class Mark(NamedTuple):
    """An entry of the transcript. `calls`: of an answer, each call in words; `tool`: the first of them."""

    seq: int
    at: float
    kind: str
    calls: tuple[str, ...] = ()
    tool: tuple[str, str] | None = None


class Asked(NamedTuple):
    """A question to the user, from the moment it was asked until it was answered."""

    start: float
    end: float | None
    question: OpenQuestion


class SubagentCount(NamedTuple):
    """How many there are from a moment on, and how many of them work."""

    at: float
    active: int
    total: int


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """`marks`: entries of the transcript in order. `children`: each change of their number, in order."""

    view: TaskView
    lines: Sequence[TimelineEntry]
    marks: Sequence[Mark] = ()
    asked: Sequence[Asked] = ()
    children: Sequence[SubagentCount] = ()


def standings(lines: Iterable[TimelineEntry]) -> Iterator[tuple[float, Standing]]:
    """Yield the standing after each entry, with the moment of the entry. Entries of one transaction share a moment."""
    now = Standing()
    for line in lines:
        now = after(now, line)
        yield line.at, now


def history(record: TaskRecord) -> list[TaskView]:
    """Return the task at each moment at which something about it changed, oldest first, without repetitions of moments.

    `at` of a view is the moment from which it holds. Before the first the task did not exist."""
    moments = sorted(
        {
            *(line.at for line in record.lines),
            *(mark.at for mark in record.marks if mark.at >= record.view.created_at),
            *(at for one in record.asked for at in one[:2] if at is not None),
            *(one.at for one in record.children),
        }
    )
    known = list(standings(record.lines))
    bases = _Lookup(_bases(record))
    stands, marks, children = _Lookup(known), _Lookup(record.marks), _Lookup(record.children)
    found = []
    for at in moments:
        now = stands.until(at)
        if now is not None:
            _, base = bases.until(at) or (at, 0)
            found.append(_view(record, now[1], (marks.until(at), base, children.until(at)), at))
    return found


_T = TypeVar("_T", bound="tuple[Any, ...]")


class _Lookup(Generic[_T]):
    """Rows in the order of time; the moment is a row's `at`, or its first field."""

    def __init__(self, rows: Sequence[_T]) -> None:
        self._rows = rows
        self._times = [getattr(row, "at", row[0]) for row in rows]

    def until(self, at: float) -> _T | None:
        place = bisect_right(self._times, at)
        return self._rows[place - 1] if place else None


def _bases(record: TaskRecord) -> list[tuple[float, int]]:
    """Return the last entry before the work that is shown: a copied conversation, or the work that a retry began anew,
    each with the moment from which on it is the last one."""
    starts = [record.view.created_at, *(line.at for line in record.lines if line.cause is Reason.RETRY)]
    return [
        (start, max((mark.seq for mark in record.marks if mark.at < start), default=0)) for start in starts
    ]


def _view(
    record: TaskRecord, now: Standing, then: tuple[Mark | None, int, SubagentCount | None], at: float
) -> TaskView:
    """Return the task as every surface showed it at a moment. `then`: the last entry of its transcript, the entry
    before its work, and its subagents."""
    view = record.view
    last, base, below = then
    is_running = now.phase is Phase.RUNNING
    tool = last.tool if last is not None and is_running else None
    return replace(
        view,
        phase=now.phase,
        cause=now.cause,
        detail=now.detail,
        outcome=now.outcome,
        error=_error(view, now),
        generation=now.generation,
        started_at=now.started_at,
        ended_at=view.ended_at if _is_last(view, now) else now.ended_at,
        delivery=delivery_view(now.delivery, now.delivery_cause, now.detail, now.attempts, now.delivery_at),
        step=0 if last is None else max(0, last.seq - base),
        current_tool=None if last is None or tool is None else CurrentTool(*tool, last.at),
        called_at=last.at if last is not None and is_running and tool is None else None,
        worker_id=(view.worker_id or 0) if is_running else None,
        question=_question(record, now, at),
        is_paused=now.is_paused,
        children_total=0 if below is None else below.total,
        children_active=0 if below is None else below.active,
        parked_until=None,
        wake_at=None,
        at=at,
    )


def _is_last(view: TaskView, now: Standing) -> bool:
    """Whether the row still says what it said then: the outcome of a generation never changes."""
    return now.outcome is not None and now.generation == view.generation


def _error(view: TaskView, now: Standing) -> str | None:
    if _is_last(view, now):
        return view.error
    is_over = now.outcome not in (None, Outcome.OK)
    return now.error if is_over or now.phase is Phase.ENDING else None


def _question(record: TaskRecord, now: Standing, at: float) -> OpenQuestion | None:
    if now.cause is not Reason.NEEDS_YOU:
        return None
    still = [one for one in record.asked if one.start <= at and (one.end is None or at < one.end)]
    return min(still, key=lambda one: one.question.kind).question if still else None


def subagents(
    children: Iterable[Sequence[TimelineEntry]], lines: Iterable[TimelineEntry] = ()
) -> list[SubagentCount]:
    """Return each change of the number of subagents. `children`: the timeline of each, which begins with its spawn.
    `lines`: that of their parent; what its earlier attempts spawned counts only while it works."""
    retries = [line.at for line in lines if line.cause is Reason.RETRY]
    changes = [change for child in children for change in _count_changes(child, retries)]
    found: list[SubagentCount] = []
    active = total = 0
    for at, more_active, more in sorted(changes):
        active, total = active + more_active, total + more
        if found and found[-1].at == at:
            found.pop()
        found.append(SubagentCount(at, active, total))
    return found


def _count_changes(
    child: Sequence[TimelineEntry], retries: Sequence[float]
) -> Iterator[tuple[float, int, int]]:
    """Yield when the child changes the number of working, and of all subagents, and by how much."""
    moments: list[tuple[float, bool | None]] = [(at, now.phase in WORKING) for at, now in standings(child)]
    moments += [(at, None) for at in retries if child and at > child[0].at]
    is_working = is_old = False
    before = 0, 0
    for at, becomes_working in sorted(moments, key=lambda one: one[0]):
        is_working, is_old = (is_working, True) if becomes_working is None else (becomes_working, is_old)
        counts = int(is_working), int(is_working or not is_old)
        if counts != before:
            yield at, counts[0] - before[0], counts[1] - before[1]
        before = counts


# --------------------------------------------------------------------------------------------------
# The way of each result to the parent.


class Handover(NamedTuple):
    """An attempt that reached a session, as it was recorded. `seq`, `read_at`: the message that contains the result."""

    generation: int
    at: float
    session_id: int
    seq: int | None
    read_at: float | None


class Arrow(NamedTuple):
    """The result of one generation. `states`: where it was from which moment on, from `ended_at`."""

    generation: int
    ended_at: float
    states: tuple[TaskView, ...]
    handover: Handover | None


def arrows(views: Sequence[TaskView], handovers: Sequence[Handover]) -> list[Arrow]:
    """Return one arrow per generation that had an outcome. `views`: the history of the task."""
    found: dict[int, list[TaskView]] = {}
    for view in views:
        if view.outcome is not None:
            found.setdefault(view.generation, []).append(view)
    taken = {one.generation: one for one in handovers}
    return [
        Arrow(generation, over[0].at, tuple(_changes(over)), taken.get(generation))
        for generation, over in found.items()
    ]


def _changes(views: Sequence[TaskView]) -> Iterator[TaskView]:
    for place, view in enumerate(views):
        if place == 0 or views[place - 1].delivery != view.delivery:
            yield view


# --------------------------------------------------------------------------------------------------
# The critical path of a tree: the chain of work and waits that determined when its root ended.
#
# It is found backwards from the end of the root (a root that works: from now). At each moment one task is on the
# path:
#
# 1. A task that worked, queued or waited for a user or a provider is on the path itself, for as long as that lasted.
# 2. A task that waited for subagents was held up by the subagent that ended last during that wait, and the path
# continues there, at the same moment, with the delivery of its result. Of a wait that lasts, it is the subagent that
# has worked longest. A wait during which none ended is on the path itself. 3. Where a subagent was spawned, the path
# continues in its parent.
#
# So the steps follow each other without a gap or an overlap, from the creation of the root to its end: to end the
# tree earlier, one of them must become shorter.


class TaskSpans(NamedTuple):
    """A task. `spans` in seconds since `start`; `ends`: when each of its generations ended, in order; `end`: None while
    it works."""

    task_id: int
    parent_id: int | None
    start: float
    end: float | None
    spans: Sequence[Segment]
    ends: Sequence[float] = ()


class PathStage(NamedTuple):
    """A part of the path, in one task. `activity`: None where nothing was recorded."""

    task_id: int
    start: float
    end: float
    activity: Activity | None


def critical_path(root_id: int, lanes: Sequence[TaskSpans], now: float) -> list[PathStage]:
    """Return the stages in the order of time."""
    known = {lane.task_id: lane for lane in lanes}
    below: dict[int | None, list[TaskSpans]] = defaultdict(list)
    for lane in lanes:
        below[lane.parent_id].append(lane)
    root = known[root_id]
    found: list[PathStage] = []
    lane, at = root, now if root.end is None else root.end
    visited: set[int] = (
        set()
    )  #: tasks that the path entered at this moment: imported tasks can be each other's parent
    while at > root.start:
        stage = _stage(lane, at, now)
        if stage is None:
            parent = known.get(-1 if lane.parent_id is None else lane.parent_id)
            if lane is root or parent is None or lane.start > at:
                break
            lane, at = parent, min(at, lane.start)
            visited.clear()
            continue
        held_up_by = _cause(stage, below[lane.task_id], now, visited)
        if held_up_by is not None:
            visited.add(held_up_by.task_id)
            lane = held_up_by
            continue
        _prepend(found, stage._replace(start=max(stage.start, root.start)))
        at = stage.start
        visited.clear()
    return found[::-1]


def _stage(lane: TaskSpans, at: float, now: float) -> PathStage | None:
    """Return what the task did until a moment; None: it did not exist before."""
    if at <= lane.start:
        return None
    for span in reversed(lane.spans):
        start, end = lane.start + span.start, now if span.end is None else lane.start + span.end
        if end < at and start < at:
            return PathStage(lane.task_id, max(end, lane.start), at, None)
        if start < at:
            return PathStage(lane.task_id, start, at, span.activity)
    return PathStage(lane.task_id, lane.start, at, None)


def _cause(wait: PathStage, children: Sequence[TaskSpans], now: float, visited: set[int]) -> TaskSpans | None:
    """Return the subagent that a wait depended on."""
    if wait.activity is not Activity.SUBAGENTS:
        return None
    candidates = [one for one in children if one.start < wait.end and one.task_id not in visited]
    if wait.end >= now:
        active = [one for one in candidates if one.end is None]
        if active:
            return min(active, key=lambda one: (one.start, one.task_id))
    ended = [
        (end, one.task_id, one) for one in candidates for end in one.ends if wait.start < end <= wait.end
    ]
    return max(ended)[2] if ended else None


def _prepend(found: list[PathStage], stage: PathStage) -> None:
    """Add a stage before those found so far, as one with its neighbour if both are the same activity of a task."""
    later = found[-1] if found else None
    if (
        later
        and (later.task_id, later.activity) == (stage.task_id, stage.activity)
        and later.start == stage.end
    ):
        found[-1] = later._replace(start=stage.start)
    else:
        found.append(stage)
