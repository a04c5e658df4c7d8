"""`clutch demo` as a user runs it: a real process, a real folder, real kills; all figures from its last line."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clutch.cli.serve import SCREENS
from clutch.surfaces.discovery import NO_START
from tests.patience import PATIENCE_S
from tests.surfaces.typed import typed

SOURCE = Path(__file__).parents[2] / "src"
OUTCOMES = {"ok", "error", "timeout", "killed", "lost"}
FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "schema": str, "ok": bool, "model": str, "dir": str, "tasks": int, "max_depth": int, "outcomes": dict,
    "delivered": int, "undelivered": int, "lost": int, "twice": int, "parent_turns": int, "tool_calls": int,
    "findings": list, "answer": str, "wall_s": (int, float), "state_dir": str,
    "kills": int, "kills_in_flight": int, "resumed": int, "resumes": list, "repeated_model_calls": int,
    "repeated_unsafe_tools": int,
}  # fmt: skip

pytestmark = pytest.mark.slow


def invented(dice: random.Random) -> str:
    return "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=12))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with random words, which cannot stand in the product."""
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
    made: dict[str, Any] = json.loads(line)
    return made


def assert_whole(made: Mapping[str, Any], folder: Path) -> None:
    assert made["schema"] == "clutch.demo/1"
    for name, kind in FIELDS.items():
        assert isinstance(made[name], kind), name
    assert (made["ok"], made["problems"]) == (True, [])
    assert made["dir"] == str(folder)
    assert "not an LLM" in made["model"]
    assert set(made["outcomes"]) == OUTCOMES
    assert made["outcomes"]["ok"] == made["tasks"] == made["delivered"] >= 5
    assert made["max_depth"] == 2
    assert (made["lost"], made["twice"], made["undelivered"]) == (0, 0, 0)
    assert_true_to(folder, made)


def assert_true_to(folder: Path, made: Mapping[str, Any]) -> None:
    """Every finding stands where it says, and every file of the folder is named."""
    assert made["findings"]
    for found in made["findings"]:
        assert set(found) == {"task_id", "label", "file", "line", "text"}
        line = (folder / found["file"]).read_text().splitlines()[found["line"] - 1]
        assert " ".join(line.split()).startswith(found["text"].removesuffix("…"))
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {Path(found["file"]).name for found in made["findings"]} == names
    assert any(name in made["answer"] for name in names)


def tree_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_demo_surveys_its_folder_is_killed_once_and_resumes(tmp_path: Path, folder: Path) -> None:
    before = tree_of(folder)
    done = subprocess.run(
        **command(tmp_path, "--dir", folder), capture_output=True, text=True, timeout=120, check=True
    )
    made = json.loads(done.stdout)
    assert_whole(made, folder)
    assert tree_of(folder) == before
    state = Path(made["state_dir"])
    assert state.stat().st_mode & 0o777 == 0o700
    assert made["tool_calls"] > made["tasks"]
    assert made["parent_turns"] == 2
    assert_not_made_up(made)
    assert (state / "answer.txt").read_text() == made["answer"] + "\n"
    assert json.loads((state / "report.json").read_text()) == made
    assert_killed_once(made, done.stderr)


def assert_killed_once(made: Mapping[str, Any], shown: str) -> None:
    assert (made["kills"], made["kills_in_flight"], made["repeated_unsafe_tools"]) == (1, 1, 0)
    assert made["resumed"] == len(made["resumes"]) > 0
    assert any(resumed["step"] > 1 for resumed in made["resumes"])
    before, _, after = shown.partition("kill -9 ")
    assert ": done: " in before, "a result that is kept"
    assert ": resumed at step " in after
    assert re.search(r"(?m)^[│ ]*[├└]── done · .* · resumed at step \d+ · delivered$", after)
    assert f"Killed once (kill -9): {made['resumed']} resumed" in after


def assert_not_made_up(made: Mapping[str, Any]) -> None:
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    assert all(found["text"] not in source for found in made["findings"])


def test_chaos_kills_in_flight_and_changes_nothing(tmp_path: Path, folder: Path) -> None:
    made = demo(tmp_path, "--dir", folder, "--chaos", "--kills", 5, "--seed", 3, "--json")
    assert_whole(made, folder)
    assert made["kills"] >= made["kills_in_flight"] == 5
    assert made["resumed"] == len(made["resumes"]) > 0
    tasks = {found["task_id"] for found in made["findings"]}
    assert {resumed["task_id"] for resumed in made["resumes"]} & tasks
    assert all(resumed["step"] >= 0 for resumed in made["resumes"])
    assert made["repeated_model_calls"] > 0
    assert made["repeated_unsafe_tools"] == 0
    assert made["same_findings"] is True


def test_an_interrupted_demo_names_the_command_that_finishes_it(tmp_path: Path, folder: Path) -> None:
    running = subprocess.Popen(
        **command(tmp_path, "--dir", folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    assert any(": running" in line for line in running.stderr)
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
    made = json.loads(out.splitlines()[-1])
    assert_whole(made, folder)
    assert made["state_dir"] == state
    assert "main agent" in seen
    assert "└── " in seen
    assert ": done: " in seen
    assert_finished_for_good(tmp_path, made)


def assert_finished_for_good(tmp_path: Path, made: Mapping[str, Any]) -> None:
    """Another resume, which finds the newest demo by itself, asks no model; it prints the same report."""
    calls = (Path(made["state_dir"]) / "model-calls.jsonl").read_text()
    again = subprocess.run(
        **command(tmp_path, "--resume"), capture_output=True, text=True, timeout=60, check=True
    )
    assert "This demo is finished." in again.stderr
    assert json.loads(again.stdout) == made
    assert (Path(made["state_dir"]) / "model-calls.jsonl").read_text() == calls


def test_a_demo_that_is_under_way_is_not_resumed_beside_itself(tmp_path: Path, folder: Path) -> None:
    running = subprocess.Popen(
        **command(tmp_path, "--dir", folder, "--state", tmp_path / "kept"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stderr is not None
    assert any(": running" in line for line in running.stderr)
    running.send_signal(signal.SIGSTOP)  # it must not be over before the other one looks
    made = demo(tmp_path, "--resume", "--state", tmp_path / "kept", code=2)
    running.send_signal(signal.SIGCONT)
    assert (made["ok"], made["error"]["code"], made["error"]["field"]) == (False, "invalid_input", "--state")
    assert f"kept is in use by another process (pid {running.pid})" in made["error"]["message"]
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert_whole(json.loads(out), folder)


def at_terminal(started: dict[str, Any], columns: int) -> tuple[int, str]:
    """Run a command with a terminal as stdout and stderr; return its exit code and the lines that stay on it."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    started["env"] |= {"COLUMNS": str(columns), "TERM": "xterm-256color"}
    running = subprocess.Popen(**started, stdin=end, stdout=end, stderr=end)
    os.close(end)
    seen = drained(terminal)
    # A redrawn line begins with an erase; what was erased is gone.
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.rpartition("\x1b[2K")[2])
    return running.wait(PATIENCE_S), shown.replace("\r", "")


def test_at_a_terminal_it_ends_with_a_report_for_people(tmp_path: Path, folder: Path) -> None:
    mark = invented(random.Random())
    started = command(tmp_path, "--dir", folder)
    started["env"] |= {"HOME": str(tmp_path / "home"), "DEMO_MARK": mark}
    before = {path.name for path in tmp_path.iterdir()}
    code, shown = at_terminal(started, 80)
    assert code == 0
    (state,) = tmp_path.glob("clutch-demo-*")
    made = json.loads((state / "report.json").read_text())
    assert_whole(made, folder)
    assert '"schema"' not in shown, "JSON is for programs"
    words = assert_for_people(shown, made, state)
    assert_nothing_else_is_left(tmp_path, before, state, mark)
    again = {columns: at_terminal(command(tmp_path, "--resume"), columns)[1] for columns in (80, 160)}
    assert again[80].partition("main agent")[2] == shown.partition("main agent")[2]
    assert_for_people(again[160], made, state)
    assert_dashboard_opens(started, words)


def assert_for_people(shown: str, made: Mapping[str, Any], state: Path) -> str:
    tree, _, words = shown.strip().partition("\n\n")
    assert len([line for line in tree.splitlines() if "── done · " in line]) == made["tasks"]
    assert "resumed at step" in tree
    assert "7 subagents: 7 ok." in words
    assert "Results: 7 delivered, 0 lost, 0 delivered twice." in words
    assert f"Answer     {state}/answer.txt" in words
    assert len(words.splitlines()) <= 12
    return words


def assert_nothing_else_is_left(tmp_path: Path, before: set[str], state: Path, mark: str) -> None:
    """The state directory that the report names is the only new thing, and no process of the demo lives."""
    assert {path.name for path in tmp_path.iterdir()} - before == {state.name}
    # Processes of the sandbox have another environment, but name the directories that they see.
    known = {"environ": mark, "cmdline": str(tmp_path)}
    alive = [
        path
        for name, text in known.items()
        for path in Path("/proc").glob(f"[0-9]*/{name}")
        if text.encode() in bytes_of(path)
    ]
    assert alive == []


def bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


def assert_dashboard_opens(started: dict[str, Any], words: str) -> None:
    """The commands of the report run as they are printed."""
    typed = dict(re.findall(r"(?m)^ *(Dashboard|stop it|Timeline|Remove) +(.*)$", words))
    env = {name: value for name, value in started["env"].items() if name not in (NO_START, *SCREENS)}

    def run(line: str) -> str:
        return subprocess.run(
            ["/bin/sh", "-c", line],
            env=env,
            cwd=started["cwd"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    try:
        address = run(typed["Dashboard"]).strip()
        with urllib.request.urlopen(address) as page:  # noqa: S310 (our own, on loopback)
            assert page.status == 200
        assert "done" in run(typed["Timeline"])
    finally:
        run(typed["stop it"])
    run(typed["Remove"])
    assert not Path(typed["Remove"].rpartition(" ")[2]).exists()


def test_a_usage_error_at_a_terminal_is_a_sentence(tmp_path: Path) -> None:
    for words in (["--dir", "missing"], ["--faster"]):
        code, shown = at_terminal(command(tmp_path, *words), 80)
        assert code == 2
        assert words[0] in shown
        assert "{" not in shown


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
    made = demo(tmp_path, "--dir", tmp_path / "empty", *how)
    assert (made["ok"], made["tasks"], made["findings"]) == (True, 0, [])
    assert "empty" in made["answer"]


def test_a_survey_of_the_temporary_files_does_not_survey_itself(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (temporary / "note.md").write_text("# Note\n")
    started = command(tmp_path, "--dir", temporary)
    started["env"]["TMPDIR"] = str(temporary)
    done = subprocess.run(**started, capture_output=True, text=True, timeout=60, check=True)
    made = json.loads(done.stdout)
    assert [path.name for path in temporary.iterdir()] == ["note.md"]
    assert Path(made["state_dir"]).is_relative_to(tmp_path / "home")
    assert {found["file"] for found in made["findings"]} == {"note.md"}


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], field: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUTCH_HOME", str(tmp_path / "home"))
    for name in ("full", "full2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("mine")
    said = typed("demo", *words)
    made = said.body
    assert (said.code, made["ok"]) == (2, False)
    assert made["error"]["code"] == "invalid_input"
    assert made["error"]["field"] == field
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
