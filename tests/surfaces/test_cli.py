"""The second terminal: real `clutch` processes against what runs in another one, and beside it when nothing runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperArgument, TyperOption
from typer.main import get_command

from clutch.cli import app
from clutch.surfaces.http_client import task_path
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import ended, seen, spawned
from tests.surfaces.typed import Done

pytestmark = pytest.mark.slow

#: Clears the screen, names the window, changes the colour, reads backwards, hides a character.
NASTY = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\u202egnp\u200b"


def clutch(*words: object, state: Path, **env: str) -> Done:
    ran = subprocess.run(
        [sys.executable, "-m", "clutch", *map(str, words), "--state", str(state)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "NO_COLOR": "1", **env},
    )
    return Done(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("first") / "state", policy=FAST) as here:
        yield here


def test_the_second_terminal_lists_steers_and_kills_what_runs_in_the_first(first: Served) -> None:
    task = spawned(first.client, "slow survey", label="survey")
    seen(first.client, task, lambda one: one["phase"] == "running")

    shown = clutch("ps", state=first.home)
    assert shown.code == 0
    (line,) = [line for line in shown.out.splitlines() if task in line]
    number, *rest = line.split()
    assert rest[:3] == [task, "running", "survey"]
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "1 running" in shown.err

    steered = clutch("steer", f"#{number}", "slow and elsewhere", "--json", state=first.home)
    assert (steered.code, steered.body["schema"], steered.body["ok"]) == (0, "clutch.steer/1", True)
    assert (steered.body["status"], steered.body["taskId"]) == ("accepted", task)

    killed = clutch("kill", "survey", "--reason", "enough", state=first.home)
    assert (killed.code, killed.out, killed.err) == (0, "", f"stopped: {task}\n")
    assert first.client.get(task_path(task))["error"] == "enough"


def test_a_plan_is_shown_in_the_inbox_and_approved_from_there(first: Served) -> None:
    task = spawned(first.client, "think first", planMode=True, label="planner")
    seen(first.client, task, lambda one: one["phase"] == "awaiting_approval")
    inbox = clutch("inbox", state=first.home)
    assert f"{task}  needs approval  planner" in inbox.out
    assert f"clutch approve {task}" in inbox.out
    unsure = clutch("approve", task, "--json", state=first.home)
    assert (unsure.code, unsure.body["error"]["field"]) == (2, "--hash")
    stale = clutch("approve", task, "--hash", "0123456789abcdef", "--json", state=first.home)
    assert (stale.code, stale.body["error"]["code"]) == (1, "plan_changed")
    sure = clutch("approve", task, "--yes", state=first.home)
    assert (sure.code, sure.err) == (0, f"approved {task}\n")
    assert ended(first.client, task)["task"]["outcome"] == "ok"


def test_a_question_is_answered_from_the_second_terminal(first: Served) -> None:
    task = spawned(first.client, "ask me")
    seen(first.client, task, lambda one: one["reason"] == "needs-you")
    (item,) = [
        one for one in clutch("inbox", "--json", state=first.home).body["items"] if one["taskId"] == task
    ]
    assert clutch("answer", item["id"], "b", state=first.home).code == 0
    assert ended(first.client, task)["task"]["outcome"] == "ok"


def _asking(first: Served, task: str, **options: Any) -> tuple[str, Any]:
    """A task that waits for a decision, and its item in the inbox."""
    made = spawned(first.client, task, **options)
    seen(first.client, made, lambda one: one["reason"] == "needs-you" or one["phase"] == "awaiting_approval")
    (item,) = [one for one in first.client.get("/v1/inbox")["items"] if one["taskId"] == made]
    return made, item


def test_a_decision_takes_every_form_of_a_target(first: Served) -> None:
    """A question's id, or the task by id, label, `last` or number; a finished task with the same label is in no way."""
    quick = spawned(first.client, "quick one", label="asker")
    ended(first.client, quick)
    for form in ("taskId", "id", "label", "last", "number"):
        task, item = _asking(first, "ask me", label="asker")
        target = {"last": "last", "label": "asker"}.get(form) or item.get(form)
        if target is None:
            (line,) = [line for line in clutch("ps", state=first.home).out.splitlines() if task in line]
            target = line.split()[0]
        done = clutch("answer", target, "b", "--json", state=first.home)
        assert (done.code, done.body["status"], done.body["taskId"]) == (0, "answered", task), form
        assert ended(first.client, task)["task"]["outcome"] == "ok"
    for command, outcome in (("approve", "ok"), ("reject", "error")):
        task, _ = _asking(first, "think first", planMode=True, label="planned")
        more = ("--end", "no") if command == "reject" else ()
        assert clutch(command, "last", *more, "--yes", state=first.home).code == 0
        assert ended(first.client, task)["task"]["outcome"] == outcome


def test_a_decision_on_what_is_ambiguous_or_does_not_wait_lists_the_items(first: Served) -> None:
    (one, item), (two, other) = (_asking(first, "ask me", label="pair") for _ in range(2))
    several = clutch("answer", "pair", "b", "--json", state=first.home)
    assert (several.code, several.body["error"]["code"]) == (1, "ambiguous")
    shown = several.body["error"]["candidates"]
    assert {line.partition(" ")[0] for line in shown} == {item["id"], other["id"]}
    assert "'pair' fits 2 items of the inbox" in several.err
    idle = spawned(first.client, "quick one", label="idle")
    ended(first.client, idle)
    none = clutch("approve", "idle", "--yes", "--json", state=first.home)
    assert (none.code, none.body["error"]["code"]) == (1, "not_found")
    assert "'idle' has nothing that waits for a decision" in none.err
    assert {line.partition(" ")[0] for line in none.body["error"]["candidates"]} >= {item["id"], other["id"]}
    for task in (one, two):
        first.client.post(task_path(task, "kill"), {})


def test_a_call_is_approved_by_its_task_only_after_it_was_shown(tmp_path: Path) -> None:
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(tmp_path / "state", policy=FAST, settings=settings) as here:
        task, item = _asking(here, "run it", label="runner")
        unsure = clutch("approve", "runner", "--json", state=here.home)
        assert (unsure.code, unsure.body["error"]["field"]) == (2, "--hash")
        assert item["hash"] in unsure.body["error"]["message"]
        wrong = clutch("reject", "runner", "no", "--end", "--yes", "--json", state=here.home)
        assert (wrong.code, wrong.body["error"]["field"]) == (2, "--end/--revise")
        assert clutch("approve", item["id"], state=here.home).code == 0
        assert ended(here.client, task)["task"]["outcome"] == "ok"
        assert (tmp_path / "ran").exists()


def test_a_task_is_archived_and_a_session_deleted_also_by_the_earlier_names(first: Served) -> None:
    for archive, delete in (("archive", "delete"), ("remove", "rm")):
        task = spawned(first.client, "quick one")
        ended(first.client, task, "delivered")
        archived = clutch(archive, task, "--json", state=first.home)
        assert (archived.code, archived.body["schema"], archived.body["taskId"]) == (
            0,
            "clutch.archive/1",
            task,
        )
        assert task not in clutch("ps", state=first.home).out
        assert task in clutch("ps", "--all", state=first.home).out
        deleted = clutch(delete, task, state=first.home)
        assert (deleted.code, deleted.err.partition(":")[0]) == (0, "deleted")
    task = spawned(first.client, "slow one")
    refused = clutch("archive", task, "--json", state=first.home)
    assert (refused.code, refused.body["error"]["code"]) == (8, "forbidden")
    first.client.post(task_path(task, "kill"))


def test_lists_are_objects_in_the_promised_form(first: Served) -> None:
    task = spawned(first.client, "quick one")
    ended(first.client, task, "delivered")
    listed = clutch("ps", "--all", "--json", state=first.home).body
    assert (listed["schema"], listed["ok"]) == ("clutch.ps/1", True)
    assert set(listed) == {"schema", "ok", "at", "cursor", "summary", "tasks", "next", "stalledAfterSeconds"}
    assert first.client.get(task_path(task)) in listed["tasks"]
    tree = clutch("tree", task, "--json", state=first.home).body
    assert tree["schema"] == "clutch.tree/1"
    assert [node["nodes"] for node in tree["tasks"] if node["taskId"] == task] == [[]]


def test_what_a_child_calls_itself_cannot_touch_the_terminal(first: Served) -> None:
    """S28."""
    task = spawned(first.client, f"quick {NASTY}")
    ended(first.client, task)
    listed, followed = (clutch(*words, state=first.home) for words in (("ps",), ("logs", task)))
    for done in (listed, followed):
        assert done.code == 0, done.err
        assert all(one.isprintable() or one in "\n\t" for one in done.out + done.err)
    assert "\\x1b[2J" in followed.out
    assert "\\u202egnp" in followed.out


def test_what_cannot_be_done_says_why_and_has_its_exit_code(first: Served) -> None:
    unknown = clutch("kill", "t_zzzz", "--json", state=first.home)
    assert (unknown.code, unknown.body["ok"], unknown.body["error"]["code"]) == (1, False, "not_found")
    assert unknown.err.startswith("clutch kill: there is no ")
    task = spawned(first.client, "slow one")
    too_soon = clutch("retry", task, "--json", state=first.home)
    assert (too_soon.code, too_soon.body["error"]["code"]) == (8, "forbidden")
    assert clutch("ps", "--limit", "0", state=first.home).code == 2
    assert clutch("ps", "--phase", "asleep", state=first.home).code == 2
    first.client.post(task_path(task, "kill"))


def test_a_run_that_is_waited_for_ends_with_the_exit_code_of_its_outcome(first: Served) -> None:
    good = clutch("run", "say hello", "--wait", "--json", "--label", "greeter", state=first.home)
    assert (good.code, good.body["schema"], good.body["ok"], good.body["exitCode"]) == (
        0,
        "clutch.run/1",
        True,
        0,
    )
    assert good.body["task"]["label"] == "greeter"
    assert "say hello" in good.body["result"]["text"]
    needs = clutch("run", "think", "--plan", "--wait", state=first.home)
    assert (needs.code, "clutch inbox" in needs.err) == (5, True)
    late = clutch("run", "slow one", "--wait", "--timeout", "0.1", "--json", state=first.home)
    assert (late.code, late.body["ok"], late.body["task"]["outcome"]) == (3, False, None)
    assert clutch("kill", late.body["task"]["taskId"], state=first.home).code == 0


def test_a_dry_run_says_what_would_be_accepted_and_starts_nothing(first: Served, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    _ = file.write_text("read me")
    before = clutch("ps", "--all", "--json", state=first.home).body["tasks"]
    wanted = ("spawn", "look", "--attach", file, "--budget-tokens", 900, "--thread", "--dry-run")
    said = clutch(*wanted, state=first.home)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("would be accepted: model ")
    assert "session mode" in said.out
    assert "Tasks like this" in said.out
    wrong = clutch("spawn", "look", "--count", 3, state=first.home)
    assert (wrong.code, "--dry-run" in wrong.err) == (2, True)
    assert clutch("ps", "--all", "--json", state=first.home).body["tasks"] == before


def test_a_spawn_prints_the_id_and_its_words_can_be_followed(first: Served) -> None:
    spawn = clutch("spawn", "quick one", state=first.home)
    assert spawn.code == 0
    task = spawn.out.strip()
    followed = clutch("logs", "-f", task, state=first.home)
    assert followed.code == 0
    assert "heard: " in followed.out
    lines = [json.loads(line) for line in clutch("logs", task, "--json", state=first.home).out.splitlines()]
    assert [line["kind"] for line in lines] == ["input", "answer"]


def test_without_a_gateway_lists_are_read_beside_and_verbs_say_how_to_start_one(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        task = spawned(here.client, "quick one", label="left behind")
        ended(here.client, task, "delivered")
        asked = here.client.get("/v1/tasks")
    for words in (("tree", "--json"), ("ps", "--phase", "completed", "--json")):
        done = clutch(*words, state=here.home)
        assert done.code == 0
        assert "Gateway not running" in done.err
        assert [one["taskId"] for one in done.body["tasks"]] == [task]
        assert done.body["summary"] == asked["summary"]
    assert "heard: " in clutch("logs", task, state=here.home).out
    done = clutch("kill", task, "--json", state=here.home)
    assert (done.code, done.body["ok"]) == (9, False)
    assert "clutch serve" in done.body["error"]["message"]
    assert not (tmp_path / "nothing").exists()


def test_a_served_gateway_works_until_it_is_told_to_stop(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "clutch", "serve", "--state", str(state), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as serving:
        assert serving.stdout is not None
        ready = json.loads(serving.stdout.readline())
        assert (ready["schema"], ready["ok"]) == ("clutch.serve/1", True)
        assert ready["url"].startswith("http://127.0.0.1:")
        twin = clutch("serve", "--json", state=state)
        assert (twin.code, twin.body["ok"]) == (1, False)
        assert ready["url"] in twin.body["error"]["message"]
        done = clutch("run", "say hello", "--wait", "--json", state=state)
        assert (done.code, done.body["task"]["outcome"]) == (0, "ok")
        serving.send_signal(signal.SIGTERM)
        out, err = serving.communicate(timeout=PATIENCE_S)
    assert (serving.returncode, out) == (0, "")
    assert "Stopping" in err
    assert not (state / "gateway.json").exists()


def test_no_command_that_only_asks_loads_what_talks_to_models(first: Served) -> None:
    code = (
        "import sys\nfrom clutch.cli.app import run\n"
        "sys.argv[1:] = ['ps', '--state', sys.argv[1]]\nassert run() == 0\n"
        "heavy = {'pydantic_ai','mcp','openai','anthropic','starlette','uvicorn','aiohttp','clutch.wiring'}\n"
        "heavy |= {'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(first.home)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"


def test_typer_still_makes_its_converters_where_we_put_them_off() -> None:
    group: Any = get_command(app.app)
    context = group.make_context("clutch", ["ps"])
    commands = [group, group.commands["kill"], group.commands["config"].commands["check"]]
    parameters = [one for command in commands for one in command.get_params(context)]
    assert {type(one) for one in parameters} == {TyperArgument, TyperOption}
    for one in parameters:
        converter = getattr(one, app.MAKES, lambda: None)()
        assert isinstance(converter, app.Converting), (
            f"typer has no {type(one).__name__}.{app.MAKES} any more, so every command loads pydantic: see cli/app.py"
        )


def test_beside_a_store_every_look_works_and_loads_only_what_it_shows(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=FAST) as here:
        task = spawned(here.client, "quick one", label="left behind")
        ended(here.client, task, "delivered")
    code = (
        "import sys\nfrom clutch.cli.app import run\n"
        "state, task = sys.argv[1:]\n"
        "def look(*words):\n    sys.argv[1:] = [*words, '--state', state]\n    assert run() == 0, words\n"
        "heavy = {'pydantic_ai','mcp','openai','anthropic','starlette','uvicorn','aiohttp','clutch.wiring'}\n"
        "lists = {'asyncio','http.client','clutch.core.policy','clutch.core.lifecycle','pydantic'}\n"
        "sys.argv[1:] = ['kill', 'last', '--state', state + '/none']\nassert run() == 9\n"
        "print(sorted((heavy | lists | {'apsw', 'clutch.engine'}) & set(sys.modules)), file=sys.stderr)\n"
        "look('ps'); look('tree'); look('inbox'); look('dead')\n"
        "print(sorted((heavy | lists) & set(sys.modules)), file=sys.stderr)\n"
        "look('logs', task); look('why', task); look('replay', task)\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, str(here.home), task]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("[")] == ["[]", "[]", "[]"]
    assert "start one with `clutch serve --state" in done.stderr
