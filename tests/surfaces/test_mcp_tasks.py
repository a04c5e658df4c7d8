"""The Tasks extension of MCP, driven by the official client over both transports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ElicitRequestParams,
    ElicitResult,
    Implementation,
)

from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served, write_token
from tests.surfaces.task_client import EXTENSION, Tasks, cancel, get, start, until, update

Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("mcp") / "state", policy=FAST) as here:
        yield here


async def _no_form(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """Declares the capability; the forms of tasks are answered with `tasks/update`."""
    del context, params
    return ElicitResult(action="cancel")


@asynccontextmanager
async def over_http(
    home: Path, name: str, *, token: str | None = None, **options: Any
) -> AsyncIterator[Client]:
    url = json.loads((home / "gateway.json").read_text())["url"]
    token = token or (home / "token").read_text().strip()
    async with AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE_S) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, **_declared(name, options)) as client:
            yield client


@asynccontextmanager
async def over_stdio(home: Path, name: str, **options: Any) -> AsyncIterator[Client]:
    args = ["-m", "clutch", "mcp", "--state", str(home)]
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    parameters = StdioServerParameters(command=sys.executable, args=args, env=env)
    async with Client(parameters, **_declared(name, options)) as client:
        yield client


def _declared(name: str, options: dict[str, Any]) -> dict[str, Any]:
    who = Implementation(name=name, version="1")
    return {"client_info": who, "extensions": [Tasks()], "elicitation_callback": _no_form, **options}


async def spawn_answers_with_a_task_that_ends_with_its_result(client: Client) -> None:
    assert client.server_capabilities.extensions == {EXTENSION: {}}
    task = await start(client, "spawn", task="say hello", label="greeter")
    assert (task["status"], task["ttlMs"]) in {("working", None), ("completed", None)}
    ended = await until(client.session, task["taskId"], "completed")
    assert ended["createdAt"] == task["createdAt"] <= ended["lastUpdatedAt"]
    assert not ended["result"].get("isError")
    body = ended["result"]["structuredContent"]
    assert (body["status"], body["task"]["taskId"]) == ("done", task["taskId"])
    # The client checks the result of a task against the schema of the tool that it has called.
    await client.list_tools()
    done = await client.call_tool("spawn", {"task": "say it again"})
    assert "say it again" in done.structured_content["result"]["text"]
    again = await client.call_tool("wait", {"target": task["taskId"]})
    assert again.structured_content == body
    dry = await client.call_tool("spawn", {"task": "say nothing", "dryRun": True})
    assert dry.structured_content["taskId"] is None


async def what_a_task_asks_is_answered_by_an_update(client: Client) -> None:
    task = (await start(client, "spawn", task="ask me"))["taskId"]
    asking = await until(client.session, task, "input_required")
    ((key, request),) = asking["inputRequests"].items()
    assert request["method"] == "elicitation/create"
    assert "Which one?" in request["params"]["message"]
    assert request["params"]["requestedSchema"]["properties"]["answer"]["enum"] == ["a", "b"]
    waiting = await start(client, "wait", target=task)
    assert (waiting["taskId"], waiting["status"]) == (task, "working")

    with pytest.raises(MCPError, match="must be one of: a, b") as refused:
        await update(client.session, task, {key: _accept(answer="c")})
    assert refused.value.code == INVALID_PARAMS
    await update(client.session, task, {"another": {"action": "accept"}, key: {"action": "cancel"}})
    assert (await get(client.session, task))["inputRequests"].keys() == {key}
    await update(client.session, task, {key: _accept(answer="b")})
    await update(client.session, task, {key: _accept(answer="a")})  # too late: ignored
    assert (await until(client.session, task, "completed"))["result"]["structuredContent"]["result"]


def _accept(**content: str) -> dict[str, Any]:
    return {"action": "accept", "content": content}


async def a_plan_is_sent_back_and_then_approved(client: Client) -> None:
    task = (await start(client, "spawn", task="a plan", planMode=True))["taskId"]
    first = await until(client.session, task, "input_required")
    ((key, request),) = first["inputRequests"].items()
    decision = request["params"]["requestedSchema"]["properties"]["decision"]
    assert decision["enum"] == ["approve", "reject"]
    await update(client.session, task, {key: _accept(decision="reject", reason="shorter")})
    while (again := (await until(client.session, task, "input_required"))["inputRequests"]).keys() == {key}:
        pass
    (other,) = again
    await update(client.session, task, {other: _accept(decision="approve")})
    assert (await until(client.session, task, "completed"))["result"]["structuredContent"]


async def a_cancelled_task_is_killed_and_one_that_ended_stays(client: Client) -> None:
    task = (await start(client, "spawn", task="slow one"))["taskId"]
    await cancel(client.session, task)
    assert (await until(client.session, task, "cancelled"))["statusMessage"].startswith("killed")
    await cancel(client.session, task)
    ended = (await start(client, "spawn", task="quick one"))["taskId"]
    await until(client.session, ended, "completed")
    await cancel(client.session, ended)
    assert (await get(client.session, ended))["status"] == "completed"


@pytest.mark.parametrize("connect", [over_http, over_stdio])
@pytest.mark.anyio
async def test_the_official_client_drives_tasks(db: Served, connect: Connect) -> None:
    async with connect(db.home, connect.__name__) as client:
        await spawn_answers_with_a_task_that_ends_with_its_result(client)
        await what_a_task_asks_is_answered_by_an_update(client)
        await a_plan_is_sent_back_and_then_approved(client)
        await a_cancelled_task_is_killed_and_one_that_ended_stays(client)


@pytest.mark.anyio
async def test_a_client_reads_and_changes_only_its_own_tasks(db: Served) -> None:
    async with over_http(db.home, "owner") as owner, over_http(db.home, "other") as other:
        task = (await start(owner, "spawn", task="ask me", label="secret"))["taskId"]
        ((key, _),) = (await until(owner.session, task, "input_required"))["inputRequests"].items()
        for target in (task, "secret", "last", "t_0", ""):
            for ask in (
                get(other.session, target),
                update(other.session, target, {key: _accept(answer="a")}),
                cancel(other.session, target),
            ):
                with pytest.raises(MCPError) as refused:
                    await ask
                assert refused.value.code == INVALID_PARAMS
        with pytest.raises(MCPError):
            await get(owner.session, "secret")  # a label may name another task tomorrow
        assert (await get(owner.session, task))["status"] == "input_required"
        await cancel(owner.session, task)


@pytest.mark.anyio
async def test_without_the_extension_everything_is_as_before(db: Served) -> None:
    async with over_http(db.home, "plain", extensions=()) as client:
        spawned = await client.call_tool("spawn", {"task": "say hello"})
        assert spawned.structured_content["status"] == "accepted"
        task = spawned.structured_content["taskId"]
        for ask in (
            get(client.session, task),
            update(client.session, task, {}),
            cancel(client.session, task),
        ):
            with pytest.raises(MCPError) as refused:
                await ask
            assert refused.value.code == MISSING_REQUIRED_CLIENT_CAPABILITY
            assert refused.value.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    async with over_http(db.home, "plain", mode="legacy") as client:
        waited = await client.call_tool("wait", {"target": task})
        assert waited.structured_content["status"] == "done"
        with pytest.raises(MCPError) as refused:
            await get(client.session, task)
        assert refused.value.code == METHOD_NOT_FOUND


@pytest.mark.anyio
async def test_forms_are_for_clients_that_show_them_and_decisions_need_their_scope(db: Served) -> None:
    write_token(db.home / "token.write", "blind")
    async with over_http(db.home, "blind", token="blind") as client:
        spawned = await client.call_tool("spawn", {"task": "say hello"})
        assert spawned.structured_content["status"] == "accepted", "it is spawned, and may not be read"
    write_token(db.home / "token.read+write", "starts-only")
    async with over_http(db.home, "formless", elicitation_callback=None) as client:
        task = (await start(client, "spawn", task="ask me"))["taskId"]
        while "inbox" not in (shown := await get(client.session, task))["statusMessage"]:
            pass
        assert (shown["status"], "inputRequests" in shown) == ("working", False)
    async with over_http(db.home, "formless", token="starts-only") as client:
        ((key, _),) = (await get(client.session, task))["inputRequests"].items()
        with pytest.raises(MCPError, match="scope"):
            await update(client.session, task, {key: _accept(answer="a")})
        await cancel(client.session, task)


#: Prints its address; the task `slow …` never ends in it, any other at once.
GATEWAY = """
import asyncio, sys
from clutch import Clutch
from tests.surfaces.served import FAST, Slow
async def main():
    models = Slow()
    if sys.argv[2] == "fast":
        models.go.set()
    async with Clutch(state=sys.argv[1], models=models, policy=FAST, port=0) as c:
        print(c.url, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.anyio
async def test_the_same_id_answers_after_a_kill_of_the_gateway(tmp_path: Path) -> None:
    home = tmp_path / "state"

    def gateway(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", GATEWAY, str(home), how]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http")
        return process

    with gateway("slow") as first:
        async with over_http(home, "survivor") as client:
            task = await start(client, "spawn", task="slow and durable")
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE_S)
    with gateway("fast") as second:
        try:
            async with over_http(home, "survivor") as client:
                ended = await until(client.session, task["taskId"], "completed")
                assert ended["createdAt"] == task["createdAt"]
                assert "slow and durable" in ended["result"]["structuredContent"]["result"]["text"]
        finally:
            second.kill()
