"""The end of a run: outcome and result are fixed once, or a plan waits for a decision, or children are waited for."""

from __future__ import annotations

from typing import Any

from clutch.core import effects as fx
from clutch.core import events as ev
from clutch.core.lifecycle import after, running
from clutch.core.lifecycle.story import DESCENDANTS, Story
from clutch.core.model import ENDED, EXPIRED, WORKING, Delivery, Outcome, Phase, Plan
from clutch.core.wording.results import Silence, freeze, silence


def ended(story: Story, event: ev.Ended) -> None:
    task = story.task
    if task.phase not in (Phase.RUNNING, Phase.ENDING):
        return
    if event.untold:
        defer(story, event)
    elif task.plan is Plan.DRAFTING:
        ask_approval(story, event.at, event.text)
    else:
        settle(story, event.at, Outcome.OK, event.text)


def defer(story: Story, event: ev.Ended) -> None:
    """It said its last word while children still work: they will wake it once, with all they found."""
    if story.task.phase is Phase.RUNNING:
        story.to(Phase.ENDING, ENDED)
    story.to(
        Phase.ANNOUNCE_DEFERRED,
        DESCENDANTS,
        error=None,
        result=frozen(story, event.text),
        delivery=Delivery.DEFERRED,
        delivery_reason=DESCENDANTS,
        ended_at=event.at,
        deadline_at=None,
        clock_left_s=None,
        wake_at=event.at + story.policy.life.settle_expiry_s,
    )
    story.trace(Delivery.DEFERRED, DESCENDANTS, story.task.wake_at)
    story.do(fx.Hold())


def expired(story: Story, at: float) -> None:
    """Its children were waited for long enough. What it said is its result, or the plan that somebody must decide."""
    if story.task.plan is not Plan.DRAFTING:
        return settle(story, at, Outcome.OK, story.task.result, why=EXPIRED)
    running.new_generation(story, EXPIRED)
    running.start(story, at, EXPIRED)
    ask_approval(story, at, None)


def ask_approval(story: Story, at: float, text: str | None) -> None:
    expiry = story.policy.life.plan_expiry_s
    if story.task.phase is Phase.ENDING:
        running.start(story, at, "grace cancelled", error=None)
    story.to(
        Phase.AWAITING_APPROVAL,
        "plan ready",
        result=frozen(story, text) or story.task.fallback,
        deadline_at=None,
        clock_left_s=None,
        wake_at=at + expiry if expiry else None,
    )
    story.do(fx.AskApproval(story.task.generation))


def decided(story: Story, event: ev.Decided) -> None:
    if story.task.phase is not Phase.AWAITING_APPROVAL:
        return
    match event.verdict:
        case ev.Verdict.APPROVE:
            # A plan is no result: it must not stand in for one if the work ends without words.
            running.new_generation(story, "plan approved", plan=Plan.APPROVED, fallback=None)
            story.do(fx.Schedule())
        case ev.Verdict.REVISE if story.task.plan_round < story.policy.life.plan_rounds_max:
            running.new_generation(story, "plan sent back", plan_round=story.task.plan_round + 1)
            story.do(fx.Schedule())
        case _:
            reject(story, event.at, f"plan rejected: {event.text}")


def reject(story: Story, at: float, error: str) -> None:
    story.to(Phase.ENDING, error)
    settle(story, at, Outcome.ERROR, story.task.result, error=error)


def failed(story: Story, event: ev.Failed) -> None:
    """Someone may start it again within the grace; until then nothing is decided."""
    task = story.task
    if task.phase is not Phase.RUNNING:
        return
    if event.is_final:
        return settle(story, event.at, event.outcome, event.text, error=event.error)
    stopped = running.clock_stops(task, event.at)
    stopped["wake_at"] = event.at + story.policy.life.error_grace_s
    story.to(
        Phase.ENDING, f"error: {event.error}", error=event.error, result=frozen(story, event.text), **stopped
    )


def settle(
    story: Story, at: float, outcome: Outcome, text: str | None, *, error: str | None = None, why: str = ""
) -> None:
    """Fix outcome and result, and make it tellable. Nothing changes them afterwards in this generation."""
    task = story.task
    said = silence(text or "") if outcome is Outcome.OK else None
    result = frozen(story, text) or task.fallback
    skips = said is Silence.ANNOUNCE_SKIP or (said is Silence.NO_REPLY and result is None)
    fixed: dict[str, Any] = {
        "outcome": outcome,
        "error": error,
        "result": result,
        "ended_at": at,
        "deadline_at": None,
        "clock_left_s": None,
        "wake_at": None,
    }
    if task.phase is Phase.RUNNING:
        story.to(Phase.ENDING, why or outcome)
    if skips:
        word = "announce-skip" if said is Silence.ANNOUNCE_SKIP else "silent"
        story.change(**fixed, delivery=Delivery.SKIPPED, delivery_reason=word)
        story.trace(Delivery.SKIPPED, word)
        after.clean(story, f"skipped: {word}")
    else:
        story.to(Phase.ANNOUNCING, why or outcome, **fixed, delivery=Delivery.WAITING, delivery_reason="")
    if not task.expects_completion:
        after.tell_ended(story, outcome)
    story.do(fx.Stay() if task.stays else fx.Close(), fx.Announce(story.task.generation, silent=skips))
    if story.policy.limits.on_parent_end.get(outcome) == "kill":
        story.do(fx.KillChildren(f"parent ended: {outcome}"))


ORPHANED = "its session is gone"


def orphaned(story: Story, event: ev.Orphaned) -> None:
    """Its last words are its result, except a plan, which nobody can work on any more. Without any it is lost. What
    lies in an inbox already is told as it is."""
    task = story.task
    if task.phase not in WORKING or task.outcome is not None:
        return
    if task.phase is Phase.SPAWNING:
        return story.do(fx.Unmake(ORPHANED))
    story.change(stays=False)
    story.do(fx.Stop("orphaned"))
    if task.phase is Phase.ANNOUNCE_DEFERRED and task.plan is not Plan.DRAFTING:
        return settle(story, event.at, Outcome.OK, task.result, why=ORPHANED)
    if event.is_pruned:
        return over(story, event.at, Outcome.LOST, ORPHANED, "pruned")
    if task.phase is Phase.PAUSED:
        story.to(Phase.QUEUED, ORPHANED)
    if story.task.phase is Phase.QUEUED:
        running.start(story, event.at, ORPHANED)
    if task.phase is Phase.AWAITING_APPROVAL:
        story.to(Phase.ENDING, ORPHANED)
    settle(story, event.at, Outcome.LOST, task.result, error=ORPHANED)


def frozen(story: Story, text: str | None) -> str | None:
    return freeze(text or "", story.policy.life.result_bytes_max).text


def killed(story: Story, event: ev.Killed) -> None:
    """Final. Its letter is silent: it only keeps a waiting parent from waiting for ever."""
    if story.task.outcome is not None:
        after.session_ended(story, f"killed: {event.reason}")
    elif story.task.phase in WORKING:
        story.do(fx.Stop("killed"))
        over(story, event.at, Outcome.KILLED, event.reason, "killed")


def over(story: Story, at: float, outcome: Outcome, error: str, word: str) -> None:
    """At once, from wherever it stands, and nobody is told."""
    story.change(
        stays=False,
        outcome=outcome,
        error=error,
        delivery=Delivery.SKIPPED,
        delivery_reason=word,
        ended_at=at,
        deadline_at=None,
        clock_left_s=None,
        result=story.task.result or story.task.fallback,
    )
    story.trace(Delivery.SKIPPED, word)
    story.do(fx.Close(), fx.Unbind(), fx.Announce(story.task.generation, silent=True))
    after.clean(story, f"{word}: {error}")
