"""The findings of `clutch doctor` about a PostgreSQL server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.core.server_exam import (
    Connections,
    DeadRows,
    OldSnapshot,
    Pooler,
    ServerFacts,
    Slot,
    findings,
)

HEALTHY = ServerFacts(
    version="18.4",
    major=18,
    pooler=Pooler.NONE,
    encoding="UTF8",
    is_standby=False,
    is_read_only=False,
    locks_hold=True,
    may_write=True,
    schema="public",
    has_tables=True,
    unsafe=(),
    autovacuum=True,
    clock_offset_s=0.01,
    round_trip_s=0.001,
    connections=Connections(used=10, limit=100, needed=9),
    snapshot=None,
    sees_others=True,
    dead_rows=(),
    slots=(),
    frozen_age=1000,
)

#: Each change of a healthy server that an operator must hear of: the finding it makes, and whether it is an error.
PROBLEMS: list[tuple[dict[str, Any], str, bool]] = [
    ({"major": 13}, "pg-version", True),
    ({"major": 16}, "pg-version", False),
    ({"is_standby": True}, "pg-primary", True),
    ({"is_read_only": True}, "pg-primary", True),
    ({"pooler": Pooler.TRANSACTION}, "pg-pooler", False),
    ({"locks_hold": False}, "pg-locks", False),
    ({"may_write": False}, "pg-rights", True),
    ({"schema": None}, "pg-rights", True),
    ({"encoding": "LATIN1"}, "pg-encoding", True),
    ({"unsafe": ("fsync = off",)}, "pg-settings", True),
    ({"clock_offset_s": -300.0}, "pg-clock", False),
    ({"round_trip_s": 0.08}, "pg-latency", False),
    ({"connections": Connections(92, 100, 9)}, "pg-connections", True),
    ({"connections": Connections(85, 100, 9)}, "pg-connections", False),
    ({"snapshot": OldSnapshot(3600.0, "PID 7, app")}, "pg-snapshot", False),
    ({"sees_others": False}, "pg-snapshot", False),
    ({"autovacuum": False}, "pg-vacuum", True),
    ({"dead_rows": (DeadRows("sessions", 90_000, 40),)}, "pg-vacuum", False),
    ({"slots": (Slot("gone", 5 * 1024**3),)}, "pg-slots", False),
    ({"frozen_age": 1_500_000_000}, "pg-freeze", False),
]


def test_healthy_server_has_no_remedy() -> None:
    assert [one for one in findings(HEALTHY) if not one.is_ok or one.remedy] == []


@pytest.mark.parametrize(("change", "name", "is_error"), PROBLEMS)
def test_each_problem_is_one_finding_with_a_remedy(change: dict[str, Any], name: str, is_error: bool) -> None:
    found = [one for one in findings(replace(HEALTHY, **change)) if not one.is_ok or one.remedy]
    assert [(one.id, not one.is_ok) for one in found] == [(name, is_error)]
    assert found[0].remedy


@given(
    changes=st.lists(st.sampled_from([one[0] for one in PROBLEMS])),
    dead=st.integers(0, 10**9),
    live=st.integers(0, 10**9),
)
def test_every_error_has_a_remedy_and_every_fact_one_finding(
    changes: list[dict[str, Any]], dead: int, live: int
) -> None:
    facts = replace(HEALTHY, dead_rows=(DeadRows("inbox", dead, live),))
    for change in changes:
        facts = replace(facts, **change)
    found = findings(facts)
    assert [one.id for one in found] == [one.id for one in findings(HEALTHY)]
    assert all(one.is_ok or one.remedy for one in found)


def test_pooler_in_session_mode_needs_nothing() -> None:
    found = {one.id: one for one in findings(replace(HEALTHY, pooler=Pooler.SESSION))}
    assert "session mode" in found["pg-pooler"].detail
    assert found["pg-pooler"].remedy is None
