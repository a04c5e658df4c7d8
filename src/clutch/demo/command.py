"""`clutch demo`: find or create the job, run it to its end, print the report."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clutch.cli import INTERRUPTED
from clutch.core.text.format import plain_json
from clutch.demo import job as jobs
from clutch.demo.job import FRESH, KILLS_MAX, REPORT, DemoJob, write_private
from clutch.demo.report import ANSWER, SCHEMA, Picture, command, people_text, picture_of, report, tree_lines
from clutch.demo.supervisor import DemoScreen, Supervisor, kills_of
from clutch.errors import ClutchError, InvalidInput
from clutch.offline_reader import looking_at
from clutch.surfaces import discovery

ERROR, USAGE = 1, 2  #: exit codes
PLAIN = "without-chaos"  #: the state directory of the comparison, inside that of a chaos run


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the command line."""

    folder: str | None = None
    seed: int = 0
    state: str | None = None
    chaos: bool = False
    kills: int | None = None
    resume: bool = False
    as_json: bool = False

    @property
    def is_for_people(self) -> bool:
        """Whether stdout is a terminal. Elsewhere its last line is the summary, for programs."""
        return sys.stdout.isatty() and not self.as_json


def run(options: DemoOptions) -> int:
    """Run the command and return its exit code."""
    with ExitStack() as held:
        try:
            job = find_job(options) if options.resume else new_job(options)
            held.enter_context(jobs.alone(job.state))
        except InvalidInput as error:
            return _failed(options, "invalid_input", error, USAGE)
        except OSError as error:
            return _failed(options, "internal", error, ERROR)
        screen = DemoScreen(None if options.as_json else sys.stderr)
        try:
            made, picture = see_through(job, screen)
        except KeyboardInterrupt:
            screen.close()
            finish = command("demo", "--resume", "--state", str(job.state), is_anywhere=True)
            print(f"Interrupted. Nothing is lost; finish it with:\n  {finish}", file=sys.stderr)
            return INTERRUPTED
        except ClutchError as error:
            return _failed(options, "internal", error, ERROR)
        finally:
            screen.close()
        if not options.as_json:
            tree = [] if screen.has_tree else ["", *(line for line, _ in tree_lines(picture))]
            words = "\n".join([*tree, "", people_text(made, picture.used)])
            print(words, file=sys.stdout if options.is_for_people else sys.stderr)
        if not options.is_for_people:
            print(plain_json(json.dumps(made, ensure_ascii=False)), flush=True)
        return 0 if made["ok"] else ERROR


def _failed(options: DemoOptions, code: str, error: Exception, exit_code: int) -> int:
    print(f"clutch demo: {error}", file=sys.stderr)
    about: dict[str, Any] = {"code": code, "message": str(error)}
    if isinstance(error, InvalidInput):
        about |= {"field": error.field, "rule": error.rule}
    if not options.is_for_people:
        print(plain_json(json.dumps({"schema": SCHEMA, "ok": False, "error": about}, ensure_ascii=False)))
    return exit_code


# --- which job --------------------------------------------------------------------------------------------


def new_job(options: DemoOptions) -> DemoJob:
    folder = _path("--dir", "." if options.folder is None else options.folder)
    if not folder.is_dir():
        raise InvalidInput("--dir", f"{folder} is not a directory")
    if options.kills is not None and not options.chaos:
        raise InvalidInput("--kills", "requires --chaos")
    if options.state is None:
        _remove_finished()
    state = _fresh_state(folder) if options.state is None else _named_state(options.state, folder)
    job = DemoJob(state, folder, options.seed, is_fresh=options.state is None)
    if options.chaos:
        pace_s = jobs.chaos_pace_s(options.kills)
        job = replace(job, is_chaos=True, kills=options.kills or KILLS_MAX, pace_s=pace_s, slow=1.0)
    job.save()
    return job


def _path(option: str, given: str) -> Path:
    if not given.strip():
        raise InvalidInput(option, "must name a directory")
    return Path(given).resolve()


def _named_state(name: str, folder: Path) -> Path:
    state = _path("--state", name)
    if state.is_relative_to(folder):
        raise InvalidInput("--state", f"{state} is inside the surveyed folder; name one outside of it")
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_empty = not any(state.iterdir())
    except OSError as error:
        why = "is not a directory" if state.is_file() else f"cannot be used: {error.strerror}"
        raise InvalidInput("--state", f"{state} {why}") from error
    if not is_empty:
        raise InvalidInput("--state", f"{state} is not empty; --resume finishes a demo that is kept there")
    return state


def _remove_finished() -> None:
    """Remove finished demos, which were kept until the next one, except where a gateway shows one."""
    for job in jobs.kept():
        if job.is_finished and discovery.find(job.state) is None:
            shutil.rmtree(job.state, ignore_errors=True)


def _fresh_state(folder: Path) -> Path:
    """Create a state directory outside of the surveyed folder, which may be the folder of temporary files."""
    for place in jobs.places():
        if not place.is_relative_to(folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=FRESH, dir=place))
    raise InvalidInput("--state", f"is required: name a directory outside of {folder}")


def find_job(options: DemoOptions) -> DemoJob:
    if options.folder is not None or options.chaos or options.kills is not None:
        raise InvalidInput("--resume", "continues the demo as it was started; add --state only")
    if options.state is None:
        if job := next(iter(jobs.kept()), None):
            return job
        raise InvalidInput("--resume", "found no demo; name its directory with --state")
    state = _path("--state", options.state)
    if job := jobs.load(state):
        return job
    raise InvalidInput("--state", f"there is no demo in {state}")


# --- doing it ---------------------------------------------------------------------------------------------


def see_through(job: DemoJob, screen: DemoScreen) -> tuple[dict[str, Any], Picture]:
    """Run the job to its end, unless that was done before, and return its summary."""
    started_at = time.monotonic()
    if job.is_finished:
        screen.say("This demo is finished. Its report:")
        return json.loads((job.state / REPORT).read_text()), _picture(job.state)
    screen.say(f"A main agent surveys {job.folder} with the demo model (no API key).")
    screen.say(f"State: {job.state}. Ctrl-C stops it; nothing is lost.")
    Supervisor(job, screen).run()
    picture = _picture(job.state)
    plain = _without_chaos(job) if job.is_chaos else None
    made = report(job, picture, kills_of(job.state), plain)
    made["wall_s"] = round(time.monotonic() - started_at, 2)
    write_private(job.state / ANSWER, f"{made['answer']}\n")
    write_private(job.state / REPORT, json.dumps(made, ensure_ascii=False, indent=1))
    return made, picture


def _picture(state: Path) -> Picture:
    with looking_at(state) as look:
        return picture_of(look)


def _without_chaos(job: DemoJob) -> Picture:
    """Run the same survey without kills and without delays."""
    state = job.state / PLAIN
    state.mkdir(mode=0o700, exist_ok=True)
    plain = DemoJob(state, job.folder, job.seed, kills=0, pace_s=0.0)
    plain.save()
    Supervisor(plain, DemoScreen(None)).run()
    return _picture(state)
