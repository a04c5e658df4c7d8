"""What a commit may change: outcomes, results, owners, and what kill, steer and spawn do to them.

Each check is a generator over one `Change` that says what is wrong; silence is good news.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from clutch.core import lifecycle
from clutch.core.model import Phase
from clutch.testing.promises.court import Court, promises
from clutch.testing.promises.history import Change
from clutch.testing.simulation.disk import Made

#: by an owner, guarded by its fence: the session and the fence are the second and third argument
OWNERS: Final = frozenset(
    {"begin", "respond", "results", "yields", "delegate", "finish", "stumble", "fail", "crash", "hand_over"}
)
GUARDED: Final = OWNERS | {"spawn"}


# ---- outcomes and results ----------------------------------------------------------------------------


@promises("N5", "tasks", "an outcome is never changed by a later signal of the same generation")
def _one_outcome(change: Change, court: Court) -> Iterator[str]:
    del court
    for before, after in change.tasks.values():
        if before is None or before.outcome is None or before.generation != after.generation:
            continue
        if after.outcome != before.outcome:
            yield f"task {after.id}: {before.outcome} became {after.outcome}"


@promises("T9", "tasks", "a result never changes once its outcome is fixed, and its hash is its own")
def _fixed_result(change: Change, court: Court) -> Iterator[str]:
    for before, after in change.tasks.values():
        is_same = before is not None and before.result_sha == after.result_sha
        if is_same:
            continue
        if before is not None and before.outcome is not None and before.generation == after.generation:
            yield f"task {after.id}: the result changed after {before.outcome}"
        if after.result_sha is not None:
            ((text,),) = court.disk.query("SELECT result FROM tasks WHERE id = ?", after.id)
            if hashlib.sha256(text.encode()).hexdigest() != after.result_sha:
                yield f"task {after.id}: the hash is not that of the result"


@promises("T10", "tasks", "a task moves along declared edges, and its timeline has no gap")
def _legal_moves(change: Change, court: Court) -> Iterator[str]:
    for before, after in change.tasks.values():
        at, generation, seq = (
            (before.phase, before.generation, before.seq) if before is not None else ("spawning", 1, 0)
        )
        rows = court.disk.query(
            "SELECT seq, from_phase, to_phase, generation FROM events WHERE task_id = ? AND seq > ? ORDER BY seq",
            after.id,
            seq,
        )
        for number, from_phase, to_phase, new_generation in rows:
            is_edge = (Phase(from_phase), Phase(to_phase)) in lifecycle.EDGES
            if from_phase != at or number != seq + 1 or (to_phase != at and not is_edge):
                yield f"task {after.id}: at {at} line {seq}, then {from_phase} → {to_phase} as line {number}"
            if not generation <= new_generation <= generation + 1:
                yield f"task {after.id}: generation {generation} became {new_generation}"
            at, generation, seq = to_phase, new_generation, number
        if seq != after.seq:
            yield f"task {after.id}: {after.seq} lines counted, {seq} written"


@promises("T6", "tasks", "a run's time is over only at its deadline, and only while somebody works on it")
def _fair_timeout(change: Change, court: Court) -> Iterator[str]:
    del court
    for before, after in change.tasks.values():
        if after.outcome != "timeout" or before is None or before.outcome is not None:
            continue
        owner_before = change.sessions[after.id][0] if after.id in change.sessions else None
        if owner_before is None or owner_before.owner is None:
            yield f"task {after.id} timed out while nobody worked on it"
        if before.deadline_at is None:
            yield f"task {after.id} timed out without a deadline"


# ---- ownership ---------------------------------------------------------------------------------------


@promises("T4", GUARDED, "a write by anybody but the current owner changes nothing")
def _only_owners_write(change: Change, court: Court) -> Iterator[str]:
    del court
    for made in change.made:
        session_id, fence = _guard(made)
        if session_id is None or not made.written:
            continue
        before = change.sessions[session_id][0] if session_id in change.sessions else None
        if before is None:
            continue
        if before.owner != made.worker_id or before.fence != fence:
            yield (
                f"{made.actor} wrote session {session_id} by {made.name} as worker {made.worker_id} with fence"
                f" {fence}; the owner is {before.owner} with fence {before.fence}"
            )


def _guard(made: Made) -> tuple[int | None, int | None]:
    if made.name in OWNERS:
        return made.args[1], made.args[2]
    if made.name == "spawn" and made.args[3] is not None:
        return made.args[1], made.args[3]
    return None, None


@promises("T4", "sessions", "every new owner has a new fence, and so has every owner that was cut off")
def _fences_rise(change: Change, court: Court) -> Iterator[str]:
    del court
    released = {made.args[1] for made in change.made if made.name in OWNERS}
    for before, after in change.sessions.values():
        if before is None:
            continue
        if after.fence < before.fence:
            yield f"session {after.id}: the fence fell from {before.fence} to {after.fence}"
        if before.owner == after.owner or after.fence > before.fence:
            continue
        if after.owner is not None or after.id not in released:
            yield f"session {after.id}: owner {before.owner} became {after.owner} under fence {after.fence}"


@promises("N22", "runs", "a run that was parked in good order is not counted as crashed")
def _parks_are_no_crashes(change: Change, court: Court) -> Iterator[str]:
    del court
    for before, after in change.runs.values():
        if before is not None and after.crashes > before.crashes and before.parked_until is not None:
            yield f"run {after.id} was parked, and its next start counted as crash {after.crashes}"


# ---- kill, steer, spawn ------------------------------------------------------------------------------


@promises("N19", "sessions", "after a kill the session of the task says nothing more")
def _the_dead_are_silent(change: Change, court: Court) -> Iterator[str]:
    for before, after in change.sessions.values():
        if before is None or after.head == before.head:
            continue
        task = court.history.task(after.id)
        pair = change.tasks.get(after.id)
        was = pair[0] if pair is not None else task
        if was is not None and was.outcome == "killed" and (task is None or task.outcome == "killed"):
            yield f"session {after.id} was killed and wrote message {after.head}"


@promises("N19", "tasks", "a dead parent has no children")
def _born_alive(change: Change, court: Court) -> Iterator[str]:
    for before, after in change.tasks.values():
        if before is None:
            parent = court.history.session(after.requester_id)
            if parent is None or parent.closed:
                yield f"task {after.id} was born to {after.requester_id}, which is closed"


@promises("N19", frozenset({"kill"}), "nobody is told what a kill has made pointless")
def _skipped_by_kill(change: Change, court: Court) -> Iterator[str]:
    if not any(made.name == "kill" for made in change.made):
        return
    for _, after in change.tasks.values():
        if after.outcome == "killed" and court.count(
            "SELECT COUNT(*) FROM inbox WHERE session_id = ? AND state = 0 AND kind = 'announce' AND silent = 0",
            after.id,
        ):
            yield f"task {after.id} was killed, and results for it still wait"


@promises("T11", "tasks", "a child is numbered by the place of its call, not by the moment of its birth")
def _numbered_by_call(change: Change, court: Court) -> Iterator[str]:
    for before, after in change.tasks.values():
        if before is None:
            ((idem, order),) = court.disk.query("SELECT idem, spawn_order FROM tasks WHERE id = ?", after.id)
            place = idem.split(":")
            if place[0].isdigit() and order != int(place[1]) * 1000 + int(place[2]):
                yield f"task {after.id} of call {idem} has order {order}"


@promises(
    "T12",
    frozenset({"steer"}),
    "a steer that supersedes starts a new generation and ends the run it supersedes",
)
def _steered(change: Change, court: Court) -> Iterator[str]:
    del court
    for made in change.made:
        before, after = change.tasks.get(made.args[1], (None, None)) if made.name == "steer" else (None, None)
        if before is None or after is None or before.phase not in ("running", "ending", "announcing"):
            continue
        if after.generation == before.generation:
            yield f"task {after.id} was steered in {before.phase} and is still generation {after.generation}"
        session = change.sessions.get(after.id)
        if session is None or session[1].run_id is not None or session[1].owner is not None:
            yield f"task {after.id} was steered, and the old run goes on"


@promises("N20", frozenset({"steer"}), "an instruction is in the inbox when the steer is answered")
def _instruction_kept(change: Change, court: Court) -> Iterator[str]:
    for made in change.made:
        if made.name == "steer" and not court.disk.query("SELECT 1 FROM inbox WHERE idem = ?", made.args[2]):
            yield f"the instruction {made.args[2]} is nowhere"
