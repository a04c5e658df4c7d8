"""The phases of a task as a diagram and as a table, made from the tables of the state machine."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, get_args

from clutch.core import events as ev
from clutch.core.events import EDGES
from clutch.core.lifecycle import TRANSITIONS
from clutch.core.model import FINISHED, Phase

#: The ways into cleanup that are no kill; every other edge that ends there is one.
_CLEANUP_WORDS = {Phase.ENDING: "skipped", Phase.ANNOUNCING: "delivered, or given up"}
_KILLED_FROM = "not_delivered_yet"

LETTERS = """\
## The life of a letter

The allowed changes of a letter's state are `core/model.LETTER_MOVES`, with the cause of each. An open letter that a run
has taken stays open until the model has answered; that commit is its delivery. `transactions/inbox.move` makes the SQL
of a move and refuses any other.
"""

RUNS = """\
## The life of a run

The allowed changes of a run's state are `core/run.RUN_MOVES`. Only a parked run has a time, `parked_until`, at which it
is due.
"""

INTRODUCTION = """\
For engineers who change Clutch. [Concepts](../concepts/index.md) has the status that users see.

A task is in one phase at a time, and an event calls the function that `core/lifecycle.TRANSITIONS` names for the phase
and the event. An empty cell means that the event does not change a task in this phase. A function may also leave the
task as it is, for example because the event belongs to an older generation.

The functions are in `src/clutch/core/lifecycle_run.py` (until the task has an outcome) and
`src/clutch/core/lifecycle_delivery.py` (after it), the events in `src/clutch/core/events.py`. The edges of the diagram
are `core/events.EDGES`.
"""


def mermaid() -> str:
    """Return a `stateDiagram-v2` of the edges; the many edges of a kill are one arrow."""
    lines = ["stateDiagram-v2", f"[*] --> {Phase.SPAWNING}", *_arrows(), *_kill()]
    lines += [f"{phase} --> [*]" for phase in Phase if phase in FINISHED]
    return "\n    ".join(lines) + "\n"


def _arrows() -> list[str]:
    drawn = []
    for start in Phase:
        for end in Phase:
            if (start, end) not in EDGES:
                continue
            if end is not Phase.CLEANUP_PENDING:
                drawn.append(f"{start} --> {end}")
            elif start in _CLEANUP_WORDS:
                drawn.append(f"{start} --> {end} : {_CLEANUP_WORDS[start]}")
    return drawn


def _kill() -> list[str]:
    """Return one box that names every phase a kill can end."""
    names = ", ".join(phase for phase in Phase if (phase, Phase.CLEANUP_PENDING) in EDGES)
    return [f'state "{names}" as {_KILLED_FROM}', f"{_KILLED_FROM} --> {Phase.CLEANUP_PENDING} : kill"]


def matrix() -> list[str]:
    """Return a Markdown table: a row for each event, a column for each phase, the handler where they meet."""
    rows = [["event", *(f"`{phase}`" for phase in Phase)], ["---"] * (len(Phase) + 1)]
    rows += [
        [f"`{event.__name__}`", *(_cell(phase, event) for phase in Phase)] for event in get_args(ev.Event)
    ]
    return [f"| {' | '.join(row)} |" for row in rows]


def _cell(phase: Phase, event: type[ev.Event]) -> str:
    handler = TRANSITIONS.get((phase, event))
    return "" if handler is None else handler.__name__.replace("_", " ")


def moves(table: Mapping[tuple[Any, Any], str]) -> str:
    """Return a `stateDiagram-v2` of a table of moves with their causes. None is the beginning."""

    def named(state: Enum | None) -> str:
        return "[*]" if state is None else state.name.lower()

    arrows = [f"{named(start)} --> {named(end)} : {cause}" for (start, end), cause in table.items()]
    return "\n    ".join(["stateDiagram-v2", *arrows]) + "\n"
