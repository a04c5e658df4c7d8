"""The first letter of a talk between main sessions of two families; `last_words` writes all that follow.

Whether two agents may talk at all is asked before (`core.authority`).
"""

from __future__ import annotations

from clutch.core import pingpong
from clutch.core.model import LetterKind
from clutch.core.policy import Policy
from clutch.errors import Forbidden, NotFound
from clutch.protocol import control, guarding, hops, letters, sessions
from clutch.store.door import Tx

CYCLE = "cycle"


def send(
    now: float, policy: Policy, target_id: int, idem: str, text: str, sender_id: int, actor: str
) -> Tx[None]:
    """Alone. Within a family, and to a child, it is a follow-up like any other; raises Forbidden for a circle."""
    above = yield from guarding.ancestors(target_id)
    beneath = yield from guarding.ancestors(sender_id)
    found = {int(session.id): session for session in (yield from sessions.lock_all([sender_id, target_id]))}
    sender, target = found.get(sender_id), found.get(target_id)
    if sender is None or target is None:
        raise NotFound("the session is gone")
    if sender_id in above or target_id in beneath or target.is_task:
        return (yield from control.send(now, policy, target_id, idem, text, actor))
    if (yield "SELECT 1 FROM inbox WHERE idem = ?", (idem,)):
        return
    if target.closed:
        raise control.AlreadyFinished(f"the session {target.key} is archived")
    exchange = pingpong.begins(
        idem,
        (sender.id, sender.key),
        (target.id, target.key),
        text,
        hops=(yield from hops.of_run(sender)),
        turns_max=policy.peers.turns_max,
    )
    if exchange is None:
        raise Forbidden(CYCLE, f"a message to {target.key} would go round in a circle; reply instead")
    yield from letters.post(now, target.id, idem, LetterKind.PEER, pingpong.dump(exchange))
