"""Servers that hang, die, lie or talk nonsense: a clear error, no lost run, and no harm to the others."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clutch.core.model import Definition
from clutch.errors import InvalidInput, StoreError
from clutch.ports import ToolFailed
from clutch.tools.mcp import McpServer, McpTools
from tests.tools.mcp_servers.approving import MemoryPins, opened
from tests.tools.mcp_servers.running import CONTEXT, eventually, rude

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def ready(state: Path, *servers: McpServer, pins: MemoryPins | None = None) -> AsyncIterator[McpTools]:
    tools = await opened(servers, state, pins)
    await tools.ready()
    try:
        yield tools
    finally:
        await tools.close()


async def failure(tools: McpTools, name: str) -> str:
    with pytest.raises(ToolFailed) as caught:
        await tools.run(name, {}, CONTEXT)
    return str(caught.value)


def named(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "description": name, "inputSchema": {"type": "object"}, **more} for name in names]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def test_hang_at_start_is_told_with_the_remedy_and_others_work(tmp_path: Path) -> None:
    hanging = rude("stuck", "hang", connect_timeout_s=0.5)
    async with ready(tmp_path, hanging, rude("fine", "serve")) as tools:
        assert '"x": 1' in await tools.run("fine__say", {"x": 1}, CONTEXT)
        [problem] = tools.problems()
        assert problem.startswith('MCP server "stuck" did not answer within 0.5 s of its start')
        assert "check mcp.servers.stuck.command, or raise connect_timeout_s" in problem
        assert "did not answer within" in await failure(tools, "stuck__say")


async def test_crash_at_start_shows_exit_code_and_stderr(tmp_path: Path) -> None:
    async with ready(tmp_path, rude("dead", "die")) as tools:
        text = await failure(tools, "dead__say")
    assert text.startswith(
        'MCP server "dead" ended during its start (exit code 1; its stderr ends with: no licence'
    )
    assert "run mcp.servers.dead.command by hand to see why" in text


async def test_missing_program_is_told_by_name_of_the_field(tmp_path: Path) -> None:
    async with ready(tmp_path, McpServer(name="none", command="/no/such/program", sandbox=False)) as tools:
        text = await failure(tools, "none__say")
    assert text.startswith("MCP server \"none\" did not start: command '/no/such/program' is not found")
    assert "set mcp.servers.none.command to the full path of the program" in text


async def test_restarts_wait_longer_and_longer(tmp_path: Path) -> None:
    async with ready(tmp_path, rude("dead", "die")) as tools:
        assert "ended during its start" in await failure(tools, "dead__say")  # the second try follows at once
        assert "It can be tried again in 1 s" in await failure(tools, "dead__say")


async def test_hang_in_a_call_is_cut_and_the_server_is_started_again(tmp_path: Path) -> None:
    deaf = rude("deaf", "deaf", call_timeout_s=0.5, connect_timeout_s=0.7)
    async with ready(tmp_path, deaf) as tools:
        text = await failure(tools, "deaf__say")
        assert (
            'MCP server "deaf" did not answer the call within 0.5 s; whether it took effect is unknown'
            in text
        )
        assert "a person raises mcp.servers.deaf.call_timeout_s" in text
        # It does not answer the question for its tools either, so a new process gets the next call.
        assert "did not answer the call" in await failure(tools, "deaf__say")
        assert {spec.name for spec in tools.specs()} == {"deaf__say"}


async def test_noise_on_stdout_is_ignored(tmp_path: Path) -> None:
    async with ready(tmp_path, rude("noisy", "noisy")) as tools:
        assert tools.problems() == []
        assert '{"x": 1}' in await tools.run("noisy__say", {"x": 1}, CONTEXT)


async def test_old_server_that_ignores_new_questions_is_understood(tmp_path: Path) -> None:
    async with ready(tmp_path, rude("old", "silent", connect_timeout_s=6.0)) as tools:
        assert tools.problems() == []
        assert '{"x": 1}' in await tools.run("old__say", {"x": 1}, CONTEXT)


async def test_secret_in_the_last_words_is_not_shown(tmp_path: Path) -> None:
    async with ready(tmp_path, rude("leaky", "leaky", env={"SECRET": "hunter2hunter2"})) as tools:
        text = await failure(tools, "leaky__say")
    assert "cannot log in with ***" in text
    assert "hunter2" not in text


async def test_nothing_of_the_process_group_outlives_the_connection(tmp_path: Path) -> None:
    async with ready(tmp_path, rude("family", "family", env={"CHILD": str(tmp_path / "child")})) as tools:
        assert tools.problems() == []
        child = int((tmp_path / "child").read_text())
        assert is_alive(child)
    await eventually(lambda: not is_alive(child))


@pytest.mark.parametrize("schema", ["text", ["list"], {"type": "array"}, None])
async def test_schema_that_is_no_object_is_refused_by_name(tmp_path: Path, schema: object) -> None:
    bad = [{"name": "odd", "description": "", "inputSchema": schema}]
    async with ready(tmp_path, rude("odd", "serve", tools=bad)) as tools:
        text = await failure(tools, "odd__odd")
        assert tools.specs() == []
        assert tools.problems()
    assert 'MCP server "odd"' in text
    assert "inputSchema" in text or "input schema is not an object" in text


async def test_bad_tool_does_not_take_the_good_ones_with_it(tmp_path: Path) -> None:
    bad = {"name": "bad", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "#/gone"}}}}
    async with ready(tmp_path, rude("mixed", "serve", tools=[*named("good"), bad])) as tools:
        assert [spec.name for spec in tools.specs()] == ["mixed__good"]
        assert "is refused: its input schema refers to '#/gone'" in await failure(tools, "mixed__bad")
        assert len(tools.problems()) == 1


async def test_two_tools_of_one_name_are_both_refused_with_the_remedy(tmp_path: Path) -> None:
    async with ready(tmp_path, rude("twins", "serve", tools=named("a.b", "a_b", "c"))) as tools:
        assert [spec.name for spec in tools.specs()] == ["twins__c"]
        text = await failure(tools, "twins__a_b")
    assert "would both be named twins__a_b, so neither is offered" in text
    assert "mcp.servers.twins.allow" in text


async def test_only_allowed_tools_are_offered_and_called(tmp_path: Path) -> None:
    server = rude("some", "serve", tools=named("get_a", "get_b", "drop"), allow=("get_*",))
    async with ready(tmp_path, server) as tools:
        assert [spec.name for spec in tools.specs()] == ["some__get_a", "some__get_b"]
        assert "there is no tool named 'some__drop'" in await failure(tools, "some__drop")


async def test_approvals_outlive_the_process_and_show_what_changed_meanwhile(tmp_path: Path) -> None:
    pins = MemoryPins()
    async with ready(tmp_path, rude("web", "serve", tools=named("a", "b", "c")), pins=pins):
        pass
    changed = [*named("a"), *named("b", description="evil"), *named("new")]
    async with ready(tmp_path, rude("web", "serve", tools=changed), pins=pins) as tools:
        # Known tools are there before the server runs, in the words that were approved.
        assert [spec.description for spec in tools.specs()] == [f"(MCP server web) {name}" for name in "abc"]
        assert "{}" in await tools.run("web__a", {}, CONTEXT)
        assert [spec.name for spec in tools.specs()] == ["web__a"]
        assert "its description changed" in await failure(tools, "web__b")
        assert "is not offered by the server" in await failure(tools, "web__c")
        assert [(offer.tool, offer.before is None) for offer in pins.offers["web"]] == [
            ("b", False),
            ("new", True),
        ]
        pins.approve("web")
        await tools.ready()
        assert [spec.name for spec in tools.specs()] == ["web__a", "web__b", "web__new"]


async def test_first_call_of_a_changed_tool_is_refused_although_it_was_listed(tmp_path: Path) -> None:
    pins = MemoryPins()
    async with ready(tmp_path, rude("web", "serve", tools=named("a")), pins=pins):
        pass
    titled = rude("web", "serve", tools=named("a", annotations={"title": "A"}))
    async with ready(tmp_path, titled, pins=pins) as tools:
        assert "its annotations changed" in await failure(tools, "web__a")


class BrokenPins(MemoryPins):
    async def see(self, server: str, tools: Mapping[str, Definition]) -> None:
        raise StoreError("the disk is full")


async def test_store_that_takes_no_approvals_offers_no_tools(tmp_path: Path) -> None:
    async with ready(tmp_path, rude("web", "serve"), pins=BrokenPins()) as tools:
        assert tools.specs() == []
        [problem] = tools.problems()
        assert "the disk is full" in problem


def boxed(mode: str, **more: Any) -> McpServer:
    """The rude server in the sandbox, where it sees its own program and Python and nothing else of ours."""
    plain = rude("boxed", mode, **more)
    visible = (sys.prefix, sys.base_prefix, str(Path(plain.args[0]).parent))
    return replace(plain, sandbox=True, visible=visible, connect_timeout_s=30.0)


async def test_sandboxed_server_answers_and_gets_its_secrets_off_the_command_line(tmp_path: Path) -> None:
    async with ready(tmp_path, boxed("reveal", env={"SECRET": "it's \n secret"})) as tools:
        assert tools.problems() == []
        seen = json.loads((await tools.run("boxed__say", {}, CONTEXT)).partition("\n")[2])
        assert boxes_with(str(tmp_path))
        assert not boxes_with("it's \n secret")
    assert seen["SECRET"] == "it's \n secret"
    assert seen["HOME"] != os.environ["HOME"]


async def test_sandboxed_server_reaches_neither_our_files_nor_the_network(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("x")
    listener = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        async with ready(tmp_path, boxed("explore")) as tools:
            args = {"path": str(tmp_path / "private"), "port": port}
            seen = json.loads((await tools.run("boxed__say", args, CONTEXT)).partition("\n")[2])
        assert seen == {"path": False, "port": False}
        async with ready(tmp_path, replace(boxed("explore"), sandbox=False, visible=())) as tools:
            seen = json.loads((await tools.run("boxed__say", args, CONTEXT)).partition("\n")[2])
        assert seen == {"path": True, "port": True}
    finally:
        listener.close()


async def test_sandboxed_server_is_gone_after_close(tmp_path: Path) -> None:
    settings = boxed("family", env={"CHILD": str(tmp_path / "mcp" / "boxed" / "child")})
    async with ready(tmp_path, settings) as tools:
        assert tools.problems() == []
        assert "{}" in await tools.run("boxed__say", {}, CONTEXT)
        assert boxes_with(str(tmp_path))
    await eventually(lambda: not boxes_with(str(tmp_path)))


def boxes_with(word: str) -> list[str]:
    """Processes of which the command line names this test's own folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if word.encode() in place.read_bytes():
                found.append(place.parent.name)
    return found


async def test_folder_that_is_the_system_is_no_place_for_a_server(tmp_path: Path) -> None:
    async with ready(tmp_path, McpServer(name="boxed", command=sys.executable, cwd="/")) as tools:
        assert "cannot run in a sandbox: workspace: / is part of the system" in await failure(
            tools, "boxed__say"
        )


async def test_two_servers_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is there twice; rename one"):
        McpTools([rude("web", "serve"), rude("web", "hang")], tmp_path)


async def test_call_that_waits_for_a_start_fails_when_everything_is_closed(tmp_path: Path) -> None:
    tools = await opened([rude("stuck", "hang", connect_timeout_s=30.0)], tmp_path)
    call = asyncio.create_task(tools.run("stuck__say", {}, CONTEXT))
    await asyncio.sleep(0.2)
    await tools.close()
    with pytest.raises(ToolFailed, match="is closed: Clutch is stopping"):
        await call


async def test_cancelling_one_who_waits_for_a_start_leaves_the_others_waiting(tmp_path: Path) -> None:
    tools = await opened([rude("web", "serve")], tmp_path)
    first, second = (asyncio.create_task(tools.run("web__say", {}, CONTEXT)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert "{}" in await second
    await tools.close()


def test_nobody_pays_for_the_library_before_a_server_is_used(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from clutch.tools.mcp import McpServer, McpTools;"
        "tools = McpTools([McpServer(name='a', command='x')], pathlib.Path(sys.argv[1])); tools.specs();"
        "sys.exit(bool({'mcp', 'mcp_types', 'httpx2', 'anyio', 'jsonschema'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, env=dict(os.environ))
