"""What the parts of this comparison say to each other besides `w_job`: the walk of the long history, one session.

Only the standard library: adapters import it in the environments of their peers.
"""

from __future__ import annotations

import re
from typing import Final

_WALK: Final = re.compile(r"Walk (\d+) steps")
_SEEN: Final = re.compile(r"item (\d+): \d+ doors")


def walk(steps: int) -> str:
    return f"Walk {steps} steps: look up one item after the other, then say that you have arrived."


def steps_in(text: str) -> int | None:
    """How many model calls a walk has; None: these are not the words of a walk."""
    found = _WALK.search(text)
    return int(found[1]) if found else None


def last_seen_in(text: str) -> int:
    """The last item that was looked up; -1: none."""
    found = _SEEN.findall(text)
    return int(found[-1]) if found else -1
