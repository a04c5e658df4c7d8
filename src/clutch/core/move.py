"""A move of everything from one database to another: which step comes next, and who may work meanwhile.

Each end writes its own state in its own database, so that a move survives the death of either side. The source decides:
its step to `moved` is the moment at which the tasks change their place. Before it, the target refuses work; after it,
the source does. Between the two, both refuse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from clutch.errors import InvalidInput, StoreMoved


class EndState(StrEnum):
    """Where one end of a move is."""

    OPEN = "open"  #: gateways may work here
    FENCED = "fenced"  #: source: no gateway works here; `clutch move --cancel` opens it again
    MOVED = "moved"  #: source: the tasks live at the target
    RECEIVING = "receiving"  #: target: rows arrive
    RECEIVED = "received"  #: target: every row has arrived and was compared
    BACKUP = "backup"  #: source: a file that no gateway uses, restored any number of times


class MoveStep(StrEnum):
    """What the mover does next; each is one transaction, except for `copy`."""

    RECEIVE = "receive"  #: empty the target and reserve it for this move
    FENCE = "fence"  #: stop the source: its workers are declared dead, and every session gets a new fence
    COPY = "copy"  #: copy and compare
    COMMIT = "commit"  #: give the tasks away
    OPEN = "open"  #: let gateways work at the target
    DONE = "done"


#: By the states of source and target that belong to the same move. Every step changes one of the two states, so a mover
#: that is killed and started again finds the step it was at.
STEPS: Final[Mapping[tuple[EndState, EndState], MoveStep]] = {
    (EndState.OPEN, EndState.RECEIVING): MoveStep.FENCE,
    (EndState.FENCED, EndState.RECEIVING): MoveStep.COPY,
    (EndState.FENCED, EndState.RECEIVED): MoveStep.COMMIT,
    (EndState.MOVED, EndState.RECEIVED): MoveStep.OPEN,
    (EndState.MOVED, EndState.OPEN): MoveStep.DONE,
    (EndState.BACKUP, EndState.RECEIVING): MoveStep.COPY,
    (EndState.BACKUP, EndState.RECEIVED): MoveStep.OPEN,
}
LINEAGE_MAX: Final = 20  #: moves that a database remembers, to be moved back to a place where it was
#: A source in one of these states has not given its tasks away, so that a target may be emptied for it.
_BEFORE: Final = (EndState.OPEN, EndState.FENCED, EndState.BACKUP)


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """What one end knows. `peer`: address of the other end, without its password. `came_with`: the moves that
    brought the rows here, the last one last. `table` and `after`: the cursor of the copy, a table and
    its last key."""

    state: EndState = EndState.OPEN
    move_id: str = ""
    peer: str = ""
    came_with: tuple[str, ...] = ()
    table: str = ""
    after: tuple[Any, ...] = ()


def record_text(record: MoveRecord) -> str:
    return json.dumps(asdict(record))


def read_record(text: str) -> MoveRecord:
    found = json.loads(text)
    lists = {"after": tuple(found["after"]), "came_with": tuple(found["came_with"])}
    return MoveRecord(**found | lists | {"state": EndState(found["state"])})


def opened(source: MoveRecord, move_id: str) -> MoveRecord:
    """Return the record of a target that gateways may work on."""
    return MoveRecord(EndState.OPEN, move_id, came_with=(*source.came_with, move_id)[-LINEAGE_MAX:])


def next_step(
    source: MoveRecord, target: MoveRecord, move_id: str, places: tuple[str, str], *, is_empty: bool
) -> MoveStep:
    """Return the next step of a move. `places`: the addresses of source and target. `is_empty`: the target holds no
    session and no task. Raises InvalidInput."""
    if target.move_id == move_id and (step := STEPS.get((source.state, target.state))) is not None:
        return step
    if source.state not in _BEFORE:
        raise InvalidInput("--state", refusal(source, places[0]) or "")
    if source.state is EndState.FENCED and source.peer != places[1]:
        raise InvalidInput("--to", refusal(source, places[0]) or "")
    if _may_receive(source, target, places[0], is_empty=is_empty):
        return MoveStep.RECEIVE
    held = "this backup" if target.move_id == move_id else "tasks"
    rule = refusal(target, places[1]) or f"{places[1]} holds {held} already; name an empty database"
    raise InvalidInput("--database" if source.state is EndState.BACKUP else "--to", rule)


def _may_receive(source: MoveRecord, target: MoveRecord, place: str, *, is_empty: bool) -> bool:
    """What a target holds may be deleted when it lives elsewhere: it is part of an earlier try of this source, or what
    it had was moved on and is at the source now."""
    match target.state:
        case EndState.OPEN:
            return is_empty
        case EndState.RECEIVING | EndState.RECEIVED:
            return target.peer == place
        case EndState.MOVED:
            return is_empty or target.move_id in source.came_with
        case _:
            return False


def refusal(record: MoveRecord, place: str) -> str | None:
    """Return why no gateway may work on this database. None: it may."""
    match record.state:
        case EndState.FENCED:
            return (
                f"{place} is being moved to {record.peer}: continue with `clutch move --to {record.peer}`, or stay with"
                " `clutch move --cancel`"
            )
        case EndState.MOVED:
            return f"{place} was moved to {record.peer}: its tasks live there; start the gateway with that database"
        case EndState.RECEIVING | EndState.RECEIVED:
            return (
                f"{place} receives the tasks of {record.peer}, and not all have arrived: run the same `clutch move`"
                " (or `clutch restore`) again, which finishes it"
            )
        case _:
            return None


def refuse_closed(record: MoveRecord) -> None:
    """Raise StoreMoved unless gateways may work on this database."""
    if (why := refusal(record, "this database")) is not None:
        raise StoreMoved(why)


def refuse_copy(record: MoveRecord, place: str) -> None:
    """Raise StoreMoved unless a copy of this database is a backup: its tasks live here, and all of them."""
    if record.state is not EndState.FENCED and (why := refusal(record, place)) is not None:
        raise StoreMoved(why)


def cancelled(source: MoveRecord) -> MoveRecord:
    """Return the record of a source that stays. Raises InvalidInput after the tasks were given away."""
    if source.state is not EndState.FENCED:
        rule = refusal(source, "this database") or "no move of this database is under way"
        raise InvalidInput("--cancel", rule)
    return MoveRecord(came_with=source.came_with)


_SECRETS: Final = frozenset({"user", "password", "sslpassword", "direct"})  #: in the query of an address
#: In a page, so that neither end holds more than a few megabytes; a row that is larger is a page by itself.
PAGE_ROWS: Final = 500
PAGE_FILES: Final = 4  #: the same for a table that holds files
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024


def page_of(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return the first rows that fit into a page."""
    count = 0
    for place, row in enumerate(rows):
        count += sum(len(value) for value in row if isinstance(value, str | bytes))
        if count > PAGE_BYTES_MAX and place:
            return rows[:place]
    return rows


def digest(rows: Iterable[Sequence[Any]]) -> int:
    """Return a number that depends on every value and not on the order: two databases may sort texts differently."""
    return sum(int.from_bytes(sha256(repr(tuple(row)).encode()).digest()[:16]) for row in rows)


def address_text(address: str) -> str:
    """Return the address of a database for people: without user and password."""
    parts = urlsplit(address)
    words = "&".join(f"{name}={value}" for name, value in parse_qsl(parts.query) if name not in _SECRETS)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{'?' if words else ''}{words}"
