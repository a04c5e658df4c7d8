"""The critical path: from the creation of the root to its end without a gap, through the subagent that ended last."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from clutch.core.status import Activity, Segment
from clutch.core.timeline import PathStage, TaskSpans, critical_path

T, W, Q, D = Activity.THINKING, Activity.SUBAGENTS, Activity.QUEUED, Activity.DELIVERING


def spans(*parts: tuple[Activity, float]) -> list[Segment]:
    """Segments one after the other, by their lengths."""
    found, at = [], 0.0
    for activity, length in parts:
        found.append(Segment(activity, at, at + length))
        at += length
    return found


def test_the_path_goes_through_the_subagent_that_ended_last() -> None:
    root = TaskSpans(1, None, 0.0, 20.0, spans((T, 4), (W, 12), (T, 4)), [20.0])
    quick = TaskSpans(2, 1, 3.0, 8.0, spans((T, 5), (D, 8)), [8.0])
    slow = TaskSpans(3, 1, 3.0, 15.0, spans((Q, 2), (T, 10), (D, 1)), [15.0])
    assert critical_path(1, [root, quick, slow], 99.0) == [
        PathStage(1, 0.0, 3.0, T),
        PathStage(3, 3.0, 5.0, Q),
        PathStage(3, 5.0, 15.0, T),
        PathStage(3, 15.0, 16.0, D),
        PathStage(1, 16.0, 20.0, T),
    ]


def test_a_wait_that_lasts_goes_through_the_subagent_that_worked_longest() -> None:
    root = TaskSpans(1, None, 0.0, None, [*spans((T, 2)), Segment(W, 2.0, None)])
    first = TaskSpans(2, 1, 1.0, None, [Segment(T, 0.0, None)])
    second = TaskSpans(3, 1, 2.0, None, [Segment(T, 0.0, None)])
    assert critical_path(1, [root, first, second], 9.0) == [
        PathStage(1, 0.0, 1.0, T),
        PathStage(2, 1.0, 9.0, T),
    ]


def test_a_wait_during_which_no_subagent_ended_is_on_the_path_itself() -> None:
    root = TaskSpans(1, None, 0.0, 10.0, spans((T, 2), (W, 8)), [10.0])
    child = TaskSpans(2, 1, 1.0, None, [Segment(T, 0.0, None)])
    assert critical_path(1, [root, child], 50.0) == [PathStage(1, 0.0, 2.0, T), PathStage(1, 2.0, 10.0, W)]


def test_a_subagent_of_a_subagent_is_followed_too() -> None:
    root = TaskSpans(1, None, 0.0, 30.0, spans((T, 2), (W, 26), (T, 2)), [30.0])
    middle = TaskSpans(2, 1, 1.0, 26.0, spans((T, 4), (W, 17), (T, 4), (D, 2)), [26.0])
    leaf = TaskSpans(3, 2, 4.0, 20.0, spans((T, 16), (D, 2)), [20.0])
    path = critical_path(1, [root, middle, leaf], 99.0)
    assert [stage.task_id for stage in path] == [1, 2, 3, 3, 2, 2, 1]


lengths = st.lists(
    st.tuples(st.sampled_from([Q, T, W, Activity.USER]), st.floats(0.1, 20)), min_size=1, max_size=8
)


@st.composite
def trees(draw: st.DrawFn) -> list[TaskSpans]:
    """Trees of any form, with parts in which nothing was recorded, and tasks that still work."""
    root = draw(lengths)
    total = sum(length for _, length in root)
    made = [TaskSpans(1, None, 100.0, 100.0 + total, spans(*root), [100.0 + total])]
    for number in range(2, draw(st.integers(2, 9))):
        parent = draw(st.sampled_from(made))
        parts = draw(lengths)
        start = parent.start + draw(st.floats(0, 30))
        length = sum(one for _, one in parts)
        if draw(st.booleans()):
            made.append(
                TaskSpans(number, parent.task_id, start, start + length, spans(*parts), [start + length])
            )
        else:
            lasting = [*spans(*parts), Segment(T, length, None)]
            made.append(TaskSpans(number, parent.task_id, start, None, lasting))
    return made


@given(trees(), st.booleans())
def test_the_stages_follow_each_other_from_the_creation_of_the_root_to_its_end(
    made: list[TaskSpans], is_running: bool
) -> None:
    now = 1000.0
    if is_running:
        made[0] = made[0]._replace(end=None)
    known = {one.task_id: one for one in made}
    path = critical_path(1, made, now)
    assert path[0].start == 100.0
    assert path[-1].end == (now if is_running else made[0].end)
    assert all(a.end == b.start for a, b in pairwise(path))
    assert all(stage.start < stage.end for stage in path)
    for stage in path:
        assert known[stage.task_id].start <= stage.start
        assert stage.activity is None or stage.activity is _doing(known[stage.task_id], stage, now)


def _doing(task: TaskSpans, stage: PathStage, now: float) -> Activity | None:
    """What the task did in the middle of a stage."""
    middle = (stage.start + stage.end) / 2 - task.start
    found = [
        one for one in task.spans if one.start <= middle < (now - task.start if one.end is None else one.end)
    ]
    return found[0].activity if found else None


def test_tasks_that_are_each_others_parent_end_the_path() -> None:
    one = TaskSpans(1, 2, 0.0, None, [Segment(W, 0.0, None)])
    two = TaskSpans(2, 1, 0.0, None, [Segment(W, 0.0, None)])
    assert critical_path(1, [one, two], 5.0)[-1].end == 5.0
