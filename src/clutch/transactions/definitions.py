"""What people have decided about agent files and skills, and the questions about them.

The answered questions are the record: a content, named by its hash, is approved when a question about it was. They
belong to no session (`NO_SESSION`), like those about tools of MCP servers, and no run parks for them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from clutch.core import ids
from clutch.core.definitions import Decisions, Proposal
from clutch.core.model import NO_SESSION
from clutch.core.policy import Policy
from clutch.core.questions import Decision, QuestionKind
from clutch.store.transaction import HINT, Tx
from clutch.transactions import outbox, questions, workers
from clutch.transactions.questions import NewQuestion


def decisions(now: float) -> Tx[Decisions]:
    """A read."""
    del now
    found = yield from _asked()
    said = {seen: decision for _, seen, decision in found if decision != Decision.VOID}
    # A later word about the same content counts: a rejected one may be approved.
    return Decisions(
        approved=frozenset(seen for _, seen, decision in found if decision == Decision.APPROVE),
        rejected=frozenset(seen for seen, decision in said.items() if decision == Decision.REJECT),
        asked={
            seen: ids.question_id(number) for number, seen, decision in found if decision != Decision.VOID
        },
    )


def propose(now: float, policy: Policy, proposals: Sequence[Proposal], numbers: Sequence[int]) -> Tx[None]:
    """Ask about each content once. An open question about an earlier content of the same file is void."""
    # First of all: it locks out a second transaction that reads and then writes.
    yield from workers.next_value("mcp")
    found = yield from _asked()
    known = {seen for _, seen, decision in found if decision != Decision.VOID}
    paths = {one.path for one in proposals}
    still_open = yield (
        "SELECT id, body FROM questions WHERE session_id = ? AND answered_at IS NULL",
        (NO_SESSION,),
    )
    old = [number for number, body in still_open if json.loads(body).get("file") in paths]
    yield from questions.void(now, [number for number in old if number not in _current(found, proposals)])
    for number, one in zip(numbers, proposals, strict=True):
        if one.digest in known:
            continue
        body = {
            "file": one.path,
            "definition": one.kind,
            "name": one.name,
            "hash": one.digest,
            "text": one.text,
        }
        asked = NewQuestion(number, 0, QuestionKind.APPROVAL, json.dumps(body, sort_keys=True))
        yield from questions.insert(now, NO_SESSION, number, [asked])
        yield from outbox.attention_required(now, policy, NO_SESSION, asked.kind.value, str(number))
        yield HINT, ("question", NO_SESSION)


def _current(found: Sequence[tuple[int, str, str | None]], proposals: Sequence[Proposal]) -> set[int]:
    wanted = {one.digest for one in proposals}
    return {number for number, seen, _ in found if seen in wanted}


def _asked() -> Tx[list[tuple[int, str, str | None]]]:
    """Number, content and decision of every question about a file, oldest first."""
    rows = yield (
        "SELECT id, body, decision FROM questions WHERE session_id = ? ORDER BY id",
        (NO_SESSION,),
    )
    asked = [(number, json.loads(body), decision) for number, body, decision in rows]
    return [(number, body["hash"], decision) for number, body, decision in asked if "file" in body]
