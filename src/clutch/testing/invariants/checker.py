"""Checks every invariant after every commit and counts the evaluations of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from clutch.core.policy import Policy
from clutch.testing.invariants import lockdep, transcripts, transitions, wake
from clutch.testing.invariants.history import Change, History
from clutch.testing.invariants.moves import MOVES
from clutch.testing.invariants.probes import all_probes
from clutch.testing.invariants.registry import ABOUT, TRANSITIONS, CheckContext, Transition
from clutch.testing.invariants.retention import KEPT
from clutch.testing.invariants.shadow import Shadow, as_list
from clutch.testing.invariants.simulated import SIMULATED
from clutch.testing.simulation.disk import Made, SimDisk
from clutch.testing.simulation.observer import OBSERVED
from clutch.transactions.invariants import NEEDS
from clutch.transactions.invariants.core import (
    BACKGROUND_QUERIES,
    LEAVING,
    QUERIES,
    SPENDING,
    USER_QUERIES,
    InvariantQuery,
    InvariantScope,
    filled,
)

# Importing these modules registers their invariants.
_REGISTERED = (lockdep, transcripts, transitions, wake)

_TABLES = ("sessions", "tasks", "letters", "runs")
_TOUCHED = "IN (SELECT value FROM json_each(?1))"
_ALL = (*QUERIES, *MOVES, *KEPT, *LEAVING, *SPENDING, *USER_QUERIES, *NEEDS, *BACKGROUND_QUERIES, *SIMULATED)


class _ScopedQueries:
    """All queries of one scope, ready to be asked."""

    def __init__(self, scope: InvariantScope, policy: Policy, **known: str) -> None:
        asked = [query for query in _ALL if query.scope is scope]
        self.counts = Counter(name for query in asked for name in (query.invariant, query.also) if name)
        self.times = 0
        self.asked: list[tuple[str, InvariantQuery]] = [
            (filled(query, policy, touched=_TOUCHED, **known), query) for query in asked
        ]


class InvariantChecker:
    """`report` is called with the name of the violated invariant and what is wrong."""

    def __init__(self, disk: SimDisk, policy: Policy, report: Callable[[str, str], None]) -> None:
        self._disk, self._policy, self._report = disk, policy, report
        self.history = History(disk)
        self._shadow = Shadow(disk)
        self._times: Counter[Transition] = Counter()
        self._calm = Counter[str]()
        self._context = CheckContext(disk, self.history)
        self._queries = {
            scope: _ScopedQueries(scope, policy)
            for scope in InvariantScope
            if scope is not InvariantScope.CALM
        }

    def check(self, made: Sequence[Made], now: float) -> Change:
        change = self.history.change(made, now)
        self._shadow.hear(made)
        self._check_transitions(change)
        if moved := change.moved():
            self._ask(self._queries[InvariantScope.MOVE], moved)
        if refenced := change.refenced():
            self._ask(self._queries[InvariantScope.FENCE], refenced)
            if touched := change.cut_off():
                self._ask(self._queries[InvariantScope.CUT], touched)
        if touched := change.tasks_to_check():
            self._ask(self._queries[InvariantScope.TASK], touched)
        if touched := change.lives_to_check():
            self._ask(self._queries[InvariantScope.LIFE], touched)
        if touched := change.sessions_to_check():
            self._ask(self._queries[InvariantScope.SESSION], touched)
            self.history.note_touched(touched)
        if touched := change.requesters_to_count():
            self._ask(self._queries[InvariantScope.BIRTH], touched)
        if read := change.read():
            self._ask(self._queries[InvariantScope.READ], read)
        if steered := change.steered():
            self._ask(self._queries[InvariantScope.STEER], steered)
        if change.gone:
            self._ask(self._queries[InvariantScope.UNDONE], change.gone)
        if purses := change.purses():
            self._ask_about(self._queries[InvariantScope.PURSE], (json.dumps(sorted(purses)),))
        for write in change.guarded():
            self._ask_about(self._queries[InvariantScope.GUARDED], write)
        if change.has_new_owners:
            self._ask(self._queries[InvariantScope.OWNERS], ())
        self.history.note_claims(change)
        self._shadow.remember(moved, refenced, change.gone)
        return change

    @property
    def evaluations(self) -> Counter[str]:
        """How often each invariant was evaluated. Counted by group, because counting takes time as well."""
        total = Counter(self._calm)
        for queries in self._queries.values():
            total.update({name: count * queries.times for name, count in queries.counts.items()})
        for transition, times in self._times.items():
            total[transition.invariant] += times
        return total

    @property
    def asked(self) -> frozenset[str]:
        """The sentences that were asked about at all."""
        queries = {
            query.promise for queries in self._queries.values() if queries.times for _, query in queries.asked
        }
        calm = (
            {query.promise for query in _ALL if query.scope is InvariantScope.CALM} if self._calm else set()
        )
        return frozenset(queries | calm | {transition.promise for transition in self._times})

    def check_calm(self, now: float, alive: Iterable[int]) -> None:
        """`alive`: the workers that are. The lease of a dead one may reach far ahead if its clock did."""
        self._shadow.look(now)
        living = f"IN ({', '.join(str(int(one)) for one in alive)})"
        queries = _ScopedQueries(InvariantScope.CALM, self._policy, now=repr(now), alive=living)
        self._ask(queries, ())
        self._calm.update(queries.counts)

    def check_end(self) -> None:
        self._ask(self._queries[InvariantScope.END], ())

    def _check_transitions(self, change: Change) -> None:
        for transition in self._asked_about(change):
            self._times[transition] += 1
            for wrong in transition.check(change, self._context):
                self._report(transition.invariant, f"{transition.promise}: {wrong}")

    def _asked_about(self, change: Change) -> Iterator[Transition]:
        for table in _TABLES:
            if getattr(change, table):
                yield from ABOUT.get(table, ())
        for name in dict.fromkeys(made.name for made in change.made):
            yield from ABOUT.get(name, ())

    def _ask(self, queries: _ScopedQueries, touched: Iterable[int]) -> None:
        self._ask_about(queries, (as_list(touched),))

    def _ask_about(self, queries: _ScopedQueries, parameters: tuple[Any, ...]) -> None:
        queries.times += 1
        for sql, query in queries.asked:
            for row_id, wrong in self._disk.ask(sql, parameters if "?" in sql else ()):
                self._report(query.invariant, f"{query.promise}: {row_id} {wrong}")


def all_sentences() -> set[str]:
    """The sentences of all invariants of the tables."""
    return {query.promise for query in _ALL} | {transition.promise for transition in TRANSITIONS}


def all_names() -> set[str]:
    """The names of all invariants that are checked somewhere."""
    return (
        {name for query in _ALL for name in (query.invariant, query.also) if name}
        | {transition.invariant for transition in TRANSITIONS}
        | set(OBSERVED)
        | set(all_probes())
    )
