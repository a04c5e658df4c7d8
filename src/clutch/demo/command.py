"""`clutch demo`: find or create the job, run it to its end, print the report."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clutch.cli import INTERRUPTED
from clutch.core import ids
from clutch.core.model import NO_SESSION, Outcome, Reason
from clutch.core.text.format import plain_json
from clutch.demo import job as jobs
from clutch.demo.job import SESSION, Account, DemoJob, account_of, lines
from clutch.demo.supervisor import Silent, Supervisor, View, kills_of, view_on
from clutch.demo.worker import LIVES, STATS
from clutch.errors import ClutchError, InvalidInput
from clutch.offline_reader import looking_at
from clutch.surfaces import discovery
from clutch.transactions.read import timeline, transcripts
from clutch.transactions.read.timeline import Figures
from clutch.transactions.read.transcripts import TimelineRow, TreeRow
from clutch.wiring import default_state_directory, findings_of

# --------------------------------------------------------------------------------------------------
# The figures of a finished demo, counted from the database and from the records outside of it.

SCHEMA = "clutch.demo/1"
KILLS_WANTED_MIN = 5  #: in flight; fewer prove little


@dataclass(frozen=True, slots=True)
class Ledger:
    """The state of the tasks, as the database has it."""

    tree: Sequence[TreeRow]
    timeline: Sequence[TimelineRow]
    figures: Figures
    results: Mapping[int, str]

    @property
    def findings(self) -> list[dict[str, Any]]:
        return [
            {"task_id": ids.task_id(row.task_id), "label": row.label} | asdict(one)
            for row in self.tree
            for one in findings_of(self.results.get(row.task_id, ""))
        ]

    @property
    def resumes(self) -> list[dict[str, Any]]:
        return [
            {"task_id": ids.task_id(line.task_id), "step": int(line.detail)}
            for line in self.timeline
            if line.cause == Reason.RESUMED
        ]


def ledger_of(state: Path) -> Ledger:
    with looking_at(state) as look:
        root = look(transcripts.session_id, SESSION) or NO_SESSION
        return Ledger(
            look(transcripts.tree, root),
            look(transcripts.timeline, root),
            look(timeline.figures, root),
            look(timeline.frozen_results, root),
        )


def report(job: DemoJob, wall_s: float, plain: Ledger | None) -> dict[str, Any]:
    """Return the report. `plain` is the same work without chaos, to compare the findings with."""
    ledger, heard = ledger_of(job.state), account_of(job.state)
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "ok": False,
        "model": ", ".join(ledger.figures.models),
        "dir": str(job.folder),
        **_counted(ledger, heard),
        "findings": ledger.findings,
        "answer": ledger.figures.replies[-1] if ledger.figures.replies else None,
        "wall_s": round(wall_s, 2),
        "state_dir": str(job.state),
        **_cost(job, len(ledger.tree)),
    }
    if plain is not None:
        told |= _chaos(job, ledger, heard, plain)
    told["problems"] = list(problems(told))
    told["ok"] = not told["problems"]
    return told


def _counted(ledger: Ledger, heard: Account) -> dict[str, Any]:
    tasks = {ids.task_id(row.task_id) for row in ledger.tree}
    outcomes = Counter(row.outcome for row in ledger.tree)
    deliveries = Counter(row.delivery for row in ledger.tree)
    return {
        "tasks": len(tasks),
        "max_depth": max((row.depth for row in ledger.tree), default=0),
        "outcomes": {outcome.value: outcomes[outcome] for outcome in Outcome},
        "delivered": deliveries["delivered"],
        "undelivered": deliveries["undelivered"],
        "lost": sum(not heard.told.get(task_id) for task_id in tasks | heard.accepted),
        "twice": sum(max(0, count - 1) for count in heard.told.values()),
        "parent_turns": ledger.figures.root_turns,
        "tool_calls": ledger.figures.tool_calls,
    }


def _cost(job: DemoJob, tasks: int) -> dict[str, Any]:
    """Return the cost per task; unknown if a worker was killed, because its counters are lost."""
    stats = _stats(job.state) if len(lines(job.state / LIVES)) == 1 else None
    counters = {"transactions_per_task": "transactions", "statements_per_task": "statements"}
    return {name: round(stats[key] / tasks, 1) if stats and tasks else None for name, key in counters.items()}


def _stats(state: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((state / STATS).read_text())
    return read


def _chaos(job: DemoJob, ledger: Ledger, heard: Account, plain: Ledger) -> dict[str, Any]:
    kills = kills_of(job.state)
    return {
        "kills": len(kills),
        "kills_in_flight": sum(kill["in_flight"] > 0 for kill in kills),
        "resumed": len(ledger.resumes),
        "resumes": ledger.resumes,
        "repeated_model_calls": heard.repeated_calls,
        "repeated_unsafe_tools": heard.repeated_notes,
        "same_findings": _comparable(ledger) == _comparable(plain),
    }


def _comparable(ledger: Ledger) -> list[tuple[Any, ...]]:
    return sorted((one["label"], one["file"], one["line"], one["text"]) for one in ledger.findings)


def problems(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield why this run is not ok."""
    if told["outcomes"]["ok"] != told["tasks"]:
        yield "not every task ended ok"
    if told["delivered"] != told["tasks"]:
        yield "not every result was delivered"
    if not told["answer"]:
        yield "the main agent gave no answer"
    for name in ("lost", "twice", "undelivered", "repeated_unsafe_tools"):
        if told.get(name):
            yield f"{name}: {told[name]}"
    # Without tasks there is nothing to hit.
    if told["tasks"] and told.get("kills_in_flight", KILLS_WANTED_MIN) < KILLS_WANTED_MIN:
        yield f"only {told['kills_in_flight']} kills in flight; fewer than {KILLS_WANTED_MIN} prove little"
    if not told.get("same_findings", True):
        yield "the findings differ from those without chaos; did the folder change meanwhile?"


ERROR, USAGE = 1, 2
FRESH = "clutch-demo-"  #: prefix of state directories without --state
PLAIN = "without-chaos"  #: the state directory of the comparison, inside that of a chaos run


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the command line."""

    folder: str | None
    seed: int
    state: str | None
    chaos: bool
    kills: int | None
    resume: bool
    as_json: bool


def run(wishes: DemoOptions) -> int:
    """Run the command and return its exit code."""
    with ExitStack() as held:
        try:
            job = find_job(wishes) if wishes.resume else new_job(wishes)
            held.enter_context(jobs.alone(job.state))
        except InvalidInput as error:
            return _failed("invalid_input", error, USAGE)
        except OSError as error:
            return _failed("internal", error, ERROR)
        return _seen_through(job, as_json=wishes.as_json)


def _seen_through(job: DemoJob, *, as_json: bool) -> int:
    view: View = Silent() if as_json else view_on(sys.stderr)
    try:
        told = see_through(job, view)
    except KeyboardInterrupt:
        view.close()
        print(f"Interrupted. Nothing is lost; finish it with:\n  {resume_command(job)}", file=sys.stderr)
        return INTERRUPTED
    except ClutchError as error:
        return _failed("internal", error, ERROR)
    finally:
        view.close()
    if not as_json:
        print("", told["answer"], "", *told["problems"], sep="\n", file=sys.stderr)
    print(plain_json(json.dumps(told, ensure_ascii=False)), flush=True)
    if sys.stdout.isatty() and not as_json:
        print("", closing(told), sep="\n", file=sys.stderr)
    return 0 if told["ok"] else ERROR


def closing(told: Mapping[str, Any]) -> str:
    """Return the closing lines for a terminal, after the JSON object."""
    ended = ", ".join(f"{count} {word}" for word, count in told["outcomes"].items() if count)
    return (
        f"{told['tasks']} tasks in {told['wall_s']:.0f} s: {ended}; {told['delivered']} delivered, "
        f"{told['lost']} lost, {told['twice']} told twice. The line above says it all, as JSON.\n"
        f"Next: {shlex.join([*_this_program(), 'chat'])}"
    )


def resume_command(job: DemoJob) -> str:
    """Return a command line that works in any directory."""
    return shlex.join([*_this_program(), "demo", "--resume", "--state", str(job.state)])


def _this_program() -> list[str]:
    """Return `clutch` if that is this installation, else its path."""
    ours, found = Path(sys.executable).with_name("clutch"), shutil.which("clutch")
    if found and Path(found).resolve() == ours.resolve():
        return ["clutch"]
    return [str(ours)] if ours.exists() else [sys.executable, "-P", "-m", "clutch"]


def _failed(code: str, error: Exception, exit_code: int) -> int:
    print(f"clutch demo: {error}", file=sys.stderr)
    said: dict[str, Any] = {"code": code, "message": str(error)}
    if isinstance(error, InvalidInput):
        said |= {"field": error.field, "rule": error.rule}
    print(plain_json(json.dumps({"schema": SCHEMA, "ok": False, "error": said}, ensure_ascii=False)))
    return exit_code


# --- which job --------------------------------------------------------------------------------------------


def new_job(wishes: DemoOptions) -> DemoJob:
    folder = _path("--dir", "." if wishes.folder is None else wishes.folder)
    if not folder.is_dir():
        raise InvalidInput("--dir", f"{folder} is not a directory")
    if wishes.kills is not None and not wishes.chaos:
        raise InvalidInput("--kills", "goes with --chaos")
    state = _new_state(wishes.state, folder)
    job = DemoJob(state, folder, wishes.seed, is_fresh=wishes.state is None)
    if wishes.chaos:
        kills = wishes.kills or 0
        job = replace(job, kills=kills, pace_s=jobs.chaos_pace_s(kills), slow=1.0)
    job.save()
    # Where the home is not writable, the printed command names the directory.
    with suppress(OSError):
        jobs.remember(default_state_directory(), state)
    return job


def _path(option: str, given: str) -> Path:
    if not given.strip():
        raise InvalidInput(option, "must name a directory")
    return Path(given).resolve()


def _new_state(wished: str | None, folder: Path) -> Path:
    if wished is None:
        _forget_last()
        return _fresh_state(folder)
    state = _path("--state", wished)
    if state.is_relative_to(folder):
        raise InvalidInput(
            "--state", "must not lie inside the surveyed folder: the survey would survey itself"
        )
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(state.iterdir())
    except OSError as error:
        why = "is not a directory" if state.is_file() else f"cannot be used: {error.strerror}"
        raise InvalidInput("--state", f"{state} {why}") from error
    if not is_empty:
        raise InvalidInput("--state", f"{state} is not empty; --resume finishes a demo that is kept there")
    return state


def _forget_last() -> None:
    """Remove the last finished demo, which was kept until the next one."""
    last = jobs.remembered(default_state_directory())
    # A damaged demo is kept.
    with suppress(InvalidInput):
        job = None if last is None else jobs.load(last)
        if job is not None and job.is_fresh and _is_finished(job) and discovery.find(job.state) is None:
            shutil.rmtree(job.state, ignore_errors=True)


def _fresh_state(folder: Path) -> Path:
    """Create a state directory outside of the surveyed folder, which may be the folder of temporary files."""
    for place in (Path(tempfile.gettempdir()).resolve(), default_state_directory().resolve() / "demos"):
        if not place.is_relative_to(folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=FRESH, dir=place))
    raise InvalidInput("--state", f"name a directory outside of {folder}: the survey would survey itself")


def find_job(wishes: DemoOptions) -> DemoJob:
    if wishes.folder is not None or wishes.chaos or wishes.kills is not None:
        raise InvalidInput("--resume", "goes on with the job as it was; give it nothing but --state")
    home = default_state_directory()
    state = jobs.remembered(home) if wishes.state is None else _path("--state", wishes.state)
    if state is None:
        raise InvalidInput("--resume", "no demo is remembered; name its directory with --state")
    job = jobs.load(state)
    if job is None:
        raise InvalidInput("--state", f"there is no demo in {state}")
    return job


# --- doing it ---------------------------------------------------------------------------------------------


def see_through(job: DemoJob, view: View) -> dict[str, Any]:
    started_at = time.monotonic()
    if _is_finished(job):
        view.say(f"This demo is finished already; its report once more. State: {job.state}")
    else:
        view.say(f"Surveying {job.folder} with a scripted model, not an LLM. State: {job.state}")
        Supervisor(job, view).run()
    plain = _without_chaos(job) if job.is_chaos else None
    return report(job, time.monotonic() - started_at, plain)


def _without_chaos(job: DemoJob) -> Ledger:
    """Run the same survey without kills and without delays."""
    state = job.state / PLAIN
    state.mkdir(mode=0o700, exist_ok=True)
    plain = DemoJob(state, job.folder, job.seed, pace_s=0.0)
    plain.save()
    if not _is_finished(plain):
        Supervisor(plain, Silent()).run()
    return ledger_of(state)


def _is_finished(job: DemoJob) -> bool:
    """Whether the worker has written its statistics, the last thing it does."""
    return (job.state / STATS).exists()
