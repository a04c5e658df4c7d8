"""When an agent looks up by itself, and whether what it then says is worth telling.

A heartbeat is a turn that nobody asked for: the timer of a main session rings (every so often, or because
somebody said `wake`), and if there is a reason (something happened, or its workspace has a checklist) it reads
its own prompt. `HEARTBEAT_OK` is its word for "nothing to tell".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clutch.core.agents import Heartbeat
from clutch.core.wording.results import silence

ALL_QUIET = "HEARTBEAT_OK"
CHECKLIST = "HEARTBEAT.md"  #: in the workspace; without it only an event is a reason
LAST, NOBODY = "last", "none"  #: targets; anything else is a route
LOOKS_AGAIN_S = 60.0  # at a session that waits for a person: nobody knows for how long


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a ringing timer comes to. `next_at`: None = it does not ring again by itself."""

    beats: bool
    next_at: float | None


def pulse(
    rules: Heartbeat, *, now: float, has_reason: bool, free_at: float | None = None, is_regular: bool = True
) -> Pulse:
    """`free_at`: it is in a turn, and may be free then; None = nobody is at work on it.

    `is_regular`: the agent has a heartbeat; one that has none is only ever woken by others."""
    opens_at = now if rules.active_hours is None else rules.active_hours.opens_at(now)
    if opens_at is None or opens_at > now:
        return Pulse(False, opens_at)
    if free_at is not None:
        return Pulse(False, max(free_at, now + rules.busy_retry_s))
    return Pulse(has_reason, now + rules.every_s if is_regular else None)


#: What a model puts before and after a word of its own: spaces, Markdown, tags, a full stop.
_BEFORE = re.compile(r"(?:[\s*_`~#>\"'-]|<[^<>]*>|&nbsp;)*")
_AFTER = re.compile(r"(?:[\s*_`~.!\"']|<[^<>]*>|&nbsp;)*")


def alert(reply: str, ack_chars_max: int) -> str | None:
    """What of a heartbeat's last words a person should hear; None = nothing.

    The token counts at either end only; in the middle of a text it is part of the text."""
    if silence(reply) is not None or not reply.strip():
        return None
    rest = _without_last(_without_first(reply)).strip()
    if len(rest) < len(reply.strip()) and len(rest) <= ack_chars_max:
        return None
    return rest


def _without_first(text: str) -> str:
    begins = _matched(_BEFORE, text, 0)
    ends = begins + len(ALL_QUIET)
    if not text.startswith(ALL_QUIET, begins) or text[ends : ends + 1].isalnum():
        return text
    return text[_matched(_AFTER, text, ends) :]


def _without_last(text: str) -> str:
    begins = text.rfind(ALL_QUIET)
    ends = begins + len(ALL_QUIET)
    if begins < 0 or _matched(_AFTER, text, ends) < len(text):
        return text
    rest = text[:begins]
    is_end_of_a_word = rest.rstrip("_")[-1:].isalnum()
    return text if is_end_of_a_word else rest.rstrip("*_`~ \n")


def _matched(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
