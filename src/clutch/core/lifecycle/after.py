"""After the telling: cleanup, the two ends, and a new generation of what had finished."""

from __future__ import annotations

from typing import Any

from clutch.core import effects as fx
from clutch.core.lifecycle import running
from clutch.core.lifecycle.story import Story
from clutch.core.model import FINISHED, Delivery, Phase

CLEANUP_RETRY_S = 60.0  # a sweeper tick
DAY_S = 86_400.0


def clean(story: Story, reason: str, **changes: Any) -> None:
    """Cleanup comes before both ends. With nothing to clean it is over in the same step."""
    is_half_made = (
        story.task.phase is Phase.SPAWNING
    )  # its files are wanted by nobody, whatever was asked for
    story.to(Phase.CLEANUP_PENDING, reason, wake_at=None, **changes)
    clean_up(story, is_needed=story.task.has_cleanup or is_half_made)
    if story.task.wake_at is None:
        cleaned(story)


def clean_up(story: Story, *, is_needed: bool | None = None) -> None:
    """Until somebody says that it is done, the timer asks for it again."""
    if story.task.has_cleanup if is_needed is None else is_needed:
        story.change(wake_at=story.at + CLEANUP_RETRY_S)
        story.do(fx.Cleanup())


def cleaned(story: Story) -> None:
    task = story.task
    if task.phase is Phase.CLEANUP_PENDING:
        if task.delivery is Delivery.UNDELIVERED:
            days = story.policy.announcing.dead_letter_days
            expires_at = story.at + days * DAY_S if days else None
            story.to(Phase.COMPLETED_GIVEUP, task.reason, wake_at=expires_at)
        else:
            story.to(Phase.COMPLETED, task.reason, wake_at=None)
    elif task.phase is Phase.COMPLETED_GIVEUP and task.delivery is Delivery.SKIPPED:
        story.change(wake_at=None)


def again(story: Story, how: str) -> None:
    if story.task.phase in FINISHED:
        running.new_generation(story, how, plan_round=0)
        story.do(fx.Open(keep_transcript=how != "retry"), fx.Schedule())
