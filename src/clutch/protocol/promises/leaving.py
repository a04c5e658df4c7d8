"""What may go and what must stay, as SQL: cleanup and archive touch only what is over and was told. No rows, ever."""

from __future__ import annotations

from typing import Final

from clutch.protocol.promises.form import Query, Scope

_IS_OVER: Final = "t.phase IN ('completed', 'completed_giveup') AND t.delivery <> 'undelivered'"
_WORDS: Final = " OR ".join(
    f"EXISTS (SELECT 1 FROM {table} w WHERE w.session_id = s.id)"  # noqa: S608 (constant words)
    for table in ("messages", "calls", "questions", "system_events", "bindings", "doing")
)

LEAVING: Final[tuple[Query, ...]] = (
    Query(
        "N24",
        Scope.SESSION,
        "the words of a task go only after it was told, let go or killed",
        "SELECT s.id, 'was deleted while its task is ' || t.phase || ', ' || t.delivery FROM sessions s"  # noqa: S608
        f" JOIN tasks t ON t.id = s.id WHERE s.id {{touched}} AND s.deleted_at IS NOT NULL AND NOT ({_IS_OVER})",
    ),
    Query(
        "N24",
        Scope.SESSION,
        "a deleted session has no words left and works no more",
        "SELECT s.id, 'is deleted and has words' FROM sessions s WHERE s.id {touched}"  # noqa: S608
        f" AND s.deleted_at IS NOT NULL AND (s.closed = 0 OR s.head > 0 OR {_WORDS})",
    ),
    Query(
        "N24",
        Scope.TASK,
        "nothing undelivered and nothing that works is archived, and what is archived fills no quota",
        "SELECT t.id, 'is archived, ' || t.phase || ', ' || t.delivery || ', retained ' || t.retained"  # noqa: S608
        f" FROM tasks t WHERE t.id {{touched}} AND t.archived_at IS NOT NULL AND (t.retained = 1 OR NOT ({_IS_OVER}))",
    ),
    Query(
        "N24",
        Scope.END,
        "outcome and timeline outlive the words",
        "SELECT s.id, 'lost more than its words' FROM sessions s JOIN tasks t ON t.id = s.id"
        " WHERE s.deleted_at IS NOT NULL AND (t.outcome IS NULL"
        " OR t.seq <> (SELECT COUNT(*) FROM events e WHERE e.task_id = t.id))",
    ),
    Query(
        "N24",
        Scope.END,
        "what was to be deleted once told is deleted",
        "SELECT t.id, 'was told and is still there' FROM tasks t JOIN sessions s ON s.id = t.id"  # noqa: S608
        f' WHERE t.spec LIKE \'%"cleanup": "delete"%\' AND s.deleted_at IS NULL AND {_IS_OVER}',
    ),
)
