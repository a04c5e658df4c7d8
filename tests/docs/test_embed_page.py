"""The page about programs is true: every program in it runs as it stands, and the methods it names are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clutch import Clutch, Task

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "embed.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_program_runs_as_it_stands(tmp_path: Path) -> None:
    """One after the other, on one state directory; one process for all, because each costs a second."""
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 5
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "\n\n".join(one.replace("main", f"main_{n}") for n, one in enumerate(programs)),
        ],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "done: ok" in done.stdout
    assert "three.md ok" in done.stdout


def test_the_methods_it_names_are_there() -> None:
    acts = re.search(r"acting on it \| (.*) \|", PAGE)
    assert acts is not None
    for name in re.findall(r"`(\w+)`", acts[1]):
        assert callable(getattr(Task, name))
    for name in re.findall(r"`c\.(\w+)\(", PAGE.partition("## Scripts")[0]):
        assert callable(getattr(Clutch, name))
