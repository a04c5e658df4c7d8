"""The check of the invariants: one at a time, ended with its last caller, and its answer serves for a moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clutch.api import health
from clutch.api.health import InvariantReport
from clutch.engine.services import Services
from clutch.transactions.invariants import standing

pytestmark = pytest.mark.anyio

COUNT = len(list(standing(is_served=True, is_sqlite=True)))


class SlowReads:
    """A database whose reads wait until they may go on."""

    def __init__(self) -> None:
        self.begun, self.cancelled = 0, 0
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def read(self, *asked: object) -> list[str]:
        del asked
        self.begun += 1
        self.is_asked.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return []


@pytest.fixture
def db() -> SlowReads:
    return SlowReads()


@pytest.fixture
def report(db: SlowReads) -> InvariantReport:
    return InvariantReport(cast("Services", SimpleNamespace(db=db, lives=None, now=lambda: 0.0)))


async def ten(report: InvariantReport, db: SlowReads) -> list[asyncio.Task[Any]]:
    asking = [asyncio.create_task(report.current()) for _ in range(10)]
    await db.is_asked.wait()
    return asking


async def test_callers_at_once_share_one_check(report: InvariantReport, db: SlowReads) -> None:
    asking = await ten(report, db)
    db.may_answer.set()
    answers = await asyncio.gather(*asking)
    assert {one["state"] for one in answers[0]["invariants"]} == {"ok"}
    assert answers == [answers[0]] * 10
    assert db.begun == COUNT


async def test_an_answer_serves_in_proportion_to_its_cost(
    report: InvariantReport, db: SlowReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = [0.0]
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: moments[0]))
    (asking, *_) = await ten(report, db)
    moments[0] = 1.0  # so long it took
    db.may_answer.set()
    await asking
    moments[0] = 1.0 + health.SHARE - 0.1
    await report.current()
    assert db.begun == COUNT
    moments[0] = 1.0 + health.SHARE
    await report.current()
    assert db.begun == 2 * COUNT


async def test_a_check_goes_on_while_one_caller_waits_and_ends_with_the_last(
    report: InvariantReport, db: SlowReads
) -> None:
    *left, last = await ten(report, db)
    for one in left:
        one.cancel()
    await asyncio.wait(left)
    assert db.cancelled == 0
    last.cancel()
    await asyncio.wait([last])
    db.may_answer.set()
    assert (await report.current())["invariants"]  # not the answer of the one that was ended
    assert (db.cancelled, db.begun) == (1, 1 + COUNT)


async def test_a_query_that_takes_too_long_is_ended_and_listed_as_not_checked(
    report: InvariantReport, db: SlowReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "QUERY_S", 0.0)
    found = await report.current()
    assert {one["state"] for one in found["invariants"]} == {"not checked"}
    assert db.cancelled == db.begun == COUNT


async def test_the_last_check_is_known_without_a_wait_and_repeated_when_it_is_old(
    report: InvariantReport, db: SlowReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = [1.0]
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: moments[0]))
    assert report.latest() is None
    assert report.latest() is None, "the first check has not ended"
    db.may_answer.set()
    await report.current()
    moments[0] += health.LATEST_S
    assert report.latest() == (0, health.LATEST_S)
    assert db.begun == COUNT
    moments[0] += 1
    assert report.latest() == (0, health.LATEST_S + 1)
    await report.current()
    assert report.latest() == (0, 0.0)
    assert db.begun == 2 * COUNT
    await report.close()
