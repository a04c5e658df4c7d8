"""Tasks: the one way to change them. Load, step, save, write the timeline, apply the effects, in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import compress
from operator import is_not
from typing import Any, Final, Literal, NamedTuple, TypeAlias, assert_never

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core import messages
from clutch.core.attachments import FileVersion
from clutch.core.authority import Role
from clutch.core.events import Move, Transition
from clutch.core.lifecycle import step
from clutch.core.model import REASONS, Delivery, LetterKind, Outcome, Phase, Plan, Reason, Task
from clutch.core.policy import Policy
from clutch.core.text.prompts import wrap_up_note
from clutch.core.views import WRITING_TOOLS, Evidence, files_touched, stop_reason
from clutch.store.transaction import HINT, ManyRows, Row, Tx
from clutch.transactions import inbox, outbox, questions, runs, sessions, transcript, usage
from clutch.transactions.conditions import IS_WORKING
from clutch.transactions.sessions import SessionRow
from clutch.transactions.usage import Fate

# --------------------------------------------------------------------------------------------------
# A task as its row, and its moves as lines of the timeline. Nothing is decided here.

COLUMNS = (
    "id, requester_id, timeout_s, expects_completion, notify_parent, has_cleanup, seq, phase, reason, detail,"
    " generation, outcome, error, result, fallback, delivery, delivery_reason, attempts, plan, plan_round, wake_at,"
    " deadline_at, clock_left_s, started_at, ended_at, stays"
)
_CONTRACT = 6  # the columns that no step of the life cycle changes
SIZE = len(Task._fields)
INSERT_EVENT = (
    "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, detail, generation, outcome)"
    " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


# Looked up, not called: calling an enum costs ten times as much.
_PHASES = {phase.value: phase for phase in Phase}
_OUTCOMES = {None if outcome is None else outcome.value: outcome for outcome in (None, *Outcome)}
_DELIVERIES = {delivery.value: delivery for delivery in Delivery}
_PLANS = {plan.value: plan for plan in Plan}


def from_row(row: Sequence[Any]) -> Task:
    (
        task_id, requester_id, timeout_s, expects_completion, notify_parent, has_cleanup, seq, phase, reason, detail,
        generation, outcome, error, result, fallback, delivery, delivery_reason, attempts, plan, plan_round, wake_at,
        deadline_at, clock_left_s, started_at, ended_at, stays,
    ) = row  # fmt: skip
    return Task(
        task_id, requester_id, timeout_s, bool(expects_completion), bool(notify_parent), bool(has_cleanup), seq,
        _PHASES[phase], REASONS[reason], detail, generation, _OUTCOMES[outcome], error, result, fallback,
        _DELIVERIES[delivery], REASONS[delivery_reason], attempts, _PLANS[plan], plan_round, wake_at,
        deadline_at, clock_left_s, started_at, ended_at, bool(stays),
    )  # fmt: skip


def to_row(task: Task) -> Row:
    """In the order of COLUMNS, which is that of the fields."""
    return (
        task.id, task.requester_id, task.timeout_s, int(task.expects_completion), int(task.notify_parent),
        int(task.has_cleanup), *task[_CONTRACT:],
    )  # fmt: skip


def update(before: Task, task: Task, evidence: str | None) -> tuple[str, Row]:
    """Only what is new: most of a row stays as it is, and with it most of its indexes."""
    is_new = list(map(is_not, before, task))
    names, row = tuple(compress(Task._fields, is_new)), list(compress(task, is_new))
    if task.result is not before.result:
        names, row = (*names, "result_sha"), [*row, result_sha(task)]
    if evidence is not None:
        names, row = (*names, "evidence"), [*row, evidence]
    return _update_text(names), (*row, task.id)


@cache  # a handful: one for every way a step can change a task
def _update_text(names: tuple[str, ...]) -> str:
    return f"UPDATE tasks SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?"  # noqa: S608 (our own names)


def insert_events(lines: ManyRows) -> Tx[None]:
    yield INSERT_EVENT, lines


def insert_children(rows: ManyRows) -> Tx[None]:
    yield (
        f"INSERT INTO tasks({COLUMNS}, root_id, depth, spawn_order, idem, label, task, spec, created_at)"
        f" VALUES({', '.join('?' * (SIZE + 8))})",
        rows,
    )


def insert_imported(row: Row) -> Tx[None]:
    """Outside of every quota: it took no place here while it worked."""
    yield (
        f"INSERT INTO tasks({COLUMNS}, root_id, depth, spawn_order, idem, label, task, spec, created_at,"
        f" result_sha, evidence, retained) VALUES({', '.join('?' * (SIZE + 10))}, 0)",
        row,
    )


#: Columns that are also set without a step of the life cycle: `/focus`, for example, sets `notify_parent`.
Column: TypeAlias = Literal["notify_parent", "retained", "value", "wake_at", "deadline_at", "checks"]


def set_column(task_id: int, column: Column, value: str | float | None) -> Tx[None]:
    yield f"UPDATE tasks SET {column} = ? WHERE id = ?", (value, task_id)  # noqa: S608


def evict(requester_id: int, count: int) -> Tx[None]:
    """The oldest delivered records leave the quota; their transcripts stay."""
    yield (
        "UPDATE tasks SET retained = 0 WHERE id IN (SELECT id FROM tasks WHERE requester_id = ? AND retained = 1"
        " AND phase = 'completed' ORDER BY ended_at, id LIMIT ?)",
        (requester_id, count),
    )


def archive(now: float, task_id: int) -> Tx[bool]:
    """The record leaves lists and quota. By id everything that was kept of it stays readable.

    False: it was archived before. The caller writes the line of the timeline."""
    rows = yield (
        "UPDATE tasks SET retained = 0, archived_at = ? WHERE id = ? AND archived_at IS NULL RETURNING id",
        (now, task_id),
    )
    return bool(rows)


def archive_all(now: float, task_ids: Sequence[int]) -> Tx[None]:
    """The same for tasks that are known not to be archived."""
    yield "UPDATE tasks SET archived_at = ?, retained = 0 WHERE id {any}", (now, list(task_ids))


def restore(task_id: int) -> Tx[None]:
    """A finished task works again: back into lists and quota, without the value of its last run."""
    yield "UPDATE tasks SET retained = 1, archived_at = NULL, value = NULL WHERE id = ?", (task_id,)


def next_file_version(task_id: int) -> Tx[None]:
    """Its files were removed, or are about to be: what it makes from now on lies in another directory."""
    yield "UPDATE tasks SET shelf = shelf + 1, files = NULL WHERE id = ?", (task_id,)


def set_files(version: FileVersion, files: str | None) -> Tx[None]:
    """The files of an unfinished task; afterwards they are part of its result."""
    yield "UPDATE tasks SET files = ? WHERE id = ? AND shelf = ? AND outcome IS NULL", (files, *version)


def keep_late(now: float, task_id: int, text: str) -> Tx[None]:
    yield "UPDATE tasks SET late_text = ?, late_at = ? WHERE id = ?", (text, now, task_id)


def event_rows(now: float, before: Task, moves: Sequence[Move], actor: str) -> list[Row]:
    return [
        (
            before.id, before.seq + number, now, actor, move.from_phase, move.to_phase,
            move.reason, move.detail, move.generation, move.outcome,
        )
        for number, move in enumerate(moves, start=1)
    ]  # fmt: skip


def result_sha(task: Task) -> str | None:
    return None if task.result is None else hashlib.sha256(task.result.encode()).hexdigest()


# --------------------------------------------------------------------------------------------------
# What a task did, as its ledger and its transcript show it: written down with the outcome, in its transaction.

_WRITES = "name IN ('" + "', '".join(WRITING_TOOLS) + "')"
_LOAD_EVIDENCE = (
    f"SELECT {COLUMNS}, (SELECT COUNT(*) FROM calls c WHERE c.session_id = tasks.id AND c.seq > ?),"  # noqa: S608
    f" (SELECT COUNT(*) FROM calls c WHERE c.session_id = tasks.id AND c.seq > ? AND {_WRITES}),"
    " (SELECT COUNT(*) FROM tasks k WHERE k.requester_id = tasks.id AND k.delivery = 'delivered'),"
    " EXISTS (SELECT 1 FROM push_subscriptions) FROM tasks WHERE id = ? {lock}"
)
#: Answers with calls that write, each with its results.
_WRITTEN_WITH = (
    "SELECT DISTINCT m.seq, m.kind, m.body FROM calls c JOIN messages m ON m.session_id = c.session_id"  # noqa: S608
    f" AND m.seq BETWEEN c.seq AND c.seq + 1 WHERE c.session_id = ? AND c.seq > ? AND c.{_WRITES} ORDER BY m.seq"
)
_STILL_OUT = f"SELECT label FROM tasks WHERE requester_id = ? AND {IS_WORKING} ORDER BY spawn_order, id"  # noqa: S608


class TaskWithEvidence(NamedTuple):
    """`ledger`: what it counts of the work of the task: calls, those that write, results of children."""

    task: Task
    ledger: Row
    has_devices: bool  #: there are devices to notify


def load_evidence(session: SessionRow) -> Tx[TaskWithEvidence]:
    """The task is locked. Whether there are devices is read with it: most gateways have none, and an end of a task
    costs them no statement more."""
    rows = yield _LOAD_EVIDENCE, (session.base, session.base, session.id)
    *ledger, has_devices = rows[0][SIZE:]
    return TaskWithEvidence(from_row(rows[0][:SIZE]), tuple(ledger), bool(has_devices))


def gather(session: SessionRow, task: Task, event: ev.Event, ledger: Row) -> Tx[str]:
    """The ledger came with the task; the rest is read where there is any."""
    calls, writes, joined = ledger
    files: tuple[str, ...] = ()
    if writes:
        rows = yield _WRITTEN_WITH, (session.id, session.base)
        files = files_touched([messages.load(kind, body) for _, kind, body in rows])
    missing: Sequence[Row] = ()
    # A run that ends in order has the results of all its children, and a leaf has none.
    if session.role != Role.LEAF and not isinstance(event, ev.Ended):
        missing = yield _STILL_OUT, (session.id,)
    labels = tuple(row[0] for row in missing)
    return Evidence(calls, files, joined, labels, stop_reason(task)).to_text(task.generation)


_LOAD_ONE = f"SELECT {COLUMNS} FROM tasks WHERE id = ? {{lock}}"  # noqa: S608 (constant columns)
_LOAD = f"SELECT {COLUMNS} FROM tasks WHERE id {{any}} ORDER BY id {{lock}}"  # noqa: S608 (as above)
#: What can fix the outcome. With these the task is loaded with what the ledger knows of its work.
_ENDING = (ev.Ended, ev.Failed, ev.Killed, ev.Woke, ev.Decided)
SUPERSEDED = "superseded"  #: a run that is stopped for a new instruction: its tools get a moment


def load_one(task_id: int) -> Tx[Task]:
    """Locked: a task row is also written by the run that takes or answers its letter."""
    rows = yield _LOAD_ONE, (task_id,)
    return from_row(rows[0])


def load(task_ids: Sequence[int]) -> Tx[list[Task]]:
    """Locked, as above."""
    rows = yield _LOAD, (list(task_ids),)
    return [from_row(row) for row in rows]


def record(
    now: float, policy: Policy, session: SessionRow, event: ev.Event, actor: str = "clutch"
) -> Tx[Task]:
    """The session's own task. Effects change the row in memory; the caller saves it."""
    ledger: Row = ()
    has_devices = False
    if isinstance(event, _ENDING):
        task, ledger, has_devices = yield from load_evidence(session)
    else:
        task = yield from load_one(session.id)
    result = step(task, event, policy)
    shown = None
    if ledger and task.outcome is None and result.task.outcome is not None:
        shown = yield from gather(session, result.task, event, ledger)
    yield from _write(now, [(task, result)], actor, shown)
    if has_devices and task.outcome is None and result.task.outcome is not None:
        yield from outbox.all_done(now, result.task)
    for effect in result.effects:
        yield from _apply(now, policy, session, result.task, effect)
    if session.paused and result.task.phase is Phase.QUEUED and task.phase is not Phase.QUEUED:
        # Nothing claims a paused session, so no run would come to the step at which it pauses.
        return (yield from record(now, policy, session, ev.Paused(now)))
    return result.task


def note_all(
    now: float, policy: Policy, task_ids: Sequence[int], said: ev.Noted, actor: str = "clutch"
) -> Tx[None]:
    """Write one line into the timeline of each of these tasks. None of them moves."""
    loaded = yield from load(task_ids)
    yield from _write(now, [(task, step(task, said, policy)) for task in loaded], actor)


def record_senders(
    now: float, policy: Policy, events: Mapping[int, ev.Event], actor: str = "clutch"
) -> Tx[list[Task]]:
    """Tasks whose result waits for delivery: reading, answering or refusing their letter moves them on."""
    if not events:
        return []
    loaded = yield from load(sorted(events))
    results = [(task, step(task, events[task.id], policy)) for task in loaded]
    yield from _write(now, results, actor)
    given_up: dict[int, str] = {}
    traces: dict[int, fx.Trace] = {}
    for _, result in results:
        for effect in result.effects:
            match effect:
                case fx.NotifyUser(reason):
                    given_up[result.task.id] = reason
                case fx.Trace():
                    traces[result.task.id] = effect
                case _:
                    yield from _apply_to_letter(now, result.task, effect)
    if given_up:
        yield from outbox.tell_given_up(now, given_up)
    if traces:
        yield from inbox.decided(now, traces)
    return [result.task for _, result in results]


def _write(
    now: float, results: Sequence[tuple[Task, Transition]], actor: str, shown: str | None = None
) -> Tx[None]:
    updates: dict[str, ManyRows] = {}
    lines = ManyRows()
    for before, (task, moves, _) in results:
        if task is not before:
            sql, row = update(before, task, shown)
            updates.setdefault(sql, ManyRows()).append(row)
            lines += event_rows(now, before, moves, actor)
    for sql, rows in updates.items():
        yield sql, rows
    if lines:
        yield INSERT_EVENT, lines


def _apply(now: float, policy: Policy, session: SessionRow, task: Task, effect: fx.Effect) -> Tx[None]:
    match effect:
        case fx.Announce(generation, silent):
            yield from inbox.announce(now, session, task.requester_id, generation, silent=silent)
        case fx.AskApproval(generation):
            yield from inbox.void_notes(session.id)
            if task.notify_parent:
                yield from inbox.ask_approval(now, session, task.requester_id, generation)
            yield from outbox.attention_required(
                now, policy, session.id, "plan", f"plan:{generation}:{task.plan_round}"
            )
        case fx.Stop(reason):
            yield from stop(now, policy, session, reason)
        case fx.Hold():
            session.hold, session.hold_until = 1, None
            yield from inbox.void_notes(session.id)
        case fx.Close():
            if session.owner is not None:  # claimed for a letter, not begun yet: it must not begin any more
                yield from stop(now, policy, session, "closed")
            session.closed, session.hold, session.hold_until, session.paused = 1, 0, None, 0
            yield from inbox.unsee(session)
        case fx.Unbind():
            if session.bound:
                yield from sessions.unbind(session)
        case fx.Stay():
            session.hold, session.hold_until = 0, None
        case fx.Open(keep_transcript):
            session.closed = 0
            if not keep_transcript:
                session.base = session.head
                yield from inbox.leave_transcript(session.id)
        case fx.WrapUp(left_s):
            key = f"wrap-up:{session.id}:{task.generation}:{task.deadline_at}"
            yield from inbox.post(now, session.id, key, LetterKind.NOTE, wrap_up_note(left_s))
        case fx.KillChildren(reason):
            yield from kill_below(now, policy, session.id, reason)
        case fx.Unmake():
            raise AssertionError(f"a spawn is undone alone, with its requester locked (task {task.id})")
        case fx.Schedule():
            pass  # saving an unowned session computes its due time anyway
        case fx.NotifyUser(reason):
            yield from outbox.tell_given_up(now, {task.id: reason})
        case fx.Trace():
            yield from inbox.decided(now, {task.id: effect})
        case fx.GiveBack() | fx.Bury() | fx.Redrive() | fx.Cleanup() | fx.NotifyEnded():
            yield from _apply_to_letter(now, task, effect)
        case _:
            assert_never(effect)


def _apply_to_letter(now: float, task: Task, effect: fx.Effect) -> Tx[None]:
    """Effects that need no session: they change the task's own letter, wherever it lies."""
    match effect:
        case fx.GiveBack(generation, ready_at):
            yield from inbox.give_back(task.id, generation, ready_at)
        case fx.Bury(generation):
            yield from inbox.bury(task.id, generation)
        case fx.Redrive(generation):
            yield from inbox.redrive(now, task.id, generation)
        case fx.Cleanup():
            yield HINT, ("clean", task.id)
        case fx.NotifyEnded(reason):
            yield from outbox.ended(now, task, reason)
        case _:
            raise AssertionError(f"{effect} is not about a letter (task {task.id})")


def stop(now: float, policy: Policy, session: SessionRow, reason: str) -> Tx[None]:
    """Break the owner's fence and end its run; letters it took and did not answer go back."""
    yield from transcript.redact_open(session)
    yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
    yield from runs.end_open(now, session.id, reason)
    yield from inbox.give_back_taken(session.id)
    yield from inbox.void_notes(session.id)
    yield from questions.void_of(now, session.id)
    if session.run_id is not None:
        session.run_id, session.idle_at = None, now
    session.owner = None
    session.fence += 1
    yield HINT, ("supersede" if reason == SUPERSEDED else "stop", session.id, session.fence)


#: Entries that outlive the others: what is counted of a task (its restarts), and why others may be missing before them.
_KEPT_REASONS: Final = ", ".join(
    f"'{reason}'"
    for reason in (
        Reason.RESUMED, Reason.RETRY, Reason.CONTINUE, Reason.RESTARTED, Reason.ARCHIVED, Reason.DELETED,
    )
)  # fmt: skip
#: Of an event `e` of a task `t`. The last entry stays, too: it says where the row stands.
IS_TRIMMABLE: Final = f"e.seq < t.seq AND e.reason NOT IN ({_KEPT_REASONS})"


def trim(task_ids: Sequence[int], count_max: int) -> Tx[None]:
    """Delete the oldest entries of these timelines, by key: PostgreSQL would read the whole table for a subquery."""
    rows = yield (
        "SELECT e.task_id, e.seq FROM events e JOIN tasks t ON t.id = e.task_id"  # noqa: S608 (constant words)
        f" WHERE e.task_id {{any}} AND {IS_TRIMMABLE} ORDER BY e.task_id, e.seq LIMIT ?",
        (list(task_ids), count_max),
    )
    last = {row[0]: row[1] for row in rows}
    yield (
        f"DELETE FROM events WHERE task_id = ? AND seq <= ? AND reason NOT IN ({_KEPT_REASONS})",  # noqa: S608
        ManyRows(last.items()),
    )


def unmake(now: float, task_id: int, why: str) -> Tx[None]:
    """Undo a spawn. One line of the timeline stays, which says why there is no such task."""
    yield from sessions.delete(task_id)
    yield "DELETE FROM tasks WHERE id = ?", (task_id,)
    yield "DELETE FROM events WHERE task_id = ?", (task_id,)
    yield from transcript.delete(task_id)
    yield from usage.close_budget(f"task:{task_id}")
    yield (
        INSERT_EVENT,
        (task_id, 1, now, "clutch", Phase.SPAWNING, Phase.SPAWNING, Reason.SPAWN_FAILED, why[:200], 1, None),
    )


# ---- a whole subtree ---------------------------------------------------------------------------------


def kill_below(
    now: float, policy: Policy, session_id: int, reason: str, actor: str = "clutch"
) -> Tx[list[int]]:
    """End every task below the session that has not ended. Alone: it writes many sessions, top-down."""
    below = yield from sessions.lock_below(session_id)
    yield from skip_letters(now, policy, [session.id for session in below], [], actor)
    return (yield from kill_all(now, policy, below, reason, actor))


def kill_all(
    now: float, policy: Policy, dying: Sequence[SessionRow], reason: str, actor: str
) -> Tx[list[int]]:
    """Locked sessions, ancestors first. Those that had not ended are returned."""
    stopped = [int(session.id) for session in dying if not session.closed]
    for session in dying:
        task = yield from record(now, policy, session, ev.Killed(now, reason), actor)
        if not session.closed:
            raise AssertionError(f"session {session.id} survived a kill in phase {task.phase}")
        yield from sessions.save(now, policy, session)
    return stopped


def skip_letters(
    now: float, policy: Policy, readers: Sequence[int], senders: Sequence[int], actor: str, *, stays: int = 0
) -> Tx[None]:
    """A kill: the letters of its readers and senders are void, and the results among them are skipped.

    `stays`: the reader that lives on (`inbox.void_killed`)."""
    rows = yield from inbox.void_killed(readers, senders, stays)
    for reader in sorted({row[-1] for row in rows}.difference(readers)):
        yield HINT, ("mail", reader)
    yield from _skip(now, policy, [row[:-1] for row in rows], actor)


def skip_read(now: float, policy: Policy, session_id: int, actor: str) -> Tx[None]:
    """Results that a stopped session has read and will not answer are skipped."""
    yield from _skip(now, policy, (yield from inbox.void_read(session_id)), actor)


def _skip(now: float, policy: Policy, rows: Sequence[Row], actor: str) -> Tx[None]:
    """The newest letter of a task counts: an older one was overtaken when it began to work again."""
    skipped: dict[int, ev.Event] = {
        task_id: ev.RequesterKilled(now, generation)
        for task_id, kind, silent, generation in sorted(rows, key=lambda row: row[3] or 0)
        if kind == "announce" and not silent
    }
    yield from record_senders(now, policy, skipped, actor)
