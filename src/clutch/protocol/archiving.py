"""The archive: what has been over for a while leaves lists and quotas, later perhaps its words.

`due` and `fading` only look, so that a sweep that finds nothing writes nothing. What they found is asked again under
the lock: two sweepers, or one that runs twice, do no more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clutch.core.hooks import Removal as Reason
from clutch.core.policy import Policy
from clutch.protocol import sessions
from clutch.protocol.forgetting import forget
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx

BATCH_MAX: Final = 100  # tasks in one commit: nobody else writes meanwhile
SURVEY_MAX: Final = 10_000  # tasks one look names

#: Told, skipped or let go. Nothing undelivered, nothing that works, no session that stays for follow-ups.
_OVER: Final = (
    "t.archived_at IS NULL AND t.ended_at IS NOT NULL AND t.stays = 0 AND (t.phase = 'completed'"
    " OR (t.phase = 'completed_giveup' AND t.delivery <> 'undelivered' AND t.wake_at IS NULL))"
)


@dataclass(frozen=True, slots=True)
class Waste:
    """What a sweep would take away now. `archived` leave lists and lose their files, `forgotten` their words."""

    archived: list[int]
    forgotten: list[int]
    transcript_bytes: int


def waste(now: float, policy: Policy) -> Tx[Waste]:
    archived = yield from due(now, policy, SURVEY_MAX)
    forgotten = yield from fading(now, policy, 0.0, SURVEY_MAX)
    if policy.keeping.transcript_after_s == 0:
        forgotten = sorted({*archived, *forgotten})
    rows = yield "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM messages WHERE session_id {any}", (forgotten,)
    return Waste(archived, forgotten, int(rows[0][0]))


def due(now: float, policy: Policy, count_max: int = BATCH_MAX) -> Tx[list[int]]:
    """Ended long enough ago, and for as long as that nothing has happened to it."""
    after_s = policy.keeping.archive_after_s
    if not after_s:
        return []
    rows = yield (
        f"SELECT t.id FROM tasks t WHERE t.ended_at <= ? AND {_OVER}"  # noqa: S608 (constant words)
        " AND (SELECT e.at FROM events e WHERE e.task_id = t.id AND e.seq = t.seq) <= ?"
        " ORDER BY t.ended_at, t.id LIMIT ?",
        (now - after_s, now - after_s, count_max),
    )
    return [row[0] for row in rows]


def archive(now: float, policy: Policy, task_ids: Sequence[int]) -> Tx[list[int]]:
    """Alone. Those that were archived: their files are nobody's any more."""
    held = yield from sessions.lock_all(task_ids)
    rows = yield (
        f"SELECT t.id FROM tasks t WHERE t.id {{any}} AND {_OVER} {{lock}}",  # noqa: S608 (as above)
        (list(task_ids),),
    )
    archived = sorted(row[0] for row in rows)
    yield "UPDATE tasks SET archived_at = ?, retained = 0 WHERE id {any}", (now, archived)
    if policy.keeping.transcript_after_s == 0:
        yield from _fade(now, policy, [session for session in held if session.id in archived])
    return archived


def fading(now: float, policy: Policy, since: float, count_max: int = BATCH_MAX) -> Tx[list[int]]:
    """Archived so long ago that their words may go. `since`: all that were archived before have been seen to."""
    after_s = policy.keeping.transcript_after_s
    if after_s is None:
        return []
    rows = yield (
        "SELECT t.id FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.archived_at > ? AND t.archived_at <= ?"
        " AND s.deleted_at IS NULL ORDER BY t.archived_at, t.id LIMIT ?",
        (since, now - after_s, count_max),
    )
    return [row[0] for row in rows]


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
        yield from forget(now, policy, session, Reason.SWEPT)
        yield from sessions.save(now, policy, session)
