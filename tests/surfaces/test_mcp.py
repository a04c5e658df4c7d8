"""MCP clients: the official one drives a gateway over both transports, sees its own tree, and may die."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from httpx2 import AsyncClient
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INVALID_PARAMS, CallToolResult, Implementation, TextContent, TextResourceContents

from clutch.surfaces.http_client import task_path
from clutch.surfaces.mcp import TOOLS
from clutch.surfaces.mcp_resources import PAGE_CHARS_MAX, _bounded
from clutch.surfaces.mcp_server import session_key
from tests.surfaces.served import FAST, Served, served, write_token

NAMES = {
    "spawn", "wait", "result", "list", "tree", "send", "steer", "kill", "pause", "resume", "approve", "reject",
    "answer", "inbox", "why",
}  # fmt: skip
READS = {"list", "tree", "result", "why", "inbox", "wait"}


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("mcp") / "state", policy=FAST) as here:
        yield here


@asynccontextmanager
async def over_http(
    db: Served,
    name: str = "tester",
    *,
    token: str | None = None,
    mode: str = "auto",
    session: str | None = None,
) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token or db.token}"}
    if session is not None:
        headers["clutch-session"] = session
    async with AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{db.clutch.url}/mcp", http_client=http)
        who = Implementation(name=name, version="1")
        async with Client(transport, client_info=who, mode=mode) as client:
            yield client


@asynccontextmanager
async def over_stdio(db: Served, *options: str) -> AsyncIterator[Client]:
    command = [*_COMMAND, "--state", str(db.home), *options]
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=env)
    async with Client(parameters) as client:
        yield client


_COMMAND = (sys.executable, "-m", "clutch", "mcp")
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "mortal", "version": "1"},
}


def _line(number: int, method: str, params: Any) -> bytes:
    said = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(said).encode() + b"\n"


def body(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, result.content
    return dict(result.structured_content)


def error(result: CallToolResult) -> dict[str, Any]:
    """Text only: structured content would be checked against the schema of the answer."""
    assert result.is_error
    assert result.structured_content is None
    (content,) = result.content
    assert isinstance(content, TextContent)
    return dict(json.loads(content.text)["error"])


@pytest.mark.anyio
async def test_every_tool_says_what_it_takes_and_answers(db: Served) -> None:
    async with over_http(db) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == NAMES == set(TOOLS)
    for name, tool in tools.items():
        assert tool.annotations is not None
        assert tool.description
        assert tool.output_schema is not None
        assert tool.output_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert tool.annotations.read_only_hint is (name in READS)
        assert tool.annotations.destructive_hint is (name == "kill")
        assert ("target" in tool.input_schema["required"]) is (
            name not in {"spawn", "list", "inbox", "answer"}
        )
        jsonschema.Draft202012Validator.check_schema(tool.output_schema)
    assert "requester" not in tools["spawn"].input_schema["properties"]
    assert tools["wait"].input_schema["properties"]["timeoutSeconds"]["maximum"] == 50


async def the_whole_way(client: Client) -> None:
    """The client checks each answer against the schema of its tool."""
    accepted = body(await client.call_tool("spawn", {"task": "say hello", "label": "greeter"}))
    task = accepted["taskId"]
    assert accepted["status"] == "accepted"
    assert task in accepted["note"]
    heard: list[tuple[float, str | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    waited = body(await client.call_tool("wait", {"target": task}, progress_callback=progress))
    assert waited["status"] == "done"
    assert "say hello" in waited["result"]["text"]
    assert heard
    assert heard[0][1] is not None
    assert "tok" not in heard[0][1], "this model does not say what it used"
    assert body(await client.call_tool("result", {"target": "greeter"})) == waited["result"]
    assert body(await client.call_tool("tree", {"target": task}))["root"]["task"]["taskId"] == task
    assert body(await client.call_tool("why", {"target": task}))["timeline"]
    listed = body(await client.call_tool("list", {"outcome": "ok", "limit": 10}))
    assert task in [one["taskId"] for one in listed["tasks"]]

    slow = body(await client.call_tool("spawn", {"task": "slow one"}))["taskId"]
    pending = body(await client.call_tool("wait", {"target": slow, "timeoutSeconds": 0}))
    assert pending["status"] == "pending"
    assert slow in pending["next"]
    assert (
        body(await client.call_tool("steer", {"target": slow, "text": "slow still"}))["status"] == "accepted"
    )
    assert body(await client.call_tool("pause", {"target": slow}))["changed"] == [slow]
    assert body(await client.call_tool("resume", {"target": slow}))["changed"] == [slow]
    assert body(await client.call_tool("kill", {"target": slow}))["stopped"] == [slow]
    ended = body(await client.call_tool("wait", {"target": slow}))
    assert ended["task"]["outcome"] == "killed"


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_spawn_wait_result_kill_over_http(db: Served, mode: str) -> None:
    async with over_http(db, mode, mode=mode) as client:
        await the_whole_way(client)


@pytest.mark.anyio
async def test_a_question_is_found_in_the_inbox_and_answered(db: Served) -> None:
    async with over_http(db, "curious") as client:
        task = body(await client.call_tool("spawn", {"task": "ask me"}))["taskId"]
        waited = body(await client.call_tool("wait", {"target": task}))
        assert waited["status"] == "needs_you"
        assert "inbox" in waited["next"]
        (item,) = body(await client.call_tool("inbox", {}))["items"]
        answer = {"id": item["id"], "decision": "answer", "text": "b", "hash": item["hash"]}
        assert body(await client.call_tool("answer", answer))["taskId"] == task
        assert body(await client.call_tool("wait", {"target": task}))["status"] == "done"


@pytest.mark.anyio
async def test_a_plan_is_decided_on_by_its_hash(db: Served) -> None:
    async with over_http(db, "planner") as client:
        task = body(await client.call_tool("spawn", {"task": "a plan", "planMode": True}))["taskId"]
        waited = body(await client.call_tool("wait", {"target": task}))
        assert waited["status"] == "needs_you"
        wrong = await client.call_tool("approve", {"target": task, "planHash": "0" * 64})
        assert error(wrong)["code"] == "plan_changed"
        decision = {"target": task, "planHash": waited["task"]["plan"]["hash"]}
        back = body(await client.call_tool("reject", {**decision, "reason": "shorter"}))
        assert back["status"] == "revising"
        again = body(await client.call_tool("wait", {"target": task}))
        decision["planHash"] = again["task"]["plan"]["hash"]
        assert body(await client.call_tool("approve", decision))["status"] == "approved"
        assert body(await client.call_tool("wait", {"target": task}))["task"]["outcome"] == "ok"


@pytest.mark.anyio
async def test_a_client_sees_and_touches_its_own_tree_only(db: Served) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(over_http(db, "One"))
        other = await stack.enter_async_context(over_http(db, "Other"))
        task = body(await one.call_tool("spawn", {"task": "slow secret", "label": "secret-work"}))["taskId"]
        asked = body(await one.call_tool("spawn", {"task": "ask me", "label": "asks"}))["taskId"]
        await one.call_tool("wait", {"target": asked})
        mine = body(await one.call_tool("inbox", {}))["items"]
        assert [item["taskId"] for item in mine] == [asked]

        assert body(await other.call_tool("list", {}))["tasks"] == []
        assert body(await other.call_tool("inbox", {}))["items"] == []
        for name, more in {
            "wait": {}, "result": {}, "tree": {}, "why": {}, "kill": {}, "pause": {}, "resume": {},
            "steer": {"text": "no"}, "send": {"text": "no"}, "approve": {"planHash": "x"},
            "reject": {"planHash": "x", "reason": "no"},
        }.items():  # fmt: skip
            for target in (task, "secret", "agent:main:chat:mcp-one"):
                said = error(await other.call_tool(name, {"target": target, **more}))
                assert (said["code"], said.get("candidates")) == ("not_found", None), (name, said)
        answer = {"id": mine[0]["id"], "decision": "answer", "text": "a", "hash": mine[0]["hash"]}
        assert error(await other.call_tool("answer", answer))["code"] == "forbidden"
        assert (
            error(await other.call_tool("list", {"root": "agent:main:chat:mcp-one"}))["code"] == "not_found"
        )
        stolen = await other.call_tool("spawn", {"task": "x", "requester": "agent:main:chat:mcp-one"})
        assert error(stolen)["code"] == "forbidden"
        await one.call_tool("kill", {"target": task})
        await one.call_tool("kill", {"target": asked})


@pytest.mark.anyio
async def test_clients_without_a_name_do_not_share_a_session(db: Served) -> None:
    """Nor do those whose names have no letter that a session key has; these find theirs again."""
    task = ""
    for names in (("", ""), (" ", " "), ("助手", "客户")):
        async with AsyncExitStack() as stack:
            one, other = [
                await stack.enter_async_context(over_http(db, name, mode="legacy")) for name in names
            ]
            task = body(await one.call_tool("spawn", {"task": "mine"}))["taskId"]
            assert body(await one.call_tool("wait", {"target": task}))["status"] == "done"
            assert error(await other.call_tool("wait", {"target": task}))["code"] == "not_found"
    async with over_http(db, "助手") as again:
        assert body(await again.call_tool("wait", {"target": task}))["status"] == "done"


@pytest.mark.anyio
async def test_a_client_without_name_and_connection_is_refused_with_what_to_do(db: Served) -> None:
    async with over_http(db, "") as client:
        said = error(await client.call_tool("spawn", {"task": "whose?"}))
    assert (said["code"], said["field"]) == ("invalid_input", "clientInfo.name")
    assert "Clutch-Session" in said["message"]
    async with over_http(db, "", session="agent:main:chat:mcp-named") as client:
        assert body(await client.call_tool("spawn", {"task": "theirs"}))["status"] == "accepted"


@pytest.mark.anyio
async def test_failures_are_the_error_object_of_every_surface(db: Served) -> None:
    async with over_http(db) as client:
        assert error(await client.call_tool("kill", {"target": "nobody-like-that"}))["code"] == "not_found"
        blank = error(await client.call_tool("spawn", {"task": " "}))
        assert (blank["code"], blank["field"]) == ("invalid_input", "task")
        unknown = error(await client.call_tool("spawn", {"task": "x", "colour": "red"}))
        assert (unknown["code"], unknown["field"]) == ("invalid_input", "colour")
        late = error(await client.call_tool("wait", {"target": "last", "timeoutSeconds": 51}))
        assert (late["code"], late["field"]) == ("invalid_input", "timeoutSeconds")
        missing = error(await client.call_tool("steer", {"target": "last"}))
        assert (missing["code"], missing["field"]) == ("invalid_input", "text")
        nobody = error(await client.call_tool("kill", {}))
        assert (nobody["code"], nobody["field"]) == ("invalid_input", "target")
        assert error(await client.call_tool("dance", {}))["code"] == "invalid_input"


@pytest.mark.anyio
async def test_a_token_does_over_mcp_what_its_scopes_say(db: Served) -> None:
    write_token(db.home / "token.read", "only-look")
    async with over_http(db, "writer") as client:
        task = body(await client.call_tool("spawn", {"task": "hello"}))["taskId"]
    session = session_key("main", "writer")
    async with over_http(db, token="only-look", session=session) as reader:
        assert body(await reader.call_tool("wait", {"target": task}))["status"] == "done"
        for name, more in {"kill": {"target": task}, "spawn": {"task": "x"}}.items():
            said = error(await reader.call_tool(name, more))
            assert (said["code"], said["rule"]) == ("forbidden", "scope")
    async with over_http(db, "newcomer", token="only-look") as reader:
        assert error(await reader.call_tool("list", {}))["code"] == "not_found"


@pytest.mark.anyio
async def test_results_and_transcripts_are_resources(db: Served) -> None:
    async with over_http(db, "reader") as client, over_http(db, "another") as other:
        task = body(await client.call_tool("spawn", {"task": "say hello", "label": "greets"}))["taskId"]
        await client.call_tool("wait", {"target": task})
        slow = body(await client.call_tool("spawn", {"task": "slow one"}))["taskId"]
        names = {one.name: one for one in (await client.list_resources()).resources}
        assert set(names) == {f"{task}/result", f"{task}/transcript", f"{slow}/transcript"}
        assert [one.name for one in (await client.list_resource_templates()).resource_templates] == [
            "result",
            "transcript",
        ]
        assert (await other.list_resources()).resources == []

        said = await shown(client, f"{names[f'{task}/result'].uri}?target={slow}")  # the path says which task
        assert said == body(await client.call_tool("result", {"target": task}))
        page = await shown(client, names[f"{task}/transcript"].uri)
        assert "say hello" in json.dumps(page["messages"][0])
        last = page["messages"][-1]["seq"]
        rest = await shown(client, f"clutch://tasks/{task}/transcript?after={last - 1}")
        assert [message["seq"] for message in rest["messages"]] == [last]
        for uri in (
            f"clutch://tasks/{slow}/result",
            "clutch://tasks/x",
            "clutch://tasks/x/y",
            "file:///etc/passwd",
        ):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            assert (refused.value.code, refused.value.data["uri"]) == (INVALID_PARAMS, uri)
        with pytest.raises(MCPError) as refused:
            await other.read_resource(f"clutch://tasks/{task}/result")
        assert refused.value.code == INVALID_PARAMS
        await client.call_tool("kill", {"target": slow})


async def shown(client: Client, uri: str) -> Any:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    return json.loads(content.text)


def test_a_page_of_a_transcript_has_a_bound() -> None:
    messages = [
        {"seq": seq, "body": "x" * length} for seq, length in enumerate((60_000, 10, 60_000, 60_000, 9))
    ]
    page = _bounded({"messages": messages, "next": 7})
    assert len(json.dumps(page)) < PAGE_CHARS_MAX
    assert [one["seq"] for one in page["messages"]] == [0, 1, 2, 3, 4][: len(page["messages"])]
    assert page["messages"][0]["truncated"]
    assert page["next"] == (7 if len(page["messages"]) == 5 else page["messages"][-1]["seq"])
    many = [{"seq": seq, "body": "x" * 30_000} for seq in range(9)]
    assert _bounded({"messages": many, "next": None})["next"] == 3


def test_strangers_do_not_reach_the_protocol(db: Served) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert db.post("/mcp", asked, authorization=None).status == 401
    assert db.post("/mcp", asked, host="elsewhere.example").status == 421
    assert db.post("/mcp", asked, origin="http://elsewhere.example").status == 403


def test_who_speaks_from_a_session_has_the_tools_and_nothing_else(db: Served) -> None:
    session = session_key("main", "narrow")
    for path in ("/v1/usage", "/v1/sessions", "/v1/events", "/v1/health", "/v1/tasks/last"):
        said = db.raw("GET", path, clutch_session=session)
        assert (said.status, said.body["error"]["rule"]) == (403, "session")
    assert db.raw("GET", "/v1/tasks", clutch_session="agent:main:subagent:x").status == 400


@pytest.mark.anyio
async def test_the_task_of_a_client_that_was_killed_is_finished_when_it_comes_back(db: Served) -> None:
    """kill -9 in the middle of a wait; then the official client over stdio, under the same name."""
    command = [*_COMMAND, "--state", str(db.home), "--session", "mortal"]
    spawn = {"name": "spawn", "arguments": {"task": "slow and durable", "label": "durable"}}
    wait = {"name": "wait", "arguments": {"target": "durable"}}
    async with await anyio.open_process(command, stderr=None) as process:
        lines = BufferedByteReceiveStream(process.stdout)  # type: ignore[arg-type]
        for said in (_line(0, "initialize", HELLO), _line(1, "tools/call", spawn)):
            await process.stdin.send(said)  # type: ignore[union-attr]
        await lines.receive_until(b"\n", 1_000_000)
        answer = json.loads(await lines.receive_until(b"\n", 1_000_000))
        await process.stdin.send(_line(2, "tools/call", wait))  # type: ignore[union-attr]
        process.kill()
    task = answer["result"]["structuredContent"]["taskId"]
    assert db.client.get(task_path(task))["outcome"] is None
    async with over_stdio(db, "--session", "mortal") as client:
        await the_whole_way(client)
        db.let_go()
        waited = body(await client.call_tool("wait", {"target": "durable"}))
        assert (waited["status"], waited["task"]["taskId"]) == ("done", task)
        assert "slow and durable" in waited["result"]["text"]
        assert waited["task"]["requesterKey"] == session_key("main", "mortal")


@pytest.mark.anyio
async def test_stdout_has_nothing_but_the_protocol(tmp_path: Path) -> None:
    """Also when there is nothing to serve: words are on stderr."""
    done = await anyio.run_process([*_COMMAND, "--state", str(tmp_path)], check=False)
    assert (done.returncode, done.stdout) == (9, b"")
    assert b"no gateway" in done.stderr
