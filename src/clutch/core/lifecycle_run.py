"""Handlers of `lifecycle.TRANSITIONS` for the work of a task: from its spawn to its outcome, and a new generation.

A handler is called in the phases that the table names; it checks other fields only."""

from __future__ import annotations

from typing import Any

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core import lifecycle_delivery as delivery
from clutch.core.events import Story
from clutch.core.model import REASONS, Delivery, Outcome, Phase, Plan, Reason, Task, reason_text
from clutch.core.policy import ExpiryFrom, Policy
from clutch.core.text.prompts import is_progress
from clutch.core.text.tasks import Silence, freeze, silence

# --------------------------------------------------------------------------------------------------
# Spawn and start.


def reserved(story: Story, _: ev.Reserved) -> None:
    story.note(Reason.RESERVED, wake_at=story.at + story.policy.limits.reservation_s)


def admitted(story: Story, _: ev.Admitted) -> None:
    story.to(Phase.QUEUED, Reason.ADMITTED, wake_at=None)
    story.do(fx.Schedule())


@delivery.when_due
def reservation_expired(story: Story, _: ev.Woke) -> None:
    story.do(fx.Unmake(f"not ready within {story.policy.limits.reservation_s:g} s"))


def started(story: Story, _: ev.Started) -> None:
    start(story, Reason.STARTED)


def unparked(story: Story, _: ev.Started) -> None:
    """Start a parked run. A task that the user paused stays paused."""
    if story.task.reason != Reason.PAUSE:
        start(story, Reason.UNPARKED, story.task.reason)


def restarted(story: Story, _: ev.Started) -> None:
    """Start a failed run again within the grace period: the failure does not count."""
    start(story, Reason.RESTARTED, error=None)


def children_settled(story: Story, _: ev.Started) -> None:
    """Start a new generation with the results of the children."""
    if not delivery.has_letter(story.task):
        start(story, Reason.CHILDREN_SETTLED, **fresh(story.task))


def children_settled_after_plan(story: Story, _: ev.Started) -> None:
    """Write the plan anew: the results of children came after it."""
    start(story, Reason.CHILDREN_SETTLED, **fresh(story.task))


def start(story: Story, reason: Reason, detail: str = "", **changes: Any) -> None:
    """Start the clock of a run, with the time that a park left of it."""
    task, at = story.task, story.at
    left = task.timeout_s if task.clock_left_s is None else task.clock_left_s
    deadline = at + left if task.timeout_s else None
    clock = {
        "deadline_at": deadline,
        "clock_left_s": None,
        "wake_at": alarm(task, deadline, at, story.policy),
        "started_at": task.started_at if task.started_at is not None else at,
    }
    story.to(Phase.RUNNING, reason, detail, **(changes | clock))


# --------------------------------------------------------------------------------------------------
# The run and its clock, which runs only while a worker owns the run.


def is_past(deadline: float | None, at: float) -> bool:
    """Return whether a signal of the run came after its deadline. One at the deadline itself came in time."""
    return deadline is not None and at > deadline


def alarm(task: Task, deadline: float | None, at: float, policy: Policy) -> float | None:
    """Return when the clock of a run rings next: for the wrap-up message, then for the timeout."""
    if deadline is None:
        return None
    wrap_up = deadline - (1 - policy.life.wrap_up_at) * task.timeout_s
    return wrap_up if wrap_up > at else deadline


def clock_stops(task: Task, at: float) -> dict[str, Any]:
    left = None if task.deadline_at is None else max(0.0, task.deadline_at - at)
    return {"deadline_at": None, "wake_at": None, "clock_left_s": left}


def resumed(story: Story, event: ev.Resumed) -> None:
    """Move the deadline by the time in which the run had no owner."""
    _give_back(story, event.lost_s, Reason.RESUMED, str(event.step))


def thawed(story: Story, event: ev.Thawed) -> None:
    """Move the deadline by the time in which the process was frozen."""
    if story.task.deadline_at is not None:
        _give_back(story, event.lost_s, Reason.THAWED, f"{event.lost_s:.0f} s")


def _give_back(story: Story, lost_s: float, reason: Reason, detail: str) -> None:
    task = story.task
    deadline = None if task.deadline_at is None else task.deadline_at + lost_s
    story.note(reason, detail, deadline_at=deadline, wake_at=alarm(task, deadline, story.at, story.policy))


@delivery.when_due
def alarm_rings(story: Story, event: ev.Woke) -> None:
    task = story.task
    if task.deadline_at is None or not event.is_owned:
        # Without an owner the clock stands still; the next owner sets the alarm anew.
        return story.change(wake_at=None)
    if story.at < task.deadline_at:
        story.do(fx.WrapUp(task.deadline_at - story.at))
        return story.change(wake_at=task.deadline_at)
    time_out(story, event.partial)


def parked(story: Story, event: ev.Parked) -> None:
    story.to(Phase.PAUSED, event.reason, **clock_stops(story.task, story.at))


def yielded(story: Story, _: ev.Yielded) -> None:
    """Wait for children. The wait takes no time of the run, and the next run has a new clock."""
    story.to(Phase.PAUSED, Reason.CHILDREN, deadline_at=None, wake_at=None, clock_left_s=None)
    story.do(fx.Hold())


def paused(story: Story, _: ev.Paused) -> None:
    story.to(Phase.PAUSED, Reason.PAUSE, **clock_stops(story.task, story.at))


def paused_in_queue(story: Story, _: ev.Paused) -> None:
    """Pause before the start. What an earlier park left of the clock is kept."""
    story.to(Phase.PAUSED, Reason.PAUSE, deadline_at=None, wake_at=None)


def unpaused(story: Story, event: ev.Unpaused) -> None:
    if story.task.reason == Reason.PAUSE:
        story.to(Phase.QUEUED, Reason.UNPAUSED)
    rescheduled(story, event)


def rescheduled(story: Story, _: ev.Unpaused) -> None:
    """Schedule the session. Its user may have paused it while the task itself was in another phase."""
    story.do(fx.Schedule())


# --------------------------------------------------------------------------------------------------
# A new generation: a new run makes a new result.


def steered_while_waiting(story: Story, _: ev.Steered) -> None:
    # A parked run would resume without the instruction: the next run reads it first, on a new clock.
    story.note(Reason.STEER_JOINS, clock_left_s=None)
    story.do(fx.Stop("superseded"), fx.Schedule())


def steered(story: Story, _: ev.Steered) -> None:
    supersede(story)


def steered_after_end(story: Story, event: ev.Steered) -> None:
    """Replace a result that the parent has not read."""
    if not event.taken:
        overtake(story)
        new_generation(story, Reason.STEERED)
        make_room(story)
        story.do(fx.Open(), fx.Schedule())


def steered_while_deferred(story: Story, event: ev.Steered) -> None:
    """Resume with the instruction instead of waiting for children. The session is still open."""
    if delivery.has_letter(story.task):
        return steered_after_end(story, event)
    overtake(story)
    new_generation(story, Reason.STEERED)
    story.do(fx.Schedule())


def supersede(story: Story) -> None:
    new_generation(story, Reason.STEERED)
    story.do(fx.Stop("superseded"), fx.Schedule())


def overtake(story: Story) -> None:
    """Record that the result of this generation is never delivered: the next one makes a new result."""
    story.trace(Delivery.SKIPPED, Reason.SUPERSEDED)


def make_room(story: Story) -> None:
    """Stop the run of a session that stayed open: it may be answering a message."""
    if story.task.stays:
        story.do(fx.Stop("superseded"))


def again_before_delivery(story: Story, event: ev.Again) -> None:
    """Run again without waiting for the delivery of the old result: the new one replaces it."""
    if delivery.has_letter(story.task):
        if not event.is_being_read:
            overtake(story)
        again(story, event)


def again_after_giveup(story: Story, event: ev.Again) -> None:
    """Run again once the files of the last run are removed: the removal would take those of the new run, too."""
    if not delivery.awaits_removal(story.task):
        again(story, event)


def again(story: Story, event: ev.Again) -> None:
    # A delivered or skipped result must not stand in for the result of the new run.
    is_known = story.task.delivery in delivery.OVER or event.is_being_read
    old = {"fallback": None} if is_known else {}
    new_generation(story, event.how, plan_round=0, **old)
    make_room(story)
    story.do(fx.Open(keep_transcript=event.how is not Reason.RETRY), fx.Schedule())


def new_generation(story: Story, reason: Reason, **changes: Any) -> None:
    """Queue the task for a new result."""
    story.to(Phase.QUEUED, reason, **(fresh(story.task) | changes))


def fresh(task: Task) -> dict[str, Any]:
    """Return the fields of a new generation. The text said so far is the fallback if the new run says nothing."""
    return {
        "generation": task.generation + 1,
        "fallback": _said(task.result) or task.fallback,
        "result": None,
        "outcome": None,
        "error": None,
        "delivery": Delivery.NONE,
        "delivery_reason": Reason.NONE,
        "attempts": 0,
        "wake_at": None,
        "deadline_at": None,
        "clock_left_s": None,
        "ended_at": None,
    }


def _said(result: str | None) -> str | None:
    """Return the child's own text. A note on how far a cut run came must not become a result."""
    return None if result is None or is_progress(result) else result


# --------------------------------------------------------------------------------------------------
# The end of a run: the task has an outcome, a plan waits for a decision, or children are waited for.


def ended(story: Story, event: ev.Ended) -> None:
    """Accept the end of a run, also after a failure, in the grace period: the failure does not count."""
    task = story.task
    if is_past(task.deadline_at, story.at):
        time_out(story, None)
    elif event.untold:
        defer(story, event)
    elif task.plan is Plan.DRAFTING:
        ask_approval(story, event.text)
    else:
        settle(story, story.at, Outcome.OK, event.text)


def defer(story: Story, event: ev.Ended) -> None:
    """Wait for children that still work: their results resume the task once, all together."""
    _leave_run(story, Reason.ENDED)
    story.to(
        Phase.ANNOUNCE_DEFERRED,
        Reason.DESCENDANTS,
        error=None,
        result=frozen(story, event.text),
        delivery=Delivery.DEFERRED,
        delivery_reason=Reason.DESCENDANTS,
        ended_at=story.at,
        deadline_at=None,
        clock_left_s=None,
        wake_at=story.at + story.policy.life.settle_expiry_s,
    )
    story.trace(Delivery.DEFERRED, Reason.DESCENDANTS, story.task.wake_at)
    story.do(fx.Hold())


def _leave_run(story: Story, reason: Reason) -> None:
    """Every end of a run has a line of its own. In the grace period, or without a run, it has one already."""
    if story.task.phase is Phase.RUNNING:
        story.to(Phase.ENDING, reason)


@delivery.when_due
def deferral_expired(story: Story, event: ev.Woke) -> None:
    if not delivery.has_letter(story.task):
        settle_expired(story, event)
    else:
        delivery.give_up(story, Reason.NO_REQUESTER)


def settle_expired(story: Story, event: ev.Woke) -> None:
    """Measure the wait from the last progress of a descendant. It does not expire while one needs a person."""
    expiry, ended_at = story.policy.life.settle_expiry_s, story.task.ended_at or 0.0
    alive_at = story.at if event.person_waits else max(event.progress_at or 0.0, ended_at)
    if story.policy.life.settle_expiry_from is ExpiryFrom.END:
        alive_at = ended_at
    if alive_at + expiry > story.at:
        return story.change(wake_at=alive_at + expiry)
    expired(story)


def expired(story: Story) -> None:
    """End the wait for children. The task's last text is its result, or the plan to decide about."""
    if story.task.plan is not Plan.DRAFTING:
        return settle(story, story.at, Outcome.OK, story.task.result, why=Reason.EXPIRED)
    story.note(Reason.EXPIRED, **fresh(story.task))
    ask_approval(story, None)


def ask_approval(story: Story, text: str | None) -> None:
    expiry = story.policy.life.plan_expiry_s
    story.to(
        Phase.AWAITING_APPROVAL,
        Reason.PLAN_READY,
        error=None,
        result=frozen(story, text) or story.task.fallback,
        deadline_at=None,
        clock_left_s=None,
        wake_at=story.at + expiry if expiry else None,
    )
    story.do(fx.AskApproval(story.task.generation))


def decided(story: Story, event: ev.Decided) -> None:
    match event.verdict:
        case ev.PlanVerdict.APPROVE:
            # A plan is no result: it must not stand in for one if the work ends without a text.
            new_generation(story, Reason.PLAN_APPROVED, plan=Plan.APPROVED, fallback=None)
            story.do(fx.Schedule())
        case ev.PlanVerdict.REVISE if story.task.plan_round < story.policy.life.plan_rounds_max:
            new_generation(story, Reason.PLAN_SENT_BACK, plan_round=story.task.plan_round + 1)
            story.do(fx.Schedule())
        case _:
            reject(story, Reason.PLAN_REJECTED, event.text)


@delivery.when_due
def plan_expired(story: Story, _: ev.Woke) -> None:
    reject(story, Reason.PLAN_EXPIRED)


def reject(story: Story, reason: Reason, detail: str = "") -> None:
    story.to(Phase.ENDING, reason, detail)
    settle(story, story.at, Outcome.ERROR, story.task.result, error=reason_text(reason, detail))


def failed(story: Story, event: ev.Failed) -> None:
    """Begin the grace period, in which a new start resumes the run. The outcome is open until it is over."""
    task = story.task
    if is_past(task.deadline_at, story.at):
        return time_out(story, None)
    if event.is_final:
        return settle(story, story.at, event.outcome, event.text, error=event.error)
    stopped = clock_stops(task, story.at)
    stopped["wake_at"] = story.at + story.policy.life.error_grace_s
    kept = {"error": event.error, "result": frozen(story, event.text)}
    story.to(Phase.ENDING, Reason.ERROR, event.error, **kept, **stopped)


@delivery.when_due
def grace_expired(story: Story, _: ev.Woke) -> None:
    settle(story, story.at, Outcome.ERROR, story.task.result, error=story.task.error)


def time_out(story: Story, partial: str | None) -> None:
    """End the run at its deadline, however late that is noticed. What it reports afterwards has no say."""
    deadline = story.task.deadline_at
    assert deadline is not None, "only a run with a clock can time out"
    story.do(fx.Stop("timeout"))
    settle(story, deadline, Outcome.TIMEOUT, partial)


def settle(
    story: Story,
    at: float,
    outcome: Outcome,
    text: str | None,
    *,
    error: str | None = None,
    why: Reason | None = None,
) -> None:
    """Fix outcome and result, and announce them. Nothing changes them afterwards in this generation."""
    task = story.task
    said = silence(text or "") if outcome is Outcome.OK else None
    result = frozen(story, text) or task.fallback
    skips = _skips(task, said, result)
    fixed: dict[str, Any] = {
        "outcome": outcome,
        "error": error,
        "result": result,
        "ended_at": at,
        "deadline_at": None,
        "clock_left_s": None,
        "wake_at": None,
    }
    reason = why or REASONS[outcome]
    _leave_run(story, reason)
    if skips is not None:
        story.change(**fixed, delivery=Delivery.SKIPPED, delivery_reason=skips)
        story.trace(Delivery.SKIPPED, skips)
        delivery.clean(story, Reason.SKIPPED, skips)
    else:
        story.to(Phase.ANNOUNCING, reason, **fixed, delivery=Delivery.WAITING, delivery_reason=Reason.NONE)
    if not task.expects_completion:
        delivery.tell_ended(story, outcome)
    story.do(
        fx.Stay() if task.stays else fx.Close(), fx.Announce(story.task.generation, silent=skips is not None)
    )
    if story.policy.limits.on_parent_end.get(outcome) == "kill":
        story.do(fx.KillChildren(f"parent ended: {outcome}"))


def _skips(task: Task, said: Silence | None, result: str | None) -> Reason | None:
    """Return why the result is not delivered to the parent; None: it is."""
    if not task.notify_parent:
        return Reason.NOT_REQUESTED
    if said is Silence.ANNOUNCE_SKIP:
        return Reason.ANNOUNCE_SKIP
    return Reason.SILENT if said is Silence.NO_REPLY and result is None else None


def frozen(story: Story, text: str | None) -> str | None:
    return freeze(text or "", story.policy.life.result_bytes_max).text


def orphaned_at_spawn(story: Story, _: ev.Orphaned) -> None:
    story.do(fx.Unmake(Reason.ORPHANED))


def orphaned(story: Story, event: ev.Orphaned) -> None:
    """End a task whose session was deleted. Its text so far is the result."""
    _cut_off(story)
    if event.is_pruned:
        return over(story, Outcome.LOST, Reason.ORPHANED, Reason.PRUNED)
    settle(story, story.at, Outcome.LOST, story.task.result, error=Reason.ORPHANED)


def orphaned_without_run(story: Story, event: ev.Orphaned) -> None:
    """End a task that waits for a slot, a user or a decision."""
    if not event.is_pruned:
        story.to(Phase.ENDING, Reason.ORPHANED)
    orphaned(story, event)


def orphaned_while_deferred(story: Story, event: ev.Orphaned) -> None:
    """The task's last text is its result, except a plan, which no session can carry out. A letter in an inbox is
    delivered as it is."""
    if delivery.has_letter(story.task):
        return
    if story.task.plan is Plan.DRAFTING:
        return orphaned(story, event)
    _cut_off(story)
    settle(story, story.at, Outcome.OK, story.task.result, why=Reason.ORPHANED)


def _cut_off(story: Story) -> None:
    story.change(stays=False)
    story.do(fx.Stop("orphaned"))


def killed(story: Story, event: ev.Killed) -> None:
    """End the task for good. Its letter is silent: it only ends the wait of a parent that waits for all children."""
    if delivery.has_letter(story.task):
        return delivery.session_killed(story, event)
    story.do(fx.Stop("killed"))
    over(story, Outcome.KILLED, event.reason, Reason.KILLED)


def over(story: Story, outcome: Outcome, error: str, word: Reason) -> None:
    """End at once, from any phase, without delivery."""
    story.change(
        stays=False,
        outcome=outcome,
        error=error,
        delivery=Delivery.SKIPPED,
        delivery_reason=word,
        ended_at=story.at,
        deadline_at=None,
        clock_left_s=None,
        result=story.task.result or story.task.fallback,
    )
    story.trace(Delivery.SKIPPED, word)
    story.do(fx.Close(), fx.Unbind(), fx.Announce(story.task.generation, silent=True))
    delivery.clean(story, word, error)
