"""What becomes of a main agent's last words: they go to its person, or where the letter it answered says.

In the transaction that ends the run. Silence is the agent's own choice and never posted.
"""

from __future__ import annotations

import hashlib

from clutch.core import heartbeat, keys, wording
from clutch.core.agents import Heartbeat
from clutch.core.model import LetterKind
from clutch.core.policy import Policy
from clutch.protocol import outbox
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx


def reply(now: float, policy: Policy, session: SessionRow, run_id: int, text: str) -> Tx[None]:
    if session.letter_id is None:
        return (yield from _post(now, session, run_id, session.route, text))
    rows = yield "SELECT kind, body FROM inbox WHERE id = ?", (session.letter_id,)
    match LetterKind(rows[0][0]):
        case LetterKind.HEARTBEAT:
            yield from _alert(now, policy, session, run_id, text)
        case other:
            raise AssertionError(f"a {other} has no turn of its own")


def _post(now: float, session: SessionRow, run_id: int, route: str | None, text: str) -> Tx[None]:
    if route is None or not text.strip() or wording.silence(text) is not None:
        return
    channel, _, target = route.partition(":")
    yield from outbox.post(now, session.id, f"reply:{run_id}", channel, target, text)


def _alert(now: float, policy: Policy, session: SessionRow, run_id: int, text: str) -> Tx[None]:
    """What a heartbeat found, if it is worth telling and was not told lately."""
    rules = policy.heartbeat_of(keys.agent_of(session.key)) or Heartbeat()
    said = heartbeat.alert(text, rules.ack_chars_max)
    if said is None or rules.target == heartbeat.NOBODY:
        return
    sha = hashlib.sha256(said.encode()).hexdigest()
    yield "DELETE FROM alerts WHERE session_id = ? AND at <= ?", (session.id, now - rules.dedupe_s)
    if (yield "SELECT 1 FROM alerts WHERE session_id = ? AND sha = ?", (session.id, sha)):
        return
    yield "INSERT INTO alerts(session_id, sha, at) VALUES(?, ?, ?)", (session.id, sha, now)
    route = session.route if rules.target == heartbeat.LAST else rules.target
    yield from _post(now, session, run_id, route, said)
