"""What the limiter says of itself to users: what is in use, what is allowed, and until when no call is sent."""

from __future__ import annotations

import asyncio

from clutch.core.messages import Answer, Usage
from clutch.core.provider_limits import LimitGrant, LimitRequest
from clutch.core.rate_limit import Bounds
from clutch.models.rate_limiter import Throttled
from clutch.ports import ModelError, ModelRequest, Trouble
from clutch.testing.simulation.loop import run_virtual
from tests.models.test_throttle import Fake, LoopClock, error_of, go, refusing, taking, throttled


def test_a_configured_provider_is_listed_before_it_is_asked() -> None:
    async def story() -> None:
        models = throttled(Fake(lambda _: taking(1)), Bounds(concurrency_max=3, tokens_per_minute=6000))
        (limit,) = models.limits().values()
        assert (limit.in_use, limit.concurrency_max, limit.tokens_booked) == (0, 3, 0)
        assert (limit.closed, limit.breaker, limit.waiting) == (None, None, 0)

    run_virtual(story())


def test_calls_under_way_those_that_wait_and_booked_tokens_are_counted() -> None:
    async def used(_: ModelRequest) -> Answer:
        await asyncio.sleep(1)
        return Answer("ok", usage=Usage(1500, 1500))

    async def story() -> None:
        models = throttled(Fake(used), Bounds(concurrency_max=1, tokens_per_minute=6000))
        calls = [asyncio.create_task(go(models, name)) for name in "ab"]
        await asyncio.sleep(0.5)
        limit = models.limits()["here"]
        assert (limit.in_use, limit.waiting) == (1, 1)
        await asyncio.gather(*calls)
        limit = models.limits()["here"]
        assert (limit.in_use, limit.waiting) == (0, 0)
        # Two calls of 3000 tokens in the last two seconds, of which two seconds are paid for.
        assert limit.tokens_booked is not None
        assert 5700 <= limit.tokens_booked <= 6000

    run_virtual(story())


class Unreadable:
    """`SharedLimits` whose row a newer version wrote."""

    def __init__(self) -> None:
        self.asked = 0

    def holder(self) -> int | None:
        return 1

    async def exchange(self, name: str, bounds: Bounds, request: LimitRequest) -> LimitGrant:
        self.asked += 1
        raise KeyError("pace")


def test_calls_without_a_limit_start_while_the_shared_row_cannot_be_read() -> None:
    async def story() -> None:
        shared, began = Unreadable(), LoopClock().now()
        fake = Fake(lambda _: taking(0.1))
        models = Throttled(fake, LoopClock(), {"here": Bounds()}, chance=lambda: 0.5, shared=shared)
        await asyncio.gather(*(go(models, key) for key in "ab"))
        assert LoopClock().now() - began < 1, "not only after all patience"
        assert (len(fake.asked), shared.asked) == (2, 1)
        await models.close()

    run_virtual(story())


def test_a_refusal_and_an_open_breaker_say_until_when_and_why() -> None:
    async def story() -> None:
        start = LoopClock().now()
        models = throttled(Fake(refusing(30)))
        await error_of(go(models, "a"))
        limit = models.limits()["here"]
        assert limit.closed is not None
        assert (limit.closed.until - start, limit.closed.failure.text) == (30, "slow down")
        assert limit.breaker is None
        await asyncio.sleep(31)
        assert models.limits()["here"].closed is None

    async def broken(_: ModelRequest) -> Answer:
        raise ModelError(Trouble.AUTH, "the key is wrong")

    async def breaks() -> None:
        models = Throttled(
            Fake(broken), LoopClock(), {"here": Bounds(same_failures_max=1)}, chance=lambda: 0.0
        )
        await error_of(go(models, "a"))
        breaker = models.limits()["here"].breaker
        assert breaker is not None
        assert (breaker.until - LoopClock().now(), breaker.failure.trouble) == (5.0, "auth")

    run_virtual(story())
    run_virtual(breaks())
