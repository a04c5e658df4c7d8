"""A gateway that cannot answer is noticed and named: its event loop is blocked, or its database stands still."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from clutch.core.messages import Answer
from clutch.ports import ModelRequest, OnDelta
from clutch.surfaces import discovery, watchdog
from tests.patience import PATIENCE_S
from tests.surfaces.served import Heard, served
from tests.surfaces.test_http_tasks import spawned
from tests.surfaces.typed import typed

pytestmark = pytest.mark.slow


class Frozen:
    """Waits as no coroutine may: the whole event loop stands still meanwhile."""

    def __init__(self) -> None:
        self.released = threading.Event()

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        self.released.wait(PATIENCE_S)
        return Answer("thawed", model="frozen")


def until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_at


def test_code_that_blocks_the_event_loop_is_named_and_ps_answers_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "BEAT_S", 0.02)
    monkeypatch.setattr(watchdog, "BLOCKED_S", 0.5)
    home, model = tmp_path / "state", Frozen()
    with served(home, model) as here:
        spawned(here.client, "freeze it", label="icy")
        try:
            until(lambda: discovery.blocked(home) is not None)
            shown, examined = typed("ps", state=home), typed("doctor", "--json", state=home)
        finally:
            model.released.set()
        until(lambda: discovery.blocked(home) is None)
    assert "icy" in shown.out
    assert "The gateway does not answer: the event loop of the gateway" in shown.err
    assert "Frozen.ask" in shown.err
    (check,) = [one for one in examined.body["checks"] if one["id"] == "event-loop"]
    assert not check["ok"]
    assert "Frozen.ask" in check["detail"]


def test_a_note_of_a_gateway_that_is_gone_says_nothing(tmp_path: Path) -> None:
    (tmp_path / discovery.BLOCKED_FILE).write_text('{"since": 0, "where": "x", "pid": 1}')
    assert discovery.blocked(tmp_path) is None


def test_health_answers_while_postgresql_stands_still(tmp_path: Path, postgres_dsn: str) -> None:
    with served(tmp_path / "state", database=postgres_dsn) as here:

        async def asked_meanwhile() -> Heard:
            stranger = await asyncpg.connect(postgres_dsn)
            try:
                async with stranger.transaction():
                    await stranger.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
                    return await asyncio.to_thread(here.raw, "GET", "/v1/health")
            finally:
                await stranger.close()

        heard = asyncio.run(asked_meanwhile())
        assert (heard.status, heard.code) == (503, "unavailable")
        assert "the database has not answered" in heard.body["error"]["message"]
        assert here.raw("GET", "/v1/health").status == 200
