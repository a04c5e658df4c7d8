"""What two gateways are asked at the same moment: neither loses what the other was told, in every order."""

from __future__ import annotations

import json

import pytest

from clutch.core.delivery import LOCAL_CHANNEL
from clutch.transactions import delivery, idempotency
from tests.transactions.interleavings.two_connections import Ended, Stage, Start
from tests.transactions.world import World

pytestmark = pytest.mark.anyio

HISTORY = "a digest"


def finding(fresh: str) -> Start:
    return lambda now: idempotency.find(now, "key", HISTORY, fresh)


@pytest.mark.parametrize("left", [0, 1, 2], ids=["no session", "one session", "two sessions"])
async def test_one_key_is_one_conversation_although_two_gateways_are_asked(
    stage: Stage, world: World, left: int
) -> None:
    """`left`: sessions whose conversation stands at the history that is sent. One of them at most is used."""
    for number in range(left):
        session = await world.main(f"c{number}")
        await world.db.tx(session, idempotency.leave, session, HISTORY)

    async def check(a: Ended, b: Ended) -> None:
        assert (a.error, b.error) == (None, None)
        assert a.value == b.value
        rows = await world.rows("SELECT COUNT(*) FROM sessions WHERE history IS NOT NULL")
        assert rows == [(max(left - 1, 0),)]

    await stage.every_order(finding("agent:main:chat:x"), finding("agent:main:chat:y"), check)


async def test_one_key_has_one_answer_although_two_gateways_have_acted(stage: Stage) -> None:
    def keeping(body: str) -> Start:
        return lambda now: idempotency.keep(now, "key", "a digest", 200, body)

    async def check(a: Ended, b: Ended) -> None:
        assert (a.error, b.error) == (None, None)
        assert a.value == b.value is not None

    assert await stage.every_order(keeping("the one"), keeping("the other"), check) == 2


async def test_two_results_that_are_read_at_two_gateways_are_both_known(
    stage: Stage, world: World, main: int
) -> None:
    tasks = await world.children(main, "one", "two")

    def reading(task_id: int) -> Start:
        return lambda now: delivery.known_already(now, world.policy, main, LOCAL_CHANNEL, task_id)

    async def check(a: Ended, b: Ended) -> None:
        assert (a.error, b.error) == (None, None)
        kept = await world.db.read(idempotency.kept_reply, f"known:{main}")
        assert kept is not None
        assert sorted(json.loads(kept.body)) == sorted(tasks)

    await stage.every_order(reading(tasks[0]), reading(tasks[1]), check)
