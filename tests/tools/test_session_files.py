"""What a session wrote, stored by one machine and fetched by another one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from clutch.blobs import DirectoryBlobs
from clutch.core.attachments import FetchedFiles, FileVersion, SavedFiles
from clutch.core.text.prompts import WHOLE_WORKSPACE
from clutch.ports import Blobs, FilesFailed
from clutch.tools.child_workspaces import LocalWorkspaces
from clutch.tools.shared_files import SharedSessionFiles, SharedTaskFiles, place_at
from clutch.tools.task_files import LocalResultFiles, LocalTaskFiles

pytestmark = pytest.mark.anyio

VERSION = FileVersion(7)
BYTES_MAX = 1000


class CountedBlobs(DirectoryBlobs):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.puts: Counter[bytes] = Counter()

    async def put(self, key: str, content: bytes) -> None:
        self.puts[content] += 1
        await super().put(key, content)


class Machine:
    """A state directory whose gateway shares `blobs` with others."""

    def __init__(self, home: Path, blobs: Blobs, *, is_sandboxed: bool = True) -> None:
        self.workspaces = LocalWorkspaces(home / "workspaces", is_sandboxed=is_sandboxed, is_shared=True)
        self.results = LocalResultFiles(home / "results")
        self.task_files = SharedTaskFiles(LocalTaskFiles(home / "tasks"), blobs)
        local = (self.workspaces, self.results, self.task_files)
        self.files = SharedSessionFiles(
            place_at(home), local, blobs, bytes_max=BYTES_MAX, file_bytes_max=BYTES_MAX // 2
        )
        self.workspace = Path(self.workspaces.path(VERSION.task_id))

    async def save(self, head: int = 1, before: str | None = None, *, is_end: bool = False) -> str:
        roots = self.files.roots(VERSION, is_isolated=True, is_end=is_end)
        saved = await self.files.save(VERSION, roots, head, before)
        assert saved is not None
        await self.files.settle(VERSION.task_id, before, saved)
        return saved

    async def fetch(self, saved: str | None, source: Path | None) -> FetchedFiles:
        return await self.files.fetch(VERSION, saved, None if source is None else str(source))


@pytest.fixture
def blobs(tmp_path: Path) -> CountedBlobs:
    return CountedBlobs(tmp_path / "shared")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
async def here(tmp_path: Path, blobs: CountedBlobs, source: Path) -> Machine:
    machine = Machine(tmp_path / "here", blobs)
    await machine.workspaces.make(VERSION.task_id, str(source))
    return machine


@pytest.fixture
def there(tmp_path: Path, blobs: CountedBlobs) -> Machine:
    return Machine(tmp_path / "there", blobs)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(saved: SavedFiles | None) -> list[str]:
    assert saved is not None
    return sorted(file.shown for file, _ in saved.files)


async def test_what_a_session_wrote_is_found_on_another_machine(
    here: Machine, there: Machine, source: Path
) -> None:
    write(here.workspace / "src/app.py", "print(1)")
    (here.workspace / "src/app.py").chmod(0o700)
    await here.results.keep(VERSION.task_id, "0123456789abcdef.txt", "a large result")
    write(Path(here.task_files.path(VERSION)) / "out/half.txt", "half")
    fetched = await there.fetch(await here.save(), source)
    assert names(fetched.saved) == ["/results/0123456789abcdef.txt", "/task/out/half.txt", "src/app.py"]
    assert fetched.workspace == str(there.workspace)
    assert (there.workspace / "src/app.py").read_text() == "print(1)"
    assert os.access(there.workspace / "src/app.py", os.X_OK)
    kept = Path(there.results.path(VERSION.task_id)) / "0123456789abcdef.txt"
    assert kept.read_text() == "a large result"
    assert (Path(there.task_files.path(VERSION)) / "out/half.txt").read_text() == "half"
    assert fetched.missing == ()


async def test_unchanged_content_is_stored_once_and_replaced_content_is_deleted(
    here: Machine, blobs: CountedBlobs
) -> None:
    write(here.workspace / "same", "unchanged")
    write(here.workspace / "new", "first")
    before = await here.save()
    write(here.workspace / "new", "second")
    after = await here.save(2, before)
    assert (blobs.puts[b"unchanged"], blobs.puts[b"first"], blobs.puts[b"second"]) == (1, 1, 1)
    assert len(await blobs.keys("sessions/7")) == 3  # two contents and their list
    fetched = await here.fetch(after, None)
    assert names(fetched.saved) == ["new", "same"]
    await here.files.remove(VERSION.task_id)
    assert await blobs.keys("sessions") == []


async def test_lost_list_is_written_anew(
    here: Machine, there: Machine, source: Path, blobs: CountedBlobs
) -> None:
    write(here.workspace / "notes", "x")
    before = await here.save()
    await blobs.delete("sessions/7")
    fetched = await there.fetch(await here.save(2, before), source)
    assert (names(fetched.saved), fetched.missing) == (["notes"], ())


async def test_files_that_came_with_the_workspace_are_not_stored_unless_changed(
    here: Machine, there: Machine, source: Path
) -> None:
    """As in a checkout: what was there when the workspace was made is there on the other machine, too."""
    no_text = os.fsdecode(b"removed\xe9")
    (here.workspaces._mark(VERSION.task_id)).unlink()
    here.workspace.rmdir()

    def check_out(_: str, target: str) -> None:
        for name in ("kept", "changed", "removed", no_text):
            write(Path(target) / name, "as committed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clutch.tools.child_workspaces.isolated_workspace", check_out)
        await here.workspaces.make(VERSION.task_id, str(source))
        until = here.workspaces.came_with(VERSION.task_id).until_ns
        while (here.workspace / "changed").stat().st_ctime_ns <= until:
            (here.workspace / "changed").write_text("by the session")
        for name in ("removed", no_text):
            (here.workspace / name).unlink()
        fetched = await there.fetch(await here.save(), source)
    assert fetched.saved is not None
    assert "changed" in names(fetched.saved)
    assert fetched.saved.removed == ("removed", no_text)
    assert (there.workspace / "changed").read_text() == "by the session"
    assert (there.workspace / "kept").read_text() == "as committed"
    assert not any((there.workspace / name).exists() for name in ("removed", no_text))


async def test_what_is_not_stored_is_named(here: Machine, there: Machine, source: Path) -> None:
    write(here.workspace / "large", "x" * (BYTES_MAX // 2 + 1))
    write(here.workspace / "small", "x")
    (here.workspace / "link").symlink_to("small")
    fetched = await there.fetch(await here.save(), source)
    assert names(fetched.saved) == ["small"]
    assert sorted(fetched.missing) == ["large", "link"]


async def test_content_that_is_gone_is_named(
    here: Machine, there: Machine, source: Path, blobs: CountedBlobs
) -> None:
    write(here.workspace / "notes", "x")
    saved = await here.save()
    listed = (await there.fetch(saved, source)).saved
    assert listed is not None
    ((_, digest),) = listed.files
    await blobs.delete(f"sessions/7/{digest}")
    assert (await there.fetch(saved, source)).missing == ("notes",)
    await blobs.delete("sessions/7")
    assert await there.fetch(saved, source) == FetchedFiles(str(there.workspace), None, ())


async def test_machine_without_a_sandbox_names_the_whole_workspace(
    tmp_path: Path, here: Machine, source: Path, blobs: CountedBlobs
) -> None:
    write(here.workspace / "notes", "x")
    bare = Machine(tmp_path / "bare", blobs, is_sandboxed=False)
    fetched = await bare.fetch(await here.save(), source)
    assert (fetched.workspace, fetched.missing) == (None, (WHOLE_WORKSPACE, "notes"))


async def test_older_files_of_an_earlier_stay_are_replaced(
    here: Machine, there: Machine, source: Path
) -> None:
    write(here.workspace / "left", "old")
    write(Path(here.task_files.path(VERSION)) / "out/left", "old")
    first = await here.save()
    await there.fetch(first, source)
    (there.workspace / "left").unlink()
    (Path(there.task_files.path(VERSION)) / "out/left").rename(
        Path(there.task_files.path(VERSION)) / "out/new"
    )
    await here.fetch(await there.save(2, first), source)
    assert list(here.workspace.iterdir()) == []
    assert os.listdir(Path(here.task_files.path(VERSION)) / "out") == ["new"]


async def test_link_in_the_way_is_not_followed(
    tmp_path: Path, here: Machine, there: Machine, source: Path
) -> None:
    """A checkout may have a link where the session had a folder."""
    write(here.workspace / "folder/file", "x")
    (tmp_path / "outside").mkdir()

    def check_out(_: str, target: str) -> None:
        Path(target).mkdir()
        (Path(target) / "folder").symlink_to(tmp_path / "outside")

    saved = await here.save()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clutch.tools.child_workspaces.isolated_workspace", check_out)
        fetched = await there.fetch(saved, source)
    assert fetched.missing == ("folder/file",)
    assert list((tmp_path / "outside").iterdir()) == []


async def test_protected_files_are_neither_stored_nor_written(here: Machine) -> None:
    for name in (".git/config", "AGENTS.md", ".agents/one.md", "fine"):
        write(here.workspace / name, "x")
    fetched = await here.fetch(await here.save(), None)
    assert names(fetched.saved) == ["fine"]


async def test_session_without_files_stores_nothing(there: Machine, blobs: CountedBlobs) -> None:
    roots = there.files.roots(VERSION, is_isolated=True)
    assert (roots, await there.files.save(VERSION, roots, 1, None)) == ({}, None)
    assert not blobs.puts


async def test_store_that_is_away_is_an_error(tmp_path: Path, here: Machine) -> None:
    write(here.workspace / "notes", "x")
    (tmp_path / "shared").write_text("not a directory")
    with pytest.raises(FilesFailed):
        await here.save()


def test_state_directory_keeps_its_name(tmp_path: Path) -> None:
    assert place_at(tmp_path / "a") == place_at(tmp_path / "a") != place_at(tmp_path / "b")
