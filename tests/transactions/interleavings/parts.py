"""Transactions ready to be played, and the stories they are played in."""

from __future__ import annotations

from typing import Any

from clutch.core.messages import Answer, Result, Results, Usage
from clutch.core.model import LetterKind
from clutch.core.spawn import SpawnRequest
from clutch.transactions import claims, control, inbox, messages, turn, turn_begin, turn_end, wake, workers
from clutch.transactions.sessions import OwnedRun
from clutch.transactions.turn import ModelAnswer
from tests.transactions.interleavings.two_connections import Start
from tests.transactions.world import Run, World

# ---- transactions, ready to be started ---------------------------------------------------------------


def finishing(run: Run, text: str = "all done") -> Start:
    return of(run, turn_end.finish, ModelAnswer(Answer(text, (), Usage(1, 1), "scripted"), run.is_unanswered))


def yielding(run: Run) -> Start:
    return of(run, turn.yields, Results(()), [0], run.world.nonce())


def filing(run: Run) -> Start:
    given = tuple(Result(place, call.name, "ok") for place, call in enumerate(run.answer.calls))
    return of(run, turn.results, Results(given), run.world.nonce())


def of(run: Run, fn: Any, *args: Any) -> Start:
    return lambda now: fn(now, run.owned, *args)


def beginning(world: World, session_id: int) -> Start:
    """Of a session that was claimed."""
    owned = OwnedRun(world.policy, session_id, world.held[session_id].fence, world.number())
    nonce = world.nonce()
    return lambda now: turn_begin.begin(now, owned, nonce)


def posting(world: World, session_id: int, text: str = "hello") -> Start:
    key = world.key("letter")
    return lambda now: inbox.post(now, session_id, key, LetterKind.USER, text)


def waking(world: World, session_id: int) -> Start:
    return lambda now: wake.wake(now, world.policy, session_id)


def ringing(world: World, task_id: int) -> Start:
    return lambda now: workers.ring(now, world.policy, task_id)


def killing(world: World, task_id: int) -> Start:
    return lambda now: control.kill(now, world.policy, task_id, "enough", "person")


def steering(world: World, task_id: int) -> Start:
    return lambda now: messages.steer(now, world.policy, task_id, "steer", "do this instead", actor="person")


def claiming(world: World, worker: int | None = None) -> Start:
    return lambda now: claims.claim(now, world.worker if worker is None else worker, 100)


def burying(worker: int) -> Start:
    return lambda now: workers.bury(now, worker)


def spawning(world: World, parent: int, fence: int | None = None, label: str = "born") -> Start:
    order = world.order(SpawnRequest(f"do {label}", label), f"spawn:{label}")
    return world.spawning(parent, fence, [order])


# ---- stories -----------------------------------------------------------------------------------------


async def fan_out(world: World, main: int, *labels: str) -> tuple[Run, list[Run]]:
    """Main in a run, its children in theirs."""
    await world.tell(main, "go")
    run = await world.start(main)
    await run.spawn(*labels)
    await run.results()
    tasks = [row[0] for row in await world.rows("SELECT id FROM tasks ORDER BY spawn_order")]
    return run, [await world.start(task) for task in tasks]


async def told(world: World, session_id: int, words: str) -> int:
    """How many messages of a session show these words."""
    return sum(words in text for text in await world.inputs(session_id))


async def is_woken(world: World, session_id: int) -> None:
    assert await world.due(session_id) is not None


async def held(world: World, main: int, *labels: str) -> list[Run]:
    run, children = await fan_out(world, main, *labels)
    await run.yields()
    return children


async def heard_once(world: World, words: str) -> None:
    await world.die()
    await world.live()
    everywhere = [
        await told(world, session_id, words) for (session_id,) in await world.rows("SELECT id FROM sessions")
    ]
    assert sum(everywhere) == 1
