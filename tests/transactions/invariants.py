"""What must hold after any transaction, in any story, on any database."""

from __future__ import annotations

from collections import Counter, defaultdict

from clutch.core.events import Move
from clutch.core.lifecycle import fold
from clutch.core.model import WORKING, LetterState, Outcome, Phase, Reason, RunState
from tests.transactions.world import World

GONE = (Reason.ARCHIVED, Reason.DELETED)


async def check(world: World) -> None:
    await events_reduce_to_the_row(world)
    await every_settled_generation_left_one_letter(world)
    await nothing_is_told_twice(world)
    await transcripts_have_no_gap(world)
    await runs_match_their_sessions(world)
    await lanes_are_within_their_caps(world)


async def events_reduce_to_the_row(world: World) -> None:
    """Lines before the last one that says it was archived may be deleted."""
    moves: dict[int, dict[int, Move]] = defaultdict(dict)
    for task_id, seq, before, after, reason, generation, outcome in await world.rows(
        "SELECT task_id, seq, from_phase, to_phase, reason, generation, outcome FROM events ORDER BY task_id, seq"
    ):
        moves[task_id][seq] = Move(
            Phase(before), Phase(after), Reason(reason), generation, outcome and Outcome(outcome)
        )
    for task_id, phase, generation, outcome, seq in await world.rows(
        "SELECT id, phase, generation, outcome, seq FROM tasks"
    ):
        lines = moves[task_id]
        left = max((number for number, move in lines.items() if move.reason in GONE), default=0)
        assert set(lines) >= set(range(left + 1, seq + 1)), f"timeline of {task_id} has a gap after {left}"
        last = lines[seq]
        stands = fold(lines.values()) if len(lines) == seq else (last.to_phase, last.generation, last.outcome)
        assert stands == (Phase(phase), generation, outcome and Outcome(outcome)), task_id


async def every_settled_generation_left_one_letter(world: World) -> None:
    """Of tasks whose timeline is whole."""
    whole = "task_id IN (SELECT task_id FROM events GROUP BY task_id HAVING COUNT(*) = MAX(seq))"
    settled = {
        (row[0], row[1])
        for row in await world.rows(
            f"SELECT task_id, generation FROM events WHERE outcome IS NOT NULL AND {whole}"  # noqa: S608 (constant words)
        )
    }
    written = Counter(
        (row[0], row[1])
        for row in await world.rows(
            f"SELECT task_id, generation FROM inbox WHERE kind = 'announce' AND {whole}"  # noqa: S608 (constant words)
        )
    )
    assert dict(written) == dict.fromkeys(settled, 1)


async def nothing_is_told_twice(world: World) -> None:
    told = await world.rows(
        "SELECT task_id, generation, COUNT(*) FROM deliveries WHERE outcome = 'delivered'"
        " GROUP BY task_id, generation HAVING COUNT(*) > 1"
    )
    assert told == []
    wrong = await world.rows(
        "SELECT t.id FROM tasks t JOIN inbox i ON i.task_id = t.id AND i.generation = t.generation"
        " WHERE i.kind = 'announce' AND i.silent = 0 AND t.delivery = 'delivered' AND i.state <> ?",
        LetterState.ANSWERED.value,
    )
    assert wrong == [], "delivered, but the letter says otherwise"


async def transcripts_have_no_gap(world: World) -> None:
    wrong = await world.rows(
        "SELECT s.id, s.head, COUNT(m.seq), MIN(m.seq), MAX(m.seq) FROM sessions s"
        " LEFT JOIN messages m ON m.session_id = s.id GROUP BY s.id, s.head"
        " HAVING s.head <> COUNT(m.seq) OR s.head <> COALESCE(MAX(m.seq), 0)"
    )
    assert wrong == []


async def runs_match_their_sessions(world: World) -> None:
    wrong = await world.rows(
        "SELECT s.id FROM sessions s LEFT JOIN runs r ON r.session_id = s.id AND r.ended_at IS NULL"
        " WHERE COALESCE(s.run_id, 0) <> COALESCE(r.id, 0)"
        " OR (s.closed = 1 AND (s.run_id IS NOT NULL OR s.owner IS NOT NULL))"
    )
    assert wrong == []


async def lanes_are_within_their_caps(world: World) -> None:
    wrong = await world.rows(
        "SELECT l.name FROM lanes l WHERE l.cap <"
        " (SELECT COUNT(*) FROM sessions s WHERE s.lane = l.name AND s.owner IS NOT NULL)"
    )
    assert wrong == []


async def nobody_sleeps_through_mail(world: World) -> None:
    """After the mailman's round: whoever has a reason to run and no owner is due, and nobody else is.

    Whoever waits for a person is left out: only the answer makes it due."""
    for row in await world.rows(
        "SELECT s.id, s.due, s.hold, s.hold_until, s.paused, s.closed, s.run_id FROM sessions s"
        " LEFT JOIN runs r ON r.id = s.run_id WHERE s.owner IS NULL AND COALESCE(r.state, '') <> ?",
        RunState.ASKING.value,
    ):
        session_id, due, hold, hold_until, paused, closed, run_id = row
        urgent, background = (
            await world.rows(
                "SELECT SUM(CASE WHEN kind <> 'announce' OR (taken_seq IS NOT NULL AND silent = 0) THEN 1 ELSE 0 END),"
                " SUM(CASE WHEN kind = 'announce' AND taken_seq IS NULL AND silent = 0 THEN 1 ELSE 0 END)"
                " FROM inbox WHERE session_id = ? AND state = 0 AND taken_run IS NULL",
                session_id,
            )
        )[0]
        working = await working_children(world, session_id)
        waits = bool(urgent) or run_id is not None
        waits |= (not working or hold_until is not None) if hold else bool(background)
        assert (due is not None) == (waits and not paused and not closed), (
            f"session {row}: {urgent=} {background=}"
        )


async def working_children(world: World, session_id: int) -> int:
    rows = await world.rows("SELECT phase FROM tasks WHERE requester_id = ?", session_id)
    return sum(Phase(phase) in WORKING for (phase,) in rows)


async def everything_is_over(world: World) -> None:
    """Left alone, it must finish: every task has its end and every open letter was answered or is dead."""
    phases = {row[0] for row in await world.rows("SELECT DISTINCT phase FROM tasks")}
    assert phases <= {Phase.COMPLETED.value, Phase.COMPLETED_GIVEUP.value}, phases
    waiting = await world.rows(
        "SELECT i.id FROM inbox i JOIN sessions s ON s.id = i.session_id"
        " WHERE i.state = 0 AND i.silent = 0 AND s.closed = 0"
    )
    assert waiting == []
    assert await world.rows("SELECT id FROM sessions WHERE owner IS NOT NULL OR run_id IS NOT NULL") == []
