"""How a task stands, in a few words for people: what it waits for and until when, or that nothing moves."""

from __future__ import annotations

from datetime import UTC, datetime

from clutch.core.model import UNTIL_ANSWERED, Phase

STALLED = "stalled"


def state_words(
    phase: Phase,
    reason: str,
    *,
    at: float,
    parked_until: float | None,
    moved_at: float | None,
    stalled_s: float,
) -> str:
    """`paused(quota) until 15:20`, `running (stalled)`, or the phase itself. Times are UTC."""
    match phase:
        case Phase.PAUSED:
            words = f"{phase}({reason})"
            if parked_until is None or not at < parked_until < UNTIL_ANSWERED:
                return words
            return f"{words} until {datetime.fromtimestamp(parked_until, UTC):%H:%M}"
        case Phase.RUNNING if moved_at is not None and at - moved_at > stalled_s:
            return f"{phase} ({STALLED})"
        case _:
            return str(phase)
