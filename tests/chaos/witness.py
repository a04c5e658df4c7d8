"""Was anything lost, delivered twice, done twice or paid twice? Counted outside of the product.

    the provider     which results stood in which requests, which calls were asked again after their answer
    the marks        a file that a tool appends to
    the client       which tasks it was told are accepted
    the database     triggers of a schema of the run's own note heartbeats and burials on the server's clock;
                     a look every quarter of a second counts the sessions that work, beside the limits of their lanes

At the end the tables must agree with all of them, and the invariants of the product must hold.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from clutch.core import ids
from clutch.store.postgres import PostgresStore
from clutch.testing.providers import How
from clutch.transactions.invariants import broken, standing
from clutch.wiring import SystemClock
from tests.chaos import story
from tests.chaos.driver import Driver
from tests.chaos.fleet import DATABASE, TROUBLE, Fleet
from tests.chaos.plan import FaultKind

LOOK_S: Final = 0.25
#: A heartbeat comes five times per lease. A gateway that missed two in a row may be gone; before that it is not.
FRESH_S: Final = 2 * story.LEASE_S / 5
#: An answer whose commit a fault may have prevented was given so long before its end or after its beginning.
AROUND_S: Final = 1.0
#: After a fault that took the database away, gateways may have lost their leases.
AFTERMATH_S: Final = 2 * story.LEASE_S

#: A gateway knows that it gave up on a request before the provider does.
LEFT_S: Final = 0.25

TRIGGERS: Final = """
CREATE SCHEMA witness;
CREATE TABLE witness.workers(
  number bigserial PRIMARY KEY, at float8 NOT NULL, what text NOT NULL, worker bigint NOT NULL, pid bigint NOT NULL);
CREATE FUNCTION witness.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO witness.workers(at, what, worker, pid)
  SELECT extract(epoch FROM clock_timestamp()), TG_OP, one.id, one.pid
  FROM (SELECT (CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END).*) one;
  RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON workers FOR EACH ROW EXECUTE FUNCTION witness.note();
"""

_LANES: Final = """
SELECT l.name, l.cap, COUNT(s.id) FROM lanes l LEFT JOIN sessions s ON s.lane = l.name AND s.owner IS NOT NULL
GROUP BY l.name, l.cap
"""
_TASKS: Final = """
SELECT t.id, t.task, t.phase, t.outcome, t.delivery, r.key, t.error
FROM tasks t LEFT JOIN sessions r ON r.id = t.requester_id ORDER BY t.id
"""

#: These take a gateway's answer before it is committed.
_LOSE_COMMITS: Final = frozenset(FaultKind) - {
    FaultKind.HELD_SNAPSHOT,
    FaultKind.SLOW_PROVIDER,
    FaultKind.FAILING_PROVIDER,
}


@dataclass(slots=True)
class Findings:
    """Counts of the summary, and a sentence for each thing that must not be."""

    tasks: int = 0
    delivered: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    over_limit: list[str] = field(default_factory=list)
    executed_twice: list[str] = field(default_factory=list)
    live_buried: list[str] = field(default_factory=list)
    paid_twice: Counter[str] = field(default_factory=Counter)  #: by what took the answer
    takeovers: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def complaints(self) -> list[str]:
        named: Mapping[str, Sequence[str]] = {
            "lost": self.lost,
            "twice": self.twice,
            "over limit": self.over_limit,
            "executed twice": self.executed_twice,
            "live buried": self.live_buried,
            "problem": self.problems,
        }
        return [f"{name}: {one}" for name, all_of_it in named.items() for one in all_of_it]


class Witness:
    def __init__(self, fleet: Fleet, driver: Driver) -> None:
        self._fleet, self._driver = fleet, driver
        self.found = Findings()
        self._buried: list[tuple[str, float]] = []  #: gateways that were declared dead, and when

    async def prepare(self) -> None:
        connection = await self._fleet.connect()
        await connection.execute(TRIGGERS)
        await connection.close()

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                lanes = await self._fleet.rows(_LANES)
            except TROUBLE:
                lanes = []
            for name, cap, used in lanes:
                if used > cap:
                    self.found.over_limit.append(f"lane {name} has {used} sessions, and room for {cap}")
            for node in self._fleet.nodes:
                if node.has_ended:
                    self.found.problems.append(f"{node.name} has ended by itself")
                    node.is_up = False
            await asyncio.sleep(LOOK_S)

    async def conclude(self) -> Findings:
        tasks = await self._fleet.rows(_TASKS)
        self._check_tasks(tasks)
        if not self.found.tasks:
            self.found.problems.append("no task was spawned: the run was too short for this machine")
        self._check_children(tasks)
        self._check_marks()
        self._check_burials(
            await self._fleet.rows("SELECT at, what, worker, pid FROM witness.workers ORDER BY number")
        )
        self._check_calls()
        self._check_provider_limit()
        self._measure_takeovers()
        await self._check_invariants()
        self.found.problems += [f"the client was refused {one}" for one in self._driver.refused]
        return self.found

    def _check_tasks(self, tasks: Iterable[Sequence[Any]]) -> None:
        found, shown = self.found, self._fleet.provider.shown
        names = set()
        for number, text, phase, outcome, delivery, requester, error in tasks:
            name = ids.task_id(number)
            names.add(name)
            found.tasks += 1
            line = f"{name} ({text}) is {phase}, {outcome}, {delivery}"
            if outcome is None or delivery != "delivered":
                found.lost.append(line)
            elif requester not in shown.get(name, ()):
                found.lost.append(f"{line}, and {requester} was never shown it")
            else:
                found.delivered += 1
            if outcome not in (None, "ok"):
                found.problems.append(f"{name} ({text}) ended as {outcome}: {error}")
            if len(shown.get(name, ())) > 1:
                found.twice.append(f"{name} was shown to {sorted(shown[name])}")
        found.twice += [f"{name} stood twice in one request" for name in self._fleet.provider.shown_twice]
        for key, answers in self._driver.accepted.items():
            if len(answers) > 1:
                found.twice.append(f"{key} became {sorted(answers)}")
            found.lost += [f"{key}: {one} was accepted and is gone" for one in answers - names]

    def _check_children(self, tasks: Sequence[Sequence[Any]]) -> None:
        """Every job is given out once."""
        jobs = Counter(str(task[1]) for task in tasks)
        self.found.twice += [f"{job} was spawned {times} times" for job, times in jobs.items() if times > 1]
        for task in tasks:
            job = str(task[1]).removeprefix("JOB tree ")
            if job != task[1] and task[3] == "ok":
                self.found.lost += [
                    f"{child} was never spawned" for child in story.children(job) if child not in jobs
                ]

    def _check_marks(self) -> None:
        file = self._fleet.nodes[0].marks
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        marks = Counter(line.split()[0] for line in lines)
        for label, times in marks.items():
            if times > 1:
                who = [line for line in lines if line.split()[0] == label]
                self.found.executed_twice.append(f"mark {label} was made {times} times: {who}")

    def _check_calls(self) -> None:
        """A call that was answered to its end is asked again only where a fault took the answer."""
        for key, asked in self._fleet.provider.ledger.by_key.items():
            for first, second in itertools.pairwise(asked):
                if first.answered_at is None:
                    continue
                causes = self._disturbances(first.node, first.answered_at, second.at)
                self.found.paid_twice.update([" ".join(sorted(causes))])
                if not causes:
                    when = first.answered_at - self._fleet.began_at
                    self.found.problems.append(
                        f"{key} was answered to {first.node} at {when:.2f} and asked again by {second.node}"
                        f" {second.at - first.answered_at:.2f} s later, without a fault"
                    )

    def _disturbances(self, node: str, since: float, until: float) -> set[str]:
        """What may have kept a gateway from a commit. One without its lease cannot commit, whatever took the lease."""
        buried = {
            "lease"
            for name, at in self._buried
            if name == node and since - AFTERMATH_S <= at <= until + AROUND_S
        }
        return buried | {
            one.kind.value
            for one in self._fleet.disturbances
            if one.kind in _LOSE_COMMITS
            and one.node in (None, node)
            and one.since <= until + AROUND_S
            and (one.until is None or one.until + AFTERMATH_S >= since)
        }

    def _check_burials(self, noted: Iterable[Sequence[Any]]) -> None:
        lives = {life.pid: (node, life) for node in self._fleet.nodes for life in node.lives}
        beats: dict[int, float] = {}
        for at, what, worker, pid in noted:
            if what != "DELETE":
                beats[worker] = at
                continue
            node, life = lives[pid]
            self._buried.append((node.name, at))
            age = at - beats.get(worker, -math.inf)
            if age <= FRESH_S and life.was_running(at - story.LEASE_S, at):
                self.found.live_buried.append(
                    f"{node.name} (worker {worker}) at {at - self._fleet.began_at:.2f}, {age:.2f} s after a heartbeat"
                )

    def _check_provider_limit(self) -> None:
        """Requests in flight at the provider. The slots of a gateway that was declared dead belong to the others: its
        old requests do not count from then on."""
        steps: list[tuple[float, int]] = []
        for asked in (one for many in self._fleet.provider.ledger.by_key.values() for one in many):
            ended_at = math.inf if asked.ended_at is None else asked.ended_at
            if asked.how is How.LEFT:
                ended_at = max(asked.at, ended_at - LEFT_S)
            ends = [at for node, at in self._buried if node == asked.node and at >= asked.at]
            steps += [(asked.at, 1), (min([ended_at, *ends]), -1)]
        in_flight = 0
        for at, change in sorted(steps):
            in_flight += change
            if change > 0 and in_flight > story.PROVIDER_CALLS_MAX:
                when = at - self._fleet.began_at
                self.found.over_limit.append(f"the provider has {in_flight} requests in flight at {when:.2f}")

    def _measure_takeovers(self) -> None:
        """From the kill of a gateway to the next request of each call that was in flight."""
        for key, killed_at in self._fleet.interrupted:
            later = [one.at for one in self._fleet.provider.ledger.by_key[key] if one.at > killed_at]
            self.found.takeovers += [later[0] - killed_at] if later else []

    async def _check_invariants(self) -> None:
        dsn = self._fleet.primary.dsn(DATABASE)
        async with PostgresStore(dsn, SystemClock()) as store:
            for query in standing(is_served=True, is_sqlite=False):
                for example in await store.read(broken, query):
                    self.found.problems.append(f"invariant {query.invariant} ({query.promise}): {example}")


def percentile(values: Sequence[float], share: float) -> float | None:
    """None: there are no values."""
    ordered = sorted(values)
    return None if not ordered else round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
