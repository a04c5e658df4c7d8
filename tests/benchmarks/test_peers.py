"""The comparison with other libraries: what it asks, what it counts, and that the page says what was recorded."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks import w_job
from benchmarks.peers import charts, job, tables
from benchmarks.peers.__main__ import PeerReport, judge, main
from benchmarks.peers.environment import LOCKS, NotInstalled, all_versions, python_of
from benchmarks.peers.registry import PEERS, Delegate, Peer
from benchmarks.peers.server import PeerWitness
from benchmarks.peers.workload import measured, model, problem, stored_bytes
from benchmarks.report import Report, Row

HERE = Path(charts.__file__).parent


class Model:
    """The witness, asked as a library asks it."""

    def __init__(self, witness: PeerWitness, session: aiohttp.ClientSession) -> None:
        self.witness, self._session = witness, session

    async def ask(self, *messages: dict[str, Any], stream: bool = False) -> dict[str, Any]:
        body = {"model": w_job.MODEL, "messages": list(messages), "stream": stream}
        async with self._session.post("chat/completions", json=body) as response:
            text = await response.text()
        return {} if stream else json.loads(text)["choices"][0]["message"]

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.witness.obey("report"))
        return found


@pytest.fixture
async def asked(anyio_backend: str) -> AsyncIterator[Model]:
    async with opened() as model:
        yield model


@asynccontextmanager
async def opened() -> AsyncIterator[Model]:
    witness = PeerWitness()
    async with witness.server as server, aiohttp.ClientSession(server.openai_url + "/") as session:
        yield Model(witness, session)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c", "content": text}


@pytest.mark.anyio
@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
async def test_parent_asks_for_children_with_the_tool_of_its_library(peer: Peer, asked: Model) -> None:
    asked.witness.obey(f"play {peer.name}")
    known = peer.delegate
    calls = (await asked.ask(user(w_job.fan_out(3))))["tool_calls"]
    functions = [call["function"] for call in calls]
    expected = [{known.argument: w_job.task(item), **known.fixed} for item in range(3)]
    given = [json.loads(function["arguments"]) for function in functions if function["name"] == known.tool]
    assert given == expected
    assert [function["name"] for function in functions[3:]] == [name for name in (known.then,) if name]
    last = await asked.ask(
        user(w_job.fan_out(3)), calling(known.tool, **expected[0]), result("".join(w_job.finding(1)))
    )
    assert last["content"] == "I have heard of all items."
    seen = asked.report()
    assert (seen["parent_calls"], seen["results"], seen["repeated_calls"]) == (2, 1, 0)


@pytest.mark.anyio
async def test_model_resumes_each_cancelled_child_once_where_the_library_leaves_it_to_the_model(
    asked: Model,
) -> None:
    asked.witness.obey("play pydantic_ai_harness")
    delegated = calling("delegate_task", agent_name="surveyor", task=w_job.task(0), background=True)
    report = user(
        '<task_output task_id="t7" agent_name="surveyor" outcome="cancelled">interrupted</task_output>'
    )
    first = await asked.ask(user(w_job.fan_out(1)), delegated, result("started"), report)
    ((call),) = first["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert (arguments["resume"], arguments["agent_name"]) == ("t7", "surveyor")
    again = await asked.ask(
        user(w_job.fan_out(1)),
        delegated,
        result("started"),
        report,
        calling("delegate_task", resume="t7"),
        result("on"),
    )
    assert again["content"] == "I have heard of all items."


@pytest.mark.anyio
async def test_repeated_calls_are_known_by_what_they_ask_and_told_from_those_cut_off(asked: Model) -> None:
    asked.witness.obey("play langgraph uneven")
    one = user(w_job.task(1))
    await asked.ask(one)
    await asked.ask(one, calling("look_up", item=1), result("seen"))
    asked.witness.obey("mark")
    await asked.ask(one)  # answered before the mark: paid twice
    await asked.ask(user(w_job.fan_out(2)))
    await asked.ask(user(w_job.fan_out(2)))  # delegates a second time
    seen = asked.report()
    expected = {
        "llm_calls": 5,
        "repeated_calls": 2,
        "repaid_calls": 2,
        "calls_before_kill": 2,
        "calls_after": 3,
    }
    assert {name: seen[name] for name in expected} == expected


@pytest.mark.anyio
async def test_walk_goes_one_step_per_call_and_arrives(asked: Model) -> None:
    task = user(job.walk(3))
    work = w_job.Work()
    messages = [task]
    for item in range(2):
        answer = await asked.ask(*messages)
        assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"item": item}
        messages += [calling("look_up", item=item), result(work.look_up(item))]
    assert (await asked.ask(*messages))["content"] == "I have arrived."
    assert asked.report()["llm_calls"] == 3


@pytest.mark.anyio
async def test_children_that_end_together_answer_their_first_call(
    asked: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers.server._GATHERED_S", 0.05)
    asked.witness.obey("play agno together")
    answer = await asked.ask(user(w_job.task(4)))
    assert w_job.findings_in(answer["content"]) == [4]


@pytest.mark.anyio
async def test_whole_answer_is_waited_for_as_long_as_a_stream(asked: Model) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asked.ask(user(w_job.task(4)))
    assert loop.time() - began >= w_job.LATENCY_S


@pytest.mark.slow
@pytest.mark.anyio
async def test_fan_out_and_its_resume_after_a_kill_are_good_rows_of_clutch() -> None:
    async with model() as (server, url):
        rows = [await measured(bench, PEERS["clutch_direct"], 4, 0, server, url) for bench in ("w1", "w2")]
    fan_out, killed = (row.as_json() for row in rows)
    assert [row.why for row in rows] == [None, None]
    assert (fan_out["results"], fan_out["llm_calls"], fan_out["repeated_calls"]) == (4, 14, 0)
    assert fan_out["stored_bytes_per_child"] > 0
    assert (killed["results"], killed["lost"], killed["twice"], killed["side_effects"]) == (4, 0, 0, 4)
    assert killed["repeated_calls"] - killed["repaid_calls"] <= killed["in_flight_at_kill"]


@pytest.mark.slow
@pytest.mark.anyio
async def test_adapter_that_breaks_is_a_failed_row_with_its_last_words() -> None:
    here = replace(PEERS["agno"], is_ours=True)  # in our environment, which does not have it
    async with model() as (server, url):
        row = await measured("w1", here, 2, 0, server, url)
    assert not row.ok
    assert "No module named 'agno'" in str(row.why)


@pytest.mark.slow
def test_peer_that_cannot_be_installed_says_which_lock_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.lock").write_text("no-such-package==1.0 --hash=sha256:00\n")
    monkeypatch.setattr("benchmarks.peers.environment.LOCKS", tmp_path)
    monkeypatch.setattr("benchmarks.peers.environment._BUILD", tmp_path / "build")
    with pytest.raises(NotInstalled, match=r"broken\.lock cannot be installed, which needs a package index"):
        python_of(Peer("broken", (), Delegate("survey"), ""))


def test_every_peer_has_an_adapter_and_a_hashed_lock_that_names_its_versions() -> None:
    for peer in PEERS.values():
        assert (HERE / f"{peer.name}.py").is_file()
        if not peer.is_ours:
            lock = (LOCKS / f"{peer.name}.lock").read_text()
            assert "--hash=sha256:" in lock
            assert "://" not in lock
    assert all(all(versions.values()) for versions in all_versions().values())


def test_summary_judges_clutch_and_reports_ratios_of_peers() -> None:
    report = PeerReport(lambda _: None)
    for rep, (ours, theirs) in enumerate([(10.0, 30.0), (20.0, 90.0), (30.0, 60.0)]):
        report.add(Row("w1", "clutch", "sqlite", 4, rep, True, 0.1, 1.0, {"cpu_ms_per_child": ours}))
        report.add(Row("w1", "agno", "sqlite", 4, rep, True, 0.1, 1.0, {"cpu_ms_per_child": theirs}))
    report.add(Row("w1", "nanobot", "files", 4, 0, False, None, 1.0, why="it broke"))
    judge(report, ["w1"], ["clutch", "agno", "nanobot"])
    assert report.ratios == {
        "w1 n=4: cpu_ms_per_child, agno / clutch": 3.0,
        "w1 n=4: cpu_ms_per_child, nanobot / clutch": None,
    }
    assert report.ok
    report.add(Row("w1", "clutch", "sqlite", 4, 3, False, None, 1.0, why="it broke"))
    assert not report.ok


@pytest.mark.parametrize(("figure", "value"), [("lost", 1), ("twice", 1), ("side_effects_repeated", 2)])
def test_result_that_clutch_loses_or_repeats_misses_a_target(figure: str, value: int) -> None:
    good = {"lost": 0, "twice": 0, "side_effects_repeated": 0}
    for figures, is_ok in ((good, True), (good | {figure: value}, False)):
        report = PeerReport(lambda _: None)
        report.add(Row("w2", "clutch", "sqlite", 4, 0, True, 0.1, 1.0, figures))
        judge(report, ["w2"], ["clutch"])
        assert report.ok is is_ok


def test_bytes_per_call_that_grow_with_the_history_miss_the_target() -> None:
    for longest, is_ok in ((500.0, True), (5000.0, False)):
        report = PeerReport(lambda _: None)
        for n, stored in ((10, 400.0), (100, 490.0), (1000, longest)):
            report.add(
                Row("history", "clutch", "sqlite", n, 0, True, 0.1, 1.0, {"stored_bytes_per_call": stored})
            )
        judge(report, ["history"], ["clutch"])
        assert report.ok is is_ok


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"results": 4, "repeated_calls": 0}, None),
        ({"results": 3, "repeated_calls": 0}, "3 of 4 results"),
        ({"results_shown": 5}, "5 of 4 results"),
        ({"results": 4, "repeated_calls": 2}, "2 calls were repeated"),
    ],
)
def test_row_without_a_crash_is_good_only_with_all_results_and_no_repeated_call(
    figures: dict[str, int], said: str | None
) -> None:
    why = problem(figures, 4)
    assert why is None if said is None else said in str(why)


def test_stored_bytes_are_those_of_files_and_of_the_pages_of_databases(tmp_path: Path) -> None:
    (tmp_path / "session.jsonl").write_bytes(b"x" * 100)
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE t(x)")
    connection.commit()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    assert stored_bytes(tmp_path) == 100 + pages * size
    connection.close()


def test_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nonsense"])
    assert ended.value.code == 2


# ---- the page --------------------------------------------------------------------------------------------


def test_tables_of_the_page_are_those_of_the_recorded_run() -> None:
    page = charts.PAGE.read_text()
    assert charts.filled(page, tables.read()) == page


def test_pictures_of_the_page_are_those_of_the_recorded_run() -> None:
    page = charts.PAGE.read_text()
    for name, picture in charts.charts(tables.read()).items():
        assert (charts.PICTURES / name).read_text() == picture
        assert f"](pictures/{name})" in page


def test_recorded_rows_have_the_schema_and_name_no_path_of_the_machine() -> None:
    recorded = tables.read()
    assert {row["schema"] for row in [*recorded.rows, *recorded.summaries]} == {"clutch.bench/1"}
    assert {row["system"] for row in recorded.rows} == set(PEERS)
    assert not re.search(r'[ "(]/\w+/', tables.RECORDED.read_text())


def test_table_has_medians_ratios_and_a_dash_for_what_was_not_measured() -> None:
    written: list[str] = []
    report = Report(written.append)
    for rep, value in enumerate([10.0, 30.0, 20.0]):
        report.add(Row("w1", "clutch", "sqlite", 4, rep, True, 0.1, 1.0, {"cpu_ms_per_child": value}))
        report.add(Row("w1", "agno", "sqlite", 4, rep, True, 0.1, 1.0, {"cpu_ms_per_child": value * 3}))
    report.add(Row("w1", "nanobot", "files", 4, 0, False, None, 1.0, why="it broke"))
    report.config["versions"] = all_versions()
    report.finish({})
    made = tables.tables(tables.Recorded(written))
    assert "| Clutch | 20.0 | 1.0 | - |" in made["w1"]
    assert "| Agno | 60.0 | 3.0 | - |" in made["w1"]
    assert "| nanobot | - | - | - |" in made["w1"]
    assert made["failures"] == "- nanobot, `w1` with n = 4: it broke"
    assert "langgraph 1." in made["versions"]


def test_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="it needs one"):
        charts.filled("# Benchmarks\n", tables.read())
