"""Reads for the session tools: a transcript from its newest end, and the sessions that a caller may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clutch.core.authority import Caller
from clutch.core.ids import KeyKind, SessionKey, parse_session_key
from clutch.core.views import History, HistoryEntry, HistoryLimits, Stored, TaskView, of_result
from clutch.core.views import history as shown_of
from clutch.errors import InvalidInput, NotFound
from clutch.store.transaction import Tx
from clutch.transactions.read import targets
from clutch.transactions.read import tasks as tasks_tx
from clutch.transactions.retention import is_forgotten

NEWEST = 2**62  # no transcript is as long


def history(
    now: float,
    session_id: int,
    rules: HistoryLimits,
    limit: int | None = None,
    before: int | None = None,
    with_tools: bool = False,
    offset: int = 0,
) -> Tx[History]:
    """The newest entries before a number, within the bounds of one look; with an `offset` one entry, from there on.

    Of words that are gone the result of their task is left; without one NotFound is raised."""
    wanted = 1 if offset else rules.limit if limit is None else limit
    if not 1 <= wanted <= rules.limit_max:
        raise InvalidInput("limit", f"must be from 1 to {rules.limit_max}")
    kinds = "" if with_tools else " AND kind <> 'results'"
    rows = yield (
        "SELECT seq, at, kind, LENGTH(body), CASE WHEN LENGTH(body) <= ? THEN body END FROM messages"  # noqa: S608
        f" WHERE session_id = ? AND seq < ?{kinds} ORDER BY seq DESC LIMIT ?",
        (rules.entry_bytes_max, session_id, NEWEST if before is None else before, wanted + 1),
    )
    if not rows and (yield from is_forgotten(session_id)):
        return (yield from result(now, session_id, rules, offset))
    stored = [Stored(*row) for row in reversed(rows[:wanted])]
    return shown_of(stored, rules, with_tools=with_tools, is_more=len(rows) > wanted, offset=offset)


def result(now: float, session_id: int, rules: HistoryLimits, offset: int = 0) -> Tx[History]:
    """The result of a task as its parent got it: it outlives the transcript."""
    rows = yield (
        "SELECT CASE WHEN outcome = 'killed' THEN COALESCE(late_text, result) ELSE COALESCE(result, fallback) END,"
        " ended_at FROM tasks WHERE id = ?",
        (session_id,),
    )
    if not rows or rows[0][0] is None:
        raise NotFound("there is no result, or no transcript any more; the outcome of a task is kept")
    text, ended_at = rows[0]
    return of_result(text, now if ended_at is None else ended_at, rules, offset)


@dataclass(frozen=True, slots=True)
class SessionLine:
    """One session of a list. A main session has no task."""

    session_id: int
    key: str
    kind: KeyKind
    agent_id: str
    depth: int
    moved_at: float
    task: TaskView | None
    last: tuple[HistoryEntry, ...] = ()


#: What was deleted or archived leaves the lists; what was only archived is still found by its name.
_LISTED = (
    "deleted_at IS NULL AND (is_task = 1 OR closed = 0)"
    " AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = sessions.id AND t.archived_at IS NOT NULL)"
)


def sessions(
    now: float,
    caller: Caller,
    rules: HistoryLimits,
    kinds: Sequence[KeyKind] = (),
    limit: int | None = None,
    active_s: float | None = None,
    message_limit: int = 0,
) -> Tx[list[SessionLine]]:
    """Those the caller may see, the liveliest first. `active_s`: only those that moved within so many seconds."""
    wanted = rules.limit if limit is None else limit
    if not 1 <= wanted <= rules.limit_max:
        raise InvalidInput("limit", f"must be from 1 to {rules.limit_max}")
    if not 0 <= message_limit <= rules.messages_max:
        raise InvalidInput("messageLimit", f"must be from 0 to {rules.messages_max}")
    seen = yield from targets.sight(caller)
    within, ids = seen.within("id")
    rows = yield (
        "SELECT id, key, agent_id, depth, is_task, COALESCE(progress_at, created_at) AS moved_at FROM sessions"  # noqa: S608
        f" WHERE {within} AND COALESCE(progress_at, created_at) >= ? AND {_LISTED} ORDER BY moved_at DESC, id",
        (*ids, 0.0 if active_s is None else now - active_s),
    )
    shown = [row for row in rows if seen.sees(row[0], row[2]) and _kind(row[1], row[4]) in (kinds or KeyKind)]
    tasks = {view.task_id: view for view in (yield from tasks_tx.of(now, [row[0] for row in shown[:wanted]]))}
    lines = []
    for number, key, agent_id, depth, is_task, moved_at in shown[:wanted]:
        last: tuple[HistoryEntry, ...] = ()
        if message_limit:
            last = (yield from history(now, number, rules, message_limit)).entries
        lines.append(
            SessionLine(number, key, _kind(key, is_task), agent_id, depth, moved_at, tasks.get(number), last)
        )
    return lines


def _kind(key: str, is_task: int) -> KeyKind:
    """Imported sessions keep the key they came with."""
    parsed = parse_session_key(key)
    if isinstance(parsed, SessionKey):
        return parsed.kind
    return KeyKind.SUBAGENT if is_task else KeyKind.CHAT
