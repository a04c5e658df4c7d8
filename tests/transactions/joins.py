"""Every interleaving of a join: three children on two levels, whose requesters sleep or end, with crashes anywhere.

    R ─┬─ A ── C        R and A spawn, then sleep (`sessions_yield`) or end; B and C just end.
       └─ B

The transactions are the real ones, on SQLite in memory; a *move* is one of them. The explorer tries every move in
every state it can reach, and takes it back. What a worker remembers between two moves is part of the state, and a
crash forgets it. Time stands still: nothing here may depend on a timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from clutch.core import messages
from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.messages import Answer, Call, Entry, Input, Results, Usage
from clutch.core.model import Lane, LetterKind
from clutch.core.policy import Announcing, Limits, Policy
from clutch.core.spawn import SpawnRequest
from clutch.store import dialect
from clutch.store.sqlite_connection import MEMORY, SqliteConnection, migrate
from clutch.store.transaction import Row, Tx
from clutch.transactions import claims, sessions, turn, turn_begin, turn_end, wake, workers
from clutch.transactions.sessions import OwnedRun
from clutch.transactions.spawn import Accepted, ChildRequest
from clutch.transactions.turn import ModelAnswer, SpawnBatch

NOW = 1_700_000_000.0
POLICY = Policy(limits=Limits(depth_max=2), announcing=Announcing(debounce_s=0.0))
R, A, B, C = 1, 2, 3, 4
NAMES = {R: "R", A: "A", B: "B", C: "C"}
CHILDREN = {R: (A, B), A: (C,)}
SPAWN, YIELD = "sessions_spawn", "sessions_yield"
NONCE = "0" * 32
MOVES_MAX = 80  # several times what a story takes

#: All that decides what may happen next. Ids of runs, fences and workers are names only.
_STATE = (
    "SELECT id, owner IS NULL, head, due, hold, closed, run_id IS NULL FROM sessions ORDER BY id",
    "SELECT id, phase, reason, generation, outcome, delivery, attempts, result FROM tasks ORDER BY id",
    "SELECT id, session_id, task_id, kind, silent, state, seen, late, taken_run IS NULL, taken_seq FROM inbox"
    " ORDER BY id",
    "SELECT session_id, seq, kind, body FROM messages ORDER BY session_id, seq",
    "SELECT session_id, state, COUNT(*) FROM runs GROUP BY session_id, state ORDER BY session_id, state",
)


class Broken(AssertionError):
    """A promise of the join, and the moves that broke it."""


@dataclass(frozen=True, slots=True)
class Story:
    """`sleeps`: who calls `sessions_yield` after spawning; the others end their turn."""

    sleeps: frozenset[int] = frozenset({R, A})
    crashes: int = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """What a worker knows of a session it owns."""

    fence: int
    run_id: int | None = None  #: None: claimed, and not begun
    is_unanswered: bool = False


@dataclass(slots=True)
class Explorer:
    story: Story
    states: int = 0
    moves: int = 0
    ends: int = 0
    worker: int = 1
    crashes: int = 0
    owned: dict[int, Memory] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    db: SqliteConnection = field(default_factory=lambda: SqliteConnection(MEMORY))

    def explore(self) -> None:
        migrate(self.db, dialect.SCHEMA)
        self.db.control("BEGIN")
        rights = rights_text(root_rights(AgentGrant(depth_max=2)))
        self.tx(
            sessions.open_session, sessions.NewMain(R, "agent:main:main", "main", rights, "terminal:x", ".")
        )
        self.tx(workers.register, self.worker, 1e9, "host", 1, version="0")
        self.tx(wake.say, POLICY, R, "person", LetterKind.USER, body="go")
        try:
            self._visit()
        finally:
            self.db.rollback()
            self.db.close()

    def _visit(self) -> None:
        key = hash((self._rows(), tuple(sorted(self._remembered())), self.crashes))
        if key in self.seen:
            return
        self.seen.add(key)
        self.states += 1
        self._require(len(self.path) < MOVES_MAX, "it runs in a circle")
        self._must_be_safe()
        moves = list(self._moves())
        if not moves:
            self.ends += 1
            self._must_be_over()
        if self.crashes < self.story.crashes and self.owned:
            moves.append(("crash", self._crash))
        for name, move in moves:
            self._try(name, move)

    def _try(self, name: str, move: Callable[[], None]) -> None:
        """Make the move, see where it leads, take it back."""
        depth = len(self.path)
        known = dict(self.owned), self.worker, self.crashes
        self.path.append(name)
        self.moves += 1
        self.db.control(f"SAVEPOINT s{depth}")
        move()
        self._visit()
        self.db.control(f"ROLLBACK TO s{depth}")
        self.db.control(f"RELEASE s{depth}")
        self.owned, self.worker, self.crashes = known
        self.path.pop()

    def _rows(self) -> tuple[Any, ...]:
        return tuple(tuple(self.rows(sql)) for sql in _STATE)

    def _remembered(self) -> Iterator[tuple[int, bool, bool]]:
        for session_id, memory in self.owned.items():
            yield session_id, memory.run_id is None, memory.is_unanswered

    # ---- what may happen -----------------------------------------------------------------------------

    def _moves(self) -> Iterator[tuple[str, Callable[[], None]]]:
        unseen = self.rows("SELECT DISTINCT session_id FROM inbox WHERE seen = 0 ORDER BY session_id")
        for (session_id,) in unseen:
            yield f"mail {NAMES[session_id]}", partial(self._mail, session_id)
        due = self.rows(
            "SELECT DISTINCT lane FROM sessions WHERE owner IS NULL AND due <= ? ORDER BY lane", NOW
        )
        for (lane,) in due:
            yield f"claim {lane}", partial(self._claim, Lane(lane))
        for session_id in sorted(self.owned):
            yield f"step {NAMES[session_id]}", partial(self._step, session_id)

    def _mail(self, session_id: int) -> None:
        if self.tx(wake.wake, POLICY, session_id):
            self.tx(wake.orphan, POLICY, session_id)

    def _claim(self, lane: Lane) -> None:
        for claimed in self.tx(claims.claim, self.worker, 1, (lane,)):
            self.owned[claimed.session_id] = Memory(claimed.fence)
            if claimed.session_id not in CHILDREN:  # nobody writes to it, so nothing can come in between
                self._step(claimed.session_id)

    def _crash(self) -> None:
        """The worker is gone with all it knew; another buries it."""
        self.crashes += 1
        self.tx(workers.bury, self.worker)
        self.worker += 1
        self.tx(workers.register, self.worker, 1e9, "host", 1, version="0")
        self.owned.clear()

    def _step(self, session_id: int) -> None:
        """The next transaction of its run, as the transcript says."""
        memory = self.owned[session_id]
        if memory.run_id is None:
            return self._begin(session_id, memory)
        said = self.transcript(session_id)
        if isinstance(said[-1], Answer) and said[-1].calls:
            return self._carry_out(session_id, memory, said[-1])
        answer = self._model(session_id, said)
        owned = OwnedRun(POLICY, session_id, memory.fence, memory.run_id)
        given = ModelAnswer(answer, memory.is_unanswered)
        if answer.calls:
            self.tx(turn.respond, owned, given, [False for _ in answer.calls])
            self.owned[session_id] = replace(memory, is_unanswered=False)
        else:
            self.tx(turn_end.finish, owned, given)
            del self.owned[session_id]

    def _begin(self, session_id: int, memory: Memory) -> None:
        ((runs,),) = self.rows("SELECT COUNT(*) FROM runs")
        begun = self.tx(turn_begin.begin, OwnedRun(POLICY, session_id, memory.fence, 1000 + runs), NONCE)
        if begun is None:
            del self.owned[session_id]
        else:
            self.owned[session_id] = Memory(memory.fence, begun.run_id, begun.is_unanswered)

    def _carry_out(self, session_id: int, memory: Memory, answer: Answer) -> None:
        assert memory.run_id is not None
        owned = OwnedRun(POLICY, session_id, memory.fence, memory.run_id)
        if answer.calls[0].name == YIELD:
            boundary = self.tx(turn.yields, owned, Results(()), [0], NONCE)
        else:
            orders = [_order(child, place) for place, child in enumerate(CHILDREN[session_id])]
            _, boundary = self.tx(turn.delegate, owned, SpawnBatch(R, orders, (), (), _in_words), NONCE)
        if boundary.goes_on:
            self.owned[session_id] = replace(memory, is_unanswered=boundary.is_unanswered)
        else:
            del self.owned[session_id]

    def _model(self, session_id: int, said: list[Entry]) -> Answer:
        asked = [call.name for entry in said if isinstance(entry, Answer) for call in entry.calls]
        if session_id in CHILDREN and SPAWN not in asked:
            return Answer("", tuple(Call(SPAWN, {}) for _ in CHILDREN[session_id]), Usage(1, 1), "m", "tools")
        if session_id in self.story.sleeps and YIELD not in asked:
            return Answer("", (Call(YIELD, {}),), Usage(1, 1), "m", "tools")
        heard = sorted(name for name in NAMES.values() if f"<found by {name}" in _told(said))
        return Answer(f"<found by {NAMES[session_id]}> heard {heard}", (), Usage(1, 1), "m")

    # ---- what must hold ------------------------------------------------------------------------------

    def _must_be_safe(self) -> None:
        """Whoever sleeps for its children is not woken before the last of them has settled."""
        for session_id in self.story.sleeps:
            if _announces(self.transcript(session_id)):
                rows = self.rows("SELECT outcome FROM tasks WHERE requester_id = ?", session_id)
                self._require(all(row[0] for row in rows), f"{NAMES[session_id]} was woken too early")

    def _must_be_over(self) -> None:
        """Nothing can happen any more: everything is told, once, and everybody was woken once."""
        tasks = self.rows("SELECT id, phase, delivery FROM tasks ORDER BY id")
        told = [(child, "completed", "delivered") for child in (A, B, C)]
        self._require([tuple(row) for row in tasks] == told, f"left behind: {tasks}")
        for parent, children in CHILDREN.items():
            read = _announces(self.transcript(parent))
            for child in children:
                count = sum(f"<found by {NAMES[child]}" in text for text in read)
                self._require(count == 1, f"{NAMES[parent]} was told {count} times of {NAMES[child]}")
            if parent != R or parent in self.story.sleeps:
                self._require(len(read) == 1, f"{NAMES[parent]} was woken {len(read)} times")
        ((result,),) = self.rows("SELECT result FROM tasks WHERE id = ?", A)
        self._require("heard ['C']" in str(result), f"A told of its child: {result}")

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Broken(f"{what}, after {' · '.join(self.path)}")

    # ---- the store -----------------------------------------------------------------------------------

    def tx(self, fn: Callable[..., Tx[Any]], *args: Any, **named: Any) -> Any:
        outcome = self.db.run(lambda now: fn(now, *args, **named), NOW)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def rows(self, sql: str, *parameters: Any) -> list[Row]:
        return list(self.db.statement(sql, parameters))

    def transcript(self, session_id: int) -> list[Entry]:
        rows = self.rows("SELECT kind, body FROM messages WHERE session_id = ? ORDER BY seq", session_id)
        return [messages.load(*row) for row in rows]


def _order(child: int, place: int) -> ChildRequest:
    name = NAMES[child]
    uuid = f"00000000-0000-4000-8000-{child:012x}"
    return ChildRequest(f"spawn {name}", child, uuid, SpawnRequest(f"be {name}", name), place)


def _in_words(order: ChildRequest, got: Any) -> messages.Result:
    assert isinstance(got, Accepted), got
    return messages.Result(order.place, SPAWN, f"accepted {got.label}")


def _announces(said: list[Entry]) -> list[str]:
    return [entry.text for entry in said if isinstance(entry, Input) and entry.source == "announce"]


def _told(said: list[Entry]) -> str:
    return "\n".join(_announces(said))


def explored(story: Story) -> Explorer:
    explorer = Explorer(story)
    explorer.explore()
    return explorer
