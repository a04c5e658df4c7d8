"""What one demo is to do, kept in its state directory so that a worker, or a later start, can go on with it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

QUESTION = "Survey the folder: what is in it, and what deserves attention?"
SESSION = "agent:main:main"

_JOB, _POINTER = "demo.json", "last-demo"

PACE_S = 0.3  # of one model call: quick, and a person can still follow
SLOW = 4.0  # times slower is the child that takes its time
CHAOS_PACE_S = 0.5  # about as long as a worker lives, so that most deaths hit a call in flight
CHAOS_PACE_MAX_S = 0.8


@dataclass(frozen=True, slots=True)
class Job:
    """`kills`: how often the worker shall die at work; None = never, 0 = until the work is done."""

    state: Path
    folder: Path
    seed: int = 0
    kills: int | None = None
    pace_s: float = PACE_S
    slow: float = SLOW

    @property
    def is_chaos(self) -> bool:
        return self.kills is not None

    def save(self) -> None:
        written = {**asdict(self), "state": str(self.state), "folder": str(self.folder)}
        write_private(self.state / _JOB, json.dumps(written))


def chaos_pace_s(kills: int) -> float:
    """The more deaths are wanted, the longer the work must last; slower than a worker's life it would never end."""
    return min(CHAOS_PACE_MAX_S, 0.3 + 0.025 * kills) if kills else CHAOS_PACE_S


def load(state: Path) -> Job | None:
    """None: no demo is kept there."""
    try:
        read: dict[str, Any] = json.loads((state / _JOB).read_text())
    except FileNotFoundError:
        return None
    return Job(**{**read, "state": state, "folder": Path(read["folder"])})


def remember(home: Path, state: Path) -> None:
    """So that `--resume` without a name finds the last one."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(home / _POINTER, str(state))


def remembered(home: Path) -> Path | None:
    try:
        return Path((home / _POINTER).read_text())
    except FileNotFoundError:
        return None


def write_private(path: Path, text: str) -> None:
    """All of it or nothing, for its owner only."""
    made = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)
