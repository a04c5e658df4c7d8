"""What pages are sent costs the database a share of its time, however much there is to read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clutch.api import overview
from clutch.api.feed import FeedWatcher
from clutch.api.gateway import Gateway
from clutch.api.overview import PERIOD_S, PROGRESS_SHARE, Overviews

pytestmark = pytest.mark.anyio


class SlowGateway:
    """Reads take `read_s` of a clock of its own; each pause ends at once."""

    def __init__(self, read_s: float) -> None:
        self.read_s, self.moment, self.pauses = read_s, 0.0, list[float]()
        self.services = SimpleNamespace(
            changes=self, db=self, policy=None, check_model=None, problems=lambda: ()
        )
        self.next_change = asyncio.Event()
        self.has_paused = asyncio.Event()

    async def read(self, fn: object, *args: object) -> Any:
        self.moment += self.read_s
        return ({}, []) if fn is overview.read else []

    async def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.has_paused.set()

    async def until(self, change: asyncio.Event) -> None:
        await change.wait()


@pytest.mark.parametrize(("read_s", "pause_s"), [(0.04, PERIOD_S), (2.0, PROGRESS_SHARE * 4.0)])
async def test_the_pause_between_two_looks_grows_with_what_both_reads_cost(
    monkeypatch: pytest.MonkeyPatch, read_s: float, pause_s: float
) -> None:
    gateway = SlowGateway(read_s)
    monkeypatch.setattr(overview, "time", SimpleNamespace(monotonic=lambda: gateway.moment))
    monkeypatch.setattr(overview, "asyncio", SimpleNamespace(sleep=gateway.sleep))
    feed = SimpleNamespace(take_changed=lambda: {5}, order=asyncio.Lock())
    overviews = Overviews(cast("Gateway", gateway), cast("Any", feed))
    with overviews.watching(FeedWatcher()):
        looking = asyncio.create_task(overviews._follow_changes())
        await gateway.has_paused.wait()
        looking.cancel()
    assert gateway.pauses == [pytest.approx(pause_s)]
