"""Words of main agents that no person has heard, counted. Reads."""

from __future__ import annotations

from typing import NamedTuple

from clutch.store.door import Tx


class Unheard(NamedTuple):
    """Words of main agents that no person has heard."""

    waiting: int  #: for somebody to attach
    unsent: int  #: no channel took them, and none will be tried again
    speakers: tuple[str, ...] = ()  #: the keys of the sessions whose words wait


def unheard(now: float, session_id: int | None = None) -> Tx[Unheard]:
    """Of one session, or of all. A task's own words are not among them: what becomes of those stands in the task."""
    del now
    of_one = "" if session_id is None else " AND session_id = ?"
    rows = yield (
        "SELECT (SELECT key FROM sessions WHERE id = session_id),"  # noqa: S608 (constant words)
        " COUNT(CASE WHEN due IS NOT NULL AND attempts = 0 THEN 1 END),"
        " COUNT(CASE WHEN due IS NULL THEN 1 END) FROM outbox"
        f" WHERE done_at IS NULL AND owner IS NULL AND task_id IS NULL{of_one} GROUP BY session_id ORDER BY session_id",
        () if session_id is None else (session_id,),
    )
    speakers = tuple(key for key, waiting, _ in rows if waiting and key is not None)
    return Unheard(sum(row[1] for row in rows), sum(row[2] for row in rows), speakers)
