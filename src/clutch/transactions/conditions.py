"""Conditions in SQL on tasks and letters, made from the phases and states of the core, and how long a task worked.

Apart from `sessions`, because `clutch ps` reads a store with these and loads no policy."""

from __future__ import annotations

from collections.abc import Iterable

from clutch.core.model import (
    UNTOLD,
    WORKING,
    LetterState,
    Phase,
)


def _phases(phases: Iterable[Phase]) -> str:
    return "(" + ", ".join(f"'{phase}'" for phase in sorted(phases)) + ")"


def is_in(*states: LetterState) -> str:
    """Return the condition that a letter is in one of these states."""
    either = " OR ".join(f"state = {state:d}" for state in states)
    return either if len(states) == 1 else f"({either})"


#: for `phase IN …`
WORKING_PHASES = _phases(WORKING)
#: Conditions on tasks. SQLite uses `tasks_untold` and `tasks_alive` only where their text is repeated exactly;
#: as a list of phases they made every update of a task three times as dear.
IS_UNTOLD = " AND ".join(f"phase <> '{phase}'" for phase in sorted(set(Phase) - UNTOLD))
IS_WORKING = f"{IS_UNTOLD} AND phase <> 'announcing'"

#: Conditions on letters. The indexes `inbox_open` and `inbox_dead` cover one state each, and SQLite uses them only for
#: a state that is written out: one that is passed as a parameter would read the whole table.
IS_OPEN, IS_ANSWERED, IS_DEAD, IS_VOID = map(is_in, LetterState)


#: On transcript entries: not of a deleted session whose long transcript is not deleted to its end.
IS_WHOLE = "session_id NOT IN (SELECT id FROM sessions WHERE deleted_at IS NOT NULL AND head > 0)"


def open_question(tasks: str) -> str:
    """Kind and body of the first question that the user has not answered. Approvals come first: their kind sorts before
    the others. A task that asks nothing costs nothing. `tasks`: what the query calls that table."""
    return (
        f"CASE WHEN {tasks}.reason = 'needs-you' THEN (SELECT q.kind || ' ' || q.body FROM questions q"  # noqa: S608
        f" WHERE q.session_id = {tasks}.id AND q.answered_at IS NULL ORDER BY q.kind, q.id LIMIT 1) END"
    )


def wait_columns(tasks: str) -> str:
    """What decides the state of a paused task beside its row: `asked`, `is_paused` (by the user) and `parked_until`.
    A task that is not paused costs nothing. `tasks`: what the query calls that table."""
    paused, own = f"CASE WHEN {tasks}.phase = 'paused' THEN", f"WHERE s.id = {tasks}.id"
    return (
        f"{open_question(tasks)} AS asked,"  # noqa: S608 (constant words)
        f" {paused} (SELECT s.paused FROM sessions s {own}) END AS is_paused,"
        f" {paused} (SELECT r.parked_until FROM sessions s JOIN runs r ON r.id = s.run_id {own}) END AS parked_until"
    )


def worked(tasks: str) -> str:
    """How long a task was at work, from its timeline: not while it waited, was paused, or had ended before it went
    on. While it is, the sum lacks the present moment. `tasks`: what the query calls that table.

    Nothing of a timeline whose beginning was deleted: what is left of it makes no sum."""
    return (
        "(SELECT SUM(CASE WHEN e.from_phase = 'running' THEN e.at ELSE -e.at END) FROM events e"  # noqa: S608
        f" WHERE e.task_id = {tasks}.id AND (e.from_phase = 'running') <> (e.to_phase = 'running')"
        f" AND EXISTS (SELECT 1 FROM events f WHERE f.task_id = {tasks}.id AND f.seq = 1))"
    )
