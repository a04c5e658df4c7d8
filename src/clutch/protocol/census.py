"""What a session has already, counted before it gets more; and what leaves its quota for it.

Counted from the rows, under the lock of root and parent. What the numbers allow is `core/admission`.
"""

from __future__ import annotations

from clutch.core import authority
from clutch.core.admission import Census
from clutch.core.policy import Limits
from clutch.protocol.sessions import IS_WORKING, WORKING_PHASES, ParentRow
from clutch.store.door import Tx

_COUNT = (
    f"SELECT (SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND {IS_WORKING}),"  # noqa: S608 (constant words)
    f" (SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE root_id = ? AND {IS_WORKING} LIMIT ?) a),"
    " (SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE requester_id = ? AND retained = 1 LIMIT ?) b),"
    " (SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE root_id = ? AND delivery = 'undelivered' LIMIT ?) d),"
    " (SELECT COUNT(*) FROM tasks WHERE requester_id = ? AND idem {any})"
)
_EVICTABLE = (
    "SELECT COUNT(*) FROM (SELECT 1 FROM tasks WHERE requester_id = ? AND retained = 1 AND phase = 'completed'"
    " LIMIT ?) c"
)


def count(parent: ParentRow, limits: Limits, agents: frozenset[str], idems: list[str]) -> Tx[Census]:
    """Nothing is counted further than its limit.

    `idems`: the keys of what is wanted. What could leave the quota is only counted where it would not fit into it."""
    rows = yield (
        _COUNT,
        (
            parent.id, parent.root_id, limits.descendants_max, parent.id, limits.retained_max, parent.root_id,
            max(1, limits.undelivered_max), parent.id, idems,
        ),
    )  # fmt: skip
    children, descendants, retained, undelivered, repeated = rows[0]
    evictable = 0
    if retained + max(1, len(idems)) > limits.retained_max:
        evictable = int((yield _EVICTABLE, (parent.id, limits.retained_max))[0][0])
    depth_max = min(limits.depth_max, authority.from_text(parent.rights).depth_max)
    if depth_max > parent.depth + 1:
        children += yield from _ended_with_live_descendants(parent)
    return Census(
        agent_id=parent.agent_id,
        depth=parent.depth,
        depth_max=depth_max,
        is_closed=bool(parent.closed),
        children=children,
        descendants=descendants,
        retained=retained,
        evictable=evictable,
        undelivered=undelivered,
        repeated=repeated,
        configured_agents=agents,
    )


def _ended_with_live_descendants(parent: ParentRow) -> Tx[int]:
    """Climb from what lives further down: an ended child with such descendants still counts."""
    rows = yield (
        "WITH RECURSIVE up(id, requester_id, phase) AS ("  # noqa: S608 (constant words)
        f"SELECT id, requester_id, phase FROM tasks WHERE root_id = ? AND depth >= ? AND {IS_WORKING}"
        " UNION SELECT t.id, t.requester_id, t.phase FROM tasks t JOIN up ON t.id = up.requester_id)"
        f" SELECT COUNT(*) FROM up WHERE requester_id = ? AND phase NOT IN {WORKING_PHASES}",
        (parent.root_id, parent.depth + 2, parent.id),
    )
    return int(rows[0][0])


def evict(requester_id: int, count: int) -> Tx[None]:
    """The oldest told records leave the quota; their transcripts stay."""
    yield (
        "UPDATE tasks SET retained = 0 WHERE id IN (SELECT id FROM tasks WHERE requester_id = ? AND retained = 1"
        " AND phase = 'completed' ORDER BY ended_at, id LIMIT ?)",
        (requester_id, count),
    )
