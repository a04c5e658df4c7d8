"""A real worker process that is made to be killed: `python -m tests.trust.kills.victim --state DIR`.

It works on the story in one state directory or PostgreSQL database, together with the client whose wishes the
story knows, and ends by itself with 7 when nothing is left to do. Whatever it accepted is told to a client
outside; how it fares, to the process that started it. Starting it again resumes the story.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clutch.core import ids
from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.model import LetterKind
from clutch.core.spawn import SpawnRequest
from clutch.engine.live import Bus
from clutch.engine.services import BlockIds, Services
from clutch.engine.worker import Worker
from clutch.errors import StoreMoved
from clutch.ports import Lives
from clutch.store.sqlite import SqliteStore
from clutch.store.state_directory import StateDirectory
from clutch.store.transaction import Database
from clutch.transactions import control, inbox, messages, sessions
from clutch.transactions.read import transcripts
from clutch.transactions.spawn import Accepted, ChildRequest, spawn
from clutch.transactions.turn_begin import Begun
from clutch.wiring import DATABASE_FILE, SystemClock
from tests.trust.kills import bugs
from tests.trust.kills.client import Teller
from tests.trust.kills.points import COMMIT, CrashingDatabase, CrashingModels, CrashingTools, Points
from tests.trust.kills.story import (
    ASKED,
    CLIENT_JOBS,
    MAINS,
    NOTES,
    POLICY,
    STEERED,
    Log,
    StoryModel,
    Wishes,
    story_tools,
)
from tests.trust.kills.torn_writes import TearingDisk

QUIET: Final = 7  #: the story is over
STUCK: Final = 8  #: it is not over, and nothing moves any more
REFUSED: Final = 6  #: the database is moved, or was: no worker may register
BROKEN: Final = 9  #: an uncaught exception: a bug

#: Looks in a row that found nothing moving. In looks, not seconds: a machine that stood still is not stuck.
_LOOK_S: Final = 0.01
_STILL_LOOKS_MAX: Final = 250


#: Transactions that bring a story on. Claiming and waking do not: that could go round in circles for ever.
_PROGRESS: Final = frozenset(
    {"respond", "results", "yields", "delegate", "finish", "stumble", "ring", "spawn", "kill", "steer"}
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where to work. `database`: a PostgreSQL address; without one, SQLite in the directory."""

    directory: Path
    database: str | None = None
    plant: str = ""
    client: str = ""  #: the socket of the client outside
    state: str = "state"  #: name of the state directory in the directory of the story


class Life:
    """One life of a victim."""

    def __init__(self, assignment: Assignment, points: Points, log: Log) -> None:
        self.assignment, self.points, self.log = assignment, points, log
        self.client = Teller(assignment.client, assignment.directory)
        self.moves = 0

    async def live(self) -> int:
        async with _store(self.assignment) as (store, lives):
            wishes = Wishes()
            model = StoryModel(Log.append(self.assignment.directory / ASKED), self.client, wishes)
            db = CrashingDatabase(bugs.db(self.assignment.plant, store), self.points, self._heard)
            services = Services(
                db=db,
                models=CrashingModels(model, self.points),
                toolbox=CrashingTools(bugs.tools(self.assignment.plant, story_tools()), self.points),
                policy=POLICY,
                ids=BlockIds(),
                bus=Bus(),
                lives=lives,
            )
            worker = Worker(services, SystemClock(), has_leases=self.assignment.database is not None)
            async with asyncio.TaskGroup() as group:
                group.create_task(worker.run())
                await worker.ready.wait()
                roots = await self._ask_for_work(services)
                client = group.create_task(self._client(db, wishes))
                result = await self._until_quiet(db, roots)
                client.cancel()
                await worker.stop()
        return result

    def _heard(self, name: str, value: Any) -> None:
        if name == "next_number":
            self.log.say(up=value, pid=os.getpid())
        if isinstance(value, Begun):
            self.log.say(begun=value.run_id)
        if name in _PROGRESS:
            self.moves += 1

    async def _ask_for_work(self, services: Services) -> list[int]:
        """The client's wishes, under keys that make a second try harmless."""
        db, roots = services.db, []
        rights = rights_text(root_rights(AgentGrant(depth_max=POLICY.limits.depth_max)))
        for name, job in MAINS.items():
            key = str(ids.chat_key("main", name))
            workspace = str(self.assignment.directory / "files")
            root = await db.alone(
                sessions.open_session,
                sessions.NewMain(services.ids.next(), key, "main", rights, "terminal:story", workspace),
            )
            await db.tx(root, inbox.post, root, f"user:{name}", LetterKind.USER, job)
            self.log.say(posted=name)
            roots.append(root)
        orders = [
            ChildRequest(idem, services.ids.next(), services.ids.uuid4(), SpawnRequest(job), place)
            for place, (idem, job) in enumerate(CLIENT_JOBS.items())
        ]
        told = await db.tx(roots[-1], spawn, POLICY, roots[-1], roots[-1], orders)
        for order, answer in zip(orders, told, strict=True):
            assert isinstance(answer, Accepted), answer
            self.client.accepted(order.idem, [ids.task_id(answer.task_id)])
        return roots

    async def _client(self, db: Database, wishes: Wishes) -> None:
        while True:
            verb, session_key = await wishes.waiting.get()
            task_id = await db.read(transcripts.session_id, session_key)
            assert task_id is not None, session_key
            if verb == "kill":
                await db.alone(control.kill, POLICY, task_id, "not needed", "client")
            else:
                await self._steer(db, task_id)
            self.log.say(did=verb, task=ids.task_id(task_id))

    async def _steer(self, db: Database, task_id: int) -> None:
        try:
            await db.alone(messages.steer, POLICY, task_id, f"steer:{task_id}", STEERED, actor="client")
        except control.NotPossible:
            self.log.say(too_late="steer", task=ids.task_id(task_id))

    async def _until_quiet(self, db: Database, roots: list[int]) -> int:
        still = 0
        while still < _STILL_LOOKS_MAX:
            before = self.moves
            await asyncio.sleep(_LOOK_S)
            still = still + 1 if self.moves == before else 0
            if still and all([await db.read(transcripts.is_quiet, root) for root in roots]):
                return QUIET
        self.log.say(stuck=True)
        return STUCK


@asynccontextmanager
async def _store(assignment: Assignment) -> AsyncIterator[tuple[Database, Lives | None]]:
    """As the product opens it, with the times of the story."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        if assignment.database is not None:
            from clutch.store.postgres import PostgresStore  # an optional dependency
            from clutch.store.postgres_connection import PostgresSettings

            within_lease = 0.8 * POLICY.work.lease_s
            settings = PostgresSettings(idle_in_transaction_s=within_lease, transaction_s=within_lease)
            store = await stack.enter_async_context(
                PostgresStore(assignment.database, clock, settings=settings)
            )
            yield store, store.lives
            return
        directory = stack.enter_context(StateDirectory(assignment.directory / assignment.state))
        yield await stack.enter_async_context(SqliteStore(directory.path / DATABASE_FILE, clock)), None


def prepare(directory: Path) -> None:
    """The files the story reads."""
    files = directory / "files"
    files.mkdir(parents=True, exist_ok=True)
    (files / NOTES).write_text("a note worth reading\n", encoding="utf-8")


def live(assignment: Assignment, log: Log) -> int:
    """In this process, until quiet or dead. The point to die at comes from the environment."""
    points = Points.from_environment(log.dying)
    disk = TearingDisk(points) if points.armed in COMMIT else None
    bugs.apply(assignment.plant)
    try:
        return asyncio.run(Life(assignment, points, log).live())
    except Exception as error:  # noqa: BLE001 - whoever started us must hear of every bug; the exit code tells of it
        if _is_refused(error):
            return REFUSED
        log.say(broken=traceback.format_exc()[-3000:])
        return BROKEN
    finally:
        if disk is not None:
            disk.unregister()


def _is_refused(error: Exception) -> bool:
    """Whether the database was moved: it says so, or its seal refuses a row."""
    if isinstance(error, ExceptionGroup):
        return all(map(_is_refused, error.exceptions))
    return isinstance(error, StoreMoved) or "was_moved" in str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="directory of the story")
    parser.add_argument("--database", help="PostgreSQL address instead of SQLite")
    parser.add_argument("--client", required=True, help="socket of the client outside")
    arguments = parser.parse_args()
    prepare(arguments.state)
    assignment = Assignment(arguments.state.resolve(), arguments.database, client=arguments.client)
    sys.exit(live(assignment, Log(sys.stdout.fileno())))


if __name__ == "__main__":
    main()
