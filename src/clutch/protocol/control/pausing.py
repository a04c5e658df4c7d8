"""Pause and resume: a subtree parks at its next boundaries and frees its slots, then goes on."""

from __future__ import annotations

from clutch.core import events as ev
from clutch.core.policy import Policy
from clutch.protocol import sessions, tasks
from clutch.protocol.control.state import record_or_note, subtree
from clutch.store.door import HINT, Tx


def pause(now: float, policy: Policy, task_id: int, actor: str) -> Tx[tuple[int, ...]]:
    """The subtree parks at the next boundary of each. Whoever is not owned is at one already."""
    changed = []
    for session in (yield from subtree(task_id)):
        if session.closed or session.paused:
            continue
        session.paused = 1
        if session.owner is not None:
            yield from tasks.record(now, policy, session, ev.Noted(now, "pauses at its next step"), actor)
            yield HINT, ("pause", session.id)  # foreign code has no steps
        else:
            if session.run_id is not None:
                yield (
                    "UPDATE runs SET parked_until = COALESCE(parked_until, ?) WHERE id = ?",
                    (now, session.run_id),
                )
            yield from record_or_note(now, policy, session, ev.Paused(now), "paused", actor)
        yield from sessions.save(now, policy, session)
        changed.append(int(session.id))
    return tuple(changed)


def resume(now: float, policy: Policy, task_id: int, actor: str) -> Tx[tuple[int, ...]]:
    changed = []
    for session in (yield from subtree(task_id)):
        if session.paused:
            session.paused = 0
            yield from record_or_note(now, policy, session, ev.Unpaused(now), "resumed", actor)
            yield from sessions.save(now, policy, session)
            changed.append(int(session.id))
    return tuple(changed)
