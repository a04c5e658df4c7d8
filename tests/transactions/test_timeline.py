"""The timeline of a tree: what it shows of a moment is what the live view showed at that moment."""

from __future__ import annotations

import contextlib
import random
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from clutch.api import reads
from clutch.api.report_objects import TreeTimeline
from clutch.api.views import moment
from clutch.core.authority import EVERY_SCOPE, OperatorCaller
from clutch.core.ids import task_id
from clutch.core.messages import Call
from clutch.core.model import Delivery, TaskStatus
from clutch.core.questions import Decision, QuestionKind
from clutch.core.spawn import SpawnRefusal
from clutch.core.status import Activity, delivery_text, doing_now, group_of, task_status
from clutch.core.timeline import history
from clutch.core.views import TaskView
from clutch.errors import NotFound, RateLimited
from clutch.testing.clock import FakeClock
from clutch.transactions import control, messages, turn_end
from clutch.transactions.read import tasks, trees
from clutch.transactions.sessions import Stale
from tests.examples import scaled
from tests.transactions.test_questions import PAY, WHICH, decide, numbered, waiting
from tests.transactions.trees import on
from tests.transactions.world import Run, World, calls

pytestmark = pytest.mark.anyio


def shown(view: TaskView) -> tuple[object, ...]:
    """What people see of a task. The end of a timed wait is no event, so the live page kept showing the wait, too."""
    still = replace(view, parked_until=None)
    return (
        task_status(still),
        group_of(still),
        view.generation,
        delivery_text(view.delivery),
        view.children_active,
        view.children_total,
    )


@dataclass
class StoryOfATree:
    """A tree played at random, one commit after the other, each at a moment of its own."""

    world: World
    chance: random.Random
    root: int
    tasks: list[int] = field(default_factory=list)
    runs: dict[int, Run] = field(default_factory=dict)
    owing: set[int] = field(default_factory=set)  #: runs whose last answer has open calls
    seen: list[tuple[float, dict[int, tuple[object, ...]]]] = field(default_factory=list)

    async def play(self, steps: int) -> None:
        acts: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.spawn, 6), (self.claim, 8), (self.work, 30), (self.user, 5), (self.deliver, 8), (self.crash, 1),
        ]  # fmt: skip
        for _ in range(steps):
            self.world.clock.advance(self.chance.choice((1.0, 1.0, 40.0)))
            act = self.chance.choices([one for one, _ in acts], [weight for _, weight in acts])[0]
            with contextlib.suppress(Stale, control.NotPossible, RateLimited, NotFound):
                await act()
            await self.look()

    async def look(self) -> None:
        views = await self.world.db.read(tasks.of, self.tasks)
        self.seen.append((self.world.clock.now(), {view.task_id: shown(view) for view in views}))

    async def spawn(self) -> None:
        parent = self.chance.choice([*self.tasks[:3], self.root])
        made = await self.world.ask_child(parent, f"c{len(self.tasks)}", plan_mode=self.chance.random() < 0.1)
        if not isinstance(made, SpawnRefusal):
            self.tasks.append(made.task_id)

    async def claim(self) -> None:
        await self.world.mail()
        await self.world.ring()
        await self.world.claim()
        for session_id in list(self.world.held)[:1]:
            run = await self.world.begin(session_id)
            if run is not None:
                self.runs[session_id] = run
                self.owing.discard(session_id)

    async def deliver(self) -> None:
        await self.world.mail()
        await self.world.ring()

    async def work(self) -> None:
        if not self.runs:
            return await self.claim()
        number = self.chance.choice(sorted(self.runs))
        run = self.runs[number]
        how = self.chance.choice(("call", "finish", "finish", "yield", "fail", "stumble", "ask", "hand over"))
        is_over = how != "call"
        try:
            match how:
                case _ if number in self.owing:
                    is_over = not (await run.results()).goes_on
                    self.owing.discard(number)
                case "call":
                    await run.respond(calls("search"))
                    self.owing.add(number)
                case "yield":
                    is_over = not (await run.yields()).goes_on
                case "fail":
                    await run.fail("broken", is_final=self.chance.random() < 0.5)
                case "stumble":
                    await run.stumble(retry_at=self.world.clock.now() + 60)
                case "ask" if number != self.root:
                    await run.respond(calls("pay"))
                    body = self.chance.choice((PAY, WHICH))
                    await on(run, turn_end.ask, run.head, numbered(self.world, [body]), self.world.nonce())
                case "hand over":
                    await run.hand_over()
                case _:
                    is_over = not await run.finish(self.chance.choice(("found it", "ANNOUNCE_SKIP")))
        except Stale:
            is_over = True
        if is_over:
            del self.runs[number]

    async def user(self) -> None:
        if not self.tasks:
            return
        db, policy, task = self.world.db, self.world.policy, self.chance.choice(self.tasks)
        match self.chance.choice(
            ("pause", "resume", "resume", "kill", "retry", "continue", "answer", "steer", "redeliver")
        ):
            case "pause":
                await db.alone(control.pause, policy, task, "person")
            case "resume":
                await db.alone(control.resume, policy, task, "person")
            case "kill":
                await db.alone(control.kill, policy, task, "not needed", "person")
            case "steer":
                await db.alone(
                    messages.steer, policy, task, self.world.key("steer"), "rather this", actor="person"
                )
            case "redeliver":
                await db.alone(control.redeliver, policy, task, "person")
            case "answer":
                for question in await waiting(self.world):
                    is_question = question.kind is QuestionKind.QUESTION
                    decision = Decision.ANSWER if is_question else Decision.APPROVE
                    await decide(self.world, question, decision, "left" if is_question else "")
            case how:
                key = self.world.key("again")
                await db.alone(control.again, policy, task, how, key, text="", actor="person")

    async def crash(self) -> None:
        self.runs.clear()
        self.owing.clear()
        await self.world.die()


@pytest.mark.scaled
@pytest.mark.parametrize(
    ("db", "seed"),
    [*(("file", seed) for seed in range(scaled(40))), *(("postgres", seed) for seed in range(scaled(12)))],
    indirect=["db"],
)
async def test_a_replayed_moment_shows_what_the_live_view_showed(world: World, main: int, seed: int) -> None:
    story = StoryOfATree(world, random.Random(seed), main)
    await world.tell(main, "begin")
    await story.play(120)
    assert len(story.tasks) > 1
    compared = 0
    for top in story.tasks:
        found = await world.db.read(trees.recorded, top)
        assert found is not None
        for number, record in found.records.items():
            then = history(record)
            moments = [view.at for view in then]
            for at, views in story.seen:
                place = bisect_right(moments, at)
                assert (place > 0) is (number in views), "a task exists from its spawn on"
                if place:
                    assert shown(then[place - 1]) == views[number], f"task {number} at {at}"
                    compared += 1
    assert compared > 100


async def test_a_replayed_moment_says_what_the_task_did(world: World, main: int, clock: FakeClock) -> None:
    run = await world.started(main, "child")
    said: list[tuple[float, str]] = []

    async def note() -> None:
        view = await world.db.read(tasks.one, run.session_id)
        assert view is not None
        text = doing_now(view).text
        said.append((clock.now(), text.replace("working", "thinking")))  # no model call is open in this world
        clock.advance(2)

    await note()
    await run.respond(calls("search"))
    await note()
    await run.results()
    await note()
    await run.spawn("below")
    await run.results()
    await note()
    await run.yields()
    await note()
    found = await world.db.read(trees.recorded, run.session_id)
    assert found is not None
    then = history(found.records[run.session_id])
    for at, text in said:
        view = [one for one in then if one.at <= at][-1]
        assert doing_now(view).text == text


async def read(world: World, number: int) -> TreeTimeline:
    who = reads.standpoint(OperatorCaller(EVERY_SCOPE))
    return await world.db.read(reads.tree_timeline, who, task_id(number))


async def test_an_arrow_leads_to_the_message_of_the_parent(world: World, main: int, clock: FakeClock) -> None:
    parent = await world.started(main, "parent")
    (child, skipped) = (
        await world.child(parent.session_id, "child"),
        await world.child(parent.session_id, "other"),
    )
    await parent.yields()
    clock.advance(5)
    await world.end(skipped, "ANNOUNCE_SKIP")
    clock.advance(1)
    await world.end(child, "found it")
    clock.advance(3)
    resumed = await world.start(parent.session_id)
    taken_at = clock.now()
    clock.advance(2)
    await resumed.finish("both done")
    found = await read(world, child)  # any task of the tree
    arrows = {one["taskId"]: one for one in found["deliveries"]}
    arrow = arrows[task_id(child)]
    assert found["root"] == task_id(parent.session_id)
    assert arrow["toTask"] == task_id(parent.session_id)
    assert [one["status"] for one in arrow["states"]] == ["delivering", "delivered"]
    assert arrow["readAt"] == moment(taken_at)
    assert arrow["deliveredAt"] == moment(clock.now())
    entries = await world.transcript(parent.session_id)
    assert "found it" in str(entries[(arrow["message"] or 0) - 1])
    assert [one["text"] for one in arrows[task_id(skipped)]["states"]] == [
        "skipped (the subagent asked for none)"
    ]
    assert arrows[task_id(skipped)]["message"] is None
    stages = found["criticalPath"]
    assert [stage["taskId"] for stage in stages][-1] == task_id(parent.session_id)
    assert task_id(child) in {stage["taskId"] for stage in stages}


async def test_a_deferred_and_a_given_up_result_say_why(world: World, main: int) -> None:
    busy = await world.started(main, "parent")
    child = await world.child(busy.session_id, "child")
    await world.end(child, "found it")
    await world.mail()
    (arrow,) = [one for one in (await read(world, child))["deliveries"] if one["taskId"] == task_id(child)]
    assert arrow["states"][-1]["status"] == "deferred"
    assert arrow["states"][-1]["text"] == "deferred (the parent agent is busy)"
    assert (arrow["readAt"], arrow["message"]) == (None, None)


async def test_tools_are_ticks_with_their_calls_in_words(world: World, main: int, clock: FakeClock) -> None:
    run = await world.started(main, "child")
    await run.respond(replace(calls("search"), calls=(Call("search", {"pattern": "TODO"}), Call("list", {}))))
    clock.advance(3)
    lane = (await read(world, run.session_id))["lanes"][0]
    assert [(one["text"], one["end"]) for one in lane["tools"]] == [('2 calls: search "TODO"; list', None)]
    await run.results()
    lane = (await read(world, run.session_id))["lanes"][0]
    assert lane["tools"][0]["end"] == moment(clock.now())
    assert lane["states"][-1]["doingNow"].startswith("thinking · step")
    assert lane["segments"][-1]["activity"] == Activity.THINKING
    assert lane["states"][-1]["status"] == TaskStatus.RUNNING


async def test_beyond_the_limits_the_answer_says_what_is_left_out(
    world: World, main: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await world.started(main, "parent")
    await world.children(run.session_id, "one", "two", "three")
    monkeypatch.setattr(trees, "TASKS_MAX", 3)
    monkeypatch.setattr(trees, "ENTRIES_MAX", 0)
    found = await read(world, run.session_id)
    assert (len(found["lanes"]), found["total"]) == (3, 4)
    assert found["notice"] == (
        "Showing the first 3 of 4 tasks. Tool calls are not shown: the transcripts of this tree are too long."
    )
    with pytest.raises(NotFound):
        await read(world, 12345)


async def test_an_undelivered_result_is_given_up_in_the_timeline_too(world: World, main: int) -> None:
    child = await world.child(main, "child")
    await world.end(child, "found it")
    for _ in range(50):
        if (await world.task(child)).delivery is Delivery.UNDELIVERED:
            break
        await world.mail()
        await world.ring()
        for session_id in await world.claim():
            run = await world.begin(session_id)
            if run is not None:
                await run.fail("no model", is_final=True)
        world.clock.advance(3600)
    (arrow,) = (await read(world, child))["deliveries"]
    assert arrow["states"][-1]["status"] == "undelivered"
    assert arrow["toSession"] == "agent:main:main"
