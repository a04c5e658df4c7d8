"""The facts that `clutch doctor --database` collects, from real servers."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest

from clutch.core.server_exam import Pooler, findings
from clutch.errors import StoreLost
from clutch.store.postgres_address import with_parts
from clutch.store.postgres_exam import examine
from clutch.testing.postgres import PostgresServer
from tests.store.pooler import pooled, pooler

pytestmark = pytest.mark.postgres


def test_healthy_server_is_examined_without_a_table_of_ours(postgres_dsn: str) -> None:
    facts = examine(postgres_dsn)
    assert (facts.pooler, facts.is_standby, facts.locks_hold, facts.has_tables) == (
        Pooler.NONE,
        False,
        True,
        False,
    )
    assert abs(facts.clock_offset_s) < 1.0
    # The test server does not wait for the disk, and says so.
    assert [one.id for one in findings(facts) if not one.is_ok] == ["pg-settings"]


@pytest.mark.parametrize("mode", [Pooler.SESSION, Pooler.TRANSACTION])
def test_pooler_is_recognised_with_its_mode(
    postgres_server: PostgresServer, postgres_dsn: str, mode: Pooler
) -> None:
    name = postgres_dsn.partition("?")[0].rpartition("/")[2]
    with pooler(postgres_server, mode.value) as address:
        facts = examine(f"postgresql:///{name}?user=postgres&{address}")
    assert facts.pooler is mode
    assert facts.locks_hold is (mode is Pooler.SESSION)


def test_snapshot_of_another_connection_is_found_with_its_holder(postgres_dsn: str) -> None:
    async def held() -> None:
        holder = await asyncpg.connect(postgres_dsn, server_settings={"application_name": "reports"})
        try:
            async with holder.transaction(isolation="repeatable_read"):
                await holder.fetch("SELECT 1")
                facts = await asyncio.to_thread(examine, postgres_dsn)
        finally:
            await holder.close()
        assert facts.snapshot is not None
        assert "reports" in facts.snapshot.holder

    asyncio.run(held())


def test_role_without_rights_is_told_which_one_is_missing(
    postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    postgres_server.execute("CREATE ROLE reader LOGIN CONNECTION LIMIT 5")
    try:
        facts = examine(postgres_dsn.replace("user=postgres", "user=reader").replace("postgres@", "reader@"))
    finally:
        postgres_server.execute("DROP ROLE reader")
    wrong = {one.id for one in findings(facts) if not one.is_ok}
    assert {"pg-rights", "pg-connections"} <= wrong
    assert not facts.sees_others


def test_the_address_may_name_a_schema_and_a_way_around_a_pooler(
    postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    postgres_server.execute("CREATE SCHEMA fleet", database=urlsplit(postgres_dsn).path[1:])
    with pooler(postgres_server, "transaction") as address:
        facts = examine(with_parts(pooled(address, postgres_dsn), schema="fleet"))
    assert (facts.schema, facts.pooler, facts.locks_hold) == ("fleet", Pooler.NONE, True)


def test_server_that_is_away_is_an_error() -> None:
    with pytest.raises(StoreLost, match="does not answer"):
        examine("postgresql://postgres@127.0.0.1:1/none")
