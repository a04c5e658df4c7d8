"""`make trust`: simulated worlds, replays, planted mutants, kill -9 and races, and one summary of all of it.

    simulation  faults in virtual time, invariants after every commit     replays  same seed, same bytes
    mutants     planted bugs that the simulation must find                kills    real processes, kill -9
    races       many processes want the last slot                         directories  … or one state directory
    limits      many processes spawn in every way while a watcher counts  moves   `clutch move`, kill -9, planted bugs

Progress, the table and how to reproduce a failure go to stderr; the summary is the last line of stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, assert_never

import apsw

from clutch import __version__
from clutch.testing.postgres import PostgresServer
from tests.trust import thresholds
from tests.trust.kills.limits import LimitLoad, run_limits
from tests.trust.kills.moves import MoveHunt, hunt_moves
from tests.trust.kills.races import Outcome, run_races
from tests.trust.kills.series import Total, Wish, run_kills
from tests.trust.kills.state_directory import DirectoryRounds, run_directories
from tests.trust.mutants.hunt import CUT, Found, NotFound, hunt_all
from tests.trust.processes import progress
from tests.trust.replays import replays_identical
from tests.trust.simulation import Simulated, run_many

SCHEMA: Final = "clutch.trust/1"
BACKENDS: Final = ("sqlite", "postgres")

#: what the last parts still do when the time is over
_ROUNDS_CUT: Final = 4
_ACTS_CUT: Final = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds_max` bounds the whole campaign. A campaign that it cuts short is not ok."""

    seed: int
    backends: tuple[str, ...]
    processes: int
    seconds_max: float = math.inf


@dataclass(frozen=True, slots=True)
class Hunted:
    """A planted bug, and which invariant found it after how many worlds; None: none did."""

    name: str
    target: str
    found_by: str | None
    seeds: int
    seconds: float
    is_cut: bool = False  #: the time limit ended the hunt


@dataclass(frozen=True, slots=True)
class Findings:
    simulated: Simulated
    replays: int
    hunted: Sequence[Hunted]
    killed: Total
    raced: Mapping[str, Outcome]
    lone: DirectoryRounds
    wall_s: float
    fired: LimitLoad | None = None  #: only PostgreSQL has many processes
    moved: MoveHunt | None = None  #: from and to PostgreSQL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="stop after so long; then it is not ok"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=[*BACKENDS, "all"], default="all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)


def run(arguments: argparse.Namespace) -> int:
    backends = BACKENDS if arguments.backend == "all" else (arguments.backend,)
    plan = Plan(arguments.seed, backends, arguments.processes, arguments.seconds)
    findings = find_out(plan)
    summary = summarise(plan, findings)
    for line in table(summary):
        progress(line)
    for failure in failures(findings):
        progress(f"FAILED {failure}")
    for shortfall in summary["shortfalls"]:
        progress(f"NOT ENOUGH {shortfall}")
    print(json.dumps(summary), flush=True)
    return 0 if summary["ok"] else 1


def find_out(plan: Plan) -> Findings:
    """Every part has a fixed size. A slow machine needs longer, and no part becomes easier."""
    started = time.monotonic()

    def left() -> float:
        return max(0.0, plan.seconds_max - (time.monotonic() - started))

    return Findings(
        simulated=_step("simulation", lambda: _simulate(plan, left())),
        replays=_step("replays", lambda: replays_identical(plan.seed, thresholds.REPLAYS_MIN)),
        hunted=_step("mutants", lambda: _hunt(plan, left())),
        killed=_step("kills", lambda: _kill(plan, left())),
        raced=_step("races", lambda: _race(plan, _rounds_within(left()))),
        lone=_step(
            "state directories",
            lambda: run_directories(thresholds.RACE_PROCESSES, _rounds_within(left())),
        ),
        fired=_step("limits", lambda: _load_limits(plan, left())),
        moved=_step("moves", lambda: _kill_movers(plan, left())),
        wall_s=time.monotonic() - started,
    )


def _simulate(plan: Plan, seconds_max: float) -> Simulated:
    return run_many(
        thresholds.SIM_RUNS_MIN, thresholds.FAULTS_MIN, plan.seed, plan.processes, seconds_max=seconds_max
    )


def _kill(plan: Plan, seconds_max: float) -> Total:
    wish = Wish(
        kills=thresholds.KILLS,
        seed=plan.seed,
        processes=plan.processes + 1,  # a victim waits for the disk half of the time
        backends=plan.backends,
        per_point=thresholds.KILLS_PER_POINT_MIN,
        seconds_max=seconds_max,
    )
    return run_kills(wish)


def _race(plan: Plan, rounds: int) -> Mapping[str, Outcome]:
    return run_races(plan.backends, processes=thresholds.RACE_PROCESSES, rounds=rounds)


def _rounds_within(seconds_max: float) -> int:
    """All of them, or a few when no time is left. A campaign with too few is not ok."""
    return thresholds.RACE_ROUNDS if seconds_max > 0 else _ROUNDS_CUT


def _load_limits(plan: Plan, seconds_max: float) -> LimitLoad | None:
    if "postgres" not in plan.backends:
        return None
    acts = thresholds.LIMIT_ACTS if seconds_max > 0 else _ACTS_CUT
    return run_limits(thresholds.RACE_PROCESSES, acts)


def _kill_movers(plan: Plan, seconds_max: float) -> MoveHunt | None:
    if "postgres" not in plan.backends:
        return None
    return hunt_moves(thresholds.MOVE_KILLS if seconds_max > 0 else 1, plan.seed)


def _hunt(plan: Plan, seconds_max: float) -> list[Hunted]:
    return [_hunted(one) for one in hunt_all(plan.processes, seconds_max=seconds_max)]


def _hunted(ended: Found | NotFound) -> Hunted:
    match ended:
        case Found():
            return Hunted(ended.name, ended.target, ended.found_by, ended.seeds, ended.seconds)
        case NotFound():
            is_cut = ended.why == CUT
            return Hunted(ended.name, ended.target, None, ended.seeds, ended.seconds, is_cut)
        case _:
            assert_never(ended)


def _step(name: str, work: Callable[[], T]) -> T:
    started = time.monotonic()
    progress(f"{name} …")
    result = work()
    progress(f"{name}: {time.monotonic() - started:.0f} s")
    return result


# ---- the summary -------------------------------------------------------------------------------------


def summarise(plan: Plan, findings: Findings) -> dict[str, Any]:
    simulated, killed, raced = findings.simulated, findings.killed, findings.raced
    commit, dirty = checkout()
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "ok": False,
        "seed": plan.seed,
        "commit": commit,
        "dirty": dirty,
        "versions": versions(plan.backends),
        "wall_s": round(findings.wall_s, 1),
        "sim_worlds": simulated.worlds,
        "sim_runs": simulated.runs,
        "faults": sum(simulated.faults.values()),
        "faults_by_kind": dict(sorted(simulated.faults.items())),
        "commits": simulated.commits,
        "edges": {"seen": len(simulated.edges), "total": simulated.edges_total},
        "invariants": dict(sorted({**simulated.invariants, "T17": _tries(findings.lone)}.items())),
        "violations": len(simulated.violations),
        "replays_identical": findings.replays,
        "mutants": _mutants(findings.hunted),
        "kills": killed.kills,
        "kills_in_flight": killed.in_flight,
        "kills_in_recovery": killed.in_recovery,
        "kills_by_point": dict(sorted(killed.by_point.items())),
        "kills_by_backend": dict(sorted(killed.by_backend.items())),
        "lost": killed.lost,
        "twice": killed.twice,
        "unsafe_repeats": killed.unsafe_repeats,
        "over_limit": {name: raced[name].over_limit if name in raced else None for name in BACKENDS},
        "limit_rounds": _rounds(raced),
        # beyond the promised fields
        "backends": list(plan.backends),
        "accepted": killed.accepted,
        "repeated_model_calls": killed.repeated_model_calls,
        "state_directory_rounds": asdict(findings.lone),
        "acts_by_kind": dict(sorted(simulated.acts.items())),
        "limit_fire": None if findings.fired is None else asdict(findings.fired),
        "moves": None if findings.moved is None else _moves(findings.moved),
    }
    short = [*_cuts(plan, findings), *thresholds.shortfalls(summary, plan.backends)]
    return summary | {"shortfalls": short, "ok": not short and not failures(findings)}


def _cuts(plan: Plan, findings: Findings) -> Iterator[str]:
    """Parts that the time limit ended before they were complete."""
    is_cut = {
        "simulation": findings.simulated.is_cut,
        "mutants": any(one.is_cut for one in findings.hunted),
        "kills": findings.killed.is_cut,
        "races": any(one.rounds < thresholds.RACE_ROUNDS for one in findings.raced.values()),
        "state directories": findings.lone.rounds < thresholds.RACE_ROUNDS,
    }
    if parts := [name for name, cut in is_cut.items() if cut]:
        yield f"cut short after {plan.seconds_max:.0f} seconds: {', '.join(parts)}"


def _mutants(hunted: Sequence[Hunted]) -> dict[str, Any]:
    found = sum(one.found_by is not None for one in hunted)
    return {"found": found, "total": len(hunted), "list": [_listed(one) for one in hunted]}


def _listed(one: Hunted) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name != "is_cut"}


def _moves(moved: MoveHunt) -> dict[str, Any]:
    total = moved.totals
    return {
        "kills": total.kills,
        "mover_kills": total.mover_kills,
        "lost": total.lost,
        "twice": total.twice,
        "lived_twice": total.lived_twice,
        "mutants": moved.found,
    }


def _rounds(raced: Mapping[str, Outcome]) -> dict[str, int]:
    """Each backend runs them all; the worse one counts."""
    worst = min(raced.values(), key=lambda outcome: outcome.exactly_one)
    return {"processes": worst.processes, "rounds": worst.rounds, "exactly_one": worst.exactly_one}


def _tries(lone: DirectoryRounds) -> int:
    return lone.processes * lone.rounds


def failures(findings: Findings) -> list[str]:
    lone = findings.lone
    shared = lone.rounds - lone.exactly_one
    crowded = (
        [f"T17: {shared} of {lone.rounds} state directories had not exactly one owner"] if shared else []
    )
    fired = findings.fired
    burnt = []
    if fired is not None and (fired.is_over or not fired.is_hot):
        burnt = [f"T3: {'over a limit' if fired.is_over else 'no limit was reached'} under fire: {fired}"]
    moved = [] if findings.moved is None else findings.moved.failures
    return [*findings.simulated.violations, *findings.killed.failures, *crowded, *burnt, *moved]


def versions(backends: Sequence[str]) -> dict[str, str | None]:
    return {
        "clutch": __version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "postgres": _postgres_version() if "postgres" in backends else None,
    }


def _postgres_version() -> str:
    programs = PostgresServer(Path(tempfile.gettempdir())).programs
    done = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def checkout() -> tuple[str | None, bool | None]:
    """Commit, and whether files differ from it; unknown where this is no checkout of ours."""
    here = Path(__file__).resolve().parent
    try:
        top = _git(here, "rev-parse", "--show-toplevel")
        if not here.is_relative_to(Path(top) / "tests"):
            return None, None
        return _git(here, "rev-parse", "HEAD"), bool(_git(Path(top), "status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def _git(where: Path, *words: str) -> str:
    command = ["git", "-C", str(where), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def table(summary: Mapping[str, Any]) -> Iterator[str]:
    edges, mutants, races = summary["edges"], summary["mutants"], summary["limit_rounds"]
    lone, fire = summary["state_directory_rounds"], summary["limit_fire"]
    moments = f"{summary['kills_in_flight']:,} / {summary['kills_in_recovery']:,}"
    harm = f"{summary['lost']} / {summary['twice']} / {summary['unsafe_repeats']}"
    rows = {
        "simulated tasks brought to an end": f"{summary['sim_runs']:,} in {summary['sim_worlds']:,} worlds",
        "faults": f"{summary['faults']:,} of {len(summary['faults_by_kind'])} kinds",
        "… and what people and agents did meanwhile": _pairs(summary["acts_by_kind"]),
        "commits, each followed by the invariants": f"{summary['commits']:,}",
        "… how often each was asked": _pairs(summary["invariants"]),
        "violations": summary["violations"],
        "edges of the state machine seen": f"{edges['seen']} of {edges['total']}",
        "replays with the same bytes": summary["replays_identical"],
        "planted mutants found": f"{mutants['found']} of {mutants['total']}",
        "kill -9 with unfinished work": f"{summary['kills']:,} ({_pairs(summary['kills_by_backend'])})",
        "… with a run in flight / during recovery": moments,
        "… lost / told twice / effects repeated": harm,
        "rounds over the limit": _pairs(summary["over_limit"]),
        "rounds with exactly one winner": f"{races['exactly_one']} of {races['rounds']}",
        "state directories with exactly one owner": f"{lone['exactly_one']} of {lone['rounds']}",
        "looks at the limits under fire": "–" if fire is None else f"{fire['samples']:,}",
        "seconds": summary["wall_s"],
    }
    wide = max(map(len, rows))
    return (f"{name:<{wide}}  {value}" for name, value in rows.items())


def _pairs(counts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {'–' if count is None else count}" for name, count in counts.items())
