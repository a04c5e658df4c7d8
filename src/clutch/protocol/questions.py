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
from clutch.core.model import Wait
from clutch.core.policy import Policy
from clutch.core.runs import ANSWERED, UNTIL_ANSWERED
from clutch.errors import ClutchError
from clutch.protocol import sessions, tasks, usage
from clutch.store.door import HINT, Many, Tx

BUDGET_INDEX = -1


class QuestionKind(StrEnum):
    APPROVAL = "approval"  #: may this call be made?
    QUESTION = "question"  #: `ask_human`
    BUDGET = "budget"


class Decision(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"
    ANSWER = "answer"
    VOID = "void"  #: the run it belonged to was superseded, killed or timed out


class UnknownQuestion(ClutchError):
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


def call_body(name: str, args: Mapping[str, Any]) -> str:
    return json.dumps({"tool": name, "args": dict(args)}, ensure_ascii=True, sort_keys=True)


def ask(
    now: float, policy: Policy, session_id: int, fence: int, run_id: int, seq: int, asked: Sequence[Asked]
) -> Tx[None]:
    """The run parks; asking again after a crash finds the same questions."""
    session = yield from sessions.own(session_id, fence)
    yield (
        "INSERT INTO questions(id, session_id, seq, idx, kind, body, hash, asked_at) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(session_id, seq, idx) DO NOTHING",
        Many((one.id, session_id, seq, one.index, one.kind.value, one.body, one.hash, now) for one in asked),
    )
    yield "UPDATE runs SET parked_until = ? WHERE id = ?", (UNTIL_ANSWERED, run_id)
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Parked(now, Wait.NEEDS_YOU))
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


def answer(
    now: float, policy: Policy, question_id: int, decision: Decision, text: str, seen_hash: str, actor: str
) -> Tx[int]:
    """The session whose question it was. Alone: it may raise a purse that others draw on."""
    rows = yield (
        "SELECT session_id, kind, body, hash FROM questions WHERE id = ? AND answered_at IS NULL",
        (question_id,),
    )
    if not rows:
        raise UnknownQuestion()
    session_id, kind, body, wanted = rows[0]
    session = yield from sessions.lock(session_id)
    if session is None:
        raise UnknownQuestion()
    if seen_hash != wanted:
        raise QuestionChanged()
    yield (
        "UPDATE questions SET answered_at = ?, decision = ?, answer = ?, actor = ? WHERE id = ?",
        (now, decision.value, text, actor, question_id),
    )
    if kind == QuestionKind.BUDGET and decision is Decision.APPROVE:
        yield from usage.raise_limit(json.loads(body)["purse"], None, None)
    still = yield "SELECT 1 FROM questions WHERE session_id = ? AND answered_at IS NULL", (session_id,)
    if not still and session.run_id is not None:
        yield (
            "UPDATE runs SET parked_until = ? WHERE id = ? AND parked_until = ?",
            (ANSWERED, session.run_id, UNTIL_ANSWERED),
        )
        yield from sessions.save(now, policy, session)
    return int(session_id)


def waiting(now: float, root_id: int | None = None) -> Tx[list[Waiting]]:
    """The needs-you inbox, oldest first; of one root or of all."""
    del now
    rows = yield (
        "SELECT q.id, q.session_id, q.kind, q.body, q.hash, q.asked_at FROM questions q"
        " JOIN sessions s ON s.id = q.session_id WHERE q.answered_at IS NULL"
        " AND (CAST(? AS {big}) IS NULL OR s.root_id = ?) ORDER BY q.asked_at, q.id",
        (root_id, root_id),
    )
    return [Waiting(number, session, QuestionKind(kind), *rest) for number, session, kind, *rest in rows]
