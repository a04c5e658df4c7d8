"""`clutch top` in a real terminal of 80 and of 160 columns, with a real gateway behind it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clutch.core.model import Lane
from clutch.surfaces import discovery
from clutch.surfaces.http_client import task_path
from clutch.tools.registry import ToolSettings
from clutch.tools.sandbox.policy import Sandbox
from tests.patience import PATIENCE_S
from tests.surfaces.grid import GridTerminal, full_screen
from tests.surfaces.served import Served, served
from tests.surfaces.test_dashboard import DEEP, Families
from tests.surfaces.test_http_tasks import seen
from tests.surfaces.test_page import HOSTILE
from tests.surfaces.typed import typed

pytestmark = pytest.mark.slow

NARROW, WIDE = (80, 24), (160, 40)
UP, DOWN, RIGHT, LEFT, ENTER, ESCAPE = "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\r", "\x1b"
ROOMY = replace(
    DEEP,
    limits=replace(DEEP.limits, children_max=300),
    work=replace(DEEP.work, lanes={**DEEP.work.lanes, Lane.SUBAGENT: 100}),
)
SIZES = pytest.mark.parametrize("size", [NARROW, WIDE], ids=["80", "160"])


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Served]:
    settings = ToolSettings(sandbox=Sandbox.OFF, shell_needs_approval=True)
    with served(tmp_path / "state", models=Families(), policy=ROOMY, settings=settings) as here:
        yield here
        here.let_go()


def spawned(db: Served, task: str, label: str) -> str:
    return str(db.client.post("/v1/tasks", {"task": task, "label": label})["taskId"])


def task_of(db: Served, target: str) -> Any:
    return db.client.get(task_path(target))


def until(person: GridTerminal, db: Served, target: str, **wanted: Any) -> None:
    """Wait until the task is as wanted, while the terminal is read."""

    def is_there(_: object) -> bool:
        found = task_of(db, target)
        return all(found[name] == value for name, value in wanted.items())

    person.until(is_there, f"was {wanted}")


@SIZES
def test_the_list_the_transcript_and_the_inbox_are_shown(db: Served, size: tuple[int, int]) -> None:
    top = spawned(db, "family first child=slow a; second child=quick", "the parent")
    asking = spawned(db, "run it", "a builder")
    done = spawned(db, "look around", "a survey")
    with full_screen("top", state=db.home, size=size) as person:
        person.shows("Needs attention 1", "Active 3", "Finished 1", "Live")
        person.shows("! Approval needed · a builder", "touch ran", "a approve")
        assert re.search(r"▾ ◐ the parent +waiting for 1 of 2 subagents", person.grid.text)
        assert top in person.row("▾ ◐ the parent")
        assert re.match(r"    ● first child +running · thinking", person.row("● first child"))
        assert asking in person.row("! a builder")
        person.shows("shell(touch ran)")  # the transcript of the first task
        person.type(DOWN * 4)
        person.shows(f"a survey  {done}", "heard: [Subagent task")
        person.type(ENTER)
        person.hides("Active 3")
        person.until(lambda grid: re.search(r"✓ list · (\d+ ms|\d+s) · \d+ B", grid.text), "showed the call")
        person.type(ESCAPE)
        person.shows("Active 3")
        person.type("q")
        assert person.ended() == 0


@SIZES
def test_keys_move_fold_and_open(db: Served, size: tuple[int, int]) -> None:
    spawned(db, "family first child=slow a; second child=quick", "the parent")
    with full_screen("top", state=db.home, size=size) as person:
        person.shows("● first child", "✓ second child", "Live")
        person.type(LEFT)
        person.hides("● first child")
        assert "▸ ◐ the parent" in person.grid.text
        person.type(RIGHT)
        person.shows("● first child")
        person.type(DOWN)
        person.shows("the parent / first child")  # the path of the selected task
        person.type(LEFT)  # to the parent
        person.hides("the parent / first child")
        person.type(ENTER)
        person.shows("transcript  result  details  why", "sessions_spawn(first child)")
        person.hides("● first child ")
        person.type(RIGHT)
        person.shows("The result appears here when the task has ended.")
        person.type(RIGHT)
        person.shows("Model calls", "agent:main:main")
        person.type(RIGHT)
        person.shows("Accepted and queued.", "Blocked: waiting for 1 subagent.")
        person.type(ESCAPE)
        person.shows("● first child")


def test_peek_replies_in_place_and_message_queues_or_interrupts(db: Served) -> None:
    asker = spawned(db, "ask me", "curious")
    worker = spawned(db, "slow work", "worker")
    with full_screen("top", state=db.home) as person:
        person.shows("Answer needed", "Which one?", "● worker")
        person.type(" ")
        person.shows("Choices:", "Your answer")
        person.type("neither", ENTER)
        person.shows("must be one of: a, b")
        person.type(" ")
        person.shows("Your answer")
        person.type("b", ENTER)
        until(person, db, asker, status="done")
        # The cursor stays on the task, in its new group.
        person.shows("✓ curious", f"curious  {asker}")
        person.type(UP, "m")
        person.shows("Message to worker", "⏎ queue", "Tab: interrupt")
        person.type(ENTER)
        person.shows("The text must not be blank.")
        person.type("slow on", ENTER)
        person.shows("sent")
        person.type("m")
        person.shows("Message to worker")
        person.type("\t")
        person.shows("⏎ interrupt")
        person.type("hello there", ENTER)
        until(person, db, worker, status="done")
        person.shows("✓ worker")


def test_pause_kill_and_retry(db: Served) -> None:
    top = spawned(db, "family first child=slow a; second child=slow b", "the parent")
    with full_screen("top", state=db.home) as person:
        person.shows("● first child", "● second child", "waiting for 2 of 2")
        person.type("r")
        person.shows("only a finished task can be retried")
        person.type("p")
        until(person, db, top, status="paused")
        person.shows("paused")
        person.type("p")
        person.until(lambda _: task_of(db, top)["status"] != "paused", "resumed")
        person.shows("● second child")
        person.type("k")
        person.shows("Kill 3 tasks?", "y kill")
        assert re.search(r"│ t_\w+  second child  \w+", person.grid.text)
        person.type(ENTER, "n")  # Enter decides nothing
        person.hides("Kill 3 tasks?")
        assert task_of(db, top)["outcome"] is None
        person.type("k")
        person.shows("Kill 3 tasks?")
        person.type("y")
        until(person, db, top, status="killed")
        person.shows("■ the parent")
        person.type("r")
        person.shows("⏎ retry from the beginning")
        person.type("\t")
        person.shows("⏎ continue")
        person.type("\t", ENTER)
        until(person, db, top, attempt=2)
        person.shows("● first child")


@SIZES
def test_a_command_is_approved_after_it_was_shown_and_confirmed(
    db: Served, tmp_path: Path, size: tuple[int, int]
) -> None:
    task = spawned(db, "run it", "a builder")
    with full_screen("top", state=db.home, size=size) as person:
        person.shows("Approval needed · a builder")
        person.type("a")
        person.shows("Approval needed: a builder", "y run it")
        person.type(ENTER, "n")
        person.hides("y run it")
        assert not (tmp_path / "ran").exists()
        assert task_of(db, task)["status"] == "needs approval"
        person.type("a")
        person.shows("y run it")
        person.type("y")
        person.shows("✓ a builder", "Approved: a builder.")
        person.hides("Approval needed")
    assert (tmp_path / "ran").exists()


def test_a_decision_is_about_what_was_shown(db: Served) -> None:
    """The item is decided elsewhere while it is shown; the key decides nothing else."""
    first = spawned(db, "run it", "first")
    with full_screen("top", state=db.home) as person:
        person.shows("Approval needed · first")
        second = spawned(db, "run it", "second")
        person.shows("1 more")
        person.type("a")
        person.shows("y run it", "Approval needed: first")
        item = next(one for one in db.client.get("/v1/inbox")["items"] if one["taskId"] == first)
        given = {"decision": "reject", "text": "no", "hash": item["hash"]}
        db.client.post(f"/v1/inbox/{item['id']}", given)
        person.shows("Approval needed · second")  # behind the dialog
        assert "Approval needed: first" in person.grid.text
        person.type("y")
        person.hides("y run it")
        person.until(
            lambda grid: re.search(r"(?i)decided|answered|no longer|waits", grid.lines[-1]), "refused it"
        )
        assert task_of(db, second)["status"] == "needs approval"


def test_the_inbox_lists_decisions_rejects_with_a_comment_and_answers(db: Served) -> None:
    builder = spawned(db, "run it", "a builder")
    seen(db.client, builder, lambda one: one["status"] == "needs approval")
    curious = spawned(db, "ask openly", "curious")
    with full_screen("top", state=db.home) as person:
        person.shows("1 more")
        person.type("i")
        # It begins with the decision at the top, that of the selected task.
        person.shows("▸ Approval needed · a builder", "Answer needed · curious", "r reject with a comment")
        person.type("r")
        person.shows("Why: the task reads it")
        person.type(ENTER)
        person.shows("must not be blank")
        person.type("not today", ENTER)
        person.shows("Approval needed · a builder · rejected")  # it stays in its place
        until(person, db, builder, status="done")
        person.type("a")  # it is decided: nothing happens
        person.type(DOWN)
        person.shows("▸ Answer needed · curious", "What is it called?")
        person.type("a")
        person.shows("Your answer")
        person.type("Ada", ENTER)
        person.shows("curious · answered")
        until(person, db, curious, status="done")
        person.type(ESCAPE)
        person.hides("r reject with a comment")


def test_a_task_is_started_and_found_with_the_filter(db: Served) -> None:
    spawned(db, "slow work", "albatross")
    with full_screen("top", state=db.home) as person:
        person.shows("● albatross")
        person.type("s")
        person.shows("New task", "⏎ start")
        person.type("slow digging", ENTER)
        person.shows("● slow digging", "Started t_")
        person.shows("slow digging  t_")  # it is selected
        person.type("/")
        person.shows("Filter:", "Esc clear it")
        person.type("ALBA")
        person.hides("● slow digging")
        person.type(ENTER)
        person.hides("Esc clear it")
        person.shows("albatross  t_")
        person.type("m")  # keys act again
        person.shows("Message to albatross")
        person.type(ESCAPE)
        person.hides("Message to albatross")
        person.type(ESCAPE)
        person.shows("● slow digging")


def test_costs_help_and_quit(db: Served) -> None:
    spawned(db, "quick one", "done soon")
    with full_screen("top", state=db.home) as person:
        person.shows("✓ done soon")
        person.type("c")
        person.shows("By day", "By model", "1 calls have no known price")
        person.type(ESCAPE)
        person.hides("By model")
        person.type("?")
        person.shows("Keys", "Approve or answer the decision at the top.")
        # The dialog grows to its height in a second drawing.
        person.until(
            lambda grid: {"k", "m", "q"} <= {line.strip(" │")[:1] for line in grid.lines}, "showed all keys"
        )
        person.type(ESCAPE)
        person.shows("✓ done soon")  # beneath the dialog: Esc and q that come together are another key
        person.type("q")
        assert person.ended() == 0


@SIZES
def test_hostile_text_is_shown_and_never_run(db: Served, size: tuple[int, int]) -> None:
    """The grid refuses each control sequence that Textual does not write."""
    escapes = ["\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x9b31mred", "\u202eabc", "\x1b]22;text\x07"]
    markup = ["[bold red]x[/]", "[@click=app.quit]x[/]", "[/]", "$primary [b]", ":smile: \\[x]"]
    # The gateway refuses labels with control characters; tasks and what models write may have them.
    for number, hostile in enumerate((*markup, *HOSTILE[::20])):
        spawned(db, f"{hostile}\n{escapes[number % len(escapes)]}x", hostile[:60])
    spawned(db, "run it", "[red]asker[/red]")
    with full_screen("top", state=db.home, size=size) as person:
        person.shows("! [red]asker[/red]", "Live")
        for number in range(len(markup) + len(HOSTILE[::20])):
            person.type(DOWN)
            person.until(lambda grid: "heard: " in grid.text or "x" in grid.text, f"showed task {number}")
        person.type(UP * 40)
        person.shows("Approval needed · [red]asker[/red]")
        person.type("a")
        person.shows("y run it")
        person.type(ESCAPE)
        person.hides("y run it")
        person.type(DOWN, ENTER)
        person.shows("transcript  result  details  why", "heard: ")
        person.type(RIGHT * 2)
        person.shows("Delivery")
        person.type(RIGHT)
        person.shows("Accepted and queued.")


def a_gateway(home: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "clutch", "serve", "--state", str(home), "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "CLUTCH_NO_START": ""},
    )
    deadline = time.monotonic() + PATIENCE_S
    while not (home.exists() and discovery.find(home)):
        assert process.poll() is None
        assert time.monotonic() < deadline
    return process


def test_a_gateway_that_dies_greys_out_and_its_return_is_noticed(tmp_path: Path) -> None:
    home = tmp_path / "state"
    gateway = a_gateway(home)
    try:
        for number in range(3):
            assert typed("run", f"say {number}", "--label", f"task {number}", "--wait", state=home).code == 0
        with full_screen("top", state=home) as person:
            person.shows("Live", "Finished 3", "task 2", "Demo model (no API key)")
            assert not person.grid.is_dim("task 2")
            gateway.kill()
            gateway.wait()
            person.shows("Reconnecting, data from ")
            person.until(lambda grid: grid.is_dim("task 2"), "greyed out")
            gateway = a_gateway(home)
            person.shows("Live")
            assert typed("run", "say 3", "--label", "task 3", "--wait", state=home).code == 0
            person.shows("Finished 4", "✓ task 3 ")
            assert [len(re.findall(f"✓ task {number} ", person.grid.text)) for number in range(4)] == [1] * 4
            person.until(lambda grid: not grid.is_dim("task 2"), "is drawn as before")
    finally:
        gateway.send_signal(signal.SIGTERM)
        gateway.wait()


def test_a_gateway_that_is_stopped_is_noticed_by_its_silence(tmp_path: Path) -> None:
    home = tmp_path / "state"
    gateway = a_gateway(home)
    try:
        with full_screen("top", state=home) as person:
            person.shows("Live", "No tasks yet: s starts one.")
            gateway.send_signal(signal.SIGSTOP)
            person.shows("Reconnecting, data from ")
            gateway.send_signal(signal.SIGCONT)
            person.shows("Live")
    finally:
        gateway.send_signal(signal.SIGCONT)
        gateway.send_signal(signal.SIGTERM)
        gateway.wait()


def test_it_follows_the_size_of_the_terminal(db: Served) -> None:
    spawned(db, "run it", "a builder")
    spawned(db, "quick\n" + "extraordinarily longwinded sentences " * 8, "a writer")
    with full_screen("top", state=db.home, size=NARROW) as person:
        person.shows("Live", "a builder", "✓ a writer")
        person.type(DOWN)
        person.shows("longwinded")
        rule = next(place for place, line in enumerate(person.grid.lines) if line.startswith("────"))
        assert rule > 8  # the transcript is below the list
        person.resize(*WIDE)
        person.shows("Needs attention 1", "longwinded")
        person.until(
            lambda grid: "│ a writer" in grid.text and max(map(len, grid.lines)) == WIDE[0],
            "put the transcript beside the list, and filled the screen",
        )
        person.resize(60, 16)
        person.until(lambda grid: "Live" in grid.lines[0] and "────" in grid.text, "drew the small screen")
        person.shows("a builder", "longwinded")
        words = re.findall(r"[a-z]+", " ".join(person.grid.lines[10:-1]))
        assert {one for one in words if one.startswith("longw")} == {"longwinded"}  # no word is broken


def test_two_hundred_tasks_scroll_below_the_cursor(db: Served) -> None:
    for number in range(200):
        spawned(db, "quick one" if number < 140 else "slow work", f"task {number:03}")
    with full_screen("top", state=db.home) as person:
        person.shows("Active 60", "task 140")
        person.until(lambda grid: "140 done" in grid.lines[0], "counted them")
        person.type(DOWN * 34)
        person.shows("task 174  t_")  # or the title of 170 would be seen on the way down
        person.type(UP * 4)
        person.shows("task 170  t_")
        line = next(place for place, one in enumerate(person.grid.lines) if "● task 170" in one)
        # A task that comes above the cursor moves it down the list, and the list up: the line stays.
        spawned(db, "run it", "urgent")
        person.shows("Approval needed · urgent")
        person.until(
            lambda grid: "● task 170" in grid.lines[line] or "● task 170" in grid.lines[line + 2], "stayed"
        )
        person.shows("task 170  t_")
        person.type("\x1b[F")
        person.until(lambda grid: re.search(r"task 0\d\d  t_", grid.text), "went to the end")
        person.type("\x1b[H")
        person.shows("urgent  t_")


def test_no_colour_and_no_utf8_are_respected(db: Served) -> None:
    spawned(db, "family first child=slow a; zweites Kind=quick", "parent ünïcode")
    with full_screen("top", state=db.home, env={"NO_COLOR": "1"}) as person:
        person.shows("● first child", "Live")
        assert person.grid.colours == set()
    with full_screen("top", state=db.home, env={"LC_ALL": "C"}) as person:
        person.shows("* first child", "v % parent ?n?code", "Live")
        assert person.grid.text.isascii()
        assert person.grid.colours
        person.type("?")
        person.shows("Select a task.")
        assert person.grid.text.isascii()


def test_it_says_how_to_install_textual_and_shows_the_plain_list(db: Served) -> None:
    spawned(db, "slow work", "worker")
    program = (
        "import sys; sys.modules['textual'] = None\nfrom clutch.cli.app import run\n"
        "from clutch.cli import show\nshow.is_screen = lambda: True\n"
        f"sys.argv = ['clutch', 'top', '--state', {str(db.home)!r}]\nsys.exit(run())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'clutch-agents[top]'" in done.stderr
    assert "worker" in done.stdout
    assert "1 running" in done.stderr


def test_without_a_terminal_it_prints_the_list_once(db: Served) -> None:
    spawned(db, "slow work", "worker")
    shown = typed("top", state=db.home)
    assert shown.code == 0
    assert "worker" in shown.out
    body = typed("top", "--json", state=db.home).body
    assert (body["schema"], [one["label"] for one in body["tasks"]]) == ("clutch.top/1", ["worker"])


def test_without_a_gateway_it_shows_the_saved_list(tmp_path: Path) -> None:
    with served(tmp_path / "state", models=Families(), policy=DEEP) as here:
        spawned(here, "quick one", "left behind")
        here.client.get(task_path("left behind", "wait"))
    with full_screen("top", state=tmp_path / "state") as person:
        person.shows("left behind", "Gateway not running")
        assert person.ended() == 0
