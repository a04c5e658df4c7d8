"""One gateway per state directory, and nobody else looks into it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clutch.core.attachments import STATE_MARK
from clutch.errors import InvalidInput, StateDirectoryInUse, UnsafeStateDirectory
from clutch.store.state_directory import IGNORE_FILE, StateDirectory

HOLDS_THE_LOCK = """
import sys
from clutch.store.state_directory import StateDirectory
with StateDirectory(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_that_cannot_be_made_is_said_so() -> None:
    with pytest.raises(UnsafeStateDirectory, match="cannot be made"):
        StateDirectory("/proc/nowhere/state").acquire()


def test_a_second_process_is_refused_by_name_and_death_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "state"
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_LOCK, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(StateDirectoryInUse, match=rf"pid {owner.pid}\).*stop it, or use another"):
        StateDirectory(path).acquire()
    owner.kill()
    owner.communicate()
    with StateDirectory(path):
        assert (path / "lock").read_text() == f"{os.getpid()}\n"


def test_it_can_be_taken_again_after_release(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "state")
    for _ in range(2):
        with directory, pytest.raises(StateDirectoryInUse):
            StateDirectory(tmp_path / "state").acquire()


def test_directory_and_lock_are_private_even_if_they_were_not(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(0o755)
    (path / "lock").touch()
    (path / "lock").chmod(0o666)
    with StateDirectory(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE((path / "lock").stat().st_mode) == 0o600


def test_a_directory_that_holds_other_files_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "letters"
    path.mkdir()
    path.chmod(0o755)
    (path / "to-grandmother.txt").touch()
    with pytest.raises(UnsafeStateDirectory, match="letters exists and holds other files"):
        StateDirectory(path).acquire()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert [found.name for found in path.iterdir()] == ["to-grandmother.txt"]


@pytest.mark.parametrize("name", ["lock", "clutch.db", "demo.json", "last-demo"])
def test_its_own_directory_is_taken_whatever_else_lies_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / "state"
    path.mkdir()
    for held in (name, "notes.txt"):
        (path / held).touch()
    with StateDirectory(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_an_empty_name_is_not_the_current_directory() -> None:
    with pytest.raises(InvalidInput, match="state"):
        StateDirectory("")


def test_missing_parents_are_made(tmp_path: Path) -> None:
    with StateDirectory(tmp_path / "a" / "b" / "state") as directory:
        assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700


def test_a_link_or_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(UnsafeStateDirectory, match=name):
            StateDirectory(tmp_path / name).acquire()
    assert list((tmp_path / "real").iterdir()) == []


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(UnsafeStateDirectory, match="symbolic link"):
        StateDirectory(tmp_path / "state").acquire()
    assert not (tmp_path / "victim").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir()
    os.chown(path, 12345, 12345)
    with pytest.raises(UnsafeStateDirectory, match="12345"):
        StateDirectory(path).acquire()


class FullDisk:
    """`os.open` on a disk without room for the file with this name."""

    def __init__(self, name: str, *, has_entry: bool = False) -> None:
        self.name, self.has_entry, self._open = name, has_entry, os.open

    def __call__(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path != self.name:
            return self._open(path, flags, mode, dir_fd=dir_fd)
        if not self.has_entry:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.close(self._open(path, flags, mode, dir_fd=dir_fd))
        return self._open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("has_entry", [False, True])
def test_one_of_an_older_version_opens_on_a_full_disk_and_is_ignored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_entry: bool
) -> None:
    path = tmp_path / "state"
    StateDirectory(path).acquire().release()
    (path / IGNORE_FILE).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", FullDisk(IGNORE_FILE, has_entry=has_entry))
        StateDirectory(path).acquire().release()
    assert not (path / IGNORE_FILE).exists()
    StateDirectory(path).acquire().release()
    assert (path / IGNORE_FILE).read_text() == "*\n"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_one_that_cannot_be_marked_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", FullDisk(STATE_MARK))
        with pytest.raises(UnsafeStateDirectory, match="No space left on device"):
            StateDirectory(tmp_path / "state").acquire()
    assert sorted(os.listdir("/proc/self/fd")) == before
