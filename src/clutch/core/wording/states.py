"""How a task stands, in a few words for people: what it waits for and until when, or that nothing moves."""

from __future__ import annotations

from datetime import UTC, datetime

from clutch.core.model import UNTIL_ANSWERED, Outcome, Phase, Plan, Wait

STALLED = "stalled"
_ENDED = {
    Outcome.OK: "done",
    Outcome.ERROR: "failed",
    Outcome.TIMEOUT: "timeout",
    Outcome.KILLED: "killed",
    Outcome.LOST: "lost",
}


def status_word(phase: Phase, reason: str, outcome: Outcome | None, children: int | None = None) -> str:
    """The same word everywhere: in lists, in the prompt of a parent, on a screen."""
    if outcome is not None:
        return _ENDED[outcome]
    match phase:
        case Phase.AWAITING_APPROVAL:
            return "plan?"
        case Phase.SPAWNING | Phase.QUEUED:
            return "queued"
        case Phase.PAUSED if reason != Wait.CHILDREN:
            return "paused"
        case Phase.PAUSED | Phase.ANNOUNCE_DEFERRED:
            return f"waiting ({children} children)" if children else "waiting"
        case _:
            return "running"


def until_text(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M}"


def plan_tag(phase: Phase, plan: str) -> str:
    if phase is Phase.AWAITING_APPROVAL:
        return "[PLAN:AWAITING APPROVAL]"
    return {Plan.APPROVED.value: "[PLAN:APPROVED]", Plan.DRAFTING.value: "[PLAN]"}.get(plan, "")


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
            return f"{words} until {until_text(parked_until)}"
        case Phase.RUNNING if moved_at is not None and at - moved_at > stalled_s:
            return f"{phase} ({STALLED})"
        case _:
            return str(phase)
