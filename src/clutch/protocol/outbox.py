"""The outbox: words from us to people. A row is due until somebody claims it, then done, due again, or dead.

What became of a send is written in `sending`.

*Claim* gives a row one owner at a time; a dead owner's rows are due again (`workers.bury`), so sending is at
least once and the row's key tells a channel what it has seen already. A row whose channel nobody has
attached is never claimed: it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clutch.core import keys, wording
from clutch.protocol.letters import announce_key
from clutch.protocol.pages import Verbatim
from clutch.protocol.sessions import Stale
from clutch.protocol.unheard import Unheard as Unheard
from clutch.protocol.unheard import unheard as unheard
from clutch.store.door import HINT, Tx


@dataclass(frozen=True, slots=True)
class Parcel:
    id: int
    key: str
    target: str
    body: str
    attempt: int  #: this one included
    task_id: int | None = None  #: whose result it is; None: words of an agent, or of ours
    generation: int | None = None


_INSERT = (
    "INSERT INTO outbox(idem, session_id, channel, target, body, due, task_id, generation)"
    " VALUES(?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(idem) DO "
)


def post(now: float, session_id: int, key: str, route: str, body: str) -> Tx[None]:
    channel, _, target = route.partition(":")
    yield _INSERT + "NOTHING", (key, session_id, channel, target, body, now, None, None)
    yield HINT, ("outbox", channel)


def post_result(now: float, session_id: int, route: str, result: Verbatim) -> Tx[None]:
    """A task's own words. A second try is the same row: whoever reads its key sees that it knows it."""
    channel, _, target = route.partition(":")
    key = announce_key(result.session_key, result.generation)
    yield (
        _INSERT
        + "UPDATE SET due = excluded.due, error = NULL WHERE outbox.done_at IS NULL AND outbox.owner IS NULL",
        (key, session_id, channel, target, result.text, now, result.task_id, result.generation),
    )
    yield HINT, ("outbox", channel)


def reply(now: float, session_id: int, run_id: int, route: str | None, text: str) -> Tx[None]:
    """The last words of a run, unless it chose to say nothing."""
    if route is None or not text.strip() or wording.silence(text) is not None:
        return
    yield from post(now, session_id, f"reply:{run_id}", route, text)


def tell_given_up(now: float, given_up: Mapping[int, str]) -> Tx[None]:
    """Where the requester's reply would have gone; what is given up together is one line. `given_up`: the reasons."""
    rows = yield (
        "SELECT COALESCE((SELECT route FROM sessions s WHERE s.id = tasks.id),"
        " (SELECT route FROM sessions r WHERE r.id = tasks.root_id)), root_id, id, seq, label"
        " FROM tasks WHERE id {any} ORDER BY id",
        (list(given_up),),
    )
    lost: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for route, root_id, number, seq, label in rows:
        if route is not None:
            lost.setdefault((route, root_id), []).append((number, seq, label))
    for (route, root_id), tasks in lost.items():
        number, seq, _ = tasks[0]
        line = wording.undelivered_line(
            [(label, keys.task_id(one)) for one, _, label in tasks], given_up[number]
        )
        yield from post(now, root_id, f"undelivered:{number}:{seq}", route, line)


def claim(now: float, worker_id: int, channel: str, count: int) -> Tx[list[Parcel]]:
    """Oldest first. Alone: two claims must not see the same free row. What a dead worker claimed nobody would free."""
    if not (yield "SELECT 1 FROM workers WHERE id = ? {lock}", (worker_id,)):
        raise Stale(f"worker {worker_id} was declared dead")
    rows = yield (
        # Materialized: see workers.claim.
        "WITH first AS MATERIALIZED (SELECT id FROM outbox WHERE due <= ? AND channel = ? AND owner IS NULL"
        " ORDER BY id LIMIT ? {skip}) UPDATE outbox SET owner = ?, attempts = attempts + 1, due = NULL"
        " WHERE id IN (SELECT id FROM first) RETURNING id, idem, target, body, attempts,"
        " task_id, generation",
        (now, channel, count, worker_id),
    )
    return [Parcel(*row) for row in sorted(rows)]


def next_due(now: float, channel: str) -> Tx[float | None]:
    del now
    rows = yield "SELECT MIN(due) FROM outbox WHERE due IS NOT NULL AND channel = ?", (channel,)
    return None if rows[0][0] is None else float(rows[0][0])


def waits(now: float, session_id: int, channel: str) -> Tx[bool]:
    """Are there words of this session for whoever stands at the counter?"""
    del now
    rows = yield (
        "SELECT 1 FROM outbox WHERE due IS NOT NULL AND session_id = ? AND channel = ? LIMIT 1",
        (session_id, channel),
    )
    return bool(rows)


class AtCounter(NamedTuple):
    parcel_id: int
    body: str


def at_counter(now: float, session_id: int, channel: str) -> Tx[AtCounter | None]:
    """The oldest of them, only shown: whoever has read them says so (`sending.hand_out`)."""
    del now
    rows = yield (
        "SELECT id, body FROM outbox WHERE due IS NOT NULL AND session_id = ? AND channel = ? AND owner IS NULL"
        " ORDER BY id LIMIT 1",
        (session_id, channel),
    )
    return AtCounter(*rows[0]) if rows else None


#: The run that read a message, and later ones of its session; not those that answer another person.
_ANSWERING = (
    " FROM inbox i JOIN runs f ON f.id = i.taken_run JOIN runs r ON r.session_id = f.session_id"
    " AND r.started_at >= f.started_at AND (r.id = f.id OR r.by_person = 0)"
)


def answer_to(now: float, letter: str) -> Tx[AtCounter | None]:
    """The first words of the runs that answer this message, or what the command said. Only shown."""
    del now
    rows = yield "SELECT id, body FROM outbox WHERE idem = ?", (f"command:{letter}",)
    rows = rows or (
        yield (
            f"SELECT o.id, o.body{_ANSWERING} JOIN outbox o ON o.idem = 'reply:' || CAST(r.id AS TEXT)"
            " WHERE i.idem = ? ORDER BY o.id LIMIT 1",
            (letter,),
        )
    )
    return AtCounter(*rows[0]) if rows else None


class Spent(NamedTuple):
    calls: int
    input: int
    output: int
    cache_read: int


def spent_on(now: float, letter: str) -> Tx[Spent]:
    """What the runs that answer this message used of models, up to the one that said the answer; not their children."""
    said = yield (
        f"SELECT r.id, r.started_at{_ANSWERING} JOIN outbox o ON o.idem = 'reply:' || CAST(r.id AS TEXT)"
        " WHERE i.idem = ? ORDER BY o.id LIMIT 1",
        (letter,),
    )
    rows = yield (
        "SELECT COUNT(*), CAST(COALESCE(SUM(u.input), 0) AS {big}), CAST(COALESCE(SUM(u.output), 0) AS {big}),"
        f" CAST(COALESCE(SUM(u.cache_read), 0) AS {{big}}){_ANSWERING}"
        " JOIN usage u ON u.session_id = r.session_id AND u.run_id = r.id AND u.state > 0"
        " WHERE i.idem = ? AND (r.id = ? OR r.started_at < ?)",
        (letter, *(said[0] if said else (0, now))),
    )
    return Spent(*rows[0])


def answers(now: float, letter: str, run_id: int) -> Tx[bool]:
    """Is this one of the runs that answer this message? One that has not read it yet may be, later."""
    del now
    return bool((yield f"SELECT 1{_ANSWERING} WHERE i.idem = ? AND r.id = ?", (letter, run_id)))


def free(now: float, worker_id: int, channel: str) -> Tx[None]:
    """What this worker sends no more, and what nobody alive sends: after a lost answer, a stop, a start."""
    yield (
        "UPDATE outbox SET owner = NULL, due = ? WHERE channel = ? AND owner IS NOT NULL"
        " AND (owner = ? OR owner NOT IN (SELECT id FROM workers))",
        (now, channel, worker_id),
    )
