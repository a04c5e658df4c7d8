"""The table and the match statement it replaces give the same task, moves and effects. Kept for one commit."""

from __future__ import annotations

from collections import deque
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.core import events as ev
from clutch.core.lifecycle import step
from clutch.core.model import Hook, Outcome, Phase, Plan, SessionId, Task, TaskId, Wait
from clutch.core.policy import Announcing, Life, Limits, Policy, Threads
from clutch.core.transition import BUSY, QUIET_HOURS
from tests.core.old.lifecycle import step as old_step
from tests.core.stories import every_event

WORDS = ("words", "", None, "NO_REPLY", " ANNOUNCE_SKIP ", "long " * 400)
POLICIES = (
    Policy(life=Life(plan_expiry_s=60)),
    Policy(
        limits=Limits(on_parent_end={Outcome.TIMEOUT: "kill"}),
        life=Life(error_grace_s=0.0, plan_expiry_s=0.0, result_bytes_max=512),
        announcing=Announcing(slow=True, dead_letter_days=0),
        threads=Threads(age_max_s=100.0),
        hooks=frozenset({Hook.ENDED}),
    ),
)
CONTRACTS = [
    Task(
        TaskId(7),
        SessionId(1),
        stays=stays,
        has_cleanup=cleans,
        timeout_s=clock,
        plan=plan,
        expects_completion=told,
    )
    for stays, cleans, clock, plan, told in product(
        (False, True), (False, True), (0.0, 9.0), (Plan.NONE, Plan.DRAFTING), (True, False)
    )
]


def catalogue(at: float, generation: int) -> list[ev.Event]:
    return [
        *every_event(at, generation),
        *(ev.Ended(at, text, untold) for text in WORDS for untold in (0, 2)),
        *(ev.Failed(at, "boom", text, is_final=True, outcome=Outcome.LOST) for text in WORDS),
        *(ev.Parked(at, reason) for reason in Wait if reason is not Wait.PERSON),
        *(ev.Woke(at, owned, progress, asks, "half") for owned in (True, False) for progress in (None, at - 5)
          for asks in (True, False)),
        ev.Again(at, "continue", is_being_read=True),
        ev.Deferred(at, QUIET_HOURS, generation, at + 9),
        ev.Deferred(at, BUSY, generation),
        ev.Abandoned(at, "deleted"),
    ]  # fmt: skip


def same(task: Task, event: ev.Event, policy: Policy) -> Task:
    new = step(task, event, policy)
    assert new == old_step(task, event, policy), (task, event)
    return new.task


def key(task: Task) -> tuple[object, ...]:
    """What a handler can tell apart: counts and moments only by what is compared with them."""
    return (
        task.phase, task.reason, task.plan, task.delivery, task.delivery_reason, task.has_cleanup, task.stays,
        task.expects_completion, task.outcome, task.wake_at is None, task.deadline_at is None,
        task.clock_left_s is None,
    )  # fmt: skip


def test_every_reachable_task_answers_every_event_as_before() -> None:
    pairs = 0
    for policy in POLICIES:
        waiting, seen = deque(CONTRACTS), set[object]()
        while waiting:
            task = waiting.popleft()
            ats = {1.0} if task.wake_at is None else {task.wake_at, task.wake_at - 0.5}
            for at in ats:
                for event in catalogue(at, task.generation):
                    pairs += 1
                    after = same(task, event, policy)
                    if key(after) not in seen:
                        seen.add(key(after))
                        waiting.append(after)
        assert {state[0] for state in seen} == set(Phase)
    assert pairs > 100_000


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(CONTRACTS), st.sampled_from(POLICIES))
def test_every_story_goes_as_before(data: st.DataObject, task: Task, policy: Policy) -> None:
    at, history = 1.7e9, list[ev.Event]()
    for _ in range(40):
        at += data.draw(st.sampled_from([0.0, 0.5, 3.0, 20.0, 2000.0, -30.0]))
        moment = data.draw(st.sampled_from([at, at if task.wake_at is None else task.wake_at]))
        known = catalogue(moment, task.generation - data.draw(st.sampled_from([0, 0, 1, -1]))) + history[-5:]
        moving = [event for event in known if step(task, event, policy).task.phase is not task.phase]
        event = data.draw(st.sampled_from(data.draw(st.sampled_from([known, moving or known]))))
        history.append(event)
        task = same(task, event, policy)
