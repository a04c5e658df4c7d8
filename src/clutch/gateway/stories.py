"""How things came about, as the JSON everybody is given: why, journals, histories, lists of sessions."""

from __future__ import annotations

from collections.abc import Sequence

from clutch.core import keys
from clutch.core.gates import Stuck
from clutch.core.history import History, Said
from clutch.core.replay import Step
from clutch.core.wording.lists import status
from clutch.core.wording.shown import quoted
from clutch.core.wording.why import Attempt, Happened, command, happening, opens_when, waiting_for, why_text
from clutch.gateway import objects
from clutch.gateway.objects import Object
from clutch.protocol.history import SessionLine
from clutch.protocol.why import Why


def why(now: float, found: Why) -> Object:
    """`text`: all of it as a person reads it."""
    number = keys.task_id(found.task.task_id)
    headline = f"{number} {quoted(found.task.label)}: {status(found.task)}"
    return {
        "schema": "clutch.why/1",
        "ok": True,
        "task": objects.task(found.task),
        "timeline": [_happened(line) for line in found.timeline],
        "deliveries": [_attempt(attempt) for attempt in found.attempts],
        "stuck": None if found.stuck is None else _stuck(found.stuck, number),
        "text": why_text(headline, found.timeline, found.attempts, found.stuck, number, now),
    }


def _happened(line: Happened) -> Object:
    word, text = happening(line)
    return {
        "seq": line.seq,
        "at": objects.moment(line.at),
        "actor": line.actor,
        "event": word,
        "from": line.from_phase.value,
        "to": line.to_phase.value,
        "reason": line.reason,
        "text": text,
        "late": line.is_late,
    }


def _attempt(attempt: Attempt) -> Object:
    return {
        "key": attempt.key,
        "toSession": attempt.to_session,
        "toDepth": attempt.to_depth,
        "why": attempt.why,
        "routeMode": attempt.route_mode,
        "tried": [{"path": path, "left": left} for path, left in attempt.tried],
        "path": attempt.path,
        "attempt": attempt.attempt,
        "at": objects.moment(attempt.at),
        "nextAt": objects.moment(attempt.next_at),
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "runId": None if attempt.run_id is None else keys.run_id(attempt.run_id),
        "transcriptSeq": attempt.transcript_seq,
    }


def _stuck(stuck: Stuck, number: str) -> Object:
    return {
        "gate": stuck.gate.value,
        "since": objects.moment(stuck.since),
        "waitingFor": list(waiting_for(stuck)),
        "opensWhen": opens_when(stuck),
        "command": command(stuck, number),
    }


def journal(steps: Sequence[Step], after: int, limit: int) -> Object:
    """A page of it, numbered from 1."""
    page = steps[after : after + limit]
    shown = [_step(number, step) for number, step in enumerate(page, start=after + 1)]
    return {"steps": shown, "next": after + limit if after + limit < len(steps) else None}


def _step(number: int, step: Step) -> Object:
    run_id = None if step.run_id is None else keys.run_id(step.run_id)
    told = {"n": number, "at": objects.moment(step.at), "kind": step.kind, "seq": step.seq, "runId": run_id}
    return told | {"text": step.text, "detail": dict(step.detail)}


def history(key: str | None, shown: History) -> Object:
    """What `sessions_history` answers. `before`: ask for what is older than that."""
    return {
        "sessionKey": key,
        "messages": [_said(said) for said in shown.entries],
        "truncated": shown.is_cut,
        "redacted": shown.is_redacted,
        "dropped": shown.is_dropped,
        "before": shown.before,
    }


def _said(said: Said) -> Object:
    """Only what there is: it is read by a model."""
    told: Object = {"seq": said.seq, "at": objects.moment(said.at), "kind": said.kind, "text": said.text}
    if said.source:
        told["from"] = said.source
    if said.calls:
        told["calls"] = list(said.calls)
    flags = {"truncated": said.is_cut, "redacted": said.is_redacted, "failed": said.is_failed}
    return told | {name: True for name, is_so in flags.items() if is_so}


def sessions(lines: Sequence[SessionLine]) -> Object:
    """What `sessions_list` answers."""
    return {"sessions": [_session(line) for line in lines]}


def _session(line: SessionLine) -> Object:
    view = line.task
    told: Object = {
        "sessionKey": line.key,
        "kind": line.kind.value,
        "agentId": line.agent_id,
        "depth": line.depth,
        "taskId": None if view is None else keys.task_id(view.task_id),
        "label": None if view is None else view.label,
        "status": None if view is None else status(view),
        "updatedAt": objects.moment(line.moved_at),
    }
    return told | ({"messages": [_said(said) for said in line.last]} if line.last else {})
