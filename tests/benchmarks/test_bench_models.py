"""The benchmarks with a model server: their rows say what the server saw, and what should not be is a failed row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from benchmarks import calls, w1, w2, w_job
from benchmarks.report import Report
from benchmarks.w_server import Witness
from tests.benchmarks.test_bench import Lines

GOOD_W1 = {"results": 4, "repeated_calls": 0, "unnamed_calls": 0, "llm_calls": 14}
GOOD_W2 = {
    "results": 4, "delivered": 4, "repeated_calls": 2, "in_flight_at_kill": 2, "children_from_zero": 0,
    "side_effects_repeated": 0, "twice": 0,
}  # fmt: skip


@pytest.mark.anyio
async def test_calls_rows_say_what_one_call_costs_in_each_adapter() -> None:
    lines = Lines()
    await calls.run(lines.report, [], reps=1, sizes=[5])
    lines.assert_fields(cpu_ms_per_call=float, llm_calls=int)
    assert [(row["system"], row["llm_calls"], row["ok"]) for row in lines.rows()] == [
        ("direct", 5, True),
        ("library", 5, True),
    ]
    (target,) = lines.report.targets
    assert target.name == "calls n=5: CPU per call, direct / library"


@pytest.mark.anyio
async def test_w1_rows_say_what_the_server_counted_and_what_a_child_costs() -> None:
    lines = Lines()
    await w1.run(lines.report, [], reps=1, sizes=[4], systems=("floor", "direct"))
    lines.assert_fields(
        results=int, llm_calls=int, expected_calls=int, repeated_calls=int, max_in_flight=int, parent_calls=int,
        cpu_ms_per_child=float, makespan_s=float, ideal_s=float, rss_kb_per_child=float,
        request_bytes_per_child=int, disk_bytes_per_child=int, server_cpu_s=float, server_late_ms=float,
    )  # fmt: skip
    floor, direct = lines.rows()
    for row in (floor, direct):
        assert (row["results"], row["llm_calls"], row["parent_calls"], row["repeated_calls"]) == (4, 14, 2, 0)
        assert row["max_in_flight"] == 4
        assert row["makespan_s"] >= row["ideal_s"] * 0.95
    assert [target.name.partition(": ")[2] for target in lines.report.targets] == [
        "CPU per child, of the floor's",
        "makespan, of the floor's",
        "KB per child",
    ]


@pytest.mark.anyio
async def test_w2_goes_on_after_a_kill_and_nothing_happens_twice() -> None:
    lines = Lines()
    await w2.run(lines.report, [], reps=1, sizes=[6], systems=("direct",))
    lines.assert_fields(
        calls_before_kill=int, finished_before_kill=int, in_flight_at_kill=int, calls_after=int, ideal_after=int,
        repeated_calls=int, children_from_zero=int, side_effects=int, side_effects_repeated=int, results=int,
        delivered=int, twice=int, first_call_after_start_s=float,
    )  # fmt: skip
    (row,) = lines.rows()
    assert row["calls_before_kill"] >= w_job.expected_calls(6) // 2
    assert row["calls_before_kill"] + row["calls_after"] == w_job.expected_calls(6) + row["repeated_calls"]
    assert (row["results"], row["delivered"]) == (6, 6)
    assert lines.report.ok


@pytest.mark.anyio
async def test_system_that_breaks_is_a_failed_row() -> None:
    report = Report(lambda _: None)
    await w2.run(report, [], reps=1, sizes=[2], systems=("nothing",))
    (row,) = report.rows
    assert not row.ok
    assert "w_worker ended with 2" in str(row.why)
    assert not report.targets[0].ok


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"results": 3}, "3 of 4 results"),
        ({"repeated_calls": 1, "llm_calls": 15}, "1 calls were repeated"),
        ({"unnamed_calls": 14}, "14 had no key"),
        ({"llm_calls": 15}, "15 calls instead of 14"),
    ],
)
def test_w1_row_is_good_only_with_all_results_and_no_call_too_many(wrong: dict[str, int], said: str) -> None:
    assert w1.problem(GOOD_W1, 4) is None
    assert said in str(w1.problem(GOOD_W1 | wrong, 4))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"results": 3}, "3 of 4 results"),
        ({"delivered": 3}, "3 are marked as delivered"),
        ({"repeated_calls": 3}, "3 calls repeated, 2 children in flight"),
        ({"children_from_zero": 1}, "children_from_zero: 1"),
        ({"side_effects_repeated": 1}, "side_effects_repeated: 1"),
        ({"twice": 1}, "twice: 1"),
    ],
)
def test_w2_row_is_good_only_if_nothing_was_lost_and_nothing_happened_twice(
    wrong: dict[str, int], said: str
) -> None:
    assert w2.problem(GOOD_W2, 4) is None
    assert said in str(w2.problem(GOOD_W2 | wrong, 4))


@pytest.mark.anyio
async def test_witness_sees_repeated_calls_children_from_zero_and_findings_told_twice() -> None:
    witness = Witness(is_uneven=True)
    async with witness.server as server, aiohttp.ClientSession(server.openai_url + "/") as session:

        async def ask(key: str, *messages: dict[str, str]) -> None:
            body = {"model": w_job.MODEL, "messages": messages, "stream": True}
            headers = {"Idempotency-Key": key}
            async with session.post("chat/completions", json=body, headers=headers) as response:
                await response.read()

        await ask("1:0", *child(1, results=0))
        await ask("1:1", *child(1, results=1))
        await ask("2:0", *child(2, results=0))
        witness.obey("mark")
        await ask("1:0", *child(1, results=0))  # from zero: the second call had been made
        await ask("2:0", *child(2, results=0))  # in flight when the blow fell
        told = "".join(w_job.finding(1)) + "".join(w_job.finding(2)) + "".join(w_job.finding(1))
        await ask("0:0", {"role": "user", "content": w_job.fan_out(2)}, {"role": "tool", "content": told})
        seen: dict[str, Any] = json.loads(witness.obey("report"))
    expected = {
        "results": 2, "twice": 1, "llm_calls": 6, "repeated_calls": 2, "parent_calls": 1, "unnamed_calls": 0,
        "calls_before_kill": 3, "answered_before_kill": 3, "children_begun": 2, "calls_after": 3,
        "children_from_zero": 1,
    }  # fmt: skip
    assert {name: seen[name] for name in expected} == expected
    assert seen["first_call_at"] is not None


def child(item: int, results: int) -> Iterator[dict[str, str]]:
    yield {"role": "user", "content": w_job.task(item)}
    for _ in range(results):
        yield {"role": "tool", "content": "seen"}
