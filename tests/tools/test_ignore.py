"""`.gitignore`: the same answers as git itself gives, and never a long time to give them."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.tools.workspace import Ignored, Kind, WalkLimit, rules_of, walk
from tests.examples import examples

NAMES = ("a", "b", "ab", "aa", "ü", "x.y", "a*", "#a", "!a", "a ", "c", "-", "ba", "A1", "*")
# fmt: off
PIECES = (
    "a", "b", "ab", "ü", "x.y", "*", "**", "***", "?", "/", "/**", "**/", "[ab]", "[!a]", "[a-c]", "[^b]",
    "[]a]", "[a", "[]", "[!]", "[b-a]", "[!b-a]", "[a-b-c]", "[a/b]", "[\\]a]", "[[:alpha:]]", "[[:foo:]]",
    "[[:digit:][:upper:]]", "\\*", "\\a", "\\", "!", "#", " ", "\\ ", "-", ".", "\t",
)
# fmt: on
lines = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
texts = st.tuples(st.lists(lines, min_size=1, max_size=4), st.sampled_from(["\n", "\r\n"])).map(
    lambda drawn: drawn[1].join(drawn[0])
)
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(tuple)
Parts = tuple[str, ...]


@examples(60)
@given(st.sets(paths, min_size=3, max_size=20), st.lists(texts, min_size=1, max_size=3), st.data())
def test_a_walk_leaves_out_exactly_what_git_ignores(
    leaves: set[Parts], files: list[str], data: st.DataObject
) -> None:
    with TemporaryDirectory() as root:
        folders = sorted({path[:depth] for path in leaves for depth in range(len(path))})
        for leaf in leaves:
            Path(root, *leaf[:-1]).mkdir(parents=True, exist_ok=True)
        for leaf in leaves - set(folders):
            Path(root, *leaf).touch()
        for text in files:
            folder = data.draw(st.sampled_from(folders))
            Path(root, *folder, ".gitignore").write_bytes(text.encode())
        found = {"/".join(entry.parts) for entry in walk(root, (), WalkLimit(), recursive=True)}
        everything = {str(path.relative_to(root)) for path in Path(root).rglob("*")}
        assert everything - found == ignored_by_git(root, everything)


def ignored_by_git(root: str, everything: set[str]) -> set[str]:
    environment = {**git_environment(), "GIT_WORK_TREE": root}
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "-z", "--stdin"],  # noqa: S607
        cwd=root,
        env=environment,
        input="\0".join(sorted(everything)).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return {path for path in done.stdout.decode().split("\0") if path}


@functools.cache
def git_environment() -> dict[str, str]:
    """git's own folder stands outside of the tree, so that nobody sees it there."""
    home = mkdtemp()
    atexit.register(shutil.rmtree, home)
    environment = {"PATH": os.environ["PATH"], "HOME": home, "GIT_DIR": f"{home}/git"}
    subprocess.run(["git", "init", "-q"], check=True, env=environment, cwd=home)  # noqa: S607
    return environment


@pytest.mark.parametrize(
    ("text", "left_out", "kept"),
    [
        ("*.log", ["a.log", "deep/er/a.log"], ["a.log.txt"]),
        ("/build", ["build", "build/x"], ["deep/build"]),
        ("build/", ["deep/build/x"], ["build"]),
        ("docs/*.txt", ["docs/a.txt"], ["docs/deep/a.txt", "more/docs/a.txt"]),
        ("docs/**/a", ["docs/a", "docs/b/c/a"], ["a"]),
        ("docs/**", ["docs/a", "docs/b/c"], ["docs"]),
        ("**/logs", ["logs", "a/b/logs"], ["logs2"]),
        ("*.log\n!keep.log", ["a.log"], ["keep.log", "deep/keep.log"]),
        ("dir/\n!dir/keep", ["dir/keep"], ["other/keep"]),
        ("# a comment\n\n\\#real\n\\!real", ["#real", "!real"], ["# a comment"]),
        ("space\\ \ntrailing   ", ["space ", "trailing"], ["space", "trailing   "]),
    ],
)
def test_rules_of_everyday(text: str, left_out: list[str], kept: list[str]) -> None:
    rules = Ignored(0, rules_of(text))

    def is_out(path: str) -> bool:
        parts = tuple(path.split("/"))
        return any(
            rules.leaves_out(parts[:depth], is_folder=depth < len(parts))
            for depth in range(1, len(parts) + 1)
        )

    assert [path for path in left_out if not is_out(path)] == []
    assert [path for path in kept if is_out(path)] == []


def test_git_is_never_entered_and_what_is_asked_for_by_name_is_shown(tmp_path: Path) -> None:
    for path in (".git/config", "build/out/x", "build/y.log", "src/main.py", ".hidden"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / ".gitignore").write_text("build/\n*.log\n")

    def found(*top: str, with_ignored: bool = False) -> set[str]:
        entries = walk(str(tmp_path), top, WalkLimit(), recursive=True, with_ignored=with_ignored)
        return {entry.path for entry in entries if entry.kind is Kind.FILE}

    assert found() == {".gitignore", ".hidden", "src/main.py"}
    assert found("build") == {"build/out/x"}, "the rules above still count for what is in it"
    assert found(with_ignored=True) == {
        ".gitignore",
        ".hidden",
        "src/main.py",
        "build/out/x",
        "build/y.log",
    }


@pytest.mark.parametrize(
    "rule", ["*a" * 60 + "b", "**/" * 60 + "b", "/*/**" * 30 + "/b", "[" * 3000, "?*" * 90]
)
def test_no_rule_takes_long(rule: str) -> None:
    began = time.process_time()
    ignored = Ignored(0, rules_of(f"{rule}\n" * 20))
    for _ in range(20):
        ignored.leaves_out(tuple("a" * 250 for _ in range(60)), is_folder=False)
    assert time.process_time() - began < 2
