"""A journal is told in the order in which it came about, also within one transaction."""

from __future__ import annotations

from clutch.core import messages
from clutch.core.messages import Answer, Call, Entry, Input, Result, Results
from clutch.core.model import Phase, Reason
from clutch.core.text.why import Arrived, TimelineEntry, steps
from clutch.core.views import TranscriptEntry


def line(seq: int, at: float, entry: Entry) -> TranscriptEntry:
    return TranscriptEntry(seq, at, 5, messages.kind(entry), messages.dump(entry))


TIMELINE = [
    TimelineEntry(1, 0.0, "clutch", Phase.SPAWNING, Phase.QUEUED, Reason.ADMITTED),
    TimelineEntry(2, 1.0, "clutch", Phase.QUEUED, Phase.RUNNING, Reason.STARTED),
    TimelineEntry(3, 4.0, "clutch", Phase.RUNNING, Phase.ENDING, Reason.OK, 1, "ok"),
    TimelineEntry(4, 4.0, "clutch", Phase.ENDING, Phase.ANNOUNCING, Reason.OK, 1, "ok"),
]
LETTERS = [Arrived(1, 0.0, "task", "do it", None, 1), Arrived(2, 3.0, "announce", "", 9, None)]
LINES = [
    line(1, 1.0, Input("do it", "task")),
    line(2, 2.0, Answer("looking", (Call("read", {"path": "a"}), Call("read", {"path": "b"})))),
    line(3, 3.0, Results((Result(0, "read", "A"), Result(1, "read", "B", failed=True)))),
    line(4, 4.0, Answer("done")),
]


def test_each_thing_stands_where_it_happened() -> None:
    told = steps(TIMELINE, LETTERS, LINES)
    assert [(step.kind, step.text) for step in told] == [
        ("letter", "task (read as #1): do it"),
        ("phase", "Accepted and queued."),
        ("phase", "Started."),
        ("input", "do it"),
        ("answer", "looking"),
        ("call", "read(a)"),
        ("call", "read(b)"),
        ("letter", "announce (never read): the result of t_9"),
        ("result", "A"),
        ("result", "B"),
        ("answer", "done"),
        ("phase", "Run ended: ok."),
        ("phase", "Completed: ok. Result sent to the parent agent."),
    ]


def test_programs_get_all_of_it() -> None:
    told = steps(TIMELINE, LETTERS, LINES)
    call = next(step for step in told if step.kind == "call")
    assert (call.seq, call.run_id, call.detail) == (2, 5, {"index": 0, "name": "read", "args": {"path": "a"}})
    failed = [step.detail["failed"] for step in told if step.kind == "result"]
    assert failed == [False, True]


def test_nothing_is_left_out() -> None:
    assert len(steps(TIMELINE, LETTERS, LINES)) == len(TIMELINE) + len(LETTERS) + 7
    assert steps([], [], []) == []
