"""One conformance suite for every blob store: the database, a shared directory, an S3-compatible server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from clutch import Clutch
from clutch.blobs import DirectoryBlobs, FileStoreSettings, FleetBlobs, ObjectBlobs, SizedBlobs, large_blobs
from clutch.core.attachments import Attachment, AttachmentRules, BlobIdentity, FileVersion, Side
from clutch.core.messages import Answer, Call, Results
from clutch.engine.services import BlockIds
from clutch.engine.task_files import DatabaseBlobs, blob_identity
from clutch.errors import InvalidInput
from clutch.ports import Blobs, FilesFailed, ModelRequest, OnDelta
from clutch.store.postgres import PostgresStore
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import Database
from clutch.tools.shared_files import SharedTaskFiles
from clutch.tools.task_files import LocalTaskFiles
from clutch.transactions import workers
from clutch.wiring.engine import SystemClock
from tests.patience import PATIENCE_S
from tests.postgres_server import postgres_dsn, postgres_server
from tests.tools.test_session_files import Machine

__all__ = ["postgres_dsn", "postgres_server"]

pytestmark = pytest.mark.anyio

BUCKET = "files"


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    address = f"http://127.0.0.1:{port}"
    with urlopen(Request(f"{address}/{BUCKET}", method="PUT")):  # noqa: S310 - loopback
        pass
    yield address
    server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
async def db(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    opening: SqliteStore | PostgresStore
    if request.param == "sqlite":
        opening = SqliteStore(tmp_path / "clutch.db", SystemClock())
    else:
        opening = PostgresStore(request.getfixturevalue("postgres_dsn"), SystemClock())
    async with opening as db:
        yield db


@pytest.fixture(params=["sqlite", "postgres", "directory", "s3"])
async def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Blobs]:
    async with AsyncExitStack() as stack:
        match request.param:
            case "directory":
                yield DirectoryBlobs(tmp_path / "shared")
            case "s3":
                _use(request)
                yield ObjectBlobs(f"s3://{BUCKET}/{secrets.token_hex(4)}")
            case "sqlite":
                yield DatabaseBlobs(
                    await stack.enter_async_context(SqliteStore(tmp_path / "clutch.db", SystemClock()))
                )
            case _:
                dsn = request.getfixturevalue("postgres_dsn")
                yield DatabaseBlobs(await stack.enter_async_context(PostgresStore(dsn, SystemClock())))


def _use(request: pytest.FixtureRequest) -> None:
    """Point the usual variables at the test server."""
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3_server"))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


async def test_content_comes_back_byte_for_byte(blobs: Blobs) -> None:
    content = bytes(range(256)) * 5000
    await blobs.put("tasks/7.0/out/ü x %41.bin", content)
    await blobs.put("tasks/7.0/out/empty", b"")
    assert await blobs.get("tasks/7.0/out/ü x %41.bin") == content
    assert await blobs.get("tasks/7.0/out/empty") == b""
    assert await blobs.get("tasks/7.0/out/other") is None


async def test_putting_again_replaces(blobs: Blobs) -> None:
    await blobs.put("tasks/7.0/in/a", b"first")
    await blobs.put("tasks/7.0/in/a", b"second")
    assert await blobs.get("tasks/7.0/in/a") == b"second"
    assert await blobs.keys("tasks/7.0") == ["tasks/7.0/in/a"]


async def test_keys_and_delete_stay_within_their_folder(blobs: Blobs) -> None:
    names = [
        "tasks/7.0/in/a",
        "tasks/7.0/out/b",
        "tasks/7.0/out/.hidden",
        "tasks/71.0/in/a",
        "tasks/7.1/in/a",
    ]
    for name in names:
        await blobs.put(name, b"x")
    assert await blobs.keys("tasks/7.0/out") == ["tasks/7.0/out/.hidden", "tasks/7.0/out/b"]
    await blobs.delete("tasks/7.0")
    await blobs.delete("tasks/7.0")
    assert await blobs.keys("tasks") == ["tasks/7.1/in/a", "tasks/71.0/in/a"]


async def test_name_cannot_lead_out_of_the_shared_directory(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "shared")
    await blobs.put("tasks/../../escape", b"x")
    assert not (tmp_path / "escape").exists()
    assert await blobs.get("tasks/../../escape") == b"x"


async def test_large_content_goes_to_the_large_store(tmp_path: Path) -> None:
    small, large = DirectoryBlobs(tmp_path / "small"), DirectoryBlobs(tmp_path / "large")
    blobs = SizedBlobs(small, large, 4)
    await blobs.put("t/a", b"1234")
    await blobs.put("t/b", b"12345")
    assert (await small.keys("t"), await large.keys("t")) == (["t/a"], ["t/b"])
    assert (await blobs.get("t/b"), await blobs.keys("t")) == (b"12345", ["t/a", "t/b"])
    with pytest.raises(FilesFailed, match=r"files\.store"):
        await SizedBlobs(small, None, 4).put("t/c", b"12345")


async def test_two_fleets_share_one_store_without_a_prefix_each(blobs: Blobs) -> None:
    first, second = FleetBlobs(blobs, BlobIdentity("first")), FleetBlobs(blobs, BlobIdentity("second"))
    for fleet, content in ((first, b"of first"), (second, b"of second")):
        await fleet.put("tasks/7.0/in/a", content)
    assert (await first.get("tasks/7.0/in/a"), await second.get("tasks/7.0/in/a")) == (
        b"of first",
        b"of second",
    )
    await first.delete("tasks/7.0")
    assert (await first.keys("tasks"), await second.keys("tasks")) == ([], ["tasks/7.0/in/a"])


async def test_key_without_a_fleet_is_read_for_tasks_of_that_time_only(tmp_path: Path) -> None:
    store = DirectoryBlobs(tmp_path / "shared")
    await store.put("tasks/7.0/out/a", b"old")
    old, new = FleetBlobs(store, BlobIdentity("old", 8)), FleetBlobs(store, BlobIdentity("new", 7))
    assert (await old.get("tasks/7.0/out/a"), await new.get("tasks/7.0/out/a")) == (b"old", None)
    assert (await old.keys("tasks/7.0/out"), await new.keys("tasks/7.0/out")) == (["tasks/7.0/out/a"], [])
    await new.delete("tasks/7.0")
    assert await old.get("tasks/7.0/out/a") == b"old"
    await old.delete("tasks/7.0")
    assert await store.keys("tasks") == []


async def test_database_keeps_the_name_of_its_files(db: Database) -> None:
    assert await blob_identity(db, "first") == BlobIdentity("first")
    assert await db.alone(workers.next_number) == 1
    assert await blob_identity(db, "second") == BlobIdentity("first")


async def test_fleet_that_had_tasks_before_looks_for_their_files(db: Database) -> None:
    number = await db.alone(workers.next_number)
    ids = BlockIds()
    ids.take_block(number)
    known = await blob_identity(db, "late")
    assert known.may_be_older(f"tasks/{ids.next()}.0")
    ids.take_block(await db.alone(workers.next_number))
    assert not known.may_be_older(f"tasks/{ids.next()}.0/in")


def test_address_that_names_no_store_is_refused() -> None:
    with pytest.raises(InvalidInput, match="s3://BUCKET"):
        large_blobs(FileStoreSettings(store="ftp://host/folder"))


async def test_store_that_does_not_answer_is_an_error_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(FilesFailed):
        await ObjectBlobs("s3://files/x").get("a")


# ---- the files of tasks on two machines --------------------------------------------------------------------------

VERSION = FileVersion(7)


async def test_another_machine_reads_and_fetches_the_files_of_a_task(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "shared")
    here = SharedTaskFiles(LocalTaskFiles(tmp_path / "here"), blobs)
    there = SharedTaskFiles(LocalTaskFiles(tmp_path / "there"), blobs)
    await here.put(VERSION, [Attachment("notes.md", b"given")])
    out = Path(here.path(VERSION)) / Side.OUT
    out.mkdir()
    (out / "report.txt").write_bytes(b"done")
    await here.handed(VERSION, AttachmentRules())

    assert await there.read(VERSION, "report.txt") == b"done"
    assert not there.exists(VERSION)
    assert await there.fetch(VERSION)
    place = Path(there.path(VERSION))
    assert (place / "in" / "notes.md").read_bytes() == b"given"
    assert (place / "out" / "report.txt").read_bytes() == b"done"
    await there.remove(VERSION)
    assert await blobs.keys("tasks") == []


async def test_file_of_the_turn_that_ended_wins_over_one_of_a_turn_that_was_lost(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "shared")
    lost, last = (
        SharedTaskFiles(LocalTaskFiles(tmp_path / name), blobs) for name in ("lost machine", "last machine")
    )
    for files, text in ((lost, b"half"), (last, b"whole")):
        out = Path(files.path(VERSION)) / Side.OUT
        out.mkdir(parents=True)
        (out / "report.txt").write_bytes(text)
    await last.handed(VERSION, AttachmentRules())
    assert await lost.read(VERSION, "report.txt") == b"whole"
    await last.put(VERSION, [Attachment("notes.md", b"given")])
    assert await lost.fetch(VERSION)
    assert (Path(lost.path(VERSION)) / "in" / "notes.md").read_bytes() == b"given"


async def test_files_stay_local_while_the_store_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("not a directory")
    files = SharedTaskFiles(LocalTaskFiles(tmp_path / "here"), DirectoryBlobs(tmp_path / "shared"))
    await files.put(VERSION, [Attachment("notes.md", b"given")])
    assert (Path(files.path(VERSION)) / "in" / "notes.md").read_bytes() == b"given"


class FailsOnce(DirectoryBlobs):
    """A store that does not answer the first deletion."""

    has_failed = False

    async def delete(self, folder: str) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise FilesFailed("files: the store does not answer")
        await super().delete(folder)


async def test_files_whose_copies_could_not_be_deleted_are_found_by_the_next_sweep(tmp_path: Path) -> None:
    blobs = FailsOnce(tmp_path / "shared")
    files = SharedTaskFiles(LocalTaskFiles(tmp_path / "here"), blobs)
    await files.put(VERSION, [Attachment("notes.md", b"given")])
    with pytest.raises(FilesFailed, match="does not answer"):
        await files.remove(VERSION)
    assert VERSION in await files.kept()
    await files.remove(VERSION)
    assert await blobs.keys("tasks") == []
    assert VERSION not in await files.kept()


# ---- a task on two machines -----------------------------------------------------------------------------------------


class Reader:
    """Reads the attachment of its task, and says what it read. `started` never answers: its machine dies before."""

    def __init__(self, *, answers: bool) -> None:
        self.started, self._answers = asyncio.Event(), answers

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        del on_delta
        self.started.set()
        if not self._answers:
            await asyncio.Event().wait()
        said = request.transcript[-1]
        if isinstance(said, Results):
            return Answer(said.results[0].text)
        return Answer("", (Call("read", {"path": "/task/in/notes.md"}),), stop="tools")


@pytest.mark.postgres
async def test_task_resumes_on_another_machine_with_its_files(tmp_path: Path, postgres_dsn: str) -> None:
    def machine(name: str, model: Reader) -> Clutch:
        (tmp_path / "work").mkdir(exist_ok=True)
        return Clutch(
            state=tmp_path / name,
            database=postgres_dsn,
            workspace=tmp_path / "work",
            models=model,
            serve=False,
        )

    first, second = Reader(answers=False), Reader(answers=True)
    async with machine("first", first) as c:
        task = await c.spawn("read it", attachments={"notes.md": "given on the first machine"})
        await first.started.wait()
    async with machine("second", second) as c:
        result = await (await c.get(task.id)).result(timeout=PATIENCE_S)
    assert "given on the first machine" in (result.text or "")


async def test_what_a_session_wrote_comes_back_from_every_store(blobs: Blobs, tmp_path: Path) -> None:
    here, there = Machine(tmp_path / "here", blobs), Machine(tmp_path / "there", blobs)
    await here.workspaces.make(7, str(tmp_path))
    for name, text in (("a/ü x", "text"), (".hidden", ""), ("same", "text")):
        (here.workspace / name).parent.mkdir(exist_ok=True)
        (here.workspace / name).write_text(text)
    before = await here.save()
    (here.workspace / ".hidden").unlink()
    fetched = await there.fetch(await here.save(2, before), tmp_path)
    assert fetched.missing == ()
    assert [(there.workspace / name).read_text() for name in ("a/ü x", "same")] == ["text", "text"]
    assert not (there.workspace / ".hidden").exists()
    assert len(await blobs.keys("sessions/7")) == 2  # one content, and the list
    await there.files.remove(7)
    assert await blobs.keys("sessions") == []
