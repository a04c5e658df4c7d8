"""The inbox: questions of runs, plans that await approval and tools that changed, from any depth, oldest
first; and where they come from. Reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from clutch.core import ids
from clutch.core.authority import canonical, from_text
from clutch.core.budget import Budget
from clutch.core.ids import CANDIDATES_MAX, Candidate, WaitingItem, items_meant, parse_target, plan_hash
from clutch.core.model import NO_SESSION
from clutch.core.questions import Decision, DecisionContext, QuestionKind, consequences
from clutch.errors import AmbiguousTarget, NotFound
from clutch.store.transaction import Row, Tx
from clutch.transactions.conditions import IS_UNTOLD
from clutch.transactions.read import targets, tasks
from clutch.transactions.read.targets import Standpoint

if TYPE_CHECKING:  # `clutch inbox` without a gateway has none, and does not load it
    from clutch.core.policy import Policy

PLAN = "plan"
SHELL = "shell"


@dataclass(frozen=True, slots=True)
class InboxItem:
    """`hash` binds the decision to exactly what is shown. A main session asks without a task, the gateway without a
    session."""

    id: str
    kind: str
    task_id: int | None
    session_key: str | None
    label: str | None
    depth: int
    text: str
    detail: Mapping[str, Any]
    hash: str
    asked_at: float
    session_id: int = NO_SESSION
    rejections: int = 0  #: of earlier plans of the task


def waiting_items(now: float, root_id: int | None = None) -> Tx[list[InboxItem]]:
    """`root_id`: only of that main session and what is below it."""
    del now
    of_one, values = ("", ()) if root_id is None else (" AND s.root_id = ?", (root_id,))
    asked = yield (
        "SELECT q.session_id, q.id, q.kind, t.id, s.key, t.label, s.depth, q.body, q.hash, q.asked_at FROM questions q"  # noqa: S608
        " LEFT JOIN sessions s ON s.id = q.session_id LEFT JOIN tasks t ON t.id = q.session_id"
        f" WHERE q.answered_at IS NULL{of_one}",
        values,
    )
    plans = yield (
        "SELECT t.id, s.key, t.label, t.depth, t.result, t.plan_round,"  # noqa: S608 (constant words)
        " (SELECT MAX(e.at) FROM events e WHERE e.task_id = t.id AND e.to_phase = 'awaiting_approval')"
        f" FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.phase = 'awaiting_approval' AND {IS_UNTOLD}"
        f"{of_one}",
        values,
    )
    items = [*map(_question, asked), *map(_plan, plans)]
    return sorted(items, key=lambda item: (item.asked_at, item.id))


def item(now: float, text: str, who: Standpoint, root_id: int | None = None) -> Tx[InboxItem]:
    """Return the item that a target names: a question's id, or anything that names the task or session that asks.

    Raises AmbiguousTarget with the items it fits, NotFound with all that wait."""
    items = yield from waiting_items(now, root_id)
    known = {
        WaitingItem(one.id, Candidate(one.session_key or "", one.task_id, None, one.label)): one
        for one in items
    }
    viewpoint = yield from targets.viewpoint_of(parse_target(text), who)
    meant = [known[one] for one in items_meant(text, list(known), viewpoint)]
    if not meant and ids.parse_question_id(text.strip()) is None:
        found = yield from targets.resolve(now, text, who)
        meant = [
            one for one in items if found.session_key is not None and one.session_key == found.session_key
        ]
    if len(meant) == 1:
        return meant[0]
    candidates = [_proposal(one) for one in (meant or items[::-1])[:CANDIDATES_MAX]]
    shown = repr(text[: ids.SHOWN_INPUT_MAX])
    if meant:
        raise AmbiguousTarget(f"{shown} fits {len(meant)} items of the inbox; name one by its id", candidates)
    if ids.parse_question_id(text.strip()) is not None:
        raise NotFound(f"question {shown} is not in the inbox: it was answered, or never asked", candidates)
    raise NotFound(
        f"{shown} has nothing that waits for a decision; `clutch inbox` lists what waits", candidates
    )


def _proposal(one: InboxItem) -> str:
    return f"{one.id} ({one.kind}{f' of {one.label}' if one.label else ''})"


def is_asking(now: float, session_ids: Sequence[int]) -> Tx[bool]:
    """Whether any of them waits for a decision right now. One that was answered may not have moved yet."""
    del now
    asked = yield (
        "SELECT 1 FROM questions WHERE session_id {any} AND answered_at IS NULL LIMIT 1",
        (list(session_ids),),
    )
    plans = yield (
        "SELECT 1 FROM tasks WHERE id {any} AND phase = 'awaiting_approval' LIMIT 1",
        (list(session_ids),),
    )
    return bool(asked or plans)


def _question(row: Row) -> InboxItem:
    session_id, number, kind, task_id, key, label, depth, body, shown, asked_at = row
    detail = json.loads(body)
    who = label if session_id != NO_SESSION else _file_or_server(detail)
    text = _words(detail)
    return InboxItem(
        ids.question_id(number),
        kind,
        task_id,
        key,
        who,
        depth or 0,
        text,
        detail,
        shown,
        asked_at,
        session_id,
    )


def _file_or_server(detail: Mapping[str, Any]) -> str:
    return (
        f"{detail['definition']} {detail['name']}"
        if "file" in detail
        else f"MCP server {detail['mcpServer']}"
    )


def _words(detail: Mapping[str, Any]) -> str:
    """Of a call that needs approval its name and arguments, else what was asked."""
    if "tool" in detail:
        return f"{detail['tool']} {json.dumps(detail['args'], ensure_ascii=True, sort_keys=True)}"
    return str(detail.get("question") or detail.get("text") or "")


def _plan(row: Row) -> InboxItem:
    task_id, key, label, depth, plan, rejections, asked_at = row
    text = plan or ""
    shown = plan_hash(text)
    return InboxItem(
        ids.task_id(task_id),
        PLAN,
        task_id,
        key,
        label,
        depth,
        text,
        {},
        shown,
        asked_at or 0.0,
        task_id,
        rejections,
    )


# --------------------------------------------------------------------------------------------------
# Where the items come from, and what a decision does there. Reads.


class PathStep(NamedTuple):
    session_key: str
    task_id: int | None
    label: str | None


@dataclass(frozen=True, slots=True)
class ItemOrigin:
    """`path`: from the top of the tree to the session that asks; empty: the gateway asks."""

    agent_id: str | None = None
    path: tuple[PathStep, ...] = ()
    directory: str | None = None  #: where an approved command starts
    is_sandboxed: bool | None = None  #: whether an approved command runs in the sandbox; None: not known
    budget: Budget | None = None
    consequences: Mapping[Decision, str] = field(default_factory=dict)


def origins(now: float, items: Sequence[InboxItem], policy: Policy | None = None) -> Tx[list[ItemOrigin]]:
    """One for each item. `policy`: the one that holds when the run resumes; without it some effects are not known."""
    del now
    askers = sorted({item.session_id for item in items} - {NO_SESSION})
    sessions = {row[0]: row[1:] for row in (yield _ASKERS, (askers,))}
    paths: dict[int, list[PathStep]] = {}
    for asker, *step in (yield _PATHS, (askers,)):
        paths.setdefault(asker, []).append(PathStep(*step))
    wanted = sorted({str(item.detail["purse"]) for item in items if "purse" in item.detail})
    purses = {purse.name: purse for purse in (yield from tasks.budgets_named(wanted))} if wanted else {}
    asked = Counter(item.session_id for item in items)
    found = []
    for item in items:
        about = sessions.get(item.session_id)
        asker = replace(
            DecisionContext() if about is None else _asker(item, about, policy),
            others=asked[item.session_id] - 1,
            budget=purses.get(str(item.detail.get("purse"))),
        )
        found.append(
            ItemOrigin(
                None if about is None else about[0],
                tuple(paths.get(item.session_id, ())),
                asker.directory,
                asker.is_sandboxed,
                asker.budget,
                consequences(QuestionKind(item.kind), item.detail, asker),
            )
        )
    return found


_ASKERS = (
    "SELECT s.id, s.agent_id, s.rights, s.workspace, t.spec FROM sessions s LEFT JOIN tasks t ON t.id = s.id"
    " WHERE s.id {any}"
)
#: Imported sessions can be each other's parent: the level ends the walk.
_PATHS = (
    "WITH RECURSIVE above(asker, id, parent_id, level) AS ("
    "SELECT id, id, parent_id, 0 FROM sessions WHERE id {any}"
    " UNION ALL SELECT a.asker, s.id, s.parent_id, a.level + 1 FROM above a JOIN sessions s ON s.id = a.parent_id"
    " WHERE a.level < 30)"
    " SELECT a.asker, s.key, t.id, t.label FROM above a JOIN sessions s ON s.id = a.id LEFT JOIN tasks t ON t.id = a.id"
    " ORDER BY a.asker, a.level DESC"
)


def _asker(item: InboxItem, about: Sequence[Any], policy: Policy | None) -> DecisionContext:
    agent_id, stored, workspace, spec = about
    asked = json.loads(spec) if spec else {}
    runtime, directory, is_sandboxed = asked.get("runtime"), None, None
    if runtime is None and canonical(str(item.detail.get("tool"))) == SHELL:
        is_sandboxed = _is_sandboxed(stored, agent_id, policy)
        directory = _directory(workspace or ".", item.detail.get("args"), asked.get("cwd"))
    return DecisionContext(
        is_task=item.task_id is not None,
        runtime=runtime,
        directory=directory,
        is_sandboxed=is_sandboxed,
        rejections=item.rejections,
        rejections_max=None if policy is None else policy.life.rejections_max,
    )


def _is_sandboxed(stored: str, agent_id: str, policy: Policy | None) -> bool | None:
    """A sandboxed session stays sandboxed; a policy that sandboxes the agent now holds for it, too."""
    if from_text(stored).sandbox:
        return True
    return None if policy is None else policy.grant(agent_id).sandbox


def _directory(workspace: str, args: object, usual: str | None) -> str:
    """As the shell tool joins them: a directory of the call's own, else that of the task, beneath the workspace."""
    given = args.get("cwd") if isinstance(args, Mapping) else None
    chosen = given if isinstance(given, str) and given != "." else usual or "."
    return "/".join([workspace, *(part for part in chosen.split("/") if part not in ("", "."))])


# --------------------------------------------------------------------------------------------------
# Messages to people that wait for a reader, or that no channel took: counted, and the newest of them shown. Reads.


class UnreadReplies(NamedTuple):
    """Replies of main agents that no user has read."""

    waiting: int  #: for a client to attach
    unsent: int  #: no channel took them, and none will be tried again
    speakers: tuple[str, ...] = ()  #: the keys of the sessions whose words wait


def unread_replies(now: float, session_id: int | None = None) -> Tx[UnreadReplies]:
    """Of one session, or of all. A task's own text is not among them: its delivery is shown with the task."""
    del now
    of_one = "" if session_id is None else " AND session_id = ?"
    rows = yield (
        "SELECT (SELECT key FROM sessions WHERE id = session_id),"  # noqa: S608 (constant words)
        " COUNT(CASE WHEN due IS NOT NULL AND attempts = 0 AND channel <> 'hook' AND channel <> 'push' THEN 1 END),"
        " COUNT(CASE WHEN due IS NULL THEN 1 END) FROM outbox"
        f" WHERE done_at IS NULL AND owner IS NULL AND task_id IS NULL{of_one} GROUP BY session_id ORDER BY session_id",
        () if session_id is None else (session_id,),
    )
    speakers = tuple(key for key, waiting, _ in rows if waiting and key is not None)
    return UnreadReplies(sum(row[1] for row in rows), sum(row[2] for row in rows), speakers)


class UnsentMessage(NamedTuple):
    """A message that is not sent again by itself: what it says, where it was to go, and why it was not or may not have
    been read."""

    key: str
    session_key: str | None
    task_id: int | None  #: of a task's own result; None: a reply of an agent
    channel: str
    target: str
    text: str  #: its beginning
    outcome: str  #: `core.sends.SendOutcome`
    error: str
    attempts: int
    tried_at: float | None
    id: int


#: Its tries are used up, it was refused, or it is unsure whether it arrived.
_UNSENT = (
    "SELECT o.idem, s.key, o.task_id, o.channel, o.target, SUBSTR(o.body, 1, 200), o.outcome, COALESCE(o.error, ''),"
    " o.attempts, o.tried_at, o.id FROM outbox o LEFT JOIN sessions s ON s.id = o.session_id"
    " WHERE o.done_at IS NULL AND o.owner IS NULL AND o.due IS NULL AND o.outcome IS NOT NULL"
    # A result that failed is tried again by its letter.
    " AND (o.task_id IS NULL OR o.outcome = 'unsure')"
)
SHOWN_MAX = 20
SHOWN_S = 7 * 86_400.0  #: as long as a dead letter


def unsent(now: float, session_id: int | None = None) -> Tx[list[UnsentMessage]]:
    """The newest ones, oldest first. `session_id`: only of this session."""
    of_one = "" if session_id is None else " AND o.session_id = ?"
    rows = yield (
        f"{_UNSENT} AND COALESCE(o.tried_at, ?) >= ?{of_one} ORDER BY o.id DESC LIMIT {SHOWN_MAX}",
        (now, now - SHOWN_S, *(() if session_id is None else (session_id,))),
    )
    return [UnsentMessage(*row) for row in reversed(rows)]


def sender(now: float, message_id: int) -> Tx[int]:
    """Return the session whose message it is. Raises NotFound."""
    del now
    rows = yield "SELECT session_id FROM outbox WHERE id = ?", (message_id,)
    if not rows:
        raise NotFound(f"there is no message {ids.message_id(message_id)}")
    return int(rows[0][0])


def sent_for(now: float, task_id: int) -> Tx[list[UnsentMessage]]:
    """Those that were to tell of this task: its own result, and the replies of the runs that read it."""
    del now
    rows = yield (
        f"{_UNSENT} AND (o.task_id = ? OR o.idem IN (SELECT 'reply:' || CAST(d.run_id AS TEXT) FROM deliveries d"  # noqa: S608 (constant words)
        " WHERE d.task_id = ? AND d.run_id IS NOT NULL)) ORDER BY o.id",
        (task_id, task_id),
    )
    return [UnsentMessage(*row) for row in rows]
