"""Real processes that have a workspace on `sys.path`, and a child that writes modules there: none of them runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clutch import Clutch
from clutch.surfaces import discovery
from clutch.testing.providers import Providers, Reply, Text, ToolCall, WireRequest, turns

pytestmark = pytest.mark.anyio

PAGE = b"<title>A page</title><p>of the web</p>"
#: Names that are imported late: of the standard library, of a package that is installed, of packages that are not.
PLANTED = (
    "html.py",
    "aiohttp/__init__.py",
    "brotli.py",
    "uvloop.py",
    "urllib/parse.py",
    "clutch/tools/web_fetch.py",
)

PROGRAM = """
import asyncio, sys
sys.path[:] = {path} + sys.path
from clutch import AdapterKind, Clutch, Provider, ToolSettings

async def main():
    state, workspace, url = sys.argv[1:]
    lab = Provider("lab", base_url=url, api_key="k", adapter=AdapterKind.DIRECT, speaks="openai-chat")
    settings = ToolSettings(allow_private=("127.0.0.1",))
    async with Clutch(state=state, workspace=workspace, model="lab:m", providers=[lab], settings=settings) as c:
        await c.say("go")
        print(await c.reply(), flush=True)
        {last}

asyncio.run(main())
"""


class Attack:
    def __init__(self, base: Path, page: str) -> None:
        self.workspace, self.state, self.witness = base / "ws", base / "state", base / "ran"
        self.workspace.mkdir()
        self._page = page

    def behave(self, request: WireRequest) -> Reply:
        """Writes the modules, reads a page, and answers with what `web_fetch` gave."""
        said = turns(request)
        calls = [turn.name for turn in said if turn.role == "call"]
        if not calls:
            source = f"open({str(self.witness)!r}, 'a').write(__name__ + '\\n')\n"
            return Reply([_call("write", path=name, text=source) for name in PLANTED])
        if "web_fetch" not in calls:
            assert all("error" not in turn.text for turn in said if turn.role == "result"), said
            return Reply([_call("web_fetch", url=self._page)])
        return Reply([Text(said[-1].text)])

    def judge(self, said: str) -> None:
        assert (self.workspace / "html.py").exists()
        assert not self.witness.exists(), self.witness.read_text()
        assert "of the web" in said, said


def _call(tool: str, **arguments: str) -> ToolCall:
    return ToolCall(tool, (json.dumps(arguments),))


@asynccontextmanager
async def attacked(base: Path) -> AsyncIterator[tuple[Attack, str]]:
    """The attack and the address of the model that carries it out."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(PAGE)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + PAGE)
        await writer.drain()
        writer.close()

    page = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = page.sockets[0].getsockname()[1]
    attack = Attack(base, f"http://127.0.0.1:{port}/")
    try:
        async with Providers(attack.behave) as server:
            yield attack, server.openai_url
    finally:
        page.close()


async def run(words: list[str], cwd: Path, **env: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=cwd,
        env={**os.environ, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, said.decode()


@pytest.mark.parametrize("way", ["script", "-c", "'.'", "''", "PYTHONPATH", "PYTHONPATH=."])
async def test_module_written_by_a_child_is_not_loaded_by_a_program_in_its_workspace(
    tmp_path: Path, way: str
) -> None:
    async with attacked(tmp_path) as (attack, url):
        path = {"'.'": ["."], "''": [""]}.get(way, [])
        source = PROGRAM.format(path=path, last="")
        inside = way == "script"
        script = (attack.workspace if inside else tmp_path) / "program.py"
        script.write_text(source)
        named = {"PYTHONPATH": str(attack.workspace), "PYTHONPATH=.": "."}.get(way)
        env = {} if named is None else {"PYTHONPATH": named}
        words = [sys.executable, *(["-c", source] if way == "-c" else [str(script)])]
        code, said = await run(
            [*words, str(attack.state), str(attack.workspace), url], attack.workspace, **env
        )
        assert code == 0, said
        attack.judge(said)


async def test_module_written_by_a_child_is_not_loaded_by_a_gateway_served_in_its_workspace(
    tmp_path: Path,
) -> None:
    async with attacked(tmp_path) as (attack, url):
        attack.state.mkdir(mode=0o700)
        (attack.state / "clutch.json").write_text(
            json.dumps(
                {
                    "models": {"providers": {"lab": {"baseUrl": url, "adapter": "direct"}}},
                    "agents": {"defaults": {"model": "lab:m"}},
                    "tools": {"web_fetch": {"allowPrivate": ["127.0.0.1"]}},
                }
            )
        )
        gateway = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "clutch", "serve", "--state", str(attack.state)), cwd=attack.workspace
        )
        try:
            async with asyncio.timeout(60):
                while discovery.find(attack.state) is None:
                    assert gateway.returncode is None
                    await asyncio.sleep(0.05)
                async with Clutch.connect(attack.state) as client:
                    await client.say("go")
                    attack.judge(await client.reply())
        finally:
            if gateway.returncode is None:
                gateway.send_signal(signal.SIGTERM)
            await gateway.wait()


LATE = """
        try:
            import helper
        except ImportError as error:
            print("helper:", error)
        import loaded, package
        print("loaded before:", loaded.__name__)
        try:
            import package.late
        except ImportError as error:
            print("late:", error)
        import html, importlib.util
        print("stdlib:", html.__file__.startswith(sys.base_prefix) or html.__file__)
"""


async def test_program_is_told_why_a_module_of_its_own_is_not_loaded_late(tmp_path: Path) -> None:
    async with attacked(tmp_path) as (attack, url):
        for name in ("helper.py", "loaded.py", "package/__init__.py", "package/late.py"):
            (attack.workspace / name).parent.mkdir(exist_ok=True)
            (attack.workspace / name).write_text("")
        source = "import loaded, package\n" + PROGRAM.format(path=[], last=LATE)
        (attack.workspace / "program.py").write_text(source)
        words = [sys.executable, "program.py", str(attack.state), str(attack.workspace), url]
        code, said = await run(words, attack.workspace)
        assert code == 0, said
        attack.judge(said)
    assert f"helper: module 'helper' is not loaded: {attack.workspace}/helper.py is in a workspace" in said
    assert "import it before Clutch is opened, or give the agents another workspace" in said
    assert f"late: module 'package.late' is not loaded: {attack.workspace}/package/late.py" in said
    assert "loaded before: loaded" in said
    assert "stdlib: True" in said
