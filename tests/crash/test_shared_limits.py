"""One provider limit for several gateways: real processes, a real PostgreSQL, a real HTTP provider that counts."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clutch.core.messages import Answer
from clutch.core.rate_limit import Bounds
from clutch.engine.provider_limits import StoredLimits
from clutch.models.chat_completions import DirectModels
from clutch.models.rate_limiter import Throttled
from clutch.ports import ModelError, ModelRequest, OnDelta
from clutch.store.postgres import PostgresStore
from clutch.store.postgres_clock import DatabaseClock
from clutch.store.transaction import Database, Tx
from clutch.testing.providers import Behaviour, Failure, Fault, Providers, Reply, Silence, Text, WireRequest
from clutch.transactions import workers
from tests.crash.limited_gateway import gateway, provider
from tests.models.test_throttle import asking
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
LIMIT = 3


@asynccontextmanager
async def process(
    dsn: str, state: Path, url: str, limit: int = LIMIT
) -> AsyncIterator[asyncio.subprocess.Process]:
    words = ("-m", "tests.crash.limited_gateway", dsn, str(state), url, str(limit))
    pipe = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        assert started.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await started.stdout.readline() == b"ready\n"
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


class Quota:
    """A provider that takes so many calls in a second and refuses the others until the next second."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max, self._second, self._calls = calls_max, 0, 0
        self.refusals = 0

    def __call__(self, _: WireRequest) -> Behaviour:
        second = int(time.monotonic())
        self._calls = 1 if second != self._second else self._calls + 1
        self._second = second
        if self._calls <= self._calls_max:
            return Reply((Text("done"),), latency_s=0.1)
        self.refusals += 1
        return Failure(Fault.RATE_LIMIT, headers={"retry-after": "1"})


@pytest.mark.slow
async def test_four_gateways_hold_one_limit_through_refusals_and_a_kill(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """They could make 30 calls in a second and are allowed 10. One is killed while its calls are under way."""
    quota = Quota(10)
    async with AsyncExitStack() as stack:
        seen = await stack.enter_async_context(Providers(quota))
        url = seen.openai_url
        others = await asyncio.gather(
            *(stack.enter_async_context(process(postgres_dsn, tmp_path / name, url)) for name in "abc")
        )
        here = await stack.enter_async_context(gateway(postgres_dsn, str(tmp_path / "d"), url, LIMIT))
        tasks = [await here.spawn(f"task {number}") for number in range(40)]
        await until(lambda: seen.log.count >= 20)
        others[0].send_signal(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            results = await asyncio.gather(*(task.result() for task in tasks))
        assert [one.text for one in results] == ["done"] * 40
        assert seen.log.in_flight_max == LIMIT
        assert quota.refusals < 30, "a refusal of one is a refusal of all"


class Gateway:
    """As much of a gateway as calls models."""

    def __init__(
        self, db: PostgresStore, clock: DatabaseClock, shared: KnownWorker, models: Throttled
    ) -> None:
        self.db, self.clock, self.shared, self.models = db, clock, shared, models
        self.worker_id = shared.number or 0

    async def ask(self, key: str) -> str:
        return (await self.models.ask(asking(key), lambda _: None)).text

    async def refused(self, key: str) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.ask(key)
        return caught.value


@asynccontextmanager
async def opened(dsn: str, url: str, bounds: Bounds, ahead_s: float = 0.0) -> AsyncIterator[Gateway]:
    """`ahead_s`: by how much the clock of its machine is wrong."""
    clock = SkewedClock(ahead_s)
    async with PostgresStore(dsn, clock) as db:
        worker_id = await db.alone(workers.next_number)
        await db.alone(workers.register, worker_id, 1e6, "host", 1, version="1")
        shared = KnownWorker(db)
        shared.number = worker_id
        direct = Renamed(DirectModels(provider(url, 1), "key", clock.wall))
        models = Throttled(direct, clock, {"here": bounds}, chance=lambda: 0.5, shared=shared)
        db.listen(models.hear)
        try:
            yield Gateway(db, clock, shared, models)
        finally:
            await models.close()
            await direct.models.aclose()


class KnownWorker(StoredLimits):
    """A worker that only holds slots."""

    number: int | None = 0

    def holder(self) -> int | None:
        return self.number


class SkewedClock(DatabaseClock):
    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s
        super().__init__()

    def wall(self) -> float:
        return time.time() + self._ahead_s


class Renamed:
    """The router's part: the provider does not know the name we have for it."""

    def __init__(self, models: DirectModels) -> None:
        self.models = models

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        return await self.models.ask(replace(request, model="small"), on_delta)


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.01)


def reply(_: WireRequest) -> Behaviour:
    return Reply((Text("done"),))


async def test_a_gateway_without_its_lease_sends_no_request(postgres_dsn: str) -> None:
    """It was frozen: another gateway may have asked the same and committed the answer."""
    async with Providers(reply) as seen, opened(postgres_dsn, seen.openai_url, Bounds()) as frozen:
        number, frozen.shared.number = frozen.shared.number, None
        error = await frozen.refused("call")
        assert "lease" in str(error)
        assert not error.is_sent
        frozen.shared.number = number
        assert await frozen.ask("call") == "done"
        assert seen.log.count == 1


async def test_what_one_gateway_learns_of_a_refusal_or_a_broken_provider_holds_for_all(
    postgres_dsn: str,
) -> None:
    """The second gateway's clock is 10 minutes ahead; the third one starts afterwards."""
    async with AsyncExitStack() as stack:
        seen = await stack.enter_async_context(Providers(reply))
        known = (postgres_dsn, seen.openai_url)
        first = await stack.enter_async_context(opened(*known, Bounds(breaker_first_s=900.0)))
        second = await stack.enter_async_context(opened(*known, Bounds(breaker_first_s=900.0), 600.0))
        assert [await first.ask("a"), await second.ask("b")] == ["done", "done"]

        seen.behave = lambda _: Failure(Fault.AUTH)
        for number in range(5):
            await first.refused(f"auth{number}")
        await until(lambda: second.models.limits()["here"].breaker)
        third = await stack.enter_async_context(opened(*known, Bounds()))
        for other in (second, third):
            assert not (await other.refused("c")).is_sent
        assert seen.log.count == 7
        await first.db.alone(forget)

        seen.behave = lambda _: Failure(Fault.RATE_LIMIT, headers={"retry-after": "900"})
        fourth = await stack.enter_async_context(opened(*known, Bounds(spread_s=0.0), 600.0))
        fifth = await stack.enter_async_context(opened(*known, Bounds(spread_s=0.0)))
        refusal = await fourth.refused("d")
        assert refusal.is_sent
        await until_refusal_is_shared(first.db)
        held = await fifth.refused("e")
        assert not held.is_sent
        assert refusal.retry_at is not None
        assert abs(refusal.retry_at - 900.0 - fourth.clock.now()) < PATIENCE_S
        assert held.retry_at is not None
        assert abs(held.retry_at - refusal.retry_at) < PATIENCE_S


async def until_refusal_is_shared(db: Database) -> None:
    """A gateway tells the others after its call has failed; a call of another one may start before."""
    async with asyncio.timeout(PATIENCE_S):
        while not await db.read(is_refusal_shared):  # noqa: ASYNC110 - asks a database
            await asyncio.sleep(0.01)


def is_refusal_shared(now: float) -> Tx[bool]:
    del now
    return any("Rate limit" in state for (state,) in (yield "SELECT state FROM provider_limits", ()))


def forget(now: float) -> Tx[None]:
    del now
    yield "DELETE FROM provider_limits", ()


async def test_slots_are_shared_returned_when_idle_and_those_of_a_dead_gateway_when_it_is_buried(
    postgres_dsn: str,
) -> None:
    async with AsyncExitStack() as stack:
        seen = await stack.enter_async_context(Providers(lambda _: Silence()))
        known = (postgres_dsn, seen.openai_url, Bounds(concurrency_max=2, patience_s=PATIENCE_S))
        first, second = [await stack.enter_async_context(opened(*known)) for _ in range(2)]
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        silent = [tasks.create_task(first.ask(name)) for name in "ab"]
        await until(lambda: seen.log.in_flight == 2)
        seen.behave = reply
        waiting = tasks.create_task(second.ask("c"))
        await until(lambda: second.models.limits()["here"].waiting)
        assert seen.log.count == 2
        silent[0].cancel()  # it gives back what the other one waits for
        assert await waiting == "done"

        # The other slot is of a call that never ends: of a process that is dead, though its socket is not closed.
        assert [await second.ask(str(number)) for number in range(5)] == ["done"] * 5
        assert seen.log.in_flight_max == 2
        await second.db.alone(workers.bury, first.worker_id)
        seen.behave = lambda _: Reply((Text("done"),), latency_s=0.1)
        await asyncio.gather(*(second.ask(f"both{number}") for number in range(4)))
        assert seen.log.in_flight_max == 3, "two of the living beside the one of the dead"
        silent[1].cancel()


async def test_without_a_database_no_call_waits_for_ever(postgres_dsn: str) -> None:
    async with AsyncExitStack() as stack:
        seen = await stack.enter_async_context(Providers(reply))
        limited = Bounds(concurrency_max=1, patience_s=0.5)
        one = await stack.enter_async_context(opened(postgres_dsn, seen.openai_url, limited))
        free = await stack.enter_async_context(opened(postgres_dsn, seen.openai_url, Bounds()))
        assert await one.ask("a") == "done"
        for gateway_ in (one, free):
            await gateway_.db.close()
        assert await one.ask("b") == "done", "in the slot that it holds"
        assert await free.ask("c") == "done", "no limit, nothing to ask for"
        seen.behave = lambda _: Silence()
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        silent = tasks.create_task(one.ask("d"))
        await until(lambda: seen.log.in_flight)
        async with asyncio.timeout(PATIENCE_S):
            assert not (await one.refused("e")).is_sent
        silent.cancel()
