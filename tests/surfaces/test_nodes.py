"""The nodes of a fleet on one PostgreSQL: who they are, and taking one out of service while it works."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clutch.core.views import WorkerView, node_named
from clutch.errors import AmbiguousTarget, NotFound
from clutch.surfaces.http_client import Declined, GatewayClient
from tests.patience import PATIENCE_S
from tests.surfaces.served import FAST, served
from tests.surfaces.test_http_tasks import ended, spawned
from tests.surfaces.typed import typed

Node = dict[str, Any]


def nodes_when(client: GatewayClient, is_there: Callable[[dict[bool, Node]], bool]) -> dict[bool, Node]:
    """The two nodes by whether they answer this client, once they look like that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = {one["isHere"]: one for one in client.get("/v1/nodes")["nodes"]}
        if is_there(found):
            return found
        assert time.monotonic() < deadline, found


def test_a_drained_node_hands_its_work_over_and_stays_reachable(tmp_path: Path, postgres_dsn: str) -> None:
    with (
        served(tmp_path / "a", policy=FAST, database=postgres_dsn) as one,
        served(tmp_path / "b", policy=FAST, database=postgres_dsn) as other,
    ):
        task = spawned(one.client, "slow")
        found = nodes_when(one.client, lambda nodes: sum(node["sessions"] for node in nodes.values()) == 1)
        owner = next(node for node in found.values() if node["sessions"])
        here, there = (one, other) if owner["isHere"] else (other, one)
        said = typed("drain", owner["name"], "--json", state=there.home)
        assert [node["isDraining"] for node in said.body["nodes"]] == [True]
        moved = nodes_when(here.client, lambda nodes: nodes[False]["sessions"] == 1)
        assert (moved[True]["isDraining"], moved[True]["sessions"]) == (True, 0)
        assert here.client.get("/v1/health")["status"] == "draining"
        assert there.client.get("/v1/health")["status"] == "ok"
        there.let_go()
        assert ended(here.client, task)["result"]["text"]
        # What it is asked for now is done by the other node.
        assert ended(here.client, spawned(here.client, "quick"))["result"]["text"]
        assert moved[True]["name"] in typed("nodes", "--database", postgres_dsn, state=tmp_path / "c").out
        typed("drain", owner["name"], "--undo", state=there.home)
        nodes_when(here.client, lambda nodes: not nodes[True]["isDraining"])
        with pytest.raises(Declined, match="there is no node 'x'"):
            here.client.post("/v1/nodes/drain", {"node": "x"})


def test_nodes_of_a_database_that_no_gateway_serves_now(tmp_path: Path, postgres_dsn: str) -> None:
    with served(tmp_path / "a", policy=FAST, database=postgres_dsn) as one:
        (node,) = one.client.get("/v1/nodes")["nodes"]
        assert (node["isHere"], node["isStale"], bool(node["seenAt"])) == (True, False, True)
        nodes_when(one.client, lambda nodes: nodes[True]["clockOffsetSeconds"] is not None)
    said = typed("nodes", "--json", "--database", postgres_dsn, state=tmp_path / "c").body
    assert (said["schema"], said["ok"], said["nodes"]) == ("clutch.nodes/1", True, [])


def test_the_only_gateway_of_a_state_directory_is_a_node_that_cannot_be_drained(tmp_path: Path) -> None:
    with served(tmp_path / "a", policy=FAST) as one:
        (node,) = one.client.get("/v1/nodes")["nodes"]
        assert (node["leaseUntil"], node["seenAt"], node["isStale"]) == (None, None, False)
        with pytest.raises(Declined, match="only one of its state directory"):
            one.client.post("/v1/nodes/drain", {"node": node["name"]})


def test_a_node_is_named_by_its_name_number_or_host() -> None:
    nodes = [
        WorkerView(number, host, 4711, "1", 0.0, 9.0, 0) for number, host in ((1, "a"), (2, "b"), (3, "b"))
    ]
    for target, number in (("a", 1), ("a:4711", 1), ("b:4711/3", 3), ("2", 2)):
        assert node_named(target, nodes).id == number
    with pytest.raises(AmbiguousTarget, match="'b' is the host of 2 nodes"):
        node_named("b", nodes)
    with pytest.raises(NotFound, match="there is no node 'c'"):
        node_named("c", nodes)
