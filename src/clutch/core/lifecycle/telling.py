"""Telling the requester: told, tried again, given up; a second small machine over `announcing`."""

from __future__ import annotations

from clutch.core import effects as fx
from clutch.core import events as ev
from clutch.core.lifecycle import after
from clutch.core.lifecycle.story import BUSY, MISSING, QUIET_HOURS, Story, has_letter
from clutch.core.model import Delivery, Phase

DROPPED = "dropped"


def delivered(story: Story, event: ev.Delivered) -> None:
    if event.generation != story.task.generation or not has_letter(story.task):
        return
    tellable(story)
    after.clean(story, f"delivered: {event.path}", delivery=Delivery.DELIVERED, delivery_reason=event.path)


def unheard(story: Story, event: ev.Unheard) -> None:
    if event.generation == story.task.generation and has_letter(story.task):
        tellable(story)
        after.clean(story, "sent, but no answer heard", delivery=Delivery.UNSURE, delivery_reason="unsure")


def tellable(story: Story) -> None:
    if story.task.phase is Phase.ANNOUNCE_DEFERRED:
        story.to(Phase.ANNOUNCING, "requester is back")


def deferred(story: Story, event: ev.Deferred) -> None:
    """The letter lies in the inbox all the same; once is enough to say why nobody reads it, unless a turn that it
    waited for ends in the night."""
    task = story.task
    is_news = task.delivery is Delivery.WAITING or (task.delivery_reason, event.reason) == (BUSY, QUIET_HOURS)
    if task.phase is Phase.ANNOUNCING and is_news and event.generation == task.generation:
        put_off = {"delivery": Delivery.DEFERRED, "delivery_reason": event.reason}
        story.note(f"deferred: {event.reason}", **put_off)
        story.trace(Delivery.DEFERRED, event.reason, event.until)


def read(story: Story, event: ev.Read) -> None:
    """What it was put off for is over."""
    task = story.task
    is_deferred = task.phase is Phase.ANNOUNCING and task.delivery is Delivery.DEFERRED
    if is_deferred and event.generation == task.generation:
        story.note("no longer deferred", delivery=Delivery.WAITING, delivery_reason="")


def delivery_failed(story: Story, event: ev.DeliveryFailed) -> None:
    task, rules = story.task, story.policy.announcing
    if event.generation != task.generation or task.phase is not Phase.ANNOUNCING:
        return
    attempts = task.attempts + 1
    waiting = {"delivery": Delivery.WAITING, "delivery_reason": ""}
    story.note(f"attempt {attempts} failed: {event.error[:200]}", attempts=attempts, **waiting)
    if event.is_permanent:
        return give_up(story, "permanent-error")
    delay = rules.delay_s(attempts, seed=task.id, expects_completion=task.expects_completion)
    if delay is None:
        return give_up(story, "expiry" if rules.slow else "retry-limit")
    story.do(fx.GiveBack(task.generation, event.at + delay))


def give_up(story: Story, reason: str) -> None:
    story.change(delivery=Delivery.UNDELIVERED, delivery_reason=reason)
    story.do(fx.Bury(story.task.generation))
    if reason != DROPPED:  # whoever set a cap that drops knows that it does
        story.do(fx.TellPerson(reason))
    after.clean(story, f"undelivered: {reason}")


def requester_gone(story: Story, event: ev.RequesterGone) -> None:
    if event.generation == story.task.generation and story.task.phase is Phase.ANNOUNCING:
        story.to(
            Phase.ANNOUNCE_DEFERRED,
            MISSING,
            delivery=Delivery.DEFERRED,
            delivery_reason=MISSING,
            wake_at=event.at + story.policy.announcing.until_s,
        )
        story.trace(Delivery.DEFERRED, MISSING, story.task.wake_at)


def requester_back(story: Story) -> None:
    if story.task.phase is Phase.ANNOUNCE_DEFERRED and story.task.reason == MISSING:
        waiting = {"delivery": Delivery.WAITING, "delivery_reason": "", "wake_at": None}
        story.to(Phase.ANNOUNCING, "requester is back", **waiting)


def requester_killed(story: Story, event: ev.RequesterKilled) -> None:
    if event.generation == story.task.generation and has_letter(story.task):
        tellable(story)
        story.change(delivery=Delivery.SKIPPED, delivery_reason="killed")
        story.trace(Delivery.SKIPPED, "killed")
        after.clean(story, "skipped: requester killed")


def dropped(story: Story) -> None:
    if story.task.phase is Phase.ANNOUNCING:
        give_up(story, DROPPED)


def abandoned(story: Story, reason: str) -> None:
    if has_letter(story.task):
        tellable(story)
        give_up(story, reason)


def redelivered(story: Story) -> None:
    task = story.task
    if task.phase is Phase.COMPLETED_GIVEUP and task.delivery is Delivery.UNDELIVERED:
        again = {"attempts": 0, "delivery": Delivery.WAITING, "delivery_reason": "", "wake_at": None}
        story.to(Phase.ANNOUNCING, "redelivered", **again)
        story.do(fx.Redrive(task.generation))


def let_go(story: Story, why: str) -> None:
    """A dead letter leaves the lists. What a give-up left for whoever might redeliver it is not needed any more."""
    task = story.task
    if task.phase is Phase.COMPLETED_GIVEUP and task.delivery is Delivery.UNDELIVERED:
        story.note(why, delivery=Delivery.SKIPPED, delivery_reason=why, wake_at=after.left_alone_at(story))
        after.clean_up(story)
