"""After the telling: cleanup, the two ends, and a new generation of what had finished."""

from __future__ import annotations

from typing import Any

from clutch.core import effects as fx
from clutch.core import events as ev
from clutch.core.hooks import Hook
from clutch.core.lifecycle import running
from clutch.core.lifecycle.story import Story, has_letter
from clutch.core.model import FINISHED, Delivery, Phase, Task

DAY_S = 86_400.0
_OVER = frozenset({Delivery.DELIVERED, Delivery.SKIPPED, Delivery.UNSURE})


def clean(story: Story, reason: str, **changes: Any) -> None:
    """Cleanup comes before both ends. With nothing to clean it is over in the same step."""
    # Nobody wants the files of one that was never finished, whatever was asked for.
    is_half_made = story.task.phase is Phase.SPAWNING
    story.to(Phase.CLEANUP_PENDING, reason, wake_at=None, **changes)
    tell_ended(story, reason)
    clean_up(story, is_needed=story.task.has_cleanup or is_half_made)
    if story.task.wake_at is None:
        cleaned(story)


def clean_up(story: Story, *, is_needed: bool | None = None) -> None:
    """Until somebody says that it is done, the timer asks for it again."""
    if story.task.has_cleanup if is_needed is None else is_needed:
        story.change(wake_at=story.at + story.policy.keeping.cleanup_first_s)
        story.do(fx.Cleanup())


def tell_ended(story: Story, reason: str) -> None:
    """Also when it is told a second time: hooks know each end by its generation. In session mode only once the session
    itself has ended."""
    if Hook.ENDED in story.policy.hooks and not story.task.stays:
        story.do(fx.TellEnded(reason))


def cleaned(story: Story) -> None:
    task = story.task
    if task.phase is Phase.CLEANUP_PENDING:
        if task.delivery is Delivery.UNDELIVERED:
            days = story.policy.announcing.dead_letter_days
            expires_at = story.at + days * DAY_S if days else None
            story.to(Phase.COMPLETED_GIVEUP, task.reason, wake_at=expires_at)
        else:
            story.to(Phase.COMPLETED, task.reason, wake_at=left_alone_at(story))
    elif awaits_cleanup(task):
        story.change(wake_at=None)


def left_alone_at(story: Story) -> float | None:
    """When to look whether a session that stays is still used. One with a dead letter waits for that first."""
    return _leaves_at(story, story.at) if story.task.stays else None


def _leaves_at(story: Story, used_at: float) -> float:
    """Left alone long enough, or old."""
    rules = story.policy.threads
    idle_at = used_at + rules.idle_s
    return min(idle_at, (story.task.started_at or 0.0) + rules.age_max_s) if rules.age_max_s else idle_at


def awaits_cleanup(task: Task) -> bool:
    """Before both ends; and a dead letter that was let go, which has had its end."""
    is_let_go = task.phase is Phase.COMPLETED_GIVEUP and task.delivery is Delivery.SKIPPED
    return task.phase is Phase.CLEANUP_PENDING or (
        is_let_go and task.has_cleanup and task.wake_at is not None
    )


def cleanup_failed(story: Story, event: ev.CleanupFailed) -> None:
    """It never changes outcome or delivery."""
    if awaits_cleanup(story.task):
        story.note(event.error, wake_at=event.at + story.policy.keeping.cleanup_delay_s(event.failed))


def again(story: Story, event: ev.Again) -> None:
    """It need not wait until the old result was heard: what is not told yet is overtaken. It does wait until what the
    last run left behind is removed: whoever removes that does not look again.

    A result that was told, or never to be told, must not stand in for one of the new run."""
    task = story.task
    is_over = task.phase in FINISHED and not awaits_cleanup(task)
    if is_over or has_letter(task):
        is_told = task.delivery in _OVER or event.is_being_read
        old = {"fallback": None} if is_told else {}
        if has_letter(task) and not event.is_being_read:
            running.overtake(story)
        running.new_generation(story, event.how, plan_round=0, **old)
        running.make_room(story)
        story.do(fx.Open(keep_transcript=event.how != "retry"), fx.Schedule())


def session_ended(story: Story, reason: str) -> None:
    """A session that outlived its task ends; one whose task still works will not outlive it."""
    task = story.task
    if not task.stays:
        return
    story.note(f"session ended: {reason}", stays=False)
    if task.outcome is not None:
        # A dead letter still expires.
        if task.phase in FINISHED and task.delivery is not Delivery.UNDELIVERED:
            story.change(wake_at=None)
        tell_ended(story, reason)
        story.do(fx.Stop(reason), fx.Close(), fx.Unbind())


def idle(story: Story, used_at: float | None) -> None:
    """Nobody has written to a session that stays."""
    ends_at = _leaves_at(story, max(used_at or 0.0, story.task.ended_at or 0.0))
    if ends_at > story.at:
        return story.change(wake_at=ends_at)
    session_ended(story, "idle or old" if story.policy.threads.age_max_s else "idle")
