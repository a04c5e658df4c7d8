"""The parts of `clutch top` without a terminal: the order of the list, the connection, repaints, what is loaded."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from threading import Event
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from textual.events import Key

from clutch.api.feed import LIVE_NAMES
from clutch.cli.top import lines
from clutch.cli.top.connection import Happened, Items, LiveConnection, LoadedTasks, Lost, News, Watching
from clutch.cli.top.dashboard import Dashboard, is_utf8
from clutch.cli.top.dialogs import Given
from clutch.cli.top.transcript import ShownTranscript
from clutch.cli.top.tree import GROUPS, TaskTree, groups_of
from clutch.core.model import TaskStatus
from clutch.surfaces.discovery import Address
from clutch.surfaces.http_client import GatewayClient
from tests.patience import PATIENCE_S
from tests.surfaces.served import Served
from tests.surfaces.test_http_tasks import spawned

USE = {"calls": 1, "input": 5, "output": 5, "usd": None}
SUMMARY = {"text": "3 running", "usd": "1.25"}


def a_task(number: int, parent: int | None = None, group: str = "active", **other: Any) -> dict[str, Any]:
    is_over = group == "finished"
    return {
        "taskId": f"t_{number:05}",
        "parentTaskId": None if parent is None else f"t_{parent:05}",
        "label": f"task {number}",
        "status": "done" if is_over else "running",
        "doingNow": "thinking · step 1",
        "doingSince": None,
        "lastProgressAt": None,
        "group": group,
        "agentId": "main",
        "outcome": "ok" if is_over else None,
        "error": None,
        "createdAt": f"2026-01-01T00:00:{number % 60:02}.000Z",
        "startedAt": "2026-01-01T00:00:00.000Z",
        "endedAt": f"2026-01-01T01:00:{number % 60:02}.000Z" if is_over else None,
        "usage": {"own": USE, "subtree": USE},
        "delivery": {"status": None, "text": ""},
        **other,
    }


# ---- order -----------------------------------------------------------------------------------------------


@st.composite
def forests(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Tasks whose parents may be later, missing, or their own descendants, as in an import."""
    count = draw(st.integers(0, 12))
    parents = draw(st.lists(st.one_of(st.none(), st.integers(0, 14)), min_size=count, max_size=count))
    groups = draw(st.lists(st.sampled_from([one.value for one in GROUPS]), min_size=count, max_size=count))
    return [a_task(number, parents[number], groups[number]) for number in range(count)]


@given(forests(), st.randoms())
def test_each_task_stands_once_below_its_parent_in_an_order_that_does_not_depend_on_the_input(
    tasks: list[dict[str, Any]], random: Any
) -> None:
    found = groups_of(tasks)
    order = [member.task["taskId"] for _, families in found for one in families for member in one.members]
    assert sorted(order) == sorted(task["taskId"] for task in tasks)
    for _, families in found:
        for family in families:
            levels = {member.task["taskId"]: member.level for member in family.members}
            for member in family.members[1:]:
                assert member.level == levels[member.task["parentTaskId"]] + 1
    assert [group for group, _ in found] == [group for group in GROUPS if group in dict(found)]
    random.shuffle(tasks)
    again = groups_of(tasks)
    assert [
        [m.task["taskId"] for m in one.members] for _, fs in again for one in fs if len(one.members) > 1
    ] == [[m.task["taskId"] for m in one.members] for _, fs in found for one in fs if len(one.members) > 1]


def test_a_chain_deeper_than_the_stack_of_python_is_one_family() -> None:
    depth = 3000
    ((_, (family,)),) = groups_of([a_task(number, number - 1 or None) for number in range(1, depth + 1)])
    assert len(family.members) == depth


def test_a_family_that_ends_while_it_is_shown_stays_open_and_an_older_one_is_folded() -> None:
    tree = TaskTree()
    tree.load(
        [a_task(1), a_task(2, parent=1), a_task(3, group="finished"), a_task(4, parent=3, group="finished")]
    )
    shown = [row.task_id for row in tree.rows() if row.task]
    assert shown == ["t_00001", "t_00002", "t_00003"]
    tree.keep(a_task(1, group="finished"))
    tree.keep(a_task(2, parent=1, group="finished"))
    assert [row.task_id for row in tree.rows() if row.task] == ["t_00003", "t_00001", "t_00002"]
    tree.fold("t_00001", is_open=False)
    tree.fold("t_00003", is_open=True)
    assert [row.task_id for row in tree.rows() if row.task] == ["t_00003", "t_00004", "t_00001"]
    tree.text = "task 2"
    assert [row.task_id for row in tree.rows() if row.task] == ["t_00001", "t_00002"]


@given(st.sampled_from(list(TaskStatus)), st.text(max_size=90), st.integers(60, 200), st.integers(1, 6))
def test_a_row_fills_the_width_keeps_the_id_and_shows_only_plain_characters(
    status: TaskStatus, label: str, width: int, level: int
) -> None:
    task = a_task(7, status=status, label=label, doingNow=label or "x")
    row = next(row for row in _rows([task]) if row.task)
    line = str(lines.task_line(row, task, width, 1.8e9, None))
    assert line.endswith("t_00007")
    assert line.isprintable()
    assert cell_len(lines.in_ascii(line)) == cell_len(line)
    assert lines.in_ascii(line).isascii()


def _rows(tasks: Sequence[dict[str, Any]]) -> Sequence[Any]:
    tree = TaskTree()
    tree.load(tasks)
    return tree.rows()


# ---- transcript ------------------------------------------------------------------------------------------


def messages(count: int) -> list[dict[str, Any]]:
    at = "2026-01-01T00:00:05.000Z"
    call = {"name": "shell", "args": {"command": "make [bold]all[/]"}}
    thought = {"text": "a secret plan"}
    answer = {"text": "", "calls": [call], "thoughts": [thought]}
    result = {"index": 0, "name": "shell", "text": "\x1b[2Jbuilt", "failed": False}
    return [
        {"seq": 1, "at": at, "kind": "input", "body": {"text": "do it", "source": "task"}},
        {"seq": 2, "at": at, "kind": "answer", "body": answer},
        {"seq": 3, "at": "2026-01-01T00:00:07.500Z", "kind": "results", "body": {"results": [result]}},
    ][:count]


def test_thinking_and_output_are_folded_and_a_call_gets_its_duration_when_it_has_ended() -> None:
    shown = ShownTranscript("t_1", started=1767225600.0, is_loaded=True)
    shown.add(messages(2))
    before = shown.paragraphs(None)
    assert [str(one.text) for one in before][-1] == "● shell(make [bold]all[/]) · no result yet"
    shown.live = "and now"
    assert str(shown.paragraphs(None)[-1].text) == "and now"
    shown.add(messages(3)[2:])
    after = [str(one.text) for one in shown.paragraphs(None)]
    assert after[-1] == "✓ shell(make [bold]all[/]) · 2s · 9 B"
    assert "secret" not in "\n".join(after)
    assert shown.paragraphs(None)[0] is before[0]  # only what has changed is wrapped again
    shown.toggle()
    opened = "\n".join(str(one.text) for one in shown.paragraphs(None))
    assert "a secret plan" in opened
    assert "\\x1b[2Jbuilt" in opened


def test_a_failed_task_shows_its_error_and_what_to_press() -> None:
    shown = ShownTranscript("t_1", started=None, is_loaded=True)
    task = a_task(1, status="failed", error="the disk is full")
    texts = [str(one.text) for one in shown.paragraphs(task)]
    assert texts == ["failed: the disk is full", "r runs it again or continues it."]


# ---- the connection --------------------------------------------------------------------------------------


class Heard:
    """What a connection has reported."""

    def __init__(self, link: LiveConnection) -> None:
        self.link = link
        self.news: list[News] = []

    def until(self, is_there: Callable[[Sequence[News]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_there(self.news):
            assert time.monotonic() < deadline, self.news[-20:]
            self.news += self.link.take()
            Event().wait(0.01)


def texts(news: Iterable[News]) -> set[str]:
    return {one.said["taskId"] for one in news if isinstance(one, Happened) and one.name in LIVE_NAMES}


def outcomes(news: Iterable[News]) -> set[str]:
    tasks = (one.said.get("task") for one in news if isinstance(one, Happened))
    return {task["taskId"] for task in tasks if task is not None and task["outcome"] is not None}


def test_text_comes_only_of_the_task_that_is_watched_and_no_change_of_another_is_missed(db: Served) -> None:
    first, second = (spawned(db.client, f"stream {name}") for name in ("one", "two"))
    link = LiveConnection(None, db.client)
    heard = Heard(link)
    link.open()
    try:
        heard.until(lambda news: Watching("") in news)
        link.watch(first)
        heard.until(lambda news: texts(news) != set())
        assert texts(heard.news) == {first}
        link.watch(second)
        heard.until(lambda news: Watching(second) in news)
        heard.until(lambda news: second in texts(news))
        since = heard.news[heard.news.index(Watching(second)) :]
        assert texts(since) == {second}
        assert sum(isinstance(one, LoadedTasks) for one in heard.news) == 1, "nothing is loaded again"
        link.watch(first)
        link.watch(second)
        db.let_go()
        heard.until(lambda news: outcomes(news) == {first, second})
        assert not any(isinstance(one, Lost) for one in heard.news)
    finally:
        link.close()


# ---- the program -----------------------------------------------------------------------------------------


class Silent(LiveConnection):
    """A connection whose news the test brings."""

    def open(self) -> None:
        self.asked: list[Any] = []

    def ask(self, question: Any, then: Any) -> None:
        self.asked.append((question, then))


def a_dashboard() -> tuple[Dashboard, Silent]:
    address = Address("http://127.0.0.1:1", 1, "0", "2026-01-01T00:00:00Z", False, None)
    link = Silent(None, GatewayClient(address, "s3cret-token"))
    return Dashboard(link), link


def an_item(**other: Any) -> dict[str, Any]:
    return {
        "id": "q_1", "hash": "h", "kind": "approval", "taskId": "t_00001", "sessionKey": "s", "label": "x",
        "text": "", "detail": {}, "directory": None, "isSandboxed": None, "consequences": {}, **other,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("is_sandboxed", "said"), [(True, "in the sandbox"), (False, "without a sandbox"), (None, "not known")]
)
def test_a_decision_shows_all_that_it_covers(is_sandboxed: bool | None, said: str) -> None:
    command = f"{'x' * 30_000}; rm -r /"
    item = an_item(
        text=f'shell {{"command": "{command}"}}',
        detail={"tool": "shell", "args": {"command": command}},
        directory="/srv/\x1b[2Jw",
        isSandboxed=is_sandboxed,
        consequences={"approve": "Approving runs it.", "reject": "Rejecting does not."},
    )
    shown = [str(line) for line in lines.whole_item(item)]
    assert command in shown
    assert item["text"] in shown, "also the name of the tool"
    (place,) = (line for line in shown if line.startswith("Runs in /srv/"))
    assert said in place
    assert place.isprintable()
    assert shown[-2:] == ["Approving runs it.", "Rejecting does not."]
    question = an_item(kind="question", text="y" * 30_000, detail={"choices": ["z" * 300]})
    assert [str(line).strip() for line in lines.whole_item(question)][2::3] == ["y" * 30_000, "z" * 300]


async def loaded(pilot: Any, link: Silent, tasks: list[dict[str, Any]]) -> None:
    link._news.put(LoadedTasks(tasks, SUMMARY, None))
    await pilot.pause(0.3)


def screen_text(app: Dashboard) -> str:
    return "\n".join(
        "".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()
    )


def test_two_hundred_events_a_second_make_at_most_ten_repaints() -> None:
    async def watch() -> None:
        app, link = a_dashboard()
        repaints = 0
        draw = app._display

        def count(screen: Any, renderable: Any) -> None:
            nonlocal repaints
            repaints += renderable is not None
            draw(screen, renderable)

        async with app.run_test(size=(160, 40)) as pilot:
            await loaded(pilot, link, [a_task(number) for number in range(1, 31)])
            app._display = count  # type: ignore[method-assign]
            loop = asyncio.get_running_loop()
            began, sent = loop.time(), 0
            while loop.time() - began < 3.0:
                due = int((loop.time() - began) * 200)
                for number in range(sent, due):
                    task = a_task(1 + number % 30, step=number, doingNow=f"step {number}")
                    link._news.put(Happened("progress", {"taskId": task["taskId"], "task": task}))
                    link._news.put(Happened("assistant:text", {"taskId": "t_00001", "text": "word "}))
                sent = due
                await asyncio.sleep(0.005)
            passed = loop.time() - began
            app._display = draw  # type: ignore[method-assign]
            assert sent > 500
            assert 3 <= repaints <= 10 * passed
            await pilot.pause(0.3)
            assert f"step {sent - 1}" in screen_text(app)

    asyncio.run(watch())


def test_the_selection_follows_the_task_and_a_lost_gateway_stops_the_clock() -> None:
    async def watch() -> None:
        app, link = a_dashboard()
        async with app.run_test(size=(80, 24)) as pilot:
            await loaded(pilot, link, [a_task(number) for number in range(1, 6)])
            await pilot.press("down", "down")
            assert app.task_list.selected == "t_00003"
            link._news.put(Happened("x", {"taskId": "t_00005", "task": a_task(5, group="needs attention")}))
            link._news.put(Happened("x", {"taskId": "t_00003", "task": a_task(3, group="finished")}))
            await pilot.pause(0.3)
            assert app.task_list.selected == "t_00003"
            assert app.task_list.rows[-1].task_id == "t_00003"
            link._news.put(Lost(1767225660.0, "gone"))
            await pilot.pause(0.3)
            assert "Reconnecting, data from" in screen_text(app)
            assert app.now() == 1767225660.0
            # What is not there any more after the return is gone; the cursor goes to the task above it.
            await loaded(pilot, link, [a_task(number) for number in (1, 2)])
            assert app.task_list.selected == "t_00002"
            assert "Live" in screen_text(app)

    asyncio.run(watch())


def test_keys_that_were_typed_ahead_decide_nothing() -> None:
    """`y` in the same burst as `a` was pressed before the command was shown."""

    async def press() -> None:
        app, link = a_dashboard()
        async with app.run_test(size=(80, 24)) as pilot:
            await loaded(pilot, link, [a_task(1)])
            detail = {"tool": "shell", "args": {"command": "rm -r /"}}
            link._news.put(Items([an_item(text="shell", detail=detail)]))
            await pilot.pause(0.3)
            early = Key("y", "y")
            await pilot.press("a")
            await pilot.pause(0.2)
            assert "y run it" in screen_text(app)
            app.post_message(early)
            await pilot.pause(0.2)
            sent = len(link.asked)
            assert "y run it" in screen_text(app)
            await pilot.press("y")
            await pilot.pause(0.2)
            assert "y run it" not in screen_text(app)
            assert len(link.asked) == sent + 1

    asyncio.run(press())


def test_only_a_message_is_said_to_be_sent() -> None:
    async def send(way: str) -> str:
        app, link = a_dashboard()
        async with app.run_test(size=(80, 24)) as pilot:
            await loaded(pilot, link, [a_task(1)])
            app.receipt = ("t_00002", "of an older message")
            app._send(a_task(1), Given(way, "more"))
            _, then = link.asked[-1]
            await asyncio.to_thread(then, {"taskId": "t_00001", "status": "accepted", "text": "accepted"})
            await pilot.pause(0.3)
            return screen_text(app).splitlines()[-1]

    assert "t_00001: sent" in asyncio.run(send("send"))
    assert "sent" not in asyncio.run(send("continue"))


def test_an_error_of_our_own_ends_it_without_printing_the_token() -> None:
    printed = Console(file=io.StringIO(), width=200)

    class Broken(Dashboard):
        def now(self) -> float:
            client = self.connection.client
            raise RuntimeError(f"ours, on port {client.address.pid}")

        def panic(self, *renderables: Any) -> None:
            printed.print(*renderables)
            super().panic(*renderables)

    async def fail() -> int | None:
        _, link = a_dashboard()
        app = Broken(link)
        with pytest.raises(RuntimeError):
            async with app.run_test(size=(80, 24)) as pilot:
                await loaded(pilot, link, [a_task(1)])
        return app.return_code

    assert asyncio.run(fail()) == 1
    said = cast(io.StringIO, printed.file).getvalue()
    assert "RuntimeError: ours, on port 1" in said
    assert "s3cret-token" not in said


@pytest.mark.slow
def test_only_top_at_a_terminal_loads_textual(db: Served) -> None:
    program = (
        "import io, sys\nfrom clutch.cli.app import run\nimport typer\n"
        "for words in ('--help', 'ps', 'tree', 'inbox', 'cost', 'status', 'top', 'top --help', 'top --json'):\n"
        "    sys.argv = ['clutch', *words.split()]\n"
        "    try:\n        run()\n    except typer.Exit:\n        pass\n"
        "print('LOADED', [name for name in ('textual', 'clutch.cli.top') if name in sys.modules])\n"
        "import clutch.cli.top.dashboard\nprint('LOADED', 'textual' in sys.modules)\n"
    )
    env = {**os.environ, "CLUTCH_HOME": str(db.home)}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.stdout.splitlines()[-2:] == ["LOADED []", "LOADED True"], done.stderr


def test_the_locale_says_whether_the_terminal_takes_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert is_utf8()
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    assert is_utf8()
    monkeypatch.setenv("LC_CTYPE", "de_DE.ISO-8859-1")
    assert not is_utf8()
    monkeypatch.setenv("LC_ALL", "C.utf8")
    assert is_utf8()
