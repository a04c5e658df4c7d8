"""The README is true: its example runs as it stands, its commands exist, and it stays short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clutch
from clutch.core.model import Lane
from clutch.core.policy import Limits, Work

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LINES_MAX, EXAMPLE_LINES_MAX = 120, 12


def example() -> str:
    (block,) = re.findall(r"(?s)```python\n(.*?)```", README)
    return str(block)


@pytest.mark.slow
def test_the_example_runs_as_it_stands_and_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n\nTODO: water the plants\n")
    done = subprocess.run(
        [sys.executable, "-c", example()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"(?m)^t_\w+ markers ok ", done.stdout)
    assert re.search(r"(?m)^t_\w+ sizes ok ", done.stdout)
    assert "notes.md:3: TODO: water the plants" in done.stdout


@pytest.mark.slow
def test_no_agent_reads_the_token_that_the_example_left_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.md").write_text("# Notes\n\nTODO: water the plants\n")
    subprocess.run(
        [sys.executable, "-c", example()], cwd=folder, check=True, timeout=60, stdout=subprocess.DEVNULL
    )
    token = (folder / "clutch-state" / "token").read_text().strip()
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLUTCH_")}
    env |= {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "home")}

    def clutch(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "clutch", *words], cwd=folder, env=env, check=False, timeout=60,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        return done.stdout

    try:
        for question in ("sizes", "reading", "overview"):
            for place in (".", "clutch-state"):
                said = clutch("run", f'question: {question}\nin: ["{place}"]', "--wait")
                assert "demo model" in said, said
                assert token not in said
        assert token not in clutch("logs", "last")
    finally:
        clutch("stop")


def test_the_example_and_the_readme_stay_short() -> None:
    assert len(example().strip().splitlines()) <= EXAMPLE_LINES_MAX
    assert len(README.splitlines()) <= LINES_MAX


def test_every_command_and_file_it_names_exists() -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"\bmake ([a-z]+)", README)) - {"and"} <= targets
    for path in re.findall(r"`([\w./]+\.(?:md|py))`", README):
        assert (ROOT / path).is_file(), path


def test_the_limits_it_tells_are_the_defaults() -> None:
    limits, work = Limits(), Work()
    told = re.search(
        r"(\d+) active children.*\s(\d+) tasks alive.*\s(\d+) records.*\s(\d+) children at", README, re.DOTALL
    )
    assert told is not None
    assert [int(number) for number in told.groups()] == [
        limits.children_max, limits.descendants_max, limits.retained_max, work.lanes[Lane.SUBAGENT],
    ]  # fmt: skip
    assert limits.depth_max == 1


def test_the_policy_it_shows_can_be_made() -> None:
    (shown,) = re.findall(r"(?m)^    policy = (Policy\(.*\))$", README)
    made = eval(shown, {"Policy": clutch.Policy, "Limits": clutch.Limits})  # noqa: S307 (our own words)
    assert made.limits != Limits()


def test_every_name_it_imports_is_public() -> None:
    named = re.findall(r"from clutch import ([\w, ]+)", README)
    assert len(named) == 3
    for name in ", ".join(named).split(", "):
        assert name in clutch.__all__


def test_every_folder_the_contributors_read_about_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things go")[2].partition("\n## ")[0]
    order = re.findall(r"\w+", re.findall(r"`(\w+(?: → \w+)+)`", text)[0])
    listed = [
        name
        for line in re.findall(r"(?m)^- ((?:`\w+`(?:,| and)? ?)+)", text)
        for name in re.findall(r"\w+", line)
    ]
    folders = {*order, *listed} - {"and"}
    assert len(folders) >= 10
    for name in folders:
        assert (ROOT / "src/clutch" / name).is_dir() or (ROOT / "src/clutch" / f"{name}.py").is_file(), name


def test_the_six_promises_are_all_there() -> None:
    promises = re.findall(r"(?m)^(\d)\. \*\*", README)
    assert promises == ["1", "2", "3", "4", "5", "6"]
