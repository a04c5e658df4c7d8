"""Kill and stop: what works below is ended in one commit, and nothing can be born after it."""

from __future__ import annotations

from dataclasses import dataclass, field

from clutch.core import events as ev
from clutch.core.lifecycle import step
from clutch.core.policy import Policy
from clutch.errors import NotFound
from clutch.protocol import inbox, news, sessions, tasks
from clutch.protocol.control.state import locked
from clutch.protocol.sessions import SessionRow
from clutch.store.door import Tx


@dataclass(frozen=True, slots=True)
class Held:
    """It was in a turn when it was killed: with whom, and under which fence."""

    task_id: int
    worker_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class KillReport:
    """`not_stopped`: whose end could not be written, and why; another kill may do it."""

    stopped: tuple[int, ...] = ()
    already_finished: tuple[int, ...] = ()
    not_stopped: tuple[tuple[int, str], ...] = ()
    held: tuple[Held, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class StopReport:
    """`own_run`: the session itself was in a turn. `stopped`: the tasks below that had not ended."""

    own_run: bool
    stopped: tuple[int, ...]


def kill(
    now: float, policy: Policy, task_id: int, reason: str, actor: str, nonce: str | None = None
) -> Tx[KillReport]:
    """The task and everything below it, also below an ended one. Without a nonce nobody is told."""
    session, task = yield from locked(task_id)
    below = yield from sessions.lock_below(session.id)
    is_live = bool(step(task, ev.Killed(now, reason), policy).moves)
    dying = [session, *below] if is_live else below
    descendants = [one.id for one in below]
    held = tuple(Held(one.id, one.owner, one.fence) for one in dying if one.owner is not None)
    yield from tasks.skip_letters(now, policy, [one.id for one in dying], descendants, actor)
    stopped = yield from tasks.kill_all(now, policy, dying, reason, actor)
    if is_live and policy.control.announces_kill and nonce is not None:
        yield from news.tell(
            now, policy.announcing, session, task._replace(error=reason), task.result, nonce, late=False
        )
    return KillReport(tuple(stopped), () if is_live else (task_id,), held=held)


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
    below = yield from sessions.lock_below(session_id)
    numbers = [one.id for one in below]
    yield from tasks.skip_letters(now, policy, [session_id, *numbers], numbers, actor, session_id)
    stopped = yield from tasks.kill_all(now, policy, below, reason, actor)
    own_run = yield from _fall_silent(now, policy, session)
    return StopReport(own_run, tuple(stopped))


def halt(now: float, policy: Policy, session_id: int, actor: str) -> Tx[bool]:
    """Only the turn of a main session: what it has read and not answered is over. Its children go on."""
    session = yield from sessions.lock(session_id)
    if session is None or session.is_task:
        raise NotFound("there is no such main session")
    if session.run_id is None and session.owner is None:
        return False
    yield from tasks.skip_read(now, policy, session_id, actor)
    yield from tasks.stop(now, policy, session, "stopped")
    yield from sessions.save(now, policy, session)
    yield from inbox.put_off(now, policy, session)
    return True


def _fall_silent(now: float, policy: Policy, session: SessionRow) -> Tx[bool]:
    """What it had read and not answered is over; nobody takes it up again."""
    has_run = session.run_id is not None
    if has_run or session.owner is not None:
        yield from tasks.stop(now, policy, session, "stopped")
    session.hold, session.hold_until = 0, None
    yield from sessions.save(now, policy, session)
    return has_run
