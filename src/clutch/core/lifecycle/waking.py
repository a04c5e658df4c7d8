"""A task's one timer rings: what that means depends on where it stands."""

from __future__ import annotations

from clutch.core import effects as fx
from clutch.core import events as ev
from clutch.core.lifecycle import after, ending, telling
from clutch.core.lifecycle.story import DESCENDANTS, Story
from clutch.core.model import Delivery, Outcome, Phase
from clutch.core.policy import ExpiryFrom


def woke(story: Story, event: ev.Woke) -> None:
    task = story.task
    if task.wake_at is None or event.at < task.wake_at:
        return
    match task.phase:
        case Phase.SPAWNING:
            story.do(fx.Unmake(f"not ready within {story.policy.limits.reservation_s:g} s"))
        case Phase.RUNNING:
            alarm_rings(story, event)
        case Phase.ENDING:
            ending.settle(story, event.at, Outcome.ERROR, task.result, error=task.error)
        case Phase.AWAITING_APPROVAL:
            ending.reject(story, event.at, "plan expired")
        case Phase.ANNOUNCE_DEFERRED if task.reason == DESCENDANTS:
            settle_expired(story, event)
        case Phase.ANNOUNCE_DEFERRED:
            story.to(Phase.ANNOUNCING, "nobody came back", wake_at=None)
            telling.give_up(story, "no-requester")
        case Phase.COMPLETED_GIVEUP if task.delivery is Delivery.UNDELIVERED:
            telling.let_go(story, "expired")
        case Phase.COMPLETED | Phase.COMPLETED_GIVEUP if task.stays and not task.has_cleanup:
            after.idle(story, event.progress_at)
        case Phase.CLEANUP_PENDING | Phase.COMPLETED_GIVEUP:
            after.clean_up(story, is_needed=True)
        case _:
            story.change(wake_at=None)


def alarm_rings(story: Story, event: ev.Woke) -> None:
    task = story.task
    if task.deadline_at is None or not event.is_owned:
        # Nobody works on it, so its clock stands; whoever takes over sets the alarm anew.
        return story.change(wake_at=None)
    if event.at < task.deadline_at:
        story.do(fx.WrapUp(task.deadline_at - event.at))
        return story.change(wake_at=task.deadline_at)
    story.do(fx.Stop("timeout"))
    ending.settle(story, event.at, Outcome.TIMEOUT, event.partial)


def settle_expired(story: Story, event: ev.Woke) -> None:
    """The wait is measured from the last sign of life below, and not at all while a person is asked."""
    expiry, ended_at = story.policy.life.settle_expiry_s, story.task.ended_at or 0.0
    alive_at = event.at if event.person_waits else max(event.progress_at or 0.0, ended_at)
    if story.policy.life.settle_expiry_from is ExpiryFrom.END:
        alive_at = ended_at
    if alive_at + expiry > event.at:
        return story.change(wake_at=alive_at + expiry)
    ending.expired(story, event.at)
