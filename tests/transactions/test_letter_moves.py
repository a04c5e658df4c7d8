"""The life of a letter is the table of the core: no statement makes another move, and no text names a state by number.

Every test of this folder runs on a database that refuses other moves (`conftest.new_file`); here it is shown that it
does, and that the SQL of the product goes through `inbox.move`."""

from __future__ import annotations

import itertools
import re
import sqlite3
from pathlib import Path

import pytest

from clutch.core.model import LETTER_MOVES, LetterState
from clutch.transactions import inbox
from tests.docs.phases import moves

PRODUCT = Path(__file__).parents[2] / "src" / "clutch"
PAIRS = list(itertools.product(LetterState, LetterState))


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_there_is_sql_for_the_moves_of_the_table_and_for_no_other(
    before: LetterState, after: LetterState
) -> None:
    if (before, after) not in LETTER_MOVES:
        with pytest.raises(AssertionError, match=f"from {before.name} to {after.name}"):
            inbox.move(before, to=after)
    else:
        sql = inbox.move(before, to=after, also="seen = 0")
        assert sql == f"UPDATE inbox SET state = {after:d}, seen = 0 WHERE state = {before:d}"  # noqa: S608 (numbers of the core)


def test_a_move_from_several_states_needs_each_of_them() -> None:
    both = (LetterState.OPEN, LetterState.DEAD)
    sql = "UPDATE inbox SET state = 1 WHERE (state = 0 OR state = 2)"
    assert inbox.move(*both, to=LetterState.ANSWERED) == sql
    with pytest.raises(AssertionError):
        inbox.move(*both, to=LetterState.VOID)


def test_an_answered_or_void_letter_never_moves_again() -> None:
    ended = {LetterState.ANSWERED, LetterState.VOID}
    assert not [move for move in LETTER_MOVES if move[0] in ended]


def test_no_other_statement_of_the_product_sets_the_state_of_a_letter() -> None:
    setting = re.compile(r"UPDATE inbox SET[^\"]*\bstate\b\s*=")
    found = {
        path.relative_to(PRODUCT).as_posix(): len(setting.findall(path.read_text()))
        for path in PRODUCT.rglob("*.py")
        if path.relative_to(PRODUCT).parts[0] != "testing"
    }
    assert {name: count for name, count in found.items() if count} == {"transactions/inbox.py": 1}


def test_no_statement_names_the_state_of_a_letter_by_its_number() -> None:
    # `u` and `v` are rows of `usage`, whose state is another one.
    number = re.compile(r"(?<![uv]\.)\bstate\s*(?:=|<>|<|>|(?:NOT )?IN \()\s*\d")
    found = [
        f"{path.relative_to(PRODUCT)}:{count}"
        for path in sorted((PRODUCT / "transactions").rglob("*.py"))
        if path.name != "usage.py"
        for count, line in enumerate(path.read_text().splitlines(), start=1)
        if number.search(line)
    ]
    assert found == []


@pytest.mark.anyio
async def test_the_database_of_these_tests_refuses_other_moves(new_file: Path) -> None:
    file = sqlite3.connect(f"file:{new_file}?mode=ro&immutable=1", uri=True)
    copy = sqlite3.connect(":memory:")
    file.backup(copy)
    file.close()
    columns = "session_id, idem, kind, silent, body, route, at, ready_at, seen, state"
    row = f"INSERT INTO inbox({columns}) VALUES(1, ?, 'user', 0, '', '', 0, 0, 1, ?)"
    for before, after in PAIRS:
        key = f"{before:d}{after:d}"
        start = before if (None, before) in LETTER_MOVES else LetterState.OPEN
        copy.execute(row, (key, start.value))
        copy.execute("UPDATE inbox SET state = ? WHERE idem = ?", (before.value, key))
        change = ("UPDATE inbox SET state = ? WHERE idem = ?", (after.value, key))
        if before is after or (before, after) in LETTER_MOVES:
            copy.execute(*change)
        else:
            with pytest.raises(sqlite3.IntegrityError, match="no such move in inbox"):
                copy.execute(*change)
    with pytest.raises(sqlite3.IntegrityError, match="no such move in inbox"):
        copy.execute(row, ("dead", LetterState.DEAD.value))
    copy.close()


def test_the_diagram_has_every_move_once() -> None:
    lines = moves(LETTER_MOVES).splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == len(set(lines)) == len(LETTER_MOVES) + 1
    assert "    [*] --> open : posted" in lines
