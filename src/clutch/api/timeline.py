"""What happened to a task, as JSON objects: `why`, its journal, and the timeline of its tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from clutch.api.views import moment, segment_objects, task, unsent
from clutch.core import ids
from clutch.core import ids as ids_rules
from clutch.core.delivery import unsent_line
from clutch.core.diagnosis import Blocker
from clutch.core.model import RETRYABLE
from clutch.core.status import activity_now, delivery_status, delivery_text, doing_now, group_of, task_status
from clutch.core.text.format import counted, typed
from clutch.core.text.tasks import headline
from clutch.core.text.why import (
    PARENT,
    TRIMMED,
    DeliveryAttempt,
    ReplayStep,
    TimelineEntry,
    blocked_lines,
    blocked_text,
    command,
    delivered_to,
    happening,
    is_trimmed,
    opens_when,
    waiting_for,
    why_lines,
)
from clutch.core.timeline import Arrow, Handover, Mark, TaskRecord, TaskSpans, arrows, critical_path, history
from clutch.core.views import TaskView
from clutch.transactions.read.inbox import PLAN
from clutch.transactions.read.why import SessionExplanation, TaskExplanation

if TYPE_CHECKING:
    from clutch.api import objects
    from clutch.api.report_objects import (
        CriticalStage,
        DeliveryArrow,
        LaneState,
        TimelineLane,
        ToolTick,
        TreeTimeline,
    )
    from clutch.transactions.read.trees import RecordedTree


# --------------------------------------------------------------------------------------------------
# Explanations of a task as the JSON objects of `api/objects.py`: why it is where it is, and its journal.


def why(now: float, found: TaskExplanation, state: str | None = None) -> objects.WhyDocument:
    """Explain a task. `text` is the whole explanation as a user reads it. `state`: the state directory that printed
    commands must name."""
    number = ids_rules.task_id(found.task.task_id)
    targets = delivered_to(found.attempts)
    return {
        "schema": "clutch.why/1",
        "ok": True,
        "task": task(found.task),
        "timeline": [_happened(line, targets.get(line.at, PARENT)) for line in found.timeline],
        "deliveries": [_attempt(attempt) for attempt in found.attempts],
        "stuck": None if found.stuck is None else _stuck(found.stuck, number, state),
        "messages": [unsent(one) for one in found.unsent],
        "text": "\n".join(
            (
                headline(found.task),
                *why_lines(found.timeline, found.attempts, found.stuck, number, now=now, state=state),
                *_failure(found.task, number, state),
                *(
                    unsent_line(
                        ids_rules.message_id(one.id),
                        f"{one.channel}:{one.target}",
                        *one[5:8],
                        attempts=one.attempts,
                    )
                    for one in found.unsent
                ),
            )
        ),
    }


def session_why(now: float, found: SessionExplanation, state: str | None = None) -> objects.WhyDocument:
    """Explain a main session: it has no task and no timeline, only what it waits for."""
    chat, stuck = found.chat, found.stuck
    lines = [f"{chat.key} · {chat.status or 'idle'} · {counted(chat.children, 'active subagent')}"]
    if stuck is not None:
        lines += blocked_lines(stuck, chat.key, now=now, state=state)
    for one in found.items:
        named = f"{one.label or one.session_key or 'the gateway'} ({one.id})"
        is_plan = one.kind == PLAN
        held = " No result of a subagent is read here before it." if is_plan and chat.children else ""
        lines.append(f"{one.kind.capitalize()} of {named} needs a decision.{held}")
        words = ("approve", one.id, "--hash", one.hash) if is_plan else ("inbox",)
        lines.append(f"  -> {typed(*words, state=state)}")
    return {
        "schema": "clutch.why/1",
        "ok": True,
        "task": None,
        "timeline": [],
        "deliveries": [],
        "stuck": None if stuck is None else _stuck(stuck, chat.key, state),
        "messages": [],
        "text": "\n".join(lines),
    }


def _failure(view: TaskView, number: str, state: str | None) -> Iterator[str]:
    """The error of a task that a retry may bring to a result, and the command for it."""
    if task_status(view) in RETRYABLE:
        yield f"Error: {doing_now(view).text}"
        yield f"  -> {typed('retry', number, state=state)}"


def _happened(line: TimelineEntry, target: str) -> objects.Happened:
    word, text = happening(line, target)
    return {
        "seq": line.seq,
        "at": moment(line.at),
        "actor": line.actor,
        "event": word,
        "from": line.from_phase.value,
        "to": line.to_phase.value,
        "reason": line.reason,
        "text": text,
        "late": line.is_late,
    }


def _attempt(attempt: DeliveryAttempt) -> objects.Attempt:
    return {
        "key": attempt.key,
        "toSession": attempt.to_session,
        "toDepth": attempt.to_depth,
        "why": attempt.why,
        "routeMode": attempt.route_mode,
        "tried": [{"path": path, "left": left} for path, left in attempt.tried],
        "path": attempt.path,
        "attempt": attempt.attempt,
        "at": moment(attempt.at),
        "nextAt": moment(attempt.next_at),
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "runId": None if attempt.run_id is None else ids_rules.run_id(attempt.run_id),
        "transcriptSeq": attempt.transcript_seq,
    }


def _stuck(stuck: Blocker, number: str, state: str | None) -> objects.Stuck:
    return {
        "gate": stuck.gate.value,
        "text": blocked_text(stuck),
        "since": moment(stuck.since),
        "waitingFor": list(waiting_for(stuck)),
        "opensWhen": opens_when(stuck),
        "command": typed(*command(stuck, number), state=state),
    }


def journal(steps: Sequence[ReplayStep], after: int, limit: int) -> objects.Journal:
    """Return a page of the journal; its steps are numbered from 1."""
    page = steps[after : after + limit]
    shown = [_step(number, step) for number, step in enumerate(page, start=after + 1)]
    return {"steps": shown, "next": after + limit if after + limit < len(steps) else None}


def _step(number: int, step: ReplayStep) -> objects.Step:
    return {
        "n": number,
        "at": moment(step.at),
        "kind": step.kind,
        "seq": step.seq,
        "runId": None if step.run_id is None else ids_rules.run_id(step.run_id),
        "text": step.text,
        "detail": dict(step.detail),
    }


TOOLS_MAX = 500  #: ticks of one lane


def timeline(now: float, found: RecordedTree, cursor: str) -> TreeTimeline:
    histories = {number: history(record) for number, record in found.records.items()}
    lanes: list[TimelineLane] = [
        {
            "task": task(record.view),
            "segments": segment_objects(found.spans[number]),
            "states": list(_states(histories[number])),
            "tools": _tools(record)[-TOOLS_MAX:],
        }
        for number, record in found.records.items()
    ]
    return {
        "root": ids.task_id(found.root_id),
        "at": moment(now),
        "cursor": cursor,
        "lanes": lanes,
        "deliveries": [
            _arrow(found, record.view, arrow)
            for number, record in found.records.items()
            for arrow in arrows(histories[number], found.handovers.get(number, ()))
        ],
        "criticalPath": _path(now, found, histories),
        "total": found.total,
        "notice": _notice(found),
    }


def _notice(found: RecordedTree) -> str | None:
    shown, left = len(found.records), []
    if found.total > shown:
        left.append(f"Showing the first {shown:,} of {found.total:,} tasks.")
    if not found.is_detailed:
        left.append("Tool calls are not shown: the transcripts of this tree are too long.")
    if any(is_trimmed(record.lines) for record in found.records.values()):
        left.append(TRIMMED)
    return " ".join(left) or None


def _states(views: Sequence[TaskView]) -> Iterator[LaneState]:
    """A moment that changes nothing of what is shown is left out."""
    before: LaneState | None = None
    for view in views:
        state = _state(view)
        if before is None or {**before, "at": ""} != {**state, "at": ""}:
            yield state
        before = state


def _state(view: TaskView) -> LaneState:
    doing, status = doing_now(view), delivery_status(view.delivery)
    return {
        "at": moment(view.at),
        "status": task_status(view).value,
        "doingNow": doing.text,
        "doingSince": moment(doing.since),
        "group": group_of(view).value,
        "activity": activity_now(view),
        "outcome": None if view.outcome is None else view.outcome.value,
        "generation": view.generation,
        "step": view.step,
        "startedAt": moment(view.started_at),
        "endedAt": moment(view.ended_at),
        "deliveryStatus": None if status is None else status.value,
        "deliveryText": delivery_text(view.delivery),
        "children": {"active": view.children_active, "total": view.children_total},
    }


def _tools(record: TaskRecord) -> list[ToolTick]:
    """One tick per answer with calls. Its tools work until the entry with their results, which is the next one."""
    end = Mark(0, record.view.at, "")
    return [
        {
            "at": moment(said.at),
            "end": None if gave is end else moment(gave.at),
            "text": f"{counted(len(said.calls), 'call')}: {'; '.join(said.calls)}"
            if len(said.calls) > 1
            else said.calls[0],
            "message": said.seq,
        }
        for said, gave in pairwise([*record.marks, end])
        if said.calls and said.at >= record.view.created_at
    ]


def _arrow(found: RecordedTree, view: TaskView, arrow: Arrow) -> DeliveryArrow:
    taken = arrow.handover or Handover(arrow.generation, 0.0, view.requester_id, None, None)
    is_there = arrow.handover is not None
    return {
        "taskId": ids.task_id(view.task_id),
        "generation": arrow.generation,
        "endedAt": moment(arrow.ended_at),
        "toTask": ids.task_id(taken.session_id) if taken.session_id in found.records else None,
        "toSession": found.sessions.get(taken.session_id),
        "message": taken.seq,
        "readAt": moment((taken.read_at or taken.at) if is_there else None),
        "deliveredAt": moment(taken.at if is_there else None),
        "states": [
            {"at": moment(one.at), "status": status.value, "text": delivery_text(one.delivery)}
            for one in arrow.states
            if (status := delivery_status(one.delivery)) is not None
        ],
    }


def _path(now: float, found: RecordedTree, histories: dict[int, list[TaskView]]) -> list[CriticalStage]:
    spans = []
    for number, record in found.records.items():
        ends = [one.ended_at for one in arrows(histories[number], ())]
        is_over = record.view.outcome is not None and bool(ends)
        parent = record.view.parent_task_id if number != found.root_id else None
        spans.append(
            TaskSpans(
                number,
                parent,
                record.view.created_at,
                ends[-1] if is_over else None,
                found.spans[number],
                ends,
            )
        )
    return [
        {
            "taskId": ids.task_id(stage.task_id),
            "start": moment(stage.start),
            "end": moment(stage.end),
            "activity": stage.activity,
        }
        for stage in critical_path(found.root_id, spans, now)
    ]
