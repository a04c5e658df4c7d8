"""The README is true: its example runs as it stands, its commands exist, and it stays short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_example_and_the_readme_stay_short() -> None:
    assert len(example().strip().splitlines()) <= EXAMPLE_LINES_MAX
    assert len(README.splitlines()) <= LINES_MAX


def test_every_command_and_file_it_names_exists() -> None:
    targets = set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"\bmake ([a-z]+)", README)) - {"and"} <= targets
    for path in re.findall(r"`([\w./]+\.(?:md|py))`", README):
        assert (ROOT / path).is_file(), path


def test_the_six_promises_are_all_there() -> None:
    promises = re.findall(r"(?m)^(\d)\. \*\*", README)
    assert promises == ["1", "2", "3", "4", "5", "6"]
