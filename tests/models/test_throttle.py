"""The throttle: one provider key, many children, and nobody asks when it is no use."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from clutch.core.messages import Answer, Input, Usage
from clutch.core.rate_limit import Bounds
from clutch.models.chat_completions import DirectModels
from clutch.models.provider import AdapterKind, Provider
from clutch.models.rate_limiter import Throttled
from clutch.ports import Clock, ModelError, ModelRequest, OnDelta, Trouble
from clutch.testing.providers import Behaviour, Failure, Fault, Pause, Providers, Reply, Text, WireRequest
from clutch.testing.simulation.loop import run_virtual

T = TypeVar("T")
MODEL = "here:small-model"
RETRIES_MAX = 30


class LoopClock:
    """The loop's own time: virtual in most of these tests."""

    def now(self) -> float:
        return 1_000_000.0 + asyncio.get_running_loop().time()


class WallClock:
    def now(self) -> float:
        return time.time()


class Fake:
    """Does with each call what it is told, and remembers when."""

    def __init__(self, act: Callable[[ModelRequest], Awaitable[Answer]]) -> None:
        self.act = act
        self.asked: list[tuple[str, float]] = []
        self.under_way = self.under_way_max = 0

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self.asked.append((request.key, LoopClock().now()))
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            return await self.act(request)
        finally:
            self.under_way -= 1


def asking(key: str, output_tokens_max: int = 1) -> ModelRequest:
    return ModelRequest(MODEL, "", (Input("hi"),), (), key, None, output_tokens_max)


async def taking(seconds: float) -> Answer:
    await asyncio.sleep(seconds)
    return Answer("ok", usage=Usage(1, 1))


def throttled(models: Fake, bounds: Bounds | None = None) -> Throttled:
    return Throttled(models, LoopClock(), {"here": bounds or Bounds()}, chance=lambda: 0.5)


async def go(models: Throttled, key: str) -> Answer:
    return await models.ask(asking(key), lambda _: None)


async def patiently(models: Throttled, key: str, parks: Counter[str], clock: Clock | None = None) -> Answer:
    """As the engine does it: park until the moment that was named, then ask again."""
    for _ in range(RETRIES_MAX):
        try:
            return await go(models, key)
        except ModelError as error:
            parks["sent" if error.is_sent else "kept"] += 1
            await until(error.retry_at, clock)
    raise AssertionError(f"{key} was sent away {RETRIES_MAX} times")


async def all_free(models: Throttled, fake: Fake, places: int) -> None:
    """So many calls begin at once, and no more: nobody still holds a place, nobody gave one back twice."""
    before = len(fake.asked)
    tasks = [asyncio.create_task(go(models, f"free{number}")) for number in range(places + 1)]
    await asyncio.sleep(0.01)
    assert len(fake.asked) - before == places
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(moment: float | None, clock: Clock | None = None) -> None:
    assert moment is not None
    await asyncio.sleep(max(0.0, moment - (clock or LoopClock()).now()))


async def error_of(asked: Coroutine[Any, Any, Answer]) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await asked
    return caught.value


def refusing(reset_s: float) -> Callable[[ModelRequest], Awaitable[Answer]]:
    async def act(request: ModelRequest) -> Answer:
        raise ModelError(Trouble.RATE_LIMIT, "slow down", LoopClock().now() + reset_s)

    return act


# --- resets ------------------------------------------------------------------------------------------------


def test_after_a_refusal_nobody_asks_before_the_reset_and_everybody_is_told_when() -> None:
    async def story() -> None:
        fake = Fake(refusing(30))
        models = throttled(fake)
        start = LoopClock().now()
        first = await error_of(go(models, "a"))
        second = await error_of(go(models, "b"))
        assert (first.is_sent, second.is_sent) == (True, False)
        assert (first.trouble, second.trouble) == (Trouble.RATE_LIMIT, Trouble.RATE_LIMIT)
        for error in (first, second):
            assert error.retry_at is not None
            assert start + 30 <= error.retry_at <= start + 31
        assert len(fake.asked) == 1

    run_virtual(story())


def test_another_provider_key_is_not_held() -> None:
    async def story() -> None:
        async def act(request: ModelRequest) -> Answer:
            if request.model.startswith("here:"):
                raise ModelError(Trouble.RATE_LIMIT, "slow down", LoopClock().now() + 30)
            return Answer("ok")

        models = throttled(Fake(act))
        await error_of(go(models, "a"))
        there = ModelRequest("there:small-model", "", (Input("hi"),), (), "b")
        assert (await models.ask(there, lambda _: None)).text == "ok"

    run_virtual(story())


def test_names_that_an_agent_invents_are_passed_on_and_not_remembered() -> None:
    async def story() -> None:
        async def act(request: ModelRequest) -> Answer:
            raise ModelError(Trouble.AUTH, "there is no such provider", is_sent=False)

        fake = Fake(act)
        models = Throttled(fake, LoopClock(), known=lambda model: model == MODEL)
        for number in range(1000):
            invented = ModelRequest("invented:x", "", (Input("hi"),), (), f"s{number}")
            await error_of(models.ask(invented, lambda _: None))
        assert len(fake.asked) == 1000  # no line was made that could have closed after the fifth failure
        for number in range(10):
            await error_of(go(models, f"known{number}"))
        assert len(fake.asked) == 1005

    run_virtual(story())


def test_a_short_reset_is_waited_for_without_sending_anybody_away() -> None:
    async def story() -> None:
        async def act(request: ModelRequest) -> Answer:
            if request.key == "a":
                raise ModelError(Trouble.RATE_LIMIT, "slow down", LoopClock().now() + 1.5)
            return await taking(0)

        fake = Fake(act)
        models = throttled(fake)
        await error_of(go(models, "a"))
        assert (await go(models, "b")).text == "ok"
        assert fake.asked[1][1] - fake.asked[0][1] == pytest.approx(1.5)

    run_virtual(story())


def test_those_who_wait_are_told_the_reset_at_once() -> None:
    async def story() -> None:
        async def act(request: ModelRequest) -> Answer:
            await asyncio.sleep(0.5)
            raise ModelError(Trouble.RATE_LIMIT, "slow down", LoopClock().now() + 60)

        fake = Fake(act)
        models = throttled(fake, Bounds(concurrency_max=1))
        start = LoopClock().now()
        first = asyncio.create_task(error_of(go(models, "a")))
        await asyncio.sleep(0.1)
        waiting = [asyncio.create_task(error_of(go(models, "b")))]
        for error in [await first, *[await one for one in waiting]]:
            assert error.retry_at is not None
            assert error.retry_at >= start + 60.5
        assert LoopClock().now() - start == pytest.approx(0.5)
        assert len(fake.asked) == 1

    run_virtual(story())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("allowed", "probes"), [(40, 0), (10, 10)])
def test_a_fleet_sees_at_most_one_refusal_for_each_child(allowed: int, probes: int, seed: int) -> None:
    """The provider takes so many calls in 10 seconds. 200 children start at once, without knowing.

    The more minutes it takes, the more often somebody finds out whether the provider takes more by now."""

    async def story() -> None:
        window_s, passed = 10.0, Counter[int]()
        refused: Counter[str] = Counter()

        async def act(request: ModelRequest) -> Answer:
            window = int(LoopClock().now() // window_s)
            passed[window] += 1
            if passed[window] > allowed:
                refused[request.key] += 1
                await asyncio.sleep(0.05)
                raise ModelError(Trouble.RATE_LIMIT, "slow down", (window + 1) * window_s)
            return await taking(0.2)

        fake = Fake(act)
        models = throttled(fake)
        parks: Counter[str] = Counter()
        answers = await asyncio.gather(*(patiently(models, f"s{number}", parks) for number in range(200)))
        assert [answer.text for answer in answers] == ["ok"] * 200
        assert 0 <= refused.total() - (200 - allowed) <= probes
        assert max(refused.values()) == 1 or probes
        assert len(fake.asked) == 200 + refused.total()
        assert parks["kept"] <= 200 * (1 + probes)

    run_virtual(story(), seed)


# --- concurrency and tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_never_more_calls_than_allowed_and_nobody_starves(seed: int) -> None:
    async def story() -> None:
        fake = Fake(lambda _: taking(3.0))
        models = throttled(fake, Bounds(concurrency_max=5))
        parks: Counter[str] = Counter()
        await asyncio.gather(*(patiently(models, f"s{number}", parks) for number in range(100)))
        assert fake.under_way_max == 5
        assert len(fake.asked) == 100
        assert parks["sent"] == 0
        assert LoopClock().now() - 1_000_000.0 < 1.6 * 100 * 3.0 / 5
        await all_free(models, fake, 5)

    run_virtual(story(), seed)


def test_short_waits_are_in_the_order_of_arrival() -> None:
    async def story() -> None:
        fake = Fake(lambda _: taking(0.1))
        models = throttled(fake, Bounds(concurrency_max=1, patience_s=60))
        arrived = []
        tasks = []
        for number in range(20):
            arrived.append(f"s{number}")
            tasks.append(asyncio.create_task(go(models, arrived[-1])))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert [key for key, _ in fake.asked] == arrived

    run_virtual(story())


def test_whoever_comes_back_goes_before_those_who_came_later() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def act(request: ModelRequest) -> Answer:
            await gate.wait()
            return Answer("ok")

        fake = Fake(act)
        models = throttled(fake, Bounds(concurrency_max=1))
        first = asyncio.create_task(go(models, "first"))
        await asyncio.sleep(0.01)
        away = await error_of(go(models, "early"))  # waits for all its patience
        assert not away.is_sent
        late = asyncio.create_task(go(models, "late"))
        await asyncio.sleep(0.01)
        back = asyncio.create_task(go(models, "early"))
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(first, late, back)
        assert [key for key, _ in fake.asked] == ["first", "early", "late"]

    run_virtual(story())


@pytest.mark.parametrize("seed", range(20))
def test_cancelled_calls_leave_no_trace(seed: int) -> None:
    async def story() -> None:
        fake = Fake(lambda _: taking(0.1))
        models = throttled(fake, Bounds(concurrency_max=2, patience_s=60, tokens_per_minute=100_000))
        tasks = [asyncio.create_task(go(models, f"s{number}")) for number in range(40)]
        for number in range(0, 40, 2):
            await asyncio.sleep(0.05)
            tasks[number].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, Answer) for one in done[1::2])
        assert fake.under_way_max <= 2
        await asyncio.gather(*(go(models, f"again{number}") for number in range(4)))
        await all_free(models, fake, 2)

    run_virtual(story(), seed)


def test_a_call_passes_although_an_older_one_of_the_same_key_is_cancelled() -> None:
    """A session that is taken up again asks with the key of the turn that is still being ended."""

    async def story() -> None:
        fake = Fake(lambda _: taking(0.1))
        models = throttled(fake, Bounds(concurrency_max=1, patience_s=60))
        busy = asyncio.create_task(go(models, "busy"))
        await asyncio.sleep(0.01)
        old, new = (asyncio.create_task(go(models, "same")) for _ in range(2))
        await asyncio.sleep(0.01)
        old.cancel()
        done = await asyncio.gather(busy, new, return_exceptions=True)
        assert [type(one) for one in done] == [Answer, Answer]
        await all_free(models, fake, 1)

    run_virtual(story())


def test_tokens_per_minute_are_kept_and_whoever_was_sent_away_passes_on_time() -> None:
    async def story() -> None:
        fake = Fake(lambda _: taking(0.0))
        models = throttled(fake, Bounds(tokens_per_minute=60))
        parks: Counter[str] = Counter()

        async def child(number: int) -> None:
            request = asking(f"s{number}", output_tokens_max=30)
            for _ in range(3):
                try:
                    await models.ask(request, lambda _: None)
                    return
                except ModelError as error:
                    parks[request.key] += 1
                    await until(error.retry_at)
            raise AssertionError("sent away although it came on time")

        fake.act = lambda _: asyncio.sleep(0, Answer("ok", usage=Usage(0, 30)))
        await asyncio.gather(*(child(number) for number in range(10)))
        assert LoopClock().now() - 1_000_000.0 == pytest.approx(240, abs=5)
        assert max(parks.values()) == 1

    run_virtual(story())


# --- the breaker --------------------------------------------------------------------------------------------


def test_a_key_that_is_refused_is_not_tried_by_a_hundred_children() -> None:
    async def story() -> None:
        async def act(request: ModelRequest) -> Answer:
            raise ModelError(Trouble.AUTH, f"invalid key (request {request.key})")

        fake = Fake(act)
        models = throttled(fake)
        errors = [await error_of(go(models, f"s{number}")) for number in range(100)]
        assert {error.trouble for error in errors} == {Trouble.AUTH}
        assert len(fake.asked) == 5
        assert not errors[-1].is_sent

    run_virtual(story())


def test_one_probe_finds_out_that_the_provider_is_back() -> None:
    async def story() -> None:
        is_back = False

        async def act(request: ModelRequest) -> Answer:
            if not is_back:
                raise ModelError(Trouble.NETWORK, "nobody there")
            return await taking(1.0)

        fake = Fake(act)
        models = throttled(fake)
        for number in range(6):
            await error_of(go(models, f"s{number}"))
        assert len(fake.asked) == 5
        is_back = True
        await asyncio.sleep(10)
        probe = asyncio.create_task(go(models, "probe"))
        await asyncio.sleep(0.1)
        told = await error_of(go(models, "other"))
        assert not told.is_sent
        assert (await probe).text == "ok"
        assert (await go(models, "other")).text == "ok"

    run_virtual(story())


def test_a_request_that_was_wrong_by_itself_holds_nobody() -> None:
    async def story() -> None:
        async def act(request: ModelRequest) -> Answer:
            raise ModelError(Trouble.BAD_REQUEST, "no such field")

        fake = Fake(act)
        models = throttled(fake)
        errors = [await error_of(go(models, f"s{number}")) for number in range(30)]
        assert len(fake.asked) == 30
        assert all(error.retry_at is None for error in errors)

    run_virtual(story())


def test_an_overloaded_provider_is_left_alone_by_everybody_for_a_while() -> None:
    async def story() -> None:
        async def act(request: ModelRequest) -> Answer:
            raise ModelError(Trouble.OVERLOADED, "busy")

        fake = Fake(act)
        models = throttled(fake)
        parks: Counter[str] = Counter()
        start = LoopClock().now()
        errors = await asyncio.gather(*(error_of(go(models, f"s{number}")) for number in range(4)))
        assert all(error.retry_at is not None and error.retry_at > start + 1 for error in errors)
        with pytest.raises(AssertionError, match="sent away"):
            await patiently(models, "s0", parks)
        assert LoopClock().now() - start > 20 * 60

    run_virtual(story())


# --- on the wire --------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_on_the_wire_each_child_is_refused_once_and_then_nobody_asks_before_the_reset() -> None:
    allowed, window_s = 100, 2.0
    start = asyncio.get_running_loop().time()
    seen: list[tuple[float, bool]] = []

    def behave(request: WireRequest) -> Behaviour:
        now = asyncio.get_running_loop().time()
        window = int((now - start) / window_s)
        passed = sum(
            1 for at, is_refused in seen if int((at - start) / window_s) == window and not is_refused
        )
        seen.append((now, passed >= allowed))
        if passed >= allowed:
            wait_ms = 1000 * (start + (window + 1) * window_s - now)
            return Failure(Fault.RATE_LIMIT, headers={"Retry-After-Ms": str(wait_ms + 1)})
        return Reply([Text("ok"), Pause(0.01)])

    async with Providers(behave) as server:
        direct = DirectModels(Provider("here", server.openai_url, "k", adapter=AdapterKind.DIRECT), "k")
        await Named(direct).ask(asking("opens the connection"), lambda _: None)
        seen.clear()
        clock = WallClock()
        models = Throttled(Named(direct), clock, {"here": Bounds(spread_s=0.2)}, chance=lambda: 0.5)
        start = asyncio.get_running_loop().time()
        parks: Counter[str] = Counter()
        answers = await asyncio.gather(
            *(patiently(models, f"s{number}", parks, clock) for number in range(200))
        )
        await direct.aclose()
    assert [answer.text for answer in answers] == ["ok"] * 200
    refused = [at for at, is_refused in seen if is_refused]
    reset = start + window_s * (1 + int((refused[0] - start) / window_s))
    told = refused[0] + 0.5 * (reset - refused[0])  # by then all that were under way have been answered
    assert not [at for at, _ in seen if told < at < reset]
    assert len(refused) <= 200 - allowed
    assert max(server.log.keys.values()) <= 2


class Named:
    """Takes the provider off the name, as the router does."""

    def __init__(self, models: DirectModels) -> None:
        self._models = models

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        bare = ModelRequest("small-model", request.system, request.transcript, request.tools, request.key)
        return await self._models.ask(bare, on_delta)


# --- a storm of refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("share", "limit_s"), [(0.5, 90), (0.7, 150), (0.9, 500)])
def test_refusals_at_random_slow_a_fleet_down_only_as_far_as_they_must(
    share: float, limit_s: float, seed: int
) -> None:
    """A provider that refuses a share of all calls and names a wait of one second: 20 children, one call each.

    Every refusal used to slow the learned pace down by a tenth, without end: at 0.9 this took 10,000 seconds."""
    chance = random.Random(seed)

    async def story() -> list[str]:
        async def act(request: ModelRequest) -> Answer:
            if chance.random() < share:
                raise ModelError(Trouble.RATE_LIMIT, "slow down", LoopClock().now() + 1)
            return await taking(0.5)

        models = throttled(Fake(act))
        finished: list[str] = []

        async def child(key: str) -> None:
            while True:
                try:
                    await go(models, key)
                except ModelError as error:
                    await until(error.retry_at)
                else:
                    return finished.append(key)

        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(child(f"{number:02}")))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert LoopClock().now() - 1_000_000.0 < limit_s
        return finished

    finished = run_virtual(story(), seed)
    # By chance alone half of the pairs would finish in the wrong order.
    overtaken = sum(1 for at, key in enumerate(finished) for later in finished[at:] if later < key)
    assert overtaken < 20 * 19 / 2 * 0.35
