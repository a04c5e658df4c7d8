"""Planted bugs in the transactions: ownership, letters, kill, spawn, and when a session is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from clutch.core.attachments import EVERYTHING, Removal
from clutch.core.policy import Policy
from clutch.store.transaction import Row, Tx
from clutch.transactions import sessions
from clutch.transactions.sessions import SessionRow
from tests.trust.mutants.mutant import CRASHES, STORMS, Mutant
from tests.trust.mutants.mutant import mutant_of as _mutant
from tests.trust.mutants.statements import answering, answering_only, reworded, setting, tampered

# ---- ownership ---------------------------------------------------------------------------------------


def _no_fence(is_owner: Any) -> tuple[Any, ...]:
    return (wraps(is_owner)(lambda *_: True),)


def _claim_keeps_fence(claim_lane: Any) -> tuple[Any, ...]:
    return (tampered(claim_lane, say=reworded("UPDATE sessions", "fence = fence + 1", "fence = fence")),)


def _bury_keeps_fence(free: Any) -> tuple[Any, ...]:
    return (tampered(free, say=reworded("UPDATE sessions", "fence = fence + 1", "fence = fence")),)


def _lane_not_counted(claim_lane: Any) -> tuple[Any, ...]:
    return (tampered(claim_lane, hear=answering("SELECT share, root_id, COUNT(*) FROM sessions", [])),)


def _parks_are_crashes(go_on: Any) -> tuple[Any, ...]:
    def hear(sql: str, parameters: Any, rows: Sequence[Row]) -> Sequence[Row]:
        del parameters
        return [("running", *row[1:]) for row in rows] if "SELECT state, crashes" in sql else rows

    return (tampered(go_on, hear=hear),)


# ---- when a session is due ---------------------------------------------------------------------------


def _release_forgets_mail(finish: Any) -> tuple[Any, ...]:
    return (tampered(finish, say=setting("due", lambda: None)),)


def _held_parents_sleep(wake: Any) -> tuple[Any, ...]:
    @wraps(wake)
    def bug(now: float, policy: Any, session_id: int) -> Tx[bool]:
        session = yield from sessions.lock(session_id)
        if session is not None and session.hold and not session.closed:
            yield "UPDATE inbox SET seen = 1 WHERE session_id = ? AND seen = 0", (session_id,)
            return False
        return bool((yield from wake(now, policy, session_id)))

    return (bug,)


def _untold_is_working(working: Any, untold: Any) -> tuple[Any, ...]:
    del working
    return untold, untold


def _working_is_untold(working: Any, untold: Any) -> tuple[Any, ...]:
    del untold
    return working, working


def _hold_stays(begin: Any) -> tuple[Any, ...]:
    """The parent was woken by its children and still sleeps for them."""
    held: list[int] = []

    def hear(sql: str, parameters: Any, rows: Sequence[Row]) -> Sequence[Row]:
        del parameters
        if sql == sessions._LOCK and rows:
            held[:] = [SessionRow(*rows[0]).hold]
        return rows

    return (tampered(begin, say=setting("hold", lambda: held[0]), hear=hear),)


def _ring_lost(peek: Any) -> tuple[Any, ...]:
    return (tampered(peek, say=reworded("heartbeat_at", "WHERE wake_at <=", "WHERE 1 = 0 AND wake_at <=")),)


# ---- kill, steer, late -------------------------------------------------------------------------------


def _kill_does_not_stop(stop: Any) -> tuple[Any, ...]:
    @wraps(stop)
    def bug(now: float, policy: Policy, session: SessionRow, reason: str) -> Tx[None]:
        if reason not in ("killed", "closed"):
            yield from stop(now, policy, session, reason)

    return (bug,)


def _late_overwrites(keep_late: Any) -> tuple[Any, ...]:
    @wraps(keep_late)
    def bug(now: float, policy: Policy, session: SessionRow, text: str, nonce: str) -> Tx[None]:
        yield from keep_late(now, policy, session, text, nonce)
        yield "UPDATE tasks SET result = ?, result_sha = 'new' WHERE id = ?", (text, session.id)

    return (bug,)


def _all_executed(was_executing: Any) -> tuple[Any, ...]:
    @wraps(was_executing)
    def bug(session: SessionRow) -> Tx[bool]:
        yield from was_executing(session)
        return True

    return (bug,)


def _late_only_in_the_timeline(keep_late: Any) -> tuple[Any, ...]:
    @wraps(keep_late)
    def bug(now: float, policy: Policy, session: SessionRow, text: str, nonce: str) -> Tx[None]:
        yield from keep_late(now, policy, session, text, nonce)
        yield "UPDATE tasks SET late_text = NULL WHERE id = ?", (session.id,)

    return (bug,)


# ---- spawn -------------------------------------------------------------------------------------------


def _counted_before(count: Any) -> tuple[Any, ...]:
    """The count is the one that somebody read before the lock was taken: that of the spawn before."""
    read: dict[int, Any] = {}

    @wraps(count)
    def bug(parent: SessionRow, *args: Any) -> Tx[Any]:
        counted = yield from count(parent, *args)
        before = read.get(parent.root_id, counted)
        read[parent.root_id] = counted
        return replace(counted, children=before.children, descendants=before.descendants)

    return (bug,)


def _numbered_by_birth(contract: Any) -> tuple[Any, ...]:
    births: list[int] = []

    @wraps(contract)
    def bug(*args: Any) -> Any:
        births.append(1)
        row = contract(*args)
        return (*row[:2], len(births), *row[3:])

    return (bug,)


def _known_forgotten(known: Any) -> tuple[Any, ...]:
    return (answering_only(known, {}),)


def _timeline_forgotten(event_rows: Any) -> tuple[Any, ...]:
    return (wraps(event_rows)(lambda *args: event_rows(*args)[:1]),)


def _cleans_at_any_time(awaited: Any) -> tuple[Any, ...]:
    return (answering_only(awaited, Removal(EVERYTHING, workspace=True)),)


def _buries_children_first(bury: Any) -> tuple[Any, ...]:
    return (tampered(bury, say=reworded("FROM sessions", "ORDER BY depth, id", "ORDER BY depth DESC, id")),)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "cleanup_of_the_living",
        "task_files.awaited",
        "T14",
        ("busy",),
        _cleans_at_any_time,
        "a late hint removes the files of a task that works again",
    ),
    _mutant(
        "children_locked_first",
        "workers.bury",
        "lockdep",
        CRASHES,
        _buries_children_first,
        "two who lock many sessions may wait for each other",
    ),
    _mutant("no_fence_check", "sessions.is_owner", "T4", CRASHES, _no_fence, "a stale owner may write"),
    _mutant(
        "claim_keeps_fence",
        "claims._claim_lane",
        "T4",
        STORMS,
        _claim_keeps_fence,
        "a new owner, the old fence",
    ),
    _mutant(
        "bury_keeps_fence",
        "workers._free",
        "T4",
        CRASHES,
        _bury_keeps_fence,
        "a dead owner's fence stays valid",
    ),
    _mutant(
        "lane_not_counted",
        "claims._claim_lane",
        "T3",
        ("tight",),
        _lane_not_counted,
        "a lane has endless room",
    ),
    _mutant(
        "parked_counts_as_crash",
        "turn_begin._go_on",
        "N22",
        STORMS,
        _parks_are_crashes,
        "a park is taken for a crash",
    ),
    _mutant(
        "follow_up_not_read",
        "turn_end._was_told_more",
        "N20",
        STORMS,
        lambda was_told_more: (answering_only(was_told_more, False),),
        "a child ends without reading what was sent to it meanwhile",
    ),
    _mutant(
        "release_forgets_mail",
        "turn_end.finish",
        "N16",
        ("busy", "storm"),
        _release_forgets_mail,
        "mail that came during a turn is forgotten at its end",
    ),
    _mutant(
        "held_parents_not_woken",
        "wake.wake",
        "N16",
        STORMS,
        _held_parents_sleep,
        "a letter to a waiting parent is only marked as seen",
    ),
    _mutant(
        "untold_taken_for_working",
        ("sessions.working", "sessions.untold"),
        "N16 N6",
        STORMS,
        _untold_is_working,
        "a parent waits for children that wait for it",
    ),
    _mutant(
        "working_taken_for_untold",
        ("sessions.working", "sessions.untold"),
        "N18",
        STORMS,
        _working_is_untold,
        "a parent is announced before it heard its children",
    ),
    _mutant(
        "hold_not_cleared", "turn_begin.begin", "N16", STORMS, _hold_stays, "a woken parent is woken again"
    ),
    _mutant(
        "timers_in_memory", "claims.peek", "T6", STORMS, _ring_lost, "timers that are only rows never ring"
    ),
    _mutant(
        "kill_without_cascade",
        "sessions.lock_below",
        "T5",
        ("busy",),
        lambda lock_below: (answering_only(lock_below, []),),
        "the children of a killed task go on",
    ),
    _mutant(
        "kill_does_not_stop",
        "tasks.stop",
        "N19",
        ("busy",),
        _kill_does_not_stop,
        "a killed run keeps its owner",
    ),
    _mutant(
        "orphans_rerouted_on_kill",
        "tasks.skip_letters",
        "N19",
        ("busy",),
        lambda skip_letters: (answering_only(skip_letters),),
        "results for a killed task rise to whoever is above",
    ),
    _mutant(
        "late_result_overwrites",
        "turn._keep_late",
        "T9",
        ("storm", "crash", "busy"),
        _late_overwrites,
        "a late word replaces the result",
    ),
    _mutant(
        "bystanders_blamed",
        "turn_begin._was_executing",
        "N22",
        ("crash", "storm"),
        _all_executed,
        "a death of the process is counted for every run in it",
    ),
    _mutant(
        "suspects_claimed_together",
        "claims._suspects",
        "N22",
        ("crash", "storm"),
        lambda suspects: (answering_only(suspects, ()),),
        "runs that may be the cause of the deaths of their process are resumed all at once",
    ),
    _mutant(
        "late_result_not_kept",
        "turn._keep_late",
        "N5",
        ("storm", "crash", "busy"),
        _late_only_in_the_timeline,
        "what a killed task says afterwards cannot be read with its result",
    ),
    _mutant(
        "limit_checked_outside",
        "spawn.count",
        "T3",
        ("tight",),
        _counted_before,
        "the children were counted before the lock was taken",
    ),
    _mutant(
        "spawn_order_by_birth",
        "spawn._contract",
        "T11",
        STORMS,
        _numbered_by_birth,
        "children in order of birth",
    ),
    _mutant(
        "spawn_key_not_looked_up",
        "spawn._known",
        "N9",
        CRASHES,
        _known_forgotten,
        "a repeated spawn does not find its task, and only the database keeps it from making a twin",
    ),
    _mutant(
        "timeline_has_gaps",
        "tasks.event_rows",
        "T10",
        STORMS,
        _timeline_forgotten,
        "only the first move is written",
    ),
    _mutant(
        "calls_left_open",
        "turn_begin._close_calls",
        "N22",
        ("busy",),
        lambda close_calls: (answering_only(close_calls),),
        "a new run goes on past calls that nobody answered",
    ),
)
