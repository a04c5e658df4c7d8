"""What errors, `clutch doctor` and the docs advise for a missing sandbox is a setting that the config accepts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from clutch.ports import RuntimeFailed, RuntimeJob, ToolFailed
from clutch.runtimes.acp import AcpRuntime
from clutch.runtimes.acp_process import AcpAgent
from clutch.tools.mcp.definitions import McpServer, McpServerError
from clutch.tools.mcp.server import launching
from clutch.tools.sandbox import process
from clutch.tools.sandbox.policy import Sandbox
from clutch.tools.sandbox.process import Offer, SandboxedPrograms, sandbox_kind
from clutch.wiring import sandbox_offer
from tests.config.test_reading import read

DOCS = Path(__file__).parents[2] / "docs"
TROUBLES = {
    "linux, not installed": Offer(None, "bubblewrap is not installed", 0, "linux"),
    "linux, not allowed": Offer(None, "bubblewrap does not work here: no user namespaces", 0, "linux"),
    "macos, missing": Offer(None, "this system has no /usr/bin/sandbox-exec", 0, "darwin"),
    "macos, broken": Offer(None, "Seatbelt does not hold here: a command can connect", 0, "darwin"),
    "another system": Offer(None, "there is no sandbox for freebsd14 yet", 0, "freebsd14"),
}
#: `sandbox: "off"` or `tools: {shell: {needsApproval: true}}`, and `mcp.servers.NAME.sandbox to false`.
WRITTEN = re.compile(r'\bset `?((?:sandbox|tools): (?:"\w+"|\{[\w:{ ]+\}+))')
NAMED = re.compile(r"\b((?:mcp\.servers|acp\.agents)(?:\.\w+)+) to (true|false)\b")


def of_shell(_: Path) -> str:
    with pytest.raises(ToolFailed) as refusal:
        sandbox_kind(Sandbox.ON, for_shell=True)
    return str(refusal.value)


def of_doctor(_: Path) -> str:
    return sandbox_offer().remedy or ""


def of_mcp(folder: Path) -> str:
    with pytest.raises(McpServerError) as refusal, launching(McpServer(name="mine", command="cat"), folder):
        pass
    return str(refusal.value)


def of_acp(folder: Path) -> str:
    runtime = AcpRuntime(AcpAgent(name="mine", command="cat"), folder, SandboxedPrograms())
    job = RuntimeJob("work", (), "agent:main:subagent:x", str(folder), "x:1", is_sandboxed=True)
    with pytest.raises(RuntimeFailed) as refusal:
        anyio.run(runtime.run, job)
    return str(refusal.value)


ADVISERS: dict[str, Callable[[Path], str]] = {
    "shell": of_shell, "doctor": of_doctor, "mcp": of_mcp, "acp": of_acp,
}  # fmt: skip


def written(text: str) -> list[str]:
    """Return the settings that a text advises, each as the line of a config."""
    lines = [found[1] for found in WRITTEN.finditer(text)]
    for path, value in NAMED.findall(text):
        section, table, name, key = path.split(".")
        lines.append(f'{section}: {{{table}: {{{name}: {{command: "cat", {key}: {value}}}}}}}')
    return lines


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("adviser", ADVISERS)
def test_what_is_advised_for_a_missing_sandbox_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adviser: str, trouble: str
) -> None:
    monkeypatch.setattr(process, "probe", lambda: TROUBLES[trouble])
    text = ADVISERS[adviser](tmp_path)
    assert written(text), text
    for line in written(text):
        read(f"{{{line}}}")
    assert ("bubblewrap" in text) <= trouble.startswith("linux"), text


def test_the_advised_settings_mean_what_the_advice_says() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))]
    lines = {line for text in texts for line in written(" ".join(text.split()))}
    assert {'sandbox: "off"', "tools: {shell: {needsApproval: true}}"} <= lines
    tools = {line: read(f"{{{line}}}").settings.tools for line in lines}
    assert tools['sandbox: "off"'].sandbox is Sandbox.OFF
    assert tools["tools: {shell: {needsApproval: true}}"].shell_needs_approval
    (line,) = written("set mcp.servers.mine.sandbox to false")
    assert [server.sandbox for server in read(f"{{{line}}}").settings.tools.mcp_servers] == [False]
