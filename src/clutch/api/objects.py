"""Views as the JSON everybody is given: camelCase, times in RFC 3339, money as decimal text, unknown is null.

Fields may be added here, never renamed. Every surface (command line, HTTP, MCP, Python) shows these objects
and no others, so that they cannot disagree."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from clutch.core import ids as ids_rules
from clutch.core.budget import Budget
from clutch.core.text.results import cut_from
from clutch.core.views import (
    DeliveryView,
    Evidence,
    PhaseCounts,
    ResultView,
    Tally,
    TaskView,
    Transcript,
    TranscriptEntry,
)

if TYPE_CHECKING:
    from clutch.transactions.control import KillReport
    from clutch.transactions.messages import SteerResult
    from clutch.transactions.read.inbox import InboxItem, UnreadReplies, UnsentMessage
    from clutch.transactions.read.sessions import SessionLine

Object: TypeAlias = dict[str, Any]


def moment(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def money(usd: Decimal | None) -> str | None:
    return None if usd is None else format(usd, "f")


def task(view: TaskView) -> Object:
    tool = view.current_tool
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
        "phase": view.phase.value,
        "reason": view.reason,
        "outcome": None if view.outcome is None else view.outcome.value,
        "error": view.error,
        "modelRequested": view.model_requested,
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
        "delivery": _telling(view.delivery),
        "plan": None
        if view.plan is None
        else {"state": view.plan.state, "hash": view.plan.hash, "round": view.plan.round},
        "evidence": None if view.evidence is None else _evidence(view.evidence),
        "workerId": None if view.worker_id is None else ids_rules.worker_id(view.worker_id),
        "children": {"active": view.children_active, "total": view.children_total},
    }


def tally(used: Tally) -> Object:
    return {
        "input": used.input,
        "output": used.output,
        "cacheRead": used.cache_read,
        "cacheWrite": used.cache_write,
        "calls": used.calls,
        "usd": money(used.usd),
        "unpricedCalls": used.unpriced,
    }


def _budget(purse: Budget) -> Object:
    return {
        "tokens": purse.tokens_max,
        "usd": money(purse.usd_max),
        "spent": {"tokens": purse.tokens_spent, "usd": money(purse.usd_spent)},
        "reserved": {"tokens": purse.tokens_reserved, "usd": money(purse.usd_reserved)},
    }


def _telling(told: DeliveryView) -> Object:
    return {
        "state": told.state.value,
        "path": None if told.path is None else told.path.value,
        "reason": told.reason,
        "attempts": told.attempts,
        "nextAt": moment(told.next_at),
        "at": moment(told.at),
    }


def _evidence(shown: Evidence) -> Object:
    return {
        "toolCalls": shown.tool_calls,
        "filesTouched": list(shown.files_touched),
        "childrenJoined": shown.children_joined,
        "childrenMissing": list(shown.children_missing),
        "stopReason": shown.stop_reason,
    }


# ---- many --------------------------------------------------------------------------------------------


def summary(counted: PhaseCounts) -> Object:
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
        "replies": counted.replies,
        "repliesIn": list(counted.speakers),
        "unsent": counted.unsent,
        "usd": money(counted.usd),
    }


def listing(tasks: Sequence[TaskView], counted: PhaseCounts, following: str | None, cursor: str) -> Object:
    """The body of a page of tasks. `cursor`: where the stream of events goes on from what is shown here."""
    shown = {"tasks": [task(view) for view in tasks], "summary": summary(counted)}
    return {"cursor": cursor, **shown, "next": following}


def nested(tasks: Sequence[TaskView]) -> list[Object]:
    """Tasks with their children in `nodes`; on top those whose parent is not among them."""
    shown = {view.task_id: task(view) | {"nodes": []} for view in tasks}
    tops: list[Object] = []
    for view in tasks:
        siblings = shown[view.requester_id]["nodes"] if view.requester_id in shown else tops
        siblings.append(shown[view.task_id])
    return tops


def tree(tasks: Sequence[TaskView], root_id: int) -> Object:
    """`{root: {task, nodes}}` of the task `root_id`, which is one of them."""
    children = defaultdict(list)
    for view in tasks:
        children[view.requester_id].append(view)

    def node(view: TaskView) -> Object:
        return {"task": task(view), "nodes": [node(child) for child in children[view.task_id]]}

    return {"root": node(next(view for view in tasks if view.task_id == root_id))}


# ---- one, in full ------------------------------------------------------------------------------------


def result(found: ResultView) -> Object:
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


def transcript(page: Transcript) -> Object:
    return {"messages": [_line(line) for line in page.lines], "next": page.next}


def sessions(lines: Sequence[SessionLine]) -> Object:
    return {"sessions": [_session(line) for line in lines]}


def _session(line: SessionLine) -> Object:
    return {
        "sessionKey": line.key,
        "kind": line.kind.value,
        "agentId": line.agent_id,
        "depth": line.depth,
        "lastProgressAt": moment(line.moved_at),
        "task": None if line.task is None else task(line.task),
    }


def _line(line: TranscriptEntry) -> Object:
    return {
        "seq": line.seq,
        "at": moment(line.at),
        "runId": ids_rules.run_id(line.run_id) if line.run_id else None,
        "kind": line.kind,
        "body": json.loads(line.body),
    }


# ---- what verbs answer -------------------------------------------------------------------------------


def spending(by: str, rows: Sequence[tuple[str, Tally]]) -> Object:
    return {"by": by, "usage": [{"name": name, **tally(used)} for name, used in rows]}


def ids(numbers: Sequence[int]) -> list[str]:
    return [ids_rules.task_id(number) for number in numbers]


def killed(report: KillReport) -> Object:
    return {
        "stopped": ids(report.stopped),
        "stillStopping": _reasons(report.still_stopping),
        "alreadyFinished": ids(report.already_finished),
        "notStopped": _reasons(report.not_stopped),
    }


def _reasons(tasks: Sequence[tuple[int, str]]) -> list[Object]:
    return [{"taskId": ids_rules.task_id(number), "why": why} for number, why in tasks]


def steered(done: SteerResult, run_id: int | None) -> Object:
    """`run_id`: of the run that reads the instruction; None: it has not begun."""
    supersedes = None if done.supersedes is None else ids_rules.run_id(done.supersedes)
    return {
        "status": "accepted",
        "taskId": ids_rules.task_id(done.task.id),
        "runId": None if run_id is None else ids_rules.run_id(run_id),
        "supersedes": supersedes,
    }


def inbox(items: Sequence[InboxItem], words: UnreadReplies, messages: Sequence[UnsentMessage]) -> Object:
    """`replies`: messages of main agents that wait for a client. `unsent`: messages that no channel took, and
    those of which it is not known whether they arrived."""
    waiting = {"replies": words.waiting, "repliesIn": list(words.speakers)}
    return {"items": [_item(item) for item in items], **waiting, "unsent": [unsent(one) for one in messages]}


def unsent(message: UnsentMessage) -> Object:
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
        "triedAt": None if message.tried_at is None else moment(message.tried_at),
    }


def _item(item: InboxItem) -> Object:
    return {
        "id": item.id,
        "kind": item.kind,
        "taskId": None if item.task_id is None else ids_rules.task_id(item.task_id),
        "sessionKey": item.session_key,
        "label": item.label,
        "depth": item.depth,
        "text": item.text,
        "detail": item.detail,
        "hash": item.hash,
        "askedAt": moment(item.asked_at),
    }
