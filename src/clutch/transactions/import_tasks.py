"""Tasks that another system began: they keep their history, and what is left to do continues here.

Each is walked through the state machine with the times of its own life, so that its timeline re-reduces like any
other. It has ended: one that had not is `lost`. An undelivered result becomes a letter to the main session of its
agent; the others were delivered. They take no place in any quota. The key of a record makes a second import find
its task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from clutch.core import authority
from clutch.core import events as ev
from clutch.core.lifecycle import step
from clutch.core.messages import Answer, Message
from clutch.core.model import Delivery, Lane, LetterState, Outcome, Path, SessionId, Task, TaskId
from clutch.core.policy import Policy
from clutch.core.views import Evidence, stop_reason
from clutch.store.transaction import ManyRows, Row, Tx
from clutch.transactions import inbox, runs, sessions, tasks, transcript, usage
from clutch.transactions.sessions import NewMain, ParentRow

ACTOR = "import"
#: Below every order of a spawn, and in the order of the records.
_FIRST_ORDER = -(2**53)


@dataclass(frozen=True, slots=True)
class ImportedTask:
    """One task. Numbers come from outside, so that a transaction that runs again makes the same ones."""

    key: str  #: of the record: the same one is never taken twice
    task_id: int
    run_id: int
    session_key: str
    agent_id: str
    main: str  #: key of the main session at the top
    parent: str | None  #: key of the session that asked for it; None: the main session
    levels: int  #: how deep it was where it came from, at least
    label: str
    task: str
    model: str
    created_at: float
    started_at: float
    ended_at: float
    outcome: Outcome
    error: str
    text: str | None
    is_told: bool
    transcript: Sequence[Message] = ()
    times: Sequence[float] = ()
    prices: Sequence[Decimal | None] = ()


def known(now: float, records: Sequence[ImportedTask]) -> Tx[dict[str, int]]:
    """The tasks of those that were taken before, by key. A task whose session has another record is that session's."""
    del now
    rows = yield (
        "SELECT t.idem, s.key, t.id FROM tasks t LEFT JOIN sessions s ON s.id = t.id WHERE t.idem {any} OR s.key {any}",
        ([record.key for record in records], [record.session_key for record in records]),
    )
    by_key = {idem: task_id for idem, _, task_id in rows}
    by_session = {key: task_id for _, key, task_id in rows if key is not None}
    found = ((one.key, by_key.get(one.key, by_session.get(one.session_key))) for one in records)
    return {key: task_id for key, task_id in found if task_id is not None}


def take_in(
    now: float, policy: Policy, mains: Sequence[NewMain], records: Sequence[ImportedTask]
) -> Tx[dict[str, int]]:
    """The tasks of all of them, by key. Parents stand before their children. Alone."""
    tops: dict[str, ParentRow] = {}
    for main in mains:
        tops[main.key] = yield from _main(now, main)
    taken = yield from known(now, records)
    for record in records:
        if record.key in taken:
            continue
        top = tops[record.main]
        parent = top if record.parent is None else (yield from _parent(record.parent, top))
        yield from _insert(now, policy, record, top, parent)
        taken[record.key] = record.task_id
    return taken


def _main(now: float, main: NewMain) -> Tx[ParentRow]:
    number = yield from sessions.open_session(now, main)
    row = yield from sessions.lock_parent(number)
    assert row is not None, f"session {number} was just opened"
    return row


def _parent(key: str, top: ParentRow) -> Tx[ParentRow]:
    """One that was deleted since leaves its children to the main session."""
    rows = yield "SELECT id FROM sessions WHERE key = ?", (key,)
    found = (yield from sessions.lock_parent(rows[0][0])) if rows else None
    return top if found is None else found


def _insert(now: float, policy: Policy, record: ImportedTask, top: ParentRow, parent: ParentRow) -> Tx[None]:
    task, lines = _life(policy, record, parent.id)
    rights = _rights(policy, record, parent)
    yield from sessions.insert_imported(
        (
            record.task_id, record.session_key, record.agent_id, parent.id, top.id, parent.depth + 1,
            Lane.SUBAGENT.value, rights.role.value, authority.to_text(rights), parent.route, parent.workspace,
            parent.purses, len(record.transcript), record.ended_at, record.ended_at, record.created_at,
        ),
    )  # fmt: skip
    calls = sum(len(said.calls) for said in record.transcript if isinstance(said, Answer))
    evidence = Evidence(tool_calls=calls, stop_reason=stop_reason(task)).to_text(task.generation)
    yield from tasks.insert_imported(
        (
            *tasks.to_row(task), top.id, parent.depth + 1, _FIRST_ORDER + record.task_id, record.key, record.label,
            record.task, "{}", record.created_at, tasks.result_sha(task), evidence,
        ),
    )  # fmt: skip
    yield from tasks.insert_events(ManyRows(lines))
    yield from _history(record)
    yield from _letter(now, record, task, top, parent)


def _life(policy: Policy, record: ImportedTask, requester_id: int) -> tuple[Task, list[Row]]:
    """What it had said when it was killed is all there is of a result."""
    is_killed = record.outcome is Outcome.KILLED
    task = Task(TaskId(record.task_id), SessionId(requester_id), fallback=record.text if is_killed else None)
    lines: list[Row] = []
    for event in _events(record):
        before, (task, moves, _) = task, step(task, event, policy)
        lines += tasks.event_rows(event.at, before, moves, ACTOR)
    return task, lines


def _events(record: ImportedTask) -> Iterator[ev.Event]:
    at = record.ended_at
    yield ev.Admitted(record.created_at)
    yield ev.Started(record.started_at)
    match record.outcome:
        case Outcome.OK:
            yield ev.Ended(at, record.text)
        case Outcome.KILLED:
            yield ev.Killed(at, record.error)
        case Outcome.ERROR | Outcome.TIMEOUT | Outcome.LOST:
            yield ev.Failed(at, record.error, record.text, is_final=True, outcome=record.outcome)
    if record.is_told:
        yield ev.Delivered(at, Path.DIRECT, 1)


def _rights(policy: Policy, record: ImportedTask, parent: ParentRow) -> authority.Rights:
    """Of a child of that parent, and never of one that stands higher than it did where it came from."""
    rights = authority.from_text(parent.rights)
    grant = policy.grant(record.agent_id)
    for _ in range(max(1, record.levels - rights.depth)):
        own = replace(grant, sandbox=grant.sandbox or rights.sandbox)
        given = authority.child_rights(rights, own, authority.Request(), policy.tools)
        assert isinstance(given, authority.Rights), "its sandbox is as strict as its parent's"
        rights = given
    return replace(rights, depth=parent.depth + 1)


def _history(record: ImportedTask) -> Tx[None]:
    """Transcript and ledger. All of it counts as one run."""
    yield from runs.imported(record.task_id, record.run_id, record.started_at, record.ended_at)
    said = list(zip(record.transcript, record.times, strict=True))
    if said:
        yield from transcript.insert(record.task_id, record.run_id, said)
    answers = [(one, at) for one, at in said if isinstance(one, Answer)]
    if answers:
        yield from usage.insert_imported(
            ManyRows(
                _call(record, number, one, at, price)
                for number, ((one, at), price) in enumerate(zip(answers, record.prices, strict=True), 1)
            )
        )


def _call(record: ImportedTask, number: int, answer: Answer, at: float, price: Decimal | None) -> Row:
    used = answer.usage
    return (
        record.task_id, number, record.run_id, at, record.model, answer.model, used.input, used.output,
        used.cache_read, used.cache_write, None if price is None else format(price, "f"),
    )  # fmt: skip


_STATES: Mapping[Delivery, LetterState] = {
    Delivery.WAITING: LetterState.OPEN,
    Delivery.DELIVERED: LetterState.ANSWERED,
    Delivery.SKIPPED: LetterState.VOID,
}


def _letter(now: float, record: ImportedTask, task: Task, top: ParentRow, parent: ParentRow) -> Tx[None]:
    """The sessions in between are closed, so the letter goes to the top at once and says from where it moved up."""
    state = _STATES[task.delivery]
    yield from inbox.post_imported(
        now,
        inbox.ImportedLetter(
            session_id=top.id,
            idem=inbox.announce_key(record.session_key, 1),
            route=parent.route or "",
            task_id=record.task_id,
            bubbled_from=None if parent.id == top.id else parent.id,
            state=state,
            path=Path.DIRECT.value if state is LetterState.ANSWERED else None,
        ),
    )
