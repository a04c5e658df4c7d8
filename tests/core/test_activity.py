"""The segments of a timeline bar: in order, without overlap, complete, and few enough to draw."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from clutch.core.model import WORKING, Phase, Reason
from clutch.core.status import (
    SEGMENTS_MAX,
    Activity,
    Change,
    Segment,
    phase_activity,
    segments,
    transcript_activity,
)

CREATED = 1000.0
activities = st.none() | st.sampled_from(Activity)
steps = st.lists(st.tuples(st.floats(0, 50), activities), max_size=200)


def changes_of(made: list[tuple[float, Activity | None]]) -> list[Change]:
    at, changes = CREATED, []
    for wait_s, activity in made:
        at += wait_s
        changes.append(Change(at, activity))
    return changes


@given(steps, st.floats(0, 50))
def test_segments_are_ordered_disjoint_and_few(
    made: list[tuple[float, Activity | None]], wait_s: float
) -> None:
    changes = changes_of(made)
    now = (changes[-1].at if changes else CREATED) + wait_s
    found = segments(CREATED, now, changes)
    assert len(found) <= SEGMENTS_MAX
    ends = [now - CREATED if one.end is None else one.end for one in found]
    assert all(one.start <= end for one, end in zip(found, ends, strict=True))
    assert all(end <= later.start for end, later in zip(ends, found[1:], strict=False))
    assert all(one.end is not None for one in found[:-1])
    assert all(a.activity is not b.activity or a.end != b.start for a, b in pairwise(found))
    lasts = bool(changes) and changes[-1].activity is not None
    assert (bool(found) and found[-1].end is None) is lasts
    if lasts:
        assert found[-1].activity is changes[-1].activity


@given(st.lists(st.tuples(st.floats(0.01, 50), st.sampled_from(Activity)), min_size=1, max_size=SEGMENTS_MAX))
def test_few_segments_cover_all_of_the_time_exactly(made: list[tuple[float, Activity]]) -> None:
    changes = changes_of([(wait_s, activity) for wait_s, activity in made])
    now = changes[-1].at + 1.0
    found = segments(CREATED, now, changes)
    assert found[0].start == changes[0].at - CREATED
    assert all(a.end == b.start for a, b in pairwise(found))
    for change, following in pairwise([*changes, Change(now, None)]):
        middle = (change.at + following.at) / 2 - CREATED
        inside = [one for one in found if one.start <= middle < (one.end or now)]
        assert [one.activity for one in inside] == [change.activity]


def test_a_run_is_told_apart_by_its_transcript() -> None:
    changes = [
        Change(CREATED, phase_activity(Phase.QUEUED, Reason.ADMITTED)),
        Change(CREATED + 2, phase_activity(Phase.RUNNING, Reason.STARTED)),
        Change(CREATED + 5, transcript_activity("answer")),
        Change(CREATED + 6, transcript_activity("results")),
        Change(CREATED + 9, phase_activity(Phase.PAUSED, Reason.CHILDREN)),
    ]
    assert segments(CREATED, CREATED + 10, changes) == [
        Segment(Activity.QUEUED, 0, 2),
        Segment(Activity.THINKING, 2, 5),
        Segment(Activity.TOOL, 5, 6),
        Segment(Activity.THINKING, 6, 9),
        Segment(Activity.SUBAGENTS, 9, None),
    ]


def test_what_was_said_before_the_task_existed_is_left_out() -> None:
    changes = [Change(CREATED - 60, Activity.TOOL), Change(CREATED, Activity.QUEUED)]
    assert segments(CREATED, CREATED + 1, changes) == [Segment(Activity.QUEUED, 0, None)]


def test_every_phase_that_works_has_an_activity() -> None:
    assert all(phase_activity(phase, Reason.NONE) is not None for phase in WORKING)
    assert phase_activity(Phase.COMPLETED, Reason.NONE) is None
