"""What a person must decide before a run goes on: a tool that needs approval, a question, a budget.

A question belongs to one call of the answer that made it (or, with index -1, to the next model call). The run
parks before any call of that answer is started; when the last question is answered it goes on with all of
them. So an approval can never be used twice, and nothing half-done waits for a person."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clutch.core import events as ev
from clutch.core.model import ANSWERED, NO_SESSION, UNTIL_ANSWERED, Definition, ToolOffer, Wait, canonical
from clutch.core.policy import Policy
from clutch.core.questions import Decision, OpenItem, QuestionKind, check
from clutch.errors import NotFound
from clutch.store.transaction import HINT, ManyRows, Tx
from clutch.transactions import inbox, outbox, sessions, tasks, usage
from clutch.transactions.sessions import SessionRow, Stale

ROUND = 1000  # questions that foreign code can ask at once
BUDGET_INDEX = -1  # and downwards: one that was answered is asked again if the purse is empty again


class UnknownQuestion(NotFound):
    """There is no such question, or it was answered before."""


@dataclass(frozen=True, slots=True)
class NewQuestion:
    """`body` is shown to the person; `hash` binds the decision to exactly these words."""

    id: int
    index: int
    kind: QuestionKind
    body: str

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.body.encode()).hexdigest()

    @property
    def words(self) -> str:
        """Of one in words."""
        return str(json.loads(self.body)["question"])


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    decision: Decision
    text: str


@dataclass(frozen=True, slots=True)
class PendingQuestion:
    """One line of the needs-you inbox."""

    id: int
    session_id: int
    kind: QuestionKind
    body: str
    hash: str
    asked_at: float
    session_key: str
    is_task: int  #: 0 = a main session asks


def call_body(name: str, args: Mapping[str, Any]) -> str:
    return json.dumps({"tool": name, "args": dict(args)}, ensure_ascii=True, sort_keys=True)


def ask(
    now: float,
    policy: Policy,
    session_id: int,
    fence: int,
    run_id: int,
    seq: int,
    asked: Sequence[NewQuestion],
    nonce: str,
) -> Tx[None]:
    """The run parks; asking again after a crash finds the same questions. What a child asks in words its requester
    hears, too."""
    session = yield from sessions.own(session_id, fence)
    yield (
        "INSERT INTO questions(id, session_id, seq, idx, kind, body, hash, asked_at) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(session_id, seq, idx) DO NOTHING",
        ManyRows(
            (one.id, session_id, seq, one.index, one.kind.value, one.body, one.hash, now) for one in asked
        ),
    )
    yield "UPDATE runs SET parked_until = ? WHERE id = ?", (UNTIL_ANSWERED, run_id)
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Parked(now, Wait.NEEDS_YOU))
        words = "\n".join(one.words for one in asked if one.kind is QuestionKind.QUESTION)
        if words:
            yield from inbox.ask(now, policy.announcing, session, words, f"{run_id}:{seq}", nonce)
    yield from outbox.needs_me(now, policy, session_id, asked[0].kind.value, f"{seq}:{asked[0].index}")
    session.owner = None
    yield from sessions.save(now, policy, session)
    yield HINT, ("question", session_id)


def answers(now: float, session_id: int, seq: int) -> Tx[dict[int, QuestionAnswer]]:
    del now
    rows = yield (
        "SELECT idx, decision, answer FROM questions WHERE session_id = ? AND seq = ? AND answered_at IS NOT NULL",
        (session_id, seq),
    )
    return {index: QuestionAnswer(Decision(decision), text) for index, decision, text in rows}


def decided(now: float, session_id: int, fence: int, seq: int) -> Tx[dict[int, QuestionAnswer]]:
    """The same for the owner of the run: whoever lost it must not act on what its successor was told."""
    said = yield from answers(now, session_id, seq)
    yield from _still_own(session_id, fence)
    return said


def _still_own(session_id: int, fence: int) -> Tx[None]:
    rows = yield "SELECT owner, fence FROM sessions WHERE id = ?", (session_id,)
    if not rows or not sessions.is_owner(rows[0][0], rows[0][1], fence):
        raise Stale(f"session {session_id} is owned by somebody else now")


def latest(now: float, session_id: int, fence: int, seq: int) -> Tx[tuple[dict[str, QuestionAnswer], int]]:
    """What was said to whatever was asked last at this place, by what was shown; and the place for what is asked next.

    For foreign code, whose calls have no places: it knows its question by its words, and each time it asks takes the
    next `ROUND` of places. Not by the clock, which may go back: an old approval must never look like a new one."""
    del now
    rows = yield (
        "SELECT idx, body, decision, answer FROM questions WHERE session_id = ? AND seq = ? AND idx >= 0"
        " AND answered_at IS NOT NULL ORDER BY idx DESC",
        (session_id, seq),
    )
    yield from _still_own(session_id, fence)
    last = rows[0][0] // ROUND if rows else -1
    said = {
        body: QuestionAnswer(Decision(what), text)
        for index, body, what, text in rows
        if index // ROUND == last
    }
    return said, (last + 1) * ROUND


def is_parked(now: float, run_id: int) -> Tx[bool]:
    """Whether a run waits, or was answered and nobody has taken it up yet."""
    del now
    rows = yield (
        "SELECT 1 FROM runs WHERE id = ? AND parked_until IS NOT NULL AND ended_at IS NULL",
        (run_id,),
    )
    return bool(rows)


def answer(
    now: float, policy: Policy, question_id: int, decision: Decision, text: str, seen_hash: str, actor: str
) -> Tx[int]:
    """The session whose question it was. Alone: it may raise a purse that others draw on."""
    rows = yield "SELECT session_id, kind, body, hash FROM questions WHERE id = ?", (question_id,)
    if not rows:
        raise UnknownQuestion()
    session_id, kind, body, wanted = rows[0]
    check(_item(kind, body, wanted), decision, text, seen_hash)
    raises = kind == QuestionKind.BUDGET and decision is Decision.APPROVE
    purse = json.loads(body)["purse"] if raises else None
    same = {} if purse is None else (yield from _about_same_purse(purse))
    same[question_id] = session_id
    locked = yield from sessions.lock_all(sorted(set(same.values())))
    # Only now: somebody else may have answered, or ended the run, while we waited for the lock.
    answered = yield (
        "UPDATE questions SET answered_at = ?, decision = ?, answer = ?, actor = ? WHERE id {any}"
        " AND answered_at IS NULL RETURNING id",
        (now, decision.value, text, actor, sorted(same)),
    )
    if question_id not in {row[0] for row in answered}:
        raise UnknownQuestion()
    if purse is not None:
        yield from usage.raise_limit(purse, None, None)
    for session in locked:
        if session.is_task:
            said = ev.Noted(now, f"answered: {decision.value} ({kind})")
            yield from tasks.record(now, policy, session, said, actor)
        yield from _go_on(now, policy, session)
    return int(session_id)


def asker(now: float, question_id: int) -> Tx[int]:
    """The session whose question it is. A read."""
    del now
    rows = yield "SELECT session_id FROM questions WHERE id = ?", (question_id,)
    if not rows:
        raise UnknownQuestion()
    return int(rows[0][0])


def _item(kind: str, body: str, shown: str) -> OpenItem:
    return OpenItem(QuestionKind(kind), shown, tuple(json.loads(body).get("choices", ())))


def _about_same_purse(purse: str) -> Tx[dict[int, int]]:
    """Whoever gives more gives it to all who wait for it: each asked on its own, none is asked twice."""
    rows = yield (
        "SELECT id, session_id, body FROM questions WHERE kind = 'budget' AND answered_at IS NULL",
        (),
    )
    return {number: session for number, session, body in rows if json.loads(body)["purse"] == purse}


def _go_on(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    """With the last answer the run is due."""
    still = yield "SELECT 1 FROM questions WHERE session_id = ? AND answered_at IS NULL", (session.id,)
    if still or session.run_id is None:
        return
    yield (
        "UPDATE runs SET parked_until = ? WHERE id = ? AND parked_until = ?",
        (ANSWERED, session.run_id, UNTIL_ANSWERED),
    )
    yield from sessions.save(now, policy, session)


def waiting(now: float, root_id: int | None = None) -> Tx[list[PendingQuestion]]:
    """The needs-you inbox, oldest first; of one root or of all."""
    del now
    rows = yield (
        "SELECT q.id, q.session_id, q.kind, q.body, q.hash, q.asked_at, s.key, s.is_task FROM questions q"
        " JOIN sessions s ON s.id = q.session_id WHERE q.answered_at IS NULL"
        " AND (CAST(? AS {big}) IS NULL OR s.root_id = ?) ORDER BY q.asked_at, q.id",
        (root_id, root_id),
    )
    return [
        PendingQuestion(number, session, QuestionKind(kind), *rest) for number, session, kind, *rest in rows
    ]


# --------------------------------------------------------------------------------------------------
# What people approved of the tools of MCP servers, and what they are asked about those that changed.
#
# All tools of a server that was never seen are approved as they are: a person has just named the server. After
# that a tool that is new, or no longer what was approved, is a question in the same inbox as all others. It
# belongs to no session (`HOUSE`), and nobody parks for it: the tool is withheld until it is approved. Whoever
# rejects a change is asked again only about another one, and may still approve what was rejected.

_APPROVE = (
    "INSERT INTO mcp_tools(server, tool, definition) VALUES(?, ?, ?)"
    " ON CONFLICT(server, tool) DO UPDATE SET definition = excluded.definition"
)


def stamp(now: float) -> Tx[int]:
    """Another one whenever something was seen, asked or decided. A read."""
    del now
    rows = yield "SELECT value FROM counters WHERE name = 'mcp'", ()
    return int(rows[0][0])


def approved(now: float) -> Tx[dict[str, dict[str, Definition]]]:
    """By server and tool; a server that was seen is there, whatever it had. A read."""
    del now
    servers = yield "SELECT name FROM mcp_servers", ()
    found: dict[str, dict[str, Definition]] = {name: {} for (name,) in servers}
    for server, tool, definition in (yield "SELECT server, tool, definition FROM mcp_tools", ()):
        found[server][tool] = json.loads(definition)
    return found


def see(now: float, server: str, tools: Mapping[str, Definition]) -> Tx[None]:
    """Of a server that nobody knows, everything is approved; of any other, nothing."""
    yield from _change()
    new = yield (
        "INSERT INTO mcp_servers(name, seen_at) VALUES(?, ?) ON CONFLICT(name) DO NOTHING RETURNING name",
        (server, now),
    )
    if new:
        yield _APPROVE, ManyRows((server, name, canonical(tool)) for name, tool in tools.items())


def ask_pin(
    now: float, policy: Policy, server: str, offers: Sequence[ToolOffer], ids: Sequence[int]
) -> Tx[dict[str, tuple[int, str]]]:
    """What waits of a server from now on; an older question is void. `ids`: a number for each.

    The questions that a person has answered with no, by tool: number and hash."""
    yield from _change()
    still_open, rejected = yield from _asked(server)
    wanted = {_body(server, one): one for one in offers if canonical(one.after) not in rejected}
    void = [number for body, number in still_open.items() if body not in wanted]
    yield (
        "UPDATE questions SET answered_at = ?, decision = 'void', answer = '' WHERE id {any}",
        (now, void),
    )
    for number, (body, offer) in zip(ids, wanted.items(), strict=False):
        if body not in still_open and (yield from _is_from_what_is_approved(server, offer)):
            yield from _put(now, policy, NewQuestion(number, 0, QuestionKind.APPROVAL, body))
    return {one.tool: rejected[after] for one in offers if (after := canonical(one.after)) in rejected}


def answer_pin(
    now: float, question_id: int, decision: Decision, text: str, seen_hash: str, actor: str
) -> Tx[int]:
    """Approved: every process offers it from its next turn on."""
    yield from _change()
    rows = yield "SELECT body, hash FROM questions WHERE id = ? AND session_id = ?", (question_id, NO_SESSION)
    if not rows:
        raise UnknownQuestion()
    body, wanted = rows[0]
    check(OpenItem(QuestionKind.APPROVAL, wanted), decision, text, seen_hash)
    answered = yield (
        "UPDATE questions SET answered_at = ?, decision = ?, answer = ?, actor = ? WHERE id = ?"
        " AND (answered_at IS NULL OR decision = 'reject') RETURNING id",
        (now, decision.value, text, actor, question_id),
    )
    if not answered:
        raise UnknownQuestion()
    if decision is Decision.APPROVE:
        asked = json.loads(body)
        yield _APPROVE, (asked["mcpServer"], asked["mcpTool"], canonical(asked["after"]))
    return NO_SESSION


def _change() -> Tx[None]:
    """First of all: two who look and then write must not do so at once."""
    yield "UPDATE counters SET value = value + 1 WHERE name = 'mcp'", ()


def _asked(server: str) -> Tx[tuple[dict[str, int], dict[str, tuple[int, str]]]]:
    """Questions about its tools: the open ones by their body, the rejected by what was offered."""
    rows = yield (
        "SELECT id, hash, body, answered_at FROM questions WHERE session_id = ?"
        " AND (answered_at IS NULL OR decision = 'reject') ORDER BY id",
        (NO_SESSION,),
    )
    still_open, rejected = {}, {}
    for number, seen, body, answered_at in rows:
        asked = json.loads(body)
        if asked["mcpServer"] != server:
            continue
        if answered_at is None:
            still_open[body] = number
        else:
            rejected[canonical(asked["after"])] = (number, seen)
    return still_open, rejected


def _is_from_what_is_approved(server: str, offer: ToolOffer) -> Tx[bool]:
    """Somebody may have decided since whoever asks has looked."""
    rows = yield "SELECT definition FROM mcp_tools WHERE server = ? AND tool = ?", (server, offer.tool)
    return (rows[0][0] if rows else None) == (None if offer.before is None else canonical(offer.before))


def _put(now: float, policy: Policy, asked: NewQuestion) -> Tx[None]:
    yield (
        "INSERT INTO questions(id, session_id, seq, idx, kind, body, hash, asked_at)"
        " VALUES(?, ?, ?, 0, ?, ?, ?, ?)",
        (asked.id, NO_SESSION, asked.id, asked.kind.value, asked.body, asked.hash, now),
    )
    yield from outbox.needs_me(now, policy, NO_SESSION, asked.kind.value, str(asked.id))
    yield HINT, ("question", NO_SESSION)


def _body(server: str, offer: ToolOffer) -> str:
    shown = {"mcpServer": server, "mcpTool": offer.tool, "text": offer.text}
    return json.dumps(shown | {"before": offer.before, "after": offer.after}, sort_keys=True)
