"""The rounds themselves, and the fair queue before them: no database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clutch.store.jobs import Lockstep, TransactionJob, TransactionMode, TransactionQueue
from clutch.store.transaction import HINT, ManyRows, Row, Spoiled, Tx
from clutch.testing.inline_store import InlineStore, LockstepStore, TransactionCall
from tests.store import transactions as t
from tests.store.conftest import SCHEMA, TickingClock


def ask(now: float, texts: Sequence[str]) -> Tx[list[Sequence[Row]]]:
    answers = []
    for text in texts:
        answers.append((yield text, (now,)))
    return answers


def test_statements_of_a_round_are_grouped_by_text_and_rows_find_their_asker() -> None:
    lockstep = Lockstep([partial(ask, texts=texts) for texts in (["B", "C"], ["A"], ["B"])], 7.0)
    first = lockstep.round()
    assert [(group.sql, [each.number for each in group.operations]) for group in first] == [
        ("A", [1]),
        ("B", [0, 2]),
    ]
    lockstep.answer(first[0], [[("a",)]])
    lockstep.answer(first[1], [[("b0",)], [("b2",), ("b3",)]])
    second = lockstep.round()
    assert [group.sql for group in second] == ["C"]
    lockstep.answer(second[0], [])
    assert lockstep.round() == []
    assert [outcome.value for outcome in lockstep.outcomes] == [
        [[("b0",)], ()],
        [[("a",)]],
        [[("b2",), ("b3",)]],
    ]


def test_many_and_single_rows_of_one_text_are_two_groups() -> None:
    def many(now: float) -> Tx[None]:
        yield "A", ManyRows([(1,), (2,)])

    def single(now: float) -> Tx[None]:
        yield HINT, ("first",)
        yield "A", (3,)

    groups = Lockstep([many, single], 0.0).round()
    assert [(group.is_many, len(group.operations)) for group in groups] == [(False, 1), (True, 1)]


@pytest.mark.parametrize(
    ("sql", "rows", "spoils"),
    [
        ("SELECT 1", [(1,)], False),
        ("WITH a AS (SELECT 1) SELECT * FROM a", [(1,)], False),
        ("UPDATE a SET b = 1 RETURNING b", [], False),
        ("UPDATE a SET b = 1 RETURNING b", [(1,)], True),
        ("UPDATE a SET b = 1", [], True),
        ("WITH a AS (SELECT 1) DELETE FROM b WHERE c IN (SELECT * FROM a)", [], True),
    ],
)
def test_a_failure_spoils_the_batch_only_after_a_write(sql: str, rows: list[Row], spoils: bool) -> None:
    def failing(now: float) -> Tx[None]:
        yield sql, ()
        raise t.Refused

    lockstep = Lockstep([failing], 0.0)
    (group,) = lockstep.round()
    if spoils:
        with pytest.raises(Spoiled):
            lockstep.answer(group, [rows])
    else:
        lockstep.answer(group, [rows])
        assert isinstance(lockstep.outcomes[0].error, t.Refused)


KEYS = st.lists(st.lists(st.integers(1, 4), max_size=3, unique=True).map(tuple), max_size=30)


@given(keys=KEYS, limit=st.integers(1, 6), left=st.sets(st.integers(0, 29)))
def test_the_queue_is_fair_for_every_mix_of_keys(
    keys: list[tuple[int, ...]], limit: int, left: set[int]
) -> None:
    taken: list[int] = []
    waiting, numbers = _queue(keys, left)
    while batch := waiting.take(limit):
        order = [numbers[job] for job in batch]
        assert order[0] == min(set(range(len(keys))) - set(taken) - left), "the oldest is always next"
        held = [key for job in batch for key in job.keys]
        assert len(held) == len(set(held)), "no two of a batch share a key"
        taken += order
        waiting.finished(batch)
    assert set(taken) == set(range(len(keys))) - left
    for key in range(1, 5):
        of_key = [number for number in taken if key in keys[number]]
        assert of_key == sorted(of_key), "a key's transactions keep their order"


@given(keys=KEYS)
def test_two_batches_at_once_never_hold_the_same_key(keys: list[tuple[int, ...]]) -> None:
    waiting, _ = _queue(keys, set())
    first, second = waiting.take(5), waiting.take(5)
    assert not {key for job in first for key in job.keys} & {key for job in second for key in job.keys}


def _queue(keys: list[tuple[int, ...]], left: set[int]) -> tuple[TransactionQueue, dict[TransactionJob, int]]:
    loop = asyncio.new_event_loop()
    waiting, numbers = TransactionQueue(), {}
    for number, each in enumerate(keys):
        job = TransactionJob(
            TransactionMode.SHARED, each, "ask", partial(ask, texts=()), loop.create_future()
        )
        if number in left:
            job.future.cancel()
        numbers[job] = number
        waiting.add(job)
    loop.close()
    return waiting, numbers


def test_inline_runs_one_transaction_and_tells_after_the_commit() -> None:
    committed: list[tuple[str, tuple[Any, ...]]] = []
    store = InlineStore(TickingClock(), lambda fn, args: committed.append((fn.__name__, args)), schema=SCHEMA)
    store.run(t.create, 1, 2)
    assert store.run(t.bump, 1)[1] == [("bumped", 1)]
    with pytest.raises(t.Refused):
        store.run(t.bump_then_fail, 2)
    assert committed == [("create", (1, 2)), ("bump", (1,))]
    assert store.rows("SELECT id, value FROM counters ORDER BY id") == [(1, 1), (2, 0)]
    assert store.read(t.value_of, 1) == 1
    store.close()


@given(keys=st.lists(st.integers(1, 9), min_size=1, max_size=9, unique=True), failing=st.integers(0, 9))
def test_a_lockstep_batch_in_memory_hurts_no_neighbour(keys: list[int], failing: int) -> None:
    store = LockstepStore(TickingClock(), schema=SCHEMA)
    store.run(t.create, *range(1, 10))
    calls = [TransactionCall(key, t.bump_then_fail if key == failing else t.bump, (key,)) for key in keys]
    outcomes = store.run_batch(calls)
    assert [outcome.error is None for outcome in outcomes] == [key != failing for key in keys]
    changed = [key for (key,) in store.rows("SELECT id FROM counters WHERE value = 1 ORDER BY id")]
    assert changed == sorted(key for key in keys if key != failing)
    store.close()


def test_a_lockstep_batch_with_a_shared_key_is_the_simulators_mistake() -> None:
    store = LockstepStore(TickingClock(), schema=SCHEMA)
    with pytest.raises(ValueError, match="share a key"):
        store.run_batch([TransactionCall((1, 2), t.bump, (1,)), TransactionCall(2, t.bump, (2,))])
    store.close()
