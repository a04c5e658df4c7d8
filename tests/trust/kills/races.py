"""Eight processes want the one free slot at once, round after round: `python -m tests.trust.kills.races`.

Every round has a requester of its own whose last slot is free. A barrier lets all processes go at once; each
spawns through the product's own transaction, on its own connection to one shared database. Exactly one may be
accepted, and the table must never hold more than the limit. (On SQLite one process owns a state directory;
here eight open the file itself, so that nothing but the transaction keeps the limit.)

`check-then-insert` is the planted bug: count in one transaction, insert in the next.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.policy import Limits, Policy
from clutch.core.spawn import SpawnRequest
from clutch.engine.services import BlockIds
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import Database, Tx
from clutch.testing.postgres import temporary_server
from clutch.transactions import sessions
from clutch.transactions.spawn import Accepted, ChildRequest, spawn
from clutch.wiring import DATABASE_FILE, SystemClock
from tests.trust.processes import last_line

LIMIT: Final = 3
POLICY: Final = Policy(limits=Limits(children_max=LIMIT))
BOUNDLESS: Final = replace(
    POLICY, limits=replace(POLICY.limits, children_max=1_000_000, descendants_max=1_000_000)
)
CHECK_THEN_INSERT: Final = "check-then-insert"
WAIT_S: Final = 60.0  #: a process that is not at the barrier by then is gone


@dataclass(frozen=True, slots=True)
class Race:
    """`place`: a directory for SQLite, or the address of a PostgreSQL database."""

    place: str
    processes: int = 8
    rounds: int = 200
    plant: str = ""

    @property
    def is_postgres(self) -> bool:
        return self.place.startswith("postgresql:")


@dataclass(frozen=True, slots=True)
class Outcome:
    processes: int
    rounds: int
    exactly_one: int  #: rounds in which one process was accepted and all others were refused
    over_limit: int  #: rounds after which more children stood in the table than the limit allows


@asynccontextmanager
async def _open(race: Race) -> AsyncIterator[Database]:
    if race.is_postgres:
        from clutch.store.postgres import PostgresStore  # an optional dependency

        async with PostgresStore(race.place, SystemClock()) as on_server:
            yield on_server
    else:
        async with SqliteStore(
            Path(race.place) / DATABASE_FILE, SystemClock(), busy_timeout_s=WAIT_S
        ) as on_file:
            yield on_file


def run(race: Race) -> Outcome:
    """Forks, so it belongs into a process without threads."""
    requesters = asyncio.run(_prepare(race))
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(race.processes)
    answers: multiprocessing.SimpleQueue[list[bool]] = context.SimpleQueue()
    runners = [
        context.Process(target=_run_one, args=(race, number, requesters, barrier, answers))
        for number in range(race.processes)
    ]
    for runner in runners:
        runner.start()
    accepted = [answers.get() for _ in runners]
    for runner in runners:
        runner.join()
    counted = asyncio.run(_count(race, requesters))
    return Outcome(
        race.processes,
        race.rounds,
        exactly_one=sum(sum(won) == 1 for won in zip(*accepted, strict=True)),
        over_limit=sum(count > LIMIT for count in counted),
    )


async def _prepare(race: Race) -> list[int]:
    """One requester for each round, with one slot left."""
    ids = BlockIds()
    ids.take_block(1)
    rights = rights_text(root_rights(AgentGrant(depth_max=POLICY.limits.depth_max)))
    requesters = []
    async with _open(race) as db:
        for number in range(race.rounds):
            key = f"agent:main:chat:round-{number}"
            root = await db.alone(
                sessions.open_session, sessions.NewMain(ids.next(), key, "main", rights, None, ".")
            )
            filling = [_order(ids, f"filling-{place}", place) for place in range(LIMIT - 1)]
            await db.tx(root, spawn, POLICY, root, root, filling)
            requesters.append(root)
    return requesters


def _order(ids: BlockIds, idem: str, place: int = 0) -> ChildRequest:
    return ChildRequest(idem, ids.next(), ids.uuid4(), SpawnRequest("win the race"), place)


def _run_one(
    race: Race,
    number: int,
    requesters: Sequence[int],
    barrier: Barrier,
    answers: multiprocessing.SimpleQueue[list[bool]],
) -> None:
    try:
        answers.put(asyncio.run(_race(race, number, requesters, barrier)))
    except BaseException:
        barrier.abort()
        answers.put([False] * race.rounds)
        raise


async def _race(race: Race, number: int, requesters: Sequence[int], barrier: Barrier) -> list[bool]:
    ids = BlockIds()
    ids.take_block(2 + number)
    attempt = _check_then_insert if race.plant == CHECK_THEN_INSERT else _spawn
    won = []
    async with _open(race) as db:
        for requester in requesters:
            order = _order(ids, f"racer-{number}")
            barrier.wait(WAIT_S)
            won.append(await attempt(db, requester, order))
    return won


async def _spawn(db: Database, requester: int, order: ChildRequest) -> bool:
    (answer,) = await db.tx(requester, spawn, POLICY, requester, requester, [order])
    return isinstance(answer, Accepted)


async def _check_then_insert(db: Database, requester: int, order: ChildRequest) -> bool:
    if await db.read(_children, requester) >= LIMIT:
        return False
    (answer,) = await db.tx(requester, spawn, BOUNDLESS, requester, requester, [order])
    return isinstance(answer, Accepted)


def _children(now: float, requester: int) -> Tx[int]:
    del now
    return int((yield "SELECT COUNT(*) FROM tasks WHERE requester_id = ?", (requester,))[0][0])


async def _count(race: Race, requesters: Sequence[int]) -> list[int]:
    async with _open(race) as db:
        return [await db.read(_children, requester) for requester in requesters]


# ---- each backend in a process of its own ------------------------------------------------------------


def run_races(
    backends: Sequence[str], *, processes: int = 8, rounds: int = 200, plant: str = ""
) -> dict[str, Outcome]:
    outcomes = {}
    for backend in backends:
        with ExitStack() as stack:
            if backend == "postgres":
                server = temporary_server(fsync=False)  # nobody crashes here
                place = server.start()
                stack.callback(server.stop)
            else:
                place = stack.enter_context(tempfile.TemporaryDirectory(prefix="clutch-race-"))
            outcomes[backend] = _in_new_process(Race(place, processes, rounds, plant))
    return outcomes


def _in_new_process(race: Race) -> Outcome:
    size = ("--processes", str(race.processes), "--rounds", str(race.rounds))
    line = last_line("tests.trust.kills.races", *size, "--plant", race.plant, race.place)
    return Outcome(**json.loads(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", help="directory for SQLite, or address of a PostgreSQL database")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--plant", default="", choices=["", CHECK_THEN_INSERT])
    said: Any = parser.parse_args()
    print(json.dumps(asdict(run(Race(said.place, said.processes, said.rounds, said.plant)))))


if __name__ == "__main__":
    main()
