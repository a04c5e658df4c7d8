"""Clutch without its extras: it works with the demo model, and what needs one says which."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clutch.errors import MissingExtra, extra

#: As if these packages were not installed: importing one raises ModuleNotFoundError.
BARE = """
import sys
for name in ("openai", "anthropic", "pydantic_ai", "mcp", "mcp_types", "acp", "asyncpg", "opentelemetry"):
    sys.modules[name] = None
"""
WORKS = """
import asyncio
from clutch import Clutch
async def main():
    async with Clutch(state=sys.argv[1]) as c:
        print((await (await c.spawn("question: markers"))).outcome)
asyncio.run(main())
"""
MODEL = """
import asyncio
from clutch import Clutch
async def main():
    async with Clutch(state=sys.argv[1], model="{model}") as c:
        print((await (await c.spawn("hello"))).error)
asyncio.run(main())
"""
COMMAND = """
from clutch.cli.app import run
sys.argv[1:] = ["mcp", "--state", sys.argv[1]]
run()
"""


def ran(tmp_path: Path, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BARE + program, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={
            "PATH": "/usr/bin:/bin",
            "ANTHROPIC_API_KEY": "x",
            "OPENAI_API_KEY": "x",
            "MISTRAL_API_KEY": "x",
        },
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_demo_model_needs_no_extra(tmp_path: Path) -> None:
    assert ran(tmp_path, WORKS).splitlines()[-1] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "extra"),
    [("anthropic:claude-x", "anthropic"), ("openai:gpt-x", "openai"), ("mistral:m", "providers")],
)
def test_a_provider_without_its_client_names_the_extra(tmp_path: Path, model: str, extra: str) -> None:
    assert f"pip install 'clutch-agents[{extra}]'" in ran(tmp_path, MODEL.format(model=model))


@pytest.mark.slow
def test_the_mcp_server_without_its_library_names_the_extra(tmp_path: Path) -> None:
    said = ran(tmp_path, COMMAND)
    assert "`clutch mcp` needs the package 'mcp'" in said
    assert "pip install 'clutch-agents[mcp]'" in said
    assert "Traceback" not in said


def test_a_package_that_the_import_guard_refuses_is_not_called_missing() -> None:
    why = "module 'mcp' is not loaded: /ws/mcp.py is in a workspace"
    with (
        pytest.raises(MissingExtra, match=r"^/mcp cannot be loaded: module 'mcp' is not loaded: /ws/mcp.py"),
        extra("mcp", "/mcp"),
    ):
        raise ModuleNotFoundError(why, name="mcp", path="/ws/mcp.py")


@pytest.mark.slow
def test_traces_without_their_library_name_the_extra(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "clutch.json").write_text('{otel: {endpoint: "http://127.0.0.1:9"}}')
    said = ran(tmp_path, WORKS.replace("sys.argv[1]", 'sys.argv[1], workspace="elsewhere"'))
    assert "otel.endpoint needs the package 'opentelemetry'" in said
    assert "pip install 'clutch-agents[otel]'" in said
