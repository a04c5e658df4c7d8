"""What a person or a model typed to point at a session, and the one it means.

The grammar and the order of meanings are in `core.keys`; here the store is asked for whatever could be meant.
Only what the caller may see is ever looked at, so nothing else can be found, and nothing else is proposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from clutch.core import ids
from clutch.core.authority import AgentCaller, Allowed, Caller, Target, Verb, Visibility, can
from clutch.core.ids import Ambiguous, Candidate, Unknown, Viewpoint
from clutch.errors import AmbiguousTarget, NotFound
from clutch.store.transaction import Row, Tx
from clutch.transactions.read import tasks

MATCHES_MAX = 1000  # of a prefix that begins nearly everything
MAIN_AGENT = "main"


@dataclass(frozen=True, slots=True)
class Standpoint:
    """The caller. `viewer` names the reader of a numbered list; `session_id` is where `current` is,
    and whose children `last` is about: without one, everybody's."""

    caller: Caller
    viewer: str = ""
    session_id: int | None = None
    agent_id: str = MAIN_AGENT


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    session_id: int
    session_key: str | None  #: None once it was deleted
    task_id: int | None  #: None: a main session


def of_agent(caller: AgentCaller) -> Standpoint:
    return Standpoint(caller, f"session:{caller.session_id}", caller.session_id, caller.agent_id)


def task(now: float, text: str, who: Standpoint) -> Tx[int]:
    """The number of a task. Raises NotFound, AmbiguousTarget."""
    found = yield from resolve(now, text, who)
    if found.task_id is None:
        raise NotFound(f"{found.session_key} is a main session, not a task")
    return found.task_id


def resolve(now: float, text: str, who: Standpoint) -> Tx[ResolvedTarget]:
    """Raises NotFound, AmbiguousTarget; both propose what it could be."""
    del now
    target = ids.parse_target(text)
    viewpoint = yield from viewpoint_of(target, who)
    rows = yield from _matches(target, viewpoint, who)
    known = {_candidate(row): row[0] for row in rows}
    match ids.resolve(target, list(known), viewpoint):
        case Candidate() as meant:
            return ResolvedTarget(known[meant], meant.session_key or None, meant.task_id)
        case Ambiguous(typed, candidates, total):
            raise AmbiguousTarget(
                f"{_quoted(typed)} fits {total} sessions", [_proposal(one) for one in candidates]
            )
        case Unknown(typed):
            near = ids.agent_hint(typed, (yield from _agents(who)) if typed.startswith("agent:") else ())
            raise NotFound(f"there is no session or task {_quoted(typed)}{near}", (yield from proposals(who)))
        case never:
            assert_never(never)


def _agents(who: Standpoint) -> Tx[set[str]]:
    """The sessions that a caller may have meant. A caller that is bound to a tree sees no others."""
    known = {who.agent_id, MAIN_AGENT}
    if who.session_id is None:
        rows = yield "SELECT DISTINCT agent_id FROM sessions WHERE depth = 0", ()
        known |= {row[0] for row in rows}
    return known


def _quoted(text: str) -> str:
    return repr(text[: ids.SHOWN_INPUT_MAX])


def _proposal(one: Candidate) -> str:
    """A text that finds it again."""
    name = one.session_key if one.task_id is None else ids.task_id(one.task_id)
    return f"{name} ({one.label})" if one.label else name


# ---- what `last`, `main` and numbers mean -------------------------------------------------------------------


def viewpoint_of(target: ids.Target, who: Standpoint) -> Tx[Viewpoint]:
    """Return what a number, `last`, `main` and `current` mean for this caller."""
    match target:
        case ids.Numbered(number):
            rows = yield ("SELECT task_id FROM shown WHERE viewer = ? AND number = ?", (who.viewer, number))
            return Viewpoint(numbering={number: rows[0][0]} if rows else {})
        case ids.Keyword.LAST:
            return Viewpoint(last_task_id=(yield from _last(who.session_id)))
        case ids.Keyword.MAIN:
            return Viewpoint(main_key=str(ids.main_key(who.agent_id)))
        case ids.Keyword.CURRENT if who.session_id is not None:
            rows = yield "SELECT key FROM sessions WHERE id = ?", (who.session_id,)
            return Viewpoint(current_key=rows[0][0] if rows else None)
        case _:
            return Viewpoint()


def _last(session_id: int | None) -> Tx[int | None]:
    newest = "ORDER BY created_at DESC, spawn_order DESC, id DESC LIMIT 1"
    if session_id is None:
        rows = yield f"SELECT id FROM tasks {newest}", ()  # noqa: S608 (constant words)
    else:
        rows = yield f"SELECT id FROM tasks WHERE requester_id = ? {newest}", (session_id,)  # noqa: S608
    return rows[0][0] if rows else None


# ---- what could be meant -------------------------------------------------------------------------------

#: Where each meaning looks: by number or label, by key, by run.
_BY_TASK = (
    "SELECT t.id, COALESCE(s.key, ''), t.id, s.run_id, t.label, s.agent_id"
    " FROM tasks t LEFT JOIN sessions s ON s.id = t.id"
)
_BY_KEY = (
    "SELECT s.id, s.key, t.id, s.run_id, t.label, s.agent_id FROM sessions s LEFT JOIN tasks t ON t.id = s.id"
)
_BY_RUN = (
    "SELECT r.session_id, COALESCE(s.key, ''), t.id, r.id, t.label, s.agent_id FROM runs r"
    " LEFT JOIN sessions s ON s.id = r.session_id LEFT JOIN tasks t ON t.id = r.session_id"
)
#: Of a task something is left to be read; of a main session nothing.
_IS_LEFT = "(t.id IS NOT NULL OR s.deleted_at IS NULL)"
_SESSION = {_BY_TASK: "t.id", _BY_KEY: "s.id", _BY_RUN: "r.session_id"}


def _candidate(row: Row) -> Candidate:
    _, key, task_id, run_id, label, _ = row
    return Candidate(key, task_id, run_id, label)


def _matches(target: ids.Target, viewpoint: Viewpoint, who: Standpoint) -> Tx[list[Row]]:
    """One row a session: the first that was found, which is the one with the exact meaning."""
    seen = yield from sight(who.caller)
    found: dict[int, Row] = {}
    for source, words, values in _conditions(target, viewpoint):
        for row in (yield from _look(seen, source, words, values)):
            found.setdefault(row[0], row)
    return list(found.values())


def _conditions(target: ids.Target, viewpoint: Viewpoint) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    text = ids.target_text(target)
    for number in _numbers(target, viewpoint):
        yield _BY_TASK, "t.id = ?", (number,)
    for key in (viewpoint.main_key, viewpoint.current_key):
        if key is not None:
            yield _BY_KEY, "s.key = ?", (key,)
    if isinstance(target, ids.RunRef):
        yield _BY_RUN, "r.id = ?", (target.id,)
    if text.startswith("agent:") and ids.can_be_a_name(text):
        yield _BY_KEY, "SUBSTR(s.key, 1, ?) = ?", (len(text), text)
    if (low := ids.low_digits("t_", text)) is not None:
        yield _BY_TASK, "t.id % ? = ?", low
    if (low := ids.low_digits("r_", text)) is not None:
        yield _BY_RUN, "r.id % ? = ?", low
    if ids.can_be_a_name(text):
        yield _BY_TASK, "SUBSTR(t.label, 1, ?) = ?", (len(text), text)


def _numbers(target: ids.Target, viewpoint: Viewpoint) -> Iterator[int]:
    yield from viewpoint.numbering.values()
    if viewpoint.last_task_id is not None:
        yield viewpoint.last_task_id
    if isinstance(target, ids.TaskRef):
        yield target.id


@dataclass(frozen=True, slots=True)
class Sight:
    """What a caller may see: an agent what the guard lets it list, an operator all below where it speaks from."""

    caller: Caller
    top: int | None = None  #: the session it speaks from
    tree: frozenset[int] = frozenset()  #: below that, and itself

    def within(self, column: str) -> tuple[str, tuple[Any, ...]]:
        """A condition on session numbers. Where the guard says no to everything else, nothing else is looked at."""
        sees_more = isinstance(self.caller, AgentCaller) and self.caller.visibility > Visibility.TREE
        if self.top is None or sees_more:
            return "1 = 1", ()
        return f"{column} {{any}}", (sorted(self.tree),)

    def sees(self, session_id: int, agent_id: str | None) -> bool:
        target = Target(session_id, agent_id or "", self._above(session_id))
        return isinstance(can(self.caller, Verb.LIST, target), Allowed)

    def _above(self, session_id: int) -> tuple[int, ...]:
        if self.top is None or session_id == self.top or session_id not in self.tree:
            return ()
        return (self.top,)


def sight(caller: Caller) -> Tx[Sight]:
    top = caller.session_id if isinstance(caller, AgentCaller) else caller.within
    if top is None:
        return Sight(caller)
    return Sight(caller, top, frozenset({top, *(yield from tasks.ids_below(top))}))


def _look(
    seen: Sight, source: str, words: str, values: Sequence[Any], limit: int = MATCHES_MAX
) -> Tx[list[Row]]:
    """Newest first."""
    within, ids = seen.within(_SESSION[source])
    sql = f"{source} WHERE {within} AND {words} AND {_IS_LEFT} ORDER BY {_SESSION[source]} DESC LIMIT ?"
    return [row for row in (yield sql, (*ids, *values, limit)) if seen.sees(row[0], row[-1])]


def proposals(who: Standpoint) -> Tx[list[str]]:
    """What it could have meant, if anything: the newest it may see."""
    seen = yield from sight(who.caller)
    rows = yield from _look(seen, _BY_TASK, "1 = 1", (), 10 * ids.CANDIDATES_MAX)
    return [_proposal(_candidate(row)) for row in rows[: ids.CANDIDATES_MAX]]
