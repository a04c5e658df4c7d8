"""Invariants of resuming a session: when it is resumed, which letter comes first, and what is delivered when."""

from __future__ import annotations

from collections.abc import Iterator

from clutch.testing.invariants.history import Change, SessionShot
from clutch.testing.invariants.registry import CheckContext, invariant


@invariant(
    "N18",
    "tasks",
    "a task is done only when all results of its children were received, or waited for long enough",
)
def _children_first(change: Change, context: CheckContext) -> Iterator[str]:
    for before, after in change.tasks.values():
        if after.outcome != "ok" or before is None or before.outcome is not None:
            continue
        untold = context.working(after.id) + context.count(
            "SELECT COUNT(*) FROM tasks t JOIN inbox i ON i.task_id = t.id AND i.session_id = t.requester_id"
            " AND i.kind = 'announce' AND i.generation = t.generation AND i.state = 0"
            " WHERE t.requester_id = ? AND t.phase = 'announcing'",
            after.id,
        )
        if untold and not context.count(
            "SELECT COUNT(*) FROM events WHERE task_id = ? AND generation = ? AND reason = 'descendants expired'",
            after.id,
            after.generation,
        ):
            yield f"task {after.id} is done while {untold} of its children are not delivered"


@invariant(
    "N16", "sessions", "a waiting parent is resumed when all its children have finished, not before, and once"
)
def _woken_once(change: Change, context: CheckContext) -> Iterator[str]:
    for before, after in change.sessions.values():
        if before is None or not before.hold or before.closed or after.closed:
            continue
        opened = after.run_id is not None and before.run_id is None
        working = context.working(after.id)
        expired = before.hold_until is not None and change.now_of(after.id) >= before.hold_until
        if not after.hold and working and not expired:
            yield f"session {after.id} was resumed while {working} children work"
        if opened and after.hold and not working and not _is_by_person(change, after):
            yield f"session {after.id} was resumed and would be resumed again"
        if (
            opened
            and not after.hold
            and not expired
            and (left := context.count(_LEFT_OUT, after.id, after.run_id))
        ):
            yield f"session {after.id} was resumed without {left} of the results that were there"


#: Letters of another route have a turn of their own, and so has a user who writes in a thread.
_LEFT_OUT = (
    "SELECT COUNT(*) FROM inbox i JOIN sessions s ON s.id = i.task_id WHERE i.session_id = ?1 AND i.state = 0"
    " AND i.kind = 'announce' AND i.silent = 0 AND i.taken_seq IS NULL AND i.hook_route IS NULL AND s.bound = 0"
    " AND i.route IN (SELECT r.route FROM inbox r JOIN sessions o ON o.id = r.task_id WHERE r.session_id = ?1"
    " AND r.taken_run = ?2 AND r.kind = 'announce' AND r.silent = 0 AND o.bound = 0)"
)


def _is_by_person(change: Change, session: SessionShot) -> bool:
    run = change.runs.get(session.run_id or 0)
    return run is not None and bool(run[1].by_person)


@invariant("N17", "runs", "a user's message goes before everything else")
def _people_first(change: Change, context: CheckContext) -> Iterator[str]:
    for before, run in change.runs.values():
        if before is not None or run.by_person:
            continue
        waiting = context.count(
            "SELECT COUNT(*) FROM inbox WHERE session_id = ? AND kind = 'user' AND state = 0"
            " AND taken_run IS NULL AND ready_at <= ?",
            run.session_id,
            change.now_of(run.session_id),
        )
        if waiting:
            yield f"run {run.id} of session {run.session_id} began while a person waits"


@invariant("N16", frozenset({"begin"}), "a claimed session has something to do")
def _no_idle_claims(change: Change, context: CheckContext) -> Iterator[str]:
    for made in change.made:
        if made.name == "begin" and made.value is None and made.written:
            session_id = made.session_id
            if not _has_excuse(change, context, session_id):
                yield f"session {session_id} was claimed and found nothing to read"


def _has_excuse(change: Change, context: CheckContext, session_id: int) -> bool:
    """Parked, waited on, ended or overtaken just now; or the world changed since it was found due."""
    before, after = change.sessions[session_id]
    if before is None or before.paused or before.hold_until != after.hold_until:
        return True
    if before.hold and context.working(session_id):
        return True  # a child was spawned or worked again after all had finished
    if any(run.session_id == session_id for _, run in change.runs.values()):
        return True
    if any(letter.session_id == session_id for _, letter in change.letters.values()):
        return True
    unseen = (
        "SELECT COUNT(*) FROM inbox WHERE session_id = ? AND seen = 0"  # the mailman will look at it again
    )
    return bool(context.count(unseen, session_id)) or context.history.has_changed_since_claim(session_id)
