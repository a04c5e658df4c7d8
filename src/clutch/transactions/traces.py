"""The export of traces: which process exports, which ended runs a collector has not acknowledged, and their rows.

An ended run never changes, and `runs.traced` says whether it was acknowledged. Nothing depends on an order of commits
or on the clock of a machine, so no run is skipped. One that was acknowledged and not marked, because of a crash between
the two, is exported again with the same ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from clutch.core import messages
from clutch.core.model import Delivery
from clutch.core.traces import ModelCall, RecordedEntry, RecordedRun
from clutch.store.transaction import Row, Tx

HISTORY_S = 3600.0  # exported when traces are turned on: longer than any clock of the fleet is wrong
PAGE = 64  # rows of a session in one read


class TraceOwner(NamedTuple):
    worker_id: int | None
    is_alive: bool


def opened(now: float, identity: str) -> Tx[str]:
    """Return the identity of this database; the first caller gives it."""
    yield (
        "INSERT INTO trace_exporter(id, identity, since) VALUES(1, ?, ?) ON CONFLICT(id) DO NOTHING",
        (identity, now - HISTORY_S),
    )
    rows = yield "SELECT identity FROM trace_exporter", ()
    return str(rows[0][0])


def owner(now: float) -> Tx[TraceOwner]:
    del now
    rows = yield (
        "SELECT e.owner, (SELECT COUNT(*) FROM workers w WHERE w.id = e.owner) FROM trace_exporter e",
        (),
    )
    return TraceOwner(rows[0][0], bool(rows[0][1])) if rows else TraceOwner(None, is_alive=False)


def take_over(now: float, worker_id: int) -> Tx[None]:
    """Export from now on, if the process that did is gone. Two that export at once would only do the work twice."""
    del now
    yield (
        "UPDATE trace_exporter SET owner = ? WHERE owner IS NULL"
        " OR NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = trace_exporter.owner)",
        (worker_id,),
    )


def untraced(now: float, count_max: int) -> Tx[list[int]]:
    """Return ended runs that no collector has acknowledged, those that ended first."""
    del now
    rows = yield (
        "SELECT id FROM runs WHERE traced = 0 AND ended_at IS NOT NULL"
        " AND ended_at > (SELECT since FROM trace_exporter) ORDER BY ended_at, id LIMIT ?",
        (count_max,),
    )
    return [row[0] for row in rows]


def recorded(now: float, run_id: int) -> Tx[RecordedRun | None]:
    """Return an ended run with its rows. None: its session is gone."""
    del now
    rows = yield (
        "SELECT r.id, r.session_id, s.root_id, s.key, s.agent_id, s.is_task, r.generation, r.started_at, r.ended_at,"
        " COALESCE(r.stop_reason, ''), t.idem FROM runs r JOIN sessions s ON s.id = r.session_id"
        " LEFT JOIN tasks t ON t.id = r.session_id WHERE r.id = ?",
        (run_id,),
    )
    if not rows:
        return None
    run = RecordedRun(*rows[0])
    session_id, since = run.session_id, run.started_at - HISTORY_S
    entries = yield from _newest(_ENTRIES, session_id, run_id, since)
    calls = yield from _newest(_CALLS, session_id, run_id, since)
    return replace(
        run,
        entries=[RecordedEntry(seq, at, messages.load(*entry)) for seq, _, at, *entry in entries],
        calls=[ModelCall(number, at, *call) for number, _, at, *call in calls],
        read=(yield from _read_runs(run_id)),
    )


_ENTRIES = (
    "SELECT seq, run_id, at, kind, CASE WHEN run_id = ? THEN body END FROM messages"
    " WHERE session_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
)
_CALLS = (
    "SELECT call_no, run_id, at, CASE WHEN run_id = ? THEN state END, model, effective, input, output, cache_read,"
    " cache_write FROM usage WHERE session_id = ? AND call_no < ? ORDER BY call_no DESC LIMIT ?"
)
_AFTER_ALL = 2**62


def _newest(sql: str, session_id: int, run_id: int, since: float) -> Tx[Sequence[Row]]:
    """Return the rows of one run, oldest first, read from the end of its session: a long history before it costs
    nothing."""
    found: list[Row] = []
    before = _AFTER_ALL
    while True:
        page = yield sql, (run_id, session_id, before, PAGE)
        found += [row for row in page if row[1] == run_id]
        is_passed = bool(page) and page[-1][1] != run_id and (bool(found) or page[-1][2] < since)
        if len(page) < PAGE or is_passed:
            return found[::-1]
        before = page[-1][0]


def _read_runs(run_id: int) -> Tx[list[int]]:
    """Return the runs whose results this run read: of each task the last one of the attempt."""
    rows = yield (
        "SELECT (SELECT r.id FROM runs r WHERE r.session_id = d.task_id AND r.generation = d.generation"
        " ORDER BY r.started_at DESC LIMIT 1) FROM deliveries d"
        " WHERE d.run_id = ? AND d.outcome IN (?, ?) ORDER BY d.id",
        (run_id, Delivery.DELIVERED.value, Delivery.UNSURE.value),
    )
    return [row[0] for row in rows if row[0] is not None]
