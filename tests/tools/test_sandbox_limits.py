"""Ways around the limits of a sandbox: its first process, memory that no process holds, the killer's preference."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from clutch.ports import SandboxAccess
from clutch.tools.sandbox import bubblewrap, cgroup
from clutch.tools.sandbox.policy import MIB, SandboxLimits, SandboxPolicy
from clutch.tools.sandbox.process import SandboxedPrograms
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
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "sandbox.md").read_text()
    limits = SandboxLimits()
    assert f"| processes and threads | {limits.processes} |" in page
    assert f"| memory of all together | {limits.memory_bytes // MIB // 1024} GiB |" in page


# ---- a cgroup, where one is delegated -----------------------------------------------------------------------


def cgroup_tree(tmp_path: Path, controllers: str = "cpu memory pids") -> tuple[Path, Path]:
    """The root of cgroups as files, and what `/proc/self/cgroup` says of a process in `user/clutch.scope`."""
    own = tmp_path / "cgroup" / "user" / "clutch.scope"
    (own / "clutch-gateway").mkdir(parents=True)
    (own / "cgroup.controllers").write_text(controllers)
    (own / "cgroup.subtree_control").write_text("")
    table = tmp_path / "self"
    table.write_text("9:name=systemd:/\n0::/user/clutch.scope\n")
    return tmp_path / "cgroup", table


def test_a_delegated_cgroup_is_prepared_and_the_gateway_moves_out_of_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    root, table = cgroup_tree(tmp_path)
    own = cgroup.delegated(root, table)
    assert own == root / "user" / "clutch.scope"
    assert (own / "clutch-gateway" / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("trouble", ["not marked", "no controller", "version 1", "busy"])
def test_without_delegation_there_is_no_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, user: int
) -> None:
    """Root may write to every cgroup; only one that systemd has marked is delegated."""
    if trouble == "not marked" and user:
        monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    root, table = cgroup_tree(tmp_path, "cpu pids" if trouble == "no controller" else "memory pids")
    if trouble == "version 1":
        table.write_text("4:memory:/x\n")
    if trouble == "busy":  # what the kernel says while another process is in the group
        (root / "user" / "clutch.scope" / "cgroup.subtree_control").unlink()
        (root / "user" / "clutch.scope" / "cgroup.subtree_control").mkdir()
    assert cgroup.delegated(root, table) is None


def test_a_sandbox_joins_a_group_that_counts_its_memory_and_its_processes(tmp_path: Path) -> None:
    words = cgroup.joined(SMALL, ["/bin/sh", "-c", "echo $$"], tmp_path)
    (group,) = tmp_path.iterdir()
    counted = {
        name: int((group / name).read_text()) for name in ("memory.max", "memory.oom.group", "pids.max")
    }
    assert SMALL.memory_bytes < counted["memory.max"] <= SMALL.memory_bytes + 2 * SMALL.scratch_bytes
    assert SMALL.processes < counted["pids.max"] <= SMALL.processes + cgroup.OUTSIDE
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (group / "cgroup.procs").read_text() == done.stdout  # the command itself, not a process before it


def test_a_command_starts_although_its_group_is_gone(tmp_path: Path) -> None:
    words = cgroup.joined(SMALL, ["echo", "started"], tmp_path)
    (group,) = tmp_path.iterdir()
    shutil.rmtree(group)
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "started\n"
    assert cgroup.joined(SMALL, ["echo", "started"], tmp_path / "gone") == ["echo", "started"]


def test_groups_of_commands_that_have_ended_are_removed(tmp_path: Path) -> None:
    old, young = tmp_path / "clutch-sandbox-1", tmp_path / "clutch-sandbox-2"
    for group in (old, young):
        group.mkdir()
    os.utime(old, (0, 0))
    cgroup.joined(SMALL, ["true"], tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


@pytest.mark.anyio
async def test_commands_and_programs_join_the_group_of_their_sandbox(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, root = tmp_path / "groups", tmp_path / "workspace"
    home.mkdir()
    root.mkdir()
    monkeypatch.setattr(cgroup, "delegated", lambda: home)
    assert "end" in await escapes.run(world, "echo end", Shell(limits=SMALL))
    access = SandboxAccess(str(root), str(root), (), (), None, False)
    with SandboxedPrograms().launching(("/bin/true",), {}, access) as launch:
        assert (
            await asyncio.to_thread(subprocess.call, launch.argv, pass_fds=launch.kept, env=launch.env) == 0
        )
    joined = [group for group in home.iterdir() if (group / "cgroup.procs").exists()]
    assert len(joined) == 2
