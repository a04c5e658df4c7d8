"""Which of the sessions that are due get the free slots of a lane.

1. **Interrupted runs** go first: they are work that is half done.
2. **No session starves.** The one that has waited longest is passed over at most `PASSED_MAX` times in a row, then it
   goes. So a session with n older ones goes within (n + 1) * (PASSED_MAX + 1) slots, whatever the rules below prefer.
3. **Fair share** decides between shares (tenants, projects): the one with the fewest sessions at work for its weight
   goes first, of equal ones the one that has waited longest.
4. **Priority** decides inside a share: high before normal before low. It takes nothing from other shares.
5. Within one share and priority the root with the fewest sessions at work goes first, there the session that has
   waited longest."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

DEFAULT_SHARE: Final = "default"  #: of every task without a key
ANY_SHARE: Final = "*"  #: in the weights: each share that has none of its own
SHARE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,63}")
WEIGHT_MAX: Final = 1000  #: more slots than a lane has cannot be divided more finely

#: A preference of seven to one is enough for any urgent work, and everything else still gets an eighth of the slots.
PASSED_MAX: Final = 7


class Priority(StrEnum):
    """Which tasks of a share start first."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


#: As stored: what goes first is less.
RANKS: Final[Mapping[Priority, int]] = {Priority.HIGH: 0, Priority.NORMAL: 1, Priority.LOW: 2}
PRIORITIES: Final[Mapping[int, Priority]] = {rank: priority for priority, rank in RANKS.items()}
NORMAL: Final = RANKS[Priority.NORMAL]


class DueSession(NamedTuple):
    due: float  #: 0: its run was interrupted
    id: int
    root_id: int
    share: str = DEFAULT_SHARE
    rank: int = NORMAL  #: of its priority

    @property
    def queue(self) -> Queue:
        return Queue(self.rank, self.share)


class Queue(NamedTuple):
    """The sessions of one share and priority."""

    rank: int
    share: str

    def __str__(self) -> str:
        return f"{self.rank} {self.share}"


class Root(NamedTuple):
    """A tree of sessions, as far as it belongs to one share."""

    share: str
    id: int


Working: TypeAlias = Mapping[Root, int]  #: sessions that have a slot
Weights: TypeAlias = Mapping[str, int]


def weight(weights: Weights, share: str) -> int:
    return weights.get(share, weights.get(ANY_SHARE, 1))


def by_share(working: Working) -> Counter[str]:
    counted: Counter[str] = Counter()
    for root, number in working.items():
        counted[root.share] += number
    return counted


class Chosen(NamedTuple):
    sessions: list[DueSession]  #: in the order in which they go
    passed: int  #: how often in a row the session that has waited longest was passed over


def choose(
    waiting: Iterable[DueSession], working: Working, weights: Weights, count: int, *, passed: int = 0
) -> Chosen:
    """Return at most `count` sessions. One that gets a slot counts as at work for those behind it."""
    line = _Line(sorted(set(waiting)), working, weights)
    chosen: list[DueSession] = []
    while line and len(chosen) < count:
        oldest = line.oldest()
        if oldest.due == 0:
            first = line.preferred(is_interrupted=True)
        else:
            first = oldest if passed >= PASSED_MAX else line.preferred()
            passed = 0 if first == oldest else passed + 1
        line.take(first)
        chosen.append(first)
    return Chosen(chosen, passed)


class _Line:
    """Who waits, by root and priority; each in the order of waiting, so that only the first of each is compared."""

    def __init__(self, waiting: Sequence[DueSession], working: Working, weights: Weights) -> None:
        self._weights = weights
        self._shares, self._roots = by_share(working), Counter(working)
        self._queues: dict[tuple[Root, int], deque[DueSession]] = defaultdict(deque)
        for session in waiting:
            self._queues[_place(session)].append(session)

    def __bool__(self) -> bool:
        return bool(self._queues)

    def oldest(self) -> DueSession:
        return min(queue[0] for queue in self._queues.values())

    def preferred(self, *, is_interrupted: bool = False) -> DueSession:
        first: dict[str, tuple[int, int, DueSession]] = {}
        since: dict[str, float] = {}
        for (root, rank), queue in self._queues.items():
            if is_interrupted and queue[0].due:
                continue
            rival = (rank, self._roots[root], queue[0])
            first[root.share] = min(rival, first.get(root.share, rival))
            since[root.share] = min(queue[0].due, since.get(root.share, queue[0].due))
        share = min(since, key=lambda share: (self._load(share), since[share], share))
        return first[share][2]

    def _load(self, share: str) -> float:
        return self._shares[share] / weight(self._weights, share)

    def take(self, session: DueSession) -> None:
        queue = self._queues[_place(session)]
        queue.popleft()
        if not queue:
            del self._queues[_place(session)]
        self._shares[session.share] += 1
        self._roots[Root(session.share, session.root_id)] += 1


def _place(session: DueSession) -> tuple[Root, int]:
    return Root(session.share, session.root_id), session.rank


# --------------------------------------------------------------------------------------------------
# What a claim must read to choose among all that wait, without reading all that wait.


def wanted(heads: Mapping[Queue, float], working: Working, weights: Weights, count: int) -> list[list[Queue]]:
    """Return the queues that may get one of the slots: those of so many shares, for each by priority.

    `heads`: since when the first session of each queue waits."""
    load, oldest = by_share(working), dict[str, float]()
    for queue, due in heads.items():
        oldest[queue.share] = min(due, oldest.get(queue.share, due))
    shares = sorted(oldest, key=lambda share: (load[share] / weight(weights, share), oldest[share], share))
    return [sorted(queue for queue in heads if queue.share == share) for share in shares[:count]]


def is_settled(waiting: Iterable[DueSession], working: Working, count: int) -> bool:
    """Whether the oldest of a queue are enough to know which go first: so many are of a root without any at work."""
    return len({one.root_id for one in waiting if Root(one.share, one.root_id) not in working}) >= count


#: Queues with more roots than a claim reads, whose positions are remembered; one more, and all begin anew.
POSITIONS_MAX: Final = 64


@dataclass(slots=True)
class Positions:
    """Where the next claim of a lane continues to read: behind the last share of a priority, the last root of a queue.

    Only what is too long to be read at once has a position; from its end it begins anew, so nothing stays hidden."""

    shares: dict[str, str] = field(default_factory=dict)  #: by rank
    roots: dict[str, int] = field(default_factory=dict)  #: by queue

    @staticmethod
    def load(text: str) -> Positions:
        return Positions(**json.loads(text)) if text else Positions()

    def dump(self) -> str:
        if len(self.roots) > POSITIONS_MAX:
            self.roots.clear()
        return json.dumps({"shares": self.shares, "roots": self.roots}) if self.shares or self.roots else ""
