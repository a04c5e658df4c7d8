"""The critical path of a tree: the chain of work and waits that determined when its root ended.

It is found backwards from the end of the root (a root that works: from now). At each moment one task is on the path:

1. A task that worked, queued or waited for a user or a provider is on the path itself, for as long as that lasted.
2. A task that waited for subagents was held up by the subagent that ended last during that wait, and the path
   continues there, at the same moment, with the delivery of its result. Of a wait that lasts, it is the subagent that
   has worked longest. A wait during which none ended is on the path itself.
3. Where a subagent was spawned, the path continues in its parent.

So the steps follow each other without a gap or an overlap, from the creation of the root to its end: to end the tree
earlier, one of them must become shorter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from clutch.core.activity import Activity, Segment


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
