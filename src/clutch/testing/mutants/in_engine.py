"""Planted bugs in what runs things: the dispatcher and the turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import wraps
from typing import Any

from clutch.core.messages import Answer
from clutch.engine import calling
from clutch.protocol import turns
from clutch.protocol.spawn import Accepted, Order
from clutch.testing.mutants.planting import CRASHES, STORMS, Mutant
from clutch.testing.mutants.tamper import answering_only

CALLING, RUN = "clutch.engine.calling", "clutch.engine.open_run.OpenRun"
WORKER = "clutch.engine.dispatcher.Worker"


def _twins(order: Any) -> tuple[Any, ...]:
    def bug(idem: str, child_id: int, *rest: Any) -> Order:
        return Order(f"{idem}:{child_id}", child_id, *rest)

    del order
    return (bug,)


def _acks_early(delegate: Any) -> tuple[Any, ...]:
    """The answer is given at once; the transaction may come later."""

    @wraps(delegate)
    async def bug(run: Any, answer: Any, orders: Any, wrong: Any, sleeps: Any) -> Any:
        del answer
        outcome = turns.in_order([*wrong, *(_promise(order) for order in orders)])
        told = turns.with_yields(outcome, sleeps, turns.NO_CHILD)
        boundary = await run.tx(turns.results, told, run.kit.ids.nonce())
        running = asyncio.ensure_future(calling._spawn(run, orders))
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return told, boundary

    return (bug,)


def _promise(order: Order) -> Any:
    """What the spawn will answer."""
    key = f"agent:main:subagent:{order.uuid}"
    return calling.in_words(order, Accepted(order.child_id, key, order.request.label or ""))


def _post(now: float, announce: Any, session: Any, to: int, generation: int, silent: bool) -> Any:
    yield from announce(now, session, to, generation, silent=silent)


def _announces_later(finish: Any, announce: Any) -> tuple[Any, ...]:
    """First the outcome is committed, then the letter."""
    waiting: list[tuple[Any, ...]] = []

    @wraps(announce)
    def keep(now: float, session: Any, requester_id: int, generation: int, *, silent: bool) -> Any:
        del now
        waiting.append((session, requester_id, generation, silent))
        yield from ()

    @wraps(finish)
    async def bug(run: Any, answer: Answer, value: str | None = None) -> Any:
        waiting.clear()
        goes_on = await finish(run, answer, value)
        for session, requester_id, generation, silent in list(waiting):
            await run.kit.door.alone(_post, announce, session, requester_id, generation, silent)
        return goes_on

    return bug, keep


def _yields_twice(tx: Any, with_yields: Any) -> tuple[Any, ...]:
    """First the results, then the hold."""

    @wraps(tx)
    async def bug(run: Any, fn: Any, *args: Any) -> Any:
        if fn is not turns.yields:
            return await tx(run, fn, *args)
        outcome, places, nonce, instead = args
        await tx(run, turns.results, with_yields(outcome, places, turns.YIELDED), nonce, instead)
        return await tx(run, turns.yields, replace(outcome, results=()), places, nonce)

    return bug, with_yields


def _asks_again(open_answer: Any) -> tuple[Any, ...]:
    """An answer whose calls were open when its owner died is asked for once more."""

    @wraps(open_answer)
    def bug(run: Any) -> Any:
        if not getattr(run, "has_begun", False):
            run.has_begun = True
            return None
        return open_answer(run)

    return (bug,)


def _runs_again(call: Any) -> tuple[Any, ...]:
    @wraps(call)
    async def bug(run: Any, wanted: Any, place: int, said: Any, interrupted: bool) -> Any:
        del interrupted
        return await call(run, wanted, place, said, False)

    return (bug,)


def _stays_dead(lives: Any) -> tuple[Any, ...]:
    """A worker that was declared dead sits there and does nothing."""

    @wraps(lives)
    async def bug(worker: Any) -> None:
        register = worker._register

        async def once() -> None:
            if worker.id:
                await asyncio.Event().wait()
            await register()

        worker._register = once
        await lives(worker)

    return (bug,)


def _claims_forgotten(disown: Any) -> tuple[Any, ...]:
    return (answering_only(disown),)


def _late_mail(post: Any) -> tuple[Any, ...]:
    """What a person says is acknowledged before it is on disk, and one in five is lost with the process."""
    said: list[int] = []

    @wraps(post)
    def bug(*args: Any) -> Any:
        said.append(1)
        if len(said) % 5:
            yield from post(*args)

    return (bug,)


MUTANTS = (
    Mutant(
        "twin_spawn",
        ("clutch.engine.spawning.Order",),
        frozenset({"N2"}),
        CRASHES,
        _twins,
        "the key of a spawn is new at every try",
    ),
    Mutant(
        "accepted_before_commit",
        (f"{CALLING}._delegate",),
        frozenset({"N1"}),
        STORMS,
        _acks_early,
        "`accepted` is said before the task is on disk",
    ),
    Mutant(
        "announce_in_second_transaction",
        ("clutch.engine.turn._finish", "clutch.protocol.letters.announce"),
        frozenset({"T2"}),
        STORMS,
        _announces_later,
        "the outcome is committed before its letter",
    ),
    Mutant(
        "yield_in_two_transactions",
        (f"{RUN}.tx", "clutch.protocol.turns.with_yields"),
        frozenset({"N16"}),
        STORMS,
        _yields_twice,
        "the model is told to wait before it is held",
    ),
    Mutant(
        "answers_recomputed_after_takeover",
        (f"{RUN}.open_answer",),
        frozenset({"N22"}),
        CRASHES,
        _asks_again,
        "a committed answer is asked for again",
    ),
    Mutant(
        "unsafe_tool_runs_again",
        (f"{CALLING}._one",),
        frozenset({"N23"}),
        CRASHES,
        _runs_again,
        "a call whose outcome is unknown is simply repeated",
    ),
    Mutant(
        "no_reincarnation",
        (f"{WORKER}._lives",),
        frozenset({"T8"}),
        ("crash", "storm", "busy"),
        _stays_dead,
        "a worker that was buried alive does not come back",
    ),
    Mutant(
        "lost_claims_kept",
        ("clutch.protocol.workers.disown",),
        frozenset({"T8", "N6"}),
        ("crash", "gone"),
        _claims_forgotten,
        "a claim whose answer was lost is nobody's",
    ),
    Mutant(
        "words_lost",
        ("clutch.protocol.letters.post",),
        frozenset({"N12", "N20"}),
        ("busy",),
        _late_mail,
        "some letters are acknowledged and not kept",
    ),
)
