"""What becomes of a main agent's last words: they go to its person, or where the letter it answered says.

In the transaction that ends the run. Silence is the agent's own choice and never posted.
"""

from __future__ import annotations

import hashlib

from clutch.core import heartbeat, keys, pingpong, routes, wording
from clutch.core.agents import Heartbeat
from clutch.core.model import LetterKind
from clutch.core.pingpong import Exchange, Stage
from clutch.core.policy import IdleWake, Policy
from clutch.protocol import bindings, letters, outbox
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx


def reply(
    now: float,
    policy: Policy,
    session: SessionRow,
    run_id: int,
    text: str,
    *,
    is_error: bool = False,
    is_tried_again: bool = False,
) -> Tx[None]:
    """`is_error`: words of ours about a turn that failed.

    `is_tried_again`: the results it read will be told later; until then only a person who asked wants to know."""
    if session.letter_id is None:
        return (yield from _to_people(now, policy, session, run_id, text, is_tried_again=is_tried_again))
    rows = yield "SELECT kind, body FROM inbox WHERE id = ?", (session.letter_id,)
    match LetterKind(rows[0][0]):
        case LetterKind.HEARTBEAT:
            yield from _alert(now, policy, session, run_id, text)
        case LetterKind.PEER if not is_error:  # what failed is answered by nobody: the talk is over
            yield from _answer(now, session, run_id, pingpong.load(rows[0][1]), text)
        case LetterKind.PEER:
            pass
        case other:
            raise AssertionError(f"a {other} has no turn of its own")


def _to_people(
    now: float, policy: Policy, session: SessionRow, run_id: int, text: str, *, is_tried_again: bool
) -> Tx[None]:
    if session.is_task and not session.bound:
        return
    rows = yield "SELECT route, by_person FROM runs WHERE id = ?", (run_id,)
    route, by_person = rows[0]
    if is_tried_again and not by_person:
        return
    if session.is_task:
        return (yield from _in_thread(now, session, run_id, text))
    said = _worth_telling(policy, session, text, by_person)
    yield from outbox.reply(now, session.id, run_id, route or session.route, said)


def _worth_telling(policy: Policy, session: SessionRow, text: str, by_person: int) -> str:
    """Where results come as heartbeats, so does the answer to them."""
    if by_person or policy.announcing.idle_wake is IdleWake.TURN:
        return text
    rules = policy.heartbeat_of(session.agent_id) or Heartbeat()
    return heartbeat.alert(text, rules.ack_chars_max) or ""


def _in_thread(now: float, session: SessionRow, run_id: int, text: str) -> Tx[None]:
    """A child's words are posted nowhere but in its own thread; among those of a chat, with its name in front."""
    bound = yield from bindings.thread_of(session)
    route = None if bound is None else routes.merged(bound, routes.from_text(session.route or ""))
    if bound is None or route is None or not text.strip() or wording.silence(text) is not None:
        return
    speaker, chat = session.id, routes.chat_of(bound)
    if chat is not None and (rows := (yield "SELECT id FROM sessions WHERE key = ?", (chat,))):
        speaker, text = rows[0][0], f"[{keys.task_id(session.id)}] {text}"
    yield from outbox.reply(now, speaker, run_id, routes.to_text(route), text)


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
    yield from outbox.reply(now, session.id, run_id, route, said)


def _answer(now: float, session: SessionRow, run_id: int, exchange: Exchange, text: str) -> Tx[None]:
    """What follows in a talk with another agent, or what a person is told of it."""
    if exchange.stage is Stage.ANNOUNCE and not pingpong.is_silent(text):
        return (yield from outbox.reply(now, session.id, run_id, session.route, text))
    following = pingpong.answered(exchange, text)
    if following is not None:
        idem = f"peer:{following.key}:{following.stage}:{following.turn}"
        yield from letters.post(now, following.reader_id, idem, LetterKind.PEER, pingpong.dump(following))
