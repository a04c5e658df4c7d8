"""What a serial simulator cannot see and PostgreSQL would punish: writes without the key, locks upside down.

A transaction given to `tx(keys, …)` writes the rows of the sessions and budgets in its keys only. It may also insert
letters for others, make children, and step the tasks of *closed* sessions whose letters it reads: no other
transaction writes those. One that runs alone may write many. Both lock ancestors before descendants, so that two
of them never wait for each other in a circle. `claim` skips what others have locked and never waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from clutch.testing.invariants.history import Change, History
from clutch.testing.invariants.registry import CheckContext, invariant
from clutch.testing.simulation.disk import Made

#: never wait for a lock, so their order is free
NEVER_WAIT: Final = frozenset({"claim"})


@invariant("lockdep", "sessions", "writes stay within the keys, and locks go from the top down")
def _offences(change: Change, context: CheckContext) -> Iterator[str]:
    yield from offences(change, context.history)


def offences(change: Change, history: History) -> Iterator[str]:
    for made in change.made:
        if made.keys is not None:
            yield from _foreign_writes(made, made.keys, change)
        if made.name not in NEVER_WAIT:
            yield from _upside_down(made, history)


def _foreign_writes(made: Made, keys: tuple[int, ...], change: Change) -> Iterator[str]:
    for name in made.purses:
        if _purse_key(name) not in keys:
            yield f"{made.name} with keys {keys} wrote budget {name}"
    for table, row_id in made.written:
        wrong: str | None = None
        match table:
            case "sessions":
                is_new = row_id in change.sessions and change.sessions[row_id][0] is None
                if not is_new and row_id not in keys:
                    wrong = f"session {row_id}"
            case "tasks":
                wrong = _foreign_task(row_id, keys, change)
            case "inbox":
                wrong = _foreign_letter(row_id, keys, change)
            case "runs":
                _, run = change.runs[row_id]
                if run.session_id not in keys:
                    wrong = f"run {row_id} of session {run.session_id}"
            case _:
                pass  # workers, lanes, outbox: not a session's
        if wrong is not None:
            yield f"{made.name} with keys {keys} wrote {wrong}"


def _purse_key(name: str) -> int:
    kind, _, number = name.partition(":")
    return -1 if kind == "day" else -int(number)


def _foreign_task(task_id: int, keys: tuple[int, ...], change: Change) -> str | None:
    if task_id in keys:
        return None
    if task_id not in change.tasks:
        return f"task {task_id}, which is gone"
    before, after = change.tasks[task_id]
    if before is None:
        return None
    # An ended task: its own session is closed, and the transaction that reads its letter has the letter's key.
    return None if before.outcome is not None else f"task {task_id} in {after.phase}"


def _foreign_letter(letter_id: int, keys: tuple[int, ...], change: Change) -> str | None:
    before, after = change.letters[letter_id]
    if before is None or after.task_id in keys:
        return None
    # `after`: a neighbour in the batch may have passed it on to this session a statement ago.
    if before.session_id in keys or after.session_id in keys:
        return None
    return f"letter {letter_id} of session {before.session_id}"


def _upside_down(made: Made, history: History) -> Iterator[str]:
    met: list[int] = []
    written = [row_id for table, row_id in made.written if table == "sessions"]
    for session_id in dict.fromkeys([*made.locked, *written]):
        below = next((other for other in met if session_id in _ancestors(other, history)), None)
        if below is not None:
            yield f"{made.name} locked session {below} before its ancestor {session_id}"
        met.append(session_id)


def _ancestors(session_id: int, history: History) -> Iterator[int]:
    session = history.session(session_id)
    while session is not None and session.parent_id is not None:
        yield session.parent_id
        session = history.session(session.parent_id)
