"""Handlers of `lifecycle.TRANSITIONS` for a task that has ended: delivery, cleanup, and the session that stays.

A handler is called in the phases that the table names; it checks other fields only."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.events import Story
from clutch.core.model import REASONS, Delivery, Hook, Phase, Reason, Task, reason_text

DAY_S = 86_400.0
#: Nothing is left to deliver: the parent has the result, or is never to get it.
OVER = frozenset({Delivery.DELIVERED, Delivery.SKIPPED, Delivery.UNSURE})


def when_due(handler: Callable[[Story, ev.Woke], None]) -> Callable[[Story, ev.Woke], None]:
    """Call the handler only if the task's timer is due: another transaction may have moved it since it was read."""

    @wraps(handler)
    def checked(story: Story, event: ev.Woke) -> None:
        wake_at = story.task.wake_at
        if wake_at is not None and story.at >= wake_at:
            handler(story, event)

    return checked


@when_due
def timer_cleared(story: Story, _: ev.Woke) -> None:
    """Clear a timer that means nothing in this phase, so that it does not ring for ever."""
    story.change(wake_at=None)


def has_letter(task: Task) -> bool:
    """Return whether the task has an outcome and its letter waits. A task that waits for its children has none yet."""
    return task.outcome is not None


# --------------------------------------------------------------------------------------------------
# Delivery to the parent: delivered, deferred, retried, given up.


def delivered(story: Story, event: ev.Delivered) -> None:
    """The parent's model answered a request that contains the result."""
    if event.generation == story.task.generation and has_letter(story.task):
        _clean_delivered(story, event)


def delivered_after_giveup(story: Story, event: ev.Delivered) -> None:
    """A dead letter stands in the parent's transcript: the next answer of its model delivers it."""
    if event.generation == story.task.generation and story.task.delivery is Delivery.UNDELIVERED:
        _clean_delivered(story, event)


def _clean_delivered(story: Story, event: ev.Delivered) -> None:
    clean(story, Reason.DELIVERED, event.path, **_delivered(event))


def _delivered(event: ev.Delivered) -> dict[str, Any]:
    return {"delivery": Delivery.DELIVERED, "delivery_reason": REASONS[event.path]}


def delivered_after_all(story: Story, event: ev.Delivered) -> None:
    """Delivered during or after cleanup: it had been given up, or an operator sent an unsure message again."""
    task = story.task
    is_open = task.delivery in (Delivery.UNDELIVERED, Delivery.UNSURE)
    if event.generation != task.generation or not is_open:
        return
    story.note(Reason.DELIVERED, event.path, **_delivered(event))
    if task.delivery is Delivery.UNDELIVERED:
        # A give-up leaves files in place for a redelivery. They are not needed any more.
        clean_up(story)


def unconfirmed(story: Story, event: ev.Unconfirmed) -> None:
    if event.generation == story.task.generation and has_letter(story.task):
        clean(story, Reason.UNSURE, event.why, delivery=Delivery.UNSURE, delivery_reason=Reason.UNSURE)


def deferred(story: Story, event: ev.Deferred) -> None:
    """Record once why the parent does not read the letter, and again if it waited for a turn that ended at night."""
    task = story.task
    is_news = task.delivery is Delivery.WAITING or (
        task.delivery_reason is Reason.BUSY and event.reason is Reason.QUIET_HOURS
    )
    if is_news and event.generation == task.generation:
        put_off = {"delivery": Delivery.DEFERRED, "delivery_reason": event.reason}
        story.note(Reason.DEFERRED, event.reason, **put_off)
        story.trace(Delivery.DEFERRED, event.reason, event.until)


def read(story: Story, event: ev.Read) -> None:
    """Clear the deferral: its cause is resolved."""
    task = story.task
    if task.delivery is Delivery.DEFERRED and event.generation == task.generation:
        story.note(Reason.READ, delivery=Delivery.WAITING, delivery_reason=Reason.NONE)


def delivery_failed(story: Story, event: ev.DeliveryFailed) -> None:
    task, rules = story.task, story.policy.announcing
    if event.generation != task.generation:
        return
    attempts = task.attempts + 1
    waiting = {"delivery": Delivery.WAITING, "delivery_reason": Reason.NONE}
    story.note(Reason.ATTEMPT, f"{attempts} failed: {event.error[:200]}", attempts=attempts, **waiting)
    if event.is_permanent:
        return give_up(story, Reason.PERMANENT_ERROR)
    delay = rules.delay_s(attempts, seed=task.id, expects_completion=task.expects_completion)
    if delay is None:
        return give_up(story, Reason.EXPIRY if rules.slow else Reason.RETRY_LIMIT)
    story.do(fx.GiveBack(task.generation, story.at + delay))


def give_up(story: Story, reason: Reason) -> None:
    story.change(delivery=Delivery.UNDELIVERED, delivery_reason=reason)
    story.do(fx.Bury(story.task.generation))
    # A cap that drops was set on purpose: its user needs no notice.
    if reason is not Reason.DROPPED:
        story.do(fx.NotifyUser(reason))
    clean(story, Reason.UNDELIVERED, reason)


def requester_gone(story: Story, event: ev.RequesterGone) -> None:
    if event.generation == story.task.generation:
        story.to(
            Phase.ANNOUNCE_DEFERRED,
            Reason.MISSING,
            delivery=Delivery.DEFERRED,
            delivery_reason=Reason.MISSING,
            wake_at=story.at + story.policy.announcing.until_s,
        )
        story.trace(Delivery.DEFERRED, Reason.MISSING, story.task.wake_at)


def requester_back(story: Story, _: ev.RequesterBack) -> None:
    if has_letter(story.task):
        story.to(Phase.ANNOUNCING, Reason.REQUESTER_BACK, **_waiting())


def _waiting() -> dict[str, Any]:
    return {"delivery": Delivery.WAITING, "delivery_reason": Reason.NONE, "wake_at": None}


def requester_killed(story: Story, event: ev.RequesterKilled) -> None:
    if event.generation == story.task.generation and has_letter(story.task):
        story.change(delivery=Delivery.SKIPPED, delivery_reason=Reason.KILLED)
        story.trace(Delivery.SKIPPED, Reason.KILLED)
        clean(story, Reason.SKIPPED, Reason.REQUESTER_KILLED)


def dropped(story: Story, _: ev.Dropped) -> None:
    give_up(story, Reason.DROPPED)


def abandoned(story: Story, event: ev.Abandoned) -> None:
    if has_letter(story.task):
        give_up(story, event.reason)


# --------------------------------------------------------------------------------------------------
# Cleanup, and the two ends.


def clean(story: Story, reason: Reason, detail: str = "", **changes: Any) -> None:
    """Begin the cleanup. With nothing to remove, the task is finished in the same step."""
    # The files of a spawn that was never finished are always removed.
    is_half_made = story.task.phase is Phase.SPAWNING
    story.to(Phase.CLEANUP_PENDING, reason, detail, wake_at=None, **changes)
    tell_ended(story, reason_text(reason, detail))
    clean_up(story, is_needed=story.task.has_cleanup or is_half_made)
    if story.task.wake_at is None:
        finish(story)


def clean_up(story: Story, *, is_needed: bool | None = None) -> None:
    """Ask for the removal of files. The timer repeats the request until `Cleaned` arrives."""
    if story.task.has_cleanup if is_needed is None else is_needed:
        story.change(wake_at=story.at + story.policy.keeping.cleanup_first_s)
        story.do(fx.Cleanup())


def tell_ended(story: Story, reason: str) -> None:
    """Notify the hooks of this end, also of a second delivery: they know each end by its generation. In session mode
    they are notified when the session itself has ended."""
    if Hook.ENDED in story.policy.hooks and not story.task.stays:
        story.do(fx.NotifyEnded(reason))


def cleaned(story: Story, _: ev.Cleaned) -> None:
    finish(story)


def finish(story: Story) -> None:
    task = story.task
    if task.delivery is Delivery.UNDELIVERED:
        days = story.policy.announcing.dead_letter_days
        expires_at = story.at + days * DAY_S if days else None
        story.to(Phase.COMPLETED_GIVEUP, task.reason, task.detail, wake_at=expires_at)
    else:
        story.to(Phase.COMPLETED, task.reason, task.detail, wake_at=left_alone_at(story))


def awaits_removal(task: Task) -> bool:
    """Return whether the files of a given-up task are being removed: its dead letter was dismissed, or has expired."""
    return task.delivery is Delivery.SKIPPED and task.has_cleanup and task.wake_at is not None


def removed_after_giveup(story: Story, _: ev.Cleaned) -> None:
    if awaits_removal(story.task):
        story.change(wake_at=None)


def cleanup_failed(story: Story, event: ev.CleanupFailed) -> None:
    """Try again later. A failed cleanup never changes outcome or delivery."""
    delay_s = story.policy.keeping.cleanup_delay_s(event.failed)
    story.note(Reason.CLEANUP_FAILED, event.error, wake_at=story.at + delay_s)


def removal_failed_after_giveup(story: Story, event: ev.CleanupFailed) -> None:
    if awaits_removal(story.task):
        cleanup_failed(story, event)


@when_due
def cleanup_overdue(story: Story, _: ev.Woke) -> None:
    clean_up(story, is_needed=True)


# --------------------------------------------------------------------------------------------------
# Dead letters: redelivered, dismissed, expired.


def redelivered(story: Story, _: ev.Redelivered) -> None:
    task = story.task
    if task.delivery is Delivery.UNDELIVERED:
        story.to(Phase.ANNOUNCING, Reason.REDELIVERED, attempts=0, **_waiting())
        story.do(fx.Redrive(task.generation))


def dismissed(story: Story, _: ev.Dismissed) -> None:
    if story.task.delivery is Delivery.UNDELIVERED:
        let_go(story, Reason.DISMISSED)


@when_due
def giveup_timer(story: Story, event: ev.Woke) -> None:
    """The timer of a dead letter ends it, the timer of a session that stays checks its last use, and the timer of a
    removal repeats it."""
    task = story.task
    if task.delivery is Delivery.UNDELIVERED:
        let_go(story, Reason.LETTER_EXPIRED)
    elif task.stays and not task.has_cleanup:
        idle(story, event.progress_at)
    else:
        clean_up(story, is_needed=True)


def let_go(story: Story, why: Reason) -> None:
    """Take a dead letter off the lists, and remove the files that were kept for its redelivery."""
    story.note(why, delivery=Delivery.SKIPPED, delivery_reason=why, wake_at=left_alone_at(story))
    clean_up(story)


# --------------------------------------------------------------------------------------------------
# Session mode: the session outlives its task.


def session_ended_at_work(story: Story, event: ev.SessionEnded) -> None:
    """The session of a task that works ends together with the task."""
    if story.task.outcome is not None:
        session_ended(story, event)
    elif story.task.stays:
        story.note(Reason.SESSION_ENDED, event.reason, stays=False)


def session_ended(story: Story, event: ev.SessionEnded) -> None:
    end_session(story, event.reason)


def session_killed(story: Story, event: ev.Killed) -> None:
    """A kill does not change an outcome; it ends a session that outlived its task."""
    end_session(story, reason_text(Reason.KILLED, event.reason))


def finished_session_ended(story: Story, event: ev.SessionEnded) -> None:
    end_finished_session(story, event.reason)


def finished_session_killed(story: Story, event: ev.Killed) -> None:
    end_finished_session(story, reason_text(Reason.KILLED, event.reason))


@when_due
def completed_timer(story: Story, event: ev.Woke) -> None:
    if story.task.stays and not story.task.has_cleanup:
        idle(story, event.progress_at)
    else:
        story.change(wake_at=None)


def idle(story: Story, used_at: float | None) -> None:
    """End a session that stays if it has not been used for long enough, or is too old."""
    ends_at = _leaves_at(story, max(used_at or 0.0, story.task.ended_at or 0.0))
    if ends_at > story.at:
        return story.change(wake_at=ends_at)
    end_finished_session(story, "idle or old" if story.policy.threads.age_max_s else "idle")


def end_finished_session(story: Story, reason: str) -> None:
    # The timer looked after the session. Only a dead letter still needs it, to expire.
    if story.task.stays and story.task.delivery is not Delivery.UNDELIVERED:
        story.change(wake_at=None)
    end_session(story, reason)


def end_session(story: Story, reason: str) -> None:
    if story.task.stays:
        story.note(Reason.SESSION_ENDED, reason, stays=False)
        tell_ended(story, reason)
        story.do(fx.Stop(reason), fx.Close(), fx.Unbind())


def left_alone_at(story: Story) -> float | None:
    """Return when to check whether a session that stays is still used. With a dead letter, that expires first."""
    return _leaves_at(story, story.at) if story.task.stays else None


def _leaves_at(story: Story, used_at: float) -> float:
    rules = story.policy.threads
    idle_at = used_at + rules.idle_s
    return min(idle_at, (story.task.started_at or 0.0) + rules.age_max_s) if rules.age_max_s else idle_at


# --------------------------------------------------------------------------------------------------
# Lines that change nothing, in every phase.


def late(story: Story, event: ev.Late) -> None:
    story.note(Reason.LATE, event.text[:200])


def noted(story: Story, event: ev.Noted) -> None:
    story.note(event.reason, event.text[:200])
