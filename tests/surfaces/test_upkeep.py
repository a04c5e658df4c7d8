"""`cost`, `export`, `backup` and `gc`: what was used, what was said, a copy while it works, and what may go."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from clutch.cli.show import added_up
from clutch.core.policy import Keeping
from clutch.surfaces.http_client import session_path, task_path
from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_cli import NASTY
from tests.surfaces.test_http_tasks import ended, seen, spawned
from tests.surfaces.typed import typed

#: Over for a thousandth of a second is long enough, and nobody sweeps by itself.
TIDY = replace(FAST, keeping=Keeping(archive_after_s=0.001, transcript_after_s=0, sweep_s=3600))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("first") / "state", policy=FAST) as here:
        yield here


def test_cost_adds_up_what_was_used_by_whatever_is_asked_for(first: Served) -> None:
    ended(first.client, spawned(first.client, "quick one", notifyParent=True), "delivered")
    by_model = typed("cost", "--by", "model", "--json", state=first.home).body
    assert (by_model["schema"], by_model["ok"], by_model["by"]) == ("clutch.cost/1", True, "model")
    assert sum(one["calls"] for one in by_model["usage"]) == by_model["total"]["calls"] >= 2
    shown = typed("cost", state=first.home)
    assert "agent:main:main" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert typed("cost", "--by", "weekday", state=first.home).code == 2


def test_a_price_nobody_knows_makes_the_sum_unknown() -> None:
    known = {"calls": 1, "input": 2, "output": 3, "cacheRead": 0, "cacheWrite": 0, "usd": "0.10"}
    assert added_up([known, {**known, "usd": "0.05"}])["usd"] == "0.15"
    assert added_up([known, {**known, "usd": None}])["usd"] is None
    assert added_up([known, {**known, "usd": None}])["calls"] == 2


def test_an_export_has_the_task_its_words_and_its_result(first: Served, tmp_path: Path) -> None:
    task = spawned(first.client, f"quick {NASTY}", label="errand")
    ended(first.client, task, "delivered")
    lines = [json.loads(line) for line in typed("export", "errand", state=first.home).out.splitlines()]
    assert [line["kind"] for line in lines] == ["task", "message", "message", "result"]
    assert {(line["schema"], line["ok"], line["taskId"]) for line in lines} == {
        ("clutch.export/1", True, task)
    }
    assert lines[-1]["text"].startswith("heard: ")
    file = tmp_path / "errand.md"
    typed("export", task, "--format", "markdown", "--output", file, state=first.home)
    assert file.stat().st_mode & 0o777 == 0o600
    assert "# errand" in file.read_text()
    assert "\x1b" not in file.read_text()
    again = typed("export", task, "--output", file, state=first.home)
    assert (again.code, "cannot be created" in again.err) == (2, True)


def test_s19_an_export_has_no_secret_unless_somebody_wants_it(first: Served) -> None:
    key, word = f"sk-{'canary' * 4}", "hunter2canary"
    task = spawned(first.client, f"quick {key} password={word}", label=f"use {key}")
    ended(first.client, task, "delivered")
    for form in (("--json",), ("--format", "markdown")):
        said = typed("export", task, *form, state=first.home)
        assert (said.code, "canary" in said.out, "[redacted]" in said.out) == (0, False, True)
    whole = typed("export", task, "--with-secrets", state=first.home).out
    assert (key in whole, word in whole) == (True, True)


def test_an_export_of_a_main_session_takes_the_tree_along_also_without_a_gateway(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with served(home, policy=FAST) as here:
        task = spawned(here.client, "quick one")
        ended(here.client, task, "delivered")
        while_served = typed("export", "agent:main:main", "--tree", state=home).out
    lines = [
        json.loads(line) for line in typed("export", "agent:main:main", "--tree", state=home).out.splitlines()
    ]
    assert (lines[0]["kind"], lines[0]["sessionKey"]) == ("session", "agent:main:main")
    assert task in {line.get("taskId") for line in lines}
    assert [json.loads(line)["kind"] for line in while_served.splitlines()] == [
        line["kind"] for line in lines
    ]
    nobody = typed("export", "nobody", "--output", tmp_path / "none", state=home)
    assert (nobody.code, nobody.out, (tmp_path / "none").exists()) == (1, "", False)


def test_a_backup_made_while_tasks_run_is_whole_and_continues_elsewhere(
    first: Served, tmp_path: Path
) -> None:
    running = spawned(first.client, "slow one", label="working")
    seen(first.client, running, lambda one: one["phase"] == "running")
    there = tmp_path / "other"
    there.mkdir(0o700)
    said = typed("backup", there / "clutch.db", "--json", state=first.home).body
    assert (said["schema"], said["ok"], said["bytes"]) == (
        "clutch.backup/1",
        True,
        (there / "clutch.db").stat().st_size,
    )
    assert (there / "clutch.db").stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(there / "clutch.db")) as tables, tables:
        assert tables.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    again = typed("backup", there / "clutch.db", state=first.home)
    assert (again.code, "is there already" in again.err) == (2, True)
    first.client.post(task_path(running, "kill"), {})
    with served(there, policy=FAST) as copy:
        copy.let_go()
        assert ended(copy.client, running)["task"]["outcome"] == "ok"


def _announced(here: Served, task: str) -> int:
    """How often the main agent has read the result of a task."""
    said = here.client.get(session_path("agent:main:main", "transcript"))["messages"]
    return sum(line["body"]["text"].count(task) for line in said if line["kind"] == "input")


def test_a_backup_made_while_tasks_run_is_restored_elsewhere_and_every_result_is_delivered_once(
    tmp_path: Path,
) -> None:
    file, there = tmp_path / "monday.db", tmp_path / "new" / "state"
    with served(tmp_path / "state", policy=FAST) as here:
        # One was delivered before the backup, three work in it.
        tasks = [spawned(here.client, "quick one", label="label0", notifyParent=True)]
        ended(here.client, tasks[0], "delivered")
        tasks += [
            spawned(here.client, f"slow {number}", label=f"label{number}", notifyParent=True)
            for number in (1, 2, 3)
        ]
        for task in tasks[1:]:
            seen(here.client, task, lambda one: one["phase"] == "running")
        assert typed("backup", file, state=here.home).out.startswith(f"Wrote {file} (")
        # The original goes on, in this very process: nothing of it reaches the copy.
        here.let_go()
        restored = typed("restore", file, "--json", state=there)
        assert (restored.code, restored.body["tasks"], restored.body["unfinished"]) == (0, 4, 3)
        assert (restored.body["kept"], restored.body["state"]) == (None, str(there))
        assert sorted(one.name for one in tmp_path.glob("monday*")) == ["monday.db"], (
            "nothing is left beside it"
        )
        assert (there / "clutch.db").stat().st_mode & 0o777 == 0o600
        with served(there, policy=FAST) as copy:
            copy.let_go()
            for task in tasks:
                assert ended(copy.client, task, "delivered")["task"]["outcome"] == "ok"
            assert [_announced(copy, f"label{number}") for number in range(4)] == [1, 1, 1, 1]
        assert typed("doctor", "--json", state=there).body["invariants"]["broken"] == []


def test_a_restore_keeps_the_database_that_is_there_aside(first: Served, tmp_path: Path) -> None:
    file, home = tmp_path / "monday.db", tmp_path / "state"
    assert typed("backup", file, state=first.home).code == 0
    with served(home, policy=FAST) as here:
        ended(here.client, spawned(here.client, "quick one", label="newer"), "delivered")
        owned = typed("restore", file, "--force", "--json", state=home)
        assert (owned.code, owned.body["error"]["code"]) == (1, "unavailable")
        assert "cannot be restored while a gateway uses it" in owned.err
        assert "newer" in typed("ps", state=home).out
    refused = typed("restore", file, "--json", state=home)
    assert (refused.code, refused.body["error"]["field"]) == (2, "--state")
    assert "newer" in typed("ps", state=home).out
    done = typed("restore", file, "--force", "--json", state=home)
    assert done.code == 0
    assert "newer" not in typed("ps", "--all", state=home).out
    previous = tmp_path / "previous"
    assert typed("restore", done.body["kept"], state=previous).code == 0
    assert "newer" in typed("ps", state=previous).out


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "is not a file"),
        (b"", "is not a backup of Clutch"),
        (b"no database at all" * 500, "is not a backup of Clutch"),
        ("torn", "damaged"),
        ("newer", "has schema version 999"),
        ("foreign", "is not a backup of Clutch"),
        ("unnumbered", "is not a backup of Clutch"),
        ("in use", "is a database in use"),
    ],
)
def test_what_is_no_whole_backup_is_refused_before_anything_is_touched(
    first: Served, tmp_path: Path, content: bytes | str | None, why: str
) -> None:
    file, home = tmp_path / "some.db", tmp_path / "state"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        assert typed("backup", file, state=first.home).code == 0
        with closing(sqlite3.connect(file)) as tables, tables:
            if content == "newer":
                tables.execute("UPDATE meta SET value = 999 WHERE name = 'schema_version'")
            elif content == "foreign":
                tables.execute("DROP TABLE meta")
            elif content == "unnumbered":
                tables.execute("DELETE FROM meta WHERE name = 'schema_version'")
        tables.close()
        if content == "torn":
            file.write_bytes(file.read_bytes()[:40_960])
        elif content == "in use":
            file.with_name("some.db-wal").write_bytes(b"a log")
    done = typed("restore", file, "--json", state=home)
    assert (done.code, done.body["error"]["field"]) == (2, "FILE")
    assert why in done.body["error"]["message"]
    assert not home.exists()


def test_gc_tells_what_would_go_and_takes_nothing_until_it_is_told_to(tmp_path: Path) -> None:
    with served(tmp_path / "state", policy=TIDY) as here:
        task = spawned(here.client, "quick one", label="old")
        ended(here.client, task, "delivered")
        would = typed("gc", "--dry-run", "--json", state=here.home).body
        assert (would["archived"], would["forgotten"], would["dryRun"]) == ([task], [task], True)
        assert would["transcriptBytes"] > 0
        assert here.client.get(task_path(task, "transcript"))["messages"]
        assert "Archived 1 finished task with" in typed("gc", state=here.home).out
        assert here.client.get(task_path(task, "transcript"))["messages"] == []
        assert here.client.get(task_path(task, "result"))["text"].startswith("heard")
        assert typed("gc", "--dry-run", state=here.home).out == "Nothing to archive.\n"


def test_gc_needs_somebody_who_does_it(tmp_path: Path) -> None:
    assert typed("gc", state=tmp_path / "none").code == 9


def test_two_forms_of_an_export_are_refused_with_the_option(first: Served) -> None:
    done = typed("export", "last", "--json", "--format", "markdown", state=first.home)
    assert (done.code, done.body["error"]["field"]) == (2, "--json")
