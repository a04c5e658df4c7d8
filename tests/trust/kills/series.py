"""Many stories with many kills, in several processes, added up: `python -m tests.trust.kills.series`.

A process plays story after story until it has killed often enough, at every point often enough. The size is a
count, so a slow machine does not pass with less.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from clutch.core.workers import beat_s, certain_s
from clutch.testing.postgres import temporary_server
from tests.trust.kills.backends import Backend, PostgresBackend, SqliteBackend
from tests.trust.kills.checks import CheckResult
from tests.trust.kills.client import client_process
from tests.trust.kills.harness import Report, Story
from tests.trust.kills.plans import Chooser
from tests.trust.kills.points import COMMIT, POINTS
from tests.trust.kills.story import POLICY, story_tools
from tests.trust.kills.victim import prepare
from tests.trust.processes import progress, start

_POSTGRES_SHARE: Final = 0.3
PROGRESS_EVERY: Final = 250


@dataclass(frozen=True, slots=True)
class Order:
    """What one process has to do. `database`: a PostgreSQL server where it may make databases; else SQLite."""

    seed: int
    kills: int
    per_point: int = 0
    seconds_max: float = math.inf
    database: str | None = None
    plant: str = ""
    stories_max: int = 1_000_000
    only: tuple[str, ...] = ()
    life_max_s: float = 30.0

    @property
    def points(self) -> Sequence[str]:
        return self.only or [point for point in POINTS if self.database is None or point not in COMMIT]


def kill_for(order: Order) -> Report:
    """Story after story. One that fails is kept and named."""
    story_tools()
    gc.freeze()  # what victims only read stays shared with this process
    report = Report("sqlite" if order.database is None else "postgres")
    stage: Backend = SqliteBackend() if order.database is None else PostgresBackend(order.database)
    lease_s = POLICY.work.lease_s
    takeover_s = 0.0 if order.database is None else certain_s(lease_s) + beat_s(lease_s)
    chooser = Chooser(random.Random(order.seed), order.points, takeover_s)
    started, shown = time.monotonic(), 0
    with client_process() as (client, _):
        while not _is_enough(order, report):
            if time.monotonic() - started >= order.seconds_max:
                report.is_cut = True
                break
            if report.kills - shown >= PROGRESS_EVERY:
                shown = report.kills
                progress(f"kills on {report.backend} from seed {order.seed}: {shown:,} of {order.kills:,}")
            assignment, reader = stage.open(report.stories, order.plant)
            prepare(assignment.directory)
            workers = chooser.dice.randint(1, stage.workers_max)
            story = Story(replace(assignment, client=client), reader, chooser, workers, order.life_max_s)
            result = story.run(report)
            _add(report, result, story, order)
            stage.close(assignment, reader, keep=bool(result.complaints) and not order.plant)
    stage.end()
    return report


def _is_enough(order: Order, report: Report) -> bool:
    if report.stories >= order.stories_max:
        return True
    least = min(report.by_point.get(point, 0) for point in order.points)
    return report.kills >= order.kills and least >= order.per_point


def _add(report: Report, result: CheckResult, story: Story, order: Order) -> None:
    report.stories += 1
    report.accepted += result.accepted
    report.repeated_model_calls += result.repeated_model_calls
    report.lost += len(result.lost)
    report.twice += len(result.twice)
    report.unsafe_repeats += len(result.unsafe_repeats)
    if result.complaints:
        directory = story.assignment.directory
        story.write_down(directory / "victims.log")
        again = f"python -m tests.trust.kills.series --seed {order.seed} --stories {report.stories}"
        report.failures.append(
            f"{report.backend}, story {report.stories}: {'; '.join(result.complaints)} (kept: {directory}; {again})"
        )


# ---- several processes -------------------------------------------------------------------------------


@dataclass(slots=True)
class Total:
    """The reports of all processes together."""

    stories: int = 0
    kills: int = 0
    in_flight: int = 0
    in_recovery: int = 0
    accepted: int = 0
    repeated_model_calls: int = 0
    lost: int = 0
    twice: int = 0
    unsafe_repeats: int = 0
    by_point: Counter[str] = field(default_factory=Counter)
    by_backend: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    is_cut: bool = False  #: the time limit ended it before it was complete

    def add(self, report: Report) -> None:
        self.stories += report.stories
        self.kills += report.kills
        self.in_flight += report.in_flight
        self.in_recovery += report.in_recovery
        self.accepted += report.accepted
        self.repeated_model_calls += report.repeated_model_calls
        self.lost += report.lost
        self.twice += report.twice
        self.unsafe_repeats += report.unsafe_repeats
        self.by_point.update(report.by_point)
        self.by_backend[report.backend] += report.kills
        self.failures += report.failures
        self.is_cut |= report.is_cut


@dataclass(frozen=True, slots=True)
class Wish:
    """What all processes together should do; `backends` of sqlite, postgres."""

    kills: int
    seed: int
    processes: int
    backends: Sequence[str]
    per_point: int = 0
    seconds_max: float = math.inf
    plant: str = ""
    stories_max: int = 1_000_000
    only: tuple[str, ...] = ()
    life_max_s: float = 30.0


def run_kills(wish: Wish) -> Total:
    total = Total()
    with ExitStack() as stack:
        database = None
        if "postgres" in wish.backends:
            server = temporary_server(fsync=False)  # only its clients are killed
            database = server.start()
            stack.callback(server.stop)
        killers = [_start(order) for order in orders(wish, database)]
        for killer in killers:
            total.add(_report(killer))
    return total


def orders(wish: Wish, database: str | None) -> list[Order]:
    """Each process its backend and its share of what must be reached."""
    on_postgres = 0
    if "postgres" in wish.backends:
        share = _POSTGRES_SHARE if "sqlite" in wish.backends else 1.0
        on_postgres = max(1, round(wish.processes * share))
    on_sqlite = max(1, wish.processes - on_postgres) if "sqlite" in wish.backends else 0
    count = on_sqlite + on_postgres
    common = Order(
        seed=wish.seed * 1000,
        kills=math.ceil(wish.kills / count),
        per_point=math.ceil(wish.per_point / (on_sqlite or count)),
        seconds_max=wish.seconds_max,
        plant=wish.plant,
        stories_max=wish.stories_max,
        only=wish.only,
        life_max_s=wish.life_max_s,
    )
    numbered = [replace(common, seed=common.seed + number) for number in range(count)]
    # On PostgreSQL the other worker often gets to a point first, so where both run SQLite sees to the points.
    per_point = 0 if on_sqlite else common.per_point
    return numbered[:on_sqlite] + [
        replace(order, database=database, per_point=per_point) for order in numbered[on_sqlite:]
    ]


def _start(order: Order) -> subprocess.Popen[str]:
    words = [
        *("--seed", str(order.seed), "--seconds-max", str(order.seconds_max)),
        *("--stories", str(order.stories_max), "--life", str(order.life_max_s)),
        *("--kills", str(order.kills), "--per-point", str(order.per_point), "--plant", order.plant),
        *(("--database", order.database) if order.database else ()),
        *(("--only", *order.only) if order.only else ()),
    ]
    return start("tests.trust.kills.series", *words)


def _report(killer: subprocess.Popen[str]) -> Report:
    said, _ = killer.communicate()
    if killer.returncode != 0:
        return Report("none", failures=[f"a killing process ended with {killer.returncode}"])
    return Report(**json.loads(said.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds-max", type=float, default=math.inf, help="stop after so long, incomplete")
    parser.add_argument("--stories", type=int, default=1_000_000, help="at most so many")
    parser.add_argument("--life", type=float, default=30.0, help="a victim that lives longer hangs")
    parser.add_argument("--kills", type=int, default=100, help="go on until there were so many")
    parser.add_argument("--per-point", type=int, default=0, help="go on until each point had so many")
    parser.add_argument("--database", help="PostgreSQL server instead of SQLite")
    parser.add_argument("--plant", default="", help="a bug to put in")
    parser.add_argument("--only", nargs="*", default=(), help="these points, no others")
    said: Any = parser.parse_args()
    order = Order(
        seed=said.seed,
        kills=said.kills,
        per_point=said.per_point,
        seconds_max=said.seconds_max,
        database=said.database,
        plant=said.plant,
        stories_max=said.stories,
        only=tuple(said.only),
        life_max_s=said.life,
    )
    print(json.dumps(asdict(kill_for(order))))


if __name__ == "__main__":
    main()
