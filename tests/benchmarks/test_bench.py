"""The benchmarks say what they promise to say, and the floor is a fair one. Speeds are nobody's promise here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from benchmarks import boot, cli, fanin, growth, load, page, ready, shape, store
from benchmarks.__main__ import main
from benchmarks.floor import Floor, SqliteWriter
from benchmarks.places import Place, PostgresPlace, SqlitePlace
from benchmarks.report import Report, Row, at_least, at_most
from benchmarks.traffic import Traffic
from clutch.store.dialect import Dialect, statement_text
from clutch.store.sqlite import SqliteStore
from clutch.store.sqlite_connection import SqliteConnection
from clutch.testing.postgres import PostgresServer
from clutch.transactions.conditions import IS_WORKING
from clutch.wiring import SystemClock

COMMON = {
    "schema": str, "bench": str, "system": str, "backend": str, "n": int, "rep": int, "ok": bool, "cpu_s": float,
    "wall_s": float,
}  # fmt: skip


@pytest.fixture
def places(tmp_path: Path, postgres_server: PostgresServer) -> list[Place]:
    return [SqlitePlace(tmp_path), PostgresPlace(postgres_server)]


class Lines:
    """A report that is read back from its own lines."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.report = Report(self.written.append)

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written]

    def assert_fields(self, **figures: type) -> None:
        assert self.written
        for row in self.rows():
            kinds = {name: type(row[name]) for name in COMMON | figures}
            assert kinds == COMMON | figures
            assert row["schema"] == "clutch.bench/1"
            assert row["ok"]


@pytest.mark.anyio
async def test_store_rows_say_what_both_systems_cost_on_both_databases(places: list[Place]) -> None:
    lines = Lines()
    await store.run(lines.report, places, reps=1, sizes=[6], clients=(3,))
    lines.assert_fields(
        c=int,
        group_commit=bool,
        tasks_per_s=float,
        cpu_ms_per_task=float,
        p50_ms=float,
        p99_ms=float,
        commits=int,
    )
    order = [(row["backend"], row["system"]) for row in lines.rows()]
    assert order == [
        ("sqlite", "floor"),
        ("sqlite", "clutch"),
        ("postgres", "floor"),
        ("postgres", "clutch"),
    ]


@pytest.mark.anyio
async def test_growth_rows_say_what_a_transition_costs_over_stored_tasks(places: list[Place]) -> None:
    lines = Lines()
    await growth.run(lines.report, places, reps=1, sizes=[100, 300], requesters=2)
    lines.assert_fields(stored=int, transition_cpu_us=float, transition_wall_us=float, list_tree_us=float)
    assert [row["stored"] for row in lines.rows()] == [100, 300, 100, 300]
    assert len(lines.report.targets) == 6


@pytest.mark.anyio
async def test_boot_rows_say_when_the_first_was_resumed_and_when_all_were_owned(places: list[Place]) -> None:
    lines = Lines()
    await boot.run(lines.report, places, reps=1, sizes=[30])
    lines.assert_fields(unfinished=int, first_resumed_s=float, all_owned_s=float)
    assert all(row["first_resumed_s"] <= row["all_owned_s"] + 0.1 for row in lines.rows())


@pytest.mark.anyio
async def test_a_task_keeps_within_its_budget_of_transactions_and_statements() -> None:
    report = Report(lambda _: None)
    await shape.judge(report, runs=1)
    assert [target.name for target in report.targets] == ["transactions per task", "statements per task"]
    assert all(target.ok for target in report.targets)


@pytest.mark.anyio
async def test_the_floor_leaves_the_same_rows_as_clutch(tmp_path: Path) -> None:
    bare, whole = tmp_path / "floor.db", tmp_path / "clutch.db"
    async with SqliteStore(bare, SystemClock()):
        pass
    async with SqliteWriter(str(bare)) as writer:
        floor = Floor(writer)
        parent = (await floor.new_parents(1))[0]
        for _ in range(3):
            await floor.task(parent)
    async with SqliteStore(whole, SystemClock()) as db, Traffic(db) as traffic:
        parent = (await traffic.new_parents(1))[0]
        for _ in range(3):
            await traffic.task(parent)
    left, made = dict(contents(bare)), dict(contents(whole))
    assert {name: rows for name, (rows, _) in left.items()} == {
        name: rows for name, (rows, _) in made.items()
    }
    # Ids and random parts differ in length by a little; the texts are the same.
    assert left["words"][1] == pytest.approx(made["words"][1], rel=0.02)


def contents(path: Path) -> Iterator[tuple[str, tuple[object, int]]]:
    """Rows per table with the few columns that tell their state, and the length of all stored texts."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    length = 0
    states = {
        "tasks": "phase, reason, detail, outcome, delivery, seq",
        "sessions": "head, closed, owner, fence, hold, run_id",
        "inbox": "kind, state, seen, taken_seq, path", "runs": "state, stop_reason", "calls": "name, seq",
        "messages": "kind, seq", "events": "seq, to_phase, reason, detail", "usage": "call_no, input",
        "deliveries": "outcome, attempt, transcript_seq",
    }  # fmt: skip
    for table, columns in states.items():
        rows = sorted(map(repr, connection.execute(f"SELECT {columns} FROM {table}")))  # noqa: S608 - names from above
        yield table, (rows, 0)
        for row in connection.execute(f"SELECT * FROM {table}"):  # noqa: S608 - as above
            length += sum(len(value) for value in row if isinstance(value, str))
    connection.close()
    yield "words", ("", length)


@pytest.mark.anyio
async def test_no_statement_of_a_task_reads_a_whole_table_on_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, None] = {}
    plain = SqliteConnection.statement

    def remember(self: SqliteConnection, sql: str, parameters: Any) -> Any:
        asked[sql] = None
        return plain(self, sql, parameters)

    monkeypatch.setattr(SqliteConnection, "statement", remember)
    path = tmp_path / "plans.db"
    async with SqliteStore(path, SystemClock()) as db, Traffic(db) as traffic:
        asked.clear()
        parent = (await traffic.new_parents(1))[0]
        await traffic.task(parent)
        await traffic.task(parent)
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        plans = {sql: plan(connection, sql) for sql in asked}
    finally:
        connection.close()
    assert len(plans) > 20
    assert {sql: steps for sql, steps in plans.items() if any(reads_a_table(step) for step in steps)} == {}
    counts = [steps for sql, steps in plans.items() if f"requester_id = ? AND {IS_WORKING}" in sql]
    assert counts
    assert all(any("tasks_untold" in step for step in steps) for steps in counts)


def plan(connection: apsw.Connection, sql: str) -> list[str]:
    text = statement_text(sql, Dialect.SQLITE)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {text}", (None,) * text.count("?")).fetchall()
    return [str(row[3]) for row in rows]


def reads_a_table(step: str) -> bool:
    """Scans of constants, of a list parameter and of the rows of a subquery are none."""
    tables = ("sessions", "tasks", "runs", "messages", "calls", "inbox", "events", "deliveries", "usage")
    return step.startswith("SCAN") and step.split()[1] in tables


@pytest.mark.anyio
@pytest.mark.scenario(212)
async def test_a_hundred_children_that_end_within_a_second_cost_one_or_two_turns_and_are_shown_once(
    places: list[Place],
) -> None:
    lines = Lines()
    await fanin.run(lines.report, places, reps=1, sizes=[])
    lines.assert_fields(children=int, parent_turns=int, results_shown=int, shown_twice=int)
    assert [row["backend"] for row in lines.rows()] == ["sqlite", "postgres"]
    for row in lines.rows():
        assert (row["children"], row["results_shown"], row["shown_twice"]) == (100, 100, 0)
        assert row["parent_turns"] <= fanin.PARENT_TURNS_MAX
    assert all(target.ok for target in lines.report.targets)


def test_a_failed_row_and_a_missed_target_are_not_ok() -> None:
    written: list[str] = []
    report = Report(written.append)
    report.add(Row("store", "clutch", "sqlite", 1, 0, False, None, 0.0, why="it broke"))
    report.targets += [at_most("too much", 2.0, 1.0), at_least("unknown", None, 1.0)]
    assert not report.finish({})
    first, last = map(json.loads, written)
    assert (first["ok"], first["why"]) == (False, "it broke")
    assert last["bench"] == "summary"
    assert [target["ok"] for target in last["targets"]] == [False, False]


def test_a_median_counts_only_good_rows_with_the_wanted_values() -> None:
    report = Report(lambda _: None)
    for rep, (ok, speed) in enumerate([(True, 10.0), (True, 30.0), (True, 20.0), (False, 1000.0)]):
        report.add(Row("store", "clutch", "sqlite", 1, rep, ok, 0.1, 0.1, {"tasks_per_s": speed}))
    report.add(Row("store", "floor", "sqlite", 1, 0, True, 0.1, 0.1, {"tasks_per_s": 40.0}))
    assert report.median("tasks_per_s", system="clutch") == 20.0
    assert report.ratio("tasks_per_s", {"system": "clutch"}, {"system": "floor"}) == 0.5


def test_the_command_ends_with_the_summary_and_says_so_in_its_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["--only", "boot", "--n", "20", "--reps", "1"])
    *rows, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["bench"] for row in rows} == {"boot"}
    assert (last["schema"], last["bench"]) == ("clutch.bench/1", "summary")
    assert set(last["machine"]) == {"cores", "fsync_p50_ms"}
    assert last["config"]["boot"]["raised"]["worker.lanes"]
    assert code == (0 if last["ok"] else 1)


def test_an_unknown_benchmark_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nonsense"])
    assert ended.value.code == 2


@pytest.mark.slow
@pytest.mark.anyio
async def test_ready_rows_say_how_soon_a_gateway_answers_and_what_it_weighs() -> None:
    lines = Lines()
    await ready.run(lines.report, [], reps=1, sizes=())
    floor, gateway = lines.rows()
    assert (floor["system"], gateway["system"], gateway["ok"]) == ("floor", "clutch", True)
    assert gateway["ready_s"] > 0
    assert 10 < gateway["idle_mb"] < 500
    assert [target.limit for target in lines.report.targets] == [8.0, 150.0]


@pytest.mark.slow
@pytest.mark.anyio
async def test_cli_rows_say_what_a_look_takes_beside_its_libraries() -> None:
    lines = Lines()
    await cli.run(lines.report, [], reps=1, sizes=())
    assert [row["system"] for row in lines.rows()] == ["floor", "gateway", "floor", "store"]
    assert all(row["ok"] and row["ps_s"] > 0 for row in lines.rows())
    assert [target.limit for target in lines.report.targets] == [3.0, 3.0]


@pytest.mark.slow
@pytest.mark.anyio
async def test_load_rows_say_what_a_spawn_takes_while_many_watch() -> None:
    lines = Lines()
    await load.run(lines.report, [], reps=1, sizes=[12], seconds=4.0)
    (row,) = lines.rows()
    assert (row["ok"], row["watchers"], row["dropped_watchers"]) == (True, 12, 0)
    assert row["running"] > 0
    assert row["events_heard"] > 12
    assert row["spawn_p50_ms"] <= row["spawn_p99_ms"]
    assert {type(row[name]) for name in ("fsync_p99_ms", "rss_slope_kb_per_min")} == {float}
    assert len(row["rss_mb"]) > 3


@pytest.mark.slow
@pytest.mark.anyio
async def test_page_rows_say_how_smooth_the_dashboard_is_and_what_it_costs() -> None:
    if page.CHROMIUM is None:
        pytest.skip("no Chromium here; Debian, Ubuntu: apt install chromium")
    row = await page.measured(20, rep=0, seconds=2.0)
    assert (row.ok, row.n, row.why) == (True, 20, None)
    assert row.figures["frames"] > 10
    assert row.figures["events_per_s"] > 0
    assert row.figures["bytes_per_event"] > 100
    assert row.figures["frame_p50_ms"] <= row.figures["frame_p99_ms"] <= row.figures["frame_max_ms"]
    assert {type(row.figures[name]) for name in ("heap_mb", "cpu_ratio", "cpu_ms_per_call")} == {float}
