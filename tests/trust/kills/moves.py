"""Stories that are moved while they are told: `python -m tests.trust.kills.moves --kills 200`.

    state directory ──▶ PostgreSQL ──▶ another state directory ──▶ the first one again ──▶ …

A victim works on the story and is killed. Then a mover takes everything to the next place, and is killed at a named
step, or at a random moment, or the PostgreSQL server is killed under it. After each death a gateway is started at both
ends, and killed: at most one of them may come up. The same move is repeated until it is done, and the story goes on at
the other place. When it is over, the witnesses outside (the client, the model's log, the file of marks) are heard as
after any other kills: nothing is lost, nothing is delivered twice.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from clutch.core.move import EndState, MoveRecord, read_record
from clutch.errors import ClutchError
from clutch.store.transaction import Row, Tx
from clutch.testing.postgres import PostgresServer, temporary_server
from clutch.transactions import move as rows_of
from clutch.transactions.move import TableShape
from clutch.wiring.move import MoveEnd, Mover, move
from tests.trust.kills.client import client_process
from tests.trust.kills.harness import RANDOM, Report, Story
from tests.trust.kills.plans import Chooser, KillPlan
from tests.trust.kills.points import POINTS, CrashingDatabase, Points
from tests.trust.kills.story import story_tools
from tests.trust.kills.tables import DatabaseReader, PostgresReader, Rows, SqliteReader
from tests.trust.kills.victim import Assignment, prepare
from tests.trust.processes import progress

STEPS: Final = ("receive", "fence", "write_page", "settle", "commit", "open_target")
MOVE_POINTS: Final = tuple(f"{side}:{step}" for step in STEPS for side in ("before", "after"))
SERVER: Final = "server"  #: the PostgreSQL server dies under the mover
FROZEN: Final = "frozen"  #: a gateway that slept through the move wakes up behind it; not a death
_KINDS: Final = (*MOVE_POINTS, RANDOM, SERVER)
_PAGES: Final = 12  #: a story has rows in about so many tables

_DONE, _FAILED = 0, 3
_MOVER_MAX_S: Final = 60.0
_FAILURES_MAX: Final = 10  #: in a row, without being killed; a mover fails when its server dies


@dataclass(slots=True)
class MoveTotals:
    """The last line of the campaign. `gateway_kills`: at either end, `mover_kills`: while a move was under way."""

    schema: str = "clutch.move-kills/1"
    ok: bool = False
    seed: int = 0
    stories: int = 0
    moves: int = 0
    kills: int = 0
    mover_kills: int = 0
    server_kills: int = 0
    gateway_kills: int = 0
    frozen: int = 0
    refused: int = 0  #: gateways that were started at an end where the story does not live
    by_point: dict[str, int] = field(default_factory=dict)
    accepted: int = 0
    lost: int = 0
    twice: int = 0
    lived_twice: int = 0
    failures: list[str] = field(default_factory=list)


class MoveFailed(Exception):
    """A move that is not killed any more does not end."""


class MovePoints(Points):
    """The steps of a move as crash points."""

    def __init__(self, armed: str, nth: int) -> None:
        super().__init__()
        self.armed, self._left = armed, nth


class FreshPostgresReader:
    """Connects for each question, because the server dies in between."""

    troubles = ()

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def look(self) -> FreshPostgresReader:
        return self

    def rows(self, sql: str) -> Rows:
        reader = PostgresReader(self._dsn)
        try:
            return reader.rows(sql)
        finally:
            reader.close()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a story can live."""

    end: MoveEnd
    assignment: Assignment
    reader: DatabaseReader

    def state(self) -> EndState | None:
        """None: nothing has ever been moved from or to here."""
        look = self.reader.look()
        found = look.rows("SELECT value FROM meta WHERE name = 'move'") if look is not None else []
        return read_record(str(found[0][0])).state if found else None


class MovedStory(Story):
    plant = ""  #: a bug of every mover

    def __init__(
        self, places: Sequence[Place], server: PostgresServer, chooser: Chooser, hits: Counter[str]
    ) -> None:
        super().__init__(places[0].assignment, places[0].reader, chooser, 1, 30.0)
        self.places, self.server, self.hits = places, server, hits
        self.here, self.moves, self.refused, self.lived_twice, self.frozen = 0, 0, 0, 0, 0
        self.mover_deaths: Counter[str] = Counter()
        self.next_plan = KillPlan()

    def play(self, report: Report) -> None:
        """Work, die and move until the story is over; once more after the last kill, to its end."""
        while not self.is_over:
            self._at(self.places[self.here])
            plan = KillPlan(after_s=self.chooser.dice.uniform(0.0, 0.15)) if self.left > 0 else KillPlan()
            self._live(plan, report)
            if self.left > 0:
                self._move_on(report)
                self.is_over = False  # it is over only where it lives now

    def _plan(self) -> KillPlan:
        return self.next_plan

    def _at(self, place: Place) -> None:
        self.assignment, self.reader = place.assignment, place.reader

    def _live(self, plan: KillPlan, report: Report) -> bool:
        """One life of a gateway. Return whether it came up."""
        before = len(self.lines)
        self.next_plan = plan
        self._start()
        while self.alive:
            self._wait(report)
        return any("up" in line for line in self.lines[before:])

    def _move_on(self, report: Report) -> None:
        source, target = self.places[self.here], self.places[(self.here + 1) % len(self.places)]
        is_frozen = source.end.database is not None and self.chooser.dice.random() < 0.3
        sleeper = self._freeze(report) if is_frozen else None
        failures = 0
        while (code := self._run_mover(source, target, kind := self._kind())) != _DONE:
            failures += code == _FAILED
            if failures > _FAILURES_MAX:
                raise MoveFailed((self.places[0].assignment.directory / "mover.err").read_text()[-500:])
            if code is None:
                self.left -= 1
                self.mover_deaths[kind] += 1
                self.hits[kind] += 1
            self._probe(source, target, report)
        self.moves += 1
        self.here = (self.here + 1) % len(self.places)
        if sleeper is not None:
            self._wake(sleeper, report)

    def _kind(self) -> str:
        """How the next mover dies: as was tried least. Empty: it may live."""
        return (
            min(_KINDS, key=lambda one: (self.hits[one], self.chooser.dice.random())) if self.left > 0 else ""
        )

    def _probe(self, source: Place, target: Place, report: Report) -> None:
        """Start a gateway at each end. An end that was never used is a new database, with a story of its own."""
        came_up = []
        for place in (source, target):
            if place.state() is None and place is target:
                continue
            self._at(place)
            plan = KillPlan(after_s=self.chooser.dice.uniform(0.0, 0.05))
            came_up.append(self._live(plan, report))
            self.is_over = False
        self.refused += came_up.count(False)
        if sum(came_up) > 1:
            self.lived_twice += 1
            self.troubles.append(f"gateways came up at {source.end.address} and at {target.end.address}")

    def _freeze(self, report: Report) -> int | None:
        """Stop a gateway of the source in the middle of its work, past its lease. Return its pipe."""
        self._at(self.places[self.here])
        self.next_plan = KillPlan()
        self._start()
        ((pipe, victim),) = self.alive.items()
        while victim.number is None and self.alive:
            self._wait(report)
        if self.alive:
            os.kill(victim.pid, signal.SIGSTOP)
            self.alive.clear()
            self._sleeper = victim
            return pipe
        return None

    def _wake(self, pipe: int, report: Report) -> None:
        """It finds its database moved and can write nothing."""
        victim = self._sleeper
        victim.kill_at = time.monotonic() + self.life_max_s
        self.alive[pipe] = victim
        os.kill(victim.pid, signal.SIGCONT)
        while self.alive:
            self._wait(report)
        self.is_over = False
        self.frozen += 1

    def _run_mover(self, source: Place, target: Place, kind: str) -> int | None:
        """Run `clutch move` in a process of its own. None: it was killed, or its server was."""
        dice = self.chooser.dice
        nth = dice.randint(1, _PAGES) if kind.endswith("write_page") else 1
        pid, pipe = _forked(
            lambda: _move(source.end, target.end, MovePoints(kind, nth), self.plant), self.places[0]
        )
        is_timed = kind in (RANDOM, SERVER)
        ready, _, _ = select.select([pipe], [], [], dice.uniform(0.02, 0.5) if is_timed else _MOVER_MAX_S)
        is_killed_server = not ready and kind == SERVER
        if is_killed_server:
            self.server.crash()
            self.server.start()
            ready, _, _ = select.select([pipe], [], [], _MOVER_MAX_S)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        os.close(pipe)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            return None
        code = os.waitstatus_to_exitcode(status)
        if is_killed_server:
            self.mover_deaths[SERVER] += 1
            self.hits[SERVER] += 1
            self.left -= 1
        return code


def _forked(work: Callable[[], int], first: Place) -> tuple[int, int]:
    """Return the process and a pipe that ends with it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = _FAILED
    try:
        os.close(reading)
        errors = os.open(
            first.assignment.directory / "mover.err", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )
        os.dup2(errors, sys.stderr.fileno())
        code = work()
    finally:
        os._exit(code)


# ---- bugs that the campaign must find: put into the mover on purpose ------------------------------------------------


def _cursor_alone(
    now: float, was: MoveRecord, new: MoveRecord, table: TableShape, rows: Sequence[Row]
) -> Tx[None]:
    """Advance the cursor, as if the mover had died before it wrote the page."""
    del table, rows
    yield from rows_of.change(now, was, new)


async def _nothing_copied(mover: Mover, record: MoveRecord) -> None:
    """Acknowledge the rows before they have arrived."""
    given = await mover._here.read(rows_of.numbers, mover.tables)
    await mover._there.alone(rows_of.settle, record, replace(record, state=EndState.RECEIVED), given)


CURSOR: Final = "cursor before copy"
RECEIPT: Final = "receipt before copy"
PLANTS: Final = (CURSOR, RECEIPT)


def _plant(name: str) -> None:
    """Change this process: a mover makes one move."""
    if name == CURSOR:
        rows_of.write_page = _cursor_alone
    if name == RECEIPT:
        Mover._copy = _nothing_copied  # type: ignore[method-assign, assignment]


def _move(source: MoveEnd, target: MoveEnd, points: MovePoints, plant: str) -> int:
    _plant(plant)
    try:
        asyncio.run(move(source, target, lambda _: None, lambda db: CrashingDatabase(db, points)))
    except ClutchError as error:
        print(type(error).__name__, error, file=sys.stderr, flush=True)
        return _FAILED
    return _DONE


def kill_moves(kills: int, seed: int, plant: str = "") -> MoveTotals:
    """Play stories until there were enough kills, at every named step. `plant`: a bug of every mover."""
    story_tools()
    gc.freeze()
    total, hits, dice = MoveTotals(seed=seed), Counter(dict.fromkeys(_KINDS, 0)), random.Random(seed)
    report = Report("moves")
    with ExitStack() as stack:
        server = temporary_server(fsync=False)
        server.start()
        stack.callback(server.stop)
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clutch-moves-")))
        client, _ = stack.enter_context(client_process())
        while not total.failures and (
            total.kills < kills or min(hits.values()) < min(3, kills // len(_KINDS))
        ):
            places = _places(root / str(total.stories), server, total.stories, client)
            story = MovedStory(places, server, Chooser(dice, POINTS), hits)
            story.plant = plant
            _add(total, story, report)
            progress(
                f"moves: {total.kills} of {kills} kills, {total.stories} stories, {len(total.failures)} failures"
            )
    total.by_point = {**hits, "gateway": report.kills}
    total.ok = not total.failures and not (total.lost or total.twice or total.lived_twice)
    return total


@dataclass(frozen=True, slots=True)
class MoveHunt:
    """`found`: by planted bug, what gave it away; None: nothing did."""

    totals: MoveTotals
    found: dict[str, str | None]

    @property
    def failures(self) -> list[str]:
        """What makes a campaign not ok."""
        missed = [f"nothing gave away {plant!r}" for plant, sign in self.found.items() if sign is None]
        return [f"moves: {one}" for one in (*self.totals.failures, *missed)]


def hunt_moves(kills: int, seed: int) -> MoveHunt:
    """Kill movers without a bug, then look for each planted one."""
    return MoveHunt(kill_moves(kills, seed), {plant: _sign(kill_moves(1, seed, plant)) for plant in PLANTS})


def _sign(total: MoveTotals) -> str | None:
    counts = {"lost": total.lost, "twice": total.twice, "lived twice": total.lived_twice}
    signs = [f"{name}: {count}" for name, count in counts.items() if count]
    return next((sign[:120] for sign in (*signs, *total.failures)), None)


def _places(directory: Path, server: PostgresServer, number: int, client: str) -> list[Place]:
    directory.mkdir()
    prepare(directory)
    server.execute(f"CREATE DATABASE moves_{number}")
    dsn, assignment = server.dsn(f"moves_{number}"), Assignment(directory, client=client)
    there = MoveEnd(directory / "files-of-postgres", dsn)
    found = [Place(there, replace(assignment, database=dsn), FreshPostgresReader(dsn))]
    for name in ("state", "other"):
        end = MoveEnd(directory / name)
        found.append(Place(end, replace(assignment, state=name), SqliteReader(directory / name)))
    return [found[1], found[0], found[2]]


def _add(total: MoveTotals, story: MovedStory, report: Report) -> None:
    before = report.kills
    try:
        story.play(report)
    except MoveFailed as error:
        total.stories, total.failures = (
            total.stories + 1,
            [*total.failures, f"the move does not end: {error}"],
        )
        return
    look = story.reader.look()
    assert look is not None
    result = story.judge(look)
    gateways = report.kills - before
    servers = story.mover_deaths.pop(SERVER, 0)
    total.stories += 1
    total.moves += story.moves
    total.gateway_kills += gateways
    total.server_kills += servers
    total.mover_kills += sum(story.mover_deaths.values())
    total.kills += gateways + servers + sum(story.mover_deaths.values())
    total.refused += story.refused
    total.frozen += story.frozen
    total.accepted += result.accepted
    total.lost += len(result.lost)
    total.twice += len(result.twice)
    total.lived_twice += story.lived_twice
    total.failures += [f"story {total.stories}: {one}" for one in result.complaints]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="go on until there were so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=PLANTS, default="", help="put this bug into the movers")
    said = parser.parse_args()
    total = kill_moves(said.kills, said.seed, said.plant)
    print(json.dumps(asdict(total)))
    sys.exit(0 if total.ok else 1)


if __name__ == "__main__":
    main()
