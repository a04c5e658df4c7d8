"""Commands on a disk that is full or read-only say what is wrong, and show what they can.

Each test runs real commands in bubblewrap, which gives them such a disk without any rights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

#: Fills the disk to its last byte.
FILL = 'dd if=/dev/zero of="$(mktemp "$CLUTCH_HOME/../XXXX")" bs=1k 2>/dev/null; '
WORK = 'clutch run "question: markers" --wait >/dev/null || exit 99; '
KILL = 'kill -9 $(sed -n "s/.*\\"pid\\": *\\([0-9]*\\).*/\\1/p" "$CLUTCH_HOME/gateway.json"); '


def sandboxed(script: str, disk: tuple[str, ...], home: str) -> subprocess.CompletedProcess[str]:
    """Run a script of commands with `disk` mounted; all processes of it end with it."""
    programs = Path(sys.executable).parent
    box = [
        "bwrap",
        "--die-with-parent",
        "--unshare-pid",
        "--bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
    ]
    settings = [
        "--unsetenv",
        "CLUTCH_NO_START",
        "--setenv",
        "CLUTCH_HOME",
        home,
        "--setenv",
        "PATH",
        f"{programs}:/usr/bin:/bin",
    ]
    command = [*box, *disk, *settings, "/bin/sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_ps_shows_what_there_is_on_a_full_disk(tmp_path: Path) -> None:
    """With a gateway, beside a dead one, and without room for the index of the log."""
    no_index = 'rm -f "$CLUTCH_HOME/clutch.db-shm"; '
    story = f"{WORK}{FILL}clutch ps || exit 1; {KILL}clutch ps || exit 2; {no_index}{FILL}clutch ps || exit 3"
    said = sandboxed(story, ("--size", str(12 << 20), "--tmpfs", str(tmp_path)), f"{tmp_path}/state")
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("question: markers") == 3


def test_a_read_only_state_directory_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    state = tmp_path / "state"
    made = sandboxed(f"{WORK}clutch stop", (), str(state))
    assert made.returncode == 0, made.stderr
    commands = ("run hello", "serve", "gc", "init --force", "doctor --fix")
    story = "; ".join(f"clutch {one} && echo worked: {one}" for one in commands)
    said = sandboxed(story, ("--ro-bind", str(state), str(state)), str(state))
    assert "worked" not in said.stdout
    assert "Traceback" not in said.stderr
    assert said.stderr.count("Read-only file system") == len(commands)
    assert said.stderr.count(str(state)) >= len(commands)
