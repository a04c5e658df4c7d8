"""What only SQLite can do to us: a full disk, a busy file, a network filesystem, a killed process."""

from __future__ import annotations

import asyncio
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from clutch.errors import ConstraintViolated, DiskFull, StoreBusy, StoreError, StoreGone, UnsupportedStore
from clutch.store.sqlite import SqliteStore
from clutch.store.sqlite_connection import SqliteConnection, filesystem_in, filesystem_of, refuse_old_sqlite
from clutch.store.transaction import Tx
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, TickingClock, settled, stalled_sqlite

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(path, TickingClock(), schema=SCHEMA, busy_timeout_s=0.05) as opened:
        await opened.alone(t.create, *range(1, 10))
        yield opened


def held_up(now: float, counter: int, entered: threading.Event, released: threading.Event) -> Tx[None]:
    yield from t.bump(now, counter)
    entered.set()
    assert released.wait(30)


async def test_a_caller_that_leaves_does_not_stop_a_transaction_that_runs(store: SqliteStore) -> None:
    entered, released = threading.Event(), threading.Event()
    leaving = asyncio.ensure_future(store.tx(1, held_up, 1, entered, released))
    assert await asyncio.to_thread(entered.wait, 30)
    leaving.cancel()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await store.tx(2, t.bump, 2)
    assert await store.read(t.value_of, 1) == 1


def endless(now: float, entered: threading.Event) -> Tx[None]:
    del now
    entered.set()
    yield "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n", ()


async def test_a_read_whose_caller_has_gone_ends_and_frees_its_reader(path: Path) -> None:
    async with SqliteStore(path, TickingClock(), schema=SCHEMA, readers=1) as store:
        await store.alone(t.create, 1)
        entered = threading.Event()
        leaving = asyncio.ensure_future(store.read(endless, entered))
        assert await asyncio.to_thread(entered.wait, 30)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        # The only reader; the query would never end by itself.
        async with asyncio.timeout(30):
            assert await store.read(t.value_of, 1) == 0


async def test_a_full_disk_fails_the_large_one_and_spares_the_small(store: SqliteStore) -> None:
    ((pages,),) = await store.alone(t.write, "PRAGMA page_count")
    await store.alone(t.write, f"PRAGMA max_page_count={pages + 4}")
    async with stalled_sqlite(store):
        tasks = [
            asyncio.ensure_future(store.tx(1, t.bump, 1)),
            asyncio.ensure_future(store.tx(2, t.note, 2, "x" * 1_000_000)),
            asyncio.ensure_future(store.tx(3, t.bump, 3)),
        ]
        await asyncio.sleep(0)
    first, full, last = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(full, DiskFull)
    assert isinstance(first, float)
    assert isinstance(last, float)
    assert await store.read(t.notes_of, 2) == []
    await store.alone(t.write, "PRAGMA max_page_count=1000000")
    assert await store.tx(2, t.note, 2, "x" * 1_000_000), "once there is room it goes on"


async def test_a_statement_that_ends_the_whole_transaction_hurts_no_neighbour(store: SqliteStore) -> None:
    """As SQLite itself does after some errors: the writes of the neighbours before it are gone, too."""
    rolls_back = "INSERT OR ROLLBACK INTO counters(id, value) VALUES(1, 0)"
    async with stalled_sqlite(store):
        tasks = [
            asyncio.ensure_future(store.tx(1, t.bump, 1)),
            asyncio.ensure_future(store.tx(2, t.write, rolls_back)),
            asyncio.ensure_future(store.tx(3, t.bump, 3)),
        ]
        await asyncio.sleep(0)
    first, failed, last = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(failed, ConstraintViolated)
    assert (type(first), type(last)) == (float, float)
    assert [await store.read(t.value_of, counter) for counter in (1, 3)] == [1, 1]


async def test_a_file_locked_by_a_backup_is_busy_and_later_free(store: SqliteStore, path: Path) -> None:
    stranger = apsw.Connection(str(path))
    stranger.execute("BEGIN IMMEDIATE")
    results = await asyncio.gather(
        *[settled(store.tx(counter, t.bump, counter)) for counter in (1, 2)], settled(store.alone(t.bump, 3))
    )
    assert [type(result) for result in results] == [StoreBusy] * 3
    stranger.execute("ROLLBACK")
    stranger.close()
    assert await store.tx(1, t.bump, 1)
    assert await store.read(t.value_of, 1) == 1


WRITES_UNTIL_THE_LIMIT = """
import asyncio, resource, sys
from pathlib import Path
from clutch.errors import StoreError
from clutch.store.sqlite import SqliteStore
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, TickingClock

async def main(path):
    async with SqliteStore(path, TickingClock(), schema=SCHEMA) as store:
        await store.tx(1, t.note, 1, "kept")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
        try:
            await store.tx(1, t.note, 1, "x" * 1_000_000)
        except StoreError as error:
            print("failed:", error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await store.tx(1, t.note, 1, "after")
        print([body for body, _ in await store.read(t.notes_of, 1)])

asyncio.run(main(sys.argv[1]))
"""


def test_an_input_output_error_writes_nothing_and_the_writer_goes_on(path: Path) -> None:
    done = run_python(WRITES_UNTIL_THE_LIMIT, path)
    failed, notes = done.stdout.splitlines()
    assert failed.startswith("failed: ")
    assert notes == "['kept', 'after']"


ACKNOWLEDGES_FOR_EVER = """
import asyncio, sys
from clutch.store.sqlite import SqliteStore
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, TickingClock

async def worker(store, counter):
    while True:
        await store.tx(counter, t.bump, counter)
        print(counter, flush=True)

async def main(path):
    async with SqliteStore(path, TickingClock(), schema=SCHEMA) as store:
        await store.alone(t.create, *range(1, 6))
        await asyncio.gather(*[worker(store, counter) for counter in range(1, 6)])

asyncio.run(main(sys.argv[1]))
"""


async def test_what_was_acknowledged_survives_kill_nine(path: Path) -> None:
    process = start_python(ACKNOWLEDGES_FOR_EVER, path)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    acknowledged += [int(line) for line in rest.splitlines()]
    async with SqliteStore(path, TickingClock(), schema=SCHEMA) as store:
        for counter in range(1, 6):
            value = await store.read(t.value_of, counter)
            assert value is not None
            assert 0 <= value - acknowledged.count(counter) <= 1, "only the one in flight may be unannounced"
        ((sound,),) = await store.read(t.select, "PRAGMA integrity_check")
        assert sound == "ok"


@pytest.mark.parametrize(
    ("setting", "value"), [("synchronous", 2), ("fullfsync", 1), ("checkpoint_fullfsync", 1)]
)
def test_a_commit_waits_for_the_drive(path: Path, setting: str, value: int) -> None:
    connection = SqliteConnection(str(path))
    assert connection.raw.execute(f"PRAGMA {setting}").fetchall() == [(value,)]
    connection.raw.close()


async def test_its_files_are_private_whatever_the_umask(path: Path) -> None:
    done = run_python(PRINTS_MODES, path)
    assert set(done.stdout.split()) == {"0o600"}
    assert len(done.stdout.split()) == 3, "the database, its log and the index of the log"


PRINTS_MODES = """
import asyncio, os, sys
from pathlib import Path
from clutch.store.sqlite import SqliteStore
from tests.store.conftest import SCHEMA, TickingClock

async def main(path):
    os.umask(0)
    async with SqliteStore(path, TickingClock(), schema=SCHEMA):
        for file in path.parent.iterdir():
            print(oct(file.stat().st_mode & 0o777))

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_database_others_could_read_is_made_private(path: Path) -> None:
    path.touch(mode=0o644)
    asyncio.run(open_once(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_in_place_of_the_database_is_refused(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere.db"))
    with pytest.raises(StoreError, match="cannot open"):
        asyncio.run(open_once(path))
    assert not path.with_name("elsewhere.db").exists()


def test_a_network_filesystem_is_refused_with_a_remedy(path: Path) -> None:
    with pytest.raises(UnsupportedStore, match=r"nfs4.*CLUTCH_HOME"):
        asyncio.run(open_once(path, filesystem="nfs4"))
    assert not path.exists()


async def open_once(path: Path, filesystem: str = "ext4") -> None:
    async with SqliteStore(path, TickingClock(), schema=SCHEMA, filesystem=lambda _: filesystem):
        pass


MOUNTS = r"""/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/me/disk\040one ext4 rw 0 0
//host/share /home/me/disk\040one/share cifs rw 0 0
tmpfs /home tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/etc/x", "ext4"), ("/homely", "ext4"), ("/home/me/disk one/x", "ext4"), ("/home/me", "tmpfs"),
     ("/home/me/disk one/share/x", "cifs")],
)  # fmt: skip
def test_the_nearest_mount_decides(path: str, kind: str) -> None:
    assert filesystem_in(MOUNTS, Path(path)) == kind


def test_this_machine_tells_its_filesystem(tmp_path: Path) -> None:
    assert (filesystem_of(tmp_path) != "") == Path("/proc/mounts").exists()


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.51.2"])
def test_a_sqlite_that_can_corrupt_its_log_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedStore, match="apsw"):
        refuse_old_sqlite(version)
    refuse_old_sqlite("3.51.3")


def start_python(program: str, *arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def run_python(program: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    process = start_python(program, *arguments)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return subprocess.CompletedProcess(process.args, 0, output)


@pytest.mark.parametrize("name", ["test.db", "test.db-wal"])
@pytest.mark.parametrize("fate", ["deleted", "replaced by another file"])
async def test_a_file_that_is_gone_refuses_every_transaction_until_it_is_back(
    store: SqliteStore, path: Path, tmp_path: Path, name: str, fate: str
) -> None:
    await store.tx(1, t.bump, 1)
    assert await store.read(t.value_of, 1) == 1
    file, aside = path.with_name(name), tmp_path / "aside"
    file.rename(aside)
    if fate != "deleted":
        file.write_bytes(aside.read_bytes())
    with pytest.raises(StoreGone, match=f"{name} was {fate} while Clutch was running"):
        await store.tx(1, t.bump, 1)
    with pytest.raises(StoreGone):
        await asyncio.gather(store.tx(1, t.bump, 1), store.tx(2, t.bump, 2))
    with pytest.raises(StoreGone):
        await store.read(t.value_of, 1)
    aside.replace(file)
    await store.tx(1, t.bump, 1)
    assert await store.read(t.value_of, 1) == 2, "nothing that was refused has been written"
