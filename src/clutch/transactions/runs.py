"""The rows of runs: opened, parked, resumed, ended. What a run decides is in `core.run`; no other module writes them."""  # noqa: E501

from __future__ import annotations

from clutch.core.model import ANSWERED, UNTIL_ANSWERED
from clutch.core.run import Counters
from clutch.store.transaction import Tx


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
        "INSERT INTO runs(id, session_id, generation, by_person, started_at, ended_at, stop_reason, route)"
        " VALUES(?, ?, 0, 0, ?, ?, 'sent', ?)",
        (run_id, session_id, now, now, route),
    )


def imported(session_id: int, run_id: int, started_at: float, ended_at: float) -> Tx[None]:
    yield (
        "INSERT INTO runs(id, session_id, generation, by_person, started_at, ended_at, stop_reason)"
        " VALUES(?, ?, 1, 0, ?, ?, 'imported')",
        (run_id, session_id, started_at, ended_at),
    )


def count(run_id: int, counters: Counters) -> Tx[None]:
    yield (
        "UPDATE runs SET crashes = ?, failures = ?, progress_head = ? WHERE id = ?",
        (counters.crashes, counters.failures, counters.progress_head, run_id),
    )


def park(run_id: int, until: float) -> Tx[None]:
    """Wait without a slot until this time. A run that is parked already keeps its wait: it was claimed and not begun."""  # noqa: E501
    yield "UPDATE runs SET parked_until = COALESCE(parked_until, ?) WHERE id = ?", (until, run_id)


def park_for_user(run_id: int) -> Tx[None]:
    """Wait for the answer to a question, however long that takes."""
    yield "UPDATE runs SET parked_until = ? WHERE id = ?", (UNTIL_ANSWERED, run_id)


def answered(run_id: int) -> Tx[None]:
    """The last question has its answer: the run is due."""
    yield (
        "UPDATE runs SET parked_until = ? WHERE id = ? AND parked_until = ?",
        (ANSWERED, run_id, UNTIL_ANSWERED),
    )


def redate(run_id: int | None, until: float) -> Tx[None]:
    """Correct a wait that was computed under a clock that was ahead."""
    yield "UPDATE runs SET parked_until = ? WHERE id = ?", (until, run_id)


def resume(run_id: int) -> Tx[None]:
    yield "UPDATE runs SET parked_until = NULL WHERE id = ?", (run_id,)


def end(now: float, run_id: int, reason: str) -> Tx[None]:
    yield "UPDATE runs SET ended_at = ?, stop_reason = ? WHERE id = ?", (now, reason, run_id)


def end_open(now: float, session_id: int, reason: str) -> Tx[None]:
    """End the run of a session that is stopped, if one is open."""
    yield (
        "UPDATE runs SET ended_at = ?, stop_reason = ? WHERE session_id = ? AND ended_at IS NULL",
        (now, reason, session_id),
    )
