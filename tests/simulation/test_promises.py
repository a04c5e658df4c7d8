"""What the judge says of a broken table, and what a world at rest may not keep: each promise can be broken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.policy import Policy
from clutch.core.spawn import SpawnRequest
from clutch.store.transaction import ManyRows, Tx
from clutch.testing.clock import FakeClock
from clutch.testing.invariants.checker import InvariantChecker
from clutch.testing.simulation.disk import Made, SimDisk
from clutch.testing.simulation.settings import SETTINGS
from clutch.testing.simulation.world import World, _quiet, _running
from clutch.transactions.sessions import NewMain, open_session
from clutch.transactions.spawn import ChildRequest, spawn

RIGHTS = rights_text(root_rights(AgentGrant(depth_max=2)))
POLICY = Policy()
MAIN, TASK = 1, 2
UUID = "00000000-0000-4000-8000-000000000002"


class Bench:
    """A main session with one child, and who accuses."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.accused: list[str] = []
        self.disk = SimDisk(self.clock, self._observe)
        self.checker = InvariantChecker(self.disk, POLICY, lambda name, _: self.accused.append(name))
        self.run(open_session, NewMain(MAIN, "agent:main:main", "main", RIGHTS, None, "."))
        order = ChildRequest("call", TASK, UUID, SpawnRequest("do it"), 0)
        self.run(spawn, POLICY, MAIN, MAIN, [order])
        assert self.accused == []

    def _observe(self, made: Sequence[Made]) -> None:
        self.checker.check(made, self.clock.now())

    def run(self, fn: Any, *args: Any) -> None:
        outcome = self.disk.commit(Made("test", None, fn, args), self.clock)
        assert outcome.error is None, outcome.error

    def write(self, sql: str) -> list[str]:
        self.accused.clear()
        self.run(_write, sql)
        return self.accused

    def at_rest(self, sql: str) -> list[str]:
        self.run(_write, sql)
        self.accused.clear()
        self.clock.advance(1000)
        workers = [row[0] for row in self.disk.query("SELECT id FROM workers")]
        self.checker.check_calm(self.clock.now(), workers)
        self.checker.check_end()
        return self.accused


def _write(now: float, sql: str) -> Tx[None]:
    yield sql, ()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.disk.close()


@pytest.mark.parametrize(
    ("invariant", "first", "then"),
    [
        ("N5", "outcome = 'ok'", "outcome = 'error'"),
        ("T9", "outcome = 'ok', result = 'a', result_sha = 'a'", "result = 'b', result_sha = 'b'"),
        ("T13", "attempts = 0", "attempts = 1"),
        ("T6", "outcome = NULL", "outcome = 'timeout'"),
        ("T10", "seq = seq", "seq = seq - 1"),
    ],
)
def test_what_a_task_may_not_become_is_seen_by_comparing_with_what_it_was(
    bench: Bench, invariant: str, first: str, then: str
) -> None:
    bench.write(f"UPDATE tasks SET {first}")  # noqa: S608
    assert invariant in bench.write(f"UPDATE tasks SET {then}")  # noqa: S608


@pytest.mark.parametrize("change", ["owner = 7", "fence = fence - 1", "owner = NULL"])
def test_an_owner_without_a_new_fence_is_seen(bench: Bench, change: str) -> None:
    if change == "owner = NULL":
        bench.write("UPDATE sessions SET owner = 7, fence = 5")
    assert "T4" in bench.write(f"UPDATE sessions SET {change}")  # noqa: S608


def test_an_accepted_task_that_is_gone_is_seen(bench: Bench) -> None:
    assert bench.at_rest("DELETE FROM tasks").count("T7") == 1


@pytest.mark.parametrize(
    "left",
    [
        "INSERT INTO workers(id, lease_until, host, pid, version, started_at) VALUES(9, 0, 'host', 1, '0', 0)",
        "INSERT INTO runs(id, session_id, generation, by_person, started_at) VALUES(9, 1, 1, 0, 0)",
        "UPDATE tasks SET wake_at = 5",
        "INSERT INTO inbox(session_id, idem, kind, silent, body, route, at, ready_at, seen)"
        " VALUES(1, 'n', 'note', 0, '', '', 0, 0, 1)",
        "INSERT INTO outbox(idem, session_id, channel, target, body, owner) VALUES('o', 1, 'c', 't', '', 9)",
    ],
)
def test_what_nobody_trims_is_seen_when_the_world_is_at_rest(bench: Bench, left: str) -> None:
    bench.run(_write, "UPDATE tasks SET wake_at = NULL, deadline_at = NULL, clock_left_s = NULL")
    assert "T15" not in bench.at_rest("UPDATE sessions SET due = due")
    assert "T15" in bench.at_rest(left)


_CALL = "INSERT INTO usage(session_id, call_no, run_id, at, state, model, reserved_tokens, input)"


@pytest.mark.parametrize(
    "wrong",
    [
        "UPDATE purses SET tokens_spent = 6",
        "UPDATE purses SET tokens_reserved = 1",
        f"{_CALL} VALUES(2, 2, 1, 0, 2, '', 9, 0)",
        f"{_CALL} VALUES(2, 2, 1, 0, 0, '', 9, 0)",
    ],
)
def test_a_purse_that_is_not_the_sum_of_its_calls_is_seen(bench: Bench, wrong: str) -> None:
    bench.run(
        _write, "INSERT INTO purses(name, kind, tokens_max, tokens_spent) VALUES('root:1', 'root', 20, 5)"
    )
    bench.run(_write, "UPDATE sessions SET purses = 'root:1'")
    bench.run(_write, f"{_CALL} VALUES(2, 1, 1, 0, 1, '', 9, 5)")
    assert "T16" not in bench.at_rest("UPDATE purses SET warned = 0")
    assert "T16" in bench.at_rest(wrong)


@pytest.mark.parametrize(("spent", "is_over"), [(28, False), (29, True)])
def test_a_purse_is_overdrawn_by_less_than_one_call(bench: Bench, spent: int, is_over: bool) -> None:
    bench.run(_write, "INSERT INTO purses(name, kind, tokens_max) VALUES('root:1', 'root', 20)")
    bench.run(_write, "UPDATE sessions SET purses = 'root:1'")
    bench.run(_write, f"{_CALL} VALUES(2, 1, 1, 0, 1, '', 9, {spent})")
    bench.accused.clear()
    bench.run(_spend, spent)
    assert ("T16" in bench.accused) is is_over


def _spend(now: float, spent: int) -> Tx[None]:
    yield "UPDATE purses SET tokens_spent = ? WHERE name = ?", ManyRows([(spent, "root:1")])


def test_an_open_question_without_a_run_that_waits_for_it_is_seen(bench: Bench) -> None:
    asked = "INSERT INTO questions(id, session_id, seq, idx, kind, body, hash, asked_at)"
    bench.run(_write, f"{asked} VALUES(9, 2, 1, 0, 'approval', '', '', 0)")
    assert "N31" in bench.write("UPDATE sessions SET due = due + 1")


CUT = """INSERT INTO messages VALUES(2, 1, 1, 'answer', '{"stop": "length"}', 0)"""


@pytest.mark.parametrize("order", [("words", "ends"), ("ends", "words")])
def test_a_cut_answer_is_no_success_and_one_that_came_after_the_end_is_nobodys(
    bench: Bench, order: tuple[str, str]
) -> None:
    steps = {"words": CUT, "ends": "UPDATE tasks SET outcome = 'ok'"}
    bench.run(_write, "UPDATE sessions SET head = 1 WHERE id = 2")
    accused = [name for step in order for name in bench.write(steps[step])]
    accused += bench.write("UPDATE tasks SET delivery_reason = 'told'")
    assert ("N9" in accused) is (order[0] == "words")


UNDO = "DELETE FROM {} WHERE id = 2"


@pytest.fixture
def reserved(bench: Bench) -> Bench:
    """Its child is still being prepared."""
    bench.run(_write, "DELETE FROM inbox")
    bench.run(_write, "UPDATE tasks SET phase = 'spawning'")
    bench.run(_write, "DELETE FROM events")
    bench.run(
        _write,
        "INSERT INTO events(task_id, seq, at, actor, from_phase, to_phase, reason, detail, generation)"
        " VALUES(2, 1, 0, '', 'spawning', 'spawning', 'spawn-failed', 'no disk', 1)",
    )
    return bench


def test_a_spawn_that_is_undone_leaves_one_line(reserved: Bench) -> None:
    reserved.accused.clear()
    reserved.run(_undo, "sessions", "tasks")
    assert reserved.accused == []


@pytest.mark.parametrize(
    "left",
    [
        "INSERT INTO purses(name, kind) VALUES('task:2', 'task')",
        "INSERT INTO messages VALUES(2, 1, 1, 'input', '', 0)",
        "INSERT INTO inbox(session_id, idem, kind, silent, body, route, at, ready_at, seen)"
        " VALUES(2, 'n', 'note', 0, '', '', 0, 0, 1)",
        "UPDATE events SET reason = 'admitted'",
        "DELETE FROM events",
        "UPDATE tasks SET phase = 'queued'",
    ],
)
def test_what_an_undone_spawn_leaves_is_seen(reserved: Bench, left: str) -> None:
    reserved.run(_write, left)
    reserved.accused.clear()
    reserved.run(_undo, "sessions", "tasks")
    assert "N1" in reserved.accused


def test_a_session_without_its_task_is_seen(reserved: Bench) -> None:
    reserved.accused.clear()
    reserved.run(_undo, "tasks")
    assert "N1" in reserved.accused


def _undo(now: float, *tables: str) -> Tx[None]:
    for table in tables:
        yield UNDO.format(table), ()


class RestingWorld(World):
    """Looks into the workers some time after all is over: what they hold then, they would hold for ever."""

    left = -1

    async def _calm(self) -> None:
        await super()._calm()
        await asyncio.sleep(60)
        self.left = sum(
            len(held)
            for gateway in self.gateways
            for held in (gateway.worker.turns, gateway.worker._mail, gateway.worker._to_clean)
        )


@pytest.mark.parametrize("name", ["storm", "lockstep", "gone"])
def test_workers_at_rest_hold_nothing_in_memory(name: str) -> None:
    world = RestingWorld(3, SETTINGS[name])
    with _quiet(), _running(world.loop):
        world.loop.run_until_complete(world.play())
    world.disk.close()
    assert world.violations == []
    assert world.left == 0
