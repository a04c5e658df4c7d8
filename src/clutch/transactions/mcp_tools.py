"""Tools of MCP servers that were approved, and the questions about those that changed.

All tools of a server that was never seen are approved as they are: an operator has just configured the server. After
that, a tool that is new or changed is a question in the inbox. It belongs to no session (`NO_SESSION`), and no run
parks for it: the tool is withheld until it is approved. A rejected change is asked about again only when it changes
once more, and may still be approved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from clutch.core.model import NO_SESSION, Definition, ToolOffer, canonical
from clutch.core.policy import Policy
from clutch.core.questions import Decision, OpenItem, QuestionKind, check
from clutch.store.transaction import HINT, ManyRows, Tx
from clutch.transactions import outbox, questions, workers
from clutch.transactions.questions import NewQuestion, UnknownQuestion

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
    """Approve all tools of a server that was never seen; of a known one, none."""
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
    yield from questions.void(now, void)
    for number, (body, offer) in zip(ids, wanted.items(), strict=False):
        if body not in still_open and (yield from _is_from_what_is_approved(server, offer)):
            yield from _put(now, policy, NewQuestion(number, 0, QuestionKind.APPROVAL, body))
    return {one.tool: rejected[after] for one in offers if (after := canonical(one.after)) in rejected}


def answer_pin(
    now: float, question_id: int, decision: Decision, text: str, seen_hash: str, *, actor: str
) -> Tx[int]:
    """Of a tool or a file. Approved: every process offers it from its next turn on."""
    yield from _change()
    rows = yield "SELECT body, hash FROM questions WHERE id = ? AND session_id = ?", (question_id, NO_SESSION)
    if not rows:
        raise UnknownQuestion()
    body, wanted = rows[0]
    check(OpenItem(QuestionKind.APPROVAL, wanted), decision, text, seen_hash)
    decided = yield from questions.decide(now, [question_id], decision, text, actor, may_change_rejected=True)
    if not decided:
        raise UnknownQuestion()
    if decision is Decision.APPROVE:
        asked = json.loads(body)
        if "mcpServer" in asked:  # a file has no other record than the answered question
            yield _APPROVE, (asked["mcpServer"], asked["mcpTool"], canonical(asked["after"]))
    return NO_SESSION


def _change() -> Tx[None]:
    """First of all: it locks out a second transaction that reads and then writes."""
    yield from workers.next_value("mcp")


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
        if asked.get("mcpServer") != server:
            continue
        if answered_at is None:
            still_open[body] = number
        else:
            rejected[canonical(asked["after"])] = (number, seen)
    return still_open, rejected


def _is_from_what_is_approved(server: str, offer: ToolOffer) -> Tx[bool]:
    """The tool may have been decided on since the caller has read it."""
    rows = yield "SELECT definition FROM mcp_tools WHERE server = ? AND tool = ?", (server, offer.tool)
    return (rows[0][0] if rows else None) == (None if offer.before is None else canonical(offer.before))


def _put(now: float, policy: Policy, asked: NewQuestion) -> Tx[None]:
    yield from questions.insert(now, NO_SESSION, asked.id, [asked])
    yield from outbox.attention_required(now, policy, NO_SESSION, asked.kind.value, str(asked.id))
    yield HINT, ("question", NO_SESSION)


def _body(server: str, offer: ToolOffer) -> str:
    shown = {"mcpServer": server, "mcpTool": offer.tool, "text": offer.text}
    return json.dumps(shown | {"before": offer.before, "after": offer.after}, sort_keys=True)
