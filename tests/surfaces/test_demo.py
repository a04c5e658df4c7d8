"""`clutch demo` as a person runs it: a real process, a real folder, real kills; all figures from its last line."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S

SOURCE = Path(__file__).parents[2] / "src"
OUTCOMES = {"ok", "error", "timeout", "killed", "lost"}
FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "schema": str, "ok": bool, "model": str, "dir": str, "tasks": int, "max_depth": int, "outcomes": dict,
    "delivered": int, "undelivered": int, "lost": int, "twice": int, "parent_turns": int, "tool_calls": int,
    "findings": list, "answer": str, "wall_s": (int, float), "state_dir": str,
}  # fmt: skip
CHAOS_FIELDS: Mapping[str, type] = {
    "kills": int, "kills_in_flight": int, "resumed": int, "resumes": list, "repeated_model_calls": int,
    "repeated_unsafe_tools": int,
}  # fmt: skip

pytestmark = pytest.mark.slow


def invented(dice: random.Random) -> str:
    return "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=12))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Words nobody can have written into the product before."""
    dice = random.Random()
    made = tmp_path / "surveyed"
    for name in ("docs", "code"):
        (made / name).mkdir(parents=True)
        for number in range(3):
            lines = [f"# {invented(dice)}", "", *(f"{invented(dice)} {invented(dice)}" for _ in range(9))]
            lines.append(f"TODO: {invented(dice)}")
            (made / name / f"{invented(dice)}{number}.md").write_text("\n".join(lines) + "\n")
    (made / "code" / "wide.py").write_text(f"def {invented(dice)}():\n    return {invented(dice) * 12!r}\n")
    return made


def command(tmp_path: Path, *words: object) -> dict[str, Any]:
    home = tmp_path / "home"
    env = {**os.environ, "CLUTCH_HOME": str(home), "TMPDIR": str(tmp_path), "COLUMNS": "100"}
    return {"args": [sys.executable, "-m", "clutch", "demo", *map(str, words)], "env": env, "cwd": tmp_path}


def demo(tmp_path: Path, *words: object, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        **command(tmp_path, *words), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    (line,) = done.stdout.splitlines()
    told: dict[str, Any] = json.loads(line)
    return told


def assert_whole(told: Mapping[str, Any], folder: Path) -> None:
    assert told["schema"] == "clutch.demo/1"
    for name, kind in FIELDS.items():
        assert isinstance(told[name], kind), name
    assert (told["ok"], told["problems"]) == (True, [])
    assert told["dir"] == str(folder)
    assert "not an LLM" in told["model"]
    assert set(told["outcomes"]) == OUTCOMES
    assert told["outcomes"]["ok"] == told["tasks"] == told["delivered"] >= 5
    assert told["max_depth"] == 2
    assert (told["lost"], told["twice"], told["undelivered"]) == (0, 0, 0)
    assert_true_to(folder, told)


def assert_true_to(folder: Path, told: Mapping[str, Any]) -> None:
    """Every finding stands where it says, and every file of the folder is named."""
    assert told["findings"]
    for found in told["findings"]:
        assert set(found) == {"task_id", "label", "file", "line", "text"}
        line = (folder / found["file"]).read_text().splitlines()[found["line"] - 1]
        assert " ".join(line.split()).startswith(found["text"].removesuffix("…"))
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {Path(found["file"]).name for found in told["findings"]} == names
    assert any(name in told["answer"] for name in names)


def tree_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_demo_surveys_the_folder_it_is_given_and_leaves_it_as_it_was(
    tmp_path: Path, folder: Path
) -> None:
    before = tree_of(folder)
    told = demo(tmp_path, "--dir", folder)
    assert_whole(told, folder)
    assert tree_of(folder) == before
    state = Path(told["state_dir"])
    assert state.stat().st_mode & 0o777 == 0o700
    assert told["tool_calls"] > told["tasks"]
    assert told["parent_turns"] == 2
    assert told["transactions_per_task"] > 0
    assert told["statements_per_task"] > told["transactions_per_task"]
    assert_not_made_up(told)


def assert_not_made_up(told: Mapping[str, Any]) -> None:
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert all(found["text"] not in source for found in told["findings"])


def test_chaos_kills_in_flight_and_changes_nothing(tmp_path: Path, folder: Path) -> None:
    told = demo(tmp_path, "--dir", folder, "--chaos", "--kills", 5, "--seed", 3, "--json")
    assert_whole(told, folder)
    for name, kind in CHAOS_FIELDS.items():
        assert isinstance(told[name], kind), name
    assert told["kills"] >= told["kills_in_flight"] == 5
    assert told["resumed"] == len(told["resumes"]) > 0
    tasks = {found["task_id"] for found in told["findings"]}
    assert {resumed["task_id"] for resumed in told["resumes"]} & tasks
    assert all(resumed["step"] >= 0 for resumed in told["resumes"])
    assert told["repeated_model_calls"] > 0
    assert told["repeated_unsafe_tools"] == 0
    assert told["same_findings"] is True
    assert (told["transactions_per_task"], told["statements_per_task"]) == (None, None)


def test_an_interrupted_demo_names_the_command_that_finishes_it(tmp_path: Path, folder: Path) -> None:
    running = subprocess.Popen(
        **command(tmp_path, "--dir", folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    assert any("running (started)" in line for line in running.stderr)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, out) == (130, "")
    assert "Traceback" not in err
    printed = err.rpartition("finish it with:\n")[2].strip()
    state = printed.rpartition(" demo --resume --state ")[2]
    assert Path(state).is_dir()

    terminal, stderr = pty.openpty()
    as_printed = command(tmp_path) | {"args": ["sh", "-c", printed]}
    resumed = subprocess.Popen(**as_printed, stdout=subprocess.PIPE, stderr=stderr, text=True)
    os.close(stderr)
    seen = drained(terminal)
    out, _ = resumed.communicate(timeout=60)
    assert resumed.returncode == 0
    told = json.loads(out.splitlines()[-1])
    assert_whole(told, folder)
    assert told["state_dir"] == state
    assert "main agent" in seen
    assert "└── " in seen
    assert "reports ok" in seen
    assert_finished_for_good(tmp_path, told)


def assert_finished_for_good(tmp_path: Path, told: Mapping[str, Any]) -> None:
    """Another resume starts no worker; it says that it is finished and reports the same."""
    lives = (Path(told["state_dir"]) / "workers.jsonl").read_text()
    again = subprocess.run(
        **command(tmp_path, "--resume"), capture_output=True, text=True, timeout=60, check=True
    )
    assert "finished already" in again.stderr
    assert json.loads(again.stdout) == {**told, "wall_s": json.loads(again.stdout)["wall_s"]}
    assert (Path(told["state_dir"]) / "workers.jsonl").read_text() == lives


def test_a_demo_that_is_under_way_is_not_resumed_beside_itself(tmp_path: Path, folder: Path) -> None:
    running = subprocess.Popen(
        **command(tmp_path, "--dir", folder, "--state", tmp_path / "kept"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stderr is not None
    assert any("running (started)" in line for line in running.stderr)
    running.send_signal(signal.SIGSTOP)  # it must not be over before the other one looks
    told = demo(tmp_path, "--resume", "--state", tmp_path / "kept", code=2)
    running.send_signal(signal.SIGCONT)
    assert (told["ok"], told["error"]["code"], told["error"]["field"]) == (False, "invalid_input", "--state")
    assert f"kept is in use by another process (pid {running.pid})" in told["error"]["message"]
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert_whole(json.loads(out), folder)


def drained(terminal: int) -> str:
    """All that was written to a terminal until its last writer left."""
    seen = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(terminal)
    return seen.decode()


@pytest.mark.parametrize("how", [(), ("--chaos",)], ids=["plain", "chaos"])
def test_an_empty_folder_is_surveyed_too(tmp_path: Path, how: tuple[str, ...]) -> None:
    (tmp_path / "empty").mkdir()
    told = demo(tmp_path, "--dir", tmp_path / "empty", *how)
    assert (told["ok"], told["tasks"], told["findings"]) == (True, 0, [])
    assert "empty" in told["answer"]
    assert told["transactions_per_task"] is None


def test_a_survey_of_the_temporary_files_does_not_survey_itself(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (temporary / "note.md").write_text("# Note\n")
    started = command(tmp_path, "--dir", temporary)
    started["env"]["TMPDIR"] = str(temporary)
    done = subprocess.run(**started, capture_output=True, text=True, timeout=60, check=True)
    told = json.loads(done.stdout)
    assert [path.name for path in temporary.iterdir()] == ["note.md"]
    assert Path(told["state_dir"]).is_relative_to(tmp_path / "home")
    assert {found["file"] for found in told["findings"]} == {"note.md"}


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--dir", ""], "--dir"),
        (["--dir", "full", "--state", ""], "--state"),
        (["--dir", "full", "--state", "full2/file"], "--state"),
        (["--dir", "full", "--state", "full2/file/below"], "--state"),
        (["--resume", "--state", "full2/file"], "--state"),
        (["--chaos", "--kills", "4"], "--kills"),
        (["--seed", "many"], "--seed"),
        (["--faster"], "--faster"),
        (["--dir"], "--dir"),
        (["--dir", "missing"], "--dir"),
        (["--kills", "7"], "--kills"),
        (["--dir", ".", "--state", "inside"], "--state"),
        (["--dir", "full", "--state", "full2"], "--state"),
        (["--resume"], "--resume"),
        (["--resume", "--chaos"], "--resume"),
        (["--resume", "--state", "full2"], "--state"),
    ],
)
def test_a_wrong_wish_is_a_usage_error_that_names_the_option(
    tmp_path: Path, words: list[str], field: str
) -> None:
    for name in ("full", "full2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("mine")
    told = demo(tmp_path, *words, code=2)
    assert told["ok"] is False
    assert told["error"]["code"] == "invalid_input"
    assert told["error"]["field"] == field
    assert (tmp_path / "full2" / "file").read_text() == "mine"


def test_help_and_version_load_neither_models_nor_tools(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['clutch', sys.argv[1]]\n"
        "from clutch.cli import main\n"
        "try: main()\n"
        "except SystemExit as exit: code = exit.code\n"
        "heavy = {'pydantic', 'apsw', 'rich', 'asyncio', 'clutch.wiring'} & set(sys.modules)\n"
        "print(code, sorted(heavy))"
    )
    for word in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", script, word], capture_output=True, text=True, timeout=30, check=True
        )
        assert done.stdout.splitlines()[-1] == "0 []"
