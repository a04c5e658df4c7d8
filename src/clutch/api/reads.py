"""Reads: each a transaction from the target a caller typed to the JSON object that answers it.

A gateway runs them for its clients; without a gateway, the commands run them on the file. `who` is the caller: a target
is found only among what that caller may see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from clutch.api import views
from clutch.core import ids
from clutch.core.authority import AgentCaller, Caller, OperatorCaller
from clutch.core.model import Outcome, Phase
from clutch.core.views import TaskView
from clutch.errors import InvalidInput, NotFound
from clutch.store.transaction import Tx
from clutch.transactions.read import lists, targets, timeline
from clutch.transactions.read import tasks as tasks_tx
from clutch.transactions.read.inbox import item, origins, unread_replies, unsent, waiting_items
from clutch.transactions.read.lists import PAGE_MAX, ListState, TaskFilter
from clutch.transactions.read.targets import ResolvedTarget, Standpoint

if TYPE_CHECKING:
    from clutch.api import objects, report_objects
    from clutch.api.report_objects import TreeTimeline
    from clutch.core.policy import Policy

TARGET_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class Filter:
    """Filters of a list. `root`, `requester`: targets. `recent_minutes`: leave out tasks that ended before that, but
    for the newest `recent_count`, which are on the first page however many are active."""

    root: str | None = None
    requester: str | None = None
    phase: Phase | None = None
    outcome: Outcome | None = None
    label: str | None = None
    undelivered: bool = False
    recent_minutes: float | None = None
    recent_count: int = 0
    state: ListState | None = None
    agent: str | None = None
    text: str | None = None
    include: Literal["segments"] | None = None
    limit: int = 50
    cursor: str | None = None


def phase_named(name: str | None) -> Phase | None:
    if name is not None and name not in set(Phase):
        raise InvalidInput("phase", f"must be one of: {', '.join(Phase)}")
    return None if name is None else Phase(name)


def state_named(name: str | None) -> ListState | None:
    if name is not None and name not in set(ListState):
        raise InvalidInput("state", f"must be one of: {', '.join(ListState)}")
    return None if name is None else ListState(name)


def outcome_named(name: str | None) -> Outcome | None:
    if name is not None and name not in set(Outcome):
        raise InvalidInput("outcome", f"must be one of: {', '.join(Outcome)}")
    return None if name is None else Outcome(name)


def _wanted(now: float, who: Standpoint, asked: Filter) -> Tx[TaskFilter]:
    for name, given in (("label", asked.label), ("agent", asked.agent), ("text", asked.text)):
        if given is not None and "\0" in given:
            raise InvalidInput(name, "may not contain a NUL character")
    root = None if asked.root is None else (yield from root_number(now, who, asked.root))
    wanted = TaskFilter(
        root_id=own_root(who) if root is None else root,
        requester_id=None
        if asked.requester is None
        else (yield from session_number(now, who, asked.requester)),
        phase=asked.phase,
        outcome=asked.outcome,
        label=asked.label,
        is_undelivered=asked.undelivered,
        state=asked.state,
        agent=asked.agent,
        text=asked.text,
    )
    if asked.recent_minutes is None:
        return wanted
    newest = yield from lists.newest_ended(now, wanted, asked.recent_count)
    return replace(wanted, ended_after=min(now - 60 * asked.recent_minutes, newest))


def found(now: float, who: Standpoint, asked: Filter) -> Tx[list[TaskView]]:
    wanted = yield from _wanted(now, who, asked)
    return (yield from lists.task_page(now, wanted, asked.limit, asked.cursor)).tasks


def tasks(now: float, who: Standpoint, asked: Filter) -> Tx[objects.TaskList]:
    wanted = yield from _wanted(now, who, asked)
    # The place is read before the rows: an event in between is sent twice rather than never.
    place = yield from timeline.newest(now)
    page = yield from lists.task_page(now, wanted, asked.limit, asked.cursor, newest=asked.recent_count)
    counted = yield from lists.summary(now, wanted)
    spans = None if asked.include is None else (yield from timeline.segments(now, page.tasks))
    return views.listing(page.tasks, counted, page.next, str(place), spans)


def task(now: float, who: Standpoint, target: str) -> Tx[objects.TaskObject]:
    return views.task((yield from view(now, who, target)))


def known(now: float, number: int) -> Tx[objects.TaskObject]:
    found = yield from tasks_tx.one(now, number)
    if found is None:
        raise unknown(number)
    return views.task(found)


def tree(now: float, who: Standpoint, target: str) -> Tx[objects.Tree]:
    number = yield from task_number(now, who, target)
    found = yield from tasks_tx.tree(now, number)
    if not found:
        raise unknown(number)
    return views.tree(found, number)


def transcript(
    now: float, who: Standpoint, target: str, after: int = 0, limit: int = PAGE_MAX
) -> Tx[objects.Messages]:
    number = (yield from view(now, who, target)).task_id
    return views.transcript((yield from lists.transcript(now, number, after, limit)))


def result(now: float, who: Standpoint, target: str) -> Tx[objects.ResultObject]:
    """Raises NotFound, with its phase, of a task that has not ended."""
    number = yield from task_number(now, who, target)
    found = yield from lists.result(now, number)
    if found is None:
        raise unknown(number)
    if found.outcome is None:
        raise NotFound(f"task {ids.task_id(number)} has no result yet: it is {found.phase}")
    return views.result(found)


def session_transcript(
    now: float, who: Standpoint, target: str, after: int = 0, limit: int = PAGE_MAX
) -> Tx[objects.Messages]:
    number = yield from session_number(now, who, target)
    return views.transcript((yield from lists.transcript(now, number, after, limit)))


def why(
    now: float, who: Standpoint, target: str, is_served: bool = True, state: str | None = None
) -> Tx[objects.WhyDocument]:
    from clutch.api import timeline  # much to load, and lists are asked for far more often
    from clutch.transactions.read import why as why_of

    meant_by = yield from session(now, who, target)
    number = meant_by.session_id
    if meant_by.task_id is None and (main := (yield from why_of.session_why(now, number, is_served))):
        return timeline.session_why(now, main, state)
    found = yield from why_of.why(now, number, is_served)
    if found is None:
        raise unknown(number)
    return timeline.why(now, found, state)


def replay(
    now: float, who: Standpoint, target: str, after: int = 0, limit: int = PAGE_MAX
) -> Tx[objects.Journal]:
    from clutch.api import timeline
    from clutch.transactions.read import why as why_of

    number = (yield from view(now, who, target)).task_id
    return timeline.journal((yield from why_of.journal(now, number)), after, limit)


def tree_timeline(now: float, who: Standpoint, target: str, is_subtree: bool = False) -> Tx[TreeTimeline]:
    """The whole tree that the task belongs to, from its topmost task on. `is_subtree`: from the task itself on."""
    from clutch.api import timeline as timelines
    from clutch.transactions.read import trees

    number = yield from task_number(now, who, target)
    place = yield from timeline.newest(now)
    found = yield from trees.recorded(now, number, is_subtree)
    if found is None:
        raise unknown(number)
    return timelines.timeline(now, found, str(place))


def inbox(now: float, who: Standpoint, policy: Policy | None = None) -> Tx[objects.Inbox]:
    """`policy`: of the gateway that works on the store; without it some effects of a decision are not known."""
    root = own_root(who)
    replies = yield from unread_replies(now, root)
    messages = yield from unsent(now, root)
    items = yield from waiting_items(now, root)
    return views.inbox(items, (yield from origins(now, items, policy)), replies, messages)


def inbox_item(now: float, who: Standpoint, target: str, policy: Policy | None = None) -> Tx[objects.Item]:
    """Raises NotFound, AmbiguousTarget."""
    found = yield from item(now, meant(target), who, own_root(who))
    # A run resumes with its last answer: what the others ask belongs to what this decision does.
    beside = [one for one in (yield from waiting_items(now)) if one.session_id == found.session_id]
    beside = beside or [found]
    return views.item(found, (yield from origins(now, beside, policy))[beside.index(found)])


def usage(now: float, by: str, hours: float | None, utc_offset_minutes: int) -> Tx[report_objects.Spending]:
    from clutch.api import costs  # most commands ask for lists

    return (yield from costs.spending(now, costs.parsed(by, hours, utc_offset_minutes)))


def nodes(now: float, own_id: int = 0) -> Tx[report_objects.Nodes]:
    """`own_id`: the worker of the process that answers."""
    found = yield from lists.nodes(now)
    return {"at": views.moment(now), "nodes": [views.worker(one, own_id, now) for one in found]}


def result_if_any(now: float, number: int) -> Tx[objects.ResultObject | None]:
    found = yield from lists.result(now, number)
    return None if found is None or found.outcome is None else views.result(found)


# ---- what was meant ----------------------------------------------------------------------------------


def standpoint(caller: Caller) -> Standpoint:
    """Return how targets of this caller are resolved: an agent's from its session, a user's also by its last list."""
    if isinstance(caller, AgentCaller):
        return targets.of_agent(caller)
    return Standpoint(caller, caller.actor, caller.within)


def own_root(who: Standpoint) -> int | None:
    """Return the session the caller is restricted to, or None for an operator who sees everything."""
    return who.caller.within if isinstance(who.caller, OperatorCaller) else None


def view(now: float, who: Standpoint, target: str) -> Tx[TaskView]:
    number = yield from task_number(now, who, target)
    found = yield from tasks_tx.one(now, number)
    if found is None:
        raise unknown(number)
    return found


def task_number(now: float, who: Standpoint, target: str) -> Tx[int]:
    return (yield from targets.task(now, meant(target), who))


def message_number(message: str) -> int:
    """Raises NotFound."""
    number = ids.parse_message_id(message)
    if number is None:
        raise NotFound(f"there is no message {message[:40]!r}: `clutch inbox` shows the ids, as m_…")
    return number


def meant(target: str) -> str:
    """Return the target. Raises InvalidInput for what cannot be one: blank, or longer than any valid name."""
    if not target.strip():
        raise InvalidInput("target", "must not be blank")
    if len(target) > TARGET_CHARS_MAX:
        raise InvalidInput("target", f"has {len(target)} characters, at most {TARGET_CHARS_MAX} are allowed")
    if "\0" in target:
        raise InvalidInput("target", "may not contain a NUL character")
    return target


def task_of(now: float, session_id: int) -> Tx[str | None]:
    """Return the id of the task that this session works on; a main session has none."""
    found = yield from tasks_tx.one(now, session_id)
    return None if found is None else ids.task_id(session_id)


def session(now: float, who: Standpoint, target: str) -> Tx[ResolvedTarget]:
    return (yield from targets.resolve(now, meant(target), who))


def session_number(now: float, who: Standpoint, target: str) -> Tx[int]:
    return (yield from session(now, who, target)).session_id


def root_number(now: float, who: Standpoint, target: str) -> Tx[int]:
    """Return the main session above the target."""
    found = yield from session(now, who, target)
    if found.task_id is None:
        return found.session_id
    task = yield from tasks_tx.one(now, found.task_id)
    return found.session_id if task is None else task.root_id


def unknown(number: int) -> NotFound:
    return NotFound(f"there is no task {ids.task_id(number)}")
