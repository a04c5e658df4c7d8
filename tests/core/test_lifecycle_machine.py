"""All events in all orders, twice, late and with a clock that jumps: what must hold after every step.

The rules of this machine know nothing of what an event ought to do. They throw events at a task; the
invariants say what no story may ever show; and every story ends with the demand that the task, left
alone in an honest world, finishes.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from clutch.core import events as ev
from clutch.core import events as fx
from clutch.core.events import EDGES, Move, Transition
from clutch.core.lifecycle import fold, step
from clutch.core.model import (
    FINISHED,
    UNTOLD,
    WAITS,
    Delivery,
    Outcome,
    Path,
    Phase,
    Plan,
    Reason,
    SessionId,
    Task,
    TaskId,
)
from clutch.core.policy import Announcing, Life, Limits, Policy
from tests.core.stories import every_event
from tests.examples import scaled

WORDS = ("words", "other words", "", None, "NO_REPLY", " ANNOUNCE_SKIP ", "long " * 400)
TEXTS = st.sampled_from(WORDS)
POLICIES = st.builds(
    lambda grace, plan_expiry, slow, kills: Policy(
        limits=Limits(on_parent_end={Outcome.TIMEOUT: "kill"} if kills else {}),
        life=Life(error_grace_s=grace, plan_expiry_s=plan_expiry, result_bytes_max=512),
        announcing=Announcing(slow=slow),
    ),
    st.sampled_from([0.0, 15.0]),
    st.sampled_from([0.0, 60.0]),
    st.booleans(),
    st.booleans(),
)
CONTRACTS = st.builds(
    lambda **contract: Task(TaskId(7), SessionId(1), **contract),
    timeout_s=st.sampled_from([0.0, 10.0, 100.0]),
    expects_completion=st.booleans(),
    notify_parent=st.booleans(),
    has_cleanup=st.booleans(),
    plan=st.sampled_from([Plan.NONE, Plan.NONE, Plan.DRAFTING]),
)

#: What a task in a phase may say about telling its requester.
TELLING = {
    Phase.ANNOUNCING: {Delivery.WAITING, Delivery.DEFERRED},
    Phase.ANNOUNCE_DEFERRED: {Delivery.DEFERRED},
    Phase.CLEANUP_PENDING: {Delivery.DELIVERED, Delivery.SKIPPED, Delivery.UNDELIVERED, Delivery.UNSURE},
    Phase.COMPLETED: {Delivery.DELIVERED, Delivery.SKIPPED, Delivery.UNSURE},
    Phase.COMPLETED_GIVEUP: {Delivery.UNDELIVERED, Delivery.SKIPPED},
}
#: Nothing but its own timer is sure to move it on.
ONLY_TIME_HELPS = {Phase.ENDING, Phase.ANNOUNCE_DEFERRED, Phase.CLEANUP_PENDING}
MAY_HAVE_A_TIMER = ONLY_TIME_HELPS | {
    Phase.SPAWNING, Phase.RUNNING, Phase.AWAITING_APPROVAL, Phase.COMPLETED_GIVEUP,
}  # fmt: skip


def catalogue(at: float, generation: int) -> list[ev.Event]:
    """Every kind of event, with every kind of text."""
    return [
        *every_event(at, generation),
        *(ev.Ended(at, text, untold) for text in WORDS for untold in (0, 2)),
        *(ev.Failed(at, "boom", text, is_final=True, outcome=Outcome.LOST) for text in WORDS),
        *(ev.Parked(at, reason) for reason in sorted(WAITS - {Reason.PAUSE})),
        *(ev.Resumed(at, lost_s, step=1) for lost_s in (0.0, 500.0)),
    ]


class LifeOfATask(RuleBasedStateMachine):
    @initialize(contract=CONTRACTS, policy=POLICIES, start=st.sampled_from([0.0, 1.7e9]))
    def is_born(self, contract: Task, policy: Policy, start: float) -> None:
        self.task, self.policy, self.clock = contract, policy, start
        self.moves: list[Move] = []
        self.history: list[ev.Event] = []
        self.announced: list[int] = []
        self.is_closed = self.is_unowned = self.is_buried = False

    # ---- what may happen -----------------------------------------------------------------------------

    @rule(data=st.data(), behind=st.sampled_from([0, 0, 1, -1]))
    def anything_happens(self, data: st.DataObject, behind: int) -> None:
        self.happens(data.draw(st.sampled_from(catalogue(self.clock, self.task.generation - behind))))

    @rule(data=st.data(), times=st.integers(1, 3))
    def something_that_matters_happens(self, data: st.DataObject, times: int) -> None:
        """Most random orders never leave the first phases; asking `step` what would move leads into all."""
        for _ in range(times):
            known = catalogue(self.clock, self.task.generation)
            moving = [event for event in known if self.moves_on(event)]
            if moving:
                self.happens(data.draw(st.sampled_from(moving)))

    def moves_on(self, event: ev.Event) -> bool:
        is_move = step(self.task, event, self.policy).task.phase is not self.task.phase
        return is_move and not isinstance(event, ev.Killed)

    @rule(partial=TEXTS, is_owned=st.sampled_from([True, True, False]), asks=st.booleans(), ago=st.booleans())
    def its_timer_rings(self, partial: str | None, is_owned: bool, asks: bool, ago: bool) -> None:
        if self.task.wake_at is not None:
            self.clock = max(self.clock, self.task.wake_at)
        progress_at = self.clock - 5 if ago else None
        self.happens(ev.Woke(self.clock, is_owned, progress_at, asks, partial))

    @rule(is_permanent=st.booleans(), times=st.integers(1, 14))
    def letter_is_refused(self, is_permanent: bool, times: int) -> None:
        for _ in range(times):
            self.happens(ev.DeliveryFailed(self.clock, "down", self.task.generation, is_permanent))

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0, 400.0, 2000.0, -30.0]))
    def time_passes(self, seconds: float) -> None:
        """Backwards too: clocks are set."""
        self.clock = max(0.0, self.clock + seconds)

    @precondition(lambda self: self.history)
    @rule(data=st.data())
    def something_old_happens_again(self, data: st.DataObject) -> None:
        """Word for word: with its old time and its old generation."""
        self.happens(data.draw(st.sampled_from(self.history)))

    # ---- what must hold ------------------------------------------------------------------------------

    def happens(self, event: ev.Event) -> None:
        before, result = self.task, step(self.task, event, self.policy)
        self.task = result.task
        self.moves += result.moves
        self.history.append(event)
        self.effects_are_noted(before, result)
        self.timeline_is_the_row(before, result)
        self.generation_keeps_its_outcome(event, before)
        self.what_is_put_off_or_skipped_is_traced(event, before, result)
        self.row_makes_sense()
        self.nothing_waits_without_a_timer(event)

    def effects_are_noted(self, before: Task, result: Transition) -> None:
        for effect in result.effects:
            match effect:
                case fx.Announce(generation):
                    self.announced.append(generation)
                case fx.Close():
                    self.is_closed = True
                case fx.Open():
                    self.is_closed = False
                case fx.Bury():
                    assert not self.is_buried
                    self.is_buried = True
                case fx.Redrive():
                    assert self.is_buried
                    self.is_buried = False
                case _:
                    pass
        if before.outcome is None and self.task.outcome in (Outcome.KILLED, Outcome.TIMEOUT):
            assert any(isinstance(effect, fx.Stop) for effect in result.effects)

    def what_is_put_off_or_skipped_is_traced(self, event: ev.Event, before: Task, result: Transition) -> None:
        """`child-active` cannot be: a newer run is a newer generation, and overtakes what is not told."""
        after = self.task
        traced = [effect for effect in result.effects if isinstance(effect, fx.Trace)]
        told = {(effect.generation, effect.outcome, effect.reason) for effect in traced}
        state = (after.generation, after.delivery, after.delivery_reason)
        is_let_go = after.delivery_reason in ("dismissed", "expired")
        if after.delivery in (Delivery.DEFERRED, Delivery.SKIPPED) and not is_let_go:
            was = (before.generation, before.delivery, before.delivery_reason)
            assert state == was or state in told
        has_letter = before.phase is Phase.ANNOUNCING or before.reason == Reason.MISSING
        if (
            has_letter
            and before.phase in UNTOLD
            and after.phase in UNTOLD - {Phase.ANNOUNCING}
            and not after.outcome
        ):
            assert after.generation == before.generation + 1, "a newer run beside what waits to be told"
            is_heard = isinstance(event, ev.Again) and event.is_being_read
            assert is_heard or (before.generation, Delivery.SKIPPED, "superseded") in told

    def timeline_is_the_row(self, before: Task, result: Transition) -> None:
        at = before.phase
        for move in result.moves:
            assert move.from_phase is at
            assert move.to_phase is at or (at, move.to_phase) in EDGES
            at = move.to_phase
        assert at is self.task.phase
        assert self.task.seq == before.seq + len(result.moves) == len(self.moves)
        assert fold(self.moves) == (self.task.phase, self.task.generation, self.task.outcome)
        if not result.moves:
            assert self.task._replace(wake_at=before.wake_at) == before, "changed without a line"

    def generation_keeps_its_outcome(self, event: ev.Event, before: Task) -> None:
        after = self.task
        assert after.generation - before.generation in (0, 1)
        if (
            isinstance(event, ev.Delivered | ev.DeliveryFailed | ev.Unconfirmed)
            and event.generation != before.generation
        ):
            assert after == before, "a letter of another generation"
        if after.delivery is Delivery.DELIVERED:
            self.is_buried = False  # also what was given up is answered, once a model has read it
        if after.generation > before.generation:
            self.is_buried = False
            assert (after.outcome, after.ended_at, after.attempts) == (None, None, 0)
            # What was said before its children were waited for in vain is the plan that is asked about at once.
            assert after.result is None or after.phase is Phase.AWAITING_APPROVAL
            return
        if before.outcome is not None:
            assert (after.outcome, after.result, after.error) == (
                before.outcome,
                before.result,
                before.error,
            )
        if not isinstance(event, ev.Redelivered):
            assert after.attempts >= before.attempts
        assert after.attempts == before.attempts or isinstance(event, ev.DeliveryFailed | ev.Redelivered)

    def row_makes_sense(self) -> None:
        task = self.task
        has_ended = (
            task.phase not in UNTOLD or task.phase is Phase.ANNOUNCING or task.reason == Reason.MISSING
        )
        assert (task.outcome is not None) is has_ended
        assert self.is_closed is has_ended
        assert self.announced.count(task.generation) == int(has_ended), "one letter per outcome"
        assert len(set(self.announced)) == len(self.announced)
        assert self.is_buried is (
            task.delivery is Delivery.UNDELIVERED or task.delivery_reason in ("dismissed", "expired")
        )
        assert task.delivery in TELLING.get(task.phase, {Delivery.NONE})
        assert task.ended_at is not None or not has_ended
        for signal in (
            ev.Killed(self.clock),
            ev.Ended(self.clock, "late words"),
            ev.Failed(self.clock, "late"),
        ):
            assert not has_ended or step(task, signal, self.policy).task == task, "a signal after the outcome"
        assert task.result is None or len(task.result.encode()) <= self.policy.life.result_bytes_max
        assert (task.phase is Phase.AWAITING_APPROVAL) <= (task.plan is Plan.DRAFTING)
        assert task.outcome is not Outcome.OK or task.plan is not Plan.DRAFTING, "a plan is no work done"
        assert task.plan_round <= self.policy.life.plan_rounds_max

    def nothing_waits_without_a_timer(self, event: ev.Event) -> None:
        task = self.task
        if task.phase in ONLY_TIME_HELPS:
            assert task.wake_at is not None
        if task.phase not in MAY_HAVE_A_TIMER:
            assert task.wake_at is None
        if task.phase is Phase.COMPLETED_GIVEUP and task.delivery is Delivery.UNDELIVERED:
            assert task.wake_at is not None, "it never leaves the lists"
        if task.phase is Phase.AWAITING_APPROVAL:
            assert (task.wake_at is not None) is bool(self.policy.life.plan_expiry_s)
        self.clock_runs_only_with_the_run(event)

    def clock_runs_only_with_the_run(self, event: ev.Event) -> None:
        task = self.task
        assert (task.deadline_at is not None) is (task.phase is Phase.RUNNING and bool(task.timeout_s))
        assert task.clock_left_s is None or (task.clock_left_s >= 0 and task.phase is not Phase.RUNNING)
        if isinstance(event, ev.Woke) and not event.is_owned and task.wake_at is None:
            self.is_unowned = True
        elif self.moves and task.wake_at is not None:
            self.is_unowned = False
        if task.deadline_at is not None and not self.is_unowned:
            assert task.wake_at is not None
            assert task.wake_at <= task.deadline_at

    # ---- left alone, it must finish ------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "task"):
            return
        for world in (honest, only_timers, nobody_listens):
            left_alone(self.task, self.clock, self.policy, world)


World = Callable[[Task, float], ev.Event]


def left_alone(task: Task, clock: float, policy: Policy, world: World) -> None:
    """Play the world until the task is finished, in a bounded number of steps."""
    for _ in range(40):
        if task.phase in FINISHED:
            return
        clock = max(clock, task.wake_at or 0.0) + 0.001
        task = step(task, world(task, clock), policy).task
    raise AssertionError(f"left alone it stays {task.phase} ({task.reason})")


def honest(task: Task, clock: float) -> ev.Event:
    """Workers start what is queued and end what runs, letters are read, people answer when asked."""
    match task.phase:
        case Phase.SPAWNING:
            return ev.Admitted(clock)
        case Phase.QUEUED:
            return ev.Started(clock)
        case Phase.RUNNING:
            return ev.Ended(clock, "done")
        case Phase.PAUSED if task.reason == Reason.PAUSE:
            return ev.Unpaused(clock)
        case Phase.PAUSED:
            return ev.Started(clock)
        case Phase.AWAITING_APPROVAL:
            return ev.Decided(clock, ev.PlanVerdict.APPROVE)
        case Phase.ANNOUNCE_DEFERRED if task.reason == Reason.DESCENDANTS:
            return ev.Started(clock)
        case Phase.ANNOUNCING:
            return ev.Delivered(clock, Path.QUEUED, task.generation)
        case Phase.CLEANUP_PENDING:
            return ev.Cleaned(clock)
        case _:
            return ev.Woke(clock)


def only_timers(task: Task, clock: float) -> ev.Event:
    """Nothing good comes by itself: children never settle, plans are sent back, a clock that runs out rings."""
    match task.phase:
        case Phase.ANNOUNCE_DEFERRED | Phase.ENDING:
            return ev.Woke(clock)
        case Phase.AWAITING_APPROVAL:
            return ev.Decided(clock, ev.PlanVerdict.REVISE)
        case Phase.RUNNING if task.wake_at is not None:
            return ev.Woke(clock)
        case Phase.RUNNING:
            return ev.Failed(clock, "boom")
        case _:
            return honest(task, clock)


def nobody_listens(task: Task, clock: float) -> ev.Event:
    """Every reader of the letter fails."""
    if task.phase is Phase.ANNOUNCING:
        return ev.DeliveryFailed(clock, "down", task.generation)
    return honest(task, clock)


TestLifeOfATask = LifeOfATask.TestCase
TestLifeOfATask.settings = settings(max_examples=scaled(300), stateful_step_count=40)
