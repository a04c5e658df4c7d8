"""Where the reply to a letter goes, found when the letter is about to be taken: bound thread, hook, captured route.

Only a main session's replies are posted, so for a child nothing is looked up and all letters are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clutch.core import routes
from clutch.core.delivery import Choice
from clutch.core.model import Letter, LetterKind, Route
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx


def resolved(
    session: SessionRow, waiting: Sequence[Letter], hooked: Mapping[int, str], in_threads: Sequence[int]
) -> Tx[list[Letter]]:
    """The letters with the routes their replies go to. `hooked`: what a hook said, by letter. `in_threads`: senders
    that have one."""
    if session.depth:
        return [letter._replace(route="") if letter.route else letter for letter in waiting]
    current = None if session.route is None else routes.from_text(session.route)
    bound = (yield from _bound(in_threads)) if in_threads else {}
    return [_routed(letter, current, bound, hooked.get(letter.id)) for letter in waiting]


def _bound(task_ids: Sequence[int]) -> Tx[dict[int, Route]]:
    rows = yield (
        "SELECT session_id, channel, account, thread FROM bindings WHERE session_id {any} ORDER BY bound_at",
        (list(task_ids),),
    )
    return {
        session_id: Route(channel, account or None, None, thread)
        for session_id, channel, account, thread in rows
    }


def _routed(letter: Letter, current: Route | None, bound: Mapping[int, Route], hook: str | None) -> Letter:
    captured = routes.from_text(letter.route) if letter.route else None
    if letter.task_id is None:
        has_place = captured is not None or letter.kind is LetterKind.USER
        found, mode = (routes.merged(captured, current) if has_place else None), ""
    else:
        found, mode = routes.choose(
            bound=bound.get(letter.task_id),
            hook=routes.from_text(hook) if hook else None,
            captured=captured,
            current=current,
        )
    return letter._replace(route=routes.to_text(found) if found else "", route_mode=mode)


def of_turn(session: SessionRow, choice: Choice) -> str | None:
    """Where the reply of a turn goes that begins with these letters. None: a child's words are posted nowhere."""
    if session.depth:
        return None
    known = [letter.route for letter in choice.taken if letter.route]
    if known:
        return known[0]
    return None if session.route is None else routes.to_text(routes.from_text(session.route))


class Unrouted(NamedTuple):
    """A letter whose way back nobody has asked a hook about."""

    letter_id: int
    task_id: int
    captured: str
    session_key: str | None  #: of whoever wrote it
    requester_key: str


def unrouted(now: float, session_id: int) -> Tx[list[Unrouted]]:
    """For whoever asks the `subagent_delivery_target` hooks before a main session's turn begins."""
    del now
    rows = yield (
        "SELECT i.id, i.task_id, i.route, c.key, s.key FROM inbox i JOIN sessions s ON s.id = i.session_id"
        " LEFT JOIN sessions c ON c.id = i.task_id WHERE i.session_id = ? AND s.depth = 0 AND i.state = 0"
        " AND i.taken_seq IS NULL AND i.kind IN ('announce', 'plan') AND i.silent = 0 AND i.hook_route IS NULL"
        " ORDER BY i.id",
        (session_id,),
    )
    return [Unrouted(*row) for row in rows]


def hooked(now: float, session_id: int, letter_id: int, route: str) -> Tx[None]:
    """What the first hook said; empty: none of them had an answer. Asked once for each letter."""
    del now
    yield (
        "UPDATE inbox SET hook_route = ? WHERE id = ? AND session_id = ? AND hook_route IS NULL",
        (route, letter_id, session_id),
    )
