"""A child's own workspace: made from a repository or empty, seen alone, and removed without following anything."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from clutch.ports import ToolContext
from clutch.tools.child_workspaces import IsolationFailed, SandboxedGit, isolated_workspace, remove_workspace
from clutch.tools.sandbox import process as probing
from clutch.tools.sandbox.process import Offer
from clutch.tools.shell import Shell, ShellArguments

AT_FDCWD, RENAME_EXCHANGE = -100, 2


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(
        ["git", *who, "-C", root, *words],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    git(source, "init", "-q")
    (source / "file").write_text("text")
    git(source, "add", ".")
    git(source, "commit", "-qm", "first")
    return source


def test_repository_gives_a_worktree_and_leaves_none_behind(repository: Path, tmp_path: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    target = tmp_path / "child"
    isolated_workspace(str(repository), str(target))
    assert (target / "file").read_text() == "text"
    assert not (tmp_path / "hooked").exists()
    remove_workspace(str(target))
    assert not target.exists()
    assert str(target) not in git(repository, "worktree", "list")


def test_other_folder_gives_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    isolated_workspace(str(tmp_path), str(tmp_path / "child"))
    assert list((tmp_path / "child").iterdir()) == []


def test_taken_place_and_unborn_repository_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IsolationFailed, match="exists already"):
        isolated_workspace(str(tmp_path), str(tmp_path))
    git(tmp_path, "init", "-q")
    with pytest.raises(IsolationFailed, match="without a commit"):
        isolated_workspace(str(tmp_path), str(tmp_path / "child"))


@pytest.mark.anyio
async def test_child_sees_its_own_copy_and_the_history_only(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "child"
    await asyncio.to_thread(isolated_workspace, str(repository), str(target))
    command = "echo new >file; git status --short; git log --oneline; echo x >.git; git commit -qam x; "
    command += f"cat {repository}/file"
    arguments = ShellArguments(command=command, timeout_seconds=20)
    said = await Shell().run(arguments, ToolContext(str(target), "main", "key"))
    assert " M file\n" in said
    assert "first\n" in said
    assert (repository / "file").read_text() == "text"
    assert "text" not in said.replace("context", "")
    assert git(repository, "log", "--oneline").count("\n") == 1


@pytest.mark.parametrize("setting", ["smudge", "process"])
def test_repository_of_an_agent_runs_nothing_outside_a_box(
    repository: Path, tmp_path: Path, setting: str
) -> None:
    witness = tmp_path / "witness"
    (repository / ".gitattributes").write_text("* filter=x\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "second")
    git(repository, "config", f"filter.x.{setting}", f"sh -c 'touch {witness}; cat'")
    isolated_workspace(str(repository), str(tmp_path / "child"))
    assert (tmp_path / "child" / "file").read_text() == "text"
    remove_workspace(str(tmp_path / "child"))
    assert not witness.exists()


def test_filter_sees_neither_the_workspace_nor_anything_else(repository: Path, tmp_path: Path) -> None:
    (repository / ".gitattributes").write_text("file filter=x\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "second")
    git(repository, "config", "filter.x.smudge", f"ls -A {repository} {tmp_path} /root /home; id -u; true")
    isolated_workspace(str(repository), str(tmp_path / "child"))
    said = (tmp_path / "child" / "file").read_text().split("\n")
    assert sorted(line for line in said if line and not line.endswith(":")) == [
        ".git",
        "1000",
        "child",
        "source",
    ]


def test_repository_elsewhere_is_not_followed(repository: Path, tmp_path: Path) -> None:
    """An agent's own `.git` must not make Clutch check out what lies where no agent may look."""
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / ".git").symlink_to(repository / ".git")
    with pytest.raises(IsolationFailed, match="elsewhere"):
        isolated_workspace(str(agents), str(tmp_path / "child"))
    (agents / ".git").unlink()
    (agents / ".git").write_text(f"gitdir: {repository}/.git\n")
    with pytest.raises(IsolationFailed, match="elsewhere"):
        isolated_workspace(str(agents), str(tmp_path / "child"))
    (agents / ".git").unlink()
    git(agents, "init", "-q")
    (agents / ".git" / "commondir").write_text(f"{repository}/.git\n")
    with pytest.raises(IsolationFailed):
        isolated_workspace(str(agents), str(tmp_path / "child"))
    assert not (tmp_path / "child").exists()


def test_repository_replaced_on_the_way_into_the_box_is_noticed(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    boxed = SandboxedGit(str(repository / ".git"), str(tmp_path / "target"))
    (repository / ".git").rename(repository / "old")
    git(repository, "init", "-q")
    done = boxed.run("rev-parse", "--git-dir")
    assert done == (2, "the repository was replaced")


def test_worktree_of_a_worktree_leaves_the_others_registered(repository: Path, tmp_path: Path) -> None:
    names = ["child", "grandchild", "sibling"]
    for source, name in zip([repository, tmp_path / "child", repository], names, strict=True):
        isolated_workspace(str(source), str(tmp_path / name))
    remove_workspace(str(tmp_path / "grandchild"))
    listed = git(repository, "worktree", "list")
    assert [name for name in names if f"{tmp_path}/{name} " in listed] == ["child", "sibling"]
    assert (tmp_path / "sibling" / "file").read_text() == "text"


def test_directory_lost_without_git_knowing_can_be_made_again(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "child"
    isolated_workspace(str(repository), str(target))
    shutil.rmtree(target)
    isolated_workspace(str(repository), str(target))
    assert (target / "file").read_text() == "text"


def test_repository_without_bubblewrap_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "probe", lambda: Offer(None, "bubblewrap is not installed", 7))
    with pytest.raises(IsolationFailed, match="isolated workspaces of git repositories need a sandbox"):
        isolated_workspace(str(repository), str(tmp_path / "child"))
    assert not (tmp_path / "child").exists()
    (tmp_path / "plain").mkdir()
    isolated_workspace(str(tmp_path / "plain"), str(tmp_path / "child"))
    assert list((tmp_path / "child").iterdir()) == []


def test_removal_takes_any_depth_and_closed_folders(tmp_path: Path) -> None:
    target = tmp_path / "child"
    target.mkdir()
    here = os.open(target, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=here)
        here, above = os.open("deep", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    (target / "closed").mkdir()
    (target / "closed" / "file").write_text("x")
    (target / "closed").chmod(0)
    remove_workspace(str(target))
    assert not target.exists()


def test_removal_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    target = tmp_path / "child"
    target.mkdir()
    (target / "link").symlink_to(tmp_path / "outside")
    remove_workspace(str(target))
    assert (tmp_path / "outside" / "file").exists()
    target.symlink_to(tmp_path / "outside")
    remove_workspace(str(target))
    assert (tmp_path / "outside" / "file").exists()
    assert not target.is_symlink(), "the link itself is ours"


def test_folder_swapped_for_a_link_while_removed_loses_nothing_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    libc = ctypes.CDLL(None)
    for round_number in range(60):
        target = tmp_path / "child"
        (target / "folder").mkdir(parents=True)
        (target / "link").symlink_to(outside)
        for name in "abc":
            (target / "folder" / name).write_text("x")
            (outside / name).write_text("x")
        is_over = threading.Event()

        def swap(target: Path = target, is_over: threading.Event = is_over) -> None:
            names = os.fsencode(target / "folder"), os.fsencode(target / "link")
            while not is_over.is_set():
                libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)

        swapping = threading.Thread(target=swap)
        swapping.start()
        try:
            remove_workspace(str(target))
        finally:
            is_over.set()
            swapping.join()
        assert sorted(path.name for path in outside.iterdir()) == ["a", "b", "c"], round_number
