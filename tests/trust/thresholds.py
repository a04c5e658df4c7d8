"""The sizes of `make trust`, and what its summary must show to be ok, as one pure function.

Sizes are counts, so that the campaign is the same on every machine. One that a time limit cuts short is not ok.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from clutch.core.model import Phase
from tests.trust.kills.points import COMMIT, POINTS

SIM_RUNS_MIN: Final = 40_000
FAULTS_MIN: Final = 6_000
FAULT_SHARE_MIN: Final = 0.01  #: of every kind
REPLAYS_MIN: Final = 20
MUTANTS_MIN: Final = 40
KILLS: Final = 4_000  #: the size of that part
KILLS_MIN: Final = 2_000
KILLS_PER_POINT_MIN: Final = 20
RANDOM_SHARE_MIN: Final = 0.25
RECOVERY_SHARE_MIN: Final = 0.10
MOVE_KILLS: Final = 14  #: one at each step of a move; `python -m tests.trust.kills.moves` has more
RACE_PROCESSES: Final = 8
RACE_ROUNDS: Final = 200
#: Edges that no simulated world walks: no plan has children there, and no session is deleted. `tests/core` walks them.
NOT_SIMULATED: Final = frozenset(
    {
        (Phase.AWAITING_APPROVAL, Phase.RUNNING),
        (Phase.ENDING, Phase.AWAITING_APPROVAL),
        (Phase.ANNOUNCE_DEFERRED, Phase.AWAITING_APPROVAL),
        (Phase.QUEUED, Phase.ENDING),
        (Phase.PAUSED, Phase.ENDING),
    }
)
LIMIT_ACTS: Final = 300  #: of each process, while a watcher counts what the tables hold

Summary = Mapping[str, Any]


def shortfalls(summary: Summary, backends: Sequence[str]) -> list[str]:
    """What is missing or wrong, as sentences."""
    return [*_zeros(summary, backends), *_simulation(summary), *_kills(summary, backends)]


def _zeros(summary: Summary, backends: Sequence[str]) -> Iterator[str]:
    for name in ("violations", "lost", "twice", "unsafe_repeats"):
        if summary[name]:
            yield f"{name} is {summary[name]}, must be 0"
    for backend in backends:
        if summary["over_limit"][backend] != 0:
            yield f"over_limit on {backend} is {summary['over_limit'][backend]}, must be 0"
    races = summary["limit_rounds"]
    if races["exactly_one"] != races["rounds"]:
        yield f"only {races['exactly_one']} of {races['rounds']} rounds had exactly one winner"
    mutants = summary["mutants"]
    if mutants["found"] != mutants["total"]:
        missed = [one["name"] for one in mutants["list"] if one["found_by"] is None]
        yield f"mutants not found: {', '.join(missed)}"
    if mutants["total"] < MUTANTS_MIN:
        yield f"{mutants['total']} mutants, must be at least {MUTANTS_MIN}"
    if summary["replays_identical"] < REPLAYS_MIN:
        yield f"{summary['replays_identical']} of {REPLAYS_MIN} replays were identical"


def _simulation(summary: Summary) -> Iterator[str]:
    yield from _at_least(summary, "sim_runs", SIM_RUNS_MIN)
    yield from _at_least(summary, "faults", FAULTS_MIN)
    edges = summary["edges"]
    if edges["seen"] != edges["total"]:
        yield f"{edges['seen']} of {edges['total']} edges of the state machine were seen"
    rare = [
        kind
        for kind, count in summary["faults_by_kind"].items()
        if count < FAULT_SHARE_MIN * summary["faults"]
    ]
    if rare:
        yield f"fault kinds rarer than {FAULT_SHARE_MIN:.0%}: {', '.join(sorted(rare))}"
    if undone := [act for act, count in summary["acts_by_kind"].items() if not count]:
        yield f"acts that never happened: {', '.join(sorted(undone))}"
    idle = [name for name, count in summary["invariants"].items() if not count]
    if idle:
        yield f"invariants that were never evaluated: {', '.join(sorted(idle))}"


def _kills(summary: Summary, backends: Sequence[str]) -> Iterator[str]:
    yield from _at_least(summary, "kills", KILLS_MIN)
    by_point = summary["kills_by_point"]
    points = [point for point in POINTS if "sqlite" in backends or point not in COMMIT]
    if rare := [point for point in points if by_point.get(point, 0) < KILLS_PER_POINT_MIN]:
        yield f"points with fewer than {KILLS_PER_POINT_MIN} kills: {', '.join(rare)}"
    for what, count, least in (
        ("at random moments", by_point.get("random", 0), RANDOM_SHARE_MIN),
        ("during recovery", summary["kills_in_recovery"], RECOVERY_SHARE_MIN),
    ):
        if count < least * summary["kills"]:
            yield f"{count} of {summary['kills']} kills were {what}, must be {least:.0%}"
    if missing := [backend for backend in backends if not summary["kills_by_backend"].get(backend)]:
        yield f"no kills on {', '.join(missing)}"


def _at_least(summary: Summary, name: str, least: int) -> Iterator[str]:
    if summary[name] < least:
        yield f"{name} is {summary[name]}, must be at least {least}"
