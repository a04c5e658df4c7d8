"""What a demo shows and reports, read from the database and from the records outside of it."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clutch.core import ids
from clutch.core.model import NO_SESSION, REASONS, Delivery, Outcome, Phase, Reason
from clutch.core.status import delivery_text, doing_now, elapsed_s, status_of, task_status
from clutch.core.text.format import counted, duration, money, tokens, visible
from clutch.core.text.tasks import summary as result_summary
from clutch.core.views import Tally, TaskView
from clutch.demo.job import REPORT, SESSION, Account, DemoJob, account_of
from clutch.offline_reader import Look
from clutch.transactions.read import costs, tasks, timeline, transcripts
from clutch.transactions.read.costs import By
from clutch.transactions.read.timeline import Figures
from clutch.transactions.read.transcripts import TimelineRow
from clutch.wiring import findings_of

SCHEMA = "clutch.demo/1"
KILLS_WANTED_MIN = 5  #: of chaos, in flight; fewer prove little
ANSWER = "answer.txt"
SUMMARY_CHARS_MAX = 160


@dataclass(frozen=True, slots=True)
class Picture:
    """The tasks of a demo at one moment."""

    tasks: Sequence[TaskView]
    timeline: Sequence[TimelineRow]
    results: Mapping[int, str]  #: of ended tasks, by task
    figures: Figures
    used: Tally  #: by the whole tree, the main agent included

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [
            {"task_id": ids.task_id(task.task_id), "label": task.label} | asdict(one)
            for task in self.tasks
            for one in findings_of(self.results.get(task.task_id, ""))
        ]

    @property
    def resumes(self) -> list[tuple[int, int]]:
        """Return the task and the step of each resume."""
        rows = (row for row in self.timeline if row.cause == Reason.RESUMED)
        return [(row.task_id, int(row.detail)) for row in rows]


def picture_of(look: Look) -> Picture:
    root = look(transcripts.session_id, SESSION) or NO_SESSION
    used = look(costs.spending, By.ROOT)
    return Picture(
        sorted(look(tasks.below, root), key=lambda task: task.task_id),
        look(transcripts.timeline, root),
        look(timeline.frozen_results, root),
        look(timeline.figures, root),
        used[0][1] if used else Tally(),
    )


# ---- while it works --------------------------------------------------------------------------------------


def news(picture: Picture, seen: int) -> Iterator[str]:
    """Yield the timeline after the first `seen` entries, without internal steps."""
    labels = {task.task_id: task.label for task in picture.tasks}
    for row in picture.timeline[seen:]:
        if text := _happened(row, picture.results.get(row.task_id, "")):
            yield f"{labels.get(row.task_id, '')}: {text}"


def _happened(row: TimelineRow, result: str) -> str | None:
    if row.cause == Reason.RESUMED:
        return f"resumed at step {row.detail}"
    if row.from_phase == row.to_phase or row.to_phase in ("ending", "completed"):
        return None
    if row.to_phase == "cleanup_pending":
        return "result delivered"
    outcome = None if row.outcome is None else Outcome(row.outcome)
    status = status_of(Phase(row.to_phase), REASONS[row.cause], outcome)
    summary = " ".join(result_summary(result).split()) if row.to_phase == "announcing" else ""
    return f"{status}: {visible(summary, SUMMARY_CHARS_MAX)}" if summary else status.value


def tree_lines(picture: Picture) -> Iterator[tuple[str, str]]:
    """Yield each line of the tree with its style."""
    below: dict[int | None, list[TaskView]] = {}
    for task in picture.tasks:
        below.setdefault(task.parent_task_id, []).append(task)
    steps = dict(picture.resumes)

    def lines(parent: int | None, before: str) -> Iterator[tuple[str, str]]:
        for task in below.get(parent, []):
            is_last = task is below[parent][-1]
            text = one_line(task, steps.get(task.task_id))
            yield f"{before}{'└── ' if is_last else '├── '}{text}", _style(task)
            yield from lines(task.task_id, before + ("    " if is_last else "│   "))

    yield "main agent", "bold"
    yield from lines(None, "")


def one_line(task: TaskView, step: int | None) -> str:
    """`done · outline · 2s · 4k tok · delivered · resumed at step 3`"""
    elapsed = elapsed_s(task)
    doing = doing_now(task).at(task.at) if task.outcome is None else delivery_text(task.delivery)
    parts = (
        task_status(task).value,
        visible(task.label, SUMMARY_CHARS_MAX),
        "" if elapsed is None else duration(elapsed),
        f"{tokens(task.own.tokens)} tok",
        "" if step is None else f"resumed at step {step}",
        doing,
    )
    return " · ".join(part for part in parts if part)


def _style(task: TaskView) -> str:
    if task.outcome is None:
        return "cyan" if task.phase is Phase.RUNNING else ""
    return "green" if task.outcome is Outcome.OK else "red"


# ---- afterwards ------------------------------------------------------------------------------------------


def report(
    job: DemoJob, picture: Picture, kills: Sequence[Mapping[str, Any]], plain: Picture | None
) -> dict[str, Any]:
    """Return the summary. `plain` is the same work without chaos, to compare the findings with."""
    records = account_of(job.state)
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "ok": False,
        "model": ", ".join(picture.figures.models),
        "dir": str(job.folder),
        **_counted(picture, records),
        "findings": picture.findings,
        "answer": picture.figures.replies[-1] if picture.figures.replies else None,
        "wall_s": None,
        "state_dir": str(job.state),
        "kills": len(kills),
        "kills_in_flight": sum(kill["in_flight"] > 0 for kill in kills),
        "resumed": len(picture.resumes),
        "resumes": [{"task_id": ids.task_id(task), "step": step} for task, step in picture.resumes],
        "repeated_model_calls": records.repeated_calls,
        "repeated_unsafe_tools": records.repeated_notes,
    }
    if plain is not None:
        made["same_findings"] = _comparable(picture) == _comparable(plain)
    made["problems"] = list(problems(made))
    made["ok"] = not made["problems"]
    return made


def _counted(picture: Picture, records: Account) -> dict[str, Any]:
    task_ids = {ids.task_id(task.task_id) for task in picture.tasks}
    outcomes = Counter(task.outcome for task in picture.tasks)
    deliveries = Counter(task.delivery.state for task in picture.tasks)
    return {
        "tasks": len(task_ids),
        "max_depth": max((task.depth for task in picture.tasks), default=0),
        "outcomes": {outcome.value: outcomes[outcome] for outcome in Outcome},
        "delivered": deliveries[Delivery.DELIVERED],
        "undelivered": deliveries[Delivery.UNDELIVERED],
        "lost": sum(not records.delivered.get(task_id) for task_id in task_ids | records.accepted),
        "twice": sum(max(0, count - 1) for count in records.delivered.values()),
        "parent_turns": picture.figures.root_turns,
        "tool_calls": picture.figures.tool_calls,
    }


def _comparable(picture: Picture) -> list[tuple[Any, ...]]:
    return sorted((one["label"], one["file"], one["line"], one["text"]) for one in picture.findings)


def problems(made: Mapping[str, Any]) -> Iterator[str]:
    """Yield why this run is not ok."""
    if made["outcomes"]["ok"] != made["tasks"]:
        yield "not every task ended ok"
    if made["delivered"] != made["tasks"]:
        yield "not every result was delivered"
    if not made["answer"]:
        yield "the main agent gave no answer"
    for name in ("lost", "twice", "undelivered", "repeated_unsafe_tools"):
        if made[name]:
            yield f"{name}: {made[name]}"
    if "same_findings" not in made:
        return
    # Without tasks there is nothing to hit.
    if made["tasks"] and made["kills_in_flight"] < KILLS_WANTED_MIN:
        yield f"only {made['kills_in_flight']} kills in flight; fewer than {KILLS_WANTED_MIN} prove little"
    if not made["same_findings"]:
        yield "the findings differ from those without chaos; did the folder change meanwhile?"


def people_text(made: Mapping[str, Any], used: Tally) -> str:
    """Return the report for people: what was done, what the kill did, where the rest is and what to type next."""
    state = made["state_dir"]
    ended = ", ".join(f"{count} {word}" for word, count in made["outcomes"].items() if count)
    cost = "no cost" if used.usd is None else money(used.usd)
    resumed = [one["task_id"] for one in made["resumes"]]
    figures = f"{counted(len(made['findings']), 'finding')}, {counted(made['tool_calls'], 'tool call')}"
    lines = [
        f"Surveyed {made['dir']} in {made['wall_s']:.0f} s with {counted(made['tasks'], 'subagent')}"
        + (f": {ended}." if ended else "."),
        f"{figures}, {tokens(used.tokens)} tokens, {cost} (demo model, no API key).",
        *_kill_lines(made),
        f"Results: {made['delivered']} delivered, {made['lost']} lost, {made['twice']} delivered twice.",
        *(f"NOT OK: {problem}" for problem in made["problems"]),
        "",
        f"Answer     {state}/{ANSWER} (and {REPORT})",
        *(f"Timeline   {command('why', task_id, '--state', state)}" for task_id in resumed[:1]),
        f"Dashboard  {command('open', '--state', state)}",
        f"  stop it  {command('stop', '--state', state)}",
        f"Your turn  {command('chat')} (for a real model first: {command('init')})",
        f"Remove     {shlex.join(['rm', '-r', state])}",
    ]
    return "\n".join(lines)


def _kill_lines(made: Mapping[str, Any]) -> Iterator[str]:
    if made["kills"]:
        times = "once" if made["kills"] == 1 else f"{made['kills']} times"
        calls = counted(made["repeated_model_calls"], "model call")
        effects = counted(made["repeated_unsafe_tools"], "effect")
        yield f"Killed {times} (kill -9): {made['resumed']} resumed; repeated: {calls}, {effects}."


def command(*words: str, is_anywhere: bool = False) -> str:
    """Return a command line of this installation; `is_anywhere`: it works in any directory."""
    ours, found = Path(sys.executable).with_name("clutch"), shutil.which("clutch")
    if found and Path(found).resolve() == ours.resolve():
        program = ["clutch"]
    elif ours.exists():
        is_near = not is_anywhere and ours.is_relative_to(Path.cwd())
        program = [str(ours.relative_to(Path.cwd()) if is_near else ours)]
    else:
        program = [sys.executable, "-P", "-m", "clutch"]
    return shlex.join([*program, *words])
