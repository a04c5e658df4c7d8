"""The state that people see of a task and of its result, what the task is doing now, and what its time
went into.

Phases and reasons are what the machine moves through. `status_of` is the only place that turns them into a state of
`model.TaskStatus`, and no surface has words of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum, auto
from itertools import pairwise
from typing import Any, Final, NamedTuple

from clutch.core import checks
from clutch.core.model import (
    NEEDS_USER,
    Delivery,
    DeliveryStatus,
    Outcome,
    Phase,
    Reason,
    RunState,
    TaskStatus,
)
from clutch.core.questions import QuestionKind, question_status
from clutch.core.text.format import (
    ERROR_MAX,
    KEY_MAX,
    clock,
    counted,
    is_plain,
    main_argument,
    quoted,
    seconds_text,
    visible,
)
from clutch.core.views import DeliveryView, TaskView

QUESTION_MAX = 160  # characters of a question in a list


class ListGroup(IntEnum):
    """The order of a list."""

    NEEDS_USER = auto()
    UNDELIVERED = auto()
    RUNNING = auto()
    QUEUED = auto()
    FINISHED = auto()


def list_group(status: TaskStatus) -> ListGroup:
    """Return the group of a task that has not ended."""
    if status in NEEDS_USER:
        return ListGroup.NEEDS_USER
    return ListGroup.QUEUED if status in (TaskStatus.STARTING, TaskStatus.QUEUED) else ListGroup.RUNNING


_ENDED: Final[Mapping[Outcome, TaskStatus]] = {
    Outcome.OK: TaskStatus.DONE,
    Outcome.ERROR: TaskStatus.FAILED,
    Outcome.TIMEOUT: TaskStatus.TIMED_OUT,
    Outcome.KILLED: TaskStatus.KILLED,
    Outcome.LOST: TaskStatus.LOST,
}
#: A wait that is over by itself at a moment. After it the run is due, and waits in the queue like any other.
_TIMED: Final[Mapping[Reason, TaskStatus]] = {
    Reason.QUOTA: TaskStatus.RATE_LIMITED,
    Reason.PROVIDER: TaskStatus.FAILING,
    Reason.BUDGET: TaskStatus.WAITING,
}


def status_of(
    phase: Phase,
    cause: Reason,
    outcome: Outcome | None,
    *,
    question: QuestionKind | None = None,
    is_due: bool = False,
    is_paused: bool = False,
) -> TaskStatus:
    """Return the state of a task. `question`: what it asks the user, unless that is answered. `is_due`: the moment that
    ends its wait has come. `is_paused`: the user has paused its session."""
    if outcome is not None:
        return _ENDED[outcome]
    match phase:
        case Phase.SPAWNING:
            return TaskStatus.STARTING
        case Phase.QUEUED:
            return TaskStatus.QUEUED
        case Phase.RUNNING:
            return TaskStatus.RUNNING
        case Phase.PAUSED:
            return _paused(cause, question, is_due=is_due, is_paused=is_paused)
        case Phase.AWAITING_APPROVAL:
            return TaskStatus.NEEDS_APPROVAL
        case Phase.ENDING:
            return TaskStatus.FAILING
        case Phase.ANNOUNCE_DEFERRED:
            return TaskStatus.WAITING
        case Phase.ANNOUNCING | Phase.CLEANUP_PENDING | Phase.COMPLETED | Phase.COMPLETED_GIVEUP:
            # These phases follow an outcome. A row without one is not shown as a success.
            return TaskStatus.LOST


def _paused(cause: Reason, question: QuestionKind | None, *, is_due: bool, is_paused: bool) -> TaskStatus:
    if is_paused:
        return TaskStatus.PAUSED
    match cause:
        case Reason.CHILDREN:
            return TaskStatus.WAITING
        case Reason.NEEDS_YOU:
            # Without a question it is answered, and resumes when a worker takes it.
            return TaskStatus.QUEUED if question is None else question_status(question)
        case Reason.QUOTA | Reason.PROVIDER | Reason.BUDGET:
            return TaskStatus.QUEUED if is_due else _TIMED[cause]
        case Reason.RESTART | Reason.INTERRUPT:
            return TaskStatus.QUEUED
        case _:
            return TaskStatus.PAUSED


def task_status(view: TaskView) -> TaskStatus:
    return status_of(
        view.phase,
        view.cause,
        view.outcome,
        question=None if view.question is None else view.question.kind,
        is_due=view.parked_until is not None and view.parked_until <= view.at,
        is_paused=view.is_paused,
    )


def list_order(view: TaskView) -> tuple[ListGroup, float, int]:
    """Return the place of a task in a list: active tasks in the order of creation, ended ones newest first."""
    if view.outcome is None:
        return list_group(task_status(view)), view.created_at, view.task_id
    is_lost = view.delivery.state is Delivery.UNDELIVERED
    group = ListGroup.UNDELIVERED if is_lost else ListGroup.FINISHED
    return group, -(view.ended_at or 0.0), -view.task_id


# ---- the result ------------------------------------------------------------------------------------------

_DELIVERIES: Final[Mapping[Delivery, DeliveryStatus | None]] = {
    Delivery.NONE: None,
    Delivery.WAITING: DeliveryStatus.DELIVERING,
    Delivery.DEFERRED: DeliveryStatus.DEFERRED,
    Delivery.DELIVERED: DeliveryStatus.DELIVERED,
    # Sent to a channel that did not confirm it, and not sent again. The detail always says so.
    Delivery.UNSURE: DeliveryStatus.DELIVERED,
    Delivery.SKIPPED: DeliveryStatus.SKIPPED,
    Delivery.UNDELIVERED: DeliveryStatus.UNDELIVERED,
}
#: Why a delivery is deferred, skipped or given up. Reasons that are not here are readable as they are.
_CAUSES: Final[Mapping[Reason, str]] = {
    Reason.BUSY: "the parent agent is busy",
    Reason.QUIET_HOURS: "quiet hours",
    Reason.DESCENDANTS: "its subagents have not finished",
    Reason.MISSING: "the parent agent is gone",
    Reason.NO_REQUESTER: "the parent agent is gone",
    Reason.REQUESTER_KILLED: "the parent agent was killed",
    Reason.ANNOUNCE_SKIP: "the subagent asked for none",
    Reason.SILENT: "the subagent had nothing to report",
    Reason.NOT_REQUESTED: "not requested; the caller reads it",
    Reason.SUPERSEDED: "replaced by a newer run",
    Reason.PERMANENT_ERROR: "permanent error",
    Reason.RETRY_LIMIT: "retry limit reached",
    Reason.EXPIRY: "retries expired",
    Reason.DROPPED: "the queue of the parent agent was full",
    Reason.DISMISSED: "discarded",
}


def delivery_status(delivery: DeliveryView) -> DeliveryStatus | None:
    """Return where the result is; None: there is no result to deliver yet."""
    return _DELIVERIES[delivery.state]


def delivery_text(delivery: DeliveryView) -> str:
    """`delivered`, `deferred (the parent agent is busy)`, `skipped (killed)`; empty before the end."""
    status = delivery_status(delivery)
    if status is None:
        return ""
    why = cause_text(delivery.cause)
    if delivery.state is Delivery.UNSURE:
        why = f"not confirmed: {visible(delivery.reason or '', ERROR_MAX)}"
    return f"{status} ({why})" if why and delivery.path is None else status.value


def cause_text(cause: Reason) -> str:
    return _CAUSES.get(cause, cause.value)


# ---- what it is doing now --------------------------------------------------------------------------------


class Doing(NamedTuple):
    """One line that is never empty. `since`: when that began; None where the time would tell nothing."""

    text: str
    since: float | None = None

    def at(self, now: float) -> str:
        """Return the line with its time: `thinking · step 4 · 6 s`."""
        return self.text if self.since is None else f"{self.text} · {seconds_text(now - self.since)}"


def doing_now(view: TaskView) -> Doing:
    status = task_status(view)
    match status:
        case TaskStatus.STARTING:
            return Doing("creating its files", view.created_at)
        case TaskStatus.QUEUED:
            is_new = view.cause is Reason.ADMITTED
            return Doing("waiting for a free slot", view.created_at if is_new else None)
        case TaskStatus.RUNNING:
            return _work(view)
        case TaskStatus.WAITING:
            return _wait(view)
        case TaskStatus.NEEDS_APPROVAL | TaskStatus.NEEDS_ANSWER:
            return Doing("asks to approve its plan" if view.question is None else view.question.text)
        case TaskStatus.PAUSED:
            return Doing("paused until it is resumed")
        case TaskStatus.RATE_LIMITED:
            until = view.parked_until
            return Doing(
                "until the provider accepts calls" if until is None else f"until {clock(until, view.at)}"
            )
        case TaskStatus.FAILING:
            return Doing(_retry(view))
        case TaskStatus.DONE:
            return Doing(f"{checks.words(view.checks)} · {result_text(view)}")
        case TaskStatus.FAILED | TaskStatus.TIMED_OUT | TaskStatus.KILLED | TaskStatus.LOST:
            return Doing(error_text(view.error) or _UNEXPLAINED[status])


_UNEXPLAINED: Final[Mapping[TaskStatus, str]] = {
    TaskStatus.FAILED: "no error was recorded",
    TaskStatus.TIMED_OUT: "stopped at its time limit",
    TaskStatus.KILLED: "stopped by a user",
    TaskStatus.LOST: "its session is gone",
}


def _work(view: TaskView) -> Doing:
    if view.worker_id is None:
        return Doing("waiting for a worker", view.progress_at)
    if view.current_tool is not None:
        tool = view.current_tool
        return Doing(call_text(tool.name, tool.arg), tool.since)
    if view.called_at is not None:
        return Doing(f"thinking · step {view.step}", view.called_at)
    # Code that is not our own loop makes its calls itself.
    return Doing(f"working · step {view.step}", view.progress_at)


def _wait(view: TaskView) -> Doing:
    if view.cause is Reason.BUDGET:
        return Doing("waiting for budget")
    if not view.children_active:
        return Doing("resuming: its subagents have finished")
    since = view.ended_at if view.phase is Phase.ANNOUNCE_DEFERRED else view.progress_at
    return Doing(f"waiting for {view.children_active} of {counted(view.children_total, 'subagent')}", since)


def _retry(view: TaskView) -> str:
    until = view.wake_at if view.phase is Phase.ENDING else view.parked_until
    left = "" if until is None else f" {seconds_text(until - view.at)}"
    if view.phase is Phase.ENDING:
        error = error_text(view.error) or _UNEXPLAINED[TaskStatus.FAILED]
        return f"retry possible{' for' + left if left else ''} · {error}"
    return f"provider error · next attempt{' in' + left if left else ' soon'}"


def result_text(view: TaskView) -> str:
    """Return where the result of an ended task is: `result delivered`."""
    if view.delivery.cause is Reason.NOT_REQUESTED:
        return "result ready"
    said = delivery_text(view.delivery)
    return f"result {said}" if said else "result recorded"


def error_text(error: str | None) -> str | None:
    """Return the error in one line."""
    return visible(" ".join(error.split()), ERROR_MAX) or None if error else None


def call_text(name: str, argument: str) -> str:
    """`search "TODO"`. An argument that `main_argument` made has its escapes already."""
    named = visible(name, KEY_MAX)
    if is_plain(argument):
        argument = argument.replace('"', '\\"')
        return f'{named} "{argument}"' if argument else named
    return f"{named} {quoted(argument)}"


def question_text(detail: Mapping[str, Any]) -> str:
    """What a question asks, in one line: a tool call that needs approval, or the words of the question."""
    if "tool" in detail:
        args = detail.get("args")
        return f"asks to run {call_text(str(detail['tool']), main_argument(args if isinstance(args, dict) else {}))}"
    words = " ".join(str(detail.get("question") or detail.get("text") or "").split())
    return f"asks: {visible(words, QUESTION_MAX)}" if words else "asks for a decision"


def elapsed_s(view: TaskView) -> float | None:
    """Return the time since the task started, until it ended. None: it has not started."""
    if view.started_at is None:
        return None
    end = view.ended_at if view.outcome is not None and view.ended_at is not None else view.at
    return max(0.0, end - view.started_at)


def session_status(
    run: RunState | None, *, is_owned: bool, has_failed: bool, letters: int, children: int
) -> TaskStatus | None:
    """Return the state of a main session, which has no task. None: idle.

    `run`: its open run. `is_owned`: a worker has it. `has_failed`: its last model call did. `letters`: that it has not
    read. `children`: that still work."""
    match run:
        case RunState.RUNNING if is_owned:
            return TaskStatus.RUNNING
        case RunState.ASKING:
            return TaskStatus.NEEDS_ANSWER
        case RunState.PARKED:
            return TaskStatus.FAILING if has_failed else TaskStatus.WAITING
        case RunState.RUNNING | RunState.ANSWERED:
            return TaskStatus.QUEUED
        case _ if letters:
            return TaskStatus.QUEUED
        case _:
            return TaskStatus.WAITING if children else None


# --------------------------------------------------------------------------------------------------
# What the time of a task went into: the segments of its timeline bar, and the group of the task in a list.
#
# A segment is a span with one activity. Phases come from the timeline of the task; inside a run, the entries of the
# transcript tell a model call (until its answer) from the tools that the answer called (until their results).

#: A bar is about as many pixels wide; finer segments cannot be seen.
SEGMENTS_MAX: Final = 60


class Activity(StrEnum):
    QUEUED = "queued"
    THINKING = "thinking"
    TOOL = "tool"
    SUBAGENTS = "subagents"  #: waits for them
    USER = "user"  #: waits for a decision
    PROVIDER = "provider"  #: rate limited, retrying, or out of budget for now
    PAUSED = "paused"
    DELIVERING = "delivering"


class TaskGroup(StrEnum):
    """Who has to act: the user, the task itself, the operator, or none of them."""

    ATTENTION = "needs attention"
    ACTIVE = "active"
    UNDELIVERED = "undelivered"
    FINISHED = "finished"


#: Outcomes after which a retry may bring a result.
FAILED: Final = frozenset({Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST})

_PAUSED: Final[Mapping[Reason, Activity]] = {
    Reason.CHILDREN: Activity.SUBAGENTS,
    Reason.NEEDS_YOU: Activity.USER,
    Reason.QUOTA: Activity.PROVIDER,
    Reason.PROVIDER: Activity.PROVIDER,
    Reason.BUDGET: Activity.PROVIDER,
    Reason.RESTART: Activity.QUEUED,
    Reason.INTERRUPT: Activity.QUEUED,
}
_PHASES: Final[Mapping[Phase, Activity]] = {
    Phase.SPAWNING: Activity.QUEUED,
    Phase.QUEUED: Activity.QUEUED,
    Phase.RUNNING: Activity.THINKING,
    Phase.AWAITING_APPROVAL: Activity.USER,
    Phase.ENDING: Activity.PROVIDER,
    Phase.ANNOUNCE_DEFERRED: Activity.SUBAGENTS,
    Phase.ANNOUNCING: Activity.DELIVERING,
}
_STATUSES: Final[Mapping[TaskStatus, Activity]] = {
    TaskStatus.STARTING: Activity.QUEUED,
    TaskStatus.QUEUED: Activity.QUEUED,
    TaskStatus.RUNNING: Activity.THINKING,
    TaskStatus.WAITING: Activity.SUBAGENTS,
    TaskStatus.NEEDS_APPROVAL: Activity.USER,
    TaskStatus.NEEDS_ANSWER: Activity.USER,
    TaskStatus.PAUSED: Activity.PAUSED,
    TaskStatus.RATE_LIMITED: Activity.PROVIDER,
    TaskStatus.FAILING: Activity.PROVIDER,
}


def activity_now(view: TaskView) -> Activity | None:
    """Return what the task does now; None: nothing any more."""
    if view.outcome is not None:
        is_underway = view.delivery.state in (Delivery.WAITING, Delivery.DEFERRED)
        return Activity.DELIVERING if is_underway else None
    status = task_status(view)
    if status is TaskStatus.RUNNING and view.current_tool is not None:
        return Activity.TOOL
    if status is TaskStatus.WAITING and view.cause is Reason.BUDGET:
        return Activity.PROVIDER
    return _STATUSES.get(status)


def group_of(view: TaskView) -> TaskGroup:
    if view.outcome is None:
        return TaskGroup.ATTENTION if task_status(view) in NEEDS_USER else TaskGroup.ACTIVE
    is_undelivered = view.delivery.state is Delivery.UNDELIVERED
    return TaskGroup.UNDELIVERED if is_undelivered else TaskGroup.FINISHED


def phase_activity(phase: Phase, reason: Reason) -> Activity | None:
    """Return what a task does from the moment it enters a phase; None: it has ended."""
    if phase is Phase.PAUSED:
        return _PAUSED.get(reason, Activity.PAUSED)
    return _PHASES.get(phase)


class Change(NamedTuple):
    """From `at` on the task has this activity; None: no activity."""

    at: float
    activity: Activity | None


class Segment(NamedTuple):
    """`start` and `end` in seconds since the task was created; `end` is None for what still lasts."""

    activity: Activity
    start: float
    end: float | None


def transcript_activity(kind: str) -> Activity:
    """Return what a run does after an entry of its transcript. Tools work from an answer to their results."""
    return Activity.TOOL if kind == "answer" else Activity.THINKING


def segments(
    created_at: float, now: float, changes: Iterable[Change], most: int = SEGMENTS_MAX
) -> list[Segment]:
    """Return the segments in order, without overlap, at most `most`; neighbours differ.

    `changes` are in the order of time. A change before the creation is part of a copied conversation and is left out;
    so are moments without length."""
    known = [change for change in changes if created_at <= change.at <= now]
    spans: list[Segment] = []
    for change, following in pairwise([*known, Change(now, None)]):
        _append(spans, change.activity, change.at - created_at, following.at - created_at)
    found = _coarse(spans, most) if len(spans) > most else spans
    if known and known[-1].activity is not None:
        return _open(found, known[-1].activity, now - created_at, most)
    return found


def _append(spans: list[Segment], activity: Activity | None, start: float, end: float) -> None:
    """Add a span, or extend the last one if it has the same activity and ends where this one starts."""
    if activity is None or end <= start:
        return
    if spans and spans[-1].activity is activity and spans[-1].end == start:
        spans[-1] = spans[-1]._replace(end=end)
    else:
        spans.append(Segment(activity, start, end))


def _open(found: list[Segment], activity: Activity, now: float, most: int) -> list[Segment]:
    """Leave the last segment open: it lasts."""
    if found and found[-1].activity is activity and found[-1].end == now:
        return [*found[:-1], found[-1]._replace(end=None)]
    return [*found[: most - 1], Segment(activity, now, None)]


def _coarse(spans: Sequence[Segment], most: int) -> list[Segment]:
    """Divide the time into `most` equal slots, each with the activity that took most of it."""
    first, last = spans[0].start, spans[-1].end or 0.0
    width = (last - first) / most
    shares: list[dict[Activity, float]] = [{} for _ in range(most)]
    for activity, start, end in spans:
        place = min(int((start - first) / width), most - 1)
        while place < most:
            left, right = first + place * width, first + (place + 1) * width
            part = min(end or last, right) - max(start, left)
            if part > 0:
                shares[place][activity] = shares[place].get(activity, 0.0) + part
            if (end or last) <= right:
                break
            place += 1
    made: list[Segment] = []
    for place, share in enumerate(shares):
        end = last if place == most - 1 else first + (place + 1) * width
        longest = max(share, key=lambda one: share[one]) if share else None
        _append(made, longest, first + place * width, end)
    return made
