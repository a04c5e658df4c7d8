"""What lies ahead: who works or is about to, and whether anything waits for somebody to be there at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clutch.store.door import Tx

SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class Working:
    """`label` and `phase` are of its task; None for a main agent's own turn."""

    session_id: int
    session_key: str
    label: str | None
    phase: str | None


def working(now: float, within_s: float) -> Tx[list[Working]]:
    """Owned, due by then, or with letters that nobody has looked at. Who is parked for a person is not among them."""
    rows = yield (
        "SELECT s.id, s.key, t.label, t.phase FROM sessions s LEFT JOIN tasks t ON t.id = s.id WHERE s.id IN ("
        " SELECT id FROM sessions WHERE owner IS NOT NULL"
        " UNION SELECT id FROM sessions WHERE owner IS NULL AND due IS NOT NULL AND due <= ?"
        " UNION SELECT session_id FROM inbox WHERE seen = 0)"
        " ORDER BY s.depth, s.id LIMIT ?",
        (now + within_s, SHOWN_MAX),
    )
    return [Working(*row) for row in rows]


def is_anything(now: float, channels: Sequence[str]) -> Tx[bool]:
    """Something that happens only while a gateway is there. `channels`: those it sends to."""
    del now
    rows = yield (
        "SELECT 1 FROM sessions WHERE owner IS NOT NULL"
        " UNION ALL SELECT 1 FROM sessions WHERE owner IS NULL AND due IS NOT NULL"
        " UNION ALL SELECT 1 FROM sessions WHERE heartbeat_at IS NOT NULL"
        " UNION ALL SELECT 1 FROM inbox WHERE seen = 0"
        # The timer of one that is over, a dead letter's last day, can wait for whoever comes next.
        " UNION ALL SELECT 1 FROM tasks WHERE wake_at IS NOT NULL"
        " AND phase <> 'completed' AND phase <> 'completed_giveup' LIMIT 1",
        (),
    )
    for channel in () if rows else channels:
        rows = yield "SELECT 1 FROM outbox WHERE due IS NOT NULL AND channel = ? LIMIT 1", (channel,)
        if rows:
            break
    return bool(rows)
