"""A call that an MCP server carries out as a task: it is found again after our own crash, and never made twice.

The server is a process of the official library, which keeps its tasks in files. So is the gateway that is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clutch import Clutch, Policy, ToolSettings
from clutch.core.messages import Answer, Call, Results
from clutch.errors import StoreLost
from clutch.ports import ModelRequest, RemoteTask, ToolFailed
from clutch.testing.models import ScriptedModel
from clutch.tools.mcp import McpServer, connection
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST
from tests.tools.mcp_servers.approving import opened
from tests.tools.mcp_servers.running import CONTEXT, HERE, eventually

pytestmark = pytest.mark.anyio

FILE = str(HERE / "tasked.py")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a server that outlives the gateways of a test; its marks are in `tmp_path`."""
    command, env = [sys.executable, FILE, "http"], {"MARKS": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("wish", "pause_s"),
    [
        (None, 1.0),
        (True, 1.0),
        (200, 0.2),
        (-1, 0.05),
        (10**400, 30.0),
        (float("inf"), 30.0),
        (float("nan"), 30.0),
    ],
)
def test_any_wish_of_a_server_for_a_pause_is_bounded(wish: object, pause_s: float) -> None:
    assert connection._state({"taskId": "1", "pollIntervalMs": wish}).poll_s == pause_s


def marks(folder: Path, kind: str) -> list[str]:
    return sorted(file.stem for file in folder.glob(f"*.{kind}"))


def brews(request: ModelRequest) -> Answer | str:
    last = request.transcript[-1]
    if isinstance(last, Results):
        return last.results[0].text
    return Answer("", (Call("far__brew", {}),), model="scripted")


def gateway(state: str, url: str, policy: Policy = FAST) -> Clutch:
    settings = ToolSettings(mcp_servers=(McpServer(name="far", url=url),))
    workspace = Path(state).parent
    return Clutch(
        state=state,
        models=ScriptedModel(brews),
        policy=policy,
        settings=settings,
        workspace=workspace,
        port=0,
    )


#: Prints the id of a task that has called the tool, then works until it is killed.
VICTIM = """
import asyncio, sys
from tests.tools.test_mcp_remote_tasks import gateway
async def main():
    async with gateway(*sys.argv[1:]) as c:
        print((await c.spawn("brew")).id, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def begun(state: str, url: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", VICTIM, state, url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


async def test_call_is_resumed_after_kill_9_by_its_task(tmp_path: Path, url: str) -> None:
    state = str(tmp_path / "state")
    with begun(state, url) as victim:
        assert victim.stdout is not None
        task = (await asyncio.to_thread(victim.stdout.readline)).strip()
        # The server is asked for the task only after its id is in the journal.
        await eventually(lambda: marks(tmp_path, "asked"))
        victim.send_signal(signal.SIGKILL)
        victim.wait(PATIENCE_S)
    (tmp_path / "done").touch()
    async with gateway(state, url) as c, asyncio.timeout(PATIENCE_S):
        result = await (await c.get(task)).result()
    (remote,) = marks(tmp_path, "began")
    assert (result.text or "").endswith(f"brewed as {remote}")
    assert marks(tmp_path, "cancelled") == []


async def test_orderly_stop_keeps_the_task_and_a_kill_cancels_it(tmp_path: Path, url: str) -> None:
    state = str(tmp_path / "state")
    brisk = replace(FAST, work=replace(FAST.work, stop_s=0.1))
    async with gateway(state, url, brisk) as c:
        task = (await c.spawn("brew")).id
        await eventually(lambda: marks(tmp_path, "asked"))
    assert marks(tmp_path, "cancelled") == []
    async with gateway(state, url, brisk) as c:
        found = await c.get(task)
        (tmp_path / f"{marks(tmp_path, 'asked')[0]}.asked").unlink()
        await eventually(lambda: marks(tmp_path, "asked"))
        await found.kill()
        await eventually(lambda: marks(tmp_path, "cancelled"))
    assert marks(tmp_path, "cancelled") == marks(tmp_path, "began")
    assert len(marks(tmp_path, "began")) == 1


async def is_not_kept(task: str) -> bool:
    del task
    return False


async def test_cancelled_call_leaves_its_task_to_the_try_that_waits_for_it(tmp_path: Path, url: str) -> None:
    """A worker that lost the session cancels its turn, while the new owner waits for the same task."""
    kept: list[str] = []

    async def is_kept(task: str) -> bool:
        kept.append(task)
        return len(kept) == 1

    async def refuse(task: str) -> None:
        raise StoreLost(f"{task} is not journaled")

    async def store(task: str) -> None:
        del task

    tools = await opened([McpServer(name="far", url=url)], tmp_path / "state")
    try:
        await tools.ready()
        for _ in range(2):
            context = replace(CONTEXT, remote=RemoteTask(store, is_kept))
            call = asyncio.create_task(tools.run("far__brew", {}, context))
            await eventually(lambda: len(marks(tmp_path, "asked")) > len(kept))
            call.cancel()
            await eventually(lambda: len(marks(tmp_path, "asked")) == len(kept))
        await eventually(lambda: marks(tmp_path, "cancelled") == [kept[1]])
        with pytest.raises(StoreLost):
            await tools.run("far__brew", {}, replace(CONTEXT, remote=RemoteTask(refuse, is_kept)))
        await eventually(lambda: len(kept) == 3 and marks(tmp_path, "cancelled") == sorted(kept[1:]))
    finally:
        await tools.close()


async def test_task_outlives_a_server_process_that_is_started_again(tmp_path: Path) -> None:
    """And what is wrong with a task of the server is told in words."""
    server = McpServer(
        name="far", command=sys.executable, args=(FILE, "stdio"), env={"MARKS": str(tmp_path)}, sandbox=False,
        connect_timeout_s=PATIENCE_S,
    )  # fmt: skip
    journal: list[str] = []

    async def store(task: str) -> None:
        journal.append(task)
        assert not (tmp_path / f"{task}.asked").exists(), "the id is stored before the server is asked"

    context = replace(CONTEXT, remote=RemoteTask(store, is_not_kept))
    tools = await opened([server], tmp_path / "state")
    try:
        await tools.ready()
        call = asyncio.create_task(tools.run("far__brew", {}, context))
        await eventually(lambda: marks(tmp_path, "asked"))
        life = tools._servers["far"]._life
        assert life is not None
        life.wire.ended.set()  # as if its process had ended
        (tmp_path / "done").touch()
        assert (await call).endswith(f"brewed as {journal[0]}")

        known = replace(CONTEXT, remote=RemoteTask(store, is_not_kept, "forgotten"))
        with pytest.raises(ToolFailed, match="there is no such task"):
            await tools.run("far__brew", {}, known)
        (tmp_path / f"{journal[0]}.cancelled").touch()
        ended = replace(CONTEXT, remote=RemoteTask(store, is_not_kept, journal[0]))
        with pytest.raises(ToolFailed, match="ended the task of the call: cancelled"):
            await tools.run("far__brew", {}, ended)
        assert len(journal) == len(marks(tmp_path, "began")) == 1
    finally:
        await tools.close()
