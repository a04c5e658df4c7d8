"""The files of a task on a real disk: private, complete or not there, and removed without touching anything else."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from clutch.core.attachments import Attachment, AttachmentRules, FileVersion, Side, StoredFile
from clutch.ports import FilesFailed
from clutch.tools.task_files import LocalTaskFiles

pytestmark = pytest.mark.anyio

FILES = (Attachment("a.txt", b"hello"), Attachment("b.bin", bytes(range(256))))
RULES = AttachmentRules(files_max=3, file_bytes_max=10, total_bytes_max=20)
AT_FDCWD, RENAME_EXCHANGE = -100, 2


@pytest.fixture
def files(tmp_path: Path) -> LocalTaskFiles:
    return LocalTaskFiles(tmp_path / "state" / "tasks")


def at(files: LocalTaskFiles) -> Path:
    return Path(files.path(FileVersion(7)))


def is_there(path: Path) -> bool:
    return os.path.lexists(path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.scenario(49)
async def test_files_are_private_and_the_manifest_tells_their_hashes(files: LocalTaskFiles) -> None:
    old = os.umask(0)
    try:
        await files.put(FileVersion(7), FILES)
    finally:
        os.umask(old)
    folder = at(files) / "in"
    assert [mode(path) for path in (folder.parents[1], folder.parent, folder)] == [0o700] * 3
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    manifest = json.loads((folder / ".manifest.json").read_text())
    assert manifest == {
        "files": [
            {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in (("a.txt", FILES[0].content), ("b.bin", FILES[1].content))
        ]
    }
    for listed in manifest["files"]:
        assert hashlib.sha256((folder / listed["name"]).read_bytes()).hexdigest() == listed["sha256"]


async def test_what_a_crash_left_half_made_is_made_anew(files: LocalTaskFiles) -> None:
    folder = at(files) / "in"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"hel")
    (folder / "stranger").write_bytes(b"?")
    await files.put(FileVersion(7), FILES)
    assert snapshot(folder).keys() == {"a.txt", "b.bin", ".manifest.json"}
    assert (folder / "a.txt").read_bytes() == b"hello"


async def test_putting_again_changes_nothing(files: LocalTaskFiles) -> None:
    await files.put(FileVersion(7), FILES)
    before = {path: path.stat().st_ino for path in at(files).rglob("*")}
    await files.put(FileVersion(7), FILES)
    assert {path: path.stat().st_ino for path in at(files).rglob("*")} == before


async def test_a_disk_that_says_no_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text("a file, no folder")
    with pytest.raises(FilesFailed, match="files: "):
        await LocalTaskFiles(tmp_path / "tasks").put(FileVersion(1), FILES)


# ---- handing over ------------------------------------------------------------------------------------------


async def test_files_handed_over_are_listed_by_name_within_the_limits(files: LocalTaskFiles) -> None:
    out = at(files) / "out"
    out.mkdir(parents=True)
    for name, size in (("b", 10), ("a", 9), ("c", 11), ("d", 2)):
        (out / name).write_bytes(b"x" * size)
    (out / "folder").mkdir()
    (out / "link").symlink_to("/etc/passwd")
    os.mkfifo(out / "pipe")
    handed = await files.handed(FileVersion(7), RULES)
    digest = {size: hashlib.sha256(b"x" * size).hexdigest() for size in (9, 10)}
    assert handed.files == (StoredFile("a", 9, digest[9]), StoredFile("b", 10, digest[10]))
    assert handed.left_out == 5, "c is too large, d is over the total, the rest are no plain files"
    assert await files.read(FileVersion(7), "a") == b"x" * 9


async def test_nobody_reads_through_a_link_or_a_name_with_a_path(
    files: LocalTaskFiles, tmp_path: Path
) -> None:
    out = at(files) / "out"
    out.mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (out / "link").symlink_to(tmp_path / "secret")
    for name in ("link", "../out/link", "..", "none"):
        with pytest.raises(FilesFailed):
            await files.read(FileVersion(7), name)


async def test_a_task_without_a_directory_hands_over_nothing(files: LocalTaskFiles) -> None:
    assert not files.exists(FileVersion(7))
    assert (await files.handed(FileVersion(7), RULES)).files == ()
    await files.remove(FileVersion(7))
    assert await files.kept() == []


# ---- removing ----------------------------------------------------------------------------------------------


async def test_one_side_goes_and_the_other_stays(files: LocalTaskFiles) -> None:
    await files.put(FileVersion(7), FILES)
    out = at(files) / "out"
    out.mkdir()
    (out / "found").write_text("x")
    await files.remove(FileVersion(7), Side.IN)
    assert snapshot(at(files)) == {"out/found": b"x"}
    assert await files.kept() == [FileVersion(7)]
    await files.remove(FileVersion(7))
    assert await files.kept() == []


@pytest.mark.scenario(51)
@pytest.mark.parametrize("where", ["task", "in", "deep"])
async def test_a_directory_that_is_a_link_to_outside_loses_only_the_link(
    files: LocalTaskFiles, tmp_path: Path, where: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    task = at(files)
    task.parent.mkdir(parents=True)
    if where == "task":
        task.symlink_to(outside)
    else:
        task.mkdir()
        (task / "in").symlink_to(outside) if where == "in" else (task / "out").mkdir()
    if where == "deep":
        (task / "out" / "link").symlink_to(outside)
    await files.remove(FileVersion(7), Side.IN, Side.OUT)
    await files.remove(FileVersion(7))
    assert snapshot(outside) == {"precious": b"x"}
    assert not is_there(task)


@pytest.mark.scenario(51)
async def test_a_directory_swapped_for_a_link_while_it_is_removed_loses_nothing_outside(
    files: LocalTaskFiles, tmp_path: Path
) -> None:
    """Here a check of the path before the removal loses: the link is put there after it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    libc = ctypes.CDLL(None)
    for round_number in range(40):
        task = at(files)
        (task / "out" / "folder").mkdir(parents=True)
        (task / "out" / "link").symlink_to(outside)
        for name in "abc":
            (task / "out" / "folder" / name).write_text("x")
        is_over = threading.Event()

        def swap(out: Path = task / "out", is_over: threading.Event = is_over) -> None:
            names = os.fsencode(out / "folder"), os.fsencode(out / "link")
            while not is_over.is_set():
                libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)

        swapping = threading.Thread(target=swap)
        swapping.start()
        try:
            await files.remove(FileVersion(7))
        finally:
            is_over.set()
            swapping.join()
        assert snapshot(outside) == {"precious": b"x"}, round_number
