"""What a person must decide before a run goes on: a tool that needs approval, a question, a budget.

A question belongs to one call of the answer that made it (or, with index -1, to the next model call). The run
parks before any call of that answer is started; when the last question is answered it goes on with all of
them. So an approval can never be used twice, and nothing half-done waits for a person.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from clutch.core import events as ev
from clutch.core.model import ANSWERED, UNTIL_ANSWERED, Wait
from clutch.core.policy import Policy
from clutch.errors import ClutchError, InvalidInput, NotFound
from clutch.protocol import hooks, news, sessions, tasks, usage
from clutch.protocol.sessions import SessionRow, Stale
from clutch.store.door import HINT, Many, Tx

ROUND = 1000  # questions that foreign code can ask at once
BUDGET_INDEX = -1  # and downwards: one that was answered is asked again if the purse is empty again


class QuestionKind(StrEnum):
    APPROVAL = "approval"  #: may this call be made?
    QUESTION = "question"  #: `ask_human`
    BUDGET = "budget"
    PLAN = "plan"  #: no row here: it waits in its task


class Decision(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"
    ANSWER = "answer"
    VOID = "void"  #: the run it belonged to was superseded, killed or timed out


ALLOWED = {
    QuestionKind.APPROVAL: frozenset({Decision.APPROVE, Decision.REJECT}),
    QuestionKind.QUESTION: frozenset({Decision.ANSWER, Decision.REJECT}),
    QuestionKind.BUDGET: frozenset({Decision.APPROVE, Decision.REJECT}),
    QuestionKind.PLAN: frozenset({Decision.APPROVE, Decision.REJECT}),
}


class UnknownQuestion(NotFound):
    """There is no such question, or it was answered before."""


class QuestionChanged(ClutchError):
    """The question is not the one that was shown; read it again."""


@dataclass(frozen=True, slots=True)
class Asked:
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
class Said:
    decision: Decision
    text: str


@dataclass(frozen=True, slots=True)
class Waiting:
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
    asked: Sequence[Asked],
    nonce: str,
) -> Tx[None]:
    """The run parks; asking again after a crash finds the same questions. What a child asks in words its requester
    hears, too."""
    session = yield from sessions.own(session_id, fence)
    yield (
        "INSERT INTO questions(id, session_id, seq, idx, kind, body, hash, asked_at) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(session_id, seq, idx) DO NOTHING",
        Many((one.id, session_id, seq, one.index, one.kind.value, one.body, one.hash, now) for one in asked),
    )
    yield "UPDATE runs SET parked_until = ? WHERE id = ?", (UNTIL_ANSWERED, run_id)
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Parked(now, Wait.NEEDS_YOU))
        words = "\n".join(one.words for one in asked if one.kind is QuestionKind.QUESTION)
        if words:
            yield from news.ask(now, policy.announcing, session, words, f"{run_id}:{seq}", nonce)
    yield from hooks.needs_me(now, policy, session_id, asked[0].kind.value, f"{seq}:{asked[0].index}")
    session.owner = None
    yield from sessions.save(now, policy, session)
    yield HINT, ("question", session_id)


def answers(now: float, session_id: int, seq: int) -> Tx[dict[int, Said]]:
    del now
    rows = yield (
        "SELECT idx, decision, answer FROM questions WHERE session_id = ? AND seq = ? AND answered_at IS NOT NULL",
        (session_id, seq),
    )
    return {index: Said(Decision(decision), text) for index, decision, text in rows}


def decided(now: float, session_id: int, fence: int, seq: int) -> Tx[dict[int, Said]]:
    """The same for the owner of the run: whoever lost it must not act on what its successor was told."""
    said = yield from answers(now, session_id, seq)
    yield from _still_own(session_id, fence)
    return said


def _still_own(session_id: int, fence: int) -> Tx[None]:
    rows = yield "SELECT owner, fence FROM sessions WHERE id = ?", (session_id,)
    if not rows or not sessions.is_owner(rows[0][0], rows[0][1], fence):
        raise Stale(f"session {session_id} is owned by somebody else now")


def latest(now: float, session_id: int, fence: int, seq: int) -> Tx[tuple[dict[str, Said], int]]:
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
    said = {body: Said(Decision(what), text) for index, body, what, text in rows if index // ROUND == last}
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
    if seen_hash != wanted:
        raise QuestionChanged()
    _check(QuestionKind(kind), body, decision, text)
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


def _check(kind: QuestionKind, body: str, decision: Decision, text: str) -> None:
    if decision not in ALLOWED[kind]:
        raise InvalidInput("decision", f"must be one of: {', '.join(sorted(ALLOWED[kind]))}")
    choices = json.loads(body)["choices"] if decision is Decision.ANSWER else []
    if choices and text not in choices:
        raise InvalidInput("text", f"must be one of: {', '.join(choices)}")


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


def waiting(now: float, root_id: int | None = None) -> Tx[list[Waiting]]:
    """The needs-you inbox, oldest first; of one root or of all."""
    del now
    rows = yield (
        "SELECT q.id, q.session_id, q.kind, q.body, q.hash, q.asked_at, s.key, s.is_task FROM questions q"
        " JOIN sessions s ON s.id = q.session_id WHERE q.answered_at IS NULL"
        " AND (CAST(? AS {big}) IS NULL OR s.root_id = ?) ORDER BY q.asked_at, q.id",
        (root_id, root_id),
    )
    return [Waiting(number, session, QuestionKind(kind), *rest) for number, session, kind, *rest in rows]
