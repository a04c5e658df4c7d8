"""What model calls have used, added up by root, agent, model or day. A read; the ledger outlives transcripts."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from clutch.core.task_view import Tally
from clutch.protocol import views
from clutch.store.door import Tx

DAY_S = 86_400


class By(StrEnum):
    ROOT = "root"
    AGENT = "agent"
    MODEL = "model"
    DAY = "day"  #: in UTC


#: A call that nobody answered is counted with the model that answers to this name.
_KNOWN = (
    " LEFT JOIN (SELECT model, MAX(effective) AS effective FROM usage GROUP BY model) k ON k.model = u.model"
)
#: Constant words. A session that was deleted is nobody's any more, but what it used is not forgotten.
_GROUPS = {
    By.ROOT: "COALESCE(r.key, '(deleted)')",
    By.AGENT: "COALESCE(s.agent_id, '(deleted)')",
    By.MODEL: "COALESCE(u.effective, k.effective, u.model)",
    By.DAY: "CAST(FLOOR(u.at / 86400.0) AS {big})",
}


def spending(now: float, by: By) -> Tx[list[tuple[str, Tally]]]:
    del now
    rows = yield (
        f"SELECT {_GROUPS[by]} AS about, {views.SPENT} FROM usage u"  # noqa: S608 (constant words)
        f" LEFT JOIN sessions s ON s.id = u.session_id LEFT JOIN sessions r ON r.id = s.root_id{_KNOWN}"
        " WHERE u.state > 0 GROUP BY about ORDER BY about",
        (),
    )
    return [(_named(by, row[0]), views.tally(row[1:])) for row in rows]


def _named(by: By, about: str | int) -> str:
    if by is By.DAY:
        return datetime.fromtimestamp(int(about) * DAY_S, UTC).date().isoformat()
    return str(about)
