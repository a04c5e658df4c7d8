"""Tasks as text: the list of a chat, everything about one task, and a log of its transcript."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from clutch.core import ids
from clutch.core.model import DeliveryStatus, Outcome, Phase, Plan, TaskStatus
from clutch.core.status import (
    delivery_status,
    delivery_text,
    doing_now,
    elapsed_s,
    error_text,
    result_text,
    task_status,
)
from clutch.core.text.format import (
    ERROR_MAX,
    KEY_MAX,
    UNKNOWN,
    counted,
    duration,
    money,
    quoted,
    size,
    tokens,
    visible,
)
from clutch.core.views import History, HistoryEntry, PhaseCounts, Tally, TaskView

LIST_LABEL_MAX = 72
LOG_TEXT_MAX = 400  # of one line of a log
NOTHING = "No subagents."
NO_TIME = "-"  #: in the place of a time that there is none of


def plan_tag(phase: Phase, plan: str) -> str:
    if phase is Phase.AWAITING_APPROVAL:
        return "[PLAN:AWAITING APPROVAL]"
    return {Plan.APPROVED.value: "[PLAN:APPROVED]", Plan.DRAFTING.value: "[PLAN]"}.get(plan, "")


def headline(view: TaskView) -> str:
    """`t_7f3a "AI research": done, undelivered`"""
    status = task_status(view).value
    is_lost = delivery_status(view.delivery) is DeliveryStatus.UNDELIVERED
    named = f"{ids.task_id(view.task_id)} {quoted(view.label)}"
    return f"{named}: {status}, {DeliveryStatus.UNDELIVERED}" if is_lost else f"{named}: {status}"


def elapsed_text(view: TaskView) -> str:
    elapsed = elapsed_s(view)
    return NO_TIME if elapsed is None else duration(elapsed)


def summary_text(counts: PhaseCounts) -> str:
    """`3 running · 1 waiting · 2 in the inbox · 12 done · $0.42`; counts of zero are left out."""
    named = (
        (counts.running, TaskStatus.RUNNING), (counts.queued, TaskStatus.QUEUED), (counts.waiting, TaskStatus.WAITING),
        (counts.needs_you, "in the inbox"), (counts.done, TaskStatus.DONE), (counts.failed, TaskStatus.FAILED),
        (counts.timeout, TaskStatus.TIMED_OUT), (counts.killed, TaskStatus.KILLED), (counts.lost, TaskStatus.LOST),
        (counts.delivering, DeliveryStatus.DELIVERING), (counts.undelivered, DeliveryStatus.UNDELIVERED),
        (counts.unsent, "unsent"),
    )  # fmt: skip
    parts = [f"{count} {name}" for count, name in named if count]
    if counts.usd is not None:
        parts.append(money(counts.usd))
    return " · ".join(parts) or "no tasks"


# ---- the list ------------------------------------------------------------------------------------------


def list_text(views: Sequence[TaskView], title: str = "Subagents (this session)") -> str:
    """Numbered from 1, in the given order; the caller stores the numbers."""
    if not views:
        return NOTHING
    active = sum(view.outcome is None for view in views)
    words = [task_status(view).value for view in views]
    width = max(map(len, words))
    head = f"{title}   Active: {active} · Done: {len(views) - active}"
    lines = (
        f"{number}) {' · '.join((word.ljust(width), *_parts(view)))}"
        for number, (word, view) in enumerate(zip(words, views, strict=True), start=1)
    )
    return "\n".join((head, *lines))


def _parts(view: TaskView) -> Iterator[str]:
    tag = "" if view.plan is None else plan_tag(view.phase, view.plan.state)
    yield f"{visible(view.label, LIST_LABEL_MAX)} {tag}".rstrip()
    yield elapsed_text(view)
    if view.outcome is None and view.own.tokens:
        yield f"{tokens(view.own.tokens)} tok"
    yield doing_now(view).at(view.at)
    if view.outcome not in (None, Outcome.OK):
        yield result_text(view)
    yield ids.task_id(view.task_id)


# ---- all of one ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contract:
    """The parameters of the spawn and figures of the result, beside the view of a task."""

    task: str
    requester: str  #: label or key of the parent
    thinking: str | None = None
    mode: str = "run"
    cleanup: str = "keep"
    workspace: str | None = None
    queued_at: float | None = None
    archived_at: float | None = None
    archive_at: float | None = None
    result_bytes: int | None = None
    result_sha: str | None = None
    attachments: tuple[tuple[str, int], ...] = ()
    context: str = "isolated"
    expects_completion: bool = True
    notify_parent: bool = True


def info_text(view: TaskView, contract: Contract) -> str:
    return "\n".join(f"{name}: {value}" for name, value in _facts(view, contract))


def _facts(view: TaskView, contract: Contract) -> Iterator[tuple[str, str]]:
    yield "Status", task_status(view).value
    yield "Now", doing_now(view).at(view.at)
    yield "Phase", f"{view.phase} ({visible(view.reason, ERROR_MAX)})" if view.reason else str(view.phase)
    yield "Label", visible(view.label, KEY_MAX)
    yield "Task", visible(contract.task, 1000)
    run = UNKNOWN if view.run_id is None else ids.run_id(view.run_id)
    yield (
        "Ids",
        f"task {ids.task_id(view.task_id)}, run {run}, generation {view.generation}, attempt {view.attempt}",
    )
    yield "Session", visible(view.session_key or "(deleted)", KEY_MAX)
    yield "Parent", visible(contract.requester, KEY_MAX)
    yield "Depth", str(view.depth)
    yield "Role", view.role or UNKNOWN
    yield "Model", f"asked {_text(view.model_requested)}, used {_text(view.model)}"
    yield "Thinking", _text(contract.thinking)
    yield "Mode", contract.mode
    yield "Cleanup", contract.cleanup
    yield "Workspace", _text(contract.workspace)
    yield "Created", _moment(view.created_at)
    yield "Queued", _moment(contract.queued_at)
    yield "Started", _moment(view.started_at)
    yield "Ended", _moment(view.ended_at)
    yield (
        "Archive",
        f"archived {_moment(contract.archived_at)}" if contract.archived_at else _moment(contract.archive_at),
    )
    yield "Elapsed", elapsed_text(view)
    yield "Tokens", f"{_used(view.own)} (subtree {_used(view.subtree)})"
    yield "Cost", f"{_cost(view.own)} (subtree {_cost(view.subtree)})"
    delivery = view.delivery
    again = "" if delivery.next_at is None else f", next attempt {_moment(delivery.next_at)}"
    tried = f", {counted(delivery.attempts, 'attempt')}{again}" if view.outcome else ""
    yield "Delivery", f"{delivery_text(delivery) or 'none yet'}{tried}"
    error = f": {error_text(view.error)}" if view.error else ""
    yield "Outcome", f"{view.outcome}{error}" if view.outcome else "none yet"
    yield "Result", _result(view, contract)
    yield (
        "Attachments",
        ", ".join(f"{visible(name, KEY_MAX)} ({size(count)})" for name, count in contract.attachments)
        or "none",
    )
    yield "Plan", plan_tag(view.phase, view.plan.state if view.plan else Plan.NONE.value) or "none"


def _text(value: str | None) -> str:
    return UNKNOWN if not value else visible(value, KEY_MAX)


def _moment(at: float | None) -> str:
    return UNKNOWN if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _used(tally: Tally) -> str:
    if tally.calls and not tally.tokens:
        return f"{UNKNOWN}, {counted(tally.calls, 'call')}"
    parts = f"in {tokens(tally.input)} / out {tokens(tally.output)}"
    return f"{tokens(tally.tokens)}, {parts}, {counted(tally.calls, 'call')}"


def _cost(tally: Tally) -> str:
    if tally.usd is None:
        return UNKNOWN
    return money(Decimal(tally.usd)) if not tally.unpriced else f"at least {money(tally.usd)}"


def _result(view: TaskView, contract: Contract) -> str:
    if contract.result_bytes is None:
        return "none"
    sha = (contract.result_sha or "")[:12]
    return f"{size(contract.result_bytes)}, sha256 {sha}…, captured {_moment(view.ended_at)}"


# ---- a log ---------------------------------------------------------------------------------------------


def log_text(shown: History) -> str:
    if not shown.entries:
        return "The transcript is empty."
    lines = [line for said in shown.entries for line in _log_lines(said)]
    if shown.before is not None:
        lines.insert(0, f"(older entries before #{shown.before})")
    return "\n".join(lines)


def _log_lines(said: HistoryEntry) -> Iterator[str]:
    at = f"#{said.seq} {datetime.fromtimestamp(said.at, UTC):%H:%M:%S}"
    who = {"input": said.source or "input", "answer": "assistant", "results": said.source}.get(
        said.kind, said.kind
    )
    if said.text.strip():
        failed = " failed" if said.is_failed else ""
        yield f"{at} {visible(who, KEY_MAX)}{failed}: {visible(said.text.strip(), LOG_TEXT_MAX)}"
    for call in said.calls:
        yield f"{at} assistant calls {visible(call, LOG_TEXT_MAX)}"
