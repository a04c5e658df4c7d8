"""The archive: a task that finished a while ago leaves lists and quotas, later perhaps its transcript goes.

`due` and `fading` only look, so that a sweep that finds nothing writes nothing. What they found is asked again under
the lock: two sweepers, or one that runs twice, do no more than one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clutch.core import authority, ids
from clutch.core import events as ev
from clutch.core.authority import Rights, Role, ToolFilter
from clutch.core.model import WORKING, Delivery, Phase, Reason, RemovalReason, Task
from clutch.core.policy import OnOrphan, Policy
from clutch.errors import NotFound
from clutch.store.transaction import Row, Tx
from clutch.transactions import inbox, outbox, questions, sessions, tasks, transcript, wake
from clutch.transactions.conditions import IS_OPEN, IS_UNTOLD
from clutch.transactions.control import NotPossible
from clutch.transactions.sessions import SessionRow

# --------------------------------------------------------------------------------------------------
# Forgetting a session: its transcript goes, its row stays.
#
# The row holds the tree together: a kill finds through it what still works below, and what comes late from there
# rises through it. Outcome, result, usage, timeline and deliveries are the task's and stay, too.


def forget(now: float, policy: Policy, session: SessionRow, why: RemovalReason) -> Tx[None]:
    """Of a closed session; the caller saves the row. What lies in its inbox unread is passed on, not lost.

    The one place where transcripts are deleted, whatever the reason."""
    if session.is_task:
        rows = yield "SELECT workspace FROM sessions WHERE id = ?", (session.id,)
        yield from outbox.removed(now, policy, session.id, session.key, why, workspace=rows[0][0])
    left = max(0, session.head - ENTRIES_MAX)
    yield from transcript.forget(session.id, left)
    yield from questions.forget(session.id)
    yield from wake.forget_events(session.id)
    yield from sessions.forget_threads(session.id)
    yield from inbox.forget(session.id)
    yield from outbox.forget(session.id)
    yield from inbox.leave_transcript(session.id)
    yield from sessions.mark_deleted(now, session.id)
    session.head, session.base = left, 0  # what is left follows in further commits (`shorten`)


def leftover(now: float) -> Tx[int | None]:
    """Return a deleted session that has entries left."""
    del now
    rows = yield "SELECT id FROM sessions WHERE deleted_at IS NOT NULL AND head > 0 ORDER BY id LIMIT 1", ()
    return rows[0][0] if rows else None


def shorten(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """Alone. The last entries of a transcript go first: what is left of it has no gap."""
    session = yield from sessions.lock(session_id)
    if session is None or not (yield from is_forgotten(session_id)):
        return
    session.head = max(0, session.head - ENTRIES_MAX)
    yield from transcript.forget(session_id, session.head)
    yield from sessions.save(now, policy, session)


def is_forgotten(session_id: int) -> Tx[bool]:
    rows = yield "SELECT 1 FROM sessions WHERE id = ? AND deleted_at IS NOT NULL", (session_id,)
    return bool(rows)


#: Of one commit: no other transaction of this process writes meanwhile. Together they take some 50 ms on PostgreSQL.
BATCH_MAX: Final = 50  # tasks
ENTRIES_MAX: Final = 5000  # entries of their transcripts; a longer transcript goes alone, in several commits
ROWS_MAX: Final = 1000  # rows of any other table: they are looked for or added up in the same commit
SURVEY_MAX: Final = 10_000  # tasks one look names
ALL_ENTRIES: Final = 2**62  # a look deletes nothing

#: Delivered, skipped or discarded. Nothing undelivered, nothing that works, no session that stays for follow-ups.
_OVER: Final = (
    "t.archived_at IS NULL AND t.ended_at IS NOT NULL AND t.stays = 0 AND (t.phase = 'completed'"
    " OR (t.phase = 'completed_giveup' AND t.delivery <> 'undelivered' AND t.wake_at IS NULL))"
)


@dataclass(frozen=True, slots=True)
class Waste:
    """What a sweep would take away now. `archived` leave lists and lose their files, `forgotten` their transcripts."""

    archived: list[int]
    forgotten: list[int]
    transcript_bytes: int


def waste(now: float, policy: Policy) -> Tx[Waste]:
    archived = yield from due(now, policy, SURVEY_MAX, ALL_ENTRIES)
    forgotten = yield from fading(now, policy, 0.0, SURVEY_MAX, ALL_ENTRIES)
    if policy.keeping.transcript_after_s == 0:
        forgotten = sorted({*archived, *forgotten})
    rows = yield "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM messages WHERE session_id {any}", (forgotten,)
    return Waste(archived, forgotten, int(rows[0][0]))


def due(
    now: float, policy: Policy, count_max: int = BATCH_MAX, entries_max: int = ENTRIES_MAX
) -> Tx[list[int]]:
    """Ended long enough ago, and for as long as that nothing has happened to it."""
    after_s = policy.keeping.archive_after_s
    if not after_s:
        return []
    rows = yield (
        "SELECT t.id, COALESCE(s.head, 0) FROM tasks t LEFT JOIN sessions s ON s.id = t.id"  # noqa: S608 (constant words)
        f" WHERE t.ended_at <= ? AND {_OVER}"
        " AND (SELECT e.at FROM events e WHERE e.task_id = t.id AND e.seq = t.seq) <= ?"
        " ORDER BY t.ended_at, t.id LIMIT ?",
        (now - after_s, now - after_s, count_max),
    )
    is_forgetting = policy.keeping.transcript_after_s == 0
    return _short(rows, entries_max) if is_forgetting else [row[0] for row in rows]


def _short(rows: Sequence[Row], entries_max: int) -> list[int]:
    """Return the first tasks whose transcripts have few enough entries for one commit, and at least one task."""
    found: list[int] = []
    entries = 0
    for task_id, head in rows:
        entries += head
        if found and entries > entries_max:
            break
        found.append(task_id)
    return found


def archive(now: float, policy: Policy, task_ids: Sequence[int]) -> Tx[list[int]]:
    """Alone. Returns those that were archived: their files can be removed."""
    held = yield from sessions.lock_all(task_ids)
    rows = yield (
        f"SELECT t.id FROM tasks t WHERE t.id {{any}} AND {_OVER} {{lock}}",  # noqa: S608 (as above)
        (list(task_ids),),
    )
    archived = sorted(row[0] for row in rows)
    yield from tasks.archive_all(now, archived)
    yield from tasks.note_all(now, policy, archived, ev.Noted(now, reason=Reason.ARCHIVED))
    if policy.keeping.transcript_after_s == 0:
        yield from _fade(now, policy, [session for session in held if session.id in archived])
    return archived


def fading(
    now: float, policy: Policy, since: float, count_max: int = BATCH_MAX, entries_max: int = ENTRIES_MAX
) -> Tx[list[int]]:
    """Archived so long ago that their transcripts may go. `since`: all that were archived before have been seen to."""
    after_s = policy.keeping.transcript_after_s
    if after_s is None:
        return []
    rows = yield (
        "SELECT t.id, s.head FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.archived_at > ? AND t.archived_at <= ?"
        " AND s.deleted_at IS NULL ORDER BY t.archived_at, t.id LIMIT ?",
        (since, now - after_s, count_max),
    )
    return _short(rows, entries_max)


def fade(now: float, policy: Policy, task_ids: Sequence[int]) -> Tx[list[int]]:
    """Alone. Those whose words went; one that works again is not archived any more."""
    held = yield from sessions.lock_all(task_ids)
    rows = yield "SELECT id FROM tasks WHERE id {any} AND archived_at IS NOT NULL", (list(task_ids),)
    archived = {row[0] for row in rows}
    faded = [session for session in held if session.id in archived]
    yield from _fade(now, policy, faded)
    return [session.id for session in faded]


def _fade(now: float, policy: Policy, faded: Sequence[SessionRow]) -> Tx[None]:
    for session in faded:
        yield from forget(now, policy, session, RemovalReason.SWEPT)
        yield from sessions.save(now, policy, session)


# --------------------------------------------------------------------------------------------------
# Details of tasks that were archived long ago: entries of their timelines, and deliveries that did not succeed.
#
# Oldest entries first, and deliveries only after them: after a crash between two commits no record looks whole, because
# the entries of a whole timeline are numbered without a gap. Entries before "archived" may be missing, none after it.

_IS_OLD: Final = (
    "t.archived_at <= ? AND t.phase IN ('completed', 'completed_giveup') AND t.delivery <> 'undelivered'"
)
_HAS_ENTRIES: Final = f"EXISTS (SELECT 1 FROM events e WHERE e.task_id = t.id AND {tasks.IS_TRIMMABLE})"  # noqa: S608 (constant words)
_HAS_DELIVERIES: Final = (
    f"EXISTS (SELECT 1 FROM deliveries d WHERE d.task_id = t.id AND {inbox.IS_TRIMMABLE})"  # noqa: S608 (constant words)
)


def trimmable(now: float, policy: Policy, since: float) -> Tx[list[int]]:
    """Archived so long ago that details may go. `since`: all that were archived before have been seen to."""
    after_s = policy.keeping.timeline_after_s
    if after_s is None:
        return []
    rows = yield (
        f"SELECT t.id FROM tasks t WHERE t.archived_at > ? AND {_IS_OLD}"  # noqa: S608 (constant words)
        f" AND ({_HAS_ENTRIES} OR {_HAS_DELIVERIES}) ORDER BY t.archived_at, t.id LIMIT ?",
        (since, now - after_s, BATCH_MAX),
    )
    return [row[0] for row in rows]


def trim(now: float, policy: Policy, task_ids: Sequence[int]) -> Tx[None]:
    """Alone. At most `ROWS_MAX` rows of each table; asked again under the lock, because a task may work again."""
    yield from sessions.lock_all(task_ids)
    rows = yield (
        f"SELECT t.id FROM tasks t WHERE t.id {{any}} AND {_IS_OLD} {{lock}}",  # noqa: S608 (constant words)
        (list(task_ids), now - (policy.keeping.timeline_after_s or 0.0)),
    )
    old = [row[0] for row in rows]
    yield from tasks.trim(old, ROWS_MAX)
    rows = yield f"SELECT t.id FROM tasks t WHERE t.id {{any}} AND NOT {_HAS_ENTRIES}", (old,)  # noqa: S608
    yield from inbox.trim_deliveries([row[0] for row in rows], ROWS_MAX)


# --------------------------------------------------------------------------------------------------
# Tasks whose session row is gone: a backup that was half restored, or an edit of the database by hand.
#
# Without its session a task can do nothing, and its children cannot find it. So it gets another row, which knows its
# transcript but not its rights, and goes the usual way: the text it had is delivered, without any it is lost. It is
# found by looking, at every sweep; a store that cannot be read finds nothing and removes nothing.

ORPHANS_MAX = 100
#: The rights it had are lost with the row: it gets none.
_NO_RIGHTS = authority.to_text(Rights(Role.LEAF, 0, 0, ToolFilter(deny=frozenset("*"))))


def find(now: float) -> Tx[list[int]]:
    del now
    rows = yield (
        f"SELECT id FROM tasks WHERE {IS_UNTOLD}"  # noqa: S608 (constant words)
        " AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = tasks.id) ORDER BY id LIMIT ?",
        (ORPHANS_MAX,),
    )
    return [row[0] for row in rows]


def adopt(now: float, policy: Policy, task_id: int) -> Tx[None]:
    """Alone. Nothing, if the session has come back, the task is over, or another sweep was first."""
    rows = yield "SELECT requester_id, root_id, depth, phase, outcome FROM tasks WHERE id = ?", (task_id,)
    if not rows:
        return
    requester_id, root_id, depth, phase, outcome = rows[0]
    requester = yield from sessions.lock_parent(requester_id)
    if (yield from sessions.lock(task_id)) is not None:
        return
    if phase == Phase.SPAWNING:
        return (yield from tasks.unmake(now, task_id, Reason.ORPHANED))
    agent_id = "main" if requester is None else requester.agent_id
    key = f"agent:{agent_id}:subagent:gone-{ids.task_id(task_id)}"
    yield from sessions.insert_adopted(
        (
            task_id, key, agent_id, requester_id, root_id, depth, _NO_RIGHTS,
            None if requester is None else requester.route, now, int(outcome is not None),
        ),
    )  # fmt: skip
    session = yield from sessions.lock(task_id)
    assert session is not None
    yield from outbox.removed(now, policy, task_id, key, RemovalReason.ORPHANED, workspace=None)
    yield from tasks.record(
        now, policy, session, ev.Orphaned(now, policy.keeping.on_orphan is OnOrphan.PRUNE)
    )
    yield from sessions.save(now, policy, session)


# --------------------------------------------------------------------------------------------------
# Deleting a session for a user: its transcript goes, or with `keep_transcript` only its place in lists and quotas.
#
# Refused while anything of it works, and while its result or one for it is not delivered;
# with `force` those become dead letters, which keep the result and can be redelivered.


def delete(
    now: float, policy: Policy, session_id: int, *, force: bool, keep_transcript: bool, actor: str
) -> Tx[None]:
    """Alone. Nothing happens the second time."""
    session = yield from sessions.lock(session_id)
    if session is None:
        raise NotFound(f"there is no session {session_id}")
    if (yield from is_forgotten(session_id)):
        return
    below = yield from sessions.lock_below(session_id)
    if any(not one.closed for one in below):
        raise NotPossible(f"a task below {session.key} still runs: kill it first")
    if session.closed == 0 and (session.owner is not None or session.run_id is not None):
        raise NotPossible(f"{session.key} is in a turn: kill it first")
    if session.is_task:
        yield from _check_task(now, policy, session, force, actor)
        yield from _archive(
            now, policy, session_id, Reason.ARCHIVED if keep_transcript else Reason.DELETED, actor
        )
    else:
        yield from _check_main(now, policy, session, force, actor)
    yield from _gone(now, policy, session, keep_transcript)


def _gone(now: float, policy: Policy, session: SessionRow, keep_transcript: bool) -> Tx[None]:
    if not session.closed:
        session.closed, session.hold, session.hold_until = 1, 0, None
    if not keep_transcript:
        yield from forget(now, policy, session, RemovalReason.DELETED)
        if not session.is_task:  # the next session of this name is a new one
            yield from sessions.set_column(session.id, "key", f"deleted:{session.id}:{session.key}")
    yield from sessions.save(now, policy, session)


def _archive(now: float, policy: Policy, task_id: int, reason: Reason, actor: str) -> Tx[None]:
    is_new = yield from tasks.archive(now, task_id)
    if is_new or reason is Reason.DELETED:
        yield from tasks.note_all(now, policy, [task_id], ev.Noted(now, reason=reason), actor)


# ---- a task's ----------------------------------------------------------------------------------------


def _check_task(now: float, policy: Policy, session: SessionRow, force: bool, actor: str) -> Tx[None]:
    task = yield from tasks.load_one(session.id)
    if task.phase in WORKING and not _waits_for_a_reader(task):
        raise NotPossible(f"{session.key} is {task.phase}: kill it first")
    is_unheard = _waits_for_a_reader(task) or task.delivery is Delivery.UNDELIVERED
    if is_unheard and not force:
        raise NotPossible(
            f"the result of {session.key} was not delivered: redeliver or dismiss it, or force (it is kept)"
        )
    if task.stays:
        yield from tasks.record(now, policy, session, ev.SessionEnded(now, Reason.DELETED), actor)
    if _waits_for_a_reader(task):
        yield from tasks.record(now, policy, session, ev.Abandoned(now, Reason.DELETED), actor)


def _waits_for_a_reader(task: Task) -> bool:
    return task.phase is Phase.ANNOUNCING or (
        task.phase is Phase.ANNOUNCE_DEFERRED and task.reason is Reason.MISSING
    )


# ---- a main one --------------------------------------------------------------------------------------


def _check_main(now: float, policy: Policy, session: SessionRow, force: bool, actor: str) -> Tx[None]:
    rows = yield (
        f"SELECT task_id, kind, silent FROM inbox WHERE session_id = ? AND {IS_OPEN} ORDER BY id",  # noqa: S608
        (session.id,),
    )
    if any(not silent for _, _, silent in rows) and not force:
        raise NotPossible(f"{session.key} has unread letters: let it read them, or force (results are kept)")
    told: dict[int, ev.Event] = {
        task_id: ev.Abandoned(now, Reason.DELETED)
        for task_id, kind, silent in rows
        if kind == "announce" and not silent
    }
    yield from tasks.record_senders(now, policy, told, actor)
    yield from inbox.void_all(session.id)
