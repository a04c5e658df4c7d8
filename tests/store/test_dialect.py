"""One text, two databases: the same rows with the same Python types come back from each."""

from __future__ import annotations

from typing import Any

import pytest

from clutch.errors import StoreError
from clutch.store.transaction import ManyRows
from tests.store import transactions as t
from tests.store.conftest import Stall, Store, together

pytestmark = pytest.mark.anyio


async def test_a_list_parameter_at_any_place(store: Store) -> None:
    await store.tx(1, t.write, "UPDATE counters SET name = 'even' WHERE id {any}", ([2, 4, 6],))
    await store.tx(1, t.write, "UPDATE counters SET name = 'three' WHERE id = ?", (3,))
    sql = "SELECT id FROM counters WHERE id > ? AND name {any} AND id {any} AND id < ? ORDER BY id"
    assert await store.read(t.select, sql, 2, ["even", "three"], [2, 3, 4, 5], 9) == [(3,), (4,)]
    assert await store.read(t.select, sql, 2, ["even", "three"], [], 9) == []


async def test_every_neighbour_gets_its_own_rows_in_order(store: Store, stall: Stall) -> None:
    ordered = "SELECT id, id FROM counters WHERE id {any} ORDER BY id DESC"
    locked = "SELECT MIN(value), MAX(value) FROM counters WHERE id {any}"
    results = await together(
        stall,
        *[store.tx(key, t.write, ordered, ([key, 9, key + 1],)) for key in (1, 2, 3)],
        *[store.tx(key, t.write, locked, ([key],)) for key in (4, 5)],
        *[store.tx(key, t.write, "SELECT id FROM counters WHERE id = ? {lock}", (key,)) for key in (6, 7)],
    )
    assert results == [
        [(9, 9), (2, 2), (1, 1)], [(9, 9), (3, 3), (2, 2)], [(9, 9), (4, 4), (3, 3)],
        [(0, 0)], [(0, 0)], [(6,)], [(7,)],
    ]  # fmt: skip


async def test_returning_rows_find_their_way_back(store: Store, stall: Stall) -> None:
    sql = "UPDATE counters SET value = value + ? WHERE id {any} RETURNING id, value"
    one, none, two = await together(
        stall,
        store.tx(1, t.write, sql, (10, [1])),
        store.tx(2, t.write, sql, (20, [])),
        store.tx(3, t.write, sql, (30, [3, 4])),
    )
    assert (one, none, sorted(two)) == ([(1, 10)], [], [(3, 30), (4, 30)])


async def test_many_rows_in_one_statement_answer_nothing(store: Store, stall: Stall) -> None:
    insert = "INSERT INTO notes(counter, body) VALUES(?, ?) RETURNING id"
    several, none, single = await together(
        stall,
        store.tx(1, t.write, insert, ManyRows([(1, "a"), (1, "b")])),
        store.tx(2, t.write, insert, ManyRows()),
        store.tx(3, t.write, insert, (3, "c")),
    )
    assert (several, none, len(single)) == ([], [], 1)
    assert await store.read(t.notes_of, 1) == [("a", None), ("b", None)]


async def test_a_statement_without_returning_answers_nothing(store: Store) -> None:
    assert await store.tx(1, t.write, "UPDATE counters SET value = 5 WHERE id = 1") == []
    assert await store.tx(1, t.write, "DELETE FROM counters WHERE id = 1") == []


async def test_skip_and_lock_are_understood(store: Store) -> None:
    sql = (
        "UPDATE counters SET value = 1 WHERE id IN "
        "(SELECT id FROM counters WHERE id < ? ORDER BY id LIMIT ? {skip}) RETURNING id"
    )
    assert len(await store.tx(1, t.write, sql, (9, 2))) == 2


SAME_TYPES: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("SELECT COUNT(*), SUM(value), MAX(value) FROM counters WHERE id < ?", (3,), (2, 0, 0)),
    ("SELECT SUM(value) FROM counters WHERE id = ?", (-1,), (None,)),
    ("SELECT EXISTS(SELECT 1 FROM counters WHERE id = ?), id > 5 FROM counters WHERE id = 7", (7,), (1, 1)),
    ("SELECT AVG(id) FROM counters WHERE id {any}", ([1, 2],), (1.5,)),
    ("SELECT CAST(? AS {big}), CAST(? AS {text}), CAST(? AS {float})", (2**62, "é", 0.1), (2**62, "é", 0.1)),
    ("SELECT CAST(? AS {blob})", (b"\x00\xff",), (b"\x00\xff",)),
    ("SELECT 1 WHERE CAST(? AS {text}) IS NULL", (None,), (1,)),
    ("WITH RECURSIVE u(n) AS (SELECT 1 UNION SELECT n + 1 FROM u WHERE n < ?) SELECT n FROM u WHERE n > 2",
     (3,), (3,)),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "parameters", "expected"), SAME_TYPES)
async def test_rows_have_the_same_types_everywhere(
    store: Store, stall: Stall, sql: str, parameters: tuple[Any, ...], expected: tuple[Any, ...]
) -> None:
    alone = await store.read(t.select, sql, *parameters)
    batched = await together(stall, *[store.tx(key, t.select, sql, *parameters) for key in (1, 2)])
    for rows in (alone, *batched):
        assert rows == [expected]
        assert [type(value) for value in rows[0]] == [type(value) for value in expected]
        assert type(rows[0]) is tuple


async def test_texts_are_ordered_byte_by_byte(store: Store, kind: str) -> None:
    if kind == "postgres":
        sql = "SELECT collation_name FROM information_schema.columns WHERE table_name = ? AND column_name = ?"
        assert await store.read(t.select, sql, "counters", "name") == [("C",)]
    for counter, name in ((1, "b"), (2, "B"), (3, "é"), (4, "a")):
        await store.tx(counter, t.write, "UPDATE counters SET name = ? WHERE id = ?", (name, counter))
    rows = await store.read(t.select, "SELECT name FROM counters WHERE name IS NOT NULL ORDER BY name")
    assert [name for (name,) in rows] == ["B", "a", "b", "é"]


async def test_five_megabytes_of_text_and_any_bytes(store: Store) -> None:
    text, raw = "ü" * 2_500_000, bytes(range(256)) * 1000
    await store.tx(1, t.note, 1, text, raw)
    assert await store.read(t.notes_of, 1) == [(text, raw)]


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
async def test_text_that_not_every_database_can_hold_is_refused_whole(
    store: Store, stall: Stall, text: str
) -> None:
    neighbour, failed = await together(stall, store.tx(1, t.bump, 1), store.tx(2, t.note, 2, text))
    assert isinstance(failed, StoreError)
    assert isinstance(neighbour, float)
    assert await store.read(t.notes_of, 2) == []


async def test_foreign_braces_and_unknown_words_are_noticed(store: Store) -> None:
    with pytest.raises(KeyError, match="unknown"):
        await store.tx(1, t.write, "SELECT 1 {unknown}")
    assert await store.tx(1, t.write, "SELECT '{}'") == [("{}",)]
