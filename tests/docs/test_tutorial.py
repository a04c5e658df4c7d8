"""The tutorial is true: a real shell types all of it from top to bottom, and shows what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"(?s)```{language}\n(.*?)```", PAGE)


def alike(text: str) -> str:
    """Without what differs from run to run: ids, times and counts; which child of a list is the last one."""
    return re.sub(r"t_\w+|<?\d[\d.]*(?:[a-z]+\b)?", "N", text.replace("└", "├"))


@pytest.mark.slow
def test_it_can_be_typed_from_top_to_bottom(tmp_path: Path) -> None:
    (program,) = blocks("python")
    assert len(program.strip().splitlines()) <= 11
    (tmp_path / "ask.py").write_text(program)
    script = "\n".join(blocks("sh")).replace("python ask.py", f"python {tmp_path / 'ask.py'}")
    done = subprocess.run(
        ["/usr/bin/env", "bash", "-e", "-o", "pipefail"],
        input=f"trap 'clutch stop 2>/dev/null || true' EXIT\n{script}",
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("CLUTCH_")},
            "HOME": str(tmp_path),
            "TMPDIR": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    for shown in blocks("text"):
        for line in shown.splitlines():
            assert alike(line) in alike(done.stdout), line
    assert "markers ok" in done.stdout
    _, _, after_the_kill = done.stdout.partition("Gateway not running")
    assert re.search(r"(?m)^done · Survey the folder ·.* · result ready · ", after_the_kill)
