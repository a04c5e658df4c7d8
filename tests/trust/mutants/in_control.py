"""Planted bugs in how things are stopped in good order: the turn of a session, a whole process."""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import Any

from clutch.core.policy import Policy
from clutch.store.transaction import Tx
from clutch.transactions import control, turn_end
from tests.trust.mutants.mutant import Mutant, mutant_of

ROLLING = ("upgrade",)
WORKER = "clutch.engine.worker.Worker"


def _stops_all_below(halt: Any) -> tuple[Any, ...]:
    @wraps(halt)
    def bug(now: float, policy: Policy, session_id: int, actor: str) -> Tx[bool]:
        return (yield from control.stop(now, policy, session_id, "halted", actor)).own_run

    return (bug,)


def _failed_by_a_restart(hand_over: Any) -> tuple[Any, ...]:
    @wraps(hand_over)
    def bug(now: float, policy: Policy, session_id: int, fence: int, *_: Any) -> Tx[None]:
        yield from turn_end.crash(now, policy, session_id, fence, "the gateway was stopped")

    return (bug,)


def _gives_nothing_back(give_back: Any) -> tuple[Any, ...]:
    @wraps(give_back)
    async def bug(holding: Any, claimed: Any) -> None:
        del holding, claimed

    return (bug,)


def _waits_for_every_turn(drain: Any) -> tuple[Any, ...]:
    @wraps(drain)
    async def bug(worker: Any, group: asyncio.TaskGroup) -> None:
        while worker.turns:
            await asyncio.wait([turn for _, turn in worker.turns.values()])
        await drain(worker, group)

    return (bug,)


MUTANTS = (
    mutant_of(
        "halt_stops_all_below",
        "control.halt",
        "N19",
        ("busy",),
        _stops_all_below,
        "whoever stops a turn stops the children, too",
    ),
    mutant_of(
        "restart_fails_runs",
        "turn_end.hand_over",
        "N22",
        ROLLING,
        _failed_by_a_restart,
        "what was under way when a process was stopped has failed",
    ),
    Mutant(
        "stop_gives_nothing_back",
        ("clutch.engine.worker.HeldTurns.give_back",),
        frozenset({"T4", "T8"}),
        ROLLING,
        _gives_nothing_back,
        "a process that is stopped keeps its sessions",
    ),
    Mutant(
        "stop_waits_for_every_turn",
        (f"{WORKER}._drain",),
        frozenset({"T8"}),
        ROLLING,
        _waits_for_every_turn,
        "a process that is stopped waits for its models as long as they take",
    ),
)
