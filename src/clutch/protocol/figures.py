"""Reads for reports: what the ledger says about all the work below one root, and about one worker."""

from __future__ import annotations

from dataclasses import dataclass

from clutch.store.door import Tx


@dataclass(frozen=True, slots=True)
class Figures:
    root_turns: int  #: runs of the root session itself
    tool_calls: int  #: by anybody in the tree
    models: tuple[str, ...]  #: that answered, by their own names
    replies: tuple[str, ...]  #: what the root said to its person, in order


def figures(now: float, root_id: int) -> Tx[Figures]:
    del now
    turns = yield "SELECT COUNT(*) FROM runs WHERE session_id = ?", (root_id,)
    calls = yield (
        "SELECT COUNT(*) FROM calls c JOIN sessions s ON s.id = c.session_id WHERE s.root_id = ?",
        (root_id,),
    )
    models = yield (
        "SELECT DISTINCT u.effective FROM usage u JOIN sessions s ON s.id = u.session_id"
        " WHERE s.root_id = ? AND u.state = 1 ORDER BY u.effective",
        (root_id,),
    )
    said = yield "SELECT body FROM outbox WHERE session_id = ? ORDER BY id", (root_id,)
    return Figures(
        int(turns[0][0]), int(calls[0][0]), tuple(row[0] for row in models), tuple(row[0] for row in said)
    )


def frozen_results(now: float, root_id: int) -> Tx[dict[int, str]]:
    """The text of each ended task below a root."""
    del now
    rows = yield "SELECT id, result FROM tasks WHERE root_id = ? AND result IS NOT NULL", (root_id,)
    return {row[0]: str(row[1]) for row in rows}


def is_registered(now: float, pid: int) -> Tx[bool]:
    """Has this process taken up work?"""
    del now
    return bool((yield "SELECT 1 FROM workers WHERE pid = ?", (pid,)))


def held(now: float, pid: int) -> Tx[int]:
    """How many sessions a process holds; of a dead one, how many it held when it died."""
    del now
    rows = yield "SELECT COUNT(*) FROM sessions s JOIN workers w ON w.id = s.owner WHERE w.pid = ?", (pid,)
    return int(rows[0][0])
