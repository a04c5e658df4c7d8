"""A tree of sessions that draw on budgets, played at random and judged after every commit.

Runs reserve, answer, stumble, crash and are killed, steered, timed out, in any order. The judge adds up the rows of
the ledger: each purse must say the same, and may exceed its limit by less than its last reservation.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from clutch.core.budget import Amount
from clutch.core.budget import BudgetExhausted as NothingLeft
from clutch.core.messages import Answer, Call, Result, Results, Usage
from clutch.core.policy import Budgets
from clutch.core.spawn import BudgetRequest, SpawnRefusal
from clutch.errors import RateLimited
from clutch.store.transaction import DatabaseStats, Keys, Listener, P, T, Tx, TxFunction
from clutch.testing.inline_store import InlineStore
from clutch.transactions import control, messages, turn, turn_end, usage
from clutch.transactions.sessions import Stale
from clutch.transactions.turn import ModelAnswer
from clutch.transactions.usage import Fate
from tests.transactions.world import Run, World

DAY_S = 86_400.0
MODEL = "scripted"
GAVE = Results((Result(0, "read", "ok"),))
PURSES = (
    "SELECT name, tokens_max, usd_max, tokens_spent, tokens_reserved, usd_spent, usd_reserved FROM purses"
    " WHERE name = 'root:' || CAST(? AS {text})"
    " OR name IN (SELECT 'task:' || CAST(id AS {text}) FROM tasks WHERE root_id = ?)"
    " OR (kind = 'day' AND name >= ?)"
)
CALLS = (
    "SELECT s.run_id, s.purses, u.at, u.state, u.reserved_tokens, u.reserved_usd, u.input, u.output, u.usd"
    " FROM sessions s JOIN usage u ON u.session_id = s.id WHERE s.root_id = ?"
)


class InlineDoor:
    """A memory database without threads: a thousand trees want many transactions and no waiting."""

    def __init__(self, store: InlineStore) -> None:
        self._store = store
        self.stats = DatabaseStats()

    async def tx(self, keys: Keys, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        del keys
        return self._store.run(fn, *args, **kwargs)[0]

    async def alone(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._store.run(fn, *args, **kwargs)[0]

    async def read(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._store.read(fn, *args, **kwargs)

    async def urgent(self, fn: TxFunction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._store.run(fn, *args, **kwargs)[0]

    is_hearing = False

    def listen(self, callback: Listener) -> None:
        """The story looks by itself."""

    async def close(self) -> None:
        """It goes with the process."""


async def on(run: Run, fn: Callable[..., Tx[Any]], *args: Any, **named: Any) -> Any:
    """A transaction of the run's owner, with everything it touches as keys."""
    world = run.world
    shared = (run.session_id, *usage.keys(world.policy, await purses_of(run)))
    return await world.db.tx(shared, fn, run.owned, *args, **named)


async def owner(run: Run, fn: Callable[..., Tx[Any]], *args: Any, **named: Any) -> Any:
    """The same where transactions come one after the other anyway."""
    return await run.world.db.tx(run.session_id, fn, run.owned, *args, **named)


async def purses_of(run: Run) -> str:
    return str(await run.world.one("SELECT purses FROM sessions WHERE id = ?", run.session_id))


def give_more(now: float, name: str) -> Tx[None]:
    yield from usage.raise_limit(name, None, None)


def said(tokens: int, text: str = "words") -> Answer:
    return Answer(text, (), Usage(tokens, 0), MODEL)


def uses(tokens: int) -> Answer:
    return Answer("", (Call("read", {}),), Usage(tokens, 0), MODEL, "tools")


async def reserve(run: Run, tokens: int, usd: str | None = "0") -> NothingLeft | None:
    held = await on(run, usage.reserve, MODEL, Amount(tokens, None if usd is None else Decimal(usd)))
    return held if isinstance(held, NothingLeft) else None


async def step(run: Run, tokens: int, usd: Decimal | None = None) -> None:
    """One answer with a call, and its result."""
    await on(run, turn.respond, ModelAnswer(uses(tokens), run.is_unanswered, usd), [True])
    run.is_unanswered = (await on(run, turn.results, GAVE, run.world.nonce())).is_unanswered


def budgets(world: World, **given: Any) -> None:
    world.policy = replace(world.policy, budgets=Budgets(**given))


async def rooted(world: World, main: int, tokens: int, **more: Any) -> None:
    budgets(world, root_tokens=tokens, **more)
    await world.db.alone(usage.give_root, world.policy, main)


@dataclass(slots=True)
class Actor:
    """A run somebody works on: between two calls, in one, or with a call of a tool to carry out."""

    run: Run
    estimate: Amount | None = None
    owes_results: bool = False


@dataclass(slots=True)
class Tree:
    """One root and its children, played at random, judged after every commit."""

    world: World
    chance: random.Random
    root: int
    tasks: list[int] = field(default_factory=list)
    actors: dict[int, Actor] = field(default_factory=dict)
    born_at: float = 0.0
    last: dict[str, Amount] = field(default_factory=dict)  #: the last reservation of each purse
    refusals: int = 0

    # ---- the story -----------------------------------------------------------------------------------

    async def grow(self) -> None:
        parents = [self.root]
        for number in range(self.chance.randint(1, 4)):
            parent = self.chance.choice(parents)
            asked = BudgetRequest(*self.limits()) if self.chance.random() < 0.5 else None
            if asked == BudgetRequest():
                asked = None
            timeout = self.chance.choice((None, 50.0))
            answer = await self.world.ask_child(parent, f"c{number}", budget=asked, run_timeout_s=timeout)
            if isinstance(answer, SpawnRefusal):
                assert "budget" in answer.error or "limit reached" in answer.error
                continue
            self.tasks.append(answer.task_id)
            parents.append(answer.task_id)

    def limits(self) -> tuple[int | None, Decimal | None]:
        tokens = self.chance.choice((None, self.chance.randint(1, 500)))
        usd = self.chance.choice((None, None, Decimal(self.chance.randint(1, 500)) / 1000))
        return tokens, usd

    async def pick_up(self) -> None:
        for session_id in await self.world.claim():
            run = await self.world.begin(session_id)
            if run is not None:
                self.actors[session_id] = Actor(run, owes_results=await self.has_open_calls(session_id))

    async def has_open_calls(self, session_id: int) -> bool:
        return bool(
            await self.world.rows(
                "SELECT 1 FROM calls c JOIN sessions s ON s.id = c.session_id AND s.head = c.seq WHERE s.id = ?",
                session_id,
            )
        )

    async def act(self) -> None:
        what = self.chance.choices(
            ("call", "crash", "kill", "steer", "break", "time", "raise", "stop"), (80, 5, 3, 4, 3, 3, 2, 2)
        )[0]
        with contextlib.suppress(Stale, control.NotPossible, RateLimited):  # a kill or a steer came first
            await getattr(self, f"do_{what}")()
        if what != "call" or not self.actors:
            await self.pick_up()

    def some_actor(self) -> Actor | None:
        return self.actors[self.chance.choice(sorted(self.actors))] if self.actors else None

    async def do_call(self) -> None:
        actor = self.some_actor()
        if actor is None:
            return
        try:
            if actor.owes_results:
                await self.results(actor)
            elif actor.estimate is None or self.chance.random() < 0.05:  # or it forgets that one is open
                await self.reserve(actor)
            else:
                await self.end_call(actor)
        except Stale:
            del self.actors[actor.run.session_id]

    async def reserve(self, actor: Actor) -> None:
        usd = None if self.chance.random() < 0.1 else Decimal(self.chance.randint(0, 60)) / 1000
        estimate = Amount(self.chance.randint(1, 60), usd)
        refused = await owner(actor.run, usage.reserve, MODEL, estimate)
        is_held = not isinstance(refused, NothingLeft)
        actor.estimate = estimate if is_held else None
        if is_held:
            for name in await self.chain(actor.run.session_id):
                self.last[name] = estimate
            return
        self.refusals += 1
        gone = refused.spent + refused.reserved
        assert refused.is_unpriced or gone >= refused.limit
        if refused.may_free_up:
            assert refused.reserved > 0, "it waits for nobody"

    async def end_call(self, actor: Actor) -> None:
        estimate, actor.estimate = actor.estimate, None
        assert estimate is not None
        tokens = self.chance.randint(0, estimate.tokens)
        usd = None if estimate.usd is None else estimate.usd * self.chance.randint(0, 4) / 4
        how = self.chance.choice(
            ("step", "step", "step", "respond", "finish", "stumble", "drop", "book", "fail")
        )
        run = actor.run
        match how:
            case "step" | "respond":
                await owner(run, turn.respond, ModelAnswer(uses(tokens), run.is_unanswered, usd), [True])
                run.is_unanswered, actor.owes_results = False, True
                if how == "step":
                    await self.results(actor)
            case "finish":
                await owner(run, turn_end.finish, ModelAnswer(said(tokens), run.is_unanswered, usd))
                del self.actors[run.session_id]
            case "stumble":
                fate = self.chance.choice(tuple(Fate))
                await owner(run, turn_end.stumble, "overloaded", True, None, fate=fate)
                del self.actors[run.session_id]
            case "drop":
                await owner(run, usage.drop, self.chance.choice(tuple(Fate)))
            case "book":
                await owner(run, usage.book, said(tokens), usd)
            case _:
                cut = ModelAnswer(said(tokens), run.is_unanswered, usd)
                await owner(run, turn_end.fail, "cut", True, cut)
                del self.actors[run.session_id]

    async def results(self, actor: Actor) -> None:
        boundary = await owner(actor.run, turn.results, GAVE, self.world.nonce())
        actor.run.is_unanswered, actor.owes_results = boundary.is_unanswered, False

    async def do_crash(self) -> None:
        self.actors.clear()
        await self.world.die()

    async def do_kill(self) -> None:
        if self.tasks:
            task = self.chance.choice(self.tasks)
            await self.world.db.alone(control.kill, self.world.policy, task, "test", "person")

    async def do_steer(self) -> None:
        if self.tasks:
            idem, task = self.world.key("steer"), self.chance.choice(self.tasks)
            await self.world.db.alone(messages.steer, self.world.policy, task, idem, "other", actor="person")

    async def do_break(self) -> None:
        actor = self.some_actor()
        if actor is not None:
            del self.actors[actor.run.session_id]
            known = (self.world.policy, actor.run.session_id, actor.run.fence, "broken")
            await self.world.db.alone(turn_end.crash, *known)

    async def do_stop(self) -> None:
        actor = self.some_actor()
        if actor is not None:
            del self.actors[actor.run.session_id]
            known = (self.world.policy, actor.run.session_id, actor.run.fence, Fate.UNKNOWN)
            await self.world.db.alone(turn_end.hand_over, *known)

    async def do_time(self) -> None:
        self.world.clock.advance(self.chance.choice((5.0, 60.0, DAY_S / 2)))
        await self.world.ring()

    async def do_raise(self) -> None:
        names = [row[0] for row in await self.purses()]
        if names:
            await self.world.db.alone(give_more, self.chance.choice(names))

    async def rest(self) -> None:
        """Everything ends: whatever was open is charged or given back."""
        policy, db = self.world.policy, self.world.db
        for task in self.tasks:
            await db.alone(control.kill, policy, task, "over", "person")
        await db.alone(control.close_main, policy, self.root)

    # ---- the judge -----------------------------------------------------------------------------------

    async def chain(self, session_id: int) -> list[str]:
        names = str(await self.world.one("SELECT purses FROM sessions WHERE id = ?", session_id)).split()
        return [*names, day(self.world.clock.now())] if self.world.policy.budgets.has_day else names

    async def purses(self) -> list[Any]:
        """Those of the tree, and of the days since it began."""
        return await self.world.rows(PURSES, self.root, self.root, day(self.born_at))

    async def judge(self) -> bool:
        """True: nothing is reserved."""
        found = {row[0]: row for row in await self.purses()}
        spent: dict[str, list[Any]] = {name: [0, Decimal(0)] for name in found}
        reserved: dict[str, list[Any]] = {name: [0, Decimal(0)] for name in found}
        for run_id, names, at, state, *cost in await self.world.rows(CALLS, self.root):
            tokens, usd = charged(state, *cost)
            chain = names.split() + ([day(at)] if self.world.policy.budgets.has_day else [])
            assert state or run_id is not None or not chain, "an open call of no run"
            for name in chain:
                side = reserved if state == 0 else spent
                side[name][0] += tokens
                side[name][1] += usd
        for name, (_, tokens_max, usd_max, tokens, tokens_held, usd, usd_held) in found.items():
            assert [tokens, Decimal(usd)] == spent[name], name
            assert [tokens_held, Decimal(usd_held)] == reserved[name], name
            last = self.last.get(name, Amount(0, Decimal(0)))
            if name in self.last and tokens_max is not None:
                assert tokens + tokens_held < tokens_max + last.tokens or tokens_max == 0, name
            if name in self.last and usd_max is not None:
                over = Decimal(usd) + Decimal(usd_held) - Decimal(usd_max)
                assert over < (last.usd or 0) or over == 0, name
        return not any(held for side in reserved.values() for held in side)


def day(at: float) -> str:
    return f"day:{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def charged(
    state: int, tokens: int, usd: str | None, given: int, taken: int, paid: str | None
) -> tuple[int, Decimal]:
    """What a row of the ledger says a call cost."""
    match state:
        case 1 if given + taken:
            return given + taken, Decimal(paid if paid is not None else usd or 0)
        case 3:
            return 0, Decimal(0)
        case _:
            return tokens, Decimal(usd or 0)
