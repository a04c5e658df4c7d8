"""The fourth interleaving: the commit is durable, and whoever asked for it dies before hearing so.

One story, told once for every transaction in it. Recovery is nothing but the next worker doing its work:
bury, claim, begin, go on from the transcript. Nothing is lost, nothing happens twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from clutch.core.messages import Answer, Input, Message, Results
from clutch.core.model import Delivery, Outcome
from clutch.store.transaction import Keys, Tx
from tests.transactions import invariants
from tests.transactions.interleavings.two_connections import LinkDatabase, Stage
from tests.transactions.world import World, calls, spawns

pytestmark = [pytest.mark.anyio, pytest.mark.scenario(135)]


class Died(BaseException):
    """The process is gone; nothing in it may catch this."""


class DyingDatabase(LinkDatabase):
    """Kills its caller after the commit number `at`, before the answer."""

    def __init__(self, db: LinkDatabase, at: int) -> None:
        self.stats, self._link, self._clock = db.stats, db._link, db._clock
        self.left = at
        self.commits: list[str] = []

    async def tx(self, keys: Keys, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return self._answer(fn, await super().tx(keys, fn, *args, **kwargs))

    async def alone(self, fn: Callable[..., Tx[Any]], /, *args: Any, **kwargs: Any) -> Any:
        return self._answer(fn, await super().alone(fn, *args, **kwargs))

    def _answer(self, fn: Callable[..., Tx[Any]], value: Any) -> Any:
        self.commits.append(fn.__name__)
        self.left -= 1
        if self.left == 0:
            raise Died
        return value


def story(session_id: int, transcript: Sequence[Message]) -> Answer | str:
    """Main asks left and right and waits; left asks below and says its last word before hearing it."""
    said = sum(isinstance(message, Answer) for message in transcript)
    first, last = transcript[0], transcript[-1]
    assert isinstance(first, Input)
    if first.text == "go":
        return (spawns("left", "right"), calls("sessions_yield"), "to the person")[said]
    if "do left" in first.text:
        return (spawns("below"), "left, first words", "left, last words")[said]
    return calls("read") if isinstance(last, Input) else "found something"


async def tell(world: World, main: int) -> None:
    await world.tell(main, "go")
    await world.live(story)


async def the_story_was_told_once(world: World, main: int) -> None:
    await invariants.check(world)
    await invariants.everything_is_over(world)
    tasks = await world.rows("SELECT label, outcome, delivery, attempts FROM tasks ORDER BY label")
    assert tasks == [
        (label, Outcome.OK.value, Delivery.DELIVERED.value, 0) for label in ("below", "left", "right")
    ]
    assert await world.rows("SELECT body FROM outbox") == [("to the person",)]
    (_, told) = await world.inputs(main)
    assert told.count("--- Task") == 2
    assert "left, last words" in told
    for (session_id,) in await world.rows("SELECT id FROM sessions"):
        await every_call_has_one_result(world, session_id)


async def every_call_has_one_result(world: World, session_id: int) -> None:
    said = await world.transcript(session_id)
    for answer, following in zip(said, [*said[1:], None], strict=True):
        if isinstance(answer, Answer) and answer.calls:
            assert isinstance(following, Results)
            assert [result.index for result in following.results] == list(range(len(answer.calls)))
    assert sum(isinstance(message, Results) for message in said) == sum(
        isinstance(message, Answer) and bool(message.calls) for message in said
    )


async def test_death_after_any_commit_loses_nothing_and_doubles_nothing(stage: Stage) -> None:
    world = stage.world
    main = await world.main()
    saved = await stage.save()
    undisturbed = DyingDatabase(stage.db, at=-1)
    world.db = undisturbed
    await tell(world, main)
    await the_story_was_told_once(world, main)
    assert {"post", "wake", "claim", "begin", "respond", "spawn", "results", "yields", "finish"} <= set(
        undisturbed.commits
    )
    for at, name in enumerate(undisturbed.commits, start=1):
        await stage.restore(saved)
        world.db = DyingDatabase(stage.db, at)
        with pytest.raises(Died):
            await tell(world, main)
        world.db = stage.db
        try:
            await world.die()
            await world.live(story)
            await the_story_was_told_once(world, main)
        except BaseException as error:
            error.add_note(f"after the commit of {name}, number {at}")
            raise
