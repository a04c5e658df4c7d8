"""Views of the rules as the JSON objects of `api/objects.py`. Every surface shows what these functions build, so the
surfaces cannot disagree."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from clutch.core import checks
from clutch.core import ids as ids_rules
from clutch.core.budget import Budget
from clutch.core.checks import CheckReport
from clutch.core.questions import QuestionKind, question_status
from clutch.core.status import (
    Segment,
    activity_now,
    delivery_status,
    delivery_text,
    doing_now,
    error_text,
    group_of,
    task_status,
)
from clutch.core.text.tasks import cut_from, summary_text
from clutch.core.views import (
    DeliveryView,
    Evidence,
    PhaseCounts,
    ResultView,
    Tally,
    TaskView,
    Transcript,
    TranscriptEntry,
    WorkerView,
)

if TYPE_CHECKING:
    # Declarations are for mypy here: a command that reads without a gateway does not load them.
    from clutch.api import objects, report_objects
    from clutch.ports import OperatorNotice
    from clutch.transactions.control import KillReport
    from clutch.transactions.messages import Receipt, SteerResult
    from clutch.transactions.read.inbox import InboxItem, ItemOrigin, UnreadReplies, UnsentMessage
    from clutch.transactions.read.transcripts import SessionLine

Object: TypeAlias = dict[str, Any]  #: an object of `api/objects.py`, as a program gets it


@overload
def moment(at: float) -> str: ...


@overload
def moment(at: float | None) -> str | None: ...


def moment(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def worker(one: WorkerView, own_id: int, now: float) -> report_objects.WorkerObject:
    offset_s = one.clock_offset
    return {
        "name": one.name,
        "workerId": ids_rules.worker_id(one.id),
        "host": one.host,
        "pid": one.pid,
        "version": one.version,
        "startedAt": moment(one.started_at),
        "leaseUntil": moment(one.lease_until) if one.has_lease else None,
        "sessions": one.sessions,
        "isStale": one.is_stale(own_id, now),
        "isHere": one.id == own_id,
        "seenAt": moment(one.seen_at) if one.has_lease else None,
        "clockOffsetSeconds": None if offset_s is None else round(offset_s, 3),
        "isDraining": one.is_draining,
    }


def money(usd: Decimal | None) -> str | None:
    return None if usd is None else format(usd, "f")


def task(view: TaskView) -> objects.TaskObject:
    tool, doing = view.current_tool, doing_now(view)
    return {
        "taskId": ids_rules.task_id(view.task_id),
        "runId": None if view.run_id is None else ids_rules.run_id(view.run_id),
        "sessionKey": view.session_key,
        "requesterKey": view.requester_key,
        "rootKey": view.root_key,
        "parentTaskId": None if view.parent_task_id is None else ids_rules.task_id(view.parent_task_id),
        "depth": view.depth,
        "role": view.role,
        "agentId": view.agent_id,
        "label": view.label,
        "status": task_status(view).value,
        "doingNow": doing.text,
        "doingSince": moment(doing.since),
        "group": group_of(view).value,
        "activity": activity_now(view),
        "phase": view.phase.value,
        "reason": view.reason,
        "outcome": None if view.outcome is None else view.outcome.value,
        "error": view.error,
        "errorText": error_text(view.error),
        "modelRequested": view.model_requested,
        "share": view.share,
        "priority": view.priority.value,
        "model": view.model,
        "generation": view.generation,
        "attempt": view.attempt,
        "step": view.step,
        "resumes": view.resumes,
        "currentTool": None
        if tool is None
        else {"name": tool.name, "arg": tool.arg, "since": moment(tool.since)},
        "createdAt": moment(view.created_at),
        "startedAt": moment(view.started_at),
        "endedAt": moment(view.ended_at),
        "lastProgressAt": moment(view.progress_at),
        "deadlineAt": moment(view.deadline_at),
        "pausedUntil": moment(view.paused_until),
        "usage": {"own": tally(view.own), "subtree": tally(view.subtree)},
        "budget": None if view.budget is None else _budget(view.budget),
        "delivery": _delivery(view.delivery),
        "plan": None
        if view.plan is None
        else {"state": view.plan.state, "hash": view.plan.hash, "round": view.plan.round},
        "evidence": None if view.evidence is None else _evidence(view.evidence),
        "checks": None if view.checks is None else _checks(view.checks),
        "workerId": None if view.worker_id is None else ids_rules.worker_id(view.worker_id),
        "children": {"active": view.children_active, "total": view.children_total},
    }


def tally(used: Tally) -> objects.Use:
    return {
        "input": used.input,
        "output": used.output,
        "cacheRead": used.cache_read,
        "cacheWrite": used.cache_write,
        "calls": used.calls,
        "usd": money(used.usd),
        "unpricedCalls": used.unpriced,
    }


def _budget(budget: Budget) -> objects.BudgetAnswer:
    return {
        "tokens": budget.tokens_max,
        "usd": money(budget.usd_max),
        "spent": {"tokens": budget.tokens_spent, "usd": money(budget.usd_spent)},
        "reserved": {"tokens": budget.tokens_reserved, "usd": money(budget.usd_reserved)},
    }


def _delivery(shown: DeliveryView) -> objects.DeliveryAnswer:
    status = delivery_status(shown)
    return {
        "state": shown.state.value,
        "status": None if status is None else status.value,
        "text": delivery_text(shown),
        "path": None if shown.path is None else shown.path.value,
        "reason": shown.reason,
        "attempts": shown.attempts,
        "nextAt": moment(shown.next_at),
        "at": moment(shown.at),
    }


def _checks(report: CheckReport) -> objects.ChecksAnswer:
    results: list[objects.CheckObject] = [
        {"name": one.title, "state": one.state.value, "detail": one.detail or None} for one in report.results
    ]
    return {
        "passed": report.passed,
        "total": report.total,
        "text": checks.words(report),
        "results": results,
    }


def _evidence(shown: Evidence) -> objects.EvidenceAnswer:
    return {
        "toolCalls": shown.tool_calls,
        "filesTouched": list(shown.files_touched),
        "childrenJoined": shown.children_joined,
        "childrenMissing": list(shown.children_missing),
        "stopReason": shown.stop_reason,
    }


# ---- many --------------------------------------------------------------------------------------------


def summary(counted: PhaseCounts) -> objects.SummaryObject:
    return {
        "running": counted.running,
        "queued": counted.queued,
        "waiting": counted.waiting,
        "needsYou": counted.needs_you,
        "done": counted.done,
        "failed": counted.failed,
        "timeout": counted.timeout,
        "killed": counted.killed,
        "lost": counted.lost,
        "undelivered": counted.undelivered,
        "delivering": counted.delivering,
        "replies": counted.replies,
        "repliesIn": list(counted.speakers),
        "unsent": counted.unsent,
        "usd": money(counted.usd),
        "text": summary_text(counted),
    }


def listing(
    tasks: Sequence[TaskView],
    counted: PhaseCounts,
    following: str | None,
    cursor: str,
    spans: Mapping[int, Sequence[Segment]] | None = None,
) -> objects.TaskList:
    """Return a page of tasks. `cursor`: where the stream of events continues after what is shown here. `spans`: the
    segments of each task, if they were asked for."""
    return {
        "cursor": cursor,
        "tasks": [_listed(view, None if spans is None else spans[view.task_id]) for view in tasks],
        "summary": summary(counted),
        "next": following,
    }


def _listed(view: TaskView, found: Sequence[Segment] | None) -> objects.ListedTask:
    """Return the task; with the segments of its bar, in seconds since its creation, if they were asked for."""
    if found is None:
        return cast("objects.ListedTask", task(view))
    return {**task(view), "segments": segment_objects(found)}


def segment_objects(found: Sequence[Segment]) -> list[objects.SegmentObject]:
    return [
        {
            "activity": one.activity.value,
            "start": round(one.start, 3),
            "end": None if one.end is None else round(one.end, 3),
        }
        for one in found
    ]


def tree(tasks: Sequence[TaskView], root_id: int) -> objects.Tree:
    """Return the tree below the task `root_id`, which is one of `tasks`."""
    children = defaultdict(list)
    for view in tasks:
        children[view.requester_id].append(view)

    def node(view: TaskView) -> objects.Node:
        return {"task": task(view), "nodes": [node(child) for child in children[view.task_id]]}

    return {"root": node(next(view for view in tasks if view.task_id == root_id))}


# ---- one, in full ------------------------------------------------------------------------------------


def result(found: ResultView) -> objects.ResultObject:
    text = found.text
    return {
        "taskId": ids_rules.task_id(found.task_id),
        "outcome": None if found.outcome is None else found.outcome.value,
        "text": text,
        "value": None if found.value is None else json.loads(found.value),
        "bytes": None if text is None else len(text.encode()),
        "sha256": found.sha256,
        "truncated": text is not None and cut_from(text) is not None,
        "generation": found.generation,
        "frozenAt": moment(found.frozen_at),
        "files": [{"name": file.name, "bytes": file.bytes, "sha256": file.sha256} for file in found.files],
        "late": None if found.late is None else {"text": found.late[0], "at": moment(found.late[1])},
    }


def transcript(page: Transcript) -> objects.Messages:
    return {"messages": [message(line) for line in page.lines], "next": page.next}


def sessions(lines: Sequence[SessionLine]) -> objects.Sessions:
    return {"sessions": [_session(line) for line in lines]}


def _session(line: SessionLine) -> objects.Session:
    return {
        "sessionKey": line.key,
        "kind": line.kind.value,
        "agentId": line.agent_id,
        "depth": line.depth,
        "lastProgressAt": moment(line.moved_at),
        "task": None if line.task is None else task(line.task),
    }


def message(line: TranscriptEntry) -> objects.Message:
    return {
        "seq": line.seq,
        "at": moment(line.at),
        "runId": ids_rules.run_id(line.run_id) if line.run_id else None,
        "kind": line.kind,
        "body": json.loads(line.body),
    }


def problems(found: Sequence[OperatorNotice]) -> list[objects.HealthNotice]:
    return [
        {"subject": one.subject, "detail": one.detail, "remedy": one.remedy, "isError": one.is_error}
        for one in found
    ]


# ---- what verbs answer -------------------------------------------------------------------------------


def ids(numbers: Sequence[int]) -> list[str]:
    return [ids_rules.task_id(number) for number in numbers]


def killed(report: KillReport) -> objects.KilledObject:
    return {
        "stopped": ids(report.stopped),
        "stillStopping": _reasons(report.still_stopping),
        "alreadyFinished": ids(report.already_finished),
        "notStopped": _reasons(report.not_stopped),
    }


def _reasons(tasks: Sequence[tuple[int, str]]) -> list[objects.NotStopped]:
    return [{"taskId": ids_rules.task_id(number), "why": why} for number, why in tasks]


def steered(done: SteerResult, run_id: int | None) -> objects.SteeredObject:
    """Return the answer to a steer. `run_id`: of the run that reads the instruction; None: it has not begun."""
    return {
        "status": "accepted",
        "taskId": ids_rules.task_id(done.task.id),
        "runId": None if run_id is None else ids_rules.run_id(run_id),
        "supersedes": None if done.supersedes is None else ids_rules.run_id(done.supersedes),
    }


def receipt(found: Receipt) -> objects.ReceiptObject:
    return {"status": found.state.value, "step": found.step, "text": found.text}


def inbox(
    items: Sequence[InboxItem],
    origins: Sequence[ItemOrigin],
    replies: UnreadReplies,
    messages: Sequence[UnsentMessage],
) -> objects.Inbox:
    """Return the inbox. `replies`: messages of main agents that wait for a client. `unsent`: messages that no channel
    took, and those that may not have arrived."""
    return {
        "items": [item(one, origin) for one, origin in zip(items, origins, strict=True)],
        "replies": replies.waiting,
        "repliesIn": list(replies.speakers),
        "unsent": [unsent(one) for one in messages],
    }


def unsent(message: UnsentMessage) -> objects.Unsent:
    return {
        "id": ids_rules.message_id(message.id),
        "key": message.key,
        "sessionKey": message.session_key,
        "taskId": None if message.task_id is None else ids_rules.task_id(message.task_id),
        "channel": message.channel,
        "target": message.target,
        "text": message.text,
        "outcome": message.outcome,
        "error": message.error,
        "attempts": message.attempts,
        "triedAt": moment(message.tried_at),
    }


def item(found: InboxItem, origin: ItemOrigin) -> objects.Item:
    return {
        "id": found.id,
        "kind": found.kind,
        "status": question_status(QuestionKind(found.kind)).value,
        "taskId": None if found.task_id is None else ids_rules.task_id(found.task_id),
        "sessionKey": found.session_key,
        "agentId": origin.agent_id,
        "label": found.label,
        "depth": found.depth,
        "path": [
            {
                "sessionKey": step.session_key,
                "taskId": None if step.task_id is None else ids_rules.task_id(step.task_id),
                "label": step.label,
            }
            for step in origin.path
        ],
        "text": found.text,
        "detail": found.detail,
        "choices": list(found.detail.get("choices", ())),
        "directory": origin.directory,
        "isSandboxed": origin.is_sandboxed,
        "budget": None if origin.budget is None else _budget(origin.budget),
        "consequences": {decision.value: text for decision, text in origin.consequences.items()},
        "hash": found.hash,
        "askedAt": moment(found.asked_at),
    }
