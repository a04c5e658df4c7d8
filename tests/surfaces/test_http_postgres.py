"""The HTTP API of gateways that share a PostgreSQL: each of them reaches every task."""

from __future__ import annotations

from pathlib import Path

import pytest

from clutch.core.attachments import is_state
from clutch.ports import ToolFailed
from clutch.surfaces import discovery
from clutch.surfaces.http_client import task_path
from clutch.tools import files
from tests.surfaces.served import FAST, served
from tests.surfaces.test_http_tasks import ended, seen, spawned


def test_a_task_of_one_gateway_is_steered_and_killed_through_another(
    tmp_path: Path, postgres_dsn: str
) -> None:
    with (
        served(tmp_path / "a", policy=FAST, database=postgres_dsn) as one,
        served(tmp_path / "b", policy=FAST, database=postgres_dsn) as other,
    ):
        assert one.client.get("/v1/health")["database"] == "postgresql"
        assert one.client.get("/v1/health")["workers"] == 2
        task = spawned(one.client, "slow one", label="shared")
        seen(other.client, "shared", lambda found: found["phase"] == "running")
        other.client.post(task_path(task, "steer"), {"text": "quick instead"})
        assert "quick instead" in ended(other.client, task)["result"]["text"]
        second = spawned(other.client, "slow two")
        seen(one.client, second, lambda found: found["phase"] == "running")
        assert one.client.post(task_path(second, "kill"))["stopped"] == [second]


def test_the_same_key_is_the_same_task_at_both_doors(tmp_path: Path, postgres_dsn: str) -> None:
    with (
        served(tmp_path / "a", policy=FAST, database=postgres_dsn) as one,
        served(tmp_path / "b", policy=FAST, database=postgres_dsn) as other,
    ):
        first, again = (here.client.post("/v1/tasks", {"task": "once"}, key="k") for here in (one, other))
    assert first == again


def test_one_of_two_gateways_with_one_state_directory_answers_for_both(
    tmp_path: Path, postgres_dsn: str
) -> None:
    with (
        served(tmp_path / "state", policy=FAST, database=postgres_dsn) as one,
        served(tmp_path / "state", policy=FAST, database=postgres_dsn) as other,
    ):
        assert (one.clutch.url is not None, other.clutch.url) == (True, None)
        found = discovery.find(tmp_path / "state")
        assert found is not None
        assert found.url == one.clutch.url
        assert one.client.get("/v1/health")["workers"] == 2


def test_agents_of_other_gateways_do_not_see_its_state_directory(tmp_path: Path, postgres_dsn: str) -> None:
    """Without a database file it is recognised by its lock and its mark, also when no gateway runs."""
    state = tmp_path / "state"
    with served(state, policy=FAST, database=postgres_dsn):
        pass
    assert is_state({path.name for path in state.iterdir()})
    with pytest.raises(ToolFailed, match="state directory"):
        files.run("read", {"path": "state/token"}, str(tmp_path))
