"""What a commit may change, as SQL: the tables beside what stood there before (`shadow`). No rows, ever."""

from __future__ import annotations

from typing import Final

from clutch.core.events import EDGES
from clutch.transactions.invariants.core import InvariantQuery, InvariantScope

#: one text to search in: a list would be sorted anew for every question
_EDGES: Final = " ".join(sorted(f"{before}>{after}" for before, after in EDGES))
_SAME: Final = (
    "FROM tasks t JOIN was.tasks b ON b.id = t.id AND b.generation = t.generation WHERE t.id {touched}"
)

MOVES: Final[tuple[InvariantQuery, ...]] = (
    InvariantQuery(
        "N5",
        InvariantScope.MOVE,
        "an outcome is never changed by a later signal of the same generation",
        f"SELECT t.id, b.outcome || ' became ' || COALESCE(t.outcome, 'none') {_SAME}"
        " AND b.outcome <> COALESCE(t.outcome, '')",
    ),
    InvariantQuery(
        "T9",
        InvariantScope.MOVE,
        "a result never changes after its task has an outcome",
        f"SELECT t.id, 'has another result since ' || b.outcome {_SAME}"
        " AND b.outcome IS NOT NULL AND COALESCE(b.result_sha, '') <> COALESCE(t.result_sha, '')",
    ),
    InvariantQuery(
        "N9",
        InvariantScope.MOVE,
        "an answer that was cut is no success",  # what is said in its thread later is another story
        "SELECT t.id, 'is ok, and its last answer was cut' FROM tasks t JOIN was.tasks b ON b.id = t.id"
        " JOIN sessions s ON s.id = t.id JOIN messages m ON m.session_id = t.id AND m.seq = s.head"
        " WHERE t.id {touched} AND t.outcome = 'ok' AND b.outcome IS NULL AND m.kind = 'answer'"
        " AND JSON_EXTRACT(m.body, '$.stop') = 'length'",
    ),
    InvariantQuery(
        "T13",
        InvariantScope.MOVE,
        "an attempt is counted when telling failed, and waiting costs none",
        f"SELECT t.id, b.attempts || ' attempts became ' || t.attempts || ' in ' || b.phase {_SAME}"
        " AND b.attempts <> t.attempts AND (t.phase = 'announce_deferred' OR NOT ("
        "(t.attempts = b.attempts + 1 AND b.phase = 'announcing')"
        " OR (t.attempts = 0 AND b.phase = 'completed_giveup')))",
    ),
    InvariantQuery(
        "T6",
        InvariantScope.MOVE,
        "a run's time is over only at its deadline, and only while a worker works on it",
        "SELECT t.id, 'timed out without a deadline, or while nobody worked on it' FROM tasks t"
        " JOIN was.tasks b ON b.id = t.id JOIN was.sessions s ON s.id = t.id WHERE t.id {touched}"
        " AND t.outcome = 'timeout' AND b.outcome IS NULL AND (s.owner IS NULL OR b.deadline_at IS NULL)",
    ),
    InvariantQuery(
        "T6",
        InvariantScope.MOVE,
        "a signal that arrives after the deadline changes nothing, and a timeout is recorded at the deadline",
        f"SELECT t.id, 'is ' || t.outcome || ', ' || ROUND(t.ended_at - b.deadline_at, 3) || ' s after its deadline'"
        f" {_SAME} AND b.outcome IS NULL AND b.phase = 'running' AND ((t.outcome IN ('ok', 'error')"
        " AND t.ended_at > b.deadline_at) OR (t.outcome = 'timeout' AND t.ended_at <> b.deadline_at))",
    ),
    InvariantQuery(
        "T10",
        InvariantScope.MOVE,
        "a task moves along declared edges, and its timeline has no gap",
        "SELECT t.id, 'line ' || e.seq || ' of ' || t.seq || ': ' || e.from_phase || ' → ' || e.to_phase"  # noqa: S608
        " FROM tasks t LEFT JOIN was.tasks b ON b.id = t.id"
        " JOIN events e ON e.task_id = t.id AND e.seq > COALESCE(b.seq, 0)"
        " LEFT JOIN events p ON p.task_id = t.id AND p.seq = e.seq - 1 WHERE t.id {touched} AND (e.seq > t.seq"
        " OR (p.seq IS NULL AND e.seq > 1) OR e.from_phase <> COALESCE(p.to_phase, 'spawning')"
        " OR e.generation NOT BETWEEN COALESCE(p.generation, 1) AND COALESCE(p.generation, 1) + 1"
        " OR (e.from_phase <> e.to_phase"
        f" AND INSTR(' {_EDGES} ', ' ' || e.from_phase || '>' || e.to_phase || ' ') = 0))",
    ),
    InvariantQuery(
        "N24",
        InvariantScope.END,
        "the timeline of an archived task says when it was archived or deleted",
        "SELECT t.id, 'was archived at ' || t.archived_at || ', and its timeline does not say so' FROM tasks t"
        " WHERE t.archived_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM events e WHERE e.task_id = t.id"
        " AND e.at = t.archived_at AND e.from_phase = e.to_phase AND e.reason IN ('archived', 'deleted'))",
    ),
    InvariantQuery(
        "T11",
        InvariantScope.BIRTH,
        "a child is numbered by the place of its call, not by the moment of its spawn",
        "SELECT c.id, 'of call ' || c.idem || ' has order ' || c.spawn_order FROM (SELECT t.id, t.idem,"
        " t.spawn_order, SUBSTR(t.idem, INSTR(t.idem, ':') + 1) AS place FROM tasks t"
        " WHERE t.requester_id {touched} AND t.idem GLOB '[0-9]*:[0-9]*:[0-9]*') c WHERE c.spawn_order <>"
        " 1000 * CAST(c.place AS INTEGER) + CAST(SUBSTR(c.place, INSTR(c.place, ':') + 1) AS INTEGER)",
    ),
    InvariantQuery(
        "N16",
        InvariantScope.CALM,
        "an unseen letter is looked at soon",
        "SELECT i.session_id, 'has letter ' || i.id || ', unseen for ' || ROUND({now} - w.since, 1) || ' s'"
        " FROM was.unseen w JOIN inbox i ON i.id = w.id WHERE w.since < {now} - {patience_s}",
    ),
    InvariantQuery(
        "N33",
        InvariantScope.READ,
        "what results and plans put into a transcript is bounded by how many there are",
        "SELECT m.session_id, 'read ' || LENGTH(m.body) || ' characters of ' || c.letters || ' in ' || m.seq"
        " FROM (SELECT i.session_id, i.taken_seq, COUNT(*) AS letters FROM inbox i WHERE i.id {touched}"
        " GROUP BY i.session_id, i.taken_seq) c"
        " JOIN messages m ON m.session_id = c.session_id AND m.seq = c.taken_seq"
        " WHERE JSON_EXTRACT(m.body, '$.source') IN ('announce', 'plan', 'news')"
        " AND LENGTH(m.body) > 1500 + ({inline_chars_max} + 800) * c.letters",
    ),
    InvariantQuery(
        "T12",
        InvariantScope.STEER,
        "a steer that supersedes starts a new generation and ends the run it supersedes",
        "SELECT t.id, 'was steered in ' || b.phase || ', and goes on as generation ' || t.generation FROM tasks t"
        " JOIN was.tasks b ON b.id = t.id JOIN sessions s ON s.id = t.id WHERE t.id {touched}"
        " AND b.phase IN ('running', 'ending', 'announcing')"
        " AND (t.generation = b.generation OR s.run_id IS NOT NULL OR s.owner IS NOT NULL)",
    ),
    InvariantQuery(
        "T4",
        InvariantScope.GUARDED,
        "a write by any other than the current owner changes nothing",
        "SELECT b.id, 'was written by worker ' || ?2 || ' with fence ' || ?3 || '; the fence is ' || b.fence"
        " || ' of ' || COALESCE(b.owner, 'nobody') FROM was.sessions b"
        " WHERE b.id = ?1 AND (COALESCE(b.owner, 0) <> ?2 OR b.fence <> ?3)",
    ),
    InvariantQuery(
        "T4",
        InvariantScope.FENCE,
        "every new owner has a new fence, and none ever falls",
        "SELECT s.id, 'has owner ' || COALESCE(s.owner, 'none') || ' under fence ' || s.fence FROM sessions s"
        " JOIN was.sessions b ON b.id = s.id WHERE s.id {touched} AND (s.fence < b.fence"
        " OR (s.fence = b.fence AND s.owner <> COALESCE(b.owner, 0)))",
    ),
    InvariantQuery(
        "T4",
        InvariantScope.CUT,
        "an owner whose session was taken is left behind a new fence",
        "SELECT s.id, 'was taken from ' || b.owner || ' under the same fence' FROM sessions s"
        " JOIN was.sessions b ON b.id = s.id WHERE s.id {touched} AND s.fence = b.fence",
    ),
)
