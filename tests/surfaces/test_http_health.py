"""`/v1/health/report`, `/v1/health/invariants` and `/v1/usage` over HTTP, and `clutch cost` beside them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.surfaces.served import FAST, Served, served
from tests.surfaces.test_http_tasks import ended, spawned
from tests.surfaces.typed import typed
from tests.transactions.test_costs import booked


def test_gateways_that_share_a_database_see_each_other_as_workers_with_leases(
    tmp_path: Path, postgres_dsn: str
) -> None:
    with (
        served(tmp_path / "a", policy=FAST, database=postgres_dsn) as one,
        served(tmp_path / "b", policy=FAST, database=postgres_dsn) as other,
    ):
        ended(one.client, spawned(one.client, "quick one"))
        found = one.client.get("/v1/health/report")
        assert found["gateway"]["database"] == "postgresql"
        assert found["gateway"]["databaseBytes"] > 100_000
        assert [worker["isStale"] for worker in found["workers"]] == [False, False]
        assert sum(worker["isHere"] for worker in found["workers"]) == 1
        assert all(worker["leaseUntil"] is not None for worker in found["workers"])
        asked = other.client.get("/v1/health/invariants")["invariants"]
        assert len(asked) > 20
        assert {one["state"] for one in asked} == {"ok"}
        trees = other.client.get("/v1/usage", by="tree", hours=1)
        assert sum(row["calls"] for row in trees["usage"]) == trees["total"]["calls"] >= 1


def test_the_report_has_no_token_and_says_what_the_gateway_is(db: Served) -> None:
    found = db.client.get("/v1/health/report")
    assert (found["gateway"]["database"], found["gateway"]["memoryBytes"] > 1_000_000) == ("sqlite", True)
    assert {lane["name"] for lane in found["queues"]["lanes"]} == {"main", "subagent"}
    assert [worker["leaseUntil"] for worker in found["workers"]] == [None]
    assert db.token not in str(found)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("by=week", "by"),
        ("hours=0", "hours"),
        ("hours=x", "hours"),
        ("utcOffsetMinutes=900", "utcOffsetMinutes"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_with_its_field(db: Served, query: str, field: str) -> None:
    heard = db.raw("GET", f"/v1/usage?{query}")
    assert (heard.status, heard.body["error"]["field"]) == (400, field)
    assert "must be" in heard.body["error"]["rule"]


def test_a_command_and_the_api_give_the_same_figures_with_and_without_a_gateway(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with served(home, policy=FAST) as here:
        store = here.clutch.services.db
        here.run(store.alone(booked, 999_999, 1, time.time() - 60, "dear", "0.25"))
        here.run(store.alone(booked, 999_999, 2, time.time() - 50, "nameless", None))
        here.run(store.alone(booked, 999_999, 3, time.time() - 7200, "dear", "0.75"))
        api = here.client.get("/v1/usage", by="model", hours=1)
        served_json = typed("cost", "--by", "model", "--hours", "1", "--json", state=home).body
    offline = typed("cost", "--by", "model", "--hours", "1", "--json", state=home).body
    assert [row["usd"] for row in api["usage"]] == ["0.25", None]
    assert served_json["usage"] == offline["usage"] == api["usage"]
    assert offline["unpriced"] == [{"model": "nameless", "calls": 1, "tokens": 1200}]
    shown = typed("cost", "--by", "tree", state=home)
    assert "$1.00" in shown.out
    assert "cost unknown: nameless, 1 call, 1.2k tokens" in shown.out
    assert typed("cost", "--hours", "0", state=home).code == 2
