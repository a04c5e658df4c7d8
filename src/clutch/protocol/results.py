"""Reads for somebody who waits: has a task ended for good, and with what?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clutch.core.attachments import StoredFile, handed
from clutch.core.model import Outcome
from clutch.store.door import Tx


@dataclass(frozen=True, slots=True)
class Ended:
    task_id: int
    outcome: Outcome
    text: str | None
    error: str | None
    value: str | None = None  #: JSON, if a form was asked for
    files: tuple[StoredFile, ...] = ()


def ended(now: float, task_ids: Sequence[int]) -> Tx[list[Ended]]:
    """Those of them that have."""
    del now
    rows = yield (
        "SELECT id, outcome, COALESCE(result, fallback), error, value, files FROM tasks WHERE id {any}"
        " AND outcome IS NOT NULL",
        (list(task_ids),),
    )
    return [
        Ended(task_id, Outcome(outcome), text, error, value, handed(files).files)
        for task_id, outcome, text, error, value, files in rows
    ]


def known(now: float, task_id: int) -> Tx[tuple[str, str] | None]:
    """Label and session key of a task."""
    del now
    rows = yield (
        "SELECT t.label, COALESCE(s.key, '') FROM tasks t LEFT JOIN sessions s ON s.id = t.id WHERE t.id = ?",
        (task_id,),
    )
    return (str(rows[0][0]), str(rows[0][1])) if rows else None
