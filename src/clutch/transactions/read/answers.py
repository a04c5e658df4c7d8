"""The answer to one message of a user: what its runs have said, whether they are over, and what they used."""

from __future__ import annotations

from typing import NamedTuple

from clutch.core import messages, run
from clutch.core.budget import CallState
from clutch.core.model import LetterState
from clutch.core.text.tasks import silence
from clutch.store.transaction import Tx
from clutch.transactions.read.inbox import InboxItem, waiting_items
from clutch.transactions.read.transcripts import is_quiet


class AnswerText(NamedTuple):
    parcel_id: int
    body: str
    error: str | None = None  #: why there is no answer; the body says so to a person


#: The run that read a message, and later ones of its session; not those that answer another person.
_ANSWERING = (
    " FROM inbox i JOIN runs f ON f.id = i.taken_run JOIN runs r ON r.session_id = f.session_id"
    " AND r.started_at >= f.started_at AND (r.id = f.id OR r.by_person = 0)"
)


def answer_to(now: float, letter: str) -> Tx[AnswerText | None]:
    """The first words of the runs that answer this message, or what the command said. Only shown."""
    del now
    rows = yield "SELECT id, body, NULL FROM outbox WHERE idem = ?", (f"command:{letter}",)
    rows = rows or (
        yield (
            f"SELECT o.id, o.body, r.stop_reason{_ANSWERING} JOIN outbox o ON o.idem = 'reply:' || CAST(r.id AS TEXT)"
            " WHERE i.idem = ? ORDER BY o.id LIMIT 1",
            (letter,),
        )
    )
    if not rows:
        return None
    parcel_id, body, stop_reason = rows[0]
    return AnswerText(parcel_id, body, run.failure(stop_reason))


def failure_of(now: float, letter: str) -> Tx[str | None]:
    """Return why the run that read this message ended without an answer; None: it did not."""
    del now
    rows = yield (
        "SELECT r.stop_reason FROM inbox i JOIN runs r ON r.id = i.taken_run WHERE i.idem = ?",
        (letter,),
    )
    return run.failure(rows[0][0]) if rows else None


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
        "SELECT CAST(COALESCE(SUM(u.calls), 0) AS {big}), CAST(COALESCE(SUM(u.input), 0) AS {big}),"
        " CAST(COALESCE(SUM(u.output), 0) AS {big}),"
        f" CAST(COALESCE(SUM(u.cache_read), 0) AS {{big}}){_ANSWERING}"
        f" JOIN usage u ON u.session_id = r.session_id AND u.run_id = r.id AND u.state > {CallState.OPEN:d}"
        " WHERE i.idem = ? AND (r.id = ? OR r.started_at < ?)",
        (letter, *(said[0] if said else (0, now))),
    )
    return Spent(*rows[0])


def answers(now: float, letter: str, run_id: int) -> Tx[bool]:
    """Is this one of the runs that answer this message? One that has not read it yet may be, later."""
    del now
    return bool((yield f"SELECT 1{_ANSWERING} WHERE i.idem = ? AND r.id = ?", (letter, run_id)))


# --------------------------------------------------------------------------------------------------
# All of it in one look, for clients that come back later


class AnswerState(NamedTuple):
    """What is known of the answer to a message. `is_void`: no turn will read it."""

    at: float
    session_key: str
    agent_id: str
    previous: str | None  #: the message of a user that stands before it in this session
    following: str | None  #: the one after it
    is_taken: bool
    is_void: bool
    is_cancelled: bool
    is_quiet: bool  #: no work is left that could say more
    texts: tuple[str, ...]  #: what the runs have said so far, in order
    reply: AnswerText | None
    failure: str | None
    question: InboxItem | None  #: what the session itself asks the user


_STATE = (
    "SELECT i.id, i.at, i.state, i.taken_run, s.id, s.key, s.agent_id, s.root_id,"
    " (SELECT COUNT(*) FROM outbox c WHERE c.idem = 'cancelled:' || i.idem),"
    " (SELECT n.idem FROM inbox n WHERE n.session_id = i.session_id AND n.kind IN ('user', 'request') AND n.id > i.id"
    " ORDER BY n.id LIMIT 1),"
    " (SELECT p.idem FROM inbox p WHERE p.session_id = i.session_id AND p.kind IN ('user', 'request') AND p.id < i.id"
    " ORDER BY p.id DESC LIMIT 1)"
    " FROM inbox i JOIN sessions s ON s.id = i.session_id WHERE i.idem = ?"
)


def state_of(now: float, letter: str) -> Tx[AnswerState | None]:
    """None: there is no such message, or its session was deleted."""
    rows = yield _STATE, (letter,)
    if not rows:
        return None
    _, at, state, taken, session_id, key, agent_id, root_id, is_cancelled, following, previous = rows[0]
    waiting = yield from waiting_items(now, root_id)
    own = (item for item in waiting if item.session_id == session_id and item.task_id is None)
    return AnswerState(
        at=at,
        session_key=key,
        agent_id=agent_id,
        previous=previous,
        following=following,
        is_taken=taken is not None,
        is_void=taken is None and state == LetterState.VOID,
        is_cancelled=bool(is_cancelled),
        is_quiet=(yield from is_quiet(now, root_id)),
        texts=(yield from _texts(letter)),
        reply=(yield from answer_to(now, letter)),
        failure=(yield from failure_of(now, letter)),
        question=next(own, None),
    )


def _texts(letter: str) -> Tx[tuple[str, ...]]:
    """What the runs that answer this message have said, up to its reply, without the words for silence."""
    rows = yield (
        f"SELECT m.body{_ANSWERING} JOIN messages m ON m.session_id = r.session_id AND m.run_id = r.id"  # noqa: S608 (constant words)
        " WHERE i.idem = ? AND m.kind = 'answer' AND r.started_at <= COALESCE((SELECT MIN(d.started_at) FROM runs d"
        " JOIN outbox o ON o.idem = 'reply:' || CAST(d.id AS TEXT) WHERE d.session_id = f.session_id"
        " AND d.started_at >= f.started_at AND (d.id = f.id OR d.by_person = 0)), r.started_at) ORDER BY m.seq",
        (letter,),
    )
    said = (messages.load("answer", row[0]) for row in rows)
    texts = (one.text.strip() for one in said if isinstance(one, messages.Answer))
    return tuple(text for text in texts if text and silence(text) is None)
