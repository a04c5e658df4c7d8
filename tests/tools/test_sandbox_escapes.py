"""A list of escapes, run for real through the shell tool, and judged by what happened outside the box."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from clutch.ports import ToolContext
from clutch.tools.sandbox import bubblewrap
from clutch.tools.sandbox.lifetime import FirstProcess
from clutch.tools.sandbox.policy import MIB, Sandbox, SandboxLimits, SandboxPolicy
from clutch.tools.sandbox.process import probe
from clutch.tools.sandbox.protected_files import guards_of
from clutch.tools.shell import Shell, ShellArguments
from tests.tools.escapes.attempts import PYTHON, SHELL
from tests.tools.escapes.witness import CANARY, World, processes_with

PLAIN_USER = 12_345

ATTEMPTS = {**SHELL, **{name: f"{{python}} - <<'END'\n{script}\nEND" for name, script in PYTHON.items()}}
#: Harmless to do for real, so that without walls the witness must see each of them.
TEETH = {
    "read the token": "a secret was read",
    "read another workspace": "a secret was read",
    "write outside": "a file outside was changed",
    "connect to a TCP port of the machine": "somebody reached tcp",
    "send UDP to the machine": "somebody reached udp",
    "connect to a unix socket": "somebody reached unix",
    "connect to an abstract unix socket": "somebody reached abstract",
    "signal a process outside": "a process outside was ended",
    "plant a program in the git config": "a file outside was changed",
    "plant a program in a copy of the git config": "a file outside was changed",
    "exchange the repository": "a forbidden call succeeded",
    "change the index of the repository": "a file outside was changed",
    "make a repository of a submodule": "a forbidden call succeeded",
    "leave something in /tmp and /dev/shm": "something was left in shared memory",
}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Not in pytest's own folder: a plain user must be able to come near it."""
    for name in ("OPENAI_API_KEY", "CLUTCH_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, CANARY)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        world = World(Path(folder))
        yield world
        world.close()


async def run(world: World, script: str, shell: Shell | None = None, seconds: float = 20) -> str:
    shell = shell or Shell(read_only=bubblewrap.python_places())
    arguments = ShellArguments(command=world.filled(script), timeout_seconds=seconds)
    return await shell.run(arguments, ToolContext(world.workspace, "main", "key"))


@pytest.mark.anyio
@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_escape_leaves_nothing_outside(world: World, attempt: str) -> None:
    said = await run(world, ATTEMPTS[attempt])
    assert world.harms(said) == [], said


@pytest.mark.anyio
@pytest.mark.parametrize("attempt", [name for name in ATTEMPTS if "git" in name or "repository" in name])
async def test_git_of_the_user_runs_nothing_that_a_box_has_planted(world: World, attempt: str) -> None:
    said = await run(world, ATTEMPTS[attempt])
    world.git("status", "--short")
    assert world.harms(said) == [], said


@pytest.mark.anyio
@pytest.mark.parametrize("attempt", TEETH)
async def test_witness_sees_the_same_attempt_without_walls(world: World, attempt: str) -> None:
    said = await run(world, ATTEMPTS[attempt], Shell(sandbox=Sandbox.OFF))
    if attempt == "signal a process outside":
        world.sentinel.wait(5)
    assert TEETH[attempt] in world.harms(said), said


def plain_run(world: World, script: str) -> str:
    """As a plain user even when the tests run as root; there, root's own way in is not taken."""
    is_root = os.geteuid() == 0
    if is_root:
        for path in [Path(world.workspace), *Path(world.workspace).rglob("*")]:
            os.chown(path, PLAIN_USER, PLAIN_USER)
    program = probe().bubblewrap
    assert program is not None
    box = SandboxPolicy(world.workspace)
    command = ["/bin/sh", "-c", world.filled(script)]
    someone = PLAIN_USER if is_root else None
    with closing(FirstProcess()) as first:
        words = bubblewrap.sandboxed(
            program, box, command, cwd=world.workspace, guards=guards_of(box), info_fd=first.info_fd
        )
        done = subprocess.run(
            words,
            capture_output=True,
            env={},
            timeout=30,
            check=False,
            pass_fds=(first.info_fd,),
            user=someone,
            group=someone,
            extra_groups=[] if is_root else None,
        )
        first.wait()
    return (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.parametrize("attempt", SHELL)
def test_escape_of_a_plain_user_leaves_nothing_outside(
    world: World, attempt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "is_real_root", lambda: False)
    assert "box works" in plain_run(world, "touch file && rm file && echo box works")
    said = plain_run(world, SHELL[attempt])
    assert world.harms(said) == [], said


SMALL = SandboxLimits(memory_bytes=256 * MIB, processes=40, file_bytes=32 * MIB, scratch_bytes=16 * MIB)


@pytest.mark.anyio
async def test_fork_bomb_meets_the_process_limit(world: World) -> None:
    bomb = "i=0; while [ $i -lt 200 ]; do sleep 60 & echo started; i=$((i+1)); done; : {marker}"
    said = await run(world, bomb, Shell(limits=SMALL))
    assert 0 < said.count("started") < SMALL.processes, said
    assert processes_with(world.marker) == []


@pytest.mark.anyio
async def test_memory_bomb_of_one_process_is_refused_by_the_kernel(world: World) -> None:
    shell = Shell(limits=SMALL, read_only=bubblewrap.python_places())
    said = await run(world, '{python} -c "bytearray(10**9)"', shell)
    assert "MemoryError" in said


@pytest.mark.anyio
async def test_memory_bomb_of_many_processes_is_ended(world: World) -> None:
    shell = Shell(limits=SMALL, read_only=bubblewrap.python_places())
    hog = "import time; x = bytearray(120 << 20); time.sleep(60)"
    said = await run(world, f'for i in 1 2 3 4; do {{python}} -c "{hog}" & done; wait', shell)
    assert "it used more than 256 MiB of memory" in said


@pytest.mark.anyio
async def test_shared_memory_bomb_is_ended(world: World) -> None:
    shell = Shell(limits=SMALL, read_only=bubblewrap.python_places())
    hog = "import mmap, time; x = mmap.mmap(-1, 512 << 20)\n"
    hog += "for at in range(0, 512 << 20, 4096): x[at] = 1\ntime.sleep(60)"
    said = await run(world, f"{{python}} - <<'END'\n{hog}\nEND", shell)
    assert "it used more than 256 MiB of memory" in said


@pytest.mark.anyio
async def test_huge_file_and_full_scratch_stop_at_their_limits(world: World) -> None:
    script = "head -c 100000000 /dev/zero >big; head -c 100000000 /dev/zero >/tmp/big; wc -c big /tmp/big"
    await run(world, script, Shell(limits=SMALL))
    assert (Path(world.workspace) / "big").stat().st_size == SMALL.file_bytes


@pytest.mark.anyio
async def test_command_that_fills_the_disk_is_ended(world: World) -> None:
    status = os.statvfs(world.workspace)
    left = status.f_bavail * status.f_frsize - 128 * MIB
    shell = Shell(limits=SandboxLimits(disk_free_bytes=left))
    said = await run(world, "i=0; while :; do fallocate -l 64M $i; i=$((i+1)); sleep 0.05; done", shell)
    assert "free on the disk of the workspace" in said


@pytest.mark.anyio
async def test_endless_output_is_ended_and_kept_small(world: World) -> None:
    said = await run(world, "yes")
    assert "it printed more than 64 MiB" in said
    assert len(said) < 2 * SandboxLimits().output_bytes
