"""Tasks in a few words each: the list a chat shows, all that is known of one, and a log of what was said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from clutch.core import ids
from clutch.core.model import Delivery, Outcome, Phase, Plan, Reason
from clutch.core.text.format import (
    ERROR_MAX,
    KEY_MAX,
    UNKNOWN,
    counted,
    duration,
    in_words,
    money,
    size,
    tokens,
    visible,
)
from clutch.core.views import History, HistoryEntry, Tally, TaskView

# --------------------------------------------------------------------------------------------------
# How a task stands, in a few words for people: what it waits for and until when, or that nothing moves.

STALLED = "stalled"
_ENDED = {
    Outcome.OK: "done",
    Outcome.ERROR: "failed",
    Outcome.TIMEOUT: "timeout",
    Outcome.KILLED: "killed",
    Outcome.LOST: "lost",
}


def status_word(phase: Phase, reason: Reason, outcome: Outcome | None, children: int | None = None) -> str:
    """The same word everywhere: in lists, in the prompt of a parent, on a screen."""
    if outcome is not None:
        return _ENDED[outcome]
    match phase:
        case Phase.AWAITING_APPROVAL:
            return "plan?"
        case Phase.SPAWNING | Phase.QUEUED:
            return "queued"
        case Phase.PAUSED if reason is not Reason.CHILDREN:
            return "paused"
        case Phase.PAUSED | Phase.ANNOUNCE_DEFERRED:
            return f"waiting ({counted(children, 'child', 'children')})" if children else "waiting"
        case _:
            return "running"


def until_text(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M}"


def plan_tag(phase: Phase, plan: str) -> str:
    if phase is Phase.AWAITING_APPROVAL:
        return "[PLAN:AWAITING APPROVAL]"
    return {Plan.APPROVED.value: "[PLAN:APPROVED]", Plan.DRAFTING.value: "[PLAN]"}.get(plan, "")


def state_words(
    phase: Phase,
    reason: str,
    *,
    at: float,
    parked_until: float | None,
    moved_at: float | None,
    stalled_s: float,
) -> str:
    """`paused(quota) until 15:20`, `running (stalled)`, or the phase itself. Times are UTC."""
    match phase:
        case Phase.PAUSED:
            words = f"{phase}({reason})"
            if parked_until is None or at >= parked_until:
                return words
            return f"{words} until {until_text(parked_until)}"
        case Phase.RUNNING if moved_at is not None and at - moved_at > stalled_s:
            return f"{phase} ({STALLED})"
        case _:
            return str(phase)


LIST_LABEL_MAX = 72
LOG_TEXT_MAX = 400  # of one line of a log
NOTHING = "No subagents."


def status(view: TaskView) -> str:
    word = status_word(view.phase, view.cause, view.outcome, view.children_active)
    return f"{word}, undelivered" if view.delivery.state is Delivery.UNDELIVERED else word


def runtime_s(view: TaskView, now: float) -> float:
    """What its runs add up to; of what never ran, or ran elsewhere (imported), all the time there was."""
    if view.worked_s is not None:
        return view.worked_s
    return (view.ended_at or now) - (view.started_at or view.created_at)


# ---- the list ------------------------------------------------------------------------------------------


def list_text(views: Sequence[TaskView], now: float, title: str = "Subagents (this session)") -> str:
    """Numbered from 1, in the given order; whoever shows it remembers the numbers."""
    if not views:
        return NOTHING
    active = sum(view.outcome is None for view in views)
    words = [status(view) for view in views]
    width = max(len(word) for word in words)
    head = f"{title}   Active: {active} · Done: {len(views) - active}"
    lines = (
        f"{number}) {' · '.join((word.ljust(width), *_parts(view, now)))}"
        for number, (word, view) in enumerate(zip(words, views, strict=True), start=1)
    )
    return "\n".join((head, *lines))


def _parts(view: TaskView, now: float) -> Iterator[str]:
    tag = "" if view.plan is None else plan_tag(view.phase, view.plan.state)
    yield f"{visible(view.label, LIST_LABEL_MAX)} {tag}".rstrip()
    yield duration(runtime_s(view, now))
    if view.outcome is not None:
        yield telling_words(view)
    else:
        if view.own.tokens:
            yield f"{tokens(view.own.tokens)} tok"
        if view.current_tool is not None:
            tool = view.current_tool
            yield f"{in_words(visible(tool.name, KEY_MAX), tool.arg)} {duration(now - tool.since)} ago"
        if view.phase is Phase.PAUSED and view.cause is not Reason.CHILDREN:
            until = "" if view.paused_until is None else f" until {until_text(view.paused_until)}"
            yield visible(view.reason, ERROR_MAX) + until
    yield ids.task_id(view.task_id)


def telling_words(view: TaskView) -> str:
    told = view.delivery
    match told.state:
        case Delivery.DELIVERED:
            return f"delivered ({told.path or told.reason})"
        case Delivery.WAITING:
            return "to be told"
        case state:
            return f"{state} ({visible(told.reason, ERROR_MAX)})" if told.reason else str(state)


# ---- all of one ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contract:
    """What was agreed on at spawn and what came of it, beside the view of a task."""

    task: str
    requester: str  #: its label, or its key
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


def info_text(view: TaskView, contract: Contract, now: float) -> str:
    return "\n".join(f"{name}: {value}" for name, value in _facts(view, contract, now))


def _facts(view: TaskView, contract: Contract, now: float) -> Iterator[tuple[str, str]]:
    yield "Status", status(view)
    yield "Phase", f"{view.phase} ({visible(view.reason, ERROR_MAX)})" if view.reason else str(view.phase)
    yield "Label", visible(view.label, KEY_MAX)
    yield "Task", visible(contract.task, 1000)
    run = UNKNOWN if view.run_id is None else ids.run_id(view.run_id)
    yield (
        "Ids",
        f"task {ids.task_id(view.task_id)}, run {run}, generation {view.generation}, attempt {view.attempt}",
    )
    yield "Session", visible(view.session_key or "(deleted)", KEY_MAX)
    yield "Requester", visible(contract.requester, KEY_MAX)
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
    yield "Runtime", duration(runtime_s(view, now))
    yield "Tokens", f"{_used(view.own)} (subtree {_used(view.subtree)})"
    yield "Cost", f"{_cost(view.own)} (subtree {_cost(view.subtree)})"
    told = view.delivery
    again = "" if told.next_at is None else f", next try {_moment(told.next_at)}"
    yield "Delivery", f"{telling_words(view)}, {told.attempts} attempts{again}"
    error = f": {visible(view.error, ERROR_MAX)}" if view.error else ""
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
        return f"{UNKNOWN}, {tally.calls} calls"
    return (
        f"{tokens(tally.tokens)}, in {tokens(tally.input)} / out {tokens(tally.output)}, {tally.calls} calls"
    )


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
        return "Nothing was said yet."
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
