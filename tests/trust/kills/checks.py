"""Was anything lost, delivered twice or done twice? Checked from outside, when a story is over.

What the client was told is on its disk, what the model was asked and shown in its own log, what a tool did in
its own file; the tables are what the product says. They must agree:

    lost            accepted, but gone, without an outcome, or never shown to the model of its requester
    twice           one result stands in two messages of a transcript, or was delivered twice
    unsafe repeats  one call of the tool that must not run twice left two marks
    problems        everything else that must not be: see the names
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clutch.core import ids, messages
from clutch.core.events import Move
from clutch.core.lifecycle import fold
from clutch.core.messages import Results
from clutch.core.model import Outcome, Phase, Reason
from tests.trust.kills.client import LEDGER
from tests.trust.kills.story import ASKED, CLIENT_JOBS, EFFECTS, OUTCOMES, findings, kind_of
from tests.trust.kills.tables import Death, Snapshot

Line = Mapping[str, Any]


@dataclass(slots=True)
class CheckResult:
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    unsafe_repeats: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    accepted: int = 0
    repeated_model_calls: int = 0

    @property
    def complaints(self) -> list[str]:
        named = {
            "lost": self.lost,
            "twice": self.twice,
            "unsafe repeat": self.unsafe_repeats,
            "": self.problems,
        }
        return [f"{name}: {one}".lstrip(": ") for name, found in named.items() for one in found]


@dataclass(frozen=True, slots=True)
class Evidence:
    """`lines` are what the victims said of themselves, with a line {"death": number} for each of `deaths`."""

    look: Snapshot
    lines: Sequence[Line]
    deaths: Sequence[Death]
    accepted: Sequence[Line]
    asked: Sequence[Line]
    effects: Sequence[str]


def evidence(directory: Path, look: Snapshot, lines: Sequence[Line], deaths: Sequence[Death]) -> Evidence:
    accepted, asked = ([*map(json.loads, _read(directory / name))] for name in (LEDGER, ASKED))
    return Evidence(look, lines, deaths, accepted, asked, _read(directory / EFFECTS))


def _read(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


@dataclass(frozen=True, slots=True)
class _Task:
    id: int
    name: str
    above: tuple[str, ...]  #: keys of the sessions above it, its requester first
    phase: str
    outcome: str | None
    delivery: str
    generation: int
    result: str | None
    session_key: str
    kind: str
    error: str | None


def check(evidence: Evidence) -> CheckResult:
    found = CheckResult()
    tasks = {task.name: task for task in _tasks(evidence.look)}
    shown = _shown(evidence.asked)
    _nothing_lost(found, evidence, tasks, shown)
    _nothing_twice(found, evidence, tasks, shown)
    _no_effect_twice(found, evidence)
    _no_call_too_often(found, evidence)
    _nothing_ran_again(found, evidence, tasks.values())
    _timelines_add_up(found, evidence.look, tasks.values())
    for line in evidence.lines:
        if "stuck" in line:
            found.problems.append("not over, and nothing moves any more")
        if "broken" in line:
            found.problems.append(f"an exception nobody caught: {line['broken']}")
    return found


def _tasks(look: Snapshot) -> list[_Task]:
    sessions = {row[0]: row[1:] for row in look.rows("SELECT id, key, parent_id FROM sessions")}
    rows = look.rows("SELECT id, phase, outcome, delivery, generation, result, task, error FROM tasks")
    found = []
    for task_id, phase, outcome, delivery, generation, result, words, error in rows:
        key, parent = sessions[task_id]
        above = []
        while parent is not None:
            above.append(sessions[parent][0])
            parent = sessions[parent][1]
        name, kind = ids.task_id(task_id), kind_of(words)
        found.append(
            _Task(task_id, name, tuple(above), phase, outcome, delivery, generation, result, key, kind, error)
        )
    return found


def _shown(lines: Iterable[Line]) -> dict[str, dict[tuple[str, int], str | None]]:
    """Task → where it was shown (session, place in the transcript) → with which text."""
    shown: dict[str, dict[tuple[str, int], str | None]] = defaultdict(dict)
    for line in lines:
        for task, place, text in line.get("shown", ()):
            shown[task][line["asked"].rpartition(":")[0], place] = text
    return shown


def _nothing_lost(
    found: CheckResult,
    evidence: Evidence,
    tasks: Mapping[str, _Task],
    shown: Mapping[str, Mapping[tuple[str, int], str | None]],
) -> None:
    found.lost += [f"{name} was accepted and is gone" for name in _accepted(found, evidence, tasks)]
    for name, task in tasks.items():
        seen = [text for (session, _), text in shown.get(name, {}).items() if session in task.above]
        if task.outcome is None:
            found.lost.append(f"{name} has no outcome ({task.phase})")
            continue
        if task.outcome not in OUTCOMES[task.kind]:
            found.problems.append(f"{name} ({task.kind}) ended as {task.outcome}: {task.error}")
        if task.delivery in ("skipped", "undelivered"):
            if task.outcome != Outcome.KILLED:
                found.problems.append(f"{name} ({task.outcome}) is {task.delivery} for no reason")
        elif not seen:
            found.lost.append(f"the result of {name} ({task.outcome}, {task.delivery}) was never shown")
        elif seen[0] is not None and seen[0] != task.result:
            found.problems.append(f"{name} was shown as {seen[0]!r}, its result is {task.result!r}")


def _accepted(found: CheckResult, evidence: Evidence, tasks: Mapping[str, _Task]) -> list[str]:
    """The accepted ones that are gone. One key of a client must always name one task."""
    told = {line["task"] for line in evidence.accepted}
    by_key: dict[str, set[str]] = defaultdict(set)
    for line in evidence.accepted:
        if line["accepted_by"] in CLIENT_JOBS:
            by_key[line["accepted_by"]].add(line["task"])
    found.problems += [f"key {key} made {sorted(names)}" for key, names in by_key.items() if len(names) > 1]
    found.accepted = len(told)
    return sorted(told - set(tasks))


def _nothing_twice(
    found: CheckResult,
    evidence: Evidence,
    tasks: Mapping[str, _Task],
    shown: Mapping[str, Mapping[tuple[str, int], str | None]],
) -> None:
    for name, places in shown.items():
        if len(places) > 1:
            found.twice.append(f"{name} was shown at {sorted(places)}")
        if name not in tasks:
            found.problems.append(f"{name} was shown and is not in the tables")
    standing = Counter(
        task
        for kind, body in evidence.look.rows("SELECT kind, body FROM messages WHERE kind = 'input'")
        for task, _, _ in findings([(0, messages.load(kind, body))])
    )
    found.twice += [
        f"{name} stands {count} times in transcripts" for name, count in standing.items() if count > 1
    ]
    delivered = evidence.look.rows(
        "SELECT task_id, COUNT(*) FROM events WHERE to_phase = 'cleanup_pending' AND reason = 'delivered'"
        " GROUP BY task_id HAVING COUNT(*) > 1"
    )
    found.twice += [f"{ids.task_id(task)} was delivered {count} times" for task, count in delivered]


def _no_effect_twice(found: CheckResult, evidence: Evidence) -> None:
    marks = Counter(evidence.effects)
    found.unsafe_repeats += [f"call {key} left {count} marks" for key, count in marks.items() if count > 1]
    for (body,) in evidence.look.rows("SELECT body FROM messages WHERE kind = 'results'"):
        message = messages.load("results", body)
        assert isinstance(message, Results)
        for result in message.results:
            if (
                result.name == "mark"
                and not result.failed
                and result.text.removeprefix("marked ") not in marks
            ):
                found.problems.append(f"the model was told {result.text!r}, and there is no such mark")


def _no_call_too_often(found: CheckResult, evidence: Evidence) -> None:
    """A death costs each run that was open at most the one call it was waiting for."""
    ids = {key: session_id for session_id, key in evidence.look.rows("SELECT id, key FROM sessions")}
    interrupted = Counter(run.session_id for death in evidence.deaths for run in death.open_runs)
    asked = Counter(line["asked"] for line in evidence.asked if "asked" in line)
    repeated: Counter[str] = Counter()
    for call, count in asked.items():
        repeated[call.rpartition(":")[0]] += count - 1
    repeated.subtract(line["stumbled"] for line in evidence.asked if "stumbled" in line)
    # A worker that was declared dead while alive loses its runs too, and comes back under a new number.
    reborn = sum(
        count - 1 for count in Counter(line["pid"] for line in evidence.lines if "up" in line).values()
    )
    for key, count in repeated.items():
        found.repeated_model_calls += max(0, count)
        if count > interrupted[ids[key]] + reborn:
            found.problems.append(
                f"{key} repeated {count} model calls, interrupted {interrupted[ids[key]]} times"
            )


def _nothing_ran_again(found: CheckResult, evidence: Evidence, tasks: Iterable[_Task]) -> None:
    by_key = {task.session_key: task for task in tasks}
    ended: Mapping[int, int] = {}
    since = 0.0
    for line in sorted((line for line in (*evidence.lines, *evidence.asked) if "at" in line), key=_at):
        if "death" in line:
            ended, since = evidence.deaths[line["death"]].ended, line["at"]
        task = by_key.get(line.get("asked", "").rpartition(":")[0])
        if task is not None and line["at"] > since and ended.get(task.id) == task.generation:
            found.problems.append(f"{task.name} had ended and was run again")


def _timelines_add_up(found: CheckResult, look: Snapshot, tasks: Iterable[_Task]) -> None:
    moves: dict[int, list[Move]] = defaultdict(list)
    for task_id, from_phase, to_phase, reason, generation, outcome in look.rows(
        "SELECT task_id, from_phase, to_phase, reason, generation, outcome FROM events ORDER BY task_id, seq"
    ):
        ended = None if outcome is None else Outcome(outcome)
        moves[task_id].append(Move(Phase(from_phase), Phase(to_phase), Reason(reason), generation, ended))
    for task in tasks:
        try:
            phase, generation, outcome = fold(moves[task.id])
        except AssertionError as error:
            found.problems.append(f"timeline of {task.name}: {error}")
            continue
        if (phase, generation, outcome) != (task.phase, task.generation, task.outcome):
            found.problems.append(f"the timeline of {task.name} ends in {phase}, its row says {task.phase}")


def _at(line: Line) -> float:
    return float(line["at"])
