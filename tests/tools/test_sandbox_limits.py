"""Ways around the limits of a sandbox: its first process, memory that no process holds, the killer's preference."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from clutch.tools.sandbox import bubblewrap
from clutch.tools.sandbox.policy import MIB, SandboxLimits, SandboxPolicy
from clutch.tools.shell import Shell
from tests.tools import test_sandbox_escapes as escapes
from tests.tools.escapes.witness import World

SMALL = escapes.SMALL
Say = Callable[[str], Awaitable[str]]
world = escapes.world


@pytest.fixture(params=["caller", "plain user"])
def say(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Say]:
    """What a command prints in a sandbox with the limits SMALL."""
    if request.param == "plain user":
        monkeypatch.setattr(bubblewrap, "is_real_root", lambda: False)
        monkeypatch.setattr(escapes, "SandboxPolicy", lambda root: SandboxPolicy(root, limits=SMALL))

        async def plain(script: str) -> str:
            return await asyncio.to_thread(escapes.plain_run, world, script)

        yield plain
        return

    async def run(script: str) -> str:
        return await escapes.run(world, script, Shell(limits=SMALL))

    yield run


@pytest.mark.anyio
@pytest.mark.parametrize("process", ["1", "self"])
async def test_every_process_of_a_sandbox_has_the_limits(say: Say, process: str) -> None:
    """The first one, too: another could trace it and make it do the work."""
    said = " ".join((await say(f"cat /proc/{process}/limits")).split())
    assert f"Max file size {SMALL.file_bytes} {SMALL.file_bytes} bytes" in said
    assert f"Max data size {SMALL.memory_bytes} {SMALL.memory_bytes} bytes" in said
    assert f"Max processes {SMALL.processes} {SMALL.processes} processes" in said
    assert "Max core file size 0 0 bytes" in said


@pytest.mark.anyio
async def test_every_process_of_a_sandbox_prefers_to_be_killed_when_memory_is_short(say: Say) -> None:
    said = await say(
        "for p in 1 self; do echo 0 >/proc/$p/oom_score_adj; done; cat /proc/1/oom_score_adj /proc/self/oom_score_adj"
    )
    assert said.splitlines().count("1000") == 2, said


@pytest.mark.anyio
async def test_first_process_has_the_filter_on_system_calls(world: World) -> None:
    said = await escapes.run(world, "grep Seccomp: /proc/1/status /proc/self/status")
    assert [line.split()[-1] for line in said.splitlines()[:2]] == ["2", "2"], said


@pytest.mark.anyio
async def test_first_process_cannot_be_rewritten(world: World) -> None:
    said = await escapes.run(world, "{python} -c \"open('/proc/1/mem', 'r+b')\"")
    assert "Read-only file system" in said


@pytest.mark.anyio
async def test_command_ends_as_without_a_sandbox(world: World) -> None:
    """Exit codes, signals and orphans are as usual although the first process is a shell."""
    assert "(exit code 7," in await escapes.run(world, "exit 7")
    assert "(exit code 143," in await escapes.run(world, "kill -TERM $$")
    assert "(exit code 0," in await escapes.run(world, "(sleep 0.01 &) ; (sleep 0.05; true)")


CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def shared(size):
    found = libc.shmget(0, ctypes.c_size_t(size), 0o600)
    if found < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    place = libc.shmat(found, None, 0)
    ctypes.memset(place, 1, size)
    libc.shmdt(ctypes.c_void_p(place))
"""
HELD = {
    "memfd": "for _ in range(20): os.write(os.memfd_create('x'), b'x' * (30 << 20))",
    "SysV shared memory": "for _ in range(8): shared(64 << 20)",
    "small SysV segments": "for _ in range(2): shared((64 << 10) + 1)",
    "SysV messages": "if libc.msgget(0, 0o600) < 0: raise OSError(ctypes.get_errno(), 'no queue')",
}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", HELD)
async def test_memory_that_no_process_has_mapped_is_refused(world: World, kind: str) -> None:
    shell = Shell(limits=SMALL, read_only=bubblewrap.python_places())
    said = await escapes.run(
        world, f"{{python}} - <<'END'\n{CALL}\n{HELD[kind]}\nprint('ESCAPED')\nEND", shell
    )
    assert "ESCAPED" not in said
    assert "Error: [Errno" in said


@pytest.mark.anyio
async def test_what_a_database_needs_of_shared_memory_is_there(world: World) -> None:
    """PostgreSQL keeps a small segment to notice a second server."""
    shell = Shell(limits=SMALL, read_only=bubblewrap.python_places())
    said = await escapes.run(world, f"{{python}} - <<'END'\n{CALL}\nshared(56)\nprint('works')\nEND", shell)
    assert "works" in said


@pytest.mark.anyio
async def test_nothing_in_a_sandbox_can_stay_when_clutch_is_killed(world: World) -> None:
    """The signal at the parent's death is what ends a sandbox then: it can be set to SIGKILL only."""
    script = "print([(libc.prctl(1, s), libc.prctl(2, ctypes.byref(n)), n.value) for s in (9, 15, 0)])"
    source = f"import ctypes\nlibc, n = ctypes.CDLL(None), ctypes.c_int()\n{script}"
    said = await escapes.run(world, f"{{python}} - <<'END'\n{source}\nEND")
    assert "[(0, 0, 9), (0, 0, 9), (0, 0, 9)]" in said


def test_default_limits_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()
    limits = SandboxLimits()
    assert f"| processes and threads | {limits.processes} |" in page
    assert f"| memory of all together | {limits.memory_bytes // MIB // 1024} GiB |" in page
