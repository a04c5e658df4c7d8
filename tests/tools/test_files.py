"""The file tools: nothing outside the workspace, every answer bounded, every name usable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clutch.models.demo_evidence import listing, matched
from clutch.ports import ToolContext, ToolFailed
from clutch.tools import files, search
from clutch.tools.registry import standard_tools

pytestmark = pytest.mark.anyio

WEIRD_NAMES = [
    "with space.txt",
    "größe.txt",
    "日本.txt",
    "a:1: b.txt",
    'quo"te.txt',
    "new\nline.txt",
    " lead.txt",
]


async def run(workspace: Path, name: str, **args: object) -> str:
    return await standard_tools().run(name, args, ToolContext(str(workspace), "agent:main:main", "key"))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Beside a secret; inside, links that lead to it."""
    (tmp_path / "secret.txt").write_text("the secret\n")
    inside = tmp_path / "inside"
    (inside / "src").mkdir(parents=True)
    (inside / "src" / "main.py").write_text("def main():\n    return 1\n\n# the end\n")
    (inside / "notes.md").write_text("# Notes\n\nTODO write them\n")
    (inside / "out").symlink_to(tmp_path)
    (inside / "secret-link").symlink_to(tmp_path / "secret.txt")
    return inside


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("../secret.txt", "must not contain '..'"),
        ("src/../../secret.txt", "must not contain '..'"),
        ("src/..", "must not contain '..'"),
        ("/etc/passwd", "not absolute"),
        ("//etc/passwd", "not absolute"),
        ("out/secret.txt", "symlinks are not followed"),
        ("secret-link", "symlinks are not followed"),
        ("a\0b", "must not contain NUL"),
        ("x" * 5000, "at most 4096"),
        ("x/" * 65 + "x", "at most 64"),
        ("n" * 300, "file name too long"),
        ("src", "not a regular file"),
        (".", "directory"),
        ("missing.txt", "no such file"),
        ("notes.md/x", "not a directory"),
    ],
)
@pytest.mark.parametrize("tool", ["read", "write"])
async def test_a_path_that_leaves_the_workspace_or_is_no_file_is_refused_by_name(
    workspace: Path, tool: str, path: str, rule: str
) -> None:
    before = sorted(workspace.parent.rglob("*"))
    args = {"path": path, "text": "x"} if tool == "write" else {"path": path}
    if tool == "write" and path == "missing.txt":
        assert await run(workspace, tool, **args) == "wrote missing.txt (1 byte)"
        return
    with pytest.raises(ToolFailed, match=rule) as raised:
        await run(workspace, tool, **args)
    assert str(raised.value).startswith("path: ")
    assert len(str(raised.value)) < 400
    assert sorted(workspace.parent.rglob("*")) == before
    assert (workspace.parent / "secret.txt").read_text() == "the secret\n"


@pytest.mark.parametrize("tool", ["list", "search"])
@pytest.mark.parametrize("path", ["..", "/", "out", "secret-link", "src/../.."])
async def test_no_folder_outside_is_listed_or_searched(workspace: Path, tool: str, path: str) -> None:
    args = {"pattern": "secret"} if tool == "search" else {}
    with pytest.raises(ToolFailed, match=r"^path: "):
        await run(workspace, tool, path=path, **args)


async def test_links_are_listed_as_links_and_not_entered(workspace: Path) -> None:
    listed = await run(workspace, "list", recursive=True)
    assert "   symlink  out\n" in listed
    assert "the secret" not in await run(workspace, "search", pattern="secret")
    assert "secret.txt" not in listed


async def test_write_never_goes_through_a_link(workspace: Path) -> None:
    with pytest.raises(ToolFailed, match="symlinks are not followed"):
        await run(workspace, "write", path="out/new/file.txt", text="x")
    assert not (workspace.parent / "new").exists()


async def test_write_makes_folders_keeps_permissions_and_leaves_no_litter(workspace: Path) -> None:
    script = workspace / "bin" / "run"
    await run(workspace, "write", path="bin/run", text="one\n")
    script.chmod(0o755)
    await run(workspace, "write", path="bin/run", text="zwei ü\n")
    assert script.read_text() == "zwei ü\n"
    assert script.stat().st_mode & 0o777 == 0o755
    assert [entry.name for entry in script.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("path", [".git/hooks/post-checkout", "sub/.GIT/config"])
async def test_nothing_is_written_into_git(workspace: Path, path: str) -> None:
    with pytest.raises(ToolFailed, match=r"(?i)\.git is read-only for agents"):
        await run(workspace, "write", path=path, text="x")


async def test_write_has_a_size_limit(workspace: Path) -> None:
    with pytest.raises(ToolFailed, match="text: has 2097153 bytes, at most 2097152"):
        await run(workspace, "write", path="big", text="x" * (2 * 1024 * 1024 + 1))


async def test_read_numbers_lines_and_says_how_to_go_on(workspace: Path) -> None:
    assert await run(workspace, "read", path="src/main.py", limit=2) == (
        "     1  def main():\n"
        "     2      return 1\n"
        "(src/main.py: lines 1-2 of 4, 36 bytes; continue with start=3)"
    )


@pytest.mark.parametrize(
    ("start", "first", "span"),
    [
        (3, "     3  ", "lines 3-4 of 4"),
        (-1, "     4  # the end", "lines 4-4 of 4"),
        (-99, "     1  def main():", "lines 1-4 of 4"),
        (9, "(src/main.py", "no line from 9 on; of 4"),
        (0, "     1  def main():", "lines 1-4 of 4"),
    ],
)
async def test_read_starts_where_it_is_told(workspace: Path, start: int, first: str, span: str) -> None:
    text = await run(workspace, "read", path="src/main.py", start=start)
    assert text.startswith(first)
    assert span in text


async def test_read_is_bounded_in_lines_characters_and_bytes(workspace: Path) -> None:
    (workspace / "long.txt").write_text("y" * 5000 + "\n")
    (workspace / "many.txt").write_text("z" * 900 + "\n")
    with (workspace / "many.txt").open("a") as file:
        file.writelines("z" * 900 + "\n" for _ in range(3000))
    assert len(await run(workspace, "read", path="long.txt")) < 1200
    many = await run(workspace, "read", path="many.txt", limit=5000)
    assert len(many) < 70_000
    assert "only the first 2097152 bytes were read" in many
    assert "continue with start=" in many


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n\0\0", b"text\n" * 5000 + b"\0"])
async def test_binary_files_are_named_and_not_shown(workspace: Path, data: bytes) -> None:
    (workspace / "data").write_bytes(data)
    assert await run(workspace, "read", path="data") == f"(data is binary: {len(data)} bytes, not shown)"
    assert "1 binary file skipped" in await run(workspace, "search", pattern="text", path="data")


async def test_empty_and_badly_encoded_files_are_text(workspace: Path) -> None:
    (workspace / "empty").write_bytes(b"")
    (workspace / "latin").write_bytes(b"gr\xf6\xdfe\r\nend")
    assert await run(workspace, "read", path="empty") == "(empty: no line from 1 on; of 0, 0 bytes)"
    assert (await run(workspace, "read", path="latin")).startswith("     1  gr\ufffd\ufffde\n     2  end\n")


async def test_a_pipe_is_refused_without_waiting_for_it(workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    with pytest.raises(ToolFailed, match="not a regular file"):
        await run(workspace, "read", path="pipe")
    assert "     other  pipe" in await run(workspace, "list")
    assert "TODO" in await run(workspace, "search", pattern="TODO")


async def test_list_shows_sizes_and_skips_what_nobody_asked_for(workspace: Path) -> None:
    (workspace / "node_modules" / "left-pad").mkdir(parents=True)
    listed = await run(workspace, "list", recursive=True)
    assert "   skipped  node_modules\n" in listed
    assert "        25  notes.md\n" in listed
    assert "        36  src/main.py\n" in listed
    assert "left-pad" not in listed


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*.py", ["a.py", "src/main.py", "src/deep/b.py"]),
        ("src/*.py", ["src/main.py"]),
        ("src/**/*.py", ["src/main.py", "src/deep/b.py"]),
        ("**", ["a.py", "notes.md", "src/main.py", "src/deep/b.py"]),
        ("[ab].py", ["a.py", "src/deep/b.py"]),
        ("nothing", []),
        ("*a*a*a*a*a*a*a*a*a*a*a*a*b", []),
    ],
)
async def test_globs_look_at_the_name_or_the_whole_path(
    workspace: Path, glob: str, expected: list[str]
) -> None:
    (workspace / "src" / "deep").mkdir()
    (workspace / "src" / "deep" / "b.py").write_text("")
    (workspace / "a.py").write_text("")
    listed = listing(await run(workspace, "list", recursive=True, glob=glob))
    assert [path for path, _ in listed.files] == expected


async def test_what_git_ignores_is_left_out_unless_asked_for(workspace: Path) -> None:
    (workspace / ".gitignore").write_text("*.log\nbuild/\n")
    (workspace / "build").mkdir()
    for path in ("build/out.py", "trace.log", "src/trace.log", ".hidden"):
        (workspace / path).write_text("TODO here\n")
    listed = await run(workspace, "list", recursive=True)
    assert ".hidden" in listed
    assert "build" not in listed
    assert "trace.log" not in listed
    assert listed.endswith("; 3 ignored entries left out)")
    found = await run(workspace, "search", pattern="TODO")
    assert [line.split(":")[0] for line in found.split("\n")[:-1]] == [".hidden", "notes.md"]
    assert found.endswith("; 3 ignored entries left out)")
    everything = await run(workspace, "list", recursive=True, ignored=True)
    assert "build/out.py" in everything
    assert "src/trace.log" in everything
    assert "build/out.py" in await run(workspace, "search", pattern="TODO", ignored=True)
    assert "build/out.py" in await run(workspace, "search", pattern="TODO", path="build")
    assert "trace.log:1" in await run(workspace, "search", pattern="TODO", path="trace.log")
    assert "trace.log" in await run(workspace, "list"), "one folder is shown as it is"


async def test_a_listing_is_bounded_and_says_what_is_missing(workspace: Path) -> None:
    for number in range(30):
        (workspace / f"file{number:02}").write_text("")
    listed = await run(workspace, "list", limit=10)
    assert listed.count("\n") == 10
    assert listed.endswith("(34 entries; the first 10 are shown: narrow it with path or glob)")


async def test_search_answers_file_line_and_text(workspace: Path) -> None:
    assert await run(workspace, "search", pattern=r"TODO|def \w+") == (
        "notes.md:3: TODO write them\nsrc/main.py:1: def main():\n(2 matching lines in 2 files)"
    )
    assert "notes.md" not in await run(workspace, "search", pattern=".", glob="*.py")
    assert "src/main.py" not in await run(workspace, "search", pattern=".", recursive=False)


async def test_search_is_bounded_per_file_and_in_all(workspace: Path) -> None:
    (workspace / "many.txt").write_text("match\n" * 1000)
    assert (await run(workspace, "search", pattern="match", per_file=3)).count("many.txt:") == 3
    limited = await run(workspace, "search", pattern="match", per_file=500, limit=7)
    assert limited.count("many.txt:") == 7
    assert "limit reached" in limited


@pytest.mark.parametrize(("pattern", "position"), [("def (", 4), ("a**", 2), ("[z-a]", 1), ("(?P<x", 4)])
async def test_a_bad_expression_is_answered_with_its_position(
    workspace: Path, pattern: str, position: int
) -> None:
    with pytest.raises(
        ToolFailed, match=rf"^pattern: is not a regular expression: .* at position {position}$"
    ):
        await run(workspace, "search", pattern=pattern)


@pytest.mark.parametrize("name", WEIRD_NAMES)
async def test_whatever_name_is_shown_can_be_given_back(tmp_path: Path, name: str) -> None:
    await run(tmp_path, "write", path=name, text="here: it is\n")
    assert (tmp_path / name).read_text() == "here: it is\n"
    ((path, size),) = listing(await run(tmp_path, "list")).files
    assert (path, size) == (name, 12)
    (hit,) = matched(await run(tmp_path, "search", pattern="it is"))
    assert (hit.file, hit.line, hit.text) == (name, 1, "here: it is")
    assert "here: it is" in await run(tmp_path, "read", path=path)


async def test_a_name_that_is_no_unicode_is_shown_and_marked(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).write_text("x\n")
    listed = await run(tmp_path, "list")
    assert listed.startswith("   badname  caf\ufffd\n")
    listed.encode()


async def test_a_workspace_that_is_gone_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match=r"^workspace: no such file"):
        await run(tmp_path / "gone", "list")


async def test_an_expression_that_never_ends_is_ended(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "trap.txt").write_text("a" * 60 + "\n")
    monkeypatch.setattr(search, "ALARM_S", 1)
    with pytest.raises(ToolFailed, match="pattern: took longer than 1 s"):
        await run(workspace, "search", pattern=r"(a+)+$b", path="trap.txt")


def test_a_process_of_its_own_can_serve_the_file_tools(workspace: Path) -> None:
    """One blocking way in, with arguments as plain data."""
    root = str(workspace)
    assert files.run("write", {"path": "new", "text": "x"}, root) == "wrote new (1 byte)"
    assert files.run("read", {"path": "new", "start": 1, "limit": 5}, root).startswith("     1  x\n")
    edits = [{"old": "x", "new": "y", "all": False}]
    assert files.run("edit", {"path": "new", "edits": edits}, root) == "edited new\n@@ -1 +1 @@\n-x\n+y"
    with pytest.raises(ToolFailed, match=r"^path: must not contain"):
        files.run("read", {"path": "../secret.txt"}, root)
