"""`edit`: all edits or none, no place by chance, and nobody else's change is lost."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from clutch.ports import ToolContext, ToolFailed
from clutch.tools import workspace
from clutch.tools.files import diff
from clutch.tools.registry import standard_tools

pytestmark = pytest.mark.anyio

PROGRAM = "def first():\n    return 1\n\n\ndef second():\n    return 1\n"


async def edit(folder: Path, *edits: dict[str, object], path: str = "program.py") -> str:
    args = {"path": path, "edits": list(edits)}
    return await standard_tools().run("edit", args, ToolContext(str(folder), "agent:main:main", "key"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


async def test_edits_are_applied_one_after_another_and_shown(folder: Path) -> None:
    told = await edit(
        folder, {"old": "def first", "new": "def one"}, {"old": "def one():\n    return 1", "new": "one = 1"}
    )
    assert (folder / "program.py").read_text() == "one = 1\n\n\ndef second():\n    return 1\n"
    assert told == "edited program.py\n@@ -1,4 +1,3 @@\n-def first():\n-    return 1\n+one = 1\n \n "


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"old": "return 1", "new": "x"}, "number 2 of 2 was found 2 times; name more of the text"),
        (
            {"old": "def secnd():", "new": "x"},
            "number 2 of 2 was found 0 times; the nearest line is 5: def second():; nothing was written",
        ),
        (
            {"old": "def second():\n        return 1", "new": "x"},
            "the nearest line is 5: def second(): (the rest or the white space differs)",
        ),
        ({"old": "completely elsewhere", "new": "x"}, "was found 0 times; no line is like it"),
        ({"old": "def first", "new": "x"}, "was found 0 times"),
        ({"old": "", "new": "x"}, "has an empty old"),
        ({"old": "def", "new": "def"}, "changes nothing"),
    ],
)
async def test_one_edit_that_does_not_fit_leaves_the_file_alone(
    folder: Path, wrong: dict[str, object], rule: str
) -> None:
    before = (folder / "program.py").stat()
    with pytest.raises(ToolFailed) as failed:
        await edit(folder, {"old": "def first", "new": "def one"}, wrong)
    assert rule in str(failed.value)
    assert str(failed.value).startswith("edits: number 2 of 2 ")
    assert (folder / "program.py").read_text() == PROGRAM
    assert (folder / "program.py").stat().st_mtime_ns == before.st_mtime_ns
    assert os.listdir(folder) == ["program.py"]


async def test_all_places_are_changed_only_when_all_are_meant(folder: Path) -> None:
    await edit(folder, {"old": "return 1", "new": "return 2", "all": True})
    assert (folder / "program.py").read_text() == PROGRAM.replace("1", "2")


async def test_places_that_overlap_are_more_than_one(folder: Path) -> None:
    (folder / "program.py").write_text("aaa")
    with pytest.raises(ToolFailed, match="found 2 times"):
        await edit(folder, {"old": "aa", "new": "b"})


async def test_permissions_and_line_ends_stay(folder: Path) -> None:
    program = folder / "program.py"
    program.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    program.chmod(0o751)
    await edit(folder, {"old": "one\ntwo\n", "new": "1\n2\n"})
    assert program.read_bytes() == b"1\r\n2\r\nthree\r\n"
    assert program.stat().st_mode & 0o777 == 0o751
    program.write_bytes(b"one\r\ntwo\nthree")
    await edit(folder, {"old": "two\n", "new": "2\n"})
    assert program.read_bytes() == b"one\r\n2\nthree"


@pytest.mark.parametrize(
    ("path", "data", "rule"),
    [
        ("latin", b"gr\xf6\xdfe", "path: latin is not UTF-8 text"),
        ("large", b"x" * (2 * 1024 * 1024 + 1), "at most 2097152 can be edited"),
        (".git/config", b"x", ".git is read-only for agents"),
        ("missing", None, "path: missing: no such file"),
        ("no/folder", None, "path: no: no such file"),
        ("../out", None, "must not contain '..'"),
    ],
)
async def test_what_cannot_be_edited_is_refused_by_name(
    folder: Path, path: str, data: bytes | None, rule: str
) -> None:
    if data is not None:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)
    with pytest.raises(ToolFailed) as failed:
        await edit(folder, {"old": "x", "new": "y"}, path=path)
    assert rule in str(failed.value)


async def test_a_link_is_not_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret"
    outside.write_text("x")
    (folder / "link").symlink_to(outside)
    with pytest.raises(ToolFailed, match="symlinks are not followed"):
        await edit(folder, {"old": "x", "new": "y"}, path="link")
    assert outside.read_text() == "x"


async def test_edits_of_one_file_at_the_same_time_all_count(folder: Path) -> None:
    (folder / "program.py").write_text("".join(f"line {number:02}.\n" for number in range(20)))
    await asyncio.gather(
        *(edit(folder, {"old": f"line {number:02}.", "new": f"done {number:02}."}) for number in range(20))
    )
    assert (folder / "program.py").read_text() == "".join(f"done {number:02}.\n" for number in range(20))


async def test_a_folder_that_somebody_holds_is_waited_for_and_then_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "LOCK_S", 0.1)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ToolFailed, match=r"^path: another process has held its folder for 0\.1 s"):
            await edit(folder, {"old": "def first", "new": "x"})
    finally:
        os.close(held)
    assert (await edit(folder, {"old": "def first", "new": "x"})).startswith("edited")


def test_a_diff_counts_from_the_beginning_and_stays_short() -> None:
    before = "\n".join(map(str, range(5000)))
    assert diff(before, before.replace("\n4000\n", "\nnew\n")) == (
        "@@ -3999,5 +3999,5 @@\n 3998\n 3999\n-4000\n+new\n 4001\n 4002"
    )
    assert diff(before, before + "\nend").endswith("\n 4999\n+end")
    assert len(diff(before, before.replace("1", "one")).split("\n")) == 1
    many = diff("a\n" * 200, "b\n" * 200)
    assert many.endswith("more lines of the diff)")
    assert many.count("\n") == 60
    assert len(diff("x" * 10_000, "y" * 10_000)) < 500


def test_an_edit_may_not_be_done_twice() -> None:
    specs = {spec.name: spec for spec in standard_tools().specs()}
    assert not specs["edit"].replay_safe
    assert not specs["edit"].read_only
