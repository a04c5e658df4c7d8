"""State directories that appear while a program runs in a sandbox which shows their place."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clutch import AcpAgent, Clutch
from clutch.errors import UnsafeStateDirectory
from clutch.ports import RuntimeJob, ToolContext
from clutch.runtimes.acp import AcpRuntime
from clutch.store.state_directory import mark
from clutch.tools.mcp import McpServer
from clutch.tools.sandbox import lifetime
from clutch.tools.sandbox.policy import SandboxPolicy
from clutch.tools.sandbox.process import SandboxedPrograms
from clutch.tools.shell import Shell, ShellArguments
from tests.patience import PATIENCE_S
from tests.tools.mcp_servers.approving import opened
from tests.tools.mcp_servers.running import CONTEXT, HERE
from tests.tools.test_protected_files import TOKEN, in_family, in_shell, state_in

pytestmark = pytest.mark.anyio

AGENT = Path(__file__).parents[1] / "runtimes" / "acp_agent.py"
VISIBLE = (sys.prefix, sys.base_prefix, str(AGENT.parent), str(HERE))
Ended = Callable[[], Awaitable[str]]
ENDED = "became a state directory of Clutch, which no agent may see"

#: Shell scripts that copy the token of a state directory to `seen`, as soon as they can.
READERS = {
    # opens the file by its path, again and again
    "by path": "while :; do cat {where}/token >>seen 2>/dev/null; sleep 0.01; done",
    # keeps the directory open from the moment it is there: no later mount covers it
    "open directory": "until cd {where} 2>/dev/null; do :; done; "
    "while :; do cat token >>{root}/seen 2>/dev/null; sleep 0.01; done",
}

MAKER = """
import asyncio, sys
from clutch import Clutch
async def main():
    async with Clutch(state=sys.argv[1], workspace=sys.argv[2]):
        print("made", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "clutch-sandboxes"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - another process does it, without an event
            await asyncio.sleep(0.02)


@asynccontextmanager
async def another_clutch(state: Path, workspace: Path) -> AsyncIterator[None]:
    """A program of the user that makes its state directory there, and runs until the block ends."""
    words = (sys.executable, "-c", MAKER, str(state), str(workspace))
    maker = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert maker.stdout is not None
    try:
        assert await asyncio.wait_for(maker.stdout.readline(), PATIENCE_S) == b"made\n"
        yield
    finally:
        await maker.communicate(b"")  # closes its input


# ---- programs of each tool family --------------------------------------------------------------------------


@asynccontextmanager
async def running_program(family: str, root: Path, script: str) -> AsyncIterator[Ended]:
    """Run a script in a sandbox beside a program that works; yield what awaits the sentence about its end."""
    script = f"cd {root}; ({script}) & touch {root}/started; "
    programs = {"shell": _in_shell, "acp": _in_acp, "mcp": _in_mcp}
    async with programs[family](root, script) as ended:
        await until((root / "started").exists)
        yield ended


@asynccontextmanager
async def _in_shell(root: Path, script: str) -> AsyncIterator[Ended]:
    arguments = ShellArguments(command=f"{script} wait", timeout_seconds=PATIENCE_S)
    command = asyncio.create_task(Shell().run(arguments, ToolContext(str(root), "main", "key")))

    async def ended() -> str:
        return await command

    try:
        yield ended
    finally:
        command.cancel()
        await asyncio.wait([command])


@asynccontextmanager
async def _in_mcp(root: Path, script: str) -> AsyncIterator[Ended]:
    words = ("-c", f"{script} exec {sys.executable} {HERE}/rude.py serve")
    server = McpServer(
        name="x", command="/bin/sh", args=words, cwd=str(root), visible=VISIBLE, env={"TOOLS": "null"}
    )
    tools = await opened([server], root.parent / "mcp-state")
    await tools.ready()
    assert tools.problems() == []

    async def ended() -> str:
        await until(tools.problems)
        [problem] = tools.problems()
        assert "the next call starts it again" in problem
        assert '"x": 1' in await tools.run("x__say", {"x": 1}, CONTEXT)
        assert tools.problems() == []
        return problem

    try:
        yield ended
    finally:
        await tools.close()


@asynccontextmanager
async def _in_acp(root: Path, script: str) -> AsyncIterator[Ended]:
    words = ("-c", f"echo x >>starts; {script} exec {sys.executable} {AGENT}")
    agent = AcpAgent(name="tested", command="/bin/sh", args=words, visible=VISIBLE)
    runtime = AcpRuntime(agent, root.parent / "acp", SandboxedPrograms())
    job = RuntimeJob(
        f"clutch-test: until {root}/go", (), "agent:main:subagent:x", str(root), "x:1", is_sandboxed=True
    )
    run = asyncio.create_task(runtime.run(job))

    async def ended() -> str:
        await until(lambda: (root / "starts").read_text() == "x\nx\n")
        (root / "go").touch()
        assert (await run).text == "there"
        return ENDED

    try:
        yield ended
    finally:
        run.cancel()
        await asyncio.wait([run])


# ---- what Clutch makes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "where", "reader"),
    [
        ("shell", "state", "by path"),
        ("shell", "deep/er/state", "open directory"),
        ("acp", "state", "open directory"),
        ("acp", "deep/er/state", "by path"),
        ("mcp", "state", "open directory"),
        ("mcp", "deep/er/state", "by path"),
    ],
)
async def test_a_running_program_never_reads_a_state_directory_that_clutch_makes(
    root: Path, family: str, where: str, reader: str
) -> None:
    script = READERS[reader].format(where=where, root=root)
    async with running_program(family, root, script) as ended, another_clutch(root / where, root):
        token = (root / where / "token").read_text()
        assert ENDED in await ended()
        assert token not in await in_shell(root, f"cat {where}/token; echo end")
    assert token
    assert not (root / "seen").exists() or token not in (root / "seen").read_text()


async def test_a_command_of_the_same_process_ends_before_the_token_is_written(root: Path) -> None:
    script = READERS["open directory"].format(where="state", root=root)
    async with running_program("shell", root, script) as ended, Clutch(state=root / "state", workspace=root):
        token = (root / "state" / "token").read_text()
        assert ENDED in await ended()
    assert token not in (root / "seen").read_text()


async def test_a_program_that_does_not_see_the_directory_runs_on(root: Path, tmp_path: Path) -> None:
    """It is hidden from the start, or lies in no folder that the program sees."""
    async with Clutch(state=root / "state", workspace=root):
        pass
    async with running_program("shell", root, "until [ -e go ]; do sleep 0.02; done") as ended:
        async with another_clutch(root / "state", root), another_clutch(tmp_path / "elsewhere", root):
            pass
        (root / "go").touch()
        assert "exit code 0" in await ended()


def test_the_maker_waits_while_the_folders_of_a_starting_sandbox_are_walked(root: Path) -> None:
    """The walk is after or before the directory can be recognised: the maker learns which."""
    state = root / "state"
    for hidden in ([str(state)], []):
        with lifetime.listed(SandboxPolicy(str(root))) as entry:
            mark(state)
            assert lifetime.showing(str(state)) == [entry.path]
            assert entry.announced() is None
            entry.write(hidden)
            assert lifetime.showing(str(state)) == ([] if hidden else [entry.path])
            assert entry.announced() == (None if hidden else str(state))


async def test_no_state_directory_is_made_beside_a_program_that_does_not_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifetime, "WAIT_S", 0.1)
    with (
        lifetime.listed(SandboxPolicy(str(root))),
        pytest.raises(UnsafeStateDirectory, match="did not end within"),
    ):
        async with Clutch(state=root / "state", workspace=root):
            pass
    assert not (root / "state" / "token").exists()
    assert not (root / "state" / "clutch.db").exists()


def test_the_list_forgets_the_sandboxes_of_a_killed_gateway(root: Path, own_list: Path) -> None:
    own_list.mkdir(parents=True)
    (own_list / "left").write_text(f'{{"shown": ["{root}"], "hidden": []}}')
    assert lifetime.showing(f"{root}/state") == []
    assert list(own_list.iterdir()) == []


async def test_a_user_whose_list_cannot_be_written_has_sandboxes(root: Path, own_list: Path) -> None:
    own_list.parent.write_text("no folder")
    assert "exit code 0" in await in_shell(root, "true")
    lifetime.wait_until_hidden(root / "state")


@pytest.mark.parametrize("family", ["shell", "acp", "mcp"])
async def test_a_state_directory_without_a_database_file_is_hidden(tmp_path: Path, family: str) -> None:
    """With PostgreSQL: only its token lies there."""
    (tmp_path / "root").mkdir()
    mark(tmp_path / "root" / "state")
    (tmp_path / "root" / "state" / "token").write_text(TOKEN)
    said = await in_family(family, tmp_path / "root", "cat state/token; echo end")
    assert "end" in said
    assert TOKEN not in said


# ---- what appears otherwise --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "where"), [("shell", "state"), ("acp", "deep/er/state"), ("mcp", "deep/er/state")]
)
async def test_a_program_that_sees_a_state_directory_moved_in_is_ended(
    root: Path, tmp_path: Path, family: str, where: str
) -> None:
    state = state_in(tmp_path / "made-elsewhere")
    (root / where).parent.mkdir(parents=True, exist_ok=True)
    async with running_program(family, root, "sleep 600") as ended:
        began = time.monotonic()
        state.rename(root / where)
        assert ENDED in await ended()
        took = time.monotonic() - began
        assert TOKEN not in await in_shell(root, f"cat {where}/token; echo end")
    assert took < PATIENCE_S / 2


async def test_a_program_whose_workspace_becomes_a_state_directory_is_ended(root: Path) -> None:
    async with running_program("shell", root, "sleep 600") as ended:
        mark(root)
        assert f"{root} {ENDED}" in await ended()


async def test_a_walk_costs_a_fiftieth_of_a_core_and_is_shared(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = lifetime._Walk(began=100.0, ended=100.5)
    assert [walk.is_due(now) for now in (101.0, 125.0, 125.5)] == [False, False, True]
    long = lifetime._Walk(began=100.0, ended=110.0)
    assert [long.is_due(now) for now in (229.0, 230.0)] == [False, True]
    short = lifetime._Walk(began=100.0, ended=100.001)
    assert [short.is_due(now) for now in (100.5, 101.1)] == [False, True]

    policy, since = SandboxPolicy(str(root)), time.monotonic()
    assert lifetime.new_state(policy, (), since) is None
    state_in(root / "state")
    assert lifetime.new_state(policy, (), since) is None  # another sandbox has just walked it
    monkeypatch.setattr(lifetime, "WALK_PAUSE_S", 0.0)
    monkeypatch.setattr(lifetime, "WALK_PAUSE_FACTOR", 0)
    assert lifetime.new_state(policy, (), since) == str(root / "state")
    assert lifetime.new_state(policy, (str(root / "state"),), since) is None
