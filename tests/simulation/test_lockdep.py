"""What the serial simulator cannot see: writes without the key, and locks upside down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.store.transaction import ManyRows, Tx
from clutch.testing.clock import FakeClock
from clutch.testing.invariants.history import History
from clutch.testing.invariants.lockdep import offences
from clutch.testing.simulation.disk import Made, SimDisk
from clutch.transactions.sessions import NewMain, open_session

RIGHTS = rights_text(root_rights(AgentGrant(depth_max=2)))
PARENT, CHILD = 1, 2


class Bench:
    """A disk with a parent and a child, and what lockdep says of a transaction on it."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.clock = FakeClock()
        self.disk = SimDisk(self.clock, self._observe)
        self.history = History(self.disk)
        self.run(None, open_session, NewMain(PARENT, "agent:main:main", "main", RIGHTS, None, "."))
        self.run(None, open_session, NewMain(CHILD, "agent:main:chat:child", "main", RIGHTS, None, "."))
        self.run(None, _adopt)
        assert self.found == []

    def _observe(self, made: Any) -> None:
        self.found += offences(self.history.change(made, self.clock.now()), self.history)

    def run(self, keys: tuple[int, ...] | None, fn: Callable[..., Tx[Any]], *args: Any) -> list[str]:
        outcome = self.disk.commit(Made("test", keys, fn, args), self.clock)
        assert outcome.error is None
        return self.found


def _spend(now: float, name: str) -> Tx[None]:
    yield "UPDATE purses SET tokens_spent = ? WHERE name = ?", ManyRows([(1, name)])


def _adopt(now: float) -> Tx[None]:
    yield "UPDATE sessions SET parent_id = ?, depth = 1 WHERE id = ?", (PARENT, CHILD)


def _touch(now: float, *ids: int) -> Tx[None]:
    for session_id in ids:
        yield "UPDATE sessions SET head = head + 1 WHERE id = ?", (session_id,)


def _lock_then_touch(now: float, *ids: int) -> Tx[None]:
    for session_id in ids:
        yield "SELECT id FROM sessions WHERE id = ? {lock}", (session_id,)
    yield from _touch(now, *reversed(ids))


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.disk.close()


def test_a_write_within_the_keys_is_fine(bench: Bench) -> None:
    assert bench.run((CHILD,), _touch, CHILD) == []


def test_a_write_outside_the_keys_is_an_offence(bench: Bench) -> None:
    assert bench.run((CHILD,), _touch, PARENT) == [f"_touch with keys {(CHILD,)} wrote session {PARENT}"]


def test_whoever_runs_alone_may_write_many_from_the_top_down(bench: Bench) -> None:
    assert bench.run(None, _touch, PARENT, CHILD) == []


def test_a_child_before_its_parent_is_an_offence(bench: Bench) -> None:
    assert bench.run(None, _touch, CHILD, PARENT) == [
        f"_touch locked session {CHILD} before its ancestor {PARENT}"
    ]


def test_after_locking_in_order_the_order_of_writes_is_free(bench: Bench) -> None:
    assert bench.run(None, _lock_then_touch, PARENT, CHILD) == []


def test_a_purse_is_written_under_its_key(bench: Bench) -> None:
    assert bench.run((PARENT, -PARENT), _spend, f"root:{PARENT}") == []
    assert bench.run((PARENT, -1), _spend, "day:2026-01-01") == []
    assert bench.run((CHILD,), _spend, f"task:{CHILD}") == [
        f"_spend with keys {(CHILD,)} wrote budget task:{CHILD}"
    ]
