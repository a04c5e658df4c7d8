"""Planted bugs in what runs things: the dispatcher and the turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import wraps
from typing import Any

from clutch.core.messages import Answer
from clutch.engine import tool_calls
from clutch.transactions import turn
from clutch.transactions.spawn import Accepted, ChildRequest
from tests.trust.mutants.mutant import CRASHES, STORMS, Mutant
from tests.trust.mutants.statements import answering_only

CALLING, RUN = "clutch.engine.tool_calls", "clutch.engine.open_run.OpenRun"
WORKER = "clutch.engine.worker.Worker"


def _twins(order: Any) -> tuple[Any, ...]:
    def bug(idem: str, child_id: int, *rest: Any) -> ChildRequest:
        return ChildRequest(f"{idem}:{child_id}", child_id, *rest)

    del order
    return (bug,)


def _acks_early(delegate: Any) -> tuple[Any, ...]:
    """The answer is given at once; the transaction may come later."""

    @wraps(delegate)
    async def bug(run: Any, answer: Any, orders: Any, wrong: Any, sleeps: Any) -> Any:
        del answer
        outcome = turn.in_order([*wrong, *(_promise(order) for order in orders)])
        told = turn.with_yields(outcome, sleeps, turn.NO_CHILD)
        boundary = await run.tx(turn.results, told, run.services.ids.nonce())
        running = asyncio.ensure_future(tool_calls._spawn(run, orders))
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return told, boundary

    return (bug,)


def _promise(order: ChildRequest) -> Any:
    """What the spawn will answer."""
    key = f"agent:main:subagent:{order.uuid}"
    return tool_calls.in_words(order, Accepted(order.child_id, key, order.request.label or ""))


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
            await run.services.db.alone(_post, announce, session, requester_id, generation, silent)
        return goes_on

    return bug, keep


def _yields_twice(tx: Any, with_yields: Any) -> tuple[Any, ...]:
    """First the results, then the hold."""

    @wraps(tx)
    async def bug(run: Any, fn: Any, *args: Any, instead: Any = None) -> Any:
        if fn is not turn.yields:
            return await tx(run, fn, *args)
        outcome, places, nonce = args
        await tx(run, turn.results, with_yields(outcome, places, turn.YIELDED), nonce, instead)
        return await tx(run, turn.yields, replace(outcome, results=()), places, nonce)

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
    async def bug(run: Any, wanted: Any, place: int, said: Any, earlier: Any) -> Any:
        del earlier
        return await call(run, wanted, place, said, None)

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
    def bug(*args: Any, **named: Any) -> Any:
        said.append(1)
        if len(said) % 5:
            yield from post(*args, **named)

    return (bug,)


def _drops_late_text(report_late: Any) -> tuple[Any, ...]:
    @wraps(report_late)
    async def bug(run: Any, text: str) -> None:
        del run, text

    return (bug,)


def _free_lock_is_death(is_doubtful: Any, is_dead: Any) -> tuple[Any, ...]:
    @wraps(is_dead)
    def bug(peer: Any, beats: int, lease_s: float, *, is_lock_free: bool) -> bool:
        return is_lock_free or bool(is_dead(peer, beats, lease_s, is_lock_free=is_lock_free))

    @wraps(is_doubtful)
    def always(peer: Any, beats: int, lease_s: float) -> bool:
        del peer, beats, lease_s
        return True

    return always, bug


def _heartbeats_unseen(observed: Any) -> tuple[Any, ...]:
    @wraps(observed)
    def bug(known: Any, rows: Any, beats: int) -> Any:
        found = observed(known, rows, beats)
        return {one: replace(peer, beats=known.get(one, peer).beats) for one, peer in found.items()}

    return (bug,)


def _one_lease_for_all(observed: Any) -> tuple[Any, ...]:
    @wraps(observed)
    def bug(known: Any, rows: Any, beats: int) -> Any:
        return observed(known, {one: sign._replace(lease_s=None) for one, sign in rows.items()}, beats)

    return (bug,)


def _commits_again(may_be_committed: Any) -> tuple[Any, ...]:
    @wraps(may_be_committed)
    def bug(error: Any) -> bool:
        del error
        return False

    return (bug,)


MUTANTS = (
    Mutant(
        "answer_committed_again",
        ("clutch.engine.services._may_be_committed",),
        frozenset({"N22"}),
        STORMS,
        _commits_again,
        "an answer is committed once more after a commit whose outcome is unknown",
    ),
    Mutant(
        "late_text_dropped",
        ("clutch.engine.open_run.OpenRun.report_late",),
        frozenset({"N5"}),
        ("busy", "storm", "deep"),
        _drops_late_text,
        "what a killed run says when it ends anyway is thrown away",
    ),
    Mutant(
        "twin_spawn",
        ("clutch.engine.spawn.ChildRequest",),
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
        ("clutch.engine.turn._finish", "clutch.transactions.inbox.announce"),
        frozenset({"T2"}),
        STORMS,
        _announces_later,
        "the outcome is committed before its letter",
    ),
    Mutant(
        "yield_in_two_transactions",
        (f"{RUN}.tx", "clutch.transactions.turn.with_yields"),
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
        ("clutch.transactions.workers.disown",),
        frozenset({"T8", "N6"}),
        ("crash", "gone"),
        _claims_forgotten,
        "a claim whose answer was lost is nobody's",
    ),
    Mutant(
        "words_lost",
        ("clutch.transactions.inbox.post",),
        frozenset({"N12", "N20"}),
        ("busy",),
        _late_mail,
        "some letters are acknowledged and not kept",
    ),
    Mutant(
        "free_lock_buries",
        ("clutch.core.workers.is_doubtful", "clutch.core.workers.is_dead"),
        frozenset({"T19"}),
        CRASHES,
        _free_lock_is_death,
        "a worker that lost its connection is declared dead, though it beats",
    ),
    Mutant(
        "heartbeats_unseen",
        ("clutch.core.workers.observed",),
        frozenset({"T19"}),
        CRASHES,
        _heartbeats_unseen,
        "a worker counts from the first time that it saw another one, whatever that one has done since",
    ),
    Mutant(
        "one_lease_for_all",
        ("clutch.core.workers.observed",),
        frozenset({"T19"}),
        CRASHES,
        _one_lease_for_all,
        "a worker judges others by the length of its own lease",
    ),
)
