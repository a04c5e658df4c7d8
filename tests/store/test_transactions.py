"""What every store promises about one commit for many transactions, on each database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from clutch.errors import ConstraintViolated, StoreError, StoreRefused
from clutch.store.postgres import PostgresStore
from clutch.store.transaction import ManyRows
from tests.store import transactions as t
from tests.store.conftest import Stall, Store, settled, together

pytestmark = pytest.mark.anyio


async def test_an_acknowledged_transaction_is_seen_by_another_connection(
    store: Store, make_store: Callable[[], Store]
) -> None:
    await store.tx(1, t.bump, 1)
    async with make_store() as other:
        assert await other.read(t.value_of, 1) == 1


async def test_nothing_is_seen_before_the_commit(store: Store, stall: Stall) -> None:
    async with stall():
        bumping = asyncio.ensure_future(store.tx(1, t.bump, 1))
        await asyncio.sleep(0)
        assert await store.read(t.value_of, 1) == 0
        assert not bumping.done()
    await bumping
    assert await store.read(t.value_of, 1) == 1


async def test_waiting_transactions_share_one_commit(store: Store, stall: Stall) -> None:
    before = store.stats.transactions, store.stats.batches
    nows = await together(stall, *[store.tx(counter, t.bump, counter) for counter in range(1, 10)])
    assert len(set(nows)) == 1
    assert store.stats.transactions - before[0] >= 9
    assert store.stats.batches - before[1] <= 3  # ours, and the one or two that held the writer up


async def test_a_refusal_before_the_first_write_reaches_its_caller_only(store: Store, stall: Stall) -> None:
    first, refused, stale, last = await together(
        stall,
        store.tx(1, t.bump, 1),
        store.tx(2, t.refuse, 2),
        store.tx(3, t.refuse_stale, 3),
        store.tx(4, t.bump, 4),
    )
    assert isinstance(refused, t.Refused)
    assert isinstance(stale, t.Refused)
    assert first == last, "the neighbours were not run again"
    assert store.stats.redone == 0
    assert [await store.read(t.value_of, counter) for counter in (1, 2, 3, 4)] == [1, 0, 0, 1]


async def test_a_failure_after_a_write_is_undone_and_hurts_no_neighbour(store: Store, stall: Stall) -> None:
    first, failed, last = await together(
        stall, store.tx(1, t.bump, 1), store.tx(2, t.bump_then_fail, 2), store.tx(3, t.bump, 3)
    )
    assert isinstance(failed, t.Refused)
    assert first != last, "run again one by one"
    assert store.stats.redone == 3
    assert [await store.read(t.value_of, counter) for counter in (1, 2, 3)] == [1, 0, 1]


async def test_a_broken_rule_of_the_schema_hurts_no_neighbour(store: Store, stall: Stall) -> None:
    first, failed = await together(stall, store.tx(1, t.bump, 1), store.tx((), t.create, 20, 20))
    assert isinstance(failed, ConstraintViolated)
    assert isinstance(first, float)
    assert await store.read(t.value_of, 1) == 1
    assert await store.read(t.value_of, 20) is None


async def test_a_wrong_statement_is_an_error_and_the_store_goes_on(store: Store) -> None:
    with pytest.raises(StoreRefused, match="nowhere"):
        await store.tx(1, t.write, "UPDATE nowhere SET value = 1")
    with pytest.raises(StoreRefused, match="NUL"):
        await store.tx(1, t.write, "UPDATE counters SET value = 1 WHERE name = ?", ("a\0b",))
    assert await store.tx(1, t.bump, 1)


async def test_a_function_that_is_called_wrongly_fails_alone(store: Store, stall: Stall) -> None:
    wrong: Any = t.bump
    first, failed = await together(stall, store.tx(1, t.bump, 1), store.tx(2, wrong, 2, 2, 2))
    assert isinstance(failed, TypeError)
    assert isinstance(first, float)


async def test_transactions_that_share_a_key_see_each_other_s_writes(store: Store, stall: Stall) -> None:
    one, both, two, free = await together(
        stall,
        store.tx(1, t.bump, 1),
        store.tx((1, 2), t.bump_both, 1, 2),
        store.tx(2, t.bump, 2),
        store.tx(3, t.bump, 3),
    )
    if isinstance(store, PostgresStore):  # on SQLite a batch runs one after the other, in the order they came
        assert one < both < two, "and each key keeps the order in which they came"
    assert free == one, "an unrelated transaction does not wait for them"
    assert [await store.read(t.value_of, counter) for counter in (1, 2, 3)] == [2, 2, 1]


async def test_a_key_that_is_asked_for_all_the_time_keeps_its_order(store: Store, stall: Stall) -> None:
    calls = [store.tx(1, t.note, 1, str(number)) for number in range(8)]
    identities = await together(stall, *calls)
    assert identities == sorted(identities)
    assert [body for body, _ in await store.read(t.notes_of, 1)] == [str(number) for number in range(8)]


async def test_alone_is_isolated_from_its_neighbours(store: Store, stall: Stall) -> None:
    first, alone, last = await together(
        stall, store.tx(1, t.bump, 1), store.alone(t.bump_both, 2, 3), store.tx(4, t.bump, 4)
    )
    assert first == last
    assert (alone != first) is isinstance(store, PostgresStore), "one after the other isolates as well"
    assert [await store.read(t.value_of, counter) for counter in (2, 3)] == [1, 1]


async def test_alone_that_fails_leaves_nothing(store: Store) -> None:
    with pytest.raises(t.Refused):
        await store.alone(t.bump_then_fail, 1)
    assert await store.read(t.value_of, 1) == 0


async def test_readers_cannot_write(store: Store) -> None:
    with pytest.raises(StoreError, match="may only read"):
        await store.read(t.write, "UPDATE counters SET value = 7 WHERE id = 1")
    assert await store.read(t.value_of, 1) == 0
    await store.tx(1, t.bump, 1)
    assert await store.read(t.value_of, 1) == 1


async def test_a_reader_does_not_wait_for_the_writer(store: Store, stall: Stall) -> None:
    async with stall():
        assert await settled(store.read(t.value_of, 1)) == 0


async def test_a_caller_that_left_before_its_turn_takes_its_transaction_with_it(
    store: Store, stall: Stall
) -> None:
    async with stall():
        leaving = asyncio.ensure_future(store.tx(1, t.bump, 1))
        await asyncio.sleep(0)
        leaving.cancel()
    await store.tx(1, t.bump, 1)
    assert await store.read(t.value_of, 1) == 1


async def test_hints_are_told_after_the_commit_and_equal_ones_once(store: Store, stall: Stall) -> None:
    told: list[Any] = []
    store.listen(told.append)
    await together(stall, *[store.tx(counter, t.bump, counter) for counter in (1, 2, 3)])
    assert sorted(told[-1]) == [("bumped", 1), ("bumped", 2), ("bumped", 3)]
    told.clear()
    await store.alone(t.bump_both, 4, 4)
    assert told == [[("bumped", 4)]]


def _failing_listener(hints: Sequence[Any]) -> None:
    raise LookupError(hints)


async def test_a_listener_that_fails_disturbs_nobody(store: Store) -> None:
    told: list[Any] = []
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reported.append(report))
    store.listen(_failing_listener)
    store.listen(told.append)
    assert await store.tx(1, t.bump, 1)
    asyncio.get_running_loop().set_exception_handler(None)
    assert told == [[("bumped", 1)]]
    assert [type(report["exception"]) for report in reported] == [LookupError]


async def test_what_was_rolled_back_or_refused_is_never_hinted(store: Store, stall: Stall) -> None:
    told: list[Any] = []
    store.listen(told.extend)
    await together(
        stall,
        store.tx(1, t.bump, 1),
        store.tx(2, t.bump_then_fail, 2),
        store.tx(3, t.refuse, 3),
    )
    assert ("bumped", 1) in told
    assert not {("bumped", 2), ("refused", 3)} & set(told)


async def test_a_listener_finds_what_it_was_told_of(store: Store) -> None:
    seen: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
    store.listen(lambda _: seen.put_nowait(asyncio.ensure_future(store.read(t.value_of, 1))))
    await store.tx(1, t.bump, 1)
    assert await (await seen.get()) == 1


async def test_close_finishes_what_waits_and_then_refuses(make_store: Callable[[], Store]) -> None:
    store = await make_store().open()
    await store.alone(t.create, 1)
    waiting = [asyncio.ensure_future(store.tx(1, t.bump, 1)) for _ in range(5)]
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*waiting)) == 5
    with pytest.raises(StoreError, match="closed"):
        await store.tx(1, t.bump, 1)


async def test_a_second_close_is_harmless(make_store: Callable[[], Store]) -> None:
    store = await make_store().open()
    await store.close()
    await store.close()


async def test_it_counts_transactions_and_statements_by_function(store: Store) -> None:
    await store.tx(1, t.bump, 1)
    await store.tx(1, t.bump, 1)
    await store.tx(1, t.write, "UPDATE counters SET value = ? WHERE id = ?", ManyRows([(1, 1), (2, 2)]))
    assert store.stats.by_function["bump"] == [2, 4]
    assert store.stats.by_function["write"] == [1, 1], "one statement, however many rows"
