"""What stands around a conversation in the store: the session's children and events, summaries, a fork's copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clutch.core import keys, messages
from clutch.core.context import Context
from clutch.core.messages import Message, Summary
from clutch.core.model import Outcome, Phase, Plan
from clutch.core.policy import Policy
from clutch.core.wording.prompts import ChildLine
from clutch.protocol import sessions
from clutch.protocol.sessions import IS_UNTOLD
from clutch.store.door import Many, Row, Tx

NO_RUN = 0  # of messages that no run of this session has said
#: The newest records that are looked at for what ended lately: never a walk over thousands.
LOOKED_AT = 64

_LINE = "id, label, phase, reason, plan, outcome, created_at, ended_at"
_CHILDREN = (
    f"SELECT * FROM (SELECT {_LINE}, 1 AS is_active FROM tasks"  # noqa: S608 (constant words)
    f" WHERE requester_id = ? AND {IS_UNTOLD} ORDER BY id LIMIT ?) a"
    f" UNION ALL SELECT * FROM (SELECT {_LINE}, 0 AS is_active FROM"
    f" (SELECT {_LINE} FROM tasks WHERE requester_id = ? AND retained = 1 ORDER BY id DESC LIMIT ?) r"
    f" WHERE NOT ({IS_UNTOLD}) AND ended_at >= ? ORDER BY ended_at DESC, id DESC LIMIT ?) b"
)


@dataclass(frozen=True, slots=True)
class Around:
    """What a turn is told beside its transcript. `events_upto`: the newest event that is shown."""

    active: tuple[ChildLine, ...] = ()
    recent: tuple[ChildLine, ...] = ()
    is_more: bool = False  #: active children beyond those
    events: tuple[str, ...] = ()
    events_upto: int = 0


def around(now: float, session_id: int, rules: Context) -> Tx[Around]:
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
    )


def _line(now: float, row: Row) -> ChildLine:
    task_id, label, phase, reason, plan, outcome, created_at, ended_at, is_active = row
    since = created_at if is_active else ended_at
    ended = None if outcome is None else Outcome(outcome)
    return ChildLine(keys.task_id(task_id), label, Phase(phase), reason, Plan(plan), now - since, ended)


def consume_events(session_id: int, run_id: int, upto: int) -> Tx[None]:
    """With the answer of the turn that showed them. Older ones that there was no room for go as well."""
    yield (
        "UPDATE system_events SET taken_run = ? WHERE session_id = ? AND taken_run IS NULL AND id <= ?",
        (run_id, session_id, upto),
    )


def compact(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, summary: Summary
) -> Tx[int]:
    """Append a summary; the new head. Only between two steps: results must follow their answer directly."""
    session = yield from sessions.own(session_id, fence)
    is_open = yield "SELECT 1 FROM calls WHERE session_id = ? AND seq = ?", (session_id, session.head)
    assert not is_open, f"session {session_id} has open calls at {session.head}"
    assert session.base < summary.upto <= session.head, f"there is no entry {summary.upto}"
    session.head, session.progress_at = session.head + 1, now
    yield (
        "INSERT INTO messages(session_id, seq, run_id, kind, body, at) VALUES(?, ?, ?, ?, ?, ?)",
        (session_id, session.head, run_id, messages.kind(summary), messages.dump(summary), now),
    )
    yield from sessions.save(now, policy, session)
    return session.head


def fork(now: float, child_id: int, copied: Sequence[Message]) -> Tx[None]:
    """In the transaction that makes the child's session: its transcript begins with a copy.

    No run of its own has said any of it, so it counts neither as steps nor as last words."""
    yield (
        "INSERT INTO messages(session_id, seq, run_id, kind, body, at) VALUES(?, ?, ?, ?, ?, ?)",
        Many(
            (child_id, seq, NO_RUN, messages.kind(said), messages.dump(said), now)
            for seq, said in enumerate(copied, start=1)
        ),
    )
    yield "UPDATE sessions SET head = ? WHERE id = ?", (len(copied), child_id)
