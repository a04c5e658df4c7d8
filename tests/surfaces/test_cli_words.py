"""What the command line says: commands that run as printed, the truth about a wait, every mistake by its name.

In this process: what a command prints needs no other one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from clutch.cli import output, spawn
from clutch.cli.app import app, run
from clutch.cli.show import ListPartOption, budget_name
from clutch.core.model import Phase
from clutch.core.policy import Announcing, Limits
from clutch.surfaces.http_client import task_path
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import ended, seen, spawned
from tests.surfaces.typed import Done

Typed = Callable[..., Done]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Typed:
    def clutch(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["clutch", *words])
        capfd.readouterr()
        code = run()
        return Done(code, *capfd.readouterr())

    return clutch


def test_every_help_fits_80_columns_and_no_line_of_the_list_is_cut_and_every_command_has_objects(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, listed = typed("--help").out.split("Begin:\n")
    assert [line for line in listed.splitlines() if line.endswith("...")] == []
    named = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    known = getattr(get_command(app), "commands")  # noqa: B009 (a group has them)
    assert sorted(named) == sorted(name for name, one in known.items() if not one.hidden)
    assert {name for name, one in known.items() if one.hidden} == {"remove", "rm"}
    for command in named:
        help_ = typed(command, "--help").out
        assert [line for line in help_.splitlines() if len(line) > 80] == [], command
        assert "--json" in help_ or command in ("mcp", "acp", "agents", "config", "import", "schedule"), (
            command
        )


def test_every_help_has_an_example_that_can_be_typed(typed: Typed) -> None:
    known = getattr(get_command(app), "commands")  # noqa: B009 (a group has them)
    for name, command in known.items():
        for below, one in getattr(command, "commands", {"": command}).items():
            if one.hidden:
                continue
            words = f"{name} {below}".strip()
            found = re.search(rf"Example: clutch ({words}\b[^\n]*)", one.help or "")
            assert found is not None, words
            given = shlex.split(found[1])[len(words.split()) :]
            assert one.make_context(name, given).params is not None, words


def test_every_argument_and_every_option_has_a_help_text() -> None:
    known = getattr(get_command(app), "commands")  # noqa: B009 (a group has them)
    for name, command in known.items():
        for below, one in getattr(command, "commands", {"": command}).items():
            bare = [each.name for each in one.params if not (each.hidden or each.help)]
            assert bare == [], f"{name} {below}"


@pytest.mark.parametrize("command", ["logs", "replay", "chat", "attach", "export"])
def test_a_command_that_prints_many_objects_says_so(typed: Typed, command: str) -> None:
    assert "Print one JSON object per line." in typed(command, "--help").out


def test_the_help_of_stop_says_what_is_cancelled_and_what_gets_time(typed: Typed) -> None:
    said = " ".join(typed("stop", "--help").out.split())
    assert "Model calls are cancelled and repeated at the next start" in said
    assert "other tools get `worker.stop` seconds" in said


#: Commands that print what they were asked for, and how. `TASK` is a finished task, `NEW` a file that is not there.
REPORTS = {
    "status": (), "ps": ("--all",), "tree": ("--all",), "top": (), "inbox": (), "dead": (), "cost": (),
    "why": ("TASK",), "logs": ("TASK",), "replay": ("TASK",), "export": ("TASK",), "doctor": (), "token": (),
    "config check": (), "config explain": ("announce.queue.mode",), "config schema": (), "gc": ("--dry-run",),
    "backup": ("NEW",), "restore": ("BACKUP",), "import openclaw": ("NEW", "--dry-run"),
    "acp list": (), "agents list": (), "agents show": ("main",), "agents check": (),
    "schedule list": (),
    "spawn": ("x", "--dry-run"), "open": ("--print",), "devices": (), "nodes": (),
    "run": ("quick one", "--wait"), "demo": (),
}  # fmt: skip
#: Commands that act, serve or talk: what they say about it is a message.
OTHERS = {
    "init", "chat", "mcp", "attach", "steer", "send", "pause", "resume", "kill", "retry", "continue", "answer",
    "approve", "reject", "redeliver", "dismiss", "archive", "delete", "remove", "rm", "serve", "stop", "drain", "move",
}  # fmt: skip
#: Footers of lists, steps on the way, and what to type next.
MESSAGES = re.compile(
    r"\d+ \w+.*|no tasks|nothing to decide|To restore it: .*|Next: .*|Unfinished tasks resume.*|One-time link.*"
    r"|accepted: .*|done · .*|No browser or phone is signed in: .*"
)


def test_every_report_is_printed_to_stdout_and_only_messages_to_stderr(
    first: Served, typed: Typed, tmp_path: Path
) -> None:
    groups = {"acp", "agents", "config", "import", "schedule"}
    assert {words.split()[0] for words in REPORTS} - groups | OTHERS == set(
        getattr(get_command(app), "commands")  # noqa: B009 (a group has them)
    ) - groups
    task, backup = spawned(first.client, "quick one"), str(tmp_path / "a backup")
    ended(first.client, task, "delivered")
    planned = spawned(first.client, "think first", planMode=True)
    seen(first.client, planned, lambda one: one["phase"] == "awaiting_approval")
    assert typed("backup", backup, "--state", str(first.home)).code == 0
    files = {"TASK": task, "BACKUP": backup, "NEW": str(tmp_path / "new")}
    for command, words in REPORTS.items():
        if command in ("demo", "import openclaw"):
            continue  # tests of their own
        state = str(tmp_path / "restored") if command == "restore" else str(first.home)
        said = [files.get(word, word) for word in words]
        done = typed(*command.split(), *said, *(() if command == "config schema" else ("--state", state)))
        assert done.code == 0 or command == "doctor", (command, done)
        assert done.out or command == "dead", command
        assert [line for line in done.err.splitlines() if not MESSAGES.fullmatch(line)] == [], command
    first.client.post(task_path(planned, "kill"), {})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")
def test_a_full_disk_below_its_output_is_said_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "clutch", "--help"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


def test_an_object_stays_one_where_the_output_lacks_letters(tmp_path: Path) -> None:
    home = tmp_path / "é😀"
    command = [sys.executable, "-m", "clutch", "kill", "last", "--json", "--state", str(home)]
    told = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=told, capture_output=True, check=False, timeout=60)
    assert done.stdout.isascii()
    assert str(home) in json.loads(done.stdout)["error"]["message"]


def test_a_mistake_is_said_under_the_whole_name_of_its_command(typed: Typed) -> None:
    assert typed("config", "check", "--nope", "--json").body["schema"] == "clutch.config.check/1"


def test_a_group_alone_says_what_it_has_and_once(typed: Typed) -> None:
    said = typed("import")
    assert (said.code, said.err.count("Usage: "), "Error" in said.err) == (2, 1, False)
    assert "openclaw" in said.err


def test_a_name_no_session_can_have_is_refused_before_a_client_is_served(typed: Typed) -> None:
    said = typed("mcp", "--session", "bad name", "--state", "/dev/null")
    assert (said.code, "a-z, 0-9" in said.err, said.out) == (2, True, "")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("first") / "a state", policy=FAST) as here:
        yield here


def commands(text: str) -> list[list[str]]:
    """Whatever is printed to be typed, without its first word."""
    lines = re.findall(r"(?m)(?:-> |^  |Try: |`)(clutch [^`\n]+)", text)
    return [shlex.split(line)[1:] for line in lines]


def test_an_editor_is_not_waited_for_where_nothing_can_be_read(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "clutch", "acp", "--state", str(tmp_path)]
    done = subprocess.run(
        words, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert done.stderr.startswith("clutch acp: stdin: must be a pipe")


def test_a_budget_is_named_as_its_task_is() -> None:
    task = {"kind": "task", "name": "task:2147483718", "taskId": "t_1", "label": "links", "sessionKey": "x"}
    day = {"kind": "day", "name": "day:2026-11-19", "taskId": None, "label": None, "sessionKey": None}
    assert [budget_name(one) for one in (task, day)] == ["t_1 (links)", "day:2026-11-19"]


def test_a_kill_takes_its_reason_as_words_and_all_that_works(typed: Typed, tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        state = ("--state", str(here.home))
        tasks = [spawned(here.client, f"slow {number}") for number in range(3)]
        assert typed("kill", tasks[0], "too slow", *state).err == f"stopped: {tasks[0]}\n"
        assert here.client.get(task_path(tasks[0]))["error"] == "too slow"
        assert typed("kill", "all", "enough", "--json", *state).body["stopped"] == tasks[1:]
        assert here.client.get(task_path(tasks[2]))["error"] == "enough"
        assert typed("kill", "all", *state).err == "nothing to stop\n"


def test_every_command_it_prints_runs_as_printed(first: Served, typed: Typed) -> None:
    state = ("--state", str(first.home))
    waits = typed("run", "think first", "--plan", "--wait", *state)
    assert waits.code == 5
    (inbox,) = commands(waits.err)
    shown = typed(*inbox)
    assert shown.code == 0
    approve, reject = commands(shown.out)
    assert [approve[0], reject[0]] == ["approve", "reject"]
    assert typed(*reject).code == 0
    seen(first.client, approve[1], lambda one: one["phase"] == "awaiting_approval")
    approve, _ = commands(typed(*inbox).out)  # each names the plan that it decides on
    assert typed(*approve).code == 0
    ended(first.client, approve[1], "delivered")

    task = spawned(first.client, "slow survey", label="paused one")
    seen(first.client, task, lambda one: one["phase"] == "running")
    first.pause_between_two_runs(task)
    seen(first.client, task, lambda one: one["phase"] == "paused")
    (resume,) = commands(typed("why", task, *state).out)
    assert typed(*resume).code == 0
    assert first.client.get(task_path(task))["phase"] != "paused"
    first.client.post(task_path(task, "kill"), {})


def test_without_a_gateway_the_remedy_names_the_state_directory(tmp_path: Path, typed: Typed) -> None:
    done = typed("kill", "t_1", "--json", "--state", str(tmp_path / "no where"))
    assert (done.code, done.body["error"]["code"]) == (9, "unavailable")
    assert shlex.split(done.body["error"]["remedy"]) == [
        "clutch",
        "serve",
        "--state",
        str(tmp_path / "no where"),
    ]
    assert commands(done.err) == [["serve", "--state", str(tmp_path / "no where")]]


def test_a_second_gateway_is_told_who_owns_the_state_and_how_to_reach_it(first: Served, typed: Typed) -> None:
    twin = typed("serve", "--json", "--state", str(first.home))
    assert (twin.code, twin.body["ok"], twin.body["error"]["code"]) == (1, False, "unavailable")
    assert first.clutch.url is not None
    assert first.clutch.url in twin.body["error"]["message"]
    remedy = shlex.split(twin.body["error"]["remedy"])[1:]
    assert typed(*remedy).code == 0


def test_a_run_is_waited_for_until_it_has_ended_and_not_until_its_result_was_delivered(
    tmp_path: Path, typed: Typed
) -> None:
    late = replace(FAST, announcing=Announcing(debounce_s=600.0))
    with served(tmp_path / "state", policy=late) as here:
        done = typed("run", "say hello", "--wait", "--state", str(here.home))
        assert done.code == 0
        assert "say hello" in done.out
        assert "Not ended" not in done.err


def test_a_spawn_at_a_limit_says_at_once_what_it_waits_for(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = replace(FAST, limits=Limits(children_max=1))
    with served(tmp_path / "state", policy=narrow) as here:
        spawned(here.client, "slow one")
        refused = typed("spawn", "another", "--on-full", "reject", "--state", str(here.home))
        assert (refused.code, "maxChildrenPerAgent" in refused.err) == (8, True)

        said: list[str] = []

        def say(words: str) -> None:
            said.append(words)
            if words.startswith("Waiting at a limit"):
                here.let_go()

        monkeypatch.setattr(spawn, "say", say)
        done = typed("spawn", "another", "--label", "second", "--state", str(here.home))
        assert (done.code, said[-1]) == (0, "accepted: second")
        assert "1/1" in said[0]
        assert here.client.get(task_path(done.out.strip()))["label"] == "second"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("why", ""), "target"),
        (("kill", " "), "target"),
        (("logs", ""), "target"),
        (("delete", ""), "target"),
        (("tree", ""), "target"),
        (("ps", "--root", ""), "target"),
        (("answer", ""), "target"),
        (("steer", "TASK", ""), "text"),
        (("send", "TASK", " "), "text"),
        (("reject", "TASK", "", "--hash", "x"), "reason"),
        (("kill", "TASK", "--reason", ""), "reason"),
        (("spawn", ""), "task"),
    ],
)
def test_what_is_empty_is_named(first: Served, typed: Typed, words: tuple[str, ...], field: str) -> None:
    task = spawned(first.client, "quick one")
    done = typed(*(task if word == "TASK" else word for word in words), "--json", "--state", str(first.home))
    assert done.code == 2, done.err
    assert (done.body["error"]["code"], done.body["error"]["field"]) == ("invalid_input", field)


def test_a_wrong_option_is_words_on_stderr_and_an_object_only_where_one_is_asked_for(typed: Typed) -> None:
    for words in (("ps", "--limit", "0"), ("ps", "--phase", "asleep"), ("nonsense",), ()):
        plain = typed(*words)
        assert (plain.code, plain.out) == (2, "")
        assert plain.err
        asked = typed(*words, "--json")
        assert (asked.code, asked.body["ok"], asked.body["error"]["code"]) == (2, False, "invalid_input")


def test_top_is_shown_once_to_a_program(first: Served, typed: Typed) -> None:
    shown = typed("top", "--json", "--state", str(first.home))
    assert (shown.code, shown.body["schema"], shown.body["ok"]) == (0, "clutch.top/1", True)


def test_the_values_of_a_filter_are_told_by_the_help_and_by_the_error(typed: Typed) -> None:
    helped, part, phase = (
        typed("ps", "--help"),
        typed("ps", "--only", "asleep"),
        typed("ps", "--phase", "asleep"),
    )
    for done, values in ((helped, ListPartOption), (part, ListPartOption), (phase, Phase)):
        told = re.sub(r"\s", "", done.out + done.err)
        assert [one for one in values if one not in told] == []
    assert "--phase" not in helped.out, "the names of phases are internal"


def test_replies_are_shown_by_the_command_that_counts_them(first: Served, typed: Typed) -> None:
    ended(first.client, spawned(first.client, "quick words", label="talker", notifyParent=True), "delivered")
    listed, inbox = (typed(counting, "--state", str(first.home)) for counting in ("ps", "inbox"))
    *_, logs = commands(listed.err)
    assert (logs[:2], commands(inbox.err)) == (["logs", "main"], [logs])
    shown = typed(*logs)
    assert shown.code == 0
    assert "talker" in shown.out


def test_lists_say_what_became_of_a_task_in_words_people_know(first: Served) -> None:
    gone = spawned(first.client, "slow one", label="gone")
    first.client.post(task_path(gone, "kill"), {})
    told = spawned(first.client, "quick one", label="told", notifyParent=True)
    ended(first.client, told, "delivered")
    counted = first.client.get("/v1/tasks", root=gone)["summary"]
    assert counted["killed"] >= 1
    assert f"{counted['killed']} killed" in output.summary(counted)
    task = first.client.get(task_path(told))
    assert output.doing(task, output.now()) == "unchecked · result delivered"


def test_usage_that_no_provider_counts_is_not_shown_as_0_tok() -> None:
    task: dict[str, Any] = {
        "taskId": "t_1", "label": "survey", "status": "running", "outcome": None, "depth": 1,
        "doingNow": "thinking · step 1", "doingSince": None,
        "currentTool": None, "createdAt": None, "startedAt": None, "endedAt": None, "pausedUntil": None,
        "lastProgressAt": None, "plan": None, "children": {"active": 0, "total": 0}, "error": None,
        "delivery": {"state": "none", "reason": None, "path": None, "nextAt": None, "attempts": 0, "at": None},
        "usage": {"subtree": {"input": 0, "output": 0, "calls": 2, "usd": None}}, "step": 1,
    }  # fmt: skip
    assert output.used(task) == "n/a"
    assert "tok" not in output.one_line(task, 0.0)
    task["usage"]["subtree"].update(input=1500, output=20)
    assert "1.5k tok" in output.one_line(task, 0.0)
