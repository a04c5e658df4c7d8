"""Traces at a real collector: one trace per tree, complete after kill -9 and when another process exports."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from clutch import Clutch
from clutch.core.redaction import MARK
from clutch.core.traces import TraceIds
from clutch.errors import InvalidInput
from clutch.observability import OtelSettings
from clutch.observability.exporter import REFUSALS_MAX, RUNS_MAX
from clutch.store.transaction import Row, Tx
from tests.observability.collector import Collector, Received, collecting
from tests.observability.program import KEY, SECRET, configured, gateway
from tests.patience import PATIENCE_S
from tests.postgres_server import postgres_dsn, postgres_server

__all__ = ["postgres_dsn", "postgres_server"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def _counted(now: float) -> Tx[Sequence[Row]]:
    return (
        yield (
            "SELECT (SELECT COUNT(*) FROM runs), (SELECT COUNT(*) FROM runs WHERE traced = 1),"
            " (SELECT COUNT(*) FROM usage), (SELECT COUNT(*) FROM calls)",
            (),
        )
    )


async def _check_complete(c: Clutch, collector: Collector) -> None:
    """As many different spans as the database has rows: a span that was sent twice is the same both times."""
    ((runs, traced, chats, tools),) = await c.services.db.read(_counted)
    assert traced == runs
    different = {one.span_id: one for one in collector.spans}
    assert set(different.values()) == set(collector.spans)
    kinds = [one.name.partition(" ")[0] for one in different.values()]
    counts = {kind: kinds.count(kind) for kind in ("invoke_agent", "chat", "execute_tool")}
    assert counts == {"invoke_agent": runs, "chat": chats, "execute_tool": tools}
    assert len({one.trace_id for one in collector.spans}) == 1


def _has_read_children(spans: Sequence[Received]) -> bool:
    return sum(len(one.links) for one in {one.span_id: one for one in spans}.values()) >= 2


async def _until_traced(c: Clutch, collector: Collector) -> None:
    await asyncio.to_thread(collector.until, _has_read_children, PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        is_traced = False
        while not is_traced:
            change = c.services.changes.next_change
            ((runs, traced, *_),) = await c.services.db.read(_counted)
            is_traced = runs == traced
            await c.services.changes.until(change)


async def test_a_tree_is_one_trace_with_links_to_the_children_that_were_read(
    tmp_path: Path, collector: Collector
) -> None:
    config = configured(tmp_path, collector, headers={"x-team": "a"})
    async with gateway(tmp_path / "state", config) as c:
        await c.say("delegate")
        await _until_traced(c, collector)
        await _check_complete(c, collector)
    by_id = {one.span_id: one for one in collector.spans}
    children = [one for one in collector.spans if one.of("clutch.task.id")]
    assert len(children) == 2
    for child in children:
        spawn = by_id[child.parent_id]
        assert spawn.name == "execute_tool sessions_spawn"
        assert by_id[spawn.parent_id].name == "invoke_agent main"
        assert spawn.of("gen_ai.tool.name") == "sessions_spawn"
    links = [link for one in collector.named("invoke_agent main") for link in one.links]
    assert sorted(links) == sorted(one.span_id for one in children)
    chat = collector.named("chat small")[0]
    assert chat.of("gen_ai.operation.name") == "chat"
    assert chat.of("gen_ai.provider.name") == "tested"
    assert chat.of("gen_ai.request.model") == "small"
    assert chat.of("gen_ai.response.model") == "small-2026"
    assert chat.of("gen_ai.usage.input_tokens") == 10
    assert chat.of("gen_ai.usage.output_tokens") == 5
    assert chat.of("gen_ai.agent.name") == "main"
    assert str(chat.of("gen_ai.conversation.id")).startswith("agent:main:")
    assert by_id[chat.parent_id].start <= chat.start <= chat.end <= by_id[chat.parent_id].end
    assert SECRET not in str(collector.spans)
    assert collector.headers[0]["x-team"] == "a"
    assert collector.metrics >= {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"}


async def test_content_is_exported_on_request_and_redacted(tmp_path: Path, collector: Collector) -> None:
    async with gateway(tmp_path / "state", configured(tmp_path, collector, content=True)) as c:
        await c.say("delegate")
        await _until_traced(c, collector)
    tool = collector.named("execute_tool count")[0]
    assert SECRET in tool.of("gen_ai.tool.call.arguments")
    assert tool.of("gen_ai.tool.call.result") == f"counted {SECRET} with {MARK}"
    assert KEY not in str(collector.spans)
    assert "delegate" in collector.named("invoke_agent main")[0].of("gen_ai.input.messages")
    assert SECRET in collector.named("chat small")[-1].of("gen_ai.output.messages")


async def test_the_last_runs_of_a_program_are_exported_when_it_ends(
    tmp_path: Path, collector: Collector
) -> None:
    async with gateway(tmp_path / "state", configured(tmp_path, collector, every="1h")) as c:
        await c.say("delegate")
        await c.wait_idle()
    assert _has_read_children(collector.spans)


async def test_what_a_collector_refuses_is_sent_again(tmp_path: Path, collector: Collector) -> None:
    collector.refused = 3
    async with gateway(tmp_path / "state", configured(tmp_path, collector)) as c:
        await c.say("delegate")
        await _until_traced(c, collector)
        await _check_complete(c, collector)
    assert collector.refused == 0


async def test_a_run_that_a_collector_never_accepts_is_given_up(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.unwanted = b"execute_tool count"
    async with gateway(tmp_path / "state", configured(tmp_path, collector)) as c:
        await c.say("delegate")
        await _until_traced(c, collector)
    assert collector.named("invoke_agent main")
    assert not collector.named("execute_tool count")
    given_up = [
        one.getMessage() for one in caplog.records if "not exported: the collector" in one.getMessage()
    ]
    assert len(given_up) == 2, "one for each child"
    assert all("HTTP 400" in said for said in given_up)


@pytest.mark.parametrize("status", [401, 404])
async def test_no_run_is_given_up_for_a_wrong_token_or_address(
    tmp_path: Path, collector: Collector, status: int
) -> None:
    collector.unwanted, collector.status = b"", status
    async with gateway(tmp_path / "state", configured(tmp_path, collector)) as c:
        await c.say("delegate")
        often = 3 * REFUSALS_MAX + RUNS_MAX.bit_length()
        await asyncio.to_thread(collector.until, lambda _: collector.refusals > often, PATIENCE_S)
        collector.unwanted = None
        await _until_traced(c, collector)
        await _check_complete(c, collector)


@contextmanager
def process(state: Path, config: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.observability.program", str(state), str(config), *words]
    with subprocess.Popen(command) as started:
        try:
            yield started
        finally:
            started.kill()


@pytest.mark.slow
async def test_kill_9_between_a_request_and_its_mark_loses_no_span(
    tmp_path: Path, collector: Collector
) -> None:
    """The collector has the spans, the gateway is killed before it knows: it sends them again with the same ids."""
    config = configured(tmp_path, collector)
    collector.silent.set()
    with process(tmp_path / "state", config, "say") as first:
        await asyncio.to_thread(collector.until, bool, PATIENCE_S)
        first.kill()
        first.wait()
    before = set(collector.spans)
    collector.silent.clear()
    async with gateway(tmp_path / "state", config) as c:
        await _until_traced(c, collector)
        await _check_complete(c, collector)
    assert all(collector.spans.count(one) >= 2 for one in before)


@pytest.mark.slow
async def test_another_gateway_takes_over_the_export_of_one_that_was_killed(
    tmp_path: Path, collector: Collector, postgres_dsn: str
) -> None:
    config = configured(tmp_path, collector)
    with process(tmp_path / "a", config, "say", postgres_dsn) as first:
        await asyncio.to_thread(collector.until, bool, PATIENCE_S)
        async with gateway(tmp_path / "b", config, postgres_dsn) as second:
            first.kill()
            first.wait()
            await second.say("delegate once more")
            await _until_traced(second, collector)
            await second.wait_idle()
            await _until_traced(second, collector)
            await _check_complete(second, collector)


def test_an_endpoint_without_a_scheme_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must begin with http"):
        OtelSettings(endpoint="127.0.0.1:4318")


def test_the_trace_context_is_one_of_w3c() -> None:
    known = TraceIds("a")
    version, trace_id, span_id, flags = known.traceparent(1, known.run(2)).split("-")
    assert (version, flags) == ("00", "01")
    assert (int(trace_id, 16), int(span_id, 16)) == (known.trace(1), known.run(2))
    assert (len(trace_id), len(span_id)) == (32, 16)
