"""`clutch ps` and `clutch tree`: order, families, what is shown at which width, and what a failed task says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from clutch.cli import output
from clutch.cli.show import FINISHED, ListPartOption, nested
from clutch.core.families import in_families
from clutch.core.messages import Answer, Call, Input, Results
from clutch.core.policy import Limits
from clutch.core.text.format import typed as command
from clutch.ports import ModelError, ModelRequest, OnDelta, Trouble
from clutch.surfaces.http_client import task_path
from clutch.transactions.read.lists import ListState
from tests.surfaces.pseudo import terminal
from tests.surfaces.served import FAST, Served, Slow, served
from tests.surfaces.test_http_tasks import ended, seen, spawned
from tests.surfaces.typed import Done, typed

MANY = replace(FAST, limits=Limits(children_max=400, retained_max=800, descendants_max=800, depth_max=2))
LONG = "Check the authentication endpoints of the public interface, part 12"


NAMES = ("one", "two")


class Parents(Slow):
    """`fail …` ends with an error; `slow family` spawns two slow children."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        last = next(one for one in reversed(request.transcript) if isinstance(one, Input)).text
        if last.rpartition("\n")[2].startswith("fail"):
            raise ModelError(Trouble.BAD_REQUEST, "the repository is gone: " + "x" * 200)
        if last.endswith("family"):
            if not isinstance(request.transcript[-1], Results):
                spawns = (Call("sessions_spawn", {"task": f"slow {name}", "label": name}) for name in NAMES)
                return Answer("", tuple(spawns))
            await self.go.wait()
        return await super().ask(request, on_delta)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "state", Parents(), MANY) as one:
        yield one


def rows(done: Done) -> list[str]:
    return done.out.splitlines()[1:]


def test_ps_has_all_active_tasks_and_the_newest_ten_and_all_has_the_rest(here: Served) -> None:
    quick = [spawned(here.client, f"quick {number}") for number in range(14)]
    for task in quick:
        ended(here.client, task)
    slow = [spawned(here.client, f"slow {number}") for number in range(300)]
    listed = typed("ps", state=here.home)
    assert len(rows(listed)) == 300 + FINISHED
    assert all(task in listed.out for task in slow), "nothing active is cut"
    assert "older ones: `clutch ps -a" in listed.err
    order = [quick.index(row.split()[1]) for row in rows(listed)[300:] if row.split()[1] in quick]
    by_end = sorted(quick, key=lambda task: here.client.get(task_path(task))["endedAt"], reverse=True)
    assert [quick[place] for place in order] == by_end[:FINISHED] or len(order) < FINISHED, (
        "beyond 200 no number"
    )
    every = typed("ps", "-a", state=here.home)
    assert (len(rows(every)), every.err.count("older ones")) == (314, 0)
    body = typed("ps", "--json", state=here.home).body
    assert (len(body["tasks"]), body["next"] is not None) == (310, True)
    assert len(typed("ps", "--only", "finished", "-a", state=here.home).out.splitlines()) == 15
    assert len(typed("ps", "--limit", "3", state=here.home).out.splitlines()) == 304
    here.client.post(task_path("all", "kill"), {})


def test_attention_comes_first_then_running_then_queued_then_finished(tmp_path: Path) -> None:
    policy = replace(FAST, limits=Limits(children_max=100, retained_max=200))
    with served(tmp_path / "state", Parents(), policy, concurrency=1) as here:
        ended(here.client, spawned(here.client, "quick one", label="finished"))
        failed = spawned(here.client, "fail now", label="failed")
        ended(here.client, failed)
        asking = spawned(here.client, "ask me", label="asks")
        seen(here.client, asking, lambda one: one["status"] == "needs an answer")
        running = spawned(here.client, "slow one", label="runs")
        seen(here.client, running, lambda one: one["status"] == "running")
        spawned(here.client, "slow two", label="queues")
        listed = [row for row in rows(typed("ps", state=here.home)) if re.match(r" *\d", row)]
        labels = ("asks", "runs", "queues", "failed", "finished")
        assert [next(name for name in labels if name in row) for row in listed] == list(labels)
        assert typed("ps", "--only", "attention", state=here.home).out.count("asks") >= 1
        assert "runs" not in typed("ps", "--only", "attention", state=here.home).out
        here.let_go()


def test_the_parts_of_a_list_are_those_of_the_api() -> None:
    assert [*ListPartOption] == [*ListState]


def test_a_number_means_the_task_beside_it_also_below_its_parent(here: Served) -> None:
    parent = spawned(here.client, "slow family", label="parent")
    seen(here.client, parent, lambda one: one["children"]["active"] == 2)
    other = spawned(here.client, "slow other", label="other")
    listed = rows(typed("ps", state=here.home))
    named = [re.split(r"\s{2,}", row.strip()) for row in listed]
    assert [cells[3] for cells in named] == ["parent", "one", "two", "other"]
    child = next(row for row in listed if "one" in row)
    assert child.index("one") == listed[0].index("parent") + 2, "children are indented below their own parent"
    for number, task, *_ in named:
        assert here.client.get(task_path(f"#{number}"))["taskId"] == task
    assert other == named[3][1]
    tree = typed("tree", state=here.home).out
    assert tree.index("parent") < tree.index("one") < tree.index("other")
    here.let_go()


@pytest.mark.parametrize("width", [40, 80, 160])
def test_every_line_fits_and_the_id_is_visible_and_the_width_is_used(
    here: Served, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = spawned(here.client, "slow family", label=LONG)
    seen(here.client, parent, lambda one: one["children"]["active"] == 2)
    failed = spawned(here.client, "fail now", label=LONG)
    ended(here.client, failed)
    tasks = here.client.get("/v1/tasks")["tasks"]
    monkeypatch.setattr(output, "width", lambda: width)
    table = output.table(tasks, output.now(), command)
    forest = output.forest(nested(tasks), output.now(), command)
    for text in (table, forest):
        assert max(map(output.columns, text.splitlines())) <= width, text
        assert all(task["taskId"] in text for task in tasks), text
        assert f"-> clutch retry {failed}" in text
    shown = next(row for row in table.splitlines() if parent in row)
    assert (LONG in shown) == (width == 160), "the label is whole where there is room"
    assert width == 160 or ("…" in shown and "t 12" in shown), "a label is cut in the middle: its end differs"
    assert width < 160 or max(map(output.columns, table.splitlines())) > 100
    here.let_go()


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_terminal_shows_lists_without_wrapping(here: Served, width: int) -> None:
    failed = spawned(here.client, "fail now", label=LONG)
    ended(here.client, failed)
    spawned(here.client, "slow one", label=LONG)
    for words in (("ps",), ("tree",)):
        with terminal(*words, state=here.home, columns=width) as person:
            assert person.ended() == 0
            rows = [line for line in person.display.lines if LONG[:5] in line]
            assert len(rows) == 2, "one line for each task"
            assert all("t_" in row for row in rows), "the id is visible"
            assert f"-> clutch retry {failed} --state {here.home}" in "".join(person.display.lines)
    here.let_go()


def test_a_failed_task_says_its_error_and_the_next_command_on_every_surface(here: Served) -> None:
    waited = typed("run", "fail now", "--wait", state=here.home)
    (task,) = here.client.get("/v1/tasks")["tasks"]
    again = f"clutch retry {task['taskId']} --state {here.home}"
    for done in (
        waited,
        *(typed(*words, state=here.home) for words in (("ps",), ("tree",), ("logs",), ("top",))),
    ):
        said = done.out + done.err
        assert "the repository is gone" in said
        assert f"-> {again}" in said, said
    assert f"clutch retry {task['taskId']}" in typed("why", "last", state=here.home).out


def test_rows_of_one_page_are_placed_as_their_gateway_numbers_them() -> None:
    tasks: list[dict[str, Any]] = [
        {"taskId": name, "parentTaskId": parent} for name, parent in (("b", None), ("a", None), ("b1", "b"))
    ]
    numbers = {one["taskId"]: one["number"] for one in output.with_numbers(tasks, 10)}
    placed = in_families(tasks, itemgetter("taskId"), itemgetter("parentTaskId"))
    assert [numbers[task["taskId"]] for _, task in placed] == [11, 12, 13]


def test_a_label_keeps_its_beginning_and_its_end() -> None:
    assert output.shortened("survey of part 12", 11) == "surve…rt 12"
    assert output.shortened("short", 11) == "short      "
    assert output.shortened("字" * 10, 7).count("字") == 3
    assert all(output.columns(output.shortened(LONG, cells)) == cells for cells in range(1, 40))


@pytest.mark.parametrize("width", range(40, 161, 8))
def test_a_short_label_takes_no_more_than_it_needs(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "width", lambda: width)
    row = ("1", "t_5000002", "needs approval", "short", "2m30s", "12k", "$0.42", "asks to run " + "x" * 200)
    wide = output._widths([output.HEADINGS, row])
    assert wide[output.LABEL] == 5
    assert wide[output.TASK] == 9
    assert sum(wide) + 2 * (sum(map(bool, wide)) - 1) <= width
