"""Lists of tasks: a page by a filter, how many tasks there are, a result, and a transcript in pieces.

A list has five groups: tasks that need the user, undelivered results, running tasks, queued tasks, and finished tasks,
newest first. The first page holds everything that needs the user or is active, however much that is; the limit cuts
only what has ended. The cursor of the next page is a place in the order in which tasks ended. That order does not
change, so that a page after it neither repeats nor skips a finished task."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from clutch.core import ids
from clutch.core.attachments import handed
from clutch.core.model import NEEDS_USER, REASONS, UNTOLD, Delivery, Outcome, Phase, TaskStatus
from clutch.core.questions import QuestionKind
from clutch.core.status import FAILED, ListGroup, list_group, status_of
from clutch.core.views import PhaseCounts, ResultView, TaskView, Transcript, TranscriptEntry, WorkerView
from clutch.errors import InvalidInput
from clutch.store.transaction import Row, Tx
from clutch.transactions.conditions import IS_UNTOLD, wait_columns
from clutch.transactions.read import tasks
from clutch.transactions.read.inbox import unread_replies as unheard_words

LIMIT_MAX = 200
PAGE_MAX = 200  # messages
_MOMENT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,17})?(e[+-]?[0-9]{1,3})?")


class ListState(StrEnum):
    """A part of a list that the user asked for."""

    ACTIVE = "active"
    ATTENTION = "attention"  #: a user must decide before it resumes
    FINISHED = "finished"
    FAILED = "failed"  #: finished without a result that counts
    UNDELIVERED = "undelivered"


_ALIVE_STATES = frozenset({None, ListState.ACTIVE, ListState.ATTENTION})
_ENDED_STATES = frozenset({None, ListState.FINISHED, ListState.FAILED, ListState.UNDELIVERED})


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """None and False: no condition. `ended_after`: leaves out archived tasks, and delivered ones that ended before."""

    root_id: int | None = None
    requester_id: int | None = None
    phase: Phase | None = None
    outcome: Outcome | None = None
    label: str | None = None
    is_undelivered: bool = False
    ended_after: float | None = None
    state: ListState | None = None
    agent: str | None = None
    text: str | None = None  #: in its label, its task or its result, or its id


EVERYTHING = TaskFilter()


@dataclass(frozen=True, slots=True)
class TaskPage:
    tasks: list[TaskView] = field(default_factory=list)
    next: str | None = None  #: the cursor of the page after this one


class PageSection(StrEnum):
    """Tasks that have ended, in the order in which pages go through them."""

    UNDELIVERED = "undelivered"
    FINISHED = "finished"


#: When a task ended, and its number. None: the newest of its group.
Place: TypeAlias = tuple[float, int] | None


def task_page(
    now: float,
    wanted: TaskFilter = EVERYTHING,
    limit: int = 50,
    cursor: str | None = None,
    *,
    newest: int = 0,
) -> Tx[TaskPage]:
    """The first page, or the one after the cursor: at most `limit` tasks, more only where more are active.

    `newest`: the first page has so many of the newest finished tasks, however many are active."""
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidInput("limit", f"must be from 1 to {LIMIT_MAX}")
    group, place = (PageSection.UNDELIVERED, None) if cursor is None else _place(cursor)
    newest = newest if cursor is None else 0
    waiting, active = list[int](), list[int]()
    if cursor is None and wanted.state in _ALIVE_STATES:
        waiting, active = yield from _alive(now, wanted)
        active = [] if wanted.state is ListState.ATTENTION else active
    undelivered, finished, after = list[int](), list[int](), None
    if group is PageSection.UNDELIVERED and wanted.state in _ENDED_STATES:
        undelivered, after = yield from _ended(wanted, group, place, limit)
        place = None
    if after is None and wanted.state in _ENDED_STATES - {ListState.UNDELIVERED}:
        room = max(newest, limit - len(waiting) - len(undelivered) - len(active))
        finished, after = yield from _ended(wanted, PageSection.FINISHED, place, room)
    order = [*waiting, *undelivered, *active, *finished]
    shown = {view.task_id: view for view in (yield from tasks.of(now, order))}
    return TaskPage([shown[task_id] for task_id in order], after)


def _alive(now: float, wanted: TaskFilter) -> Tx[tuple[list[int], list[int]]]:
    """Without an outcome yet: those that need the user, and the others, running before queued. Each group in the order
    of creation."""
    where, values = _conditions(replace(wanted, ended_after=None))
    rows = yield (
        f"SELECT id, phase, reason, {wait_columns('tasks')} FROM tasks"  # noqa: S608 (constant words)
        f" WHERE {where} AND {IS_UNTOLD} AND outcome IS NULL ORDER BY +created_at, id",
        values,
    )
    groups = defaultdict[ListGroup, list[int]](list)
    for task_id, phase, reason, *wait in rows:
        groups[list_group(_status(now, phase, reason, None, wait))].append(task_id)
    return groups[ListGroup.NEEDS_USER], groups[ListGroup.RUNNING] + groups[ListGroup.QUEUED]


def _status(now: float, phase: str, reason: str, outcome: str | None, wait: Sequence[Any]) -> TaskStatus:
    """`wait`: the values of `wait_columns`."""
    ended = None if outcome is None else Outcome(outcome)
    asked, is_paused, parked_until = wait
    return status_of(
        Phase(phase),
        REASONS[reason],
        ended,
        question=None if asked is None else QuestionKind(asked.partition(" ")[0]),
        is_due=parked_until is not None and parked_until <= now,
        is_paused=bool(is_paused),
    )


def _ended(
    wanted: TaskFilter, group: PageSection, place: Place, room: int
) -> Tx[tuple[list[int], str | None]]:
    """Of one group, the newest after that place; with a cursor if there are more."""
    rows: list[Row] = []
    beyond = "" if place is None else " AND (ended_at, id) < (?, ?)"
    for order, where, values in _searches(wanted, group):
        rows += yield (
            f"SELECT id, ended_at FROM tasks WHERE {where}{beyond} ORDER BY {order} DESC, id DESC LIMIT ?",  # noqa: S608
            (*values, *(place or ()), room + 1 - len(rows)),
        )
        if len(rows) > room:
            return [row[0] for row in rows[:room]], _cursor(group, rows[room - 1] if room else None)
    return [row[0] for row in rows], None


def newest_ended(now: float, wanted: TaskFilter, count: int) -> Tx[float]:
    """Return when the last of the `count` newest finished tasks ended, undelivered ones aside; infinity: there is none.

    `wanted` has no `ended_after`. Archived tasks are in no recent list."""
    del now
    moment = float("inf")
    for order, where, values in _searches(wanted, PageSection.FINISHED) if count else ():
        rows = yield (
            f"SELECT ended_at FROM tasks WHERE {where} AND archived_at IS NULL AND ended_at IS NOT NULL"  # noqa: S608
            f" ORDER BY {order} DESC, id DESC LIMIT ?",
            (*values, count),
        )
        moment = min((row[0] for row in rows), default=moment)
    return moment


_WALKS, _SORTS = (
    "ended_at",
    "+ended_at",
)  # with a plus the order uses no index: whatever narrows the search does


def _searches(wanted: TaskFilter, group: PageSection) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Order, condition and values of each search; what a later one finds has ended before what the earlier one finds.
    Each has an index, so that years of finished work cost nothing."""
    where, values = _conditions(replace(wanted, ended_after=None))
    if group is PageSection.UNDELIVERED:
        yield _SORTS, f"{where} AND outcome IS NOT NULL AND delivery = 'undelivered'", values
        return
    where = f"{where} AND outcome IS NOT NULL AND delivery <> 'undelivered'"
    if wanted.ended_after is None:
        is_narrow = wanted.root_id is not None or wanted.requester_id is not None or wanted.is_undelivered
        yield _SORTS if is_narrow else _WALKS, where, values
        return
    recent = where.replace("root_id", "+root_id").replace("requester_id", "+requester_id")
    recent = f"{recent} AND archived_at IS NULL AND ended_at IS NOT NULL AND ended_at >= ?"
    yield _WALKS, recent, (*values, wanted.ended_after)
    # The result of an older one is still on its way.
    yield _SORTS, f"{where} AND {IS_UNTOLD} AND ended_at < ?", (*values, wanted.ended_after)


def _cursor(group: PageSection, last: Row | None) -> str:
    return group.value if last is None else f"{group}:{last[1]!r}:{ids.task_id(last[0])}"


def _place(cursor: str) -> tuple[PageSection, Place]:
    group, _, rest = cursor.partition(":")
    ended, _, task = rest.partition(":")
    number = ids.parse_task_id(task)
    if group in set(PageSection) and not rest:
        return PageSection(group), None
    if group not in set(PageSection) or number is None or not _MOMENT.fullmatch(ended):
        raise InvalidInput("cursor", "must be the `next` of an earlier page")
    return PageSection(group), (float(ended), number)


def _conditions(wanted: TaskFilter) -> tuple[str, tuple[Any, ...]]:
    """Constant words and their values. Each that narrows most has an index of its own."""
    pairs = list(_pairs(wanted))
    words = " AND ".join(["1 = 1", *(word for word, _ in pairs)])
    return words, tuple(value for _, given in pairs for value in given)


def _pairs(wanted: TaskFilter) -> Iterator[tuple[str, tuple[Any, ...]]]:
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
    if wanted.is_undelivered or wanted.state is ListState.UNDELIVERED:
        yield "delivery = 'undelivered'", ()
    if wanted.state is ListState.FAILED:
        yield f"outcome IN ({', '.join('?' * len(FAILED))})", tuple(sorted(FAILED))
    if wanted.agent is not None:
        yield "EXISTS (SELECT 1 FROM sessions s WHERE s.id = tasks.id AND s.agent_id = ?)", (wanted.agent,)
    if wanted.text is not None:
        yield _TEXT, (*[_pattern(wanted.text)] * 3, ids.parse_task_id(wanted.text) or 0)
    if wanted.ended_after is not None:
        yield _STILL_SHOWN, (wanted.ended_after,)


#: The database lowers both sides: it need not agree with Python on what a capital letter is.
_TEXT = (
    "(LOWER(label) LIKE LOWER(?) ESCAPE '!' OR LOWER(task) LIKE LOWER(?) ESCAPE '!'"
    " OR LOWER(COALESCE(result, '')) LIKE LOWER(?) ESCAPE '!' OR id = ?)"
)


def _pattern(text: str) -> str:
    """Return the text as a pattern of LIKE in which no character has a meaning of its own."""
    return f"%{text.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"


#: Three indexes, so that years of finished work cost nothing. (Without ALL, SQLite merges three scans.)
_STILL_SHOWN = (
    f"id IN (SELECT id FROM tasks WHERE {IS_UNTOLD}"  # noqa: S608 (constant words)
    " UNION ALL SELECT id FROM tasks WHERE delivery = 'undelivered'"
    " UNION ALL SELECT id FROM tasks WHERE archived_at IS NULL AND ended_at IS NOT NULL AND ended_at >= ?)"
)


# ---- how many ----------------------------------------------------------------------------------------


def summary(now: float, wanted: TaskFilter = EVERYTHING) -> Tx[PhaseCounts]:
    """Count the tasks in each state. `wanted.state` narrows a list and not these counts, which are shown beside it."""
    where, values = _conditions(replace(wanted, state=None))
    rows = yield (
        "SELECT phase, CASE WHEN phase = 'paused' THEN reason ELSE '' END AS why, outcome, delivery,"  # noqa: S608
        f" COUNT(*), {wait_columns('tasks')}"
        f" FROM tasks WHERE {where} GROUP BY phase, why, outcome, delivery, asked, is_paused, parked_until",
        values,
    )
    counts = Counter[str]()
    for phase, why, outcome, delivery, count, *wait in rows:
        counts[_COUNTED[_status(now, phase, why, outcome, wait)]] += count
        if outcome is not None and delivery in _ON_THE_WAY:
            counts[_ON_THE_WAY[delivery]] += count
    spent = yield (
        f"SELECT {tasks.SPENT} FROM usage u WHERE {tasks.IS_ENDED_CALL}"  # noqa: S608
        f" AND u.session_id IN (SELECT id FROM tasks WHERE {where})",
        values,
    )
    unheard = yield from unheard_words(now, wanted.root_id)
    usd = tasks.tally(spent[0]).usd if spent[0][4] else None
    words = {"replies": unheard.waiting, "unsent": unheard.unsent}
    return PhaseCounts(**counts, **words, speakers=unheard.speakers, usd=usd)


#: The field of `PhaseCounts` that counts a state.
_COUNTED: Mapping[TaskStatus, str] = {
    **dict.fromkeys((TaskStatus.STARTING, TaskStatus.QUEUED), "queued"),
    TaskStatus.RUNNING: "running",
    **dict.fromkeys(
        (TaskStatus.WAITING, TaskStatus.PAUSED, TaskStatus.RATE_LIMITED, TaskStatus.FAILING), "waiting"
    ),
    **dict.fromkeys(NEEDS_USER, "needs_you"),
    TaskStatus.DONE: "done",
    TaskStatus.FAILED: "failed",
    TaskStatus.TIMED_OUT: "timeout",
    TaskStatus.KILLED: "killed",
    TaskStatus.LOST: "lost",
}
_ON_THE_WAY: Mapping[str, str] = {
    Delivery.WAITING: "delivering",
    Delivery.DEFERRED: "delivering",
    Delivery.UNDELIVERED: "undelivered",
}


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
    lines = tuple(TranscriptEntry(*row) for row in rows[:limit])
    return Transcript(lines, lines[-1].seq if len(rows) > limit else None)


def nodes(now: float) -> Tx[list[WorkerView]]:
    del now
    rows = yield (
        "SELECT w.id, w.host, w.pid, w.version, w.started_at, w.lease_until,"
        " (SELECT COUNT(*) FROM sessions s WHERE s.owner = w.id), w.seen_at, w.clock_offset, w.draining"
        " FROM workers w ORDER BY w.started_at, w.id",
        (),
    )
    return [WorkerView(*(*row[:-1], bool(row[-1]))) for row in rows]
