"""What one demo is to do, kept in its state directory so that a worker, or a later start, can go on with it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clutch.errors import InvalidInput

QUESTION = "Survey the folder: what is in it, and what deserves attention?"
SESSION = "agent:main:main"

_JOB, _POINTER = "demo.json", "last-demo"
_COMMAND_LOCK, _GATEWAY_LOCK = "demo.lock", "lock"

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
    is_fresh: bool = False  #: nobody named its directory, and the next demo may remove it

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
        return Job(**{**read, "state": state, "folder": Path(read["folder"])})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInput("--state", f"{state / _JOB} is damaged; start a new demo") from error


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """One command at a time sees a demo through. Its own lock, because between two lives of a worker nobody
    holds the gateway's; and that one too, because a worker outlives a killed command for a moment."""
    lock = os.open(state / _COMMAND_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _take(lock, state)
        _must_be_free(state)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _must_be_free(state: Path) -> None:
    try:
        lock = os.open(state / _GATEWAY_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _take(lock, state)
    finally:
        os.close(lock)


def _take(lock: int, state: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise InvalidInput(
            "--state",
            f"{state} is in use by another process (pid {owner}); stop it, or wait until it is done",
        ) from error


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
