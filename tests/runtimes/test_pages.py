"""The pages about other agents are true: their examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clutch import AcpAgent
from clutch.runtimes.acp_process import KNOWN

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(?s)```python ?([\w.]*)\n(.*?)```")


def run(source: str) -> None:
    exec(compile(source, "example", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own page


def test_agent_of_the_acp_page_shouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = dict(BLOCK.findall((DOCS / "how-to" / "acp-agents.md").read_text()))
    (tmp_path / "agent.py").write_text(blocks["agent.py"])
    run(blocks["main.py"])
    assert capsys.readouterr().out == "HELLO THERE\n"


@pytest.mark.parametrize(
    ("place", "says"),
    [(0, "all is well\n"), (1, '{"task":"one two three","words":3}\n'), (2, "good morning\n")],
)
def test_examples_of_the_frameworks_page_run(
    place: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run(BLOCK.findall((DOCS / "how-to" / "frameworks.md").read_text())[place][1])
    assert capsys.readouterr().out == says


def test_table_of_known_agents_is_the_one_in_the_code() -> None:
    page = (DOCS / "how-to" / "acp-agents.md").read_text()
    rows = re.findall(r"(?m)^\| `(\w+)` \| `([^`]+)` \| `([^`]+)` \|$", page)
    assert rows == [
        (agent.name, " ".join((agent.command, *agent.args)), agent.install) for agent in KNOWN.values()
    ]
    defaults = AcpAgent(name="claude")
    assert f"| `start_timeout_s` | {defaults.start_timeout_s:g} |" in page
    assert f"| `silence_timeout_s` | {defaults.silence_timeout_s:g} |" in page
