"""How things came about, as the JSON everybody is given: why, and journals."""

from __future__ import annotations

from collections.abc import Sequence

from clutch.core import keys
from clutch.core.gates import Stuck
from clutch.core.replay import Step
from clutch.core.shown import quoted, typed
from clutch.core.wording.lists import status
from clutch.core.wording.why import Attempt, Happened, command, happening, opens_when, waiting_for, why_text
from clutch.gateway import objects
from clutch.gateway.objects import Object
from clutch.protocol.why import Why


def why(now: float, found: Why, state: str | None = None) -> Object:
    """`text`: all of it as a person reads it. `state`: as commands must name it to run as they are printed."""
    number = keys.task_id(found.task.task_id)
    headline = f"{number} {quoted(found.task.label)}: {status(found.task)}"
    return {
        "schema": "clutch.why/1",
        "ok": True,
        "task": objects.task(found.task),
        "timeline": [_happened(line) for line in found.timeline],
        "deliveries": [_attempt(attempt) for attempt in found.attempts],
        "stuck": None if found.stuck is None else _stuck(found.stuck, number, state),
        "text": why_text(headline, found.timeline, found.attempts, found.stuck, number, now, state),
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


def _stuck(stuck: Stuck, number: str, state: str | None) -> Object:
    return {
        "gate": stuck.gate.value,
        "since": objects.moment(stuck.since),
        "waitingFor": list(waiting_for(stuck)),
        "opensWhen": opens_when(stuck),
        "command": typed(*command(stuck, number), state=state),
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
