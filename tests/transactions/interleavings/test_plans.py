"""A limit holds whatever plan the server chooses: statistics may be old, and a subquery may be run again."""

from __future__ import annotations

import pytest

from clutch.core.model import Lane
from clutch.transactions import claims
from tests.transactions.interleavings.two_connections import Stage
from tests.transactions.world import World

pytestmark = pytest.mark.anyio


async def test_a_claim_takes_no_more_than_its_lane_has_room_for_under_any_plan(
    stage: Stage, world: World, main: int
) -> None:
    """The server last looked when there was one session, so it expects to join with one and keeps nothing."""
    await stage.db.alone(claims.set_lanes, {Lane.SUBAGENT: 1})
    await stage._watcher.execute("ANALYZE sessions")
    await world.children(main, "a", "b", "c")
    assert len(await world.claim()) == 1
    await stage._watcher.execute("ANALYZE sessions")
