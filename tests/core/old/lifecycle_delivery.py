"""Telling the requester: told, tried again, given up; a second small machine over `announcing`."""

from __future__ import annotations

from typing import Any

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.model import FINISHED, Delivery, Hook, Phase, Task
from tests.core.old import transition
from tests.core.old.transition import BUSY, MISSING, QUIET_HOURS, Story, has_letter

# --------------------------------------------------------------------------------------------------
# After the telling: cleanup, the two ends, and a new generation of what had finished.

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
        story.do(fx.NotifyEnded(reason))


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
            transition.overtake(story)
        transition.new_generation(story, event.how, plan_round=0, **old)
        transition.make_room(story)
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


DROPPED = "dropped"


def delivered(story: Story, event: ev.Delivered) -> None:
    """Also after a give-up: a model has answered a request that contains the result. And after an unsure send: an
    operator sent the message again."""
    task, reason = story.task, f"delivered: {event.path}"
    is_open = has_letter(task) or task.delivery in (Delivery.UNDELIVERED, Delivery.UNSURE)
    if event.generation != task.generation or not is_open:
        return
    done = {"delivery": Delivery.DELIVERED, "delivery_reason": event.path}
    if task.delivery is Delivery.UNSURE:
        return story.note(reason, **done)
    if task.phase is Phase.CLEANUP_PENDING:
        story.note(reason, **done)
        return clean_up(story)  # what a give-up leaves in place goes as well
    tellable(story)
    clean(story, reason, **done)


def unheard(story: Story, event: ev.Unheard) -> None:
    if event.generation == story.task.generation and has_letter(story.task):
        tellable(story)
        clean(story, f"unsure: {event.why}", delivery=Delivery.UNSURE, delivery_reason=event.why)


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
        story.do(fx.NotifyUser(reason))
    clean(story, f"undelivered: {reason}")


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
        clean(story, "skipped: requester killed")


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
        story.note(why, delivery=Delivery.SKIPPED, delivery_reason=why, wake_at=left_alone_at(story))
        clean_up(story)
