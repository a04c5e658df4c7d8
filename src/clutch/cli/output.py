"""Output of the commands: messages on stderr, data on stdout, one exit code for each kind of end.

`with answering("kill", as_json=…)` turns every error of a command into a message, a JSON object and an exit code."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from operator import itemgetter
from pathlib import Path
from typing import Any

import typer

from clutch import __version__
from clutch.core.families import in_families
from clutch.core.model import NEEDS_USER, RETRYABLE, DeliveryStatus, TaskStatus
from clutch.core.text.format import (
    UNKNOWN,
    duration,
    is_plain,
    money,
    plain_json,
    seconds_text,
    typed,
    used_tokens,
    visible,
)
from clutch.errors import ClutchError, ConfigInvalid, NoGateway
from clutch.surfaces import discovery
from clutch.surfaces.discovery import Address, default_state_directory
from clutch.surfaces.http_client import Declined, GatewayClient, connect

# --------------------------------------------------------------------------------------------------
# Tasks on a terminal of 80 columns: states, tables and trees, drawn from the JSON objects of the API.
#
# Labels, results and tool arguments come from models and other users: no character of them that could move the cursor,
# change colours or turn the reading direction reaches the terminal.

Task = Mapping[str, Any]
#: Writes a command line to copy.
Command = Callable[..., str]

WIDTH, WIDTH_MIN = 80, 40
LABEL_CHARS_MAX = 200
RESULT_CHARS_MAX = 400
ERROR_CELLS_MIN = 40  #: with less space the command has a line of its own
BESIDE_MIN = 20  #: what a task does now is cut to this before its figures are left out
TREE_CELLS_MIN = 24  #: of a task far below, whose line is wider than the terminal then
SHORTENED_MIN = 6  #: a narrower label is cut at its end
NO_TIME = "-"  #: of a task that has not started
STYLES = {TaskStatus.RUNNING: "1;36", TaskStatus.QUEUED: "2", TaskStatus.DONE: "32"}  #: SGR codes
RED, YELLOW = "31", "33"
_OUTSIDE_LINES = re.compile(r"[^\n\t]+")


def plain(text: str) -> str:
    """Show every character that would act on the terminal as an escape; newlines and tabs stay."""
    return _OUTSIDE_LINES.sub(lambda piece: _seen(piece[0]), text)


def _seen(text: str) -> str:
    if is_plain(text):
        return text
    return "".join(one if is_plain(one) else one.encode("unicode_escape").decode() for one in text)


def width() -> int:
    """Return the columns of the terminal; 80 where the output is no terminal."""
    return max(WIDTH_MIN, shutil.get_terminal_size((WIDTH, 24)).columns) if sys.stdout.isatty() else WIDTH


def coloured(text: str, code: str) -> str:
    """Colour the text on a terminal, unless NO_COLOR is set."""
    if not code or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def fitted(text: str, cells: int) -> str:
    """Cut the text with an ellipsis or fill it with blanks, so that it has exactly this width in columns."""
    if cells <= 0:
        return ""
    if columns(text) > cells:
        while columns(text) >= cells:
            text = text[:-1]
        text += "…"
    return text + " " * (cells - columns(text))


def columns(text: str) -> int:
    """Return the width on a terminal, where some characters have two columns and some none."""
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shortened(text: str, cells: int) -> str:
    """Cut the text in the middle and fill it, as `fitted` does: labels often differ at their end only."""
    if cells < SHORTENED_MIN or columns(text) <= cells:
        return fitted(text, cells)
    end = ""
    while columns(end + text[-len(end) - 1]) <= (cells - 1) // 2:
        end = text[-len(end) - 1 :]
    return fitted(fitted(text, cells - columns(end)).rstrip() + end, cells)


# ---- words -----------------------------------------------------------------------------------------------


def at(moment: str | None) -> float | None:
    return None if moment is None else datetime.fromisoformat(moment).timestamp()


def label(task: Task, chars_max: int = LABEL_CHARS_MAX) -> str:
    return visible(task["label"], chars_max)


def elapsed(task: Task, now: float) -> str:
    """Return the time since the task started, until it ended."""
    start, end = at(task["startedAt"]), at(task["endedAt"])
    if start is None:
        return NO_TIME
    return duration(max(0.0, (now if task["outcome"] is None or end is None else end) - start))


def used(task: Task) -> str:
    """Return the tokens of the task and its descendants; `n/a` where no provider counts them."""
    below = task["usage"]["subtree"]
    return used_tokens(below["input"] + below["output"], below["calls"])


def cost(task: Task) -> str:
    usd = task["usage"]["subtree"]["usd"]
    return "n/a" if usd is None else money(Decimal(usd))


def doing(task: Task, now: float, stalled_s: float | None = None) -> str:
    """Return what the task does now and since when: `thinking · step 4 · 6 s`.

    `stalled_s` is the gateway's setting; without a gateway no task runs, and none is stalled."""
    since, moved = at(task["doingSince"]), at(task["lastProgressAt"])
    text = task["doingNow"] if since is None else f"{task['doingNow']} · {seconds_text(now - since)}"
    is_running = task["status"] == TaskStatus.RUNNING and moved is not None and stalled_s is not None
    return f"{text} · stalled" if is_running and now - (moved or now) > (stalled_s or 0.0) else text


def _beside(task: Task, now: float, stalled_s: float | None) -> str:
    """Return what stands beside the state in a line. The line below a failed task has its error: see `failure`."""
    if task["status"] not in RETRYABLE:
        return doing(task, now, stalled_s)
    return str(task["delivery"]["text"]) if task["delivery"]["status"] == DeliveryStatus.UNDELIVERED else ""


def failure(task: Task, command: Command) -> str | None:
    """Return why the task failed and the command that runs it again; None: it has not failed."""
    if task["status"] not in RETRYABLE:
        return None
    return f"{task['doingNow']} -> {command('retry', task['taskId'])}"


def style(task: Task) -> str:
    status = task["status"]
    if status in NEEDS_USER:
        return YELLOW
    if status in RETRYABLE or task["delivery"]["status"] == DeliveryStatus.UNDELIVERED:
        return RED
    return STYLES.get(status, "")


def summary(counted: Mapping[str, Any]) -> str:
    return str(counted["text"])


# ---- drawings --------------------------------------------------------------------------------------------


HEADINGS = ("#", "TASK", "STATE", "LABEL", "TIME", "TOKENS", "COST", "NOW")
NUMBER, TASK, STATE, LABEL, TIME, TOKENS, COST, NOW = range(len(HEADINGS))
#: What a list that is too wide gives up, in this order: a column and the width it keeps; 0 leaves it out. The id stays.
NARROWER = (
    (NOW, 60), (LABEL, 40), (NOW, 24), (LABEL, 28), (COST, 0), (TOKENS, 0), (LABEL, 12), (NOW, 0), (TIME, 0),
    (NUMBER, 0), (LABEL, 8), (STATE, 8),
)  # fmt: skip
RIGHT = ("#", "TIME", "TOKENS", "COST")
NUMBERED_MAX = 200  #: a gateway remembers so many numbers of a list
INDENT = 2  #: of the line below a failed task, and of each level of a family


def placed(tasks: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Return the tasks of a list in the order in which they are shown, each with its level below the top."""
    return in_families(tasks, itemgetter("taskId"), itemgetter("parentTaskId"))


def with_numbers(tasks: Sequence[dict[str, Any]], after: int = 0) -> list[dict[str, Any]]:
    """Add the numbers that a gateway remembers of a page: further pages are numbered in their own order."""
    return [{**task, "number": number} for number, (_, task) in enumerate(placed(tasks), start=after + 1)]


def is_finished(task: Task) -> bool:
    """Whether the task has ended and its result is not undelivered, which needs attention."""
    return task["outcome"] is not None and task["delivery"]["status"] != DeliveryStatus.UNDELIVERED


def table(
    tasks: Sequence[dict[str, Any]], now: float, command: Command, stalled_s: float | None = None
) -> str:
    shown = placed(tasks)
    rows = [HEADINGS, *(_row(*one, now, stalled_s) for one in enumerate(shown, start=1))]
    wide = _widths(rows)
    lines = [coloured(_line(rows[0], wide), "1")]
    for (_, task), row in zip(shown, rows[1:], strict=True):
        lines += _with_failure(task, _line(row, wide), " " * INDENT, command)
    return "\n".join(lines)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column, so that a line fits the terminal and uses it."""
    wide = [max(columns(row[place]) for row in rows) for place in range(len(HEADINGS))]
    for place, least in NARROWER:
        excess = sum(wide) + 2 * (sum(map(bool, wide)) - 1) - width()
        if excess > 0:
            wide[place] = min(wide[place], max(least, wide[place] - excess)) if least else 0
    # What was left out or cut too far gives its width to the columns that can use it.
    spare = width() - sum(wide) - 2 * (sum(map(bool, wide)) - 1)
    for place in (LABEL, NOW) if wide[NOW] else (LABEL,):
        most = max(columns(row[place]) for row in rows)
        more = max(0, min(spare, most - wide[place]))
        wide[place], spare = wide[place] + more, spare - more
    return wide


def _with_failure(task: Task, text: str, before: str, command: Command) -> Iterator[str]:
    """Yield the line of a task, and below a failed one its error and the command, which is never cut."""
    yield coloured(text, style(task))
    if (said := failure(task, command)) is not None:
        error, arrow, retry = said.rpartition(" -> ")
        room = width() - columns(before)
        beside = room - columns(arrow + retry)
        if columns(error) <= beside or beside >= ERROR_CELLS_MIN:
            yield before + coloured(fitted(error, beside).rstrip() + arrow + retry, style(task))
        else:
            yield before + coloured(fitted(error, room).rstrip(), style(task))
            yield before + coloured(arrow.lstrip() + retry, style(task))


def _row(number: int, one: tuple[int, Task], now: float, stalled_s: float | None) -> tuple[str, ...]:
    level, task = one
    number = task.get("number", number)
    figures = (elapsed(task, now), used(task), cost(task))
    named = " " * (INDENT * level) + label(task)
    return (
        str(number) if number <= NUMBERED_MAX else "",
        task["taskId"],
        task["status"],
        named,
        *figures,
        _beside(task, now, stalled_s),
    )


def _line(row: Sequence[str], wide: Sequence[int]) -> str:
    shown = [place for place, cells in enumerate(wide) if cells]
    cells = [(shortened if place == LABEL else fitted)(row[place], wide[place]) for place in shown]
    aligned = (
        cell.rstrip().rjust(len(cell)) if HEADINGS[place] in RIGHT else cell
        for place, cell in zip(shown, cells, strict=True)
    )
    return "  ".join(aligned).rstrip()


def forest(tops: Iterable[Task], now: float, command: Command, stalled_s: float | None = None) -> str:
    """Draw tasks with `nodes` as trees below their sessions."""
    roots: dict[str, list[Task]] = {}
    for top in tops:
        key = top["requesterKey"] if top["parentTaskId"] is not None else top["rootKey"]
        roots.setdefault(visible(str(key), LABEL_CHARS_MAX), []).append(top)
    return "\n".join(
        line
        for key, below in roots.items()
        for line in (coloured(key, "1"), *_branches(below, "", now, command, stalled_s))
    )


def _branches(
    tasks: Sequence[Task], before: str, now: float, command: Command, stalled_s: float | None
) -> Iterator[str]:
    for task in tasks:
        is_last = task is tasks[-1]
        below = before + ("    " if is_last else "│   ")
        text = one_line(task, now, stalled_s, max(TREE_CELLS_MIN, width() - len(below)))
        first, *rest = _with_failure(task, text, below, command)
        yield f"{before}{'└── ' if is_last else '├── '}{first}"
        yield from rest
        yield from _branches(task["nodes"], below, now, command, stalled_s)


def one_line(task: Task, now: float, stalled_s: float | None = None, cells: int | None = None) -> str:
    """`running · AI research · 2m30s · 15.2k tok · web_fetch "example.com" · 4 s · t_7f3a`

    `cells`: the width. The id stays readable in it: what the task does now is cut first, then the figures are left out,
    and the label is shortened last."""
    time_ = elapsed(task, now)
    figures = [
        "" if time_ == NO_TIME else time_,
        "" if used(task) == UNKNOWN else f"{used(task)} tok",
        "" if cost(task) == "n/a" else cost(task),
    ]
    named, beside = label(task, 40), _beside(task, now, stalled_s)
    while cells is not None:
        excess = columns(_joined(task, named, figures, beside)) - cells
        if excess <= 0:
            break
        if columns(beside) > BESIDE_MIN or (beside and not any(figures)):
            beside = fitted(beside, max(0, columns(beside) - excess, BESIDE_MIN if any(figures) else 0))
        elif any(figures):
            figures[max(place for place, figure in enumerate(figures) if figure)] = ""
        else:
            named = shortened(named, max(4, columns(named) - excess))
            break
    return _joined(task, named, figures, beside)


def _joined(task: Task, named: str, figures: Sequence[str], beside: str) -> str:
    parts = (task["status"], named.rstrip(), *figures, beside.rstrip(), task["taskId"])
    return " · ".join(part for part in parts if part)


def hour(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone():%H:%M}"


def clock(moment: str) -> str:
    """Return the local time, with the date if it is not today."""
    here = datetime.fromisoformat(moment).astimezone()
    return (
        f"{here:%H:%M:%S}"
        if here.date() == datetime.now().astimezone().date()
        else f"{here:%Y-%m-%d %H:%M:%S}"
    )


def now() -> float:
    return datetime.now(UTC).timestamp()


def moment_now() -> str:
    return moment_of(now())


def moment_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def log_line(line: Mapping[str, Any]) -> str:
    """Return one entry of a transcript: time, role, text."""
    body, when = line["body"], clock(line["at"])
    match line["kind"]:
        case "input":
            return f"{when}  > {body['source']}: {body['text']}"
        case "answer":
            calls = [
                f"{call['name']} {json.dumps(call['args'], ensure_ascii=False)}" for call in body["calls"]
            ]
            return "\n".join(
                f"{when}  {words}" for words in (body["text"], *(f"* {call}" for call in calls)) if words
            )
        case "results":
            return "\n".join(f"{when}    {_gave(one)}" for one in body["results"])
        case "end":
            return f"{when}  ! {body['status']}: {body['error']}"
        case kind:
            return f"{when}  {kind}: {json.dumps(body, ensure_ascii=False)}"


def _gave(result: Mapping[str, Any]) -> str:
    mark = "!" if result.get("failed") else "="
    return f"{mark} {result['name']}: {visible(result['text'], RESULT_CHARS_MAX)}"


def step_line(step: Mapping[str, Any]) -> str:
    """Return one step of a journal: number, time, kind, text."""
    where = "" if step["seq"] is None else f" #{step['seq']}"
    return f"{step['n']:>4}  {clock(step['at'])}  {step['kind']}{where}: {visible(step['text'], RESULT_CHARS_MAX)}"


FOLLOWED_WITHIN_S = 4.0  #: a gateway checks for a changed config every two seconds
LOOK_S = 0.1


class Exit(IntEnum):
    OK = 0
    ERROR = 1
    USAGE = 2
    TIMEOUT = 3
    KILLED = 4
    NEEDS_YOU = 5
    UNDELIVERED = 6
    LOST = 7
    FORBIDDEN = 8
    NO_GATEWAY = 9


OF_CODE: Mapping[str, Exit] = {
    "invalid_input": Exit.USAGE,
    "unauthorized": Exit.FORBIDDEN,
    "forbidden": Exit.FORBIDDEN,
    "rate_limited": Exit.FORBIDDEN,
}
OF_OUTCOME: Mapping[str, Exit] = {
    "ok": Exit.OK,
    "error": Exit.ERROR,
    "timeout": Exit.TIMEOUT,
    "killed": Exit.KILLED,
    "lost": Exit.LOST,
}


def command_for(state: Path | None, *words: str) -> str:
    """Return a command line to copy, with the state directory as it was given here."""
    return typed(*words, state=None if state is None else str(state))


def home_of(state: Path | None) -> Path:
    return default_state_directory() if state is None else state


def say_folder(client: GatewayClient) -> None:
    """Tell a user in another folder where agents work: a command started the gateway there, perhaps days ago."""
    workspace, is_background = client.address.workspace, client.address.is_background
    if is_background and workspace is not None and not Path.cwd().is_relative_to(workspace):
        say(f"Agents work in {workspace}, not in this folder. Use another gateway for it: --state DIR.")


def gateway(state: Path | None, *, is_new_work: bool = False) -> GatewayClient:
    """Return a client of the running gateway, or start one. Raises NoGateway, UnsafeStateDirectory."""
    home = home_of(state)
    found = discovery.find(home)
    if found is None and discovery.may_start(home, is_new_work=is_new_work):
        _check_config(home)
        found = discovery.start(home)
        say(
            f"Started a gateway in the background (pid {found.pid}); `{command_for(state, 'stop')}` stops it."
        )
    client = connect(home)
    if (why := discovery.blocked(home)) is not None:
        say(f"The gateway does not answer yet: {why}.")
    else:
        say_unloaded(home, client.address)
    if client.address.version != __version__:
        say(
            f"Note: the gateway is Clutch {client.address.version}, this is {__version__}."
            f" `{command_for(state, 'drain')}`, and the next command starts one of this version."
        )
    return client


def say_unloaded(home: Path, found: Address) -> None:
    """Say what the gateway has not loaded of the config file."""
    if (words := unloaded(home, found)) is not None:
        say(words)


def unloaded(home: Path, found: Address) -> str | None:
    """Return what of the config is not loaded and why. A fresh change gets `FOLLOWED_WITHIN_S` seconds."""
    deadline = time.monotonic() + FOLLOWED_WITHIN_S
    while found.config is not None and found.config.follows and not found.config.is_current:
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
        found = discovery.find(home) or found
    if found.config is None or (missing := found.config.missing) is None:
        return None
    if found.config.error and _is_invalid(home):
        # A restart would refuse the file as well.
        check = typed("config", "check", state=discovery.named_state(home))
        return f"{missing}. Correct the file, then: `{check}`."
    return f"{missing}. Restart to apply: {found.restart(home)}."


def _is_invalid(home: Path) -> bool:
    try:
        _check_config(home)
    except ConfigInvalid:
        return True
    return False


def _check_config(home: Path) -> None:
    """Report an invalid config here: the gateway to be started has no terminal. Raises ConfigInvalid."""
    if (home / discovery.CONFIG_FILE).exists():
        from clutch.config import load

        load.load(home)


@contextmanager
def answering(command: str, *, as_json: bool) -> Iterator[None]:
    try:
        yield
    except Declined as error:
        raise _failed(command, error.said, OF_CODE.get(error.code, Exit.ERROR), as_json) from error
    except ConfigInvalid as error:
        message = "\n".join(error.problems)
        said = {"code": "invalid_input", "message": message, "problems": list(error.problems)}
        raise _failed(command, said, Exit.USAGE, as_json) from error
    except NoGateway as error:
        said = {"code": "unavailable", "message": str(error), "remedy": error.remedy}
        raise _failed(command, said, Exit.NO_GATEWAY, as_json) from error
    except ClutchError as error:
        from clutch.api.problems import problem_of

        said = problem_of(error).to_json()["error"]
        raise _failed(command, said, OF_CODE.get(said["code"], Exit.ERROR), as_json) from error


def _failed(command: str, said: Mapping[str, Any], code: Exit, as_json: bool) -> typer.Exit:
    say(f"clutch {command.replace('.', ' ')}: {said.get('message', 'failed')}")
    if said.get("candidates") and said["code"] == "not_found":
        say("Known, newest first:")
    for candidate in said.get("candidates", ()):
        say(f"  {candidate}")
    if "remedy" in said and said["remedy"] not in said["message"]:
        say(f"Try: {said['remedy']}")
    if as_json:
        print_object(command, {"error": dict(said)}, is_ok=False)
    return typer.Exit(code)


def say(words: str) -> None:
    """Print a message to stderr."""
    typer.echo(plain(words), err=True)


def print_object(command: str, body: Mapping[str, Any], *, is_ok: bool = True) -> None:
    """Print one JSON object to stdout."""
    said = {"schema": f"clutch.{command}/1", "ok": is_ok, **body}
    print(plain_json(json.dumps(said, ensure_ascii=False)), flush=True)


def report(command: str, body: Mapping[str, Any], text: str, *, as_json: bool, is_ok: bool = True) -> None:
    """Print what was asked for to stdout, as an object or as text."""
    if as_json:
        print_object(command, body, is_ok=is_ok)
    else:
        print_text(text)


def print_text(text: str) -> None:
    """Print text to stdout; control characters are shown as escapes."""
    print(plain(text), flush=True)


def is_interactive() -> bool:
    """Whether a question can be asked on stderr."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def is_screen() -> bool:
    """Whether a whole screen can be drawn: Textual draws it on stderr."""
    return is_terminal() and sys.stderr.isatty()


def is_terminal() -> bool:
    """Whether keys can be read and the screen drawn."""
    return sys.stdin.isatty() and sys.stdout.isatty()
