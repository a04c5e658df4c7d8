"""What many transactions of a run write: lines of its transcript, the model call it foresees, its end, its release."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from clutch.core import events as ev
from clutch.core import messages
from clutch.core.messages import Answer, Message
from clutch.core.policy import Policy
from clutch.core.runs import Counters
from clutch.protocol import context, sessions, taking, tasks, usage
from clutch.protocol.sessions import SessionRow, StepRow
from clutch.protocol.usage import Fate
from clutch.store.door import Many, Row, Tx

MESSAGE = "INSERT INTO messages(session_id, seq, run_id, kind, body, at) VALUES(?, ?, ?, ?, ?, ?)"


def line(now: float, session: StepRow, run_id: int, message: Message) -> Row:
    session.head += 1
    return (session.id, session.head, run_id, messages.kind(message), messages.dump(message), now)


def append(now: float, session: StepRow, run_id: int, new: Sequence[Message]) -> Tx[None]:
    if new:
        yield MESSAGE, Many([line(now, session, run_id, message) for message in new])


def say(
    now: float,
    policy: Policy,
    session: StepRow,
    run_id: int,
    answer: Answer,
    is_unanswered: bool,
    usd: Decimal | None,
    events_upto: int = 0,
) -> Tx[None]:
    """`events_upto`: system events that its prompt showed; they are consumed with the answer."""
    yield MESSAGE, line(now, session, run_id, answer)
    yield from usage.settle(now, policy, session, answer, usd)
    if is_unanswered:
        yield from taking.answer(now, policy, session, run_id)
    if events_upto:
        yield from context.consume_events(session.id, run_id, events_upto)


def foresee(now: float, policy: Policy, session: StepRow, run_id: int) -> Tx[None]:
    """With a budget the call must be reserved, which takes a transaction of its own."""
    if not usage.is_budgeted(policy, session.purses):
        yield from usage.foresee(now, session.id, run_id, session.model or policy.model_of(session.agent_id))


def count(run_id: int, counters: Counters) -> Tx[None]:
    yield (
        "UPDATE runs SET crashes = ?, failures = ?, progress_head = ? WHERE id = ?",
        (counters.crashes, counters.failures, counters.progress_head, run_id),
    )


def end_run(now: float, session: SessionRow, run_id: int, reason: str) -> Tx[None]:
    yield "UPDATE runs SET ended_at = ?, stop_reason = ? WHERE id = ?", (now, reason, run_id)
    session.run_id, session.owner, session.idle_at = None, None, now


def release(now: float, policy: Policy, session: SessionRow, parked_until: float | None = None) -> Tx[None]:
    if session.run_id is not None and parked_until is not None:
        # One that was parked already keeps why: it was claimed, and not begun.
        which = (parked_until, session.run_id)
        yield "UPDATE runs SET parked_until = COALESCE(parked_until, ?) WHERE id = ?", which
    session.owner = None
    yield from sessions.save(now, policy, session)


def stay_paused(now: float, policy: Policy, session: SessionRow) -> Tx[None]:
    yield from usage.give_up(now, policy, session, Fate.UNKNOWN)  # of an owner that died
    if session.is_task:
        yield from tasks.record(now, policy, session, ev.Paused(now))
    yield from release(now, policy, session, parked_until=now)
