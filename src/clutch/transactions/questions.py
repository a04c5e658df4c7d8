"""What the user must decide before a run resumes: a tool that needs approval, a question, a budget.

A question belongs to one call of the answer that made it (or, with index -1, to the next model call). The run
parks before any call of that answer is started; when the last question is answered it resumes with all of
them. So an approval can never be used twice, and nothing half-done waits for a person."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clutch.core.model import RunState
from clutch.core.questions import Decision, QuestionKind
from clutch.errors import NotFound
from clutch.store.transaction import ManyRows, Tx
from clutch.transactions import sessions

ROUND = 1000  # questions that foreign code can ask at once
BUDGET_INDEX = -1  # and downwards: one that was answered is asked again if the budget is exhausted again


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


def call_body(name: str, args: Mapping[str, Any]) -> str:
    return json.dumps({"tool": name, "args": dict(args)}, ensure_ascii=True, sort_keys=True)


def question_body(question: str, choices: Sequence[str]) -> str:
    return json.dumps({"question": question, "choices": list(choices)})


def answers(now: float, session_id: int, seq: int) -> Tx[dict[int, QuestionAnswer]]:
    del now
    rows = yield (
        "SELECT idx, decision, answer FROM questions WHERE session_id = ? AND seq = ? AND answered_at IS NOT NULL",
        (session_id, seq),
    )
    return {index: QuestionAnswer(Decision(decision), text) for index, decision, text in rows}


def decided(now: float, session_id: int, fence: int, seq: int) -> Tx[dict[int, QuestionAnswer]]:
    """The same for the owner of the run: a worker that lost it must not act on an answer for its successor."""
    said = yield from answers(now, session_id, seq)
    yield from _still_own(session_id, fence)
    return said


def _still_own(session_id: int, fence: int) -> Tx[None]:
    rows = yield "SELECT owner, fence FROM sessions WHERE id = ?", (session_id,)
    if not rows or not sessions.is_owner(rows[0][0], rows[0][1], fence):
        raise sessions.stale(session_id)


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
    """Whether a run waits, or was answered and has not been resumed yet."""
    del now
    rows = yield (
        "SELECT 1 FROM runs WHERE id = ? AND state <> ? AND state <> ?",
        (run_id, RunState.RUNNING, RunState.ENDED),
    )
    return bool(rows)


def asker(now: float, question_id: int) -> Tx[int]:
    """The session whose question it is. A read."""
    del now
    rows = yield "SELECT session_id FROM questions WHERE id = ?", (question_id,)
    if not rows:
        raise UnknownQuestion()
    return int(rows[0][0])


# --------------------------------------------------------------------------------------------------
# The rows: asked, answered, void, deleted. What follows is in `turn_end.ask` and `messages.answer`.


def insert(now: float, session_id: int, seq: int, asked: Sequence[NewQuestion]) -> Tx[None]:
    """Questions of the answer at `seq`; one that was asked there before stays as it is."""
    yield (
        "INSERT INTO questions(id, session_id, seq, idx, kind, body, hash, asked_at) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT(session_id, seq, idx) DO NOTHING",
        ManyRows(
            (one.id, session_id, seq, one.index, one.kind.value, one.body, one.hash, now) for one in asked
        ),
    )


def decide(
    now: float,
    numbers: Sequence[int],
    decision: Decision,
    text: str,
    actor: str,
    *,
    may_change_rejected: bool = False,
) -> Tx[set[int]]:
    """Answer the open ones among these questions, and return them. `may_change_rejected`: rejected ones, too."""
    still = "(answered_at IS NULL OR decision = 'reject')" if may_change_rejected else "answered_at IS NULL"
    rows = yield (
        "UPDATE questions SET answered_at = ?, decision = ?, answer = ?, actor = ? WHERE id {any}"  # noqa: S608
        f" AND {still} RETURNING id",
        (now, decision.value, text, actor, sorted(numbers)),
    )
    return {row[0] for row in rows}


_VOID = "UPDATE questions SET answered_at = ?, decision = 'void', answer = '' WHERE "


def void(now: float, numbers: Sequence[int]) -> Tx[None]:
    yield _VOID + "id {any}", (now, list(numbers))


def void_of(now: float, session_id: int) -> Tx[None]:
    """The run that asked was stopped: its questions need no answer any more."""
    yield _VOID + "session_id = ? AND answered_at IS NULL", (now, session_id)


def forget(session_id: int) -> Tx[None]:
    yield "DELETE FROM questions WHERE session_id = ?", (session_id,)
