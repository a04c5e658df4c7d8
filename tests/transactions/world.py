"""A small world around the transactions: a database, a clock, workers, and the words to tell a story with.

It plays the engine's part by hand, one transaction at a time, so that a test can stop anywhere. `live` plays
it to the end: whatever a test did before, left alone everything must finish.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import update_wrapper
from typing import Any, TypeAlias

from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.compaction import view
from clutch.core.messages import Answer, Call, Entry, Input, Message, Result, Results, Usage
from clutch.core.model import LetterKind, Phase, Task, reason_text
from clutch.core.policy import Policy
from clutch.core.spawn import SpawnRefusal, SpawnRequest
from clutch.core.workers import NO_LEASE_S
from clutch.store.transaction import Database, Row, Tx
from clutch.testing.clock import FakeClock
from clutch.transactions import (
    claims,
    inbox,
    sessions,
    task_files,
    tasks,
    turn,
    turn_begin,
    turn_end,
    wake,
    workers,
)
from clutch.transactions.claims import Claimed
from clutch.transactions.read import transcripts
from clutch.transactions.sessions import LostRun, OwnedRun
from clutch.transactions.spawn import Accepted, ChildRequest, spawn
from clutch.transactions.turn import Boundary, ModelAnswer
from clutch.transactions.turn_begin import Begun

SPAWN, YIELD = "sessions_spawn", "sessions_yield"
A_DAY_S = 86_400.0

Model: TypeAlias = Callable[[int, Sequence[Message]], Answer | str]


NOT_TRIED = ("deferred", "skipped")


def select(now: float, sql: str, *parameters: Any) -> Tx[list[Row]]:
    return list((yield sql, parameters))


def write(now: float, sql: str, *parameters: Any) -> Tx[None]:
    yield sql, parameters


def says_done(session_id: int, transcript: Sequence[Message]) -> str:
    """The simplest model: one answer and no calls."""
    return f"answer of {session_id} after {len(transcript)}"


def calls(*names: str, text: str = "") -> Answer:
    return Answer(text, tuple(Call(name, {}) for name in names), Usage(10, 5), "scripted", "tools")


def spawns(*labels: str) -> Answer:
    wanted = tuple(Call(SPAWN, {"task": f"do {label}", "label": label}) for label in labels)
    return Answer("", wanted, Usage(10, 5), "scripted", "tools")


USED = Usage(10, 5)


@dataclass(slots=True)
class Run:
    """A run somebody owns, and the transactions its owner may make."""

    world: World
    session_id: int
    fence: int
    begun: Begun
    is_unanswered: bool = True
    answer: Answer = field(default_factory=Answer)
    head: int = 0

    @property
    def run_id(self) -> int:
        return self.begun.run_id

    async def respond(self, answer: Answer) -> int:
        flags = [False for _ in answer.calls]
        self.head = await self._tx(turn.respond, ModelAnswer(answer, self.is_unanswered), flags)
        self.answer, self.is_unanswered = answer, False
        return self.head

    async def results(self, text: str = "ok") -> Boundary:
        given = tuple(Result(place, call.name, text) for place, call in enumerate(self.answer.calls))
        return self._cross(await self._tx(turn.results, Results(given), self.world.nonce()))

    async def step(self, *names: str) -> Boundary:
        """One answer with tool calls, and what they gave."""
        await self.respond(calls(*(names or ("read",))))
        return await self.results()

    async def yields(self) -> Boundary:
        await self.respond(calls(YIELD))
        return self._cross(await self._tx(turn.yields, Results(()), [0], self.world.nonce()))

    async def finish(
        self,
        text: str = "all done",
        *,
        usage: Usage = USED,
        model: str = "scripted",
        usd: str | None = None,
    ) -> bool:
        """True: it was told more meanwhile, and goes on."""
        answer, price = Answer(text, (), usage, model), None if usd is None else Decimal(usd)
        boundary: Boundary | None = await self._tx(
            turn_end.finish, ModelAnswer(answer, self.is_unanswered, price), nonce=self.world.nonce()
        )
        if boundary is None:
            return False
        return self._cross(boundary).goes_on

    async def interrupt(self) -> bool:
        """What the engine does after a boundary that says so."""
        return bool(await self._tx(turn_begin.interrupt, self.world.number(), self.world.nonce()))

    async def stumble(
        self, error: str = "overloaded", *, is_retryable: bool = True, retry_at: float | None = None
    ) -> None:
        await self._tx(turn_end.stumble, error, is_retryable, retry_at)

    async def fail(self, error: str = "broken", *, is_final: bool = False) -> None:
        await self._tx(turn_end.fail, error, is_final)

    async def hand_over(self) -> None:
        await self.world.db.tx(
            self.session_id, turn_end.hand_over, self.world.policy, self.session_id, self.fence
        )

    async def spawn(self, *labels: str, **asked: Any) -> list[Accepted | SpawnRefusal]:
        """As the engine does it: all spawn calls of one answer in one transaction, after their answer."""
        await self.respond(spawns(*labels))
        return await self.repeat_spawn(**asked)

    async def repeat_spawn(self, **asked: Any) -> list[Accepted | SpawnRefusal]:
        return await self.world.db.tx(
            (self.session_id,), self.world.spawning(self.session_id, self.fence, self.orders(**asked))
        )

    def orders(self, **asked: Any) -> list[ChildRequest]:
        return [
            self.world.order(
                SpawnRequest(**(dict(call.args) | asked)), f"{self.session_id}:{self.head}:{place}", place
            )
            for place, call in enumerate(self.answer.calls)
            if call.name == SPAWN
        ]

    async def carry_out(self, answer: Answer) -> Boundary:
        """What the calls of a committed answer ask for, whether or not somebody began with it before."""
        self.answer = answer
        orders = self.orders()
        if orders:
            await self.world.db.tx(
                (self.session_id,), self.world.spawning(self.session_id, self.fence, orders)
            )
        sleeps = [place for place, call in enumerate(answer.calls) if call.name == YIELD]
        if not sleeps:
            return await self.results()
        rest = [(place, call) for place, call in enumerate(answer.calls) if place not in sleeps]
        given = Results(tuple(Result(place, call.name, "ok") for place, call in rest))
        return self._cross(await self._tx(turn.yields, given, sleeps, self.world.nonce()))

    def _cross(self, boundary: Boundary) -> Boundary:
        self.is_unanswered = boundary.is_unanswered
        return boundary

    @property
    def owned(self) -> OwnedRun:
        return OwnedRun(self.world.policy, self.session_id, self.fence, self.run_id)

    @property
    def lost(self) -> LostRun:
        return LostRun(self.world.policy, self.session_id, self.fence, self.run_id, self.head)

    async def _tx(self, fn: Callable[..., Tx[Any]], *args: Any, **named: Any) -> Any:
        return await self.world.db.tx(self.session_id, fn, self.owned, *args, **named)


class World:
    def __init__(self, db: Database, clock: FakeClock, policy: Policy) -> None:
        self.db, self.clock, self.policy = db, clock, policy
        self.worker = 0
        self.held: dict[int, Claimed] = {}
        self._numbers = itertools.count(1000)

    # ---- ids -----------------------------------------------------------------------------------------

    def number(self) -> int:
        return next(self._numbers)

    def nonce(self) -> str:
        return f"{self.number():032x}"

    def key(self, word: str) -> str:
        return f"{word}:{self.number()}"

    def order(self, request: SpawnRequest, idem: str, place: int = 0) -> ChildRequest:
        number = self.number()
        return ChildRequest(idem, number, f"00000000-0000-4000-8000-{number:012x}", request, place)

    def spawning(
        self, session_id: int, fence: int | None, orders: Sequence[ChildRequest]
    ) -> Callable[[float], Tx[list[Accepted | SpawnRefusal]]]:
        """The transaction `spawn`, under its name. One root per story: it has the lowest number."""
        known = (self.policy, session_id, self.root_id, orders)
        return update_wrapper(lambda now: spawn(now, *known, fence=fence), spawn)

    # ---- people and workers --------------------------------------------------------------------------

    async def hire(self, lease_s: float = NO_LEASE_S) -> int:
        """A new worker; from now on it is the one that claims."""
        self.worker = await self.db.alone(workers.next_number)
        await self.db.alone(workers.register, self.worker, lease_s, "host", 1, version="0")
        return self.worker

    async def main(self, name: str = "main") -> int:
        rights = rights_text(root_rights(AgentGrant(depth_max=self.policy.limits.depth_max)))
        self.root_id = await self.db.alone(
            sessions.open_session,
            sessions.NewMain(self.number(), f"agent:{name}:main", name, rights, f"terminal:{name}", "."),
        )
        return self.root_id

    async def tell(self, session_id: int, text: str, kind: LetterKind = LetterKind.USER) -> None:
        await self.db.tx(session_id, inbox.post, session_id, self.key("letter"), kind, text)

    async def child(self, parent: int, label: str = "child", **asked: Any) -> int:
        """Spawned by a person in the session's name; must be accepted."""
        answer = await self.ask_child(parent, label, **asked)
        assert isinstance(answer, Accepted), answer
        return answer.task_id

    async def ask_child(
        self, parent: int, label: str = "child", *, idem: str | None = None, place: int = 0, **asked: Any
    ) -> Accepted | SpawnRefusal:
        request = SpawnRequest(**({"task": f"do {label}", "label": label} | asked))
        order = self.order(request, idem or self.key("spawn"), place)
        (answer,) = await self.db.tx(parent, self.spawning(parent, None, [order]))
        return answer

    async def children(self, parent: int, *labels: str) -> list[int]:
        """In the order of one answer."""
        return [await self.child(parent, label, place=place) for place, label in enumerate(labels)]

    # ---- the engine's part ---------------------------------------------------------------------------

    async def mail(self) -> None:
        """The mailman's rounds, until nothing new lies anywhere."""
        while unseen := (await self.peek()).unseen:
            for session_id in unseen:
                if await self.db.tx(session_id, wake.wake, self.policy, session_id):
                    await self.db.alone(wake.orphan, self.policy, session_id)

    async def peek(self) -> claims.Prospect:
        return await self.db.read(claims.peek)

    async def ring(self) -> None:
        for task_id in (await self.peek()).alarms:
            why = await self.db.tx(task_id, workers.ring, self.policy, task_id)
            if why is not None:
                await self.db.alone(task_files.undo, self.policy, task_id, why)

    async def claim(self, room: int = 100) -> list[int]:
        claimed = await self.db.alone(claims.claim, self.worker, room)
        self.held |= {one.session_id: one for one in claimed}
        return [one.session_id for one in claimed]

    async def begin(self, session_id: int) -> Run | None:
        """Of a session that was claimed."""
        claimed = self.held.pop(session_id)
        owned = OwnedRun(self.policy, session_id, claimed.fence, self.number())
        begun = await self.db.tx(session_id, turn_begin.begin, owned, self.nonce())
        if begun is None:
            return None
        return Run(self, session_id, claimed.fence, begun, begun.is_unanswered, head=begun.head)

    async def start(self, session_id: int) -> Run:
        """Whatever it takes until its run has begun."""
        if session_id not in self.held:
            await self.mail()
            await self.claim()
        run = await self.begin(session_id)
        assert run is not None
        return run

    async def started(self, parent: int, label: str = "child", **asked: Any) -> Run:
        return await self.start(await self.child(parent, label, **asked))

    async def end(self, task_id: int, text: str = "all done") -> None:
        """Run it from where it is to its last word."""
        await (await self.start(task_id)).finish(text)

    async def die(self) -> int:
        """Whoever worked here is gone, a new worker buries them."""
        self.held.clear()
        await self.hire()
        await self.db.alone(workers.bury_all_but, self.worker)
        return self.worker

    async def live(self, model: Model = says_done, *, rounds: int = 200) -> None:
        """Work until there is nothing left to do, moving the clock to whatever is next."""
        for _ in range(rounds):
            await self.mail()
            await self.ring()
            for session_id in await self.claim():
                await self.work(session_id, model)
            prospect = await self.peek()
            if prospect.unseen or prospect.alarms:
                continue
            ahead = [moment for moment in (prospect.due_at, prospect.alarm_at) if moment is not None]
            if not ahead or min(ahead) > self.clock.now() + A_DAY_S:
                return  # a dead letter stays listed for longer than any work takes
            self.clock.set(max(self.clock.now(), min(ahead)))
        raise AssertionError("it does not come to rest")

    async def work(self, session_id: int, model: Model) -> None:
        """One whole run, from the transcript: going on after a crash is the same."""
        run = await self.begin(session_id)
        if run is None:
            return
        for _ in range(100):
            said = (await self.db.read(transcripts.briefing, session_id)).transcript
            last = said[-1]
            if not (isinstance(last, Answer) and last.calls):
                last = self._said(model(session_id, view(said, 0)))
                if not last.calls:
                    if await run.finish(last.text):
                        continue
                    return
                await run.respond(last)
            if not (await run.carry_out(last)).goes_on:
                return
            run.head = int(await self.one("SELECT head FROM sessions WHERE id = ?", session_id))
        raise AssertionError(f"session {session_id} finds no last word")

    def _said(self, said: Answer | str) -> Answer:
        return Answer(said, (), Usage(10, 5), "scripted") if isinstance(said, str) else said

    # ---- looking -------------------------------------------------------------------------------------

    async def rows(self, sql: str, *parameters: Any) -> list[Row]:
        return await self.db.read(select, sql, *parameters)

    async def one(self, sql: str, *parameters: Any) -> Any:
        """The only value of the only row."""
        ((value,),) = await self.rows(sql, *parameters)
        return value

    async def task(self, task_id: int) -> Task:
        (row,) = await self.rows(f"SELECT {tasks.COLUMNS} FROM tasks WHERE id = ?", task_id)  # noqa: S608
        return tasks.from_row(row)

    async def phase(self, task_id: int) -> tuple[Phase, str]:
        task = await self.task(task_id)
        return task.phase, reason_text(task.reason, task.detail)

    async def session(self, session_id: int) -> Session:
        (row,) = await self.rows(
            "SELECT owner, fence, head, base, due, hold, hold_until, paused, closed, run_id FROM sessions WHERE id = ?",
            session_id,
        )
        return Session(*row)

    async def due(self, session_id: int) -> float | None:
        return (await self.session(session_id)).due

    async def transcript(self, session_id: int) -> list[Entry]:
        return await self.db.read(transcripts.transcript, session_id)

    async def inputs(self, session_id: int) -> list[str]:
        """What was put to its model, oldest first."""
        return [said.text for said in await self.transcript(session_id) if isinstance(said, Input)]

    async def letter(self, task_id: int, generation: int = 1) -> AnnounceLetter:
        (row,) = await self.rows(
            "SELECT session_id, state, silent, late, seen, ready_at, taken_run, taken_seq, path FROM inbox"
            " WHERE task_id = ? AND generation = ? AND kind = 'announce'",
            task_id,
            generation,
        )
        return AnnounceLetter(*row)

    async def clean(self, task_id: int) -> None:
        """What it left is gone, and somebody says so. Nothing, if nobody waits for that."""
        wanted = await self.db.read(task_files.awaited, self.policy, task_id)
        if wanted is not None:
            await self.db.alone(task_files.cleaned, self.policy, task_id, wanted)

    async def trace(self, task_id: int) -> list[Row]:
        """Every attempt to tell: (attempt, outcome, path, reason, next_at), oldest first."""
        return [row[1:] for row in await self._telling(task_id) if row[2] not in NOT_TRIED]

    async def not_tried(self, task_id: int) -> list[tuple[int, str]]:
        """Every decision not to tell it now, or ever, by generation: `deferred(requester-busy)`, oldest first."""
        return [
            (row[0], f"{row[2]}({row[4]})") for row in await self._telling(task_id) if row[2] in NOT_TRIED
        ]

    async def _telling(self, task_id: int) -> list[Row]:
        return await self.rows(
            "SELECT generation, attempt, outcome, path, reason, next_at FROM deliveries WHERE task_id = ? ORDER BY id",
            task_id,
        )

    async def timeline(self, task_id: int) -> list[str]:
        rows = await self.rows("SELECT reason, detail FROM events WHERE task_id = ? ORDER BY seq", task_id)
        return [reason_text(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Session:
    owner: int | None
    fence: int
    head: int
    base: int
    due: float | None
    hold: int
    hold_until: float | None
    paused: int
    closed: int
    run_id: int | None


@dataclass(frozen=True, slots=True)
class AnnounceLetter:
    session_id: int
    state: int
    silent: int
    late: int
    seen: int
    ready_at: float
    taken_run: int | None
    taken_seq: int | None
    path: str | None
