"""The rows of runs: begun, parked, resumed, ended. No other module writes them.

The allowed changes of a run's state are `core.run.RUN_MOVES`; what a run decides is in `core.run`, too."""

from __future__ import annotations

from collections.abc import Sequence

from clutch.core.model import RunState
from clutch.core.run import RUN_MOVES, Counters
from clutch.store.transaction import Tx


def _move(*before: RunState, to: RunState, also: str) -> str:
    """Return the statement that makes moves of `RUN_MOVES`, up to its first condition. `also`: columns it sets, too.

    Raises AssertionError for a move that is not listed there."""
    for state in before:
        if (state, to) not in RUN_MOVES:
            raise AssertionError(f"no run moves from {state} to {to}")
    either = "', '".join(before)
    return f"UPDATE runs SET state = '{to}', {also} WHERE state IN ('{either}')"  # noqa: S608 (names of the core)


_OPEN = tuple(state for state in RunState if state is not RunState.ENDED)
_PARK = _move(RunState.RUNNING, to=RunState.PARKED, also="parked_until = ?")
_ASK = _move(RunState.RUNNING, to=RunState.ASKING, also="parked_until = NULL")
_ANSWER = _move(RunState.ASKING, to=RunState.ANSWERED, also="parked_until = NULL")
_RESUME = _move(RunState.PARKED, RunState.ANSWERED, to=RunState.RUNNING, also="parked_until = NULL")
_END = _move(*_OPEN, to=RunState.ENDED, also="parked_until = NULL, ended_at = ?, stop_reason = ?")


def begin(
    now: float, session_id: int, run_id: int, generation: int, *, by_person: bool, route: str | None
) -> Tx[None]:
    yield (
        "INSERT INTO runs(id, session_id, generation, by_person, started_at, route) VALUES(?, ?, ?, ?, ?, ?)",
        (run_id, session_id, generation, int(by_person), now, route),
    )


def sent(now: float, session_id: int, run_id: int, route: str | None) -> Tx[None]:
    """A turn without a model: its results go to the user as they are, and the run ends at once."""
    yield (
        "INSERT INTO runs(id, session_id, generation, by_person, state, started_at, ended_at, stop_reason, route)"
        " VALUES(?, ?, 0, 0, ?, ?, ?, 'sent', ?)",
        (run_id, session_id, RunState.ENDED, now, now, route),
    )


def imported(session_id: int, run_id: int, started_at: float, ended_at: float) -> Tx[None]:
    yield (
        "INSERT INTO runs(id, session_id, generation, by_person, state, started_at, ended_at, stop_reason)"
        " VALUES(?, ?, 1, 0, ?, ?, ?, 'imported')",
        (run_id, session_id, RunState.ENDED, started_at, ended_at),
    )


def count(run_id: int, counters: Counters) -> Tx[None]:
    yield (
        "UPDATE runs SET crashes = ?, failures = ?, progress_head = ? WHERE id = ?",
        (counters.crashes, counters.failures, counters.progress_head, run_id),
    )


def park(run_id: int, until: float) -> Tx[None]:
    """Wait without a slot until this time. A run that waits already keeps its wait: it was claimed and not begun."""
    yield f"{_PARK} AND id = ?", (until, run_id)


def ask(run_id: int) -> Tx[None]:
    """Wait for the answer to a question, however long that takes."""
    yield f"{_ASK} AND id = ?", (run_id,)


def answered(run_id: int) -> Tx[None]:
    """The last question has its answer: the run is due."""
    yield f"{_ANSWER} AND id = ?", (run_id,)


def resume(run_id: int) -> Tx[None]:
    yield f"{_RESUME} AND id = ?", (run_id,)


def redate(run_id: int | None, until: float) -> Tx[None]:
    """Correct a wait that was computed under a clock that was ahead."""
    yield "UPDATE runs SET parked_until = ? WHERE id = ?", (until, run_id)


def end(now: float, run_id: int, reason: str) -> Tx[None]:
    yield f"{_END} AND id = ?", (now, reason, run_id)


def end_open(now: float, session_id: int, reason: str) -> Tx[None]:
    """End the run of a session that is stopped, if one is open."""
    yield f"{_END} AND session_id = ? AND ended_at IS NULL", (now, reason, session_id)


def mark_traced(now: float, run_ids: Sequence[int]) -> Tx[None]:
    """A collector has acknowledged the spans of these runs, which have ended, or never accepts them."""
    del now
    yield "UPDATE runs SET traced = 1 WHERE id {any}", (list(run_ids),)
