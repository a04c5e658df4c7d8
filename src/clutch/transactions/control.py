"""Actions on tasks. Each first checks that the task exists and that its state allows this: refusals write nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from clutch.core import attachments, authority, ids, run
from clutch.core import events as ev
from clutch.core.lifecycle import step
from clutch.core.model import (
    FINISHED,
    Delivery,
    LetterKind,
    Outcome,
    Phase,
    Reason,
    RemovalReason,
    Task,
    Workspace,
    reason_text,
)
from clutch.core.policy import Policy
from clutch.core.spawn import SpawnRefusal, SpawnRequest, admit
from clutch.core.text import prompts
from clutch.errors import ClutchError, NotFound
from clutch.store.transaction import HINT, Tx
from clutch.transactions import inbox, outbox, runs, sessions, spawn, tasks, wake
from clutch.transactions.conditions import IS_DEAD, IS_OPEN
from clutch.transactions.sessions import ParentRow, SessionRow


class NotPossible(ClutchError):
    """The task is not in a state in which this can be done."""


class AlreadyFinished(NotPossible):
    """The task has finished; this is for one that works."""


class UnknownTask(NotFound):
    """There is no such task."""


class PlanChanged(ClutchError):
    """The plan is not the one that was shown."""


def locked(task_id: int) -> Tx[tuple[SessionRow, Task]]:
    session = yield from sessions.lock(task_id)
    if session is None or not session.is_task:
        raise UnknownTask(f"there is no task {ids.task_id(task_id)}")
    (task,) = yield from tasks.load([task_id])
    return session, task


def subtree(task_id: int) -> Tx[list[SessionRow]]:
    session, _ = yield from locked(task_id)
    return [session, *(yield from sessions.lock_below(task_id))]


def must_move(task: Task, event: ev.Event, policy: Policy, otherwise: str) -> None:
    """What is possible is asked of the state machine itself."""
    if not step(task, event, policy).moves:
        raise refusal(task, otherwise)


def refusal(task: Task, otherwise: str) -> NotPossible:
    kind = AlreadyFinished if task.phase in FINISHED else NotPossible
    return kind(
        f"{ids.task_id(task.id)} is {task.phase} ({reason_text(task.reason, task.detail)}): {otherwise}"
    )


def lock_above(task_id: int) -> Tx[tuple[ParentRow | None, str]]:
    """The requester, locked before the task's own session, and the words of the task."""
    rows = yield "SELECT requester_id, root_id, task FROM tasks WHERE id = ?", (task_id,)
    if not rows:
        raise UnknownTask(f"there is no task {ids.task_id(task_id)}")
    requester_id, root_id, words = rows[0]
    if root_id != requester_id:
        yield from sessions.lock(root_id)
    return (yield from sessions.lock_parent(requester_id)), words


def must_have_reader(requester: ParentRow | None, what: str) -> Tx[None]:
    """A new result goes to the parent, or, if that has finished, to the nearest session above that is open.

    Raises NotPossible below a killed task, where nothing may work, and where no session above is open."""
    above = None if requester is None else requester.id
    while above is not None:
        rows = yield (
            "SELECT s.closed, s.parent_id, t.outcome, s.key FROM sessions s LEFT JOIN tasks t ON t.id = s.id"
            " WHERE s.id = ?",
            (above,),
        )
        if not rows:
            return
        closed, parent_id, outcome, key = rows[0]
        if outcome == Outcome.KILLED:
            name = ids.task_id(above)
            raise NotPossible(
                f"{what} is refused: {name} above it was killed; retry or continue {name} first"
            )
        if not closed:
            return
        if parent_id is None:
            raise NotPossible(
                f"{what} is refused: its result would have no reader, {key} is archived; open it first"
            )
        above = parent_id


def must_fit(
    policy: Policy, requester: ParentRow | None, words: str, what: str, *, is_known: bool = False
) -> Tx[None]:
    """A task that starts to work again is admitted like a new child. Its parent may be closed by now.

    `is_known`: its record is still kept, so only the counts of those at work can refuse it."""
    if requester is None:
        return
    counted = yield from spawn.count(requester, policy.limits, frozenset({requester.agent_id}), [])
    counted = replace(counted, is_closed=False)
    if is_known:
        counted = replace(counted, retained=0, undelivered=0)
    verdict = admit(SpawnRequest(words, agent_id=requester.agent_id), counted, policy.limits)
    if isinstance(verdict, SpawnRefusal):
        raise NotPossible(f"{what} is refused: {verdict.error}")
    if verdict.evict:
        yield from tasks.evict(requester.id, verdict.evict)


def record_or_note(
    now: float, policy: Policy, session: SessionRow, event: ev.Event, reason: Reason, *, actor: str
) -> Tx[Task]:
    """An act that moves nothing leaves its line all the same. The line has a reason, because the timeline alone must
    tell from when on a session was paused."""
    task = yield from tasks.load_one(session.id)
    said = event if step(task, event, policy).moves else ev.Noted(event.at, "", reason)
    return (yield from tasks.record(now, policy, session, said, actor))


def plainly(
    now: float, policy: Policy, task_id: int, event: ev.Event, otherwise: str, *, actor: str
) -> Tx[Task]:
    session, task = yield from locked(task_id)
    must_move(task, event, policy, otherwise)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield HINT, ("task", task_id)
    return changed


# --------------------------------------------------------------------------------------------------
# What may become of a finished task: a new run, another try to tell it, or out of the lists.

CLEANING = "what it left is being removed; try again in a moment"


def again(
    now: float, policy: Policy, task_id: int, how: str, idem: str, *, text: str, actor: str
) -> Tx[Task]:
    """`retry` (empty transcript) or `continue`: a task that has ended gets a new run, admitted like a spawn.

    A letter of the old one that was not taken is void (`delivery`); one that was taken is delivered,
    and so is the new one."""
    requester, words = yield from lock_above(task_id)
    session, task = yield from locked(task_id)
    if (yield "SELECT 1 FROM inbox WHERE idem = ?", (idem,)):
        return task
    event = ev.Again(now, Reason(how), is_being_read=(yield from _is_being_read(task)))
    must_move(task, event, policy, _why_not(task))
    is_stripped = yield from _stripped(task)
    yield from must_have_reader(requester, f"{how} of {ids.task_id(task_id)}")
    yield from tasks.set_column(task_id, "retained", 0)  # it makes room for itself
    yield from must_fit(policy, requester, words, f"{how} of {ids.task_id(task_id)}")
    yield from tasks.restore(task_id)
    if is_stripped:
        yield from tasks.next_file_version(task_id)
    if how == "retry":
        is_retained = policy.limits.attachments.retain_on_keep or task.phase not in FINISHED
        has_files = is_retained and not is_stripped
        first = yield from _first_message(session, text or words, has_files=has_files)
        yield from inbox.post(now, session.id, idem, LetterKind.TASK, first)
    else:
        yield from inbox.post(now, session.id, idem, LetterKind.INSTRUCTION, text or words)
    changed = yield from tasks.record(now, policy, session, event, actor)
    yield from sessions.save(now, policy, session)
    return changed


def _is_being_read(task: Task) -> Tx[bool]:
    """Whether a turn of the parent shows this result to its model: the turn that took it, or any turn that runs after
    a failed one has left it in the transcript."""
    rows = yield (
        f"SELECT 1 FROM inbox i WHERE i.task_id = ? AND i.generation = ? AND i.kind = ? AND ((i.{IS_OPEN}"  # noqa: S608
        f" AND i.taken_run IS NOT NULL) OR ((i.{IS_OPEN} OR i.{IS_DEAD}) AND i.taken_seq IS NOT NULL AND EXISTS"
        " (SELECT 1 FROM runs r WHERE r.session_id = i.session_id AND r.ended_at IS NULL)))",
        (task.id, task.generation, LetterKind.ANNOUNCE.value),
    )
    return bool(rows)


def _why_not(task: Task) -> str:
    match task.phase:
        case Phase.CLEANUP_PENDING | Phase.COMPLETED | Phase.COMPLETED_GIVEUP:
            return CLEANING
        case Phase.AWAITING_APPROVAL:
            return "its plan waits; use `approve` or `reject`"
        case _:
            return "it has not ended; use `steer`"


def _stripped(task: Task) -> Tx[bool]:
    """Whether its files were to go. Raises NotPossible when too much of it is gone to work again at all."""
    rows = yield (
        "SELECT t.spec, t.archived_at, s.deleted_at, s.workspace FROM tasks t JOIN sessions s ON s.id = t.id"
        " WHERE t.id = ?",
        (task.id,),
    )
    spec, archived_at, deleted_at, workspace = rows[0]
    is_begun = task.started_at is not None
    if deleted_at is not None:
        raise NotPossible(f"the session of {ids.task_id(task.id)} was deleted: spawn a new task")
    # Older rows do not say what was asked for; a directory of its own is named after its task.
    had_own = json.loads(spec).get("workspace") == Workspace.ISOLATED or (
        workspace is not None and PurePath(workspace).name == str(task.id)
    )
    if not is_begun and had_own:
        raise NotPossible(f"{ids.task_id(task.id)} never began, its own workspace is gone: spawn a new task")
    return attachments.is_stripped(
        outcome=task.outcome, is_begun=is_begun, is_archived=archived_at is not None
    )


def _first_message(session: SessionRow, words: str, *, has_files: bool) -> Tx[str]:
    """As when it was created. `has_files`: those given with it did not go with its last end."""
    rows = yield (
        "SELECT t.spec, s.rights FROM tasks t JOIN sessions s ON s.id = t.id WHERE t.id = ?",
        (session.id,),
    )
    spec, rights = rows[0]
    names = [name for name, *_ in json.loads(spec).get("attachments", ())] if has_files else []
    return prompts.first_message(words, session.depth, authority.from_text(rights).depth_max, names)


def redeliver(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    return (
        yield from plainly(now, policy, task_id, ev.Redelivered(now), "it is not a dead letter", actor=actor)
    )


def dismiss(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    return (
        yield from plainly(now, policy, task_id, ev.Dismissed(now), "it is not a dead letter", actor=actor)
    )


def remove(now: float, policy: Policy, task_id: int, actor: str) -> Tx[Task]:
    """Archived at once, out of the quota of its requester. Its transcript stays; a second remove changes nothing."""
    session, task = yield from locked(task_id)
    if task.outcome is None:
        raise refusal(task, "only a finished task can be archived; use `kill` first")
    if task.phase not in FINISHED:
        raise refusal(task, "possible once its result is delivered and the task is completed")
    if task.delivery is Delivery.UNDELIVERED:
        raise NotPossible(
            f"the result of {ids.task_id(task_id)} was not delivered: use `redeliver` or `dismiss` first"
        )
    if task.stays:
        raise refusal(task, "its session stays for follow-ups; use `kill` first")
    if not (yield from tasks.archive(now, task_id)):
        return task
    rows = yield "SELECT workspace FROM sessions WHERE id = ?", (task_id,)
    yield from outbox.removed(now, policy, task_id, session.key, RemovalReason.REMOVED, workspace=rows[0][0])
    return (yield from tasks.record(now, policy, session, ev.Noted(now, reason=Reason.ARCHIVED), actor))


# --------------------------------------------------------------------------------------------------
# Kill and stop: what works below is ended in one commit, and nothing can be spawned after it.


@dataclass(frozen=True, slots=True)
class Held:
    """It was in a turn when it was killed: with whom, and under which fence."""

    task_id: int
    worker_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class KillReport:
    """`still_stopping`: killed, but a turn still runs, and why. `not_stopped`: the kill could not be saved, and why;
    another kill may succeed."""

    stopped: tuple[int, ...] = ()
    already_finished: tuple[int, ...] = ()
    not_stopped: tuple[tuple[int, str], ...] = ()
    still_stopping: tuple[tuple[int, str], ...] = ()
    held: tuple[Held, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class StopReport:
    """`own_run`: the session itself was in a turn. `stopped`: the tasks below that had not ended."""

    own_run: bool
    stopped: tuple[int, ...]


def kill(
    now: float, policy: Policy, task_id: int, reason: str, actor: str, *, nonce: str | None = None
) -> Tx[KillReport]:
    """The task and everything below it, also below an ended one. Without a nonce the parent is not notified."""
    session, task = yield from locked(task_id)
    below = yield from sessions.lock_below(session.id)
    is_live = bool(step(task, ev.Killed(now, reason), policy).moves)
    dying = [session, *below] if is_live else below
    descendants = [one.id for one in below]
    held = tuple(Held(one.id, one.owner, one.fence) for one in dying if one.owner is not None)
    yield from tasks.skip_letters(now, policy, [one.id for one in dying], descendants, actor)
    stopped = yield from tasks.kill_all(now, policy, dying, reason, actor)
    if is_live and policy.control.announces_kill and nonce is not None:
        yield from inbox.tell(
            now, policy.announcing, session, task._replace(error=reason), task.result, nonce=nonce, late=False
        )
    return KillReport(tuple(stopped), () if is_live else (task_id,), held=held)


def would_stop(now: float, task_ids: Sequence[int]) -> Tx[KillReport]:
    """Return what a kill of these tasks would stop: they and all below them whose session is open. A read."""
    del now
    rows = yield (
        "WITH RECURSIVE below(id) AS (SELECT id FROM sessions WHERE id {any}"
        " UNION SELECT s.id FROM sessions s JOIN below b ON s.parent_id = b.id)"
        " SELECT s.id, s.closed FROM below b JOIN sessions s ON s.id = b.id ORDER BY s.depth, s.id",
        (list(task_ids),),
    )
    open_ids = tuple(int(number) for number, closed in rows if not closed)
    return KillReport(open_ids, tuple(one for one in task_ids if one not in open_ids))


def stop(now: float, policy: Policy, session_id: int, reason: str, actor: str) -> Tx[StopReport]:
    """The session's own run and everything below it. A main session stays, and answers what it had not read yet."""
    session = yield from sessions.lock(session_id)
    if session is None:
        raise NotFound(f"there is no session {session_id}")
    if session.is_task:
        report = yield from kill(now, policy, session_id, reason, actor)
        return StopReport(
            session_id in report.stopped, tuple(one for one in report.stopped if one != session_id)
        )
    stopped = yield from stop_below(now, policy, session_id, reason, actor)
    own_run = yield from fall_silent(now, policy, session)
    return StopReport(own_run, stopped)


def stop_below(now: float, policy: Policy, session_id: int, reason: str, actor: str) -> Tx[tuple[int, ...]]:
    below = yield from sessions.lock_below(session_id)
    numbers = [one.id for one in below]
    yield from tasks.skip_letters(now, policy, [session_id, *numbers], numbers, actor, stays=session_id)
    return tuple((yield from tasks.kill_all(now, policy, below, reason, actor)))


def halt(now: float, policy: Policy, session_id: int, actor: str) -> Tx[bool]:
    """Only the turn of a main session: what it has read and not answered is over. Its children continue."""
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task:
        raise NotFound("there is no such main session")
    if session.run_id is None and session.owner is None:
        return False
    yield from tasks.skip_read(now, policy, session_id, actor)
    yield from tasks.stop(now, policy, session, run.STOPPED)
    yield from sessions.save(now, policy, session)
    yield from wake.put_off(now, policy, session)
    return True


def fall_silent(now: float, policy: Policy, session: SessionRow) -> Tx[bool]:
    """What it had read and not answered is over, and is never taken up again."""
    has_run = session.run_id is not None
    if has_run or session.owner is not None:
        yield from tasks.stop(now, policy, session, run.STOPPED)
    session.hold, session.hold_until = 0, None
    yield from sessions.save(now, policy, session)
    return has_run


# --------------------------------------------------------------------------------------------------
# Pause and resume: a subtree parks at its next boundaries and frees its slots, then resumes.


def pause(now: float, policy: Policy, task_id: int, actor: str) -> Tx[tuple[int, ...]]:
    """The subtree parks at the next boundary of each. A session without an owner is at one already."""
    changed = []
    for session in (yield from subtree(task_id)):
        if session.closed or session.paused:
            continue
        session.paused = 1
        if session.owner is not None:
            yield from tasks.record(now, policy, session, ev.Noted(now, "", Reason.PAUSE), actor)
            yield HINT, ("pause", session.id)  # foreign code has no steps
        else:
            if session.run_id is not None:
                yield from runs.park(session.run_id, now)
            yield from record_or_note(now, policy, session, ev.Paused(now), Reason.PAUSE, actor=actor)
        yield from sessions.save(now, policy, session)
        changed.append(int(session.id))
    return tuple(changed)


def resume(now: float, policy: Policy, task_id: int, actor: str) -> Tx[tuple[int, ...]]:
    changed = []
    for session in (yield from subtree(task_id)):
        if session.paused:
            session.paused = 0
            yield from record_or_note(now, policy, session, ev.Unpaused(now), Reason.UNPAUSED, actor=actor)
            yield from sessions.save(now, policy, session)
            changed.append(int(session.id))
    return tuple(changed)


# --------------------------------------------------------------------------------------------------
# A main session leaves, comes back, begins anew, changes its model, is summarised.


def close_main(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """Archive it: the results of its children wait until it is opened again."""
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task or session.closed:
        return
    yield from tasks.stop(now, policy, session, "closed")
    session.closed, session.hold, session.hold_until = 1, 0, None
    yield from inbox.unsee(session)
    yield from sessions.save(now, policy, session)


def open_main(now: float, policy: Policy, session_id: int) -> Tx[None]:
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task or not session.closed:
        return
    session.closed = 0
    rows = yield (
        f"SELECT task_id FROM inbox WHERE session_id = ? AND {IS_OPEN} AND kind = 'announce' AND silent = 0",  # noqa: S608
        (session_id,),
    )
    back: dict[int, ev.Event] = {row[0]: ev.RequesterBack(now) for row in rows}
    yield from tasks.record_senders(now, policy, back)
    yield from sessions.save(now, policy, session)


def begin_anew(now: float, policy: Policy, session_id: int) -> Tx[None]:
    """`/new`: the talk starts from an empty page; what was said before is kept. Its children continue."""
    session = yield from _main(session_id)
    if session.run_id is not None or session.owner is not None:
        yield from tasks.stop(now, policy, session, "a new talk")
    yield from inbox.close_read(session_id)
    yield from inbox.leave_transcript(session_id)
    session.base = session.head
    yield from sessions.save(now, policy, session)


def use_model(now: float, session_id: int, model: str | None) -> Tx[None]:
    """From its next turn on; None: as configured."""
    del now
    session = yield from _main(session_id)
    yield from sessions.set_column(session.id, "model", model)


def want_summary(now: float, session_id: int) -> Tx[None]:
    """`/compact`: what was said so far is summarised before the next model call."""
    del now
    session = yield from _main(session_id)
    yield from sessions.set_column(session.id, "compact_at", session.head)


def _main(session_id: int) -> Tx[SessionRow]:
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task:
        raise NotFound("there is no such main session")
    return session
