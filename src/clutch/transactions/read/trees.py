"""Everything that was recorded of a tree of tasks, for its timeline: a handful of statements for the whole tree."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clutch.core import messages
from clutch.core.messages import Answer
from clutch.core.model import REASONS, Delivery, Phase
from clutch.core.questions import QuestionKind
from clutch.core.status import Segment, call_text, question_text
from clutch.core.text.format import main_argument
from clutch.core.text.why import TimelineEntry
from clutch.core.timeline import Asked, Handover, Mark, TaskRecord, subagents
from clutch.core.views import OpenQuestion, TaskView
from clutch.store.transaction import Row, Tx
from clutch.transactions.conditions import IS_WHOLE
from clutch.transactions.read import tasks, timeline

#: Beyond these a timeline cannot be read, and its answer would be many megabytes.
TASKS_MAX = 1000
ENTRIES_MAX = 20_000  # of all transcripts together
SEGMENTS_MAX = 500  # of one task
CALLS_MAX = 20  # of one answer, in words


@dataclass(frozen=True, slots=True)
class RecordedTree:
    """`records`: by task, in the order of creation. `total`: tasks of the tree, also those beyond the limit."""

    root_id: int
    total: int
    is_detailed: bool  #: False: there are more entries than `ENTRIES_MAX`, and none of them were read
    records: Mapping[int, TaskRecord]
    spans: Mapping[int, Sequence[Segment]]
    handovers: Mapping[int, Sequence[Handover]]
    sessions: Mapping[int, str]  #: keys of the sessions that results were sent to


def recorded(now: float, task_id: int, is_subtree: bool = False) -> Tx[RecordedTree | None]:
    """Return the whole tree that a task belongs to. `is_subtree`: the task and what is below it."""
    root_id = task_id if is_subtree else (yield from _top(task_id))
    below = yield from tasks.ids_below(root_id)
    numbers = [root_id, *(one for one in below if one != root_id)]
    views = yield from tasks.of(now, numbers[:TASKS_MAX])
    if not views:
        return None
    shown = [view.task_id for view in views]
    lines = yield from _lines(shown)
    marks = yield from _marks(shown)
    asked = yield from _asked(shown)
    handovers = yield from _handovers(shown)
    children: dict[int, list[int]] = defaultdict(list)
    for view in views:
        children[view.requester_id].append(view.task_id)
    records = {
        view.task_id: TaskRecord(
            view,
            lines[view.task_id],
            () if marks is None else marks[view.task_id],
            asked[view.task_id],
            subagents([lines[child] for child in children[view.task_id]], lines[view.task_id]),
        )
        for view in views
    }
    spans = yield from timeline.segments(now, views, SEGMENTS_MAX)
    keys = yield from _keys(views, handovers)
    return RecordedTree(root_id, len(numbers), marks is not None, records, spans, handovers, keys)


def _top(task_id: int) -> Tx[int]:
    """Return the topmost task above. A chain that bites its tail (imported) ends at the oldest of its tasks."""
    rows = yield (
        "WITH RECURSIVE above(id, up) AS (SELECT id, requester_id FROM tasks WHERE id = ?"
        " UNION SELECT t.id, t.requester_id FROM tasks t JOIN above a ON t.id = a.up)"
        " SELECT a.id FROM above a LEFT JOIN tasks t ON t.id = a.up WHERE t.id IS NULL",
        (task_id,),
    )
    return int(rows[0][0]) if rows else task_id


def _lines(shown: list[int]) -> Tx[dict[int, list[TimelineEntry]]]:
    rows = yield (
        "SELECT task_id, seq, at, actor, from_phase, to_phase, reason, generation, outcome, detail FROM events"
        " WHERE task_id {any} ORDER BY task_id, seq",
        (shown,),
    )
    found: dict[int, list[TimelineEntry]] = defaultdict(list)
    for task_id, seq, at, actor, came, went, reason, *rest in rows:
        found[task_id].append(TimelineEntry(seq, at, actor, Phase(came), Phase(went), REASONS[reason], *rest))
    return found


def _marks(shown: list[int]) -> Tx[dict[int, list[Mark]] | None]:
    """None: there are too many."""
    counted = yield "SELECT COUNT(*) FROM messages WHERE session_id {any}", (shown,)
    if int(counted[0][0]) > ENTRIES_MAX:
        return None
    rows = yield (
        "SELECT session_id, seq, at, kind, CASE WHEN kind = 'answer' THEN body END FROM messages"  # noqa: S608
        f" WHERE session_id {{any}} AND {IS_WHOLE} ORDER BY session_id, seq",
        (shown,),
    )
    found: dict[int, list[Mark]] = defaultdict(list)
    for session_id, seq, at, kind, body in rows:
        found[session_id].append(_mark(seq, at, kind, body))
    return found


def _mark(seq: int, at: float, kind: str, body: str | None) -> Mark:
    said = None if body is None else messages.load(kind, body)
    if not isinstance(said, Answer) or not said.calls:
        return Mark(seq, at, kind)
    named = [(call.name, main_argument(call.args)) for call in said.calls[:CALLS_MAX]]
    return Mark(seq, at, kind, tuple(call_text(*one) for one in named), named[0])


def _asked(shown: list[int]) -> Tx[dict[int, list[Asked]]]:
    rows = yield (
        "SELECT session_id, asked_at, answered_at, kind, body FROM questions WHERE session_id {any} ORDER BY id",
        (shown,),
    )
    found: dict[int, list[Asked]] = defaultdict(list)
    for session_id, start, end, kind, body in rows:
        question = OpenQuestion(QuestionKind(kind), question_text(json.loads(body)))
        found[session_id].append(Asked(start, end, question))
    return found


def _handovers(shown: list[int]) -> Tx[dict[int, list[Handover]]]:
    """Those that reached a session: of a deferred or given-up result there is no message."""
    rows: Sequence[Row] = yield (
        "SELECT d.task_id, d.generation, d.at, d.to_session, d.transcript_seq, m.at FROM deliveries d"
        " LEFT JOIN messages m ON m.session_id = d.to_session AND m.seq = d.transcript_seq"
        " WHERE d.task_id {any} AND d.outcome IN (?, ?) ORDER BY d.id",
        (shown, Delivery.DELIVERED.value, Delivery.UNSURE.value),
    )
    found: dict[int, list[Handover]] = defaultdict(list)
    for task_id, *rest in rows:
        found[task_id].append(Handover(*rest))
    return found


def _keys(views: Sequence[TaskView], handovers: Mapping[int, Sequence[Handover]]) -> Tx[dict[int, str]]:
    wanted = {view.requester_id for view in views}
    wanted |= {one.session_id for found in handovers.values() for one in found}
    rows = yield "SELECT id, key FROM sessions WHERE id {any}", (sorted(wanted),)
    return {row[0]: row[1] for row in rows}
