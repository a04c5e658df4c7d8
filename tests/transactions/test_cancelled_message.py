"""A user's message that is cancelled: before a turn reads it, while one answers it, and after the answer."""

from __future__ import annotations

import pytest

from clutch.core.model import Phase
from clutch.transactions import messages
from clutch.transactions.read import answers
from tests.transactions.world import World

pytestmark = pytest.mark.anyio


async def test_answer_that_came_first_stays_and_later_work_goes_on(world: World, main: int) -> None:
    """A client cancels a response in the moment in which it is completed."""
    await world.tell(main, "hello")
    letter = await world.one("SELECT idem FROM inbox WHERE session_id = ?", main)
    await (await world.start(main)).finish("hi")
    child = await world.child(main)
    stopped = await world.db.alone(messages.cancel, world.policy, main, letter, "user")
    state = await world.db.read(answers.state_of, letter)
    assert state is not None
    assert state.reply is not None
    assert (stopped, state.is_cancelled) == ((), False)
    assert (await world.phase(child))[0] is Phase.QUEUED
