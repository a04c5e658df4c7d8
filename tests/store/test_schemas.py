"""Fleets in schemas of one database, and a role that may do little."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from clutch.errors import StoreError
from clutch.store.postgres import PostgresStore
from clutch.store.postgres_address import with_parts
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, TickingClock
from tests.store.test_postgres import Heard, hint_much

pytestmark = pytest.mark.anyio


def fleet(dsn: str, schema: str | None) -> PostgresStore:
    return PostgresStore(with_parts(dsn, schema=schema), TickingClock(), schema=SCHEMA)


async def test_fleets_in_two_schemas_do_not_meet(postgres_dsn: str, stranger: asyncpg.Connection) -> None:
    by_path = f"{postgres_dsn}&options=-c%20search_path%3Dplain"
    async with (
        fleet(postgres_dsn, 'Odd "one"') as odd,
        fleet(by_path, None) as plain,
        fleet(postgres_dsn, None) as public,
    ):
        every = (odd, plain, public)
        heard = [Heard() for _ in every]
        for place, each in enumerate(every):
            each.listen(heard[place])
            await each.alone(t.create, 1)
            for _ in range(place):
                await each.tx(1, t.bump, 1)
            await each.lives.hold(place + 1)
        assert [await each.read(t.value_of, 1) for each in every] == [0, 1, 2]
        others = [[2, 3], [1, 3], [1, 2]]
        assert [await each.lives.dead(asked) for each, asked in zip(every, others, strict=True)] == others
        while not all(one.queue.empty() for one in heard):
            [one.queue.get_nowait() for one in heard if not one.queue.empty()]
        await odd.alone(hint_much, 1)
        async with fleet(postgres_dsn, 'Odd "one"') as second:
            told = Heard()
            second.listen(told)
            await odd.alone(hint_much, 2)
            assert await told.next() == [("mail", 0), ("mail", 1)]
        assert [one.queue.empty() for one in heard] == [False, True, True]
    rows = await stranger.fetch("SELECT schemaname FROM pg_tables WHERE tablename = 'counters' ORDER BY 1")
    assert [row[0] for row in rows] == ['Odd "one"', "plain", "public"]


async def test_one_schema_migrates_while_another_is_locked(
    postgres_dsn: str, stranger: asyncpg.Connection
) -> None:
    await stranger.execute(f"SELECT pg_advisory_lock({0xC107C4})")
    async with fleet(postgres_dsn, "other") as other:
        await other.alone(t.create, 1)


async def test_a_role_without_rights_works_where_it_may_and_is_told_where_not(
    postgres_dsn: str, stranger: asyncpg.Connection
) -> None:
    await stranger.execute("DROP ROLE IF EXISTS plain_role")
    await stranger.execute("CREATE ROLE plain_role LOGIN; CREATE SCHEMA granted AUTHORIZATION plain_role")
    dsn = postgres_dsn.replace("postgres@", "plain_role@")
    try:
        async with fleet(dsn, "granted") as store:
            await store.alone(t.create, 1)
            assert await store.tx(1, t.bump, 1)
            await store.lives.hold(1)
        with pytest.raises(StoreError, match="run CREATE SCHEMA missing AUTHORIZATION plain_role"):
            await fleet(dsn, "missing").open()
        await stranger.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        with pytest.raises(StoreError, match="run GRANT CREATE, USAGE ON SCHEMA public TO plain_role"):
            await fleet(dsn, None).open()
    finally:
        await stranger.execute("DROP OWNED BY plain_role CASCADE; DROP ROLE plain_role")


async def test_a_setting_that_the_server_does_not_know_is_named_at_once(postgres_dsn: str) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(StoreError, match="channel_binding"):
            await fleet(f"{postgres_dsn}&channel_binding=require", None).open()
