"""One way to change a task: load, step, save, write the timeline, do the effects. In the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from clutch.core import effects as fx
from clutch.core import events as ev
from clutch.core.lifecycle import Step, step
from clutch.core.model import LetterKind, Phase, Task
from clutch.core.policy import Policy
from clutch.core.wording import wrap_up_note
from clutch.protocol import bindings, evidence, hooks, letters, outbox, sessions, task_rows, trace, usage
from clutch.protocol.redacting import redact_open
from clutch.protocol.sessions import SessionRow
from clutch.protocol.usage import Fate
from clutch.store.door import HINT, Many, Row, Tx

_LOAD_ONE = f"SELECT {task_rows.COLUMNS} FROM tasks WHERE id = ? {{lock}}"  # noqa: S608 (constant columns)
_LOAD = f"SELECT {task_rows.COLUMNS} FROM tasks WHERE id {{any}} ORDER BY id {{lock}}"  # noqa: S608 (as above)
#: What can fix the outcome. With these the task is loaded with what the ledger knows of its work.
_ENDING = (ev.Ended, ev.Failed, ev.Killed, ev.Woke, ev.Decided)
SUPERSEDED = "superseded"  #: a run that is stopped for a new instruction: its tools get a moment


def load_one(task_id: int) -> Tx[Task]:
    """Locked: a task row is also written by whoever takes or answers its letter."""
    rows = yield _LOAD_ONE, (task_id,)
    return task_rows.from_row(rows[0])


def load(task_ids: Sequence[int]) -> Tx[list[Task]]:
    """Locked, as above."""
    rows = yield _LOAD, (list(task_ids),)
    return [task_rows.from_row(row) for row in rows]


def record(
    now: float, policy: Policy, session: SessionRow, event: ev.Event, actor: str = "clutch"
) -> Tx[Task]:
    """The session's own task. Effects change the row in memory; the caller saves it."""
    ledger: Row = ()
    if isinstance(event, _ENDING):
        task, ledger = yield from evidence.load(session)
    else:
        task = yield from load_one(session.id)
    result = step(task, event, policy)
    shown = None
    if ledger and task.outcome is None and result.task.outcome is not None:
        shown = yield from evidence.gather(session, result.task, event, *ledger)
    yield from _write(now, [(task, result)], actor, shown)
    for effect in result.effects:
        yield from _apply(now, policy, session, result.task, effect)
    return result.task


def record_senders(
    now: float, policy: Policy, events: Mapping[int, ev.Event], actor: str = "clutch"
) -> Tx[list[Task]]:
    """Tasks that wait to be told: whoever reads, answers or refuses their letter moves them on."""
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
                case fx.TellPerson(reason):
                    given_up[result.task.id] = reason
                case fx.Trace():
                    traces[result.task.id] = effect
                case _:
                    yield from _apply_to_letter(now, result.task, effect)
    if given_up:
        yield from outbox.tell_given_up(now, given_up)
    if traces:
        yield from trace.decided(now, traces)
    return [result.task for _, result in results]


def _write(
    now: float, results: Sequence[tuple[Task, Step]], actor: str, shown: str | None = None
) -> Tx[None]:
    updates: dict[str, Many] = {}
    lines = Many()
    for before, (task, moves, _) in results:
        if task is not before:
            sql, row = task_rows.update(before, task, shown)
            updates.setdefault(sql, Many()).append(row)
            lines += task_rows.event_rows(now, before, moves, actor)
    for sql, rows in updates.items():
        yield sql, rows
    if lines:
        yield task_rows.INSERT_EVENT, lines


def _apply(now: float, policy: Policy, session: SessionRow, task: Task, effect: fx.Effect) -> Tx[None]:
    match effect:
        case fx.Announce(generation, silent):
            yield from letters.announce(now, session, task.requester_id, generation, silent=silent)
        case fx.AskApproval(generation):
            yield from forget_notes(session.id)
            yield from letters.ask_approval(now, session, task.requester_id, generation)
            yield from hooks.needs_me(now, policy, session.id, "plan", f"plan:{generation}:{task.plan_round}")
        case fx.Stop(reason):
            yield from stop(now, policy, session, reason)
        case fx.Hold():
            session.hold, session.hold_until = 1, None
            yield from forget_notes(session.id)
        case fx.Close():
            if session.owner is not None:  # claimed for a letter, not begun yet: it must not begin any more
                yield from stop(now, policy, session, "closed")
            session.closed, session.hold, session.hold_until, session.paused = 1, 0, None, 0
            yield from letters.unsee(session)
        case fx.Unbind():
            if session.bound:
                yield from bindings.unbind(session)
        case fx.Stay():
            session.hold, session.hold_until = 0, None
        case fx.Open(keep_transcript):
            session.closed = 0
            if not keep_transcript:
                session.base = session.head
                # What was read and not answered stands before the new beginning: it must be read again.
                yield "UPDATE inbox SET taken_seq = NULL WHERE session_id = ? AND state = 0", (session.id,)
        case fx.WrapUp(left_s):
            key = f"wrap-up:{session.id}:{task.generation}:{task.deadline_at}"
            yield from letters.post(now, session.id, key, LetterKind.NOTE, wrap_up_note(left_s))
        case fx.KillChildren(reason):
            yield from kill_below(now, policy, session.id, reason)
        case fx.Unmake():
            raise AssertionError(f"a spawn is undone alone, with its requester locked (task {task.id})")
        case fx.Schedule():
            pass  # whoever saves an unowned session computes its due time anyway
        case fx.TellPerson(reason):
            yield from outbox.tell_given_up(now, {task.id: reason})
        case fx.Trace():
            yield from trace.decided(now, {task.id: effect})
        case fx.GiveBack() | fx.Bury() | fx.Redrive() | fx.Cleanup() | fx.TellEnded():
            yield from _apply_to_letter(now, task, effect)
        case _:
            assert_never(effect)


def _apply_to_letter(now: float, task: Task, effect: fx.Effect) -> Tx[None]:
    """Effects that need no session: they change the task's own letter, wherever it lies."""
    match effect:
        case fx.GiveBack(generation, ready_at):
            yield from letters.give_back(task.id, generation, ready_at)
        case fx.Bury(generation):
            yield from letters.bury(task.id, generation)
        case fx.Redrive(generation):
            yield from letters.redrive(now, task.id, generation)
        case fx.Cleanup():
            yield HINT, ("clean", task.id)
        case fx.TellEnded(reason):
            yield from hooks.ended(now, task, reason)
        case _:
            raise AssertionError(f"{effect} is not about a letter (task {task.id})")


def stop(now: float, policy: Policy, session: SessionRow, reason: str) -> Tx[None]:
    """Break the owner's fence and end its run; what it took and nobody answered goes back."""
    yield from redact_open(session)
    yield from usage.give_up(now, policy, session, Fate.UNKNOWN)
    yield (
        "UPDATE runs SET ended_at = ?, stop_reason = ? WHERE session_id = ? AND ended_at IS NULL",
        (now, reason, session.id),
    )
    yield (
        "UPDATE inbox SET taken_run = NULL WHERE session_id = ? AND state = 0 AND taken_run IS NOT NULL",
        (session.id,),
    )
    yield from forget_notes(session.id)
    yield (
        "UPDATE questions SET answered_at = ?, decision = 'void', answer = '' WHERE session_id = ?"
        " AND answered_at IS NULL",
        (now, session.id),
    )
    if session.run_id is not None:
        session.run_id, session.idle_at = None, now
    session.owner = None
    session.fence += 1
    yield HINT, ("supersede" if reason == SUPERSEDED else "stop", session.id, session.fence)


def unmake(now: float, task_id: int, why: str) -> Tx[None]:
    """A spawn that did not come about. One line stays, so that people can see why there is no such task."""
    for table, column in (
        ("sessions", "id"),
        ("tasks", "id"),
        ("events", "task_id"),
        ("messages", "session_id"),
    ):
        yield f"DELETE FROM {table} WHERE {column} = ?", (task_id,)  # noqa: S608 (constant words)
    yield "DELETE FROM purses WHERE name = ?", (f"task:{task_id}",)
    yield (
        task_rows.INSERT_EVENT,
        (task_id, 1, now, "clutch", Phase.SPAWNING, Phase.SPAWNING, f"spawn-failed: {why[:200]}", 1, None),
    )


def forget_notes(session_id: int) -> Tx[None]:
    """A wrap-up is about the clock of one run; the next one has its own."""
    yield "UPDATE inbox SET state = 3 WHERE session_id = ? AND state = 0 AND kind = 'note'", (session_id,)


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
    now: float, policy: Policy, readers: Sequence[int], senders: Sequence[int], actor: str, stays: int = 0
) -> Tx[None]:
    """What lies with dying readers, and what the senders' letters still wait to tell to anybody else.

    `stays`: the reader that lives on. What somebody wrote to it and it has not read is not part of what ends."""
    rows = yield (
        # Whoever lives on may be due for what is void now: the mailman looks at it again.
        "UPDATE inbox SET state = 3, seen = CASE WHEN session_id {any} THEN seen ELSE 0 END WHERE state = 0"
        " AND (session_id {any} OR (task_id {any} AND taken_seq IS NULL))"
        " AND NOT (session_id = ? AND taken_seq IS NULL AND kind IN ('user', 'instruction', 'peer'))"
        " RETURNING task_id, kind, silent, generation, session_id",
        (list(readers), list(readers), list(senders), stays),
    )
    for reader in sorted({row[-1] for row in rows}.difference(readers)):
        yield HINT, ("mail", reader)
    yield from _skip(now, policy, [row[:-1] for row in rows], actor)


def skip_read(now: float, policy: Policy, session_id: int, actor: str) -> Tx[None]:
    """What a session has read and will not answer."""
    rows = yield (
        "UPDATE inbox SET state = 3 WHERE state = 0 AND session_id = ? AND taken_seq IS NOT NULL"
        " RETURNING task_id, kind, silent, generation",
        (session_id,),
    )
    yield from _skip(now, policy, rows, actor)


def _skip(now: float, policy: Policy, rows: Sequence[Row], actor: str) -> Tx[None]:
    """The newest letter of a task counts: an older one was overtaken when it began to work again."""
    skipped: dict[int, ev.Event] = {
        task_id: ev.RequesterKilled(now, generation)
        for task_id, kind, silent, generation in sorted(rows, key=lambda row: row[3] or 0)
        if kind == "announce" and not silent
    }
    yield from record_senders(now, policy, skipped, actor)
