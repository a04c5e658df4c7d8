"""Whoever watches misses nothing, in whatever order several writers commit."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest

from clutch.api.feed import Feed, FeedEvent, FeedWatcher
from clutch.api.overview import Overviews
from clutch.engine.live import Bus, Live
from clutch.store.postgres import PostgresStore
from clutch.store.postgres_address import parse_address
from clutch.store.sqlite import SqliteStore
from clutch.transactions import control
from clutch.transactions.read import tasks, timeline
from tests.engine.house import JumpClock
from tests.patience import PATIENCE_S
from tests.transactions.conftest import POLICY
from tests.transactions.world import World

pytestmark = pytest.mark.anyio

LINE = (
    "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, generation)"
    " VALUES($1, $2, $3, 'x', 'queued', 'queued', $4, 1)"
)


async def heard(feed: Feed, after: str) -> list[str]:
    """Comes back with a cursor: the reasons of all it is told, now and with the next look."""
    watcher = FeedWatcher()
    async with feed.watching(watcher) as joined:
        found = [news async for news in feed.since(timeline.parse(after), joined)]
        await feed._look()
        found += taken(feed, watcher)
    return [reason(news) for news in found]


def taken(feed: Feed, watcher: FeedWatcher) -> list[FeedEvent]:
    feed.tell_at_once(watcher)
    return [news for told in watcher.take() for news in told.news]


def reason(news: FeedEvent) -> str:
    return str(json.loads(news.data)["reason"])


def feed_of(store: PostgresStore | SqliteStore) -> Feed:
    """As several gateways would have one each."""
    services: Any = SimpleNamespace(db=store, lives=getattr(store, "lives", None), bus=Bus())
    return Feed(cast(Any, SimpleNamespace(services=services)))


async def test_what_is_read_later_is_sent_later(clock: JumpClock) -> None:
    """A page keeps what it is sent last: an older state of a task would stay until the task changes again."""
    async with SqliteStore(":memory:", clock) as store:
        world = World(store, cast(Any, clock), POLICY)
        task = await world.child(await world.main())
        feed, watcher = feed_of(store), FeedWatcher()
        overviews = Overviews(feed._gateway, feed)
        async with feed.watching(watcher):
            with overviews.watching(watcher):
                await store.alone(control.kill, POLICY, task, "enough", "person")
                await feed._look()
                await overviews._send_progress(tasks.of, {task})
                names = [news.name for told in watcher.take() for news in told.news]
                assert names[0] != "progress"
                assert names[-1] == "progress"
                async with feed.order:
                    sending = asyncio.create_task(overviews._send_progress(tasks.of, {task}))
                    await store.read(tasks.of, [task])  # one that began later has ended
                    assert watcher.take() == []
                await sending
                assert len(watcher.take()) == 1


async def test_line_that_is_committed_behind_a_cursor_is_read_by_whoever_comes_back_with_it(
    postgres_dsn: str, clock: JumpClock
) -> None:
    async with PostgresStore(postgres_dsn, clock) as store:
        world = World(store, cast(Any, clock), POLICY)
        task = await world.child(await world.main())
        server = parse_address(postgres_dsn).session.servers[0]
        one, other = [await asyncpg.connect(server) for _ in range(2)]
        feed, elsewhere, now = feed_of(store), feed_of(store), clock.now()
        start = str(await store.read(timeline.newest))
        slow = one.transaction()
        await slow.start()
        await one.execute(LINE, task, 100, now + 0.1, "slow")
        async with feed.watching(FeedWatcher()):
            await other.execute(LINE, task, 101, now + 0.5, "quick")
            await feed._look()
        assert await heard(feed, start) == ["quick"]
        await slow.commit()
        quick = str(timeline.Cursor(now + 0.5, task, 101))
        assert await heard(feed, quick) == ["slow"]
        assert "slow" in await heard(elsewhere, quick)
        assert await heard(feed, start) == ["slow", "quick"]
        await other.execute(LINE, task, 102, now + 9.0, "long after")
        assert await heard(elsewhere, str(timeline.Cursor(now + 8, 1, 1))) == ["long after"]
        await one.close()
        await other.close()


async def test_line_is_told_once_however_many_come_within_the_time_that_is_read_again(
    clock: JumpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clutch.api.feed.SEEN_MAX", 1)
    async with SqliteStore(":memory:", clock) as store:
        world, feed, watcher = World(store, cast(Any, clock), POLICY), feed_of(store), FeedWatcher()
        main = await world.main()
        async with feed.watching(watcher):
            for _ in range(3):
                await world.child(main)
                await feed._look()
            told = [news.cursor for news in taken(feed, watcher)]
            clock.jump(3)
            await world.child(main)
            await feed._look()
        assert len(told) == len(set(told)) >= 3
        assert len(feed._seen) < len(told)


async def test_end_of_a_short_run_comes_after_everything_the_run_told(clock: JumpClock) -> None:
    """The whole run is committed before the feed looks for its start."""
    async with SqliteStore(":memory:", clock) as store:
        world, feed, watcher = World(store, cast(Any, clock), POLICY), feed_of(store), FeedWatcher()
        await world.hire()
        main = await world.main()
        async with feed.watching(watcher), asyncio.TaskGroup() as group:
            following = group.create_task(feed._follow_bus())
            await asyncio.sleep(0)
            run = await world.started(main)
            await run.finish("done")
            await store.alone(
                control.again, POLICY, run.session_id, "continue", "more", text="", actor="person"
            )
            again = await world.start(run.session_id)
            for run_id in (run.run_id, again.run_id):
                for name in ("lifecycle:start", "assistant:text", "usage"):
                    feed._gateway.services.bus.publish(Live(name, run.session_id, run_id, "done"))
            await again.finish("done again")
            names = list[str]()
            async with asyncio.timeout(PATIENCE_S):
                while len(names) < 8:
                    names += [
                        one.name for one in taken(feed, watcher) if one.name not in ("phase", "announce")
                    ]
                    await asyncio.sleep(0)
            following.cancel()
    assert names == ["lifecycle:start", "assistant:text", "usage", "lifecycle:end"] * 2
