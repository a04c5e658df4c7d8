"""The files of a task. A spawn with side work: reserved in `spawning`, queued when its files are there, or undone.

The process that spawned it creates the files and calls `ready`. If it dies before, the task's timer undoes the spawn;
a parent that resumes earlier finds the task by its key and creates the files again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from clutch.core import attachments, authority
from clutch.core import events as ev
from clutch.core.attachments import FileVersion, Handed, Removal
from clutch.core.model import FINISHED, Delivery, LetterKind, Outcome, Phase, Reason, RemovalReason, Route
from clutch.core.policy import Policy
from clutch.core.spawn import CleanupPolicy
from clutch.core.text import prompts
from clutch.store.transaction import Tx
from clutch.transactions import inbox, outbox, sessions, tasks
from clutch.transactions.retention import forget


def ready(
    now: float,
    policy: Policy,
    task_id: int,
    workspace: str | None,
    thread: Route | None = None,
    *,
    place: str | None = None,
) -> Tx[bool]:
    """`workspace`, `thread`: its own, if it has one. `place`: where its files lie. Raises ThreadTaken.

    False: it was undone or killed meanwhile, and nothing of it is wanted."""
    session = yield from sessions.lock_parent(task_id)
    if session is None:
        return False
    phase = (yield from tasks.load_one(task_id)).phase
    if phase is not Phase.SPAWNING:  # another process was faster
        return phase is not Phase.CLEANUP_PENDING and phase not in FINISHED
    if thread is not None:
        yield from sessions.bind(now, session, thread)
    ((words, spec),) = yield "SELECT task, spec FROM tasks WHERE id = ?", (task_id,)
    names = [name for name, *_ in json.loads(spec).get("attachments", ())]
    depth_max = authority.from_text(session.rights).depth_max
    first = prompts.first_message(words, session.depth, depth_max, names)
    if workspace is not None:
        yield from sessions.set_column(task_id, "workspace", workspace)
    if place is not None and (workspace is not None or names):
        yield from sessions.set_column(task_id, "place", place)
    yield from inbox.insert(now, task_id, f"task:{task_id}", LetterKind.TASK, first)
    yield from tasks.record(now, policy, session, ev.Admitted(now))
    yield from sessions.save(now, policy, session)
    yield from outbox.spawned(now, policy, [task_id])
    return True


def phase_of(now: float, task_id: int) -> Tx[Phase | None]:
    """None: there is no such task, or not any more."""
    del now
    rows = yield "SELECT phase FROM tasks WHERE id = ?", (task_id,)
    return Phase(rows[0][0]) if rows else None


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A child that is being made, as hooks and channels are asked about it."""

    session_key: str
    requester_key: str
    agent_id: str
    label: str
    route: str | None  #: of its requester


def newcomer(now: float, task_id: int) -> Tx[Newcomer | None]:
    """None: it was undone meanwhile."""
    del now
    rows = yield (
        "SELECT s.key, p.key, s.agent_id, t.label, s.route FROM sessions s JOIN tasks t ON t.id = s.id"
        " JOIN sessions p ON p.id = s.parent_id WHERE s.id = ?",
        (task_id,),
    )
    return Newcomer(*rows[0]) if rows else None


def undo(now: float, policy: Policy, task_id: int, why: str, has_thread: bool = False) -> Tx[bool]:
    """Alone. Nothing is left of it but one line in the timeline, and a requester that waits waits for one less.

    `has_thread`: a channel has made one for it. False: it was queued or killed meanwhile, and its files are not ours
    to remove."""
    rows = yield "SELECT requester_id FROM tasks WHERE id = ?", (task_id,)
    requester = (yield from sessions.lock(rows[0][0])) if rows else None
    session = yield from sessions.lock(task_id)
    if session is None:
        return True
    if (yield from tasks.load_one(task_id)).phase is not Phase.SPAWNING:
        return False
    if has_thread:
        yield from outbox.never_began(now, policy, task_id, session.key, why)
    yield from tasks.unmake(now, task_id, why)
    if requester is not None and requester.owner is None:
        yield from sessions.reschedule(now, policy, requester)
    return True


def file_versions(now: float, task_ids: Sequence[int]) -> Tx[dict[int, FileVersion]]:
    """Where the files of each lie, or lay if there is no such task any more."""
    del now
    rows = yield "SELECT id, shelf FROM tasks WHERE id {any}", (list(task_ids),)
    return {task_id: FileVersion(task_id) for task_id in task_ids} | {
        row[0]: FileVersion(*row) for row in rows
    }


def file_version_of(now: float, task_id: int) -> Tx[FileVersion]:
    return (yield from file_versions(now, [task_id]))[task_id]


def hands_over(now: float, shelf: FileVersion, handed: Handed) -> Tx[None]:
    """What lies in its `out/` while it has not ended; afterwards it is part of the result."""
    del now
    yield from tasks.set_files(shelf, handed.to_text())


def unwanted_workspaces(now: float, task_ids: Sequence[int]) -> Tx[list[int]]:
    """The spawn was undone, or killed before it began, or its session was deleted. None of those works again."""
    del now
    kept = yield _KEPT_WORKSPACES, (list(task_ids),)
    return (yield from _known_but(task_ids, {row[0] for row in kept}))


def unwanted_results(now: float, session_ids: Sequence[int]) -> Tx[list[int]]:
    """Return which of these sessions are deleted or archived."""
    del now
    rows = yield (
        "SELECT s.id FROM sessions s LEFT JOIN tasks t ON t.id = s.id WHERE s.id {any}"
        " AND (s.deleted_at IS NOT NULL OR t.archived_at IS NOT NULL)",
        (list(session_ids),),
    )
    return sorted(row[0] for row in rows)


def unwanted_saved(now: float) -> Tx[list[int]]:
    """Return sessions that are deleted or archived, and of which files are still stored."""
    del now
    rows = yield (
        "SELECT s.id FROM sessions s LEFT JOIN tasks t ON t.id = s.id WHERE s.saved IS NOT NULL"
        " AND (s.deleted_at IS NOT NULL OR t.archived_at IS NOT NULL) ORDER BY s.id LIMIT ?",
        (UNWANTED_MAX,),
    )
    return [row[0] for row in rows]


def forget_saved(now: float, session_id: int) -> Tx[None]:
    del now
    yield from sessions.set_column(session_id, "saved", None)


def unwanted_files(now: float, found: Sequence[FileVersion]) -> Tx[list[FileVersion]]:
    """The spawn was undone, or the task was killed or lost, or it is archived, or its session was deleted; or it
    works again, with another file version."""
    del now
    task_ids = sorted({shelf.task_id for shelf in found})
    kept = {FileVersion(*row) for row in (yield _KEPT_FILES, (task_ids,))}
    known = yield from _known_but(task_ids, set())
    return [shelf for shelf in found if shelf not in kept and shelf.task_id in known]


def unwanted_files_of(now: float, task_ids: Sequence[int]) -> Tx[list[FileVersion]]:
    return (yield from unwanted_files(now, list((yield from file_versions(now, task_ids)).values())))


_IS_OPEN = "phase <> 'completed' AND phase <> 'completed_giveup'"
_HAS_SESSION = "EXISTS (SELECT 1 FROM sessions s WHERE s.id = tasks.id AND s.deleted_at IS NULL)"
_KEPT_WORKSPACES = (
    f"SELECT id FROM tasks WHERE id {{any}} AND (({_IS_OPEN}) OR (started_at IS NOT NULL AND {_HAS_SESSION}))"  # noqa: S608 (constant words)
)
_KEPT_FILES = (
    f"SELECT id, shelf FROM tasks WHERE id {{any}} AND (({_IS_OPEN}) OR (outcome <> 'killed' AND outcome <> 'lost'"  # noqa: S608 (as above)
    f" AND started_at IS NOT NULL AND archived_at IS NULL AND {_HAS_SESSION}))"
)


def _known_but(task_ids: Sequence[int], kept: set[int]) -> Tx[list[int]]:
    """Only directories that this database knows: an unknown one belongs to another program, or its rows were lost and
    its files are all there is."""
    known = yield "SELECT DISTINCT task_id FROM events WHERE task_id {any}", (list(task_ids),)
    return sorted({row[0] for row in known} - kept)


# --------------------------------------------------------------------------------------------------
# Cleanup after the delivery: what is to be removed, that it was removed, that it could not be.
#
# Files are removed outside, between `awaited` and `cleaned`. After a crash in between the task's timer rings, and
# everything is done again without harm.

ERROR_CHARS_MAX = 200
UNWANTED_MAX = 200  # sessions whose stored files one sweep deletes; the next one finds the rest

_AWAITING = (
    "SELECT outcome, delivery, started_at, spec, shelf, generation FROM tasks WHERE id = ?"
    " AND (phase = 'cleanup_pending' OR (phase = 'completed_giveup' AND delivery <> 'undelivered'"
    " AND has_cleanup = 1 AND wake_at IS NOT NULL))"
)


def awaited(now: float, policy: Policy, task_id: int) -> Tx[Removal | None]:
    """None: a late hint. It is done, or the task lives again."""
    del now
    rows = yield _AWAITING, (task_id,)
    if not rows:
        return None
    outcome, delivery, started_at, spec, number, generation = rows[0]
    wanted = attachments.removal(
        outcome=None if outcome is None else Outcome(outcome),
        delivery=Delivery(delivery),
        is_begun=started_at is not None,
        is_deleted=json.loads(spec).get("cleanup") == CleanupPolicy.DELETE,
        is_retained=policy.limits.attachments.retain_on_keep,
    )
    return wanted._replace(number=number, generation=generation)


def cleaned(now: float, policy: Policy, task_id: int, done: Removal) -> Tx[None]:
    """Alone. The files are gone: now the rest, and the end, in one commit.

    A late call has removed what an earlier end of the task left; the present end waits for its own."""
    session = yield from sessions.lock(task_id)
    if session is None or (yield from awaited(now, policy, task_id)) != done:
        return
    if done.session:
        yield from forget(now, policy, session, RemovalReason.DELETED)
        yield from tasks.archive(now, task_id)
    yield from tasks.record(now, policy, session, ev.Cleaned(now))
    if done.session:
        yield from tasks.note_all(now, policy, [task_id], ev.Noted(now, reason=Reason.DELETED))
    yield from sessions.save(now, policy, session)


def failed(now: float, policy: Policy, task_id: int, wanted: Removal, error: str) -> Tx[None]:
    """Alone. It stays where it is, says why, and waits longer each time."""
    session = yield from sessions.lock(task_id)
    if session is None or (yield from awaited(now, policy, task_id)) != wanted:
        return
    rows = yield (
        "SELECT COUNT(*) FROM events WHERE task_id = ? AND reason = ?",
        (task_id, Reason.CLEANUP_FAILED),
    )
    said = ev.CleanupFailed(now, error[:ERROR_CHARS_MAX], int(rows[0][0]))
    yield from tasks.record(now, policy, session, said)
    yield from sessions.save(now, policy, session)
