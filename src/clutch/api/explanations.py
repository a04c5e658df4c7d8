"""Explanations of a task as the JSON objects of `api/objects.py`: why it is where it is, and its journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clutch.api.views import moment, task, unsent
from clutch.core import ids as ids_rules
from clutch.core.delivery import unsent_line
from clutch.core.diagnosis import Blocker
from clutch.core.model import RETRYABLE
from clutch.core.status import doing_now, task_status
from clutch.core.text.format import typed
from clutch.core.text.tasks import headline
from clutch.core.text.why import (
    PARENT,
    DeliveryAttempt,
    ReplayStep,
    TimelineEntry,
    blocked_text,
    command,
    delivered_to,
    happening,
    opens_when,
    waiting_for,
    why_lines,
)
from clutch.core.views import TaskView
from clutch.transactions.read.why import TaskExplanation

if TYPE_CHECKING:
    from clutch.api import objects


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
