"""The steps of a move: movers that die, run twice and are cancelled at any point never make a tree live twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clutch.core import move
from clutch.core.move import STEPS, EndState, MoveRecord, MoveStep, next_step
from clutch.errors import InvalidInput, StoreMoved

PLACES = ("host:/a", "/b")
CELLS = 3  #: rows of the model's tree; each is one page


class Changed(Exception):
    """The record is not the one that the mover has read: the product ends with an error here."""


@dataclass
class Database:
    """One end: its record, and a tree whose rows carry the number of their last change. Empty: no tree."""

    record: MoveRecord = field(default_factory=MoveRecord)
    rows: list[int] = field(default_factory=list)

    @property
    def lives(self) -> bool:
        return bool(self.rows) and move.refusal(self.record, "") is None

    def change(self, was: MoveRecord, new: MoveRecord) -> None:
        if self.record != was:
            raise Changed
        self.record = new


def mover(source: Database, target: Database, move_id: str) -> Iterator[None]:
    """As `wiring/move.Mover.run`. Every `yield` is a point where others act, or where it dies."""
    while True:
        there = target.record
        yield
        here = source.record
        yield
        move_id = move_id if here.state is EndState.OPEN else here.move_id
        step = next_step(here, there, move_id, PLACES, is_empty=not target.rows)
        yield
        match step:
            case MoveStep.DONE:
                return
            case MoveStep.RECEIVE:
                if there.state is EndState.OPEN and target.rows:
                    raise Changed
                target.change(there, MoveRecord(EndState.RECEIVING, move_id, PLACES[0]))
                target.rows = []
            case MoveStep.FENCE:
                source.change(here, replace(here, state=EndState.FENCED, move_id=move_id, peer=PLACES[1]))
            case MoveStep.COPY:
                yield from copy(source, target, there)
            case MoveStep.COMMIT:
                source.change(here, replace(here, state=EndState.MOVED))
            case MoveStep.OPEN:
                return target.change(there, move.opened(here, move_id))


def copy(source: Database, target: Database, record: MoveRecord) -> Iterator[None]:
    for place in range(record.after[0] if record.after else 0, CELLS):
        read = source.rows[place]
        yield
        new = replace(record, table="cells", after=(place + 1,))
        target.change(record, new)
        target.rows.append(read)
        record = new
        yield
    here = list(source.rows)
    yield
    if here != target.rows:
        target.change(record, replace(record, move_id=""))
        raise Changed
    target.change(record, replace(record, state=EndState.RECEIVED))


def finish(source: Database, target: Database) -> None:
    for attempt in range(5):
        try:
            for _ in mover(source, target, f"last {attempt}"):
                pass
        except Changed:
            continue
        return
    raise AssertionError("the move does not end")


ACTS = st.tuples(st.sampled_from(["one", "two"]), st.integers(1, 30)) | st.tuples(
    st.sampled_from(["die one", "die two", "work", "cancel"]), st.just(1)
)


@settings(max_examples=400)
@given(st.lists(ACTS, max_size=25))
def test_a_tree_lives_at_one_place_whatever_is_killed_or_run_twice(schedule: list[tuple[str, int]]) -> None:
    source, target = Database(rows=[0] * CELLS), Database()
    movers: dict[str, Iterator[None]] = {}
    changes = 0
    for number, (act, steps) in enumerate(schedule):
        if act == "work":  # a gateway, wherever one may work
            for end in (source, target):
                if end.lives:
                    changes += 1
                    end.rows[changes % CELLS] = changes
        elif act == "cancel":
            if source.record.state is EndState.FENCED:
                source.change(source.record, move.cancelled(source.record))
        elif act.startswith("die"):
            movers.pop(act.removeprefix("die "), None)
        for _ in range(steps if act in ("one", "two") else 0):
            movers.setdefault(act, mover(source, target, f"{act} {number}"))
            try:
                next(movers[act])
            except (StopIteration, Changed, InvalidInput):
                del movers[act]
                break
        assert source.lives + target.lives <= 1
        kept = target.rows if target.record.state in (EndState.RECEIVED, EndState.OPEN) else []
        assert max(source.rows if source.record.state is not EndState.MOVED else kept) == changes
    finish(source, target)
    assert (source.lives, target.lives) == (False, True)
    assert max(target.rows) == changes


@given(st.sampled_from(EndState), st.sampled_from(EndState), st.booleans(), st.booleans())
def test_a_target_is_emptied_only_before_the_source_has_given_its_tasks_away(
    here: EndState, there: EndState, is_same: bool, is_empty: bool
) -> None:
    source, target = (
        MoveRecord(here, "m", PLACES[1]),
        MoveRecord(there, "m" if is_same else "other", PLACES[0]),
    )
    try:
        step = next_step(source, target, "m", PLACES, is_empty=is_empty)
    except InvalidInput:
        return
    if step is MoveStep.RECEIVE:
        assert here in (EndState.OPEN, EndState.FENCED, EndState.BACKUP)
        assert is_empty or there in (EndState.RECEIVING, EndState.RECEIVED)
    else:
        assert is_same
        assert STEPS[here, there] is step


def test_what_was_moved_can_come_back_to_any_place_it_left() -> None:
    first = move.opened(MoveRecord(), "one")
    second = move.opened(first, "two")
    for gone in ("one", "two"):
        left = MoveRecord(EndState.MOVED, gone, "elsewhere")
        assert next_step(second, left, "three", PLACES, is_empty=False) is MoveStep.RECEIVE
    with pytest.raises(InvalidInput, match="was moved to elsewhere"):
        next_step(second, MoveRecord(EndState.MOVED, "x", "elsewhere"), "three", PLACES, is_empty=False)


def test_a_backup_is_not_restored_to_the_same_database_twice() -> None:
    backup = MoveRecord(EndState.BACKUP, "restore-1", PLACES[1])
    restored = move.opened(backup, "restore-1")
    with pytest.raises(InvalidInput, match="--database: /b holds this backup already"):
        next_step(backup, restored, "restore-1", PLACES, is_empty=False)


@pytest.mark.parametrize("state", EndState)
def test_a_gateway_works_on_an_open_database_only(state: EndState) -> None:
    if state in (EndState.OPEN, EndState.BACKUP):
        return move.refuse_closed(MoveRecord(state))
    with pytest.raises(StoreMoved, match="elsewhere"):
        move.refuse_closed(MoveRecord(state, "m", "elsewhere"))


@given(st.lists(st.tuples(st.integers(), st.text(), st.none() | st.floats(allow_nan=False)), max_size=5))
def test_a_digest_heeds_every_value_and_no_order(rows: list[tuple[object, ...]]) -> None:
    assert move.digest(rows) == move.digest(reversed(rows))
    assert move.digest([*rows, (1,)]) != move.digest([*rows, (2,)])


def test_a_page_is_bounded_and_never_empty() -> None:
    big = ("x" * move.PAGE_BYTES_MAX,)
    assert len(move.page_of([big, big, big])) == 1
    assert len(move.page_of([(1,)] * 7)) == 7
    assert move.page_of([]) == []


def test_an_address_is_shown_without_its_password() -> None:
    assert move.address_text("postgresql://me:secret@db/clutch") == "postgresql://db/clutch"
    assert move.address_text("postgresql:///a?password=x&host=/run") == "postgresql:///a?host=/run"
    pooled = "postgresql://me@pool/a?direct=postgresql%3A%2F%2Fme%3Asecret%40db%2Fa&schema=x"
    assert move.address_text(pooled) == "postgresql://pool/a?schema=x"
    assert move.address_text("postgresql:///a?host=/run&password=x") == "postgresql:///a?host=/run"
