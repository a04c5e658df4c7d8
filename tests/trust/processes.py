"""Starts modules of the campaign as processes of their own, from the root of the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def start(module: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    """`python -m module words`. Its stdout is a pipe, its stderr is ours."""
    command = [sys.executable, "-m", module, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options)


def last_line(module: str, *words: str) -> str:
    """The last line that `python -m module words` prints. CalledProcessError: it failed."""
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    return done.stdout.splitlines()[-1]


def progress(line: str) -> None:
    """The summary has stdout for itself."""
    print(line, file=sys.stderr, flush=True)
