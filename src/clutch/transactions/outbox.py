"""The outbox: messages to users and hooks. A row is due until a worker claims it, then done, due again, or given up.

What follows from the outcome of a send is in `delivery`.

*Claim* gives a row one owner at a time; a dead owner's rows are due again (`workers.bury`), so sending is at
least once, and by the row's key a channel knows what it has seen already. A row waits unclaimed until its
channel is attached."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from clutch.core import delivery, ids
from clutch.core.delivery import SendOutcome
from clutch.core.devices import DONE_PAUSE_S, PushKind, notification_text
from clutch.core.model import NO_SESSION, Hook, RemovalReason, Task
from clutch.core.policy import Policy
from clutch.core.text import announce
from clutch.core.text.tasks import silence
from clutch.store.transaction import HINT, Tx
from clutch.transactions.inbox import announce_key
from clutch.transactions.sessions import Stale
from clutch.transactions.transcript import Verbatim


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    id: int
    key: str
    channel: str
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
    """The result of a task, as it is. A second try is the same row: by its key a receiver knows that it has it."""
    channel, _, target = route.partition(":")
    key = announce_key(result.session_key, result.generation)
    yield (
        _INSERT
        + "UPDATE SET due = excluded.due, error = NULL WHERE outbox.done_at IS NULL AND outbox.owner IS NULL"
        # What may have been read is never sent again by itself.
        " AND COALESCE(outbox.outcome, '') <> 'unsure'",
        (key, session_id, channel, target, result.text, now, result.task_id, result.generation),
    )
    yield HINT, ("outbox", channel)


def reply(now: float, session_id: int, run_id: int, route: str | None, text: str) -> Tx[None]:
    """The final text of a run, unless it chose to say nothing."""
    if route is None or not text.strip() or silence(text) is not None:
        return
    yield from post(now, session_id, f"reply:{run_id}", route, text)


def tell_given_up(now: float, given_up: Mapping[int, str]) -> Tx[None]:
    """Notify the user where the parent's reply would have gone, in one line. `given_up`: tasks and reasons."""
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
        line = announce.undelivered_line(
            [(label, ids.task_id(one)) for one, _, label in tasks], given_up[number]
        )
        yield from post(now, root_id, f"undelivered:{number}:{seq}", route, line)


def claim(now: float, worker_id: int, channel: str, count: int) -> Tx[list[OutboxMessage]]:
    """Oldest first. Alone: two claims must not see the same free row. What a dead worker claims would stay claimed."""
    if not (yield "SELECT 1 FROM workers WHERE id = ? {keep}", (worker_id,)):
        raise Stale(f"worker {worker_id} was declared dead")
    rows = yield (
        # Materialized: see sessions.claim.
        "WITH first AS MATERIALIZED (SELECT id FROM outbox WHERE due <= ? AND channel = ? AND owner IS NULL"
        " ORDER BY id LIMIT ? {skip}) UPDATE outbox SET owner = ?, attempts = attempts + 1, due = NULL"
        " WHERE id IN (SELECT id FROM first) RETURNING id, idem, channel, target, body, attempts,"
        " task_id, generation",
        (now, channel, count, worker_id),
    )
    return [OutboxMessage(*row) for row in sorted(rows)]


def sent(now: float, worker_id: int, message: OutboxMessage, receipt: str | None) -> Tx[bool]:
    """False: another worker owns the row now, and will report what became of it."""
    rows = yield (
        "UPDATE outbox SET done_at = ?, receipt = ?, error = NULL, outcome = NULL, owner = NULL"
        " WHERE id = ? AND owner = ? RETURNING id",
        (now, receipt, message.id, worker_id),
    )
    yield from _leave(message)
    return bool(rows)


def _leave(message: OutboxMessage) -> Tx[None]:
    """A notification goes with its session. One that belongs to none goes when it is over."""
    if message.channel == delivery.PUSH_CHANNEL:
        yield (
            "DELETE FROM outbox WHERE id = ? AND session_id = ? AND done_at IS NOT NULL",
            (message.id, NO_SESSION),
        )


def let_go(
    now: float,
    worker_id: int,
    message: OutboxMessage,
    outcome: SendOutcome,
    error: str,
    *,
    due_at: float | None = None,
) -> Tx[bool]:
    """A send without success: due again, or never (None). False: as above."""
    rows = yield (
        "UPDATE outbox SET owner = NULL, due = ?, outcome = ?, error = ?, tried_at = ? WHERE id = ? AND owner = ?"
        " RETURNING id",
        (due_at, outcome.value, error, now, message.id, worker_id),
    )
    yield HINT, ("parcel", message.id)
    return bool(rows)


class DecidedMessage(NamedTuple):
    channel: str
    task_id: int | None


#: A message that is not sent again by itself.
_UNDECIDED = (
    " WHERE id = ? AND done_at IS NULL AND owner IS NULL AND due IS NULL AND outcome IS NOT NULL"
    " AND (task_id IS NULL OR outcome = 'unsure') RETURNING channel, task_id"
)


def resend(now: float, message_id: int) -> Tx[DecidedMessage | None]:
    """None: it needs no decision."""
    rows = yield (
        f"UPDATE outbox SET due = ?, attempts = 0, outcome = NULL, error = NULL{_UNDECIDED}",  # noqa: S608
        (now, message_id),
    )
    return DecidedMessage(*rows[0]) if rows else None


def dismiss(now: float, message_id: int) -> Tx[DecidedMessage | None]:
    """None: it needs no decision."""
    rows = yield f"UPDATE outbox SET done_at = ?{_UNDECIDED}", (now, message_id)  # noqa: S608
    return DecidedMessage(*rows[0]) if rows else None


def cancelled(now: float, session_id: int, letter: str) -> Tx[None]:
    """Record that a user's message was cancelled, which is nothing to send."""
    yield (
        "INSERT INTO outbox(idem, session_id, channel, target, body, done_at) VALUES(?, ?, '', '', '', ?)"
        " ON CONFLICT(idem) DO NOTHING",
        (f"cancelled:{letter}", session_id, now),
    )


def hand_out(now: float, session_id: int, channel: str, message_id: int | None) -> Tx[OutboxMessage | None]:
    """The oldest message of a session, or this one: claimed and done in one step, unless another client took it."""
    which, values = ("", ()) if message_id is None else (" AND id = ?", (message_id,))
    rows = yield (
        "WITH first AS MATERIALIZED (SELECT id FROM outbox WHERE session_id = ? AND due IS NOT NULL AND channel = ?"  # noqa: S608
        f" AND owner IS NULL{which} ORDER BY id LIMIT 1 {{skip}}) UPDATE outbox SET done_at = ?, due = NULL,"
        " attempts = attempts + 1 WHERE id IN (SELECT id FROM first)"
        " RETURNING id, idem, channel, target, body, attempts, task_id, generation",
        (session_id, channel, *values, now),
    )
    return OutboxMessage(*rows[0]) if rows else None


def next_due(now: float, channel: str) -> Tx[float | None]:
    del now
    rows = yield "SELECT MIN(due) FROM outbox WHERE due IS NOT NULL AND channel = ?", (channel,)
    return None if rows[0][0] is None else float(rows[0][0])


def waits(now: float, session_id: int, channel: str) -> Tx[bool]:
    """Whether replies of this session wait for a client of this channel."""
    del now
    rows = yield (
        "SELECT 1 FROM outbox WHERE due IS NOT NULL AND session_id = ? AND channel = ? LIMIT 1",
        (session_id, channel),
    )
    return bool(rows)


class PendingReply(NamedTuple):
    parcel_id: int
    body: str


def pending_reply(now: float, session_id: int, channel: str, after: int = 0) -> Tx[PendingReply | None]:
    """The oldest reply behind `after`, only shown: a client that has read it says so (`delivery.hand_out`)."""
    del now
    rows = yield (
        "SELECT id, body FROM outbox WHERE due IS NOT NULL AND session_id = ? AND channel = ? AND owner IS NULL"
        " AND id > ? ORDER BY id LIMIT 1",
        (session_id, channel, after),
    )
    return PendingReply(*rows[0]) if rows else None


_STRANDED = (
    " WHERE channel = ? AND owner IS NOT NULL AND (owner = ? OR owner NOT IN (SELECT id FROM workers))"
)


def is_stranded(now: float, worker_id: int, channel: str) -> Tx[bool]:
    """Whether `free` has anything to do. Mostly it has not, and a read waits for no disk."""
    del now
    return bool((yield f"SELECT 1 FROM outbox{_STRANDED} LIMIT 1", (channel, worker_id)))  # noqa: S608


def free(now: float, worker_id: int, channel: str) -> Tx[None]:
    """What this worker sends no more, and what no live worker sends: after a lost answer, a stop, a start."""
    yield f"UPDATE outbox SET owner = NULL, due = ?{_STRANDED}", (now, channel, worker_id)  # noqa: S608


def free_all(now: float, worker_ids: Sequence[int]) -> Tx[None]:
    """What dead or stopped workers were sending is due again."""
    yield "UPDATE outbox SET owner = NULL, due = ? WHERE owner {any}", (now, list(worker_ids))


def forget(session_id: int) -> Tx[None]:
    """The session is deleted. What is still to be sent stays."""
    yield "DELETE FROM outbox WHERE session_id = ? AND done_at IS NOT NULL", (session_id,)


def sent_before(now: float, before: float, after: int, count_max: int) -> Tx[list[int]]:
    """Return messages that were sent before this moment, in the order of their numbers. A result stays: by its row it
    is known to be delivered. So does a message that was cancelled, whose row has no channel."""
    del now
    rows = yield (
        "SELECT id FROM outbox WHERE id > ? AND done_at <= ? AND task_id IS NULL AND channel <> '' ORDER BY id LIMIT ?",
        (after, before, count_max),
    )
    return [row[0] for row in rows]


def delete_sent(now: float, message_ids: Sequence[int]) -> Tx[None]:
    """Messages that were sent never change."""
    del now
    yield "DELETE FROM outbox WHERE id {any} AND done_at IS NOT NULL", (list(message_ids),)


# --------------------------------------------------------------------------------------------------
# Messages to hooks, written in the transaction in which the fact happens; none where no hook listens.
#
# The key of a row names the fact, so each fact is sent once, however often it is found, and a hook that gets it
# twice after a crash can know.

CHANNEL = "hook"


def ended(now: float, task: Task, reason: str) -> Tx[None]:
    rows = yield (
        "SELECT s.key, r.key, s.route, s.bound, (SELECT MAX(n.id) FROM runs n WHERE n.session_id = t.id) FROM tasks t"
        " LEFT JOIN sessions s ON s.id = t.id LEFT JOIN sessions r ON r.id = t.requester_id WHERE t.id = ?",
        (task.id,),
    )
    session, requester, route, bound, run = rows[0]
    told = {
        "task": ids.task_id(task.id),
        "generation": task.generation,
        "run": None if run is None else ids.run_id(run),
        "session": session,
        "requester": requester,
        "reason": reason,
        "outcome": task.outcome,
        "error": task.error,
        "endedAt": _moment(task.ended_at),
        "account": delivery.from_text(route).account if route else None,
        "sendFarewell": bool(bound),
    }
    yield from _post(now, task.id, Hook.ENDED, f"{task.id}:{task.generation}", told)


def never_began(now: float, policy: Policy, task_id: int, session_key: str, why: str) -> Tx[None]:
    """A thread was made for a spawn that was undone: its channel should close it."""
    if Hook.ENDED in policy.hooks:
        told = {
            "task": ids.task_id(task_id),
            "generation": 1,
            "run": None,
            "session": session_key,
            "requester": None,
            "reason": "spawn-failed",
            "outcome": "error",
            "error": why,
            "endedAt": _moment(now),
            "account": None,
            "sendFarewell": False,
        }
        yield from _post(now, task_id, Hook.ENDED, f"{task_id}:1", told)


def spawned(now: float, policy: Policy, task_ids: Sequence[int]) -> Tx[None]:
    if Hook.SPAWNED not in policy.hooks:
        return
    rows = yield (
        "SELECT t.id, s.key, r.key, s.agent_id, t.label, t.depth FROM tasks t JOIN sessions s ON s.id = t.id"
        " JOIN sessions r ON r.id = t.requester_id WHERE t.id {any} ORDER BY t.id",
        (list(task_ids),),
    )
    for task_id, session, requester, agent_id, label, depth in rows:
        told = {
            "task": ids.task_id(task_id),
            "session": session,
            "requester": requester,
            "agentId": agent_id,
            "label": label,
            "depth": depth,
        }
        yield from _post(now, task_id, Hook.SPAWNED, f"{task_id}", told)


def removed(
    now: float,
    policy: Policy,
    task_id: int,
    session_key: str,
    reason: RemovalReason,
    *,
    workspace: str | None,
) -> Tx[None]:
    """For memory systems: what they know of this session has no source any more."""
    if Hook.REMOVED in policy.hooks:
        told = {
            "session": session_key,
            "task": ids.task_id(task_id),
            "reason": reason,
            "workspace": workspace,
        }
        yield from _post(now, task_id, Hook.REMOVED, f"{task_id}", told)


def attention_required(now: float, policy: Policy, session_id: int, kind: str, fact: str) -> Tx[None]:
    """A run waits for a user. `fact`: distinguishes this question of the session from the next."""
    yield from _push_all(now, session_id, PushKind.ATTENTION, f"{session_id}:{fact}")
    if Hook.ATTENTION_REQUIRED not in policy.hooks:
        return
    rows = yield (
        "SELECT s.key, s.is_task, t.label FROM sessions s LEFT JOIN tasks t ON t.id = s.id WHERE s.id = ?",
        (session_id,),
    )
    key, is_task, label = rows[0] if rows else (None, 0, None)  # the gateway itself has no session
    told = {
        "task": ids.task_id(session_id) if is_task else None,
        "session": key,
        "label": label,
        "kind": kind,
        "command": "clutch inbox",
    }
    yield from _post(now, session_id, Hook.ATTENTION_REQUIRED, f"{session_id}:{fact}", told)


# --------------------------------------------------------------------------------------------------
# Notifications of devices: one row for each device that asked for them, with the kind of its text and its moment.

_PUSH = (
    "INSERT INTO outbox(idem, session_id, channel, target, body, due)"
    " SELECT 'push:' || p.device || ':' || CAST(? AS {text}), CAST(? AS {big}), 'push', p.device, CAST(? AS {text}),"
    " CAST(? AS {float}) FROM push_subscriptions p WHERE p.until > ?"
)
#: With the condition of the index `tasks_alive`: a task without an outcome is in none of these phases.
OPEN_BESIDE = (
    "SELECT 1 FROM tasks t JOIN tasks o ON o.root_id = t.root_id WHERE t.id = ? AND o.outcome IS NULL"
    " AND o.phase <> 'cleanup_pending' AND o.phase <> 'completed' AND o.phase <> 'completed_giveup' LIMIT 1"
)
#: Locked, so that of two last tasks that end at the same time the second one sees the end of the first.
_ROOT_IF_DEVICES = (
    "SELECT id FROM sessions WHERE id = (SELECT root_id FROM tasks WHERE id = ?)"
    " AND EXISTS (SELECT 1 FROM push_subscriptions WHERE until > ?) {lock}"
)
_ONCE = " ON CONFLICT(idem) DO NOTHING RETURNING id"


def _push_all(now: float, session_id: int, kind: PushKind, fact: str) -> Tx[None]:
    rows = yield _PUSH + _ONCE, (fact, session_id, notification_text(kind, now), now, now)
    if rows:
        yield HINT, ("outbox", delivery.PUSH_CHANNEL)


def all_done(now: float, task: Task) -> Tx[None]:
    """A task has ended: notify the devices after a pause if it was the last one of its tree. What they were not yet
    notified of is replaced."""
    roots = yield _ROOT_IF_DEVICES, (task.id, now)
    if not roots or (yield OPEN_BESIDE, (task.id,)):
        return
    fact, said = f"done:{task.id}:{task.generation}", notification_text(PushKind.DONE, now)
    rows = yield _PUSH + _ONCE, (fact, task.id, said, now + DONE_PAUSE_S, now)
    if rows:
        yield (
            "DELETE FROM outbox WHERE due IS NOT NULL AND owner IS NULL AND channel = 'push' AND body LIKE 'done %'"
            " AND id < ? AND session_id IN (SELECT id FROM tasks WHERE root_id = ?)",
            (min(row[0] for row in rows), roots[0][0]),
        )
        yield HINT, ("outbox", delivery.PUSH_CHANNEL)


def push_test(now: float, device: str, key: str) -> Tx[None]:
    """Notify one device that notifications work."""
    route = f"{delivery.PUSH_CHANNEL}:{device}"
    yield from post(
        now, NO_SESSION, f"push:test:{device}:{key}", route, notification_text(PushKind.TEST, now)
    )


def drop(now: float, worker_id: int, message: OutboxMessage, error: str) -> Tx[bool]:
    """A notification that could not be sent is over: what it points to is in the inbox."""
    rows = yield (
        "UPDATE outbox SET done_at = ?, error = ?, owner = NULL, tried_at = ? WHERE id = ? AND owner = ? RETURNING id",
        (now, error, now, message.id, worker_id),
    )
    yield from _leave(message)
    return bool(rows)


def _post(now: float, task_id: int, hook: Hook, fact: str, told: Mapping[str, Any]) -> Tx[None]:
    body = json.dumps(told, ensure_ascii=False)
    yield from post(now, task_id, f"hook:{hook}:{fact}", f"{CHANNEL}:{hook}", body)


def _moment(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
