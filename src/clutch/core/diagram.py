"""The phases of a task as a picture, drawn from the edges themselves so that it cannot be out of date.

Knows the text format of the picture and nothing of how it is shown. The many edges of a kill become one.
"""

from __future__ import annotations

from clutch.core.lifecycle import EDGES
from clutch.core.model import FINISHED, Phase

#: The ways into cleanup that are no kill; every other edge that ends there is one.
_CLEANUP_WORDS = {Phase.ENDING: "skipped", Phase.ANNOUNCING: "told, or given up"}
_KILLED_FROM = "not_told_yet"


def mermaid() -> str:
    """A `stateDiagram-v2`; the same text every time."""
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
    """One box that names every phase a kill can end."""
    names = ", ".join(phase for phase in Phase if (phase, Phase.CLEANUP_PENDING) in EDGES)
    return [f'state "{names}" as {_KILLED_FROM}', f"{_KILLED_FROM} --> {Phase.CLEANUP_PENDING} : kill"]
