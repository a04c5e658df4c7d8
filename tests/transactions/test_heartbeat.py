"""System events and heartbeats: kept, shown once, coalesced; a reason and the right hour, or no turn at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clutch.core.agents import HEARTBEAT_PROMPT as PROMPT
from clutch.core.agents import ActiveHours, Agent, Heartbeat, roster
from clutch.core.messages import Answer, Input
from clutch.core.model import LetterKind
from clutch.core.policy import IdleWake
from clutch.transactions import control, turn_end
from clutch.transactions import wake as wake_tx
from clutch.transactions.read import transcripts
from clutch.transactions.turn import ModelAnswer
from tests.transactions.world import Run, World

pytestmark = pytest.mark.anyio

CHECKLIST = "- is the disk full?"


def beating(world: World, **asked: object) -> None:
    """The agent `main` has a heartbeat."""
    agent = Agent("main", heartbeat=replace(Heartbeat(), **asked))  # type: ignore[arg-type]
    world.policy = replace(world.policy, agents=roster([agent]))


async def notify(world: World, session_id: int, *texts: str) -> list[bool]:
    known = (world.policy, session_id)
    return [await world.db.tx(session_id, wake_tx.notify, *known, text) for text in texts]


async def wake(world: World, session_id: int) -> bool:
    return await world.db.tx(session_id, wake_tx.wake_for_heartbeat, world.policy, session_id)


async def ring(world: World, checklist: str = "") -> list[int]:
    """Every timer that is due; the sessions that beat."""
    due = await world.db.read(wake_tx.ringing)
    return [
        one.session_id
        for one in due
        if await world.db.tx(one.session_id, wake_tx.ring, world.policy, one.session_id, checklist)
    ]


async def beat_at(world: World, session_id: int) -> float | None:
    value: float | None = await world.one("SELECT heartbeat_at FROM sessions WHERE id = ?", session_id)
    return value


async def waiting(world: World, session_id: int) -> tuple[str, ...]:
    return (await world.db.read(transcripts.around, session_id, world.policy.context)).events


async def beaten(world: World, session_id: int) -> Run:
    """Woken, and at work on it."""
    await wake(world, session_id)
    world.clock.advance(0.25)
    assert await ring(world) == [session_id]
    return await world.start(session_id)


async def outbox(world: World) -> list[tuple[str, str, str]]:
    return [tuple(row) for row in await world.rows("SELECT channel, target, body FROM outbox ORDER BY id")]


# ---- system events ---------------------------------------------------------------------------------------


@pytest.mark.scenario(154)
async def test_of_25_events_the_newest_20_wait_and_nobody_else_has_them(world: World, main: int) -> None:
    other = await world.main("other")
    await notify(world, main, *(f"event {number}" for number in range(25)))
    assert await waiting(world, main) == tuple(f"event {number}" for number in range(5, 25))
    assert await world.one("SELECT COUNT(*) FROM system_events") == 20
    assert await waiting(world, other) == ()


@pytest.mark.scenario(154)
async def test_a_duplicate_in_a_row_is_dropped_and_one_later_is_not(world: World, main: int) -> None:
    assert await notify(world, main, "rain", "rain", "sun", "rain") == [True, False, True, True]
    assert await waiting(world, main) == ("rain", "sun", "rain")


async def test_events_are_consumed_with_the_answer_that_they_were_shown_to(world: World, main: int) -> None:
    await notify(world, main, "rain")
    await world.tell(main, "hello")
    run = await world.start(main)
    shown = await world.db.read(transcripts.around, main, world.policy.context)
    assert await waiting(world, main) == ("rain",)
    said = ModelAnswer(Answer("hi"), True, None, shown.events_upto)
    await world.db.tx(main, turn_end.finish, run.owned, said)
    assert await waiting(world, main) == ()
    assert await notify(world, main, "rain") == [True]  # the one before was read: this is news


async def test_an_event_alone_wakes_nobody(world: World, main: int) -> None:
    await notify(world, main, "rain")
    assert await beat_at(world, main) is None
    assert await world.due(main) is None


async def test_nothing_is_kept_for_whoever_is_gone(world: World, main: int) -> None:
    await world.db.alone(control.close_main, world.policy, main)
    assert await notify(world, main, "rain") == [False]
    assert await wake(world, main) is False


# ---- wakes -----------------------------------------------------------------------------------------------


@pytest.mark.scenario(149)
async def test_three_wakes_within_the_window_are_one_turn_and_two_sessions_two(
    world: World, main: int
) -> None:
    other = await world.main("other")
    for session_id in (main, other):
        await notify(world, session_id, "rain")
    asked = world.clock.now()
    for _ in range(3):
        await wake(world, main)
        world.clock.advance(0.08)
    await wake(world, other)
    assert await ring(world) == []
    assert await beat_at(world, main) == pytest.approx(asked + 0.25)
    world.clock.advance(0.25)
    assert sorted(await ring(world)) == sorted([main, other])
    await world.live()
    assert await world.rows(
        "SELECT session_id, COUNT(*) FROM runs GROUP BY session_id ORDER BY session_id"
    ) == [
        (main, 1),
        (other, 1),
    ]


async def test_without_an_event_or_a_checklist_there_is_no_turn(world: World, main: int) -> None:
    await wake(world, main)
    world.clock.advance(1)
    assert await ring(world) == []
    assert await beat_at(world, main) is None
    await world.live()
    assert await world.rows("SELECT id FROM runs") == []


async def test_a_checklist_is_reason_enough_and_stands_in_the_prompt(world: World, main: int) -> None:
    await wake(world, main)
    world.clock.advance(1)
    assert await ring(world, CHECKLIST) == [main]
    await world.start(main)
    assert await world.transcript(main) == [Input(f"{PROMPT}\n\n{CHECKLIST}", LetterKind.HEARTBEAT)]


async def test_a_busy_session_is_woken_a_second_later_and_not_in_between(world: World, main: int) -> None:
    await world.tell(main, "hello")
    run = await world.start(main)
    await notify(world, main, "rain")
    await wake(world, main)
    world.clock.advance(0.25)
    assert await ring(world) == []
    assert await beat_at(world, main) == world.clock.now() + 1
    await run.finish("hi")
    world.clock.advance(1)
    assert await ring(world) == [main]


async def test_a_session_that_waits_for_quota_is_not_asked_every_second(world: World, main: int) -> None:
    await world.tell(main, "hello")
    until = world.clock.now() + 500
    await (await world.start(main)).stumble(retry_at=until)
    await wake(world, main)
    world.clock.advance(1)
    assert await ring(world) == []
    assert await beat_at(world, main) == until


async def test_a_wake_while_a_heartbeat_waits_to_be_read_adds_none(world: World, main: int) -> None:
    await notify(world, main, "rain")
    for _ in range(2):
        await wake(world, main)
        world.clock.advance(0.25)
        await ring(world)
    assert await world.one("SELECT COUNT(*) FROM inbox WHERE kind = 'heartbeat'") == 1


async def test_two_workers_that_ring_the_same_timer_beat_once(world: World, main: int) -> None:
    await notify(world, main, "rain")
    await wake(world, main)
    world.clock.advance(0.25)
    both = [
        await world.db.tx(main, wake_tx.ring, world.policy, main, ""),
        await world.db.tx(main, wake_tx.ring, world.policy, main, ""),
    ]
    assert both == [True, False]


async def test_a_child_is_never_woken(world: World, main: int) -> None:
    child = await world.child(main)
    assert await wake(world, child) is False
    assert await beat_at(world, child) is None


async def test_a_persons_words_are_read_before_a_heartbeat(world: World, main: int) -> None:
    await notify(world, main, "rain")
    await wake(world, main)
    world.clock.advance(0.25)
    await ring(world)
    await world.tell(main, "hello")
    await (await world.start(main)).finish("hi")
    await (await world.start(main)).finish("HEARTBEAT_OK")
    assert [one.text for one in await world.transcript(main) if isinstance(one, Input)] == ["hello", PROMPT]


# ---- the schedule ----------------------------------------------------------------------------------------


async def test_only_the_main_session_of_an_agent_with_a_heartbeat_is_armed(world: World, main: int) -> None:
    other = await world.main("other")
    beating(world, every_s=600.0)
    await world.db.alone(wake_tx.arm, world.policy)
    assert await beat_at(world, main) == world.clock.now() + 600
    assert await beat_at(world, other) is None
    world.clock.advance(600)
    assert await ring(world, CHECKLIST) == [main]
    assert await beat_at(world, main) == world.clock.now() + 600


async def test_a_restart_does_not_postpone_the_next_beat(world: World, main: int) -> None:
    beating(world, every_s=600.0)
    await world.db.alone(wake_tx.arm, world.policy)
    armed = await beat_at(world, main)
    world.clock.advance(300)
    await world.db.alone(wake_tx.arm, world.policy)
    assert await beat_at(world, main) == armed


@pytest.mark.scenario(151)
async def test_outside_its_hours_a_wake_waits_for_them(world: World, main: int) -> None:
    world.clock.set(86_400.0 * 20_000 + 3 * 3600)
    beating(world, active_hours=ActiveHours("09:00", "17:00"))
    await notify(world, main, "rain")
    await wake(world, main)
    world.clock.advance(0.25)
    assert await ring(world) == []
    opens = 86_400.0 * 20_000 + 9 * 3600
    assert await beat_at(world, main) == opens
    world.clock.set(opens)
    assert await ring(world) == [main]


# ---- what it says ----------------------------------------------------------------------------------------


@pytest.mark.scenario(152)
async def test_nothing_to_tell_reaches_nobody_and_an_alert_the_person(world: World, main: int) -> None:
    await notify(world, main, "rain")
    await (await beaten(world, main)).finish("**HEARTBEAT_OK** all quiet")
    assert await outbox(world) == []
    await notify(world, main, "storm")
    await (await beaten(world, main)).finish("close the windows")
    assert await outbox(world) == [("terminal", "main", "close the windows")]


async def test_the_same_alert_is_told_again_only_after_a_day(world: World, main: int) -> None:
    told = []
    for hours in (0.0, 12.0, 11.9, 0.2):
        world.clock.advance(hours * 3600)
        await notify(world, main, f"storm at {world.clock.now()}")
        await (await beaten(world, main)).finish("close the windows")
        told.append(len(await outbox(world)))
    assert told == [1, 1, 1, 2]


async def test_another_alert_in_between_does_not_make_it_news(world: World, main: int) -> None:
    for said in ("storm", "hail", "storm", "hail"):
        await notify(world, main, f"weather at {world.clock.now()}")
        await (await beaten(world, main)).finish(said)
    assert [body for _, _, body in await outbox(world)] == ["storm", "hail"]


@pytest.mark.parametrize(
    ("target", "sent"),
    [("last", [("terminal", "main", "storm")]), ("none", []), ("pager:me", [("pager", "me", "storm")])],
)
async def test_the_target_says_where_an_alert_goes(
    world: World, main: int, target: str, sent: list[tuple[str, str, str]]
) -> None:
    beating(world, target=target)
    await notify(world, main, "weather")
    await (await beaten(world, main)).finish("storm")
    assert await outbox(world) == sent


async def test_a_turn_after_a_heartbeat_answers_as_usual(world: World, main: int) -> None:
    await notify(world, main, "weather")
    await (await beaten(world, main)).finish("HEARTBEAT_OK")
    await world.tell(main, "hello")
    await (await world.start(main)).finish("HEARTBEAT_OK")
    assert await outbox(world) == [("terminal", "main", "HEARTBEAT_OK")]


# ---- results as heartbeats -------------------------------------------------------------------------------

MIDNIGHT = 86_400.0 * 20_000


def waking_by_heartbeat(world: World) -> None:
    beating(world, active_hours=ActiveHours("09:00", "17:00"))
    rules = replace(world.policy.announcing, idle_wake=IdleWake.HEARTBEAT)
    world.policy = replace(world.policy, announcing=rules)


@pytest.mark.parametrize(("hour", "opens"), [(3.0, 9.0), (9.0, None), (16.9999, 33.0), (17.0, 33.0)])
async def test_a_result_waits_for_the_active_hours_when_it_comes_as_a_heartbeat(
    world: World, main: int, hour: float, opens: float | None
) -> None:
    waking_by_heartbeat(world)
    world.clock.set(MIDNIGHT + hour * 3600)
    await world.end(await world.child(main))
    await world.mail()
    debounced = world.clock.now() + world.policy.announcing.debounce_s
    assert await world.due(main) == (debounced if opens is None else MIDNIGHT + opens * 3600)
    deferred = "waiting" if opens is None else "deferred"
    assert (await world.rows("SELECT attempts, delivery FROM tasks")) == [(0, deferred)]


async def test_a_person_and_a_parent_that_waits_heed_no_hours(world: World, main: int) -> None:
    waking_by_heartbeat(world)
    world.clock.set(MIDNIGHT)
    await world.tell(main, "hello")
    run = await world.start(main)
    child = await world.child(main)
    await run.yields()
    await world.end(child)
    await world.mail()
    assert await world.due(main) == world.clock.now()


async def test_a_result_that_is_not_worth_telling_is_delivered_and_not_told(world: World, main: int) -> None:
    waking_by_heartbeat(world)
    world.clock.set(MIDNIGHT + 10 * 3600)
    child = await world.child(main)
    await world.end(child)
    await world.mail()
    world.clock.advance(2)
    await (await world.start(main)).finish("HEARTBEAT_OK nothing new")
    assert await outbox(world) == []
    assert (await world.task(child)).delivery == "delivered"
    (letter,) = await world.inputs(main)
    assert letter.startswith(f"{PROMPT}\n\n")


async def test_the_answer_to_a_person_has_no_heartbeat_prompt_though_a_result_is_read_with_it(
    world: World, main: int
) -> None:
    waking_by_heartbeat(world)
    world.clock.set(MIDNIGHT + 10 * 3600)
    await world.end(await world.child(main))
    await world.mail()
    world.clock.advance(2)
    await world.tell(main, "hello")
    await (await world.start(main)).finish("hello, and the result is there")
    assert not any(PROMPT in text for text in await world.inputs(main))
