"""A real PgBouncer between: session mode as it is, transaction mode with a way around it, and refusals that help."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from clutch.errors import StoreError, UnsupportedStore
from clutch.store.postgres import PostgresStore
from clutch.store.postgres_address import parse_address, with_parts
from clutch.store.postgres_connection import PostgresSettings, connect
from clutch.testing.postgres import PostgresServer
from tests.patience import PATIENCE_S
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, TickingClock
from tests.store.pooler import pooled, pooler, through
from tests.store.test_postgres import Heard, hint_much

pytestmark = pytest.mark.anyio

SAFETY = {
    "idle_in_transaction_session_timeout": "5000",
    "statement_timeout": "30000",
    "lock_timeout": "2000",
    "synchronous_commit": "on",
}
IN_FORCE = "SELECT name, setting FROM pg_settings WHERE name {any}"


@pytest.fixture(scope="module")
def session_pooler(postgres_server: PostgresServer) -> Iterator[str]:
    """It drops the startup parameters that say what safety depends on; a URL with `direct` is not for strangers."""
    with pooler(postgres_server, "session", ignored=tuple(SAFETY)) as where:
        yield where


@pytest.fixture(scope="module")
def transaction_pooler(postgres_server: PostgresServer) -> Iterator[str]:
    with pooler(postgres_server, "transaction", ignored=tuple(SAFETY)) as where:
        yield where


@asynccontextmanager
async def gateways(dsn: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    async with (
        PostgresStore(dsn, TickingClock(), schema=SCHEMA) as one,
        PostgresStore(dsn, TickingClock(), schema=SCHEMA) as other,
    ):
        await one.alone(t.create, *range(1, 10))
        yield one, other


async def work_together(one: PostgresStore, other: PostgresStore) -> None:
    """Batches, single transactions, reads, hints and lives of two gateways."""
    heard, own = Heard(), Heard()
    other.listen(heard)
    one.listen(own)
    await one.alone(hint_much, 1)
    assert await heard.next() == await own.next() == [("mail", 0)]
    await other.alone(hint_much, 2)
    assert await own.next() == [("mail", 0), ("mail", 1)], "and not its own hint once more"
    calls = [each.tx(n, t.bump, n) for each in (one, other) for n in (1, 1, 2, 3)]
    calls += [each.alone(t.bump, 1) for each in (one, other) for _ in range(3)]
    await asyncio.gather(*calls)
    assert [await other.read(t.value_of, n) for n in (1, 2, 3)] == [10, 2, 2]
    await one.lives.hold(1)
    await other.lives.hold(2)
    assert (await one.lives.dead([2, 3]), await other.lives.dead([1, 3])) == ([3], [3])
    await one.lives.close()
    async with asyncio.timeout(PATIENCE_S):  # the pooler cleans up after its client is gone
        while await other.lives.dead([1, 3]) != [1, 3]:
            pass


async def check_safety(store: PostgresStore) -> None:
    names = list(SAFETY)
    assert dict(await store.tx(1, t.write, IN_FORCE, (names,))) == SAFETY
    assert dict(await store.alone(t.write, IN_FORCE, (names,))) == SAFETY
    assert dict(await store.read(t.select, IN_FORCE, names)) == SAFETY


async def test_session_mode_works_as_it_is(postgres_dsn: str, session_pooler: str) -> None:
    dsn = through(session_pooler, postgres_dsn)
    async with gateways(dsn) as (one, other):
        await work_together(one, other)
        await check_safety(one)


async def test_transaction_mode_works_with_a_way_around_it(
    postgres_dsn: str, transaction_pooler: str, stranger: asyncpg.Connection
) -> None:
    async with gateways(pooled(transaction_pooler, postgres_dsn)) as (one, other):
        await work_together(one, other)
        await check_safety(one)
    # The server connections stay with the pooler, for other programs: nothing of ours may stay on them.
    program = await asyncpg.connect(through(transaction_pooler, postgres_dsn), statement_cache_size=0)
    async with program.transaction():
        rows = await program.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY($1)", list(SAFETY))
        assert {name: value for name, value in rows if name != "synchronous_commit"} == {
            name: "0" for name in SAFETY if name != "synchronous_commit"
        }
    await program.close()
    locks = (
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
        " WHERE locktype = 'advisory' AND datname = current_database()"
    )
    assert await stranger.fetchval(locks) == 0


async def refusal(dsn: str) -> str:
    with pytest.raises(UnsupportedStore) as refused:
        await PostgresStore(dsn, TickingClock(), schema=SCHEMA).open()
    return str(refused.value)


async def test_a_transaction_pooler_without_a_way_around_it_is_refused(
    postgres_dsn: str, transaction_pooler: str
) -> None:
    assert "Set `database.direct`" in await refusal(through(transaction_pooler, postgres_dsn))


async def test_a_way_around_that_leads_elsewhere_is_refused(
    postgres_dsn: str, postgres_server: PostgresServer, transaction_pooler: str
) -> None:
    around = through(transaction_pooler, postgres_dsn)
    assert "leads to a connection pooler" in await refusal(with_parts(around, direct=around))
    assert "leads to another database" in await refusal(with_parts(around, direct=postgres_server.dsn()))


@pytest.mark.parametrize("options", ["server_round_robin = 1", "default_pool_size = 1"])
async def test_a_pooler_is_recognised_in_every_order_of_its_pool(
    postgres_server: PostgresServer, options: str
) -> None:
    with pooler(postgres_server, "transaction", options=options) as where:
        assert "Set `database.direct`" in await refusal(f"postgresql://postgres@/postgres?{where}")


async def test_a_statement_pooler_is_refused(postgres_server: PostgresServer) -> None:
    with pooler(postgres_server, "statement") as where:
        assert "statement mode" in await refusal(f"postgresql://postgres@/postgres?{where}")


async def test_a_setting_that_is_lost_on_the_way_is_named(
    postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    """Two server connections in turn: what is set on the first one is missing on the second one."""
    with pooler(postgres_server, "transaction", options="server_round_robin = 1\nmin_pool_size = 2") as where:
        dsn = through(where, postgres_dsn)
        busy = [await asyncpg.connect(dsn, statement_cache_size=0) for _ in range(2)]
        for one in busy:
            await one.execute("BEGIN")
        for one in busy:
            await one.execute("COMMIT")
        with pytest.raises(
            UnsupportedStore, match=r"has idle_in_transaction_session_timeout = 0 after Clutch"
        ):
            await connect(parse_address(dsn), PostgresSettings())
        for one in busy:
            await one.close()


@pytest.fixture
def tls_pooler(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A port of loopback that accepts TLS alone, and its certificate: the wheel's server has no TLS of its own."""
    certificate, key = tmp_path / "server.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    for path in (tmp_path.parent.parent, tmp_path.parent, tmp_path, key):
        path.chmod(0o755)  # for the account of the pooler
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = (
        f"client_tls_sslmode = require\nclient_tls_key_file = {key}\nclient_tls_cert_file = {certificate}\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}"
    )
    with pooler(postgres_server, "session", options=options, port=port):
        yield port, certificate


async def test_certificates_are_checked_as_the_url_says(
    tls_pooler: tuple[int, Path], postgres_dsn: str
) -> None:
    port, certificate = tls_pooler
    url = f"postgresql://postgres@localhost:{port}{urlsplit(postgres_dsn).path}?sslmode=verify-full"
    async with PostgresStore(f"{url}&sslrootcert={certificate}", TickingClock(), schema=SCHEMA) as store:
        await store.alone(t.create, 1)
    link = await connect(parse_address(f"{url}&sslrootcert={certificate}"), PostgresSettings())
    wire = link.raw._transport.get_extra_info("socket")
    assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000, "a machine that is gone"
    await link.close()
    other = url.replace("localhost", "127.0.0.1")
    with pytest.raises(StoreError, match=r"refuses the connection.*certificate verify failed"):
        await PostgresStore(f"{other}&sslrootcert={certificate}", TickingClock(), schema=SCHEMA).open()
