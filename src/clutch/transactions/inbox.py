"""The inbox: letters as their senders post them, and every change of a letter outside of a turn, and the trace of
deliveries.

Each function is one named transition. The allowed changes of `state` are `core.model.LETTER_MOVES`; what a turn does
with letters (take, answer, refuse) is in `delivery`. No other module writes the table.

Posting is one insert and a hint: nothing of the receiver is read or locked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from clutch.core import events as fx
from clutch.core import ids
from clutch.core.model import LETTER_MOVES, REASONS, Delivery, LetterKind, LetterState, Outcome, Reason, Task
from clutch.core.policy import Announcing
from clutch.core.text import announce as announce_text
from clutch.core.text.tasks import payload
from clutch.core.text.why import REQUESTER, DeliveryAttempt
from clutch.store.transaction import HINT, ManyRows, Row, Tx
from clutch.transactions.conditions import IS_DEAD, IS_OPEN, is_in
from clutch.transactions.sessions import SessionRow

# --------------------------------------------------------------------------------------------------
# The trace of deliveries: one row per attempt, and one whenever a delivery was deferred or will never be made, in the
# words in which `why` prints them. What an attempt waited for before it was made stands in its `tried`, too.


class TracedLetter(NamedTuple):
    """A taken letter, as far as its trace shows it."""

    task_id: int
    generation: int
    path: str
    letter: str
    seq: int | None
    bubbled_from: int | None
    route_mode: str | None
    tried: str | None

    @property
    def why(self) -> str:
        return _why(self.bubbled_from)


def _why(bubbled_from: int | None) -> str:
    """Why this target."""
    return REQUESTER if bubbled_from is None else f"bubbled from {ids.task_id(bubbled_from)}"


#: What `Told` is made of, in the inbox.
TRACED_COLUMNS = "task_id, generation, path, idem, taken_seq, bubbled_from, route_mode, tried"

_INTO = (
    "INSERT INTO deliveries(task_id, generation, letter, to_session, to_depth, why, route_mode, tried, at, path,"
    " run_id, transcript_seq, outcome, reason, detail, attempt, next_at)"
    " VALUES(?, ?, ?, ?, (SELECT depth FROM sessions WHERE id = ?), ?, ?, ?, ?, ?, ?, ?, "
)
_DELIVERED = _INTO + "?, ?, ?, ?, NULL)"
#: Its number is the count of failed ones, this one included.
_FAILED = (
    _INTO + "'failed', 'failed', ?, (SELECT attempts FROM tasks WHERE id = ?),"  # noqa: S608 (constant words)
    f" (SELECT ready_at FROM inbox WHERE idem = ? AND {IS_OPEN}))"
)


def delivered(
    now: float,
    session_id: int,
    run_id: int | None,
    told: Sequence[TracedLetter],
    attempts: Mapping[int, int],
    *,
    unsure: str | None = None,
) -> Tx[None]:
    """`attempts`: failed ones, by task. `unsure`: why it is not known whether what was sent arrived."""
    outcome = Delivery.DELIVERED if unsure is None else Delivery.UNSURE
    yield (
        _DELIVERED,
        ManyRows(
            (
                *_row(now, session_id, run_id, one),
                outcome,
                one.path if unsure is None else Reason.UNSURE,
                unsure or "",
                attempts[one.task_id] + 1,
            )
            for one in told
        ),
    )


def failed(
    now: float, session_id: int, run_id: int | None, told: Sequence[TracedLetter], error: str
) -> Tx[None]:
    """After the tasks were stepped: their counts and the next try are read from there."""
    yield (
        _FAILED,
        ManyRows((*_row(now, session_id, run_id, one), error[:200], one.task_id, one.letter) for one in told),
    )


#: To the session that has the letter; before there is one, to the parent.
_DECIDED = (
    "INSERT INTO deliveries(task_id, generation, letter, to_session, to_depth, at, outcome, reason, attempt, next_at)"
    " SELECT t.id, CAST(? AS {big}), 'announce:v1:' || s.key || ':' || CAST(? AS {text}),"
    " COALESCE(r.id, t.requester_id), r.depth, CAST(? AS {float}), CAST(? AS {text}), CAST(? AS {text}), t.attempts,"
    " CAST(? AS {float}) FROM tasks t JOIN sessions s ON s.id = t.id LEFT JOIN sessions r ON r.id ="
    " COALESCE((SELECT i.session_id FROM inbox i WHERE i.task_id = t.id AND i.kind = 'announce' AND i.generation = ?),"
    " t.requester_id) WHERE t.id = ?"
)


def decided(now: float, lines: Mapping[int, fx.Trace]) -> Tx[None]:
    """By task: deferred, or never to be delivered. No attempt was made; those that failed before stay counted."""
    yield (
        _DECIDED,
        ManyRows(
            (
                one.generation,
                str(one.generation),
                now,
                one.outcome,
                one.reason,
                one.next_at,
                one.generation,
                task_id,
            )
            for task_id, one in lines.items()
        ),
    )


def _row(now: float, session_id: int, run_id: int | None, one: TracedLetter) -> tuple[object, ...]:
    return (
        one.task_id, one.generation, one.letter, session_id, session_id, one.why, one.route_mode, one.tried, now,
        one.path, run_id, one.seq,
    )  # fmt: skip


def attempts(now: float, task_id: int) -> Tx[list[DeliveryAttempt]]:
    """Oldest first."""
    del now
    rows = yield (
        "SELECT (SELECT bubbled_from FROM inbox i WHERE i.idem = letter AND to_session <>"
        " (SELECT requester_id FROM tasks WHERE id = task_id)), letter,"
        " (SELECT key FROM sessions s WHERE s.id = to_session), to_depth, why, route_mode, tried, reason, path,"
        " attempt, at, next_at, outcome, detail, run_id, transcript_seq FROM deliveries WHERE task_id = ? ORDER BY id",
        (task_id,),
    )
    # Only attempts say why, and not those of the first schema.
    return [
        DeliveryAttempt(
            letter, to, depth, why or _why(bubbled_from), mode, _pairs(tried), REASONS[reason], *rest
        )
        for bubbled_from, letter, to, depth, why, mode, tried, reason, *rest in rows
    ]


def dumped(tried: Sequence[tuple[str, str]]) -> str | None:
    return json.dumps(tried) if tried else None


def _pairs(text: str | None) -> tuple[tuple[str, str], ...]:
    return tuple((path, left) for path, left in json.loads(text)) if text else ()


_OPEN, _ANSWERED, _DEAD, _VOID = LetterState


@cache
def move(*before: LetterState, to: LetterState, also: str = "") -> str:
    """Return the start of the statement that makes moves of `LETTER_MOVES`, up to its first condition.

    Raises AssertionError for a move that is not listed there. `also`: further columns it sets."""
    for state in before:
        if (state, to) not in LETTER_MOVES:
            raise AssertionError(f"no letter moves from {state.name} to {to.name}")
    more = f", {also}" if also else ""
    return f"UPDATE inbox SET state = {to:d}{more} WHERE {is_in(*before)}"  # noqa: S608


# --------------------------------------------------------------------------------------------------
# Posted

_INSERT = (
    "INSERT INTO inbox(session_id, idem, kind, silent, body, route, task_id, generation, at, ready_at, seen)"
    " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(idem) DO NOTHING"
)
#: Seen from the start: the transaction that posts them also says when their session is due.
_INSERT_TASK = (
    "INSERT INTO inbox(session_id, idem, kind, silent, body, route, at, ready_at, seen)"
    " VALUES(?, ?, ?, 0, ?, '', ?, ?, 1)"
)
_INSERT_IMPORTED = (
    "INSERT INTO inbox(session_id, idem, kind, silent, body, route, task_id, generation, bubbled_from, late, at,"
    " ready_at, seen, state, path) VALUES(?, ?, ?, ?, '', ?, ?, 1, ?, ?, ?, ?, ?, ?, ?)"
)


def insert(
    now: float, session_id: int, idem: str, kind: LetterKind, body: str, *, route: str = ""
) -> Tx[None]:
    """Post a letter in a transaction that wakes the receiver itself."""
    yield _INSERT, (session_id, idem, kind.value, 0, body, route, None, None, now, now, 0)


def post(now: float, session_id: int, idem: str, kind: LetterKind, body: str, *, route: str = "") -> Tx[None]:
    yield from insert(now, session_id, idem, kind, body, route=route)
    yield HINT, ("mail", session_id)


def post_tasks(now: float, first_messages: Iterable[tuple[int, str]]) -> Tx[None]:
    """Post the task letters of new children: session and first message of each."""
    kind = LetterKind.TASK.value
    yield (
        _INSERT_TASK,
        ManyRows((child, f"task:{child}", kind, body, now, now) for child, body in first_messages),
    )


class ImportedLetter(NamedTuple):
    """The result of an imported task. `state`: OPEN, or delivered or skipped in the system it comes from."""

    session_id: int
    idem: str
    route: str
    task_id: int
    bubbled_from: int | None
    state: LetterState
    path: str | None


def post_imported(now: float, letter: ImportedLetter) -> Tx[None]:
    if (None, letter.state) not in LETTER_MOVES:
        raise AssertionError(f"no letter begins as {letter.state.name}")
    is_open, kind = letter.state is _OPEN, LetterKind.ANNOUNCE.value
    yield (
        _INSERT_IMPORTED,
        (
            letter.session_id, letter.idem, kind, int(letter.state is _VOID), letter.route, letter.task_id,
            letter.bubbled_from, int(letter.bubbled_from is not None), now, now, int(not is_open), letter.state.value,
            letter.path,
        ),
    )  # fmt: skip
    if is_open:
        yield HINT, ("mail", letter.session_id)


def announce_key(session_key: str, generation: int) -> str:
    return f"announce:v1:{session_key}:{generation}"


def announce(
    now: float, session: SessionRow, requester_id: int, generation: int, *, silent: bool
) -> Tx[None]:
    """Post the outcome of a task to its parent. Its text is read from the task when a run takes the letter."""
    idem = announce_key(session.key, generation)
    kind, route = LetterKind.ANNOUNCE.value, session.route or ""
    yield _INSERT, (requester_id, idem, kind, int(silent), "", route, session.id, generation, now, now, 0)
    yield HINT, ("mail", requester_id)


def ask_approval(now: float, session: SessionRow, requester_id: int, generation: int) -> Tx[None]:
    idem, kind = f"plan:v1:{session.key}:{generation}", LetterKind.PLAN.value
    yield _INSERT, (requester_id, idem, kind, 0, "", session.route or "", session.id, generation, now, now, 0)
    yield HINT, ("mail", requester_id)


# --------------------------------------------------------------------------------------------------
# Open: seen, made ready, taken back from a run, moved up. The state stays.


def mark_seen(session_id: int) -> Tx[None]:
    """`wake` has computed when the session is due for these letters."""
    yield "UPDATE inbox SET seen = 1 WHERE session_id = ? AND seen = 0", (session_id,)


def mark_closed_seen(session_id: int) -> Tx[None]:
    """What is left open stays unseen until `wake.orphan` has notified its senders: a worker may die before that."""
    yield f"UPDATE inbox SET seen = 1 WHERE session_id = ? AND seen = 0 AND NOT {IS_OPEN}", (session_id,)  # noqa: S608


def mark_orphaned(session_id: int) -> Tx[Sequence[Row]]:
    """Mark the open letters of a session without a parent as seen. Returns task, kind, silent, generation of each."""
    return (
        yield (
            f"UPDATE inbox SET seen = 1 WHERE session_id = ? AND {IS_OPEN}"  # noqa: S608
            " RETURNING task_id, kind, silent, generation",
            (session_id,),
        )
    )


def unsee(session: SessionRow) -> Tx[None]:
    """The session closes: `wake` must look again at the letters that no run has answered."""
    if session.has_mail is None:
        rows = yield f"SELECT 1 FROM inbox WHERE session_id = ? AND {IS_OPEN} LIMIT 1", (session.id,)  # noqa: S608
        session.has_mail = bool(rows)
    if session.has_mail:
        yield f"UPDATE inbox SET seen = 0, taken_run = NULL WHERE session_id = ? AND {IS_OPEN}", (session.id,)  # noqa: S608
        yield HINT, ("mail", session.id)


def give_back(task_id: int, generation: int, ready_at: float) -> Tx[None]:
    """A delivery attempt failed: any run may take the result again from `ready_at` on."""
    yield (
        "UPDATE inbox SET taken_run = NULL, ready_at = ?"
        " WHERE task_id = ? AND generation = ? AND kind = 'announce'",
        (ready_at, task_id, generation),
    )


def give_back_taken(session_id: int) -> Tx[None]:
    """The run of this session was stopped: the next one answers what it had taken."""
    yield (
        f"UPDATE inbox SET taken_run = NULL WHERE session_id = ? AND {IS_OPEN} AND taken_run IS NOT NULL",  # noqa: S608
        (session_id,),
    )


def defer(idem: str, ready_at: float) -> Tx[None]:
    yield "UPDATE inbox SET ready_at = ? WHERE idem = ?", (ready_at, idem)


def release_instructions(now: float, session_id: int) -> Tx[None]:
    """The tools that deferred the instructions of this session have ended: the next run need not wait any longer."""
    yield (
        f"UPDATE inbox SET ready_at = ? WHERE session_id = ? AND {IS_OPEN} AND kind = 'instruction' AND ready_at > ?",  # noqa: S608
        (now, session_id, now),
    )


def redate(letter_id: int, at: float, ready_at: float) -> Tx[None]:
    """Correct the times of a letter that was posted under a clock that was ahead."""
    yield "UPDATE inbox SET at = ?, ready_at = ? WHERE id = ?", (at, ready_at, letter_id)


def move_up(session: SessionRow, parent_id: int) -> Tx[None]:
    """A closed session's results and plans go to its parent, marked late; there they are unread again."""
    moved = yield (
        "UPDATE inbox SET session_id = ?, seen = 0, late = 1, bubbled_from = COALESCE(bubbled_from, session_id),"  # noqa: S608
        f" taken_run = NULL, taken_seq = NULL WHERE session_id = ? AND {IS_OPEN} AND kind IN ('announce', 'plan')"
        " AND silent = 0 RETURNING id",
        (parent_id, session.id),
    )
    if moved:
        yield HINT, ("mail", parent_id)


def leave_transcript(session_id: int) -> Tx[None]:
    """The transcript begins anew, or is deleted: letters that stand in it unanswered must be read again.

    Two statements, because each state has an index of its own."""
    yield f"UPDATE inbox SET taken_seq = NULL WHERE session_id = ? AND {IS_OPEN}", (session_id,)  # noqa: S608
    yield f"UPDATE inbox SET taken_seq = NULL WHERE session_id = ? AND {IS_DEAD}", (session_id,)  # noqa: S608


class Unrouted(NamedTuple):
    """A letter for whose reply no hook has been asked for a target."""

    letter_id: int
    task_id: int
    captured: str
    session_key: str | None  #: of its sender
    requester_key: str


def unrouted(now: float, session_id: int) -> Tx[list[Unrouted]]:
    """Letters of a main session for which the `subagent_delivery_target` hooks are asked before its turn begins."""
    del now
    rows = yield (
        "SELECT i.id, i.task_id, i.route, c.key, s.key FROM inbox i JOIN sessions s ON s.id = i.session_id"  # noqa: S608
        f" LEFT JOIN sessions c ON c.id = i.task_id WHERE i.session_id = ? AND s.depth = 0 AND i.{IS_OPEN}"
        " AND i.taken_seq IS NULL AND i.kind IN ('announce', 'plan') AND i.silent = 0 AND i.hook_route IS NULL"
        " ORDER BY i.id",
        (session_id,),
    )
    return [Unrouted(*row) for row in rows]


def hooked(now: float, session_id: int, letter_id: int, route: str) -> Tx[None]:
    """Store the target that the first hook named; empty: none named one. Each letter is asked about once."""
    del now
    yield (
        "UPDATE inbox SET hook_route = ? WHERE id = ? AND session_id = ? AND hook_route IS NULL",
        (route, letter_id, session_id),
    )


# --------------------------------------------------------------------------------------------------
# Void: nothing is left to deliver.


def void_notes(session_id: int) -> Tx[None]:
    """A wrap-up note is about the clock of one run; the next run has its own."""
    yield f"{move(_OPEN, to=_VOID)} AND session_id = ? AND kind = 'note'", (session_id,)


def is_taken(idem: str) -> Tx[bool]:
    return bool((yield "SELECT 1 FROM inbox WHERE idem = ? AND taken_run IS NOT NULL", (idem,)))


def void_unread(idem: str) -> Tx[bool]:
    """A message that its sender takes back before a turn has read it. False: one has, or it was before."""
    return bool((yield f"{move(_OPEN, to=_VOID)} AND idem = ? AND taken_run IS NULL RETURNING id", (idem,)))


def void_own(session: SessionRow) -> Tx[None]:
    """Messages to a closed session itself, and silent results. The others move up."""
    own = "(kind NOT IN ('announce', 'plan') OR silent = 1)"
    yield f"{move(_OPEN, to=_VOID)} AND session_id = ? AND {own}", (session.id,)


def void_all(session_id: int) -> Tx[None]:
    """The session is deleted."""
    yield f"{move(_OPEN, to=_VOID, also='seen = 1')} AND session_id = ?", (session_id,)


def void_read(session_id: int) -> Tx[Sequence[Row]]:
    """What a stopped session has read and will not answer. Returns task, kind, silent, generation of each letter."""
    return (
        yield (
            f"{move(_OPEN, to=_VOID)} AND session_id = ? AND taken_seq IS NOT NULL"
            " RETURNING task_id, kind, silent, generation",
            (session_id,),
        )
    )


def void_killed(readers: Sequence[int], senders: Sequence[int], stays: int) -> Tx[Sequence[Row]]:
    """The letters of killed readers, and those of killed senders that no run has read.

    `stays`: the reader that lives on; messages to it that it has not read are not part of what ends. Returns task,
    kind, silent, generation, session of each letter."""
    return (
        yield (
            # A reader that lives on may be due for what is void now, so `wake` must look at it again.
            move(_OPEN, to=_VOID, also="seen = CASE WHEN session_id {any} THEN seen ELSE 0 END")
            + " AND (session_id {any} OR (task_id {any} AND taken_seq IS NULL))"
            " AND NOT (session_id = ? AND taken_seq IS NULL AND kind IN ('user', 'request', 'instruction', 'peer'))"
            " RETURNING task_id, kind, silent, generation, session_id",
            (list(readers), list(readers), list(senders), stays),
        )
    )


# --------------------------------------------------------------------------------------------------
# Answered without a turn, given up, redelivered, deleted.


def close_read(session_id: int) -> Tx[None]:
    """`/new`: messages in the old transcript get no answer any more. Results stay open and are read again."""
    yield (
        f"{move(_OPEN, to=_ANSWERED)} AND session_id = ? AND taken_seq IS NOT NULL AND kind <> 'announce'",
        (session_id,),
    )


def bury(task_id: int, generation: int) -> Tx[None]:
    """Give up the result of this generation: it becomes a dead letter."""
    yield (
        f"{move(_OPEN, to=_DEAD, also='taken_run = NULL')} AND task_id = ? AND generation = ? AND kind = 'announce'",
        (task_id, generation),
    )


def redrive(now: float, task_id: int, generation: int) -> Tx[None]:
    """Open a dead letter again. One that stands in a transcript keeps its place there."""
    rows = yield (
        f"{move(_DEAD, to=_OPEN, also='seen = 0, ready_at = ?')}"
        " AND task_id = ? AND generation = ? AND kind = 'announce' RETURNING session_id",
        (now, task_id, generation),
    )
    for (session_id,) in rows:
        yield HINT, ("mail", session_id)


#: Of a delivery `d`: an attempt that failed, or why there was none. Traces and views need those that succeeded.
IS_TRIMMABLE = f"d.outcome NOT IN ('{Delivery.DELIVERED}', '{Delivery.UNSURE}')"


def trim_deliveries(task_ids: Sequence[int], count_max: int) -> Tx[None]:
    """Delete the oldest attempts that did not succeed."""
    rows = yield (
        f"SELECT d.id FROM deliveries d WHERE d.task_id {{any}} AND {IS_TRIMMABLE} ORDER BY d.id LIMIT ?",  # noqa: S608
        (list(task_ids), count_max),
    )
    yield "DELETE FROM deliveries WHERE id {any}", ([row[0] for row in rows],)


def forget(session_id: int) -> Tx[None]:
    """The session is deleted: its messages go, the results of its children stay."""
    yield f"DELETE FROM inbox WHERE session_id = ? AND NOT {IS_OPEN} AND kind <> 'announce'", (session_id,)  # noqa: S608


# --------------------------------------------------------------------------------------------------
# Further notices to a parent: a child asks a user a question, a killed child is reported, or its late text.
#
# Such a letter has a text of its own and moves no task: the result of a killed task stays skipped.


def tell(
    now: float,
    rules: Announcing,
    session: SessionRow,
    task: Task,
    text: str | None,
    *,
    nonce: str,
    late: bool,
) -> Tx[None]:
    """To the nearest open session above; without one, nothing is posted."""
    rows = yield "SELECT label FROM tasks WHERE id = ?", (session.id,)
    reader = yield from _reader(session.parent_id)
    if reader is None or not task.notify_parent:
        return
    reader_id, depth = reader
    shown = payload(text or "", rules.payload, rules.inline_chars_max, rules.summary_chars_max)
    finding = announce_text.AnnouncedResult(
        rows[0][0], ids.task_id(session.id), session.key, Outcome.KILLED, task.error, shown.text or None,
        summary_only=shown.is_summary, late=late,
    )  # fmt: skip
    audience = announce_text.Audience.PARENT if depth else announce_text.Audience.WAITING_PERSON
    key = f"{'late' if late else 'killed'}:v1:{session.key}:{task.generation}"
    body = announce_text.announcement([finding], audience, nonce)
    yield from post(now, reader_id, key, LetterKind.NEWS, body, route=session.route or "")


def ask(
    now: float, rules: Announcing, session: SessionRow, question: str, key: str, *, nonce: str
) -> Tx[None]:
    """The child waits until a user answers; its parent is notified."""
    rows = yield "SELECT label, notify_parent FROM tasks WHERE id = ?", (session.id,)
    reader = yield from _reader(session.parent_id)
    if reader is None or not rows[0][1]:
        return
    shown = payload(question, rules.payload, rules.inline_chars_max, rules.summary_chars_max)
    body = announce_text.question_asked(rows[0][0], ids.task_id(session.id), shown.text, nonce)
    yield from post(
        now, reader[0], f"question:v1:{session.key}:{key}", LetterKind.NEWS, body, route=session.route or ""
    )


def _reader(session_id: int | None) -> Tx[tuple[int, int] | None]:
    while session_id is not None:
        rows = yield "SELECT closed, parent_id, depth FROM sessions WHERE id = ?", (session_id,)
        if not rows:
            return None
        closed, parent_id, depth = rows[0]
        if not closed:
            return session_id, depth
        session_id = parent_id
    return None
