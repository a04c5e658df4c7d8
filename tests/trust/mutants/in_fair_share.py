"""Planted bugs in how slots are divided. Simulated worlds seldom have a full lane: a probe finds them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, wraps
from typing import Any

from clutch.core.fair_share import DEFAULT_SHARE, NORMAL, Queue
from clutch.core.spawn import SpawnRequest
from clutch.store.transaction import Tx
from tests.trust.mutants.mutant import Mutant

_RULES = frozenset({"fair-share"})


def _equal_weights(weight: Any) -> tuple[Any, ...]:
    return (wraps(weight)(lambda weights, share: 1),)


def _no_aging(choose: Any) -> tuple[Any, ...]:
    @wraps(choose)
    def bug(waiting: Any, working: Any, weights: Mapping[str, int], count: int, *, passed: int = 0) -> Any:
        del passed
        return choose(waiting, working, weights, count)

    return (bug,)


def _positions_forgotten(dump: Any) -> tuple[Any, ...]:
    return (wraps(dump)(lambda self: ""),)


def _oldest_only(roots_due: Any) -> tuple[Any, ...]:
    @wraps(roots_due)
    def bug(now: float, slots: Any, queue: Any) -> Tx[list[int]]:
        yield from roots_due(now, slots, queue)
        return []

    return (bug,)


def _nothing_inherited(queue_of: Any) -> tuple[Any, ...]:
    @wraps(queue_of)
    def bug(request: SpawnRequest, caller: Queue, *, is_agent: bool) -> Any:
        return queue_of(request, caller if is_agent else Queue(NORMAL, DEFAULT_SHARE), is_agent=is_agent)

    return (bug,)


def _agents_choose(queue_of: Any) -> tuple[Any, ...]:
    @wraps(queue_of)
    def bug(request: SpawnRequest, caller: Queue, *, is_agent: bool) -> Any:
        del is_agent
        return queue_of(request, caller, is_agent=False)

    return (bug,)


_mutant = partial(Mutant, expected=_RULES, worlds=())

MUTANTS = (
    _mutant(
        name="weights_ignored",
        targets=("clutch.core.fair_share.weight",),
        plant=_equal_weights,
        about="every share gets as many slots as the others",
    ),
    _mutant(
        name="aging_dropped",
        targets=("clutch.core.fair_share.choose",),
        plant=_no_aging,
        about="a session of low priority waits for as long as others come",
    ),
    _mutant(
        name="hidden_roots",
        targets=("clutch.core.fair_share.Positions.dump",),
        plant=_positions_forgotten,
        about="every claim reads the same first roots",
    ),
    _mutant(
        name="backlog_hides_roots",
        targets=("clutch.transactions.claims.roots_due",),
        plant=_oldest_only,
        about="only the oldest sessions are compared, which may all be of one root",
    ),
    _mutant(
        name="share_not_inherited",
        targets=("clutch.core.spawn.queue_of",),
        plant=_nothing_inherited,
        about="the children of a tenant's task take slots of the default share",
    ),
    _mutant(
        name="agents_choose_shares",
        targets=("clutch.core.spawn.queue_of",),
        plant=_agents_choose,
        about="an agent spawns into the share of another tenant",
    ),
)
