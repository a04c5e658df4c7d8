"""Every example runs as a new user runs it: as a process, in an empty folder, and it prints what its docstring says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ACP_AGENT = ROOT / "tests" / "runtimes" / "acp_agent.py"

pytestmark = pytest.mark.slow


def run(folder: Path, *command: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | env,
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(folder: Path, name: str, *args: str) -> str:
    return run(folder, str(EXAMPLES / name), *args)


def printed(name: str) -> list[str]:
    """Return the lines of output in the docstring of an example: the last indented block."""
    text = (EXAMPLES / name).read_text(encoding="utf-8").split('"""')[1]
    blocks = re.findall(r"(?m)(?:^    .+\n)+", text)
    return [line.strip() for line in blocks[-1].splitlines() if line.strip() != "..."]


def test_batch_resumes_after_a_kill_and_repeats_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "batch.py")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.startswith("300 of 1000") for line in process.stdout)
        process.send_signal(signal.SIGKILL)
    resumed = example(tmp_path, "batch.py")
    assert "done: 1000 ok, 0 failed" in resumed
    assert "billing 333 · bug 334 · other 333" in resumed
    assert calls_in(resumed) <= 700
    again = example(tmp_path, "batch.py")
    assert "done: 1000 ok, 0 failed" in again
    assert calls_in(again) == 0


def calls_in(output: str) -> int:
    return int(output.rpartition("calls of the fake model: ")[2])


def test_a_batch_stops_at_its_budget(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "batch.py"), "--tokens", "20000"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, check=False, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "stopped: the budget is used up" in done.stderr
    assert "100 of 1000" in done.stdout
    assert "900 of 1000" not in done.stdout


QUESTIONS = (
    "What do users complain about?",
    "What do competitors offer?",
    "What does the law require?",
    "What did we try before?",
)


def test_research_merges_typed_findings(tmp_path: Path) -> None:
    said = example(tmp_path, "research.py").splitlines()
    assert sorted(said[:4]) == sorted(f"answered: {question}" for question in QUESTIONS)
    assert said[4:] == [
        "report: 4 questions, 4 findings, the surest first",
        "  90 % Exports fail for files over 2 GB [tickets/4711]",
        "  85 % Users can demand an export within a month [GDPR 12]",
        "  70 % Two competitors export in the background [web/7]",
        "  60 % Splitting files by hand was not used [notes/2024]",
    ]


def test_the_webhook_approves_a_small_refund_and_rejects_a_large_one(tmp_path: Path) -> None:
    assert example(tmp_path, "approvals_webhook.py").splitlines() == printed("approvals_webhook.py")


def test_each_slot_has_its_report(tmp_path: Path) -> None:
    said = [example(tmp_path, "scheduled_report.py", "--every", "1", "--count", "2") for _ in range(2)]
    found = set(re.findall(r"slot (\S+): (t_\w+) ok", "\n".join(said)))
    assert len({slot for slot, _ in found}) == len({task for _, task in found}) >= 2


@pytest.mark.skipif(sys.platform != "linux", reason="isolated workspaces need bubblewrap")
def test_the_review_crew_works_in_worktrees_of_its_own(tmp_path: Path) -> None:
    said = example(tmp_path, "code_review/main.py").splitlines()
    assert sorted(said[:3]) == sorted(printed("code_review/main.py")[:3])
    assert said[3:] == printed("code_review/main.py")[3:]
    repository = tmp_path / "sample-repository"
    assert [path.name for path in repository.iterdir() if path.name != ".git"] == ["app.py"]
    notes = (tmp_path / "review-state" / "workspaces").glob("*/REVIEW.md")
    assert len({note.read_text() for note in notes}) == 3


def test_an_acp_agent_asks_and_writes(tmp_path: Path) -> None:
    assert example(tmp_path, "acp_child.py").splitlines() == printed("acp_child.py")
    assert (tmp_path / "greeting.txt").read_text() == "hello\n"


def test_another_acp_agent_is_one_argument(tmp_path: Path) -> None:
    """The agent of the tests of ACP, which does what its prompt says."""
    program = f"""
import asyncio, sys
from acp_child import main
from clutch import AcpAgent
agent = AcpAgent(name="obedient", command=sys.executable, args=({str(ACP_AGENT)!r},), sandbox=False)
asyncio.run(main(agent, "clutch-test: edit notes.md"))
"""
    assert "ok: changed" in run(tmp_path, "-c", program, PYTHONPATH=str(EXAMPLES))
    assert (tmp_path / "notes.md").read_text() == "new\n"


def test_an_mcp_client_reads_the_result_from_a_new_connection(tmp_path: Path) -> None:
    """The gateway is started by `clutch mcp`, as for a new user, and stopped as the docstring says."""
    (tmp_path / "notes.md").write_text("# Notes\n")
    try:
        said = run(tmp_path, str(EXAMPLES / "mcp_client.py"), CLUTCH_NO_START="")
    finally:
        run(tmp_path, "-m", "clutch", "stop", "--state", "mcp-state")
    spawned, closed, done = said.splitlines()
    assert re.fullmatch(r"spawned t_\w+", spawned)
    assert closed == printed("mcp_client.py")[1]
    assert re.fullmatch(r"done: \d+ lines", done)


def test_a_graph_is_a_child(tmp_path: Path) -> None:
    assert example(tmp_path, "langgraph_child.py").splitlines() == printed("langgraph_child.py")
