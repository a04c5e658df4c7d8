"""Reads of a session: its transcript from either end, its place in the tree, and the sessions that a caller may see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clutch.core import ids, messages
from clutch.core.authority import Caller, Rights, from_text
from clutch.core.checks import FIELD, TaskCheck
from clutch.core.checks import from_text as from_checks
from clutch.core.compaction import ContextLimits
from clutch.core.forecast import UNLIMITED, BudgetLeft, PastTask
from clutch.core.ids import KeyKind, SessionKey, parse_session_key
from clutch.core.messages import Entry
from clutch.core.model import REASONS, Outcome, Phase, Plan, reason_text
from clutch.core.questions import QuestionKind
from clutch.core.spawn import OWN_RUNTIME
from clutch.core.text.prompts import ChildLine
from clutch.core.views import History, HistoryEntry, HistoryLimits, Stored, TaskView, of_result
from clutch.core.views import history as shown_of
from clutch.errors import InvalidInput, NotFound
from clutch.store.transaction import Row, Tx
from clutch.transactions.conditions import IS_OPEN, IS_UNTOLD, wait_columns
from clutch.transactions.read import forecast, targets
from clutch.transactions.read import tasks as tasks_tx
from clutch.transactions.retention import is_forgotten

if TYPE_CHECKING:
    from clutch.core.policy import Budgets


@dataclass(frozen=True, slots=True)
class Briefing:
    """What a turn must know about the session it works for."""

    session_key: str
    agent_id: str
    root_id: int
    depth: int
    rights: Rights
    model: str | None
    workspace: str | None
    label: str | None
    requester_key: str | None
    plan: str | None
    fence: int
    base: int  #: where the present generation of the transcript begins
    steps: int  #: answers of the open run
    transcript: tuple[Entry, ...]
    thinking: str | None = None
    purses: str = ""
    output_schema: str | None = None
    runtime: str = OWN_RUNTIME
    cwd: str | None = None
    compact_at: int | None = None  #: a summary is wanted of what was said up to here
    model_asked: str | None = None  #: by the spawn itself
    shelf: int = 0  #: which of its directories its files lie in
    attachments: tuple[str, ...] = ()  #: names of what it was given
    place: str | None = None  #: where its files lie; None: it has none, or one machine has them all
    saved: str | None = None  #: what is stored of them
    workspace_source: str | None = (
        None  #: what its isolated workspace was made of; None: it has none of its own
    )
    checks: tuple[TaskCheck, ...] = ()  #: before its final answer counts
    has_files: bool = False  #: was given some, or handed some over in an earlier attempt


def briefing(now: float, session_id: int) -> Tx[Briefing]:
    del now
    rows = yield (
        "SELECT s.key, s.agent_id, s.root_id, s.depth, s.rights, s.model, s.workspace, t.label, p.key, t.plan, s.base,"
        " s.run_id, s.fence, s.thinking, s.purses, t.spec, s.compact_at, t.shelf, t.files,"
        " s.place, s.saved, p.workspace"
        " FROM sessions s LEFT JOIN tasks t ON t.id = s.id LEFT JOIN sessions p ON p.id = s.parent_id"
        " WHERE s.id = ?",
        (session_id,),
    )
    key, agent_id, root_id, depth, rights, model, workspace, label, requester_key, plan, *where = rows[0]
    base, run_id, fence, thinking, purses, spec, compact_at, shelf, files, place, saved, source = where
    asked = json.loads(spec) if spec else {}
    said = yield (
        "SELECT kind, body, run_id FROM messages WHERE session_id = ? AND seq > ? ORDER BY seq",
        (session_id, base),
    )
    return Briefing(
        session_key=key,
        agent_id=agent_id,
        root_id=root_id,
        depth=depth,
        rights=from_text(rights),
        model=model,
        workspace=workspace,
        label=label,
        requester_key=requester_key,
        plan=plan,
        fence=fence,
        base=base,
        steps=sum(kind == "answer" and of_run == run_id for kind, _, of_run in said),
        transcript=tuple(messages.load(kind, body) for kind, body, _ in said),
        thinking=thinking,
        purses=purses,
        output_schema=asked.get("outputSchema"),
        runtime=asked.get("runtime", OWN_RUNTIME),
        cwd=asked.get("cwd"),
        compact_at=compact_at,
        model_asked=asked.get("model"),
        attachments=tuple(name for name, *_ in asked.get("attachments") or ()),
        place=place,
        saved=saved,
        workspace_source=(source or ".") if asked.get("workspace") == "isolated" else None,
        shelf=shelf or 0,
        checks=from_checks(asked.get(FIELD)),
        has_files=bool(asked.get("attachments") or files),
    )


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One line of a tree: enough to draw it without another query."""

    task_id: int
    requester_id: int
    depth: int
    label: str
    phase: str
    cause: str
    detail: str
    outcome: str | None
    delivery: str
    generation: int
    created_at: float
    progress_at: float | None
    ended_at: float | None
    steps: int
    current_tool: str | None
    tokens: int
    resumes: int
    parked_until: float | None = None

    @property
    def reason(self) -> str:
        return reason_text(self.cause, self.detail)


def tree(now: float, root_id: int) -> Tx[list[TreeRow]]:
    """All tasks below a root in spawn order."""
    del now
    rows = yield (
        "SELECT t.id, t.requester_id, t.depth, t.label, t.phase, t.reason, t.detail, t.outcome, t.delivery,"
        " t.generation, t.created_at, s.progress_at, t.ended_at, COALESCE(s.head - s.base, 0),"
        " (SELECT MIN(c.name) FROM calls c WHERE c.session_id = s.id AND c.seq = s.head AND s.head > s.base),"
        " (SELECT CAST(COALESCE(SUM(u.input + u.output), 0) AS {big}) FROM usage u WHERE u.session_id = t.id),"
        " (SELECT COUNT(*) FROM events e WHERE e.task_id = t.id AND e.reason = 'resumed @step'),"
        " (SELECT r.parked_until FROM runs r WHERE r.id = s.run_id)"
        " FROM tasks t LEFT JOIN sessions s ON s.id = t.id WHERE t.root_id = ? ORDER BY t.depth, t.spawn_order, t.id",
        (root_id,),
    )
    return [TreeRow(*row) for row in rows]


def is_quiet(now: float, root_id: int) -> Tx[bool]:
    """Whether all work below this root is finished, and no reply is about to come."""
    del now
    rows = yield (
        # One count for each index of what is alive; a held child is a task that has not finished.
        "SELECT (SELECT COUNT(*) FROM tasks WHERE root_id = ? AND phase NOT IN ('completed', 'completed_giveup')),"  # noqa: S608
        " (SELECT COUNT(*) FROM sessions WHERE id = ? AND hold = 1),"
        " (SELECT COUNT(*) FROM sessions WHERE root_id = ? AND owner IS NOT NULL),"
        " (SELECT COUNT(*) FROM sessions WHERE root_id = ? AND owner IS NULL AND due IS NOT NULL),"
        " (SELECT COUNT(*) FROM inbox i JOIN sessions s ON s.id = i.session_id"
        " WHERE s.root_id = ? AND s.closed = 0 AND i.seen = 0),"
        " (SELECT COUNT(*) FROM inbox i JOIN sessions s ON s.id = i.session_id"
        f" WHERE s.root_id = ? AND s.closed = 0 AND i.{IS_OPEN} AND i.silent = 0)",
        (root_id,) * 6,
    )
    return not any(rows[0])


@dataclass(frozen=True, slots=True)
class TimelineRow:
    task_id: int
    seq: int
    at: float
    actor: str
    from_phase: str
    to_phase: str
    cause: str
    detail: str
    generation: int
    outcome: str | None

    @property
    def reason(self) -> str:
        return reason_text(self.cause, self.detail)


def timeline(now: float, root_id: int, after: float = 0.0) -> Tx[list[TimelineRow]]:
    del now
    rows = yield (
        "SELECT e.task_id, e.seq, e.at, e.actor, e.from_phase, e.to_phase, e.reason, e.detail, e.generation, e.outcome"
        " FROM events e JOIN tasks t ON t.id = e.task_id WHERE t.root_id = ? AND e.at >= ?"
        " ORDER BY e.at, e.task_id, e.seq",
        (root_id, after),
    )
    return [TimelineRow(*row) for row in rows]


def session_id(now: float, key: str) -> Tx[int | None]:
    del now
    rows = yield "SELECT id FROM sessions WHERE key = ?", (key,)
    return int(rows[0][0]) if rows else None


def main_workspaces(now: float) -> Tx[list[tuple[str, str, str]]]:
    """Return the key, the agent and the workspace of every main session; it keeps the workspace it was opened with."""
    del now
    rows = yield (
        "SELECT key, agent_id, workspace FROM sessions WHERE is_task = 0 AND deleted_at IS NULL"
        " AND workspace IS NOT NULL ORDER BY key",
        (),
    )
    return [(str(key), str(agent), str(workspace)) for key, agent, workspace in rows]


def is_known(now: float, key: str) -> Tx[bool]:
    """Is there, or was there, a session of this key?"""
    del now
    return bool((yield "SELECT 1 FROM sessions WHERE key = ?", (key,)))


def is_open(now: float, session: int) -> Tx[bool]:
    """Can it be spoken to?"""
    del now
    return bool((yield "SELECT 1 FROM sessions WHERE id = ? AND closed = 0", (session,)))


def transcript(now: float, session: int) -> Tx[list[Entry]]:
    """All of it, earlier generations included."""
    del now
    rows = yield "SELECT kind, body FROM messages WHERE session_id = ? ORDER BY seq", (session,)
    return [messages.load(kind, body) for kind, body in rows]


# --------------------------------------------------------------------------------------------------
# What stands around a conversation in the store: the session's children and events, summaries, a fork's copy.

#: The newest records that are looked at for what ended lately: never a walk over thousands.
LOOKED_AT = 64

_ROW = "id, label, phase, reason, plan, outcome, created_at, ended_at"
_NAMES = f"{_ROW}, asked, is_paused, parked_until"
_LINE = f"{_ROW}, {wait_columns('tasks')}"
_CHILDREN = (
    f"SELECT * FROM (SELECT {_LINE}, 1 AS is_active FROM tasks"  # noqa: S608 (constant words)
    f" WHERE requester_id = ? AND {IS_UNTOLD} ORDER BY id LIMIT ?) a"
    f" UNION ALL SELECT * FROM (SELECT {_NAMES}, 0 AS is_active FROM"
    f" (SELECT {_LINE} FROM tasks WHERE requester_id = ? AND retained = 1 ORDER BY id DESC LIMIT ?) r"
    f" WHERE NOT ({IS_UNTOLD}) AND ended_at >= ? ORDER BY ended_at DESC, id DESC LIMIT ?) b"
)


@dataclass(frozen=True, slots=True)
class Around:
    """What a prompt shows beside the transcript. `events_upto`: the newest event that is shown."""

    active: tuple[ChildLine, ...] = ()
    recent: tuple[ChildLine, ...] = ()
    is_more: bool = False  #: active children beyond those
    events: tuple[str, ...] = ()
    events_upto: int = 0
    past: list[PastTask] | None = None  #: None: not asked for
    left: BudgetLeft = UNLIMITED


class PriceQuery(NamedTuple):
    """Of a session that may spawn: what is left of these budgets, and with `is_due` what finished tasks have cost."""

    budgets: Budgets
    purses: str
    is_due: bool


def around(now: float, session_id: int, rules: ContextLimits, price: PriceQuery | None = None) -> Tx[Around]:
    """Read for every turn of a session that may have children, so it costs what it answers."""
    rows = yield (
        _CHILDREN,
        (
            session_id, rules.active_children_max + 1, session_id, LOOKED_AT, now - rules.recent_children_s,
            rules.recent_children_max,
        ),
    )  # fmt: skip
    events = yield (
        "SELECT id, body FROM system_events WHERE session_id = ? AND taken_run IS NULL ORDER BY id DESC LIMIT ?",
        (session_id, rules.system_events_max),
    )
    active = [_line(now, row) for row in rows if row[-1]]
    return Around(
        active=tuple(active[: rules.active_children_max]),
        recent=tuple(_line(now, row) for row in rows if not row[-1]),
        is_more=len(active) > rules.active_children_max,
        events=tuple(body for _, body in reversed(events)),
        events_upto=events[0][0] if events else 0,
        past=(yield from forecast.past(now)) if price is not None and price.is_due else None,
        left=UNLIMITED if price is None else (yield from forecast.left(now, price.budgets, price.purses)),
    )


def _line(now: float, row: Row) -> ChildLine:
    task_id, label, phase, reason, plan, outcome, created_at, ended_at, *wait, is_active = row
    asked, is_paused, until = wait
    since = created_at if is_active else ended_at
    ended = None if outcome is None else Outcome(outcome)
    return ChildLine(
        ids.task_id(task_id), label, Phase(phase), REASONS[reason], Plan(plan), now - since, ended,
        None if asked is None else QuestionKind(asked.partition(" ")[0]),
        is_due=until is not None and until <= now, is_paused=bool(is_paused),
    )  # fmt: skip


NEWEST = 2**62  # no transcript is as long


def history(
    now: float,
    session_id: int,
    rules: HistoryLimits,
    *,
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
    # A long transcript is deleted in several commits; between them it is not shown either.
    if (yield from is_forgotten(session_id)):
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
    *,
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
            last = (yield from history(now, number, rules, limit=message_limit)).entries
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
