"""What the processes of one database share of a provider: its pace, its breaker, and the slots of its limit.

A worker holds slots and starts calls in them without asking. It asks (`exchanged`) when it needs more, when a call
failed, and when another worker needs what it holds. Slots belong to workers that are alive: those of a worker that was
declared dead belong to none. All moments of one exchange are those of one clock; `shifted` translates them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, NamedTuple, TypeAlias

from clutch.core import rate_limit
from clutch.core.rate_limit import NEVER, Bounds, Breaker, Effect, Failure, Pace

CHANGED: Final = (
    "provider_limit"  #: a hint: this, the provider, which worker is to ask (0: all), and the sender
)
TURN_S = 1.0  #: a slot too few for all workers goes to the next one after this time
PROBE_S = 60.0  #: how long others wait for the answer to the call that probes a broken provider
GAP_MIN_S = 0.01  #: calls that start closer to each other need no order between processes

#: What one process counts by itself, and only adds to what is shared.
_COUNTS: Final = ("in_flight", "mean_s", "window_at", "last_at", "passed", "passed_at")

Change: TypeAlias = Callable[[Pace], Pace]  #: one of the transitions of `core.rate_limit`


class WorkerSlots(NamedTuple):
    """What a worker has of a limit: the calls it has under way are at most `held`."""

    held: int
    wanted: int  #: calls under way and waiting
    turn_at: float = NEVER  #: when it last got a slot


NEW: Final = Pace()


@dataclass(frozen=True, slots=True)
class SharedLimit:
    pace: Pace = NEW
    slots: Mapping[int, WorkerSlots] = field(default_factory=dict)  #: by worker
    prober: int | None = None  #: the worker that may probe the provider while the breaker is open
    probe_until: float = NEVER


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """What a worker reports and asks for."""

    in_flight: int
    wanted: int  #: calls under way and waiting
    counts: Pace = NEW  #: what it has counted since its last request
    changes: tuple[Change, ...] = ()
    places: tuple[int, ...] = ()  #: the tokens of each call that needs a time to start
    wants_probe: bool = False


@dataclass(frozen=True, slots=True)
class LimitGrant:
    """The answer to a request."""

    pace: Pace
    slots: int = 0  #: how many calls may be under way
    held: int = 0  #: more than `slots`: those that end must be returned
    starts: tuple[float, ...] = ()  #: when each of the places may start; none while the provider is closed
    is_prober: bool = False
    others: tuple[int, ...] = ()  #: workers that should ask: to return slots, or to get some


def exchanged(
    state: SharedLimit,
    bounds: Bounds,
    worker: int,
    request: LimitRequest,
    *,
    alive: Collection[int],
    now: float,
) -> tuple[SharedLimit, LimitGrant]:
    """Return what is shared afterwards, and what the worker gets."""
    pace = _counted_in(_probe_ended(state, alive, now), request.counts, now)
    for change in request.changes:
        pace = changed(pace, change)
    is_prober = pace.breaker is not None and pace.breaker.is_probing and state.prober == worker
    probe_until = state.probe_until
    if request.wants_probe and pace.breaker is not None and rate_limit.hold(pace, bounds, now) is None:
        pace, is_prober, probe_until = _with_probe(pace, is_probing=True), True, now + PROBE_S
    starts = []
    for tokens in request.places if rate_limit.hold(pace, bounds, now) is None or is_prober else ():
        pace, start = rate_limit.book(pace, bounds, now, tokens)
        starts.append(start)
    known = {one: slots for one, slots in state.slots.items() if one in alive}
    slots, grant = _granted(known, bounds, worker, request, now)
    is_probed = pace.breaker is not None and pace.breaker.is_probing
    prober = worker if is_prober else state.prober if is_probed else None
    return (
        SharedLimit(pace, slots, prober, probe_until),
        replace(grant, pace=pace, starts=tuple(starts), is_prober=is_prober),
    )


def _granted(
    slots: Mapping[int, WorkerSlots], bounds: Bounds, worker: int, request: LimitRequest, now: float
) -> tuple[Mapping[int, WorkerSlots], LimitGrant]:
    limit = bounds.concurrency_max
    if limit is None:
        return {}, LimitGrant(NEW)
    before = slots.get(worker, WorkerSlots(0, 0))
    asked = before._replace(wanted=min(max(request.wanted, request.in_flight), limit))
    targets = fair_slots(limit, {**slots, worker: asked}, now)
    free = limit - sum(other.held for one, other in slots.items() if one != worker)
    held = max(request.in_flight, min(targets[worker], free))
    asked = asked._replace(held=held, turn_at=now if held > before.held else before.turn_at)
    after = {**slots, worker: asked}
    is_short, is_left = held < targets[worker], free > held
    others = sorted(
        one
        for one, other in after.items()
        if one != worker
        and ((is_short and other.held > targets[one]) or (is_left and other.held < targets[one]))
    )
    if not asked.held and not asked.wanted and asked.turn_at < now - TURN_S:
        del after[worker]
    return after, LimitGrant(NEW, min(targets[worker], held), held, others=tuple(others))


def fair_slots(limit: int, slots: Mapping[int, WorkerSlots], now: float) -> dict[int, int]:
    """Divide a limit: equal parts, to none more than it wants; what cannot be divided goes round in turns."""
    parts = dict.fromkeys(slots, 0)
    short = [one for one in sorted(slots) if slots[one].wanted > 0]
    while short and limit >= len(short):
        each = min(limit // len(short), *(slots[one].wanted - parts[one] for one in short))
        for one in short:
            parts[one] += each
        limit -= each * len(short)
        short = [one for one in short if parts[one] < slots[one].wanted]
    # A turn that has just begun is not taken away; then the worker goes first that has waited longest.
    in_turn = sorted(short, key=lambda one: (now - slots[one].turn_at >= TURN_S, slots[one].turn_at, one))
    for one in in_turn[:limit]:
        parts[one] += 1
    return parts


def changed(pace: Pace, change: Change) -> Pace:
    """The pace after a transition in one process, without what only that process counts."""
    return replace(change(pace), **{name: getattr(pace, name) for name in _COUNTS})


def adopted(mine: Pace, grant: LimitGrant) -> Pace:
    """What is shared, with this process's own counts. Its own probe is not the one it waits for."""
    pace = replace(
        grant.pace, in_flight=mine.in_flight, mean_s=mine.mean_s, last_at=mine.last_at, passed=mine.passed,
        passed_at=mine.passed_at, window_at=max(mine.window_at, grant.pace.window_at),
    )  # fmt: skip
    is_probing = mine.breaker is not None and mine.breaker.is_probing
    return _with_probe(pace, is_probing=is_probing) if grant.is_prober else pace


def is_paced(pace: Pace, bounds: Bounds, now: float) -> bool:
    """Whether calls need a time to start that is agreed between processes."""
    gap_s = rate_limit.standing(pace, bounds, now).gap_s
    return bool(bounds.tokens_per_minute) or pace.is_learning or gap_s > GAP_MIN_S


def is_news(before: Pace, after: Pace) -> bool:
    """Whether other processes must know of it before they start their next call."""
    names = ("closed_until", "voided_at", "breaker", "is_learning", "gap_s")
    return any(getattr(before, name) != getattr(after, name) for name in names)


def _counted_in(pace: Pace, counts: Pace, now: float) -> Pace:
    """Add the calls that passed in one process. Those of a window that is over were counted when it ended."""
    if not counts.passed or counts.last_at < pace.window_at:
        return pace
    # A refusal that is being learned from keeps its window, however long the last call before it is ago.
    is_quiet = pace.last_at < counts.window_at - rate_limit.QUIET_S and not pace.is_learning
    passed = 0.0 if is_quiet else rate_limit.faded(pace.passed, now - pace.passed_at)
    return replace(
        pace,
        window_at=counts.window_at if is_quiet else min(pace.window_at, counts.window_at),
        last_at=max(pace.last_at, counts.last_at),
        passed=passed + rate_limit.faded(counts.passed, now - counts.passed_at),
        passed_at=now,
    )


def _probe_ended(state: SharedLimit, alive: Collection[int], now: float) -> Pace:
    """The pace, where the probe of a dead or silent worker is not waited for."""
    is_lost = state.prober is not None and (state.prober not in alive or now >= state.probe_until)
    return _with_probe(state.pace, is_probing=False) if is_lost else state.pace


def _with_probe(pace: Pace, *, is_probing: bool) -> Pace:
    return (
        pace if pace.breaker is None else replace(pace, breaker=replace(pace.breaker, is_probing=is_probing))
    )


# --------------------------------------------------------------------------------------------------
# The text of the stored row.


def to_text(state: SharedLimit) -> str:
    slots = {one: list(slots) for one, slots in state.slots.items()}
    return json.dumps({**asdict(replace(state, slots={})), "slots": slots}, sort_keys=True)


def from_text(text: str) -> SharedLimit:
    """What a newer version wrote beside the known fields is left out."""
    known = json.loads(text)
    if not known:
        return SharedLimit()
    pace = _known(Pace, known["pace"])
    for name in ("closed_by", "last_failure"):
        pace[name] = _failure(pace.get(name))
    if (breaker := pace.get("breaker")) is not None:
        pace["breaker"] = Breaker(**{**_known(Breaker, breaker), "failure": _failure(breaker["failure"])})
    slots = {int(one): WorkerSlots(*slots[:3]) for one, slots in known["slots"].items()}
    return SharedLimit(Pace(**pace), slots, known["prober"], known["probe_until"])


def _failure(known: Mapping[str, Any] | None) -> Any:
    return known and Failure(**{**_known(Failure, known), "effect": Effect(known["effect"])})


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in values.items() if name in names}
