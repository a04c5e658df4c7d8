"""Reads of many: a page of tasks by what is wanted of them, how many there are, transcripts in pieces.

The order is that of creation and never changes, so a page after a cursor neither repeats nor skips a task,
whatever happens to them meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from clutch.core import keys
from clutch.core.attachments import handed
from clutch.core.model import UNTOLD, Outcome, Phase
from clutch.core.task_view import Line, ResultView, Summary, TaskView, Transcript
from clutch.errors import InvalidInput
from clutch.protocol import views
from clutch.protocol.conditions import IS_UNTOLD
from clutch.protocol.unheard import unheard as unheard_words
from clutch.store.door import Tx

LIMIT_MAX = 200
PAGE_MAX = 200  # messages
_MOMENT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,17})?(e[+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Wanted:
    """None and False: whatever. `ended_after`: leaves out what is archived, or had ended before that and was told."""

    root_id: int | None = None
    requester_id: int | None = None
    phase: Phase | None = None
    outcome: Outcome | None = None
    label: str | None = None
    is_undelivered: bool = False
    ended_after: float | None = None


EVERYTHING = Wanted()


@dataclass(frozen=True, slots=True)
class Page:
    tasks: list[TaskView] = field(default_factory=list)
    next: str | None = None  #: the cursor of the page after this one


def page(now: float, wanted: Wanted = EVERYTHING, limit: int = 50, cursor: str | None = None) -> Tx[Page]:
    """At most `limit` tasks, those made after the one the cursor stands for."""
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidInput("limit", f"must be from 1 to {LIMIT_MAX}")
    where, values = _conditions(wanted)
    # With a plus the order has no index of its own: whatever narrows the search has one that is better.
    order = "created_at, id" if wanted == EVERYTHING else "+created_at, id"
    if cursor is not None:
        where, values = f"{where} AND (created_at, id) > (?, ?)", (*values, *_place(cursor))
    rows = yield (
        f"SELECT id, created_at FROM tasks WHERE {where} ORDER BY {order} LIMIT ?",  # noqa: S608
        (*values, limit + 1),
    )
    shown = rows[:limit]
    is_more = len(rows) > limit
    tasks = yield from views.of(now, [row[0] for row in shown])
    return Page(tasks, _cursor(*shown[-1]) if is_more else None)


def _cursor(task_id: int, created_at: float) -> str:
    return f"{created_at!r}:{keys.task_id(task_id)}"


def _place(cursor: str) -> tuple[float, int]:
    made, _, task = cursor.partition(":")
    number = keys.parse_task_id(task)
    if number is None or not _MOMENT.fullmatch(made):
        raise InvalidInput("cursor", "must be one that a page named as its next")
    return float(made), number


def _conditions(wanted: Wanted) -> tuple[str, tuple[Any, ...]]:
    """Constant words and their values. Each that narrows most has an index of its own."""
    pairs = list(_pairs(wanted))
    words = " AND ".join(["1 = 1", *(word for word, _ in pairs)])
    return words, tuple(value for _, given in pairs for value in given)


def _pairs(wanted: Wanted) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if wanted.root_id is not None:
        yield "root_id = ?", (wanted.root_id,)
    if wanted.requester_id is not None:
        yield "requester_id = ?", (wanted.requester_id,)
    if wanted.phase is not None:
        yield "phase = ?", (wanted.phase.value,)
        if wanted.phase in UNTOLD:
            yield IS_UNTOLD, ()  # the words of the index of those
    if wanted.outcome is not None:
        yield "outcome = ?", (wanted.outcome.value,)
    if wanted.label is not None:
        yield "label = ?", (wanted.label,)
    if wanted.is_undelivered:
        yield "delivery = 'undelivered'", ()
    if wanted.ended_after is not None:
        yield _STILL_SHOWN, (wanted.ended_after,)


#: Three indexes, so that years of finished work cost nothing. (Without ALL, SQLite merges three scans.)
_STILL_SHOWN = (
    f"id IN (SELECT id FROM tasks WHERE {IS_UNTOLD}"  # noqa: S608 (constant words)
    " UNION ALL SELECT id FROM tasks WHERE delivery = 'undelivered'"
    " UNION ALL SELECT id FROM tasks WHERE archived_at IS NULL AND ended_at IS NOT NULL AND ended_at >= ?)"
)


# ---- how many ----------------------------------------------------------------------------------------


def summary(now: float, wanted: Wanted = EVERYTHING) -> Tx[Summary]:
    where, values = _conditions(wanted)
    rows = yield (
        "SELECT phase, CASE WHEN phase = 'paused' THEN reason ELSE '' END AS why, outcome, delivery, COUNT(*)"  # noqa: S608
        f" FROM tasks WHERE {where} GROUP BY phase, why, outcome, delivery",
        values,
    )
    counts: dict[str, int] = {}
    for phase, why, outcome, delivery, count in rows:
        word = _word(Phase(phase), why, outcome)
        counts[word] = counts.get(word, 0) + count
        if delivery == "undelivered":
            counts["undelivered"] = counts.get("undelivered", 0) + count
    spent = yield (
        f"SELECT {views.SPENT} FROM usage u WHERE u.state > 0"  # noqa: S608
        f" AND u.session_id IN (SELECT id FROM tasks WHERE {where})",
        values,
    )
    unheard = yield from unheard_words(now, wanted.root_id)
    usd = views.tally(spent[0]).usd if spent[0][4] else None
    words = {"replies": unheard.waiting, "unsent": unheard.unsent}
    return Summary(**counts, **words, speakers=unheard.speakers, usd=usd)


def _word(phase: Phase, why: str, outcome: str | None) -> str:
    match phase:
        case Phase.RUNNING:
            return "running"
        case Phase.SPAWNING | Phase.QUEUED:
            return "queued"
        case Phase.AWAITING_APPROVAL:
            return "needs_you"
        case Phase.PAUSED:
            return "needs_you" if why == "needs-you" else "waiting"
        case Phase.ENDING | Phase.ANNOUNCING | Phase.ANNOUNCE_DEFERRED:
            return "waiting"
        case _:
            return _ENDS.get(outcome or "", "done")


_ENDS = {"error": "failed", "timeout": "timeout", "killed": "killed", "lost": "lost"}


# ---- one, in full ------------------------------------------------------------------------------------


def result(now: float, task_id: int) -> Tx[ResultView | None]:
    """None: there is no such task. Without an outcome there is no result yet."""
    del now
    rows = yield (
        "SELECT phase, outcome, result, value, result_sha, generation, ended_at, files, late_text, late_at"
        " FROM tasks WHERE id = ?",
        (task_id,),
    )
    if not rows:
        return None
    phase, outcome, text, value, sha, generation, ended_at, files, *late = rows[0]
    return ResultView(
        task_id,
        Phase(phase),
        None if outcome is None else Outcome(outcome),
        text,
        value,
        sha,
        generation,
        ended_at,
        None if late[0] is None else (late[0], late[1]),
        handed(files).files,
    )


def transcript(now: float, session_id: int, after: int = 0, limit: int = PAGE_MAX) -> Tx[Transcript]:
    """In order, at most `limit` entries beyond the number `after`."""
    del now
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidInput("limit", f"must be from 1 to {PAGE_MAX}")
    rows = yield (
        "SELECT seq, at, run_id, kind, body FROM messages WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
        (session_id, after, limit + 1),
    )
    lines = tuple(Line(*row) for row in rows[:limit])
    return Transcript(lines, lines[-1].seq if len(rows) > limit else None)
