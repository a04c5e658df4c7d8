"""Reads for users, programs and models: tasks as every surface shows them, one, some, a page or a tree of them.

Each costs what it answers: a page is found through an index, and a handful of statements then read what
belongs to its tasks, however many there are in the store."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from clutch.core import ids, messages
from clutch.core.attachments import StoredFile, handed
from clutch.core.budget import Budget, BudgetKind, CallState
from clutch.core.checks import report_of
from clutch.core.fair_share import DEFAULT_SHARE, PRIORITIES, Priority
from clutch.core.ids import plan_hash
from clutch.core.messages import Answer
from clutch.core.model import REASONS, Delivery, Outcome, Phase, Plan
from clutch.core.questions import QuestionKind
from clutch.core.status import question_text
from clutch.core.text.format import main_argument
from clutch.core.text.tasks import Contract
from clutch.core.views import (
    NOTHING_USED,
    CurrentTool,
    OpenQuestion,
    PlanView,
    Tally,
    TaskView,
    delivery_view,
    evidence_of,
)
from clutch.store.transaction import Row, Tx
from clutch.transactions.conditions import IS_OPEN, IS_WORKING, open_question

# --------------------------------------------------------------------------------------------------
# The rows of budgets as values. `usage` decides which call draws on which.
#
# Apart from `usage`, because `clutch ps` reads a store with these and loads no policy.

BUDGET_COLUMNS = (
    "name, kind, tokens_max, usd_max, tokens_spent, tokens_reserved, usd_spent, usd_reserved, unpriced_calls,"
    " warned"
)


def budgets_named(names: Sequence[str]) -> Tx[list[Budget]]:
    """Only to show them: nothing is locked, and what is spent may be more by now."""
    sql = f"SELECT {BUDGET_COLUMNS} FROM purses WHERE name {{any}} ORDER BY name"  # noqa: S608 (constant columns)
    return [budget_of(row) for row in (yield sql, (list(names),))]


def day_name(at: float) -> str:
    """Return the name of the budget of the day, which counts in UTC."""
    return f"{BudgetKind.DAY}:{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def budget_of(row: Row) -> Budget:
    (
        name,
        kind,
        tokens_max,
        usd_max,
        tokens_spent,
        tokens_reserved,
        usd_spent,
        usd_reserved,
        unpriced,
        warned,
    ) = row
    return Budget(
        BudgetKind(kind), name, tokens_max, money(usd_max), tokens_spent, tokens_reserved, Decimal(usd_spent),
        Decimal(usd_reserved), unpriced, bool(warned),
    )  # fmt: skip


def money(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def one(now: float, task_id: int) -> Tx[TaskView | None]:
    found = yield from of(now, [task_id])
    return found[0] if found else None


def of(now: float, task_ids: Sequence[int]) -> Tx[list[TaskView]]:
    """Those of them that exist, in the order they were made."""
    rows = yield _TASKS, (list(task_ids),)
    if not rows:
        return []
    about = yield from _about(now, [row[0] for row in rows])
    return [_view(now, row, about) for row in rows]


def tree(now: float, task_id: int) -> Tx[list[TaskView]]:
    """The task and everything below it."""
    return (yield from of(now, [task_id, *(yield from ids_below(task_id))]))


def below(now: float, session_id: int) -> Tx[list[TaskView]]:
    """Everything below a session, main or child, that was not archived."""
    below = yield from ids_below(session_id)
    rows = yield "SELECT id FROM tasks WHERE id {any} AND archived_at IS NULL", (below,)
    return (yield from of(now, [row[0] for row in rows]))


def ids_below(session_id: int) -> Tx[list[int]]:
    """Also below sessions that were deleted: their tasks stay. A chain that bites its tail (imported) ends there."""
    rows = yield (
        "WITH RECURSIVE below(id) AS (SELECT id FROM tasks WHERE requester_id = ?"
        " UNION SELECT t.id FROM tasks t JOIN below b ON t.requester_id = b.id) SELECT id FROM below",
        (session_id,),
    )
    return [row[0] for row in rows]


def above(now: float, task_ids: Sequence[int]) -> Tx[list[TaskView]]:
    """The ancestors of these tasks, without them: what they use and whom they wait for changes with their subagents."""
    rows = yield (
        "WITH RECURSIVE above(id) AS (SELECT requester_id FROM tasks WHERE id {any}"
        " UNION SELECT t.requester_id FROM tasks t JOIN above a ON t.id = a.id) SELECT id FROM above",
        (list(task_ids),),
    )
    return (yield from of(now, sorted({row[0] for row in rows} - set(task_ids))))


_TASKS = (
    "SELECT t.id, t.requester_id, t.root_id, s.key, r.key, o.key, t.depth, s.role, s.agent_id, t.label, t.phase,"  # noqa: S608
    " t.reason, t.detail, t.outcome, t.error, t.generation, t.created_at, t.started_at, t.ended_at, s.progress_at,"
    " t.deadline_at, t.delivery, t.delivery_reason, t.attempts, t.plan, t.plan_round,"
    " CASE WHEN t.phase = 'awaiting_approval' THEN t.result END, t.evidence, s.model, s.owner, s.run_id,"
    f" s.head - s.base, t.wake_at, s.paused, {open_question('t')}, CASE WHEN t.delivery = 'undelivered' THEN"
    " (SELECT MAX(e.at) FROM events e WHERE e.task_id = t.id AND e.reason = 'undelivered') END,"
    " s.share, s.priority, t.checks"
    " FROM tasks t LEFT JOIN sessions s ON s.id = t.id LEFT JOIN sessions r ON r.id = t.requester_id"
    " LEFT JOIN sessions o ON o.id = t.root_id WHERE t.id {any} ORDER BY t.created_at, t.id"
)


@dataclass(frozen=True, slots=True)
class _Runs:
    last: int
    count: int
    parked: Mapping[int, float]


class _Restarts(NamedTuple):
    resumes: int = 0
    again: int = 0
    retried_at: float | None = None


@dataclass(frozen=True, slots=True)
class _About:
    """What other tables know of the tasks of one answer, by task."""

    runs: Mapping[int, _Runs]
    own: Mapping[int, Tally]
    below: Mapping[int, Tally]
    models: Mapping[int, str]
    restarts: Mapping[int, _Restarts]
    children: Mapping[int, tuple[int, int]]  #: all, active
    retries: Mapping[tuple[int, int], float]  #: by task and generation: when its letter is tried again
    told: Mapping[tuple[int, int], float]
    work: Mapping[int, _Work]
    purses: Mapping[str, Budget]


def _about(now: float, ids: list[int]) -> Tx[_About]:
    own, beneath = yield from _tallies(ids)
    restarts = {row[0]: _Restarts(int(row[1]), int(row[2]), row[3]) for row in (yield _RESTARTS, (ids,))}
    return _About(
        runs=(yield from _runs(ids)),
        own=own,
        below=beneath,
        models=_pairs((yield _MODELS, (ids,))),
        restarts=restarts,
        children=(yield from _children(ids, restarts)),
        retries={(row[0], row[1]): row[2] for row in (yield _RETRIES, (ids, now))},
        told={(row[0], row[1]): row[2] for row in (yield _TOLD, (ids,))},
        work=(yield from _work(ids)),
        purses={purse.name: purse for purse in (yield from budgets_named([f"task:{one}" for one in ids]))},
    )


def _children(ids: list[int], restarts: Mapping[int, _Restarts]) -> Tx[dict[int, tuple[int, int]]]:
    found = {row[0]: (int(row[1]), int(row[2])) for row in (yield _CHILDREN, (ids,))}
    retried = {one: known.retried_at for one, known in restarts.items() if known.retried_at is not None}
    for one, since in ((one, since) for one, since in retried.items() if one in found):
        total, active = (yield _CHILDREN_SINCE, (one, since))[0]
        found[one] = int(total), int(active or 0)
    return found


def _pairs(rows: Sequence[Row]) -> dict[int, Any]:
    return {row[0]: row[1] for row in rows}


_MODELS = (
    f"SELECT u.session_id, u.effective FROM usage u WHERE u.session_id {{any}} AND u.state = {CallState.ANSWERED:d}"  # noqa: S608
    " AND u.call_no = (SELECT MAX(v.call_no) FROM usage v"
    f" WHERE v.session_id = u.session_id AND v.state = {CallState.ANSWERED:d})"
)
#: How often its worker was lost, how often it was started again for a new result, and when from an empty transcript.
#: A task that its children wake begins a new run, too: that is the same attempt.
_RESTARTS = (
    "SELECT task_id, SUM(CASE WHEN reason = 'resumed @step' THEN 1 ELSE 0 END),"
    " SUM(CASE WHEN reason = 'resumed @step' THEN 0 ELSE 1 END), MAX(CASE WHEN reason = 'retry' THEN at END)"
    " FROM events WHERE task_id {any} AND reason IN ('resumed @step', 'retry', 'continue', 'grace cancelled')"
    " GROUP BY task_id"
)
_CHILDREN = (
    f"SELECT requester_id, COUNT(*), SUM(CASE WHEN {IS_WORKING} THEN 1 ELSE 0 END) FROM tasks"  # noqa: S608
    " WHERE requester_id {any} GROUP BY requester_id"
)
#: Of a task that was retried, only the children of the present attempt count, and those that still work.
_CHILDREN_SINCE = (
    f"SELECT COUNT(*), SUM(CASE WHEN {IS_WORKING} THEN 1 ELSE 0 END) FROM tasks"  # noqa: S608
    f" WHERE requester_id = ? AND (created_at >= ? OR ({IS_WORKING}))"
)
_RETRIES = (
    f"SELECT task_id, generation, ready_at FROM inbox WHERE task_id {{any}} AND kind = 'announce' AND {IS_OPEN}"  # noqa: S608
    " AND taken_run IS NULL AND ready_at > ?"
)
_TOLD = (
    "SELECT task_id, generation, MAX(at) FROM deliveries WHERE task_id {any} AND outcome = 'delivered'"
    " GROUP BY task_id, generation"
)


def _runs(ids: list[int]) -> Tx[dict[int, _Runs]]:
    rows = yield (
        "SELECT session_id, id, parked_until FROM runs WHERE session_id {any} ORDER BY started_at, id",
        (ids,),
    )
    by_session = defaultdict(list)
    for session_id, run_id, parked_until in rows:
        by_session[session_id].append((run_id, parked_until))
    return {
        session_id: _Runs(runs[-1][0], len(runs), {run: until for run, until in runs if until is not None})
        for session_id, runs in by_session.items()
    }


#: Money is kept as text. In whole units of 10^-12 dollars both databases add it up without losing any.
PICO = Decimal(10) ** 12
#: Of model calls: one that is not open any more.
IS_ENDED_CALL = f"u.state <> {CallState.OPEN:d}"
SPENT = (
    "SUM(u.input), SUM(u.output), SUM(u.cache_read), SUM(u.cache_write), SUM(u.calls),"
    " SUM(CAST(ROUND(CAST(u.usd AS {float}) * 1000000000000.0) AS {big})),"
    f" SUM(CASE WHEN u.usd IS NULL AND u.state <> {CallState.FREE:d} THEN u.calls ELSE 0 END)"
)
_SPENT_BELOW = (
    "WITH RECURSIVE below(top, id) AS (SELECT id, id FROM tasks WHERE id {any}"  # noqa: S608 (constant words)
    " UNION SELECT b.top, t.id FROM tasks t JOIN below b ON t.requester_id = b.id)"
    f" SELECT b.top, CASE WHEN b.id = b.top THEN 1 ELSE 0 END AS is_own, {SPENT}"
    # CROSS: SQLite then keeps the order, and does not go through the whole ledger instead.
    f" FROM below b CROSS JOIN usage u WHERE u.session_id = b.id AND {IS_ENDED_CALL} GROUP BY b.top, is_own"
)


def _tallies(ids: list[int]) -> Tx[tuple[dict[int, Tally], dict[int, Tally]]]:
    """What each has used itself, and what was used below it."""
    own: dict[int, Tally] = {}
    beneath: dict[int, Tally] = {}
    for top, is_own, *spent in (yield _SPENT_BELOW, (ids,)):
        (own if is_own else beneath)[top] = tally(spent)
    return own, beneath


def tally(spent: Sequence[Any]) -> Tally:
    """A row of `SPENT`."""
    given, said, cached, stored, calls, pico, unpriced = spent
    usd = None if pico is None else (Decimal(int(pico)) / PICO).normalize()
    return Tally(int(given), int(said), int(cached), int(stored), int(calls), usd, int(unpriced))


@dataclass(frozen=True, slots=True)
class _Work:
    """What a run that has an owner does at this moment."""

    tool: CurrentTool | None = None
    called_at: float | None = None


_IDLE = _Work()


def _work(ids: list[int]) -> Tx[dict[int, _Work]]:
    """A tool call is open while its answer is the last message of an open run that has an owner; foreign code reports
    its own. A model call is open while its row in the ledger is, and only the newest row can be."""
    rows = yield (
        "SELECT s.id, CASE WHEN m.kind = 'answer' THEN m.body END, m.at, d.name, d.arg, d.at,"  # noqa: S608
        f" (SELECT u.at FROM usage u WHERE u.session_id = s.id AND u.state = {CallState.OPEN:d} AND u.call_no ="
        " (SELECT MAX(v.call_no) FROM usage v WHERE v.session_id = s.id))"
        " FROM sessions s JOIN messages m ON m.session_id = s.id AND m.seq = s.head"
        " LEFT JOIN doing d ON d.session_id = s.id AND d.run_id = s.run_id"
        " WHERE s.id {any} AND s.owner IS NOT NULL AND s.run_id IS NOT NULL",
        (ids,),
    )
    return {row[0]: _Work(_tool(*row[1:6]), row[6]) for row in rows}


def _tool(answer: str | None, at: float, name: str | None, argument: str, since: float) -> CurrentTool | None:
    if name is not None:
        return CurrentTool(name, argument, since)
    said = None if answer is None else messages.load("answer", answer)
    if not isinstance(said, Answer) or not said.calls:
        return None
    return CurrentTool(said.calls[0].name, main_argument(said.calls[0].args), at)


def _view(now: float, row: Row, about: _About) -> TaskView:
    (
        task_id, requester_id, root_id, key, requester_key, root_key, depth, role, agent_id, label, phase, reason,
        detail, outcome, error, generation, created_at, started_at, ended_at, progress_at, deadline_at, delivery,
        delivery_reason, attempts, plan, plan_round, awaiting, evidence, model, owner, run_id, step, wake_at,
        paused, asked, given_up_at, share, priority, checks,
    ) = row  # fmt: skip
    runs, restarts = about.runs.get(task_id), about.restarts.get(task_id, _Restarts())
    own = about.own.get(task_id, NOTHING_USED)
    total, active = about.children.get(task_id, (0, 0))
    turn = (task_id, generation)
    work = about.work.get(task_id, _IDLE) if phase == Phase.RUNNING else _IDLE
    over_at = given_up_at or about.told.get(turn)
    telling = delivery_view(Delivery(delivery), REASONS[delivery_reason], detail, attempts, over_at)
    return TaskView(
        task_id, requester_id, root_id, key, requester_key, root_key, depth, role, agent_id, label, Phase(phase),
        REASONS[reason], detail, None if outcome is None else Outcome(outcome), error, generation, created_at,
        started_at, ended_at, progress_at, deadline_at, replace(telling, next_at=about.retries.get(turn)),
        run_id=run_id or (runs.last if runs else None),
        attempt=1 + restarts.again if runs else 0,
        step=step or 0,
        resumes=restarts.resumes,
        parked_until=runs.parked.get(run_id) if runs else None,
        model_requested=model,
        share=None if share == DEFAULT_SHARE else share,
        priority=PRIORITIES.get(priority, Priority.NORMAL),
        model=about.models.get(task_id),
        current_tool=work.tool,
        own=own,
        subtree=own + about.below.get(task_id, NOTHING_USED),
        budget=about.purses.get(f"task:{task_id}"),
        plan=_plan(Plan(plan), phase, plan_round, awaiting),
        evidence=evidence_of(evidence, generation),
        checks=report_of(checks, generation),
        worker_id=owner,
        children_active=active,
        children_total=total,
        at=now,
        called_at=work.called_at,
        question=None if asked is None else _question(asked),
        wake_at=wake_at,
        is_paused=bool(paused),
    )  # fmt: skip


def _question(asked: str) -> OpenQuestion:
    kind, _, body = asked.partition(" ")
    return OpenQuestion(QuestionKind(kind), question_text(json.loads(body)))


def _plan(plan: Plan, phase: str, rounds: int, awaiting: str | None) -> PlanView | None:
    if plan is Plan.NONE:
        return None
    if phase == Phase.AWAITING_APPROVAL:
        return PlanView(phase, plan_hash(awaiting or ""), rounds)
    return PlanView(plan.value, None, rounds)


# --------------------------------------------------------------------------------------------------
# Everything about one task: what was asked for at spawn, and what came of it.


@dataclass(frozen=True, slots=True)
class Info:
    view: TaskView
    contract: Contract


def info(now: float, task_id: int, archive_after_s: float = 0.0) -> Tx[Info | None]:
    """`archive_after_s`: as the policy has it; 0 = what is over is never archived."""
    view = yield from one(now, task_id)
    if view is None:
        return None
    rows = yield (
        "SELECT t.task, t.spec, t.expects_completion, t.notify_parent, s.thinking, s.workspace, t.archived_at,"
        " t.result, t.result_sha, (SELECT MIN(e.at) FROM events e WHERE e.task_id = t.id AND e.to_phase = ?),"
        " (SELECT p.label FROM tasks p WHERE p.id = t.requester_id)"
        " FROM tasks t LEFT JOIN sessions s ON s.id = t.id WHERE t.id = ?",
        (Phase.QUEUED.value, task_id),
    )
    (
        task, spec, is_awaited, is_notified, thinking, workspace, archived_at, result, sha, queued_at, label,
    ) = rows[0]  # fmt: skip
    asked = json.loads(spec) if spec else {}
    named = f"{label} ({ids.task_id(view.requester_id)})" if label else view.requester_key or "(deleted)"
    contract = Contract(
        task,
        named,
        thinking,
        asked.get("mode", "run"),
        asked.get("cleanup", "keep"),
        workspace,
        queued_at,
        archived_at,
        _archive_at(view, 0.0 if asked.get("mode") == "session" else archive_after_s),
        None if result is None else len(result.encode()),
        sha,
        tuple((name, size) for name, size, _ in asked.get("attachments", ())),
        asked.get("context") or "isolated",
        bool(is_awaited),
        bool(is_notified),
    )
    return Info(view, contract)


def _archive_at(view: TaskView, after_s: float) -> float | None:
    """Nothing that runs, is undelivered or stays for follow-ups is archived."""
    is_told = view.phase is Phase.COMPLETED and view.ended_at is not None
    return (view.ended_at or 0.0) + after_s if is_told and after_s else None


# --------------------------------------------------------------------------------------------------
# Reads for a caller that waits: whether a task has ended for good, and with what.


@dataclass(frozen=True, slots=True)
class TaskEnd:
    task_id: int
    outcome: Outcome
    text: str | None
    error: str | None
    value: str | None = None  #: JSON, if a form was asked for
    files: tuple[StoredFile, ...] = ()


def ended(now: float, task_ids: Sequence[int]) -> Tx[list[TaskEnd]]:
    """Those of them that have."""
    del now
    rows = yield (
        "SELECT id, outcome, COALESCE(result, fallback), error, value, files FROM tasks WHERE id {any}"
        " AND outcome IS NOT NULL",
        (list(task_ids),),
    )
    return [
        TaskEnd(task_id, Outcome(outcome), text, error, value, handed(files).files)
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
