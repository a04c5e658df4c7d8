"""`clutch demo`: find or make the job, see it through, print the report."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clutch.cli import INTERRUPTED
from clutch.cli.demo import job as jobs
from clutch.cli.demo.job import Job
from clutch.cli.demo.report import SCHEMA, Ledger, ledger_of, report
from clutch.cli.demo.supervisor import Supervisor
from clutch.cli.demo.view import Silent, View, view_on
from clutch.errors import ClutchError, InvalidInput
from clutch.wiring import default_state_directory

ERROR, USAGE = 1, 2
PLAIN = "without-chaos"  #: a state directory of its own inside the one of a chaos run


@dataclass(frozen=True, slots=True)
class Wishes:
    """The command line."""

    folder: Path | None
    seed: int
    state: Path | None
    chaos: bool
    kills: int | None
    resume: bool
    as_json: bool


def run(wishes: Wishes) -> int:
    """The exit code."""
    try:
        job = find_job(wishes) if wishes.resume else new_job(wishes)
    except InvalidInput as error:
        return _failed("invalid_input", error, USAGE)
    except OSError as error:
        return _failed("internal", error, ERROR)
    view: View = Silent() if wishes.as_json else view_on(sys.stderr)
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
    if not wishes.as_json:
        print("", told["answer"], "", *told["problems"], sep="\n", file=sys.stderr)
    print(json.dumps(told, ensure_ascii=False), flush=True)
    return 0 if told["ok"] else ERROR


def resume_command(job: Job) -> str:
    return shlex.join(["clutch", "demo", "--resume", "--state", str(job.state)])


def _failed(code: str, error: Exception, exit_code: int) -> int:
    print(f"clutch demo: {error}", file=sys.stderr)
    said: dict[str, Any] = {"code": code, "message": str(error)}
    if isinstance(error, InvalidInput):
        said |= {"field": error.field, "rule": error.rule}
    print(json.dumps({"schema": SCHEMA, "ok": False, "error": said}, ensure_ascii=False))
    return exit_code


# --- which job --------------------------------------------------------------------------------------------


def new_job(wishes: Wishes) -> Job:
    folder = (wishes.folder or Path()).resolve()
    if not folder.is_dir():
        raise InvalidInput("--dir", f"{folder} is not a directory")
    if wishes.kills is not None and not wishes.chaos:
        raise InvalidInput("--kills", "goes with --chaos")
    state = _new_state(wishes.state, folder)
    job = Job(state, folder, wishes.seed)
    if wishes.chaos:
        kills = wishes.kills or 0
        job = Job(state, folder, wishes.seed, kills, jobs.chaos_pace_s(kills), slow=1.0)
    job.save()
    with suppress(OSError):  # a home that cannot be written: the printed command names the directory
        jobs.remember(default_state_directory(), state)
    return job


def _new_state(wished: Path | None, folder: Path) -> Path:
    if wished is None:
        return Path(tempfile.mkdtemp(prefix="clutch-demo-")).resolve()
    state = wished.resolve()
    if state.is_relative_to(folder):
        raise InvalidInput(
            "--state", "must not lie inside the surveyed folder: the survey would survey itself"
        )
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(state.iterdir()):
        raise InvalidInput("--state", f"{state} is not empty; --resume finishes a demo that is kept there")
    return state


def find_job(wishes: Wishes) -> Job:
    if wishes.folder or wishes.chaos or wishes.kills is not None:
        raise InvalidInput("--resume", "goes on with the job as it was; give it nothing but --state")
    state = wishes.state.resolve() if wishes.state else jobs.remembered(default_state_directory())
    if state is None:
        raise InvalidInput("--resume", "no demo is remembered; name its directory with --state")
    job = jobs.load(state)
    if job is None:
        raise InvalidInput("--state", f"there is no demo in {state}")
    return job


# --- doing it ---------------------------------------------------------------------------------------------


def see_through(job: Job, view: View) -> dict[str, Any]:
    started_at = time.monotonic()
    view.say(f"Surveying {job.folder} with a scripted model, not an LLM. State: {job.state}")
    Supervisor(job, view).run()
    plain = _without_chaos(job) if job.is_chaos else None
    return report(job, time.monotonic() - started_at, plain)


def _without_chaos(job: Job) -> Ledger:
    """The same survey, undisturbed and as fast as it goes."""
    state = job.state / PLAIN
    state.mkdir(mode=0o700, exist_ok=True)
    plain = Job(state, job.folder, job.seed, pace_s=0.0)
    plain.save()
    Supervisor(plain, Silent()).run()
    return ledger_of(state)
