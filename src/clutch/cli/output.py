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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any

import typer

from clutch import __version__
from clutch.core.text.format import (
    UNKNOWN,
    duration,
    is_plain,
    money,
    plain_json,
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

WIDTH, WIDTH_MIN = 80, 60
LABEL_CHARS_MAX = 200
RESULT_CHARS_MAX = 400
ERROR_CHARS_MAX = 300
ENDS = {"ok": "done", "error": "failed"}
DELIVERY_LABELS = {"none": "", "waiting": "delivering", "delivered": "delivered"}  #: else the state and why
#: What a list counts, in this order. Replies are shown with the command that prints them.
COUNTED = (
    "running", "queued", "waiting", "needsYou", "done", "failed", "timeout", "killed", "lost", "undelivered", "unsent",
)  # fmt: skip
STYLES = {"running": "1;36", "queued": "2", "done": "32"}  #: SGR codes
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


# ---- words -----------------------------------------------------------------------------------------------


def at(moment: str | None) -> float | None:
    return None if moment is None else datetime.fromisoformat(moment).timestamp()


def state(task: Task, now: float, stalled_s: float | None = None) -> str:
    """`running`, `paused (quota)`, `waiting (2 children)`, `plan?`, `done`, `failed` …, `+ undelivered`.

    `stalled_s` is the gateway's setting; without a gateway no task runs, and none is stalled."""
    words = _ended(task) if task["outcome"] is not None else _under_way(task, now, stalled_s)
    return f"{words}, undelivered" if task["delivery"]["state"] == "undelivered" else words


def _ended(task: Task) -> str:
    outcome = str(task["outcome"])
    return ENDS.get(outcome, outcome)


def _under_way(task: Task, now: float, stalled_s: float | None) -> str:
    phase, reason = task["phase"], task["reason"]
    if phase == "awaiting_approval":
        return "plan?"
    if reason in ("children", "descendants-active"):
        if not (count := task["children"]["active"]):
            return "waiting"
        return f"waiting ({count} {'child' if count == 1 else 'children'})"
    if phase == "paused":
        until = "" if task["pausedUntil"] is None else f" until {hour(task['pausedUntil'])}"
        return "needs you" if reason == "needs-you" else f"paused ({visible(reason, 40)}){until}"
    moved = at(task["lastProgressAt"])
    if phase == "running" and moved is not None and stalled_s is not None and now - moved > stalled_s:
        return "running (stalled)"
    return str(phase)


def label(task: Task, chars_max: int = LABEL_CHARS_MAX) -> str:
    return visible(task["label"], chars_max)


def runtime(task: Task, now: float) -> str:
    """Return the time from creation to the end, or to now."""
    end = at(task["endedAt"])
    return duration(max(0.0, (now if end is None else end) - (at(task["createdAt"]) or now)))


def age(task: Task, now: float) -> str:
    """Return the time since its end, its last step or its creation."""
    moved = at(task["endedAt"]) or at(task["lastProgressAt"]) or at(task["createdAt"]) or now
    return duration(max(0.0, now - moved))


def used(task: Task) -> str:
    """Return the tokens of the task and its descendants; `n/a` where no provider counts them."""
    below = task["usage"]["subtree"]
    return used_tokens(below["input"] + below["output"], below["calls"])


def cost(task: Task) -> str:
    usd = task["usage"]["subtree"]["usd"]
    return "n/a" if usd is None else money(Decimal(usd))


def doing(task: Task, now: float) -> str:
    """Return the current tool call and its age; for a failed task the error, for another ended task its delivery."""
    tool = task["currentTool"]
    if tool is not None:
        since = at(tool["since"]) or now
        return f"{visible(tool['name'], 40)}({visible(tool['arg'], 60)}) {duration(now - since)}"
    if task["error"] is not None:
        return failure(task)
    if task["outcome"] is None:
        return ""
    told = task["delivery"]
    if told["state"] in DELIVERY_LABELS:
        return DELIVERY_LABELS[told["state"]]
    return f"{told['state']} ({visible(told['reason'], 60)})" if told["reason"] else str(told["state"])


def failure(task: Task) -> str:
    """Return the error in one line."""
    return visible(" ".join(str(task["error"]).split()), ERROR_CHARS_MAX)


def style(task: Task) -> str:
    if task["outcome"] not in (None, "ok") or task["delivery"]["state"] == "undelivered":
        return "31"
    if task["phase"] == "awaiting_approval" or task["reason"] == "needs-you":
        return "33"
    return STYLES.get("done" if task["outcome"] else task["phase"], "")


def summary(counted: Mapping[str, Any]) -> str:
    """`3 running · 1 waiting · 12 done · $0.42`; counts of zero are left out."""
    names = {"needsYou": "needs you" if counted["needsYou"] == 1 else "need you"}
    parts = [f"{counted[name]} {names.get(name, name)}" for name in COUNTED if counted[name]]
    if counted["usd"] is not None:
        parts.append(money(Decimal(counted["usd"])))
    return " · ".join(parts) or "nothing here"


# ---- drawings --------------------------------------------------------------------------------------------


HEADINGS = ("#", "TASK", "STATE", "LABEL", "AGE", "TOKENS", "COST", "NOW")
CELLS_MAX = (3, 14, 22, 28, 7, 7, 8, 60)
#: Columns that shrink in a narrow terminal, and their least width: NOW until a reason fits, then LABEL, then NOW.
SHRINKING = ((7, 24), (3, 8), (7, 0))
RIGHT = ("#", "AGE", "TOKENS", "COST")


def table(tasks: Sequence[Task], now: float, stalled_s: float | None = None) -> str:
    rows = [HEADINGS, *(_row(number, task, now, stalled_s) for number, task in enumerate(tasks, start=1))]
    wide = [min(most, max(columns(row[place]) for row in rows)) for place, most in enumerate(CELLS_MAX)]
    for place, least in SHRINKING:
        wide[place] -= max(0, min(wide[place] - least, sum(wide) + 2 * len(wide) - 2 - width()))
    codes = ["1", *(style(task) for task in tasks)]
    return "\n".join(coloured(_line(row, wide), code) for row, code in zip(rows, codes, strict=True))


def _row(number: int, task: Task, now: float, stalled_s: float | None) -> tuple[str, ...]:
    named = "  " * (task["depth"] - 1) + label(task)
    figures = (age(task, now), used(task), cost(task))
    return (str(number), task["taskId"], state(task, now, stalled_s), named, *figures, doing(task, now))


def _line(row: Sequence[str], wide: Sequence[int]) -> str:
    cells = (fitted(cell, most) for cell, most in zip(row, wide, strict=True))
    placed = (
        cell.rstrip().rjust(len(cell)) if heading in RIGHT else cell
        for heading, cell in zip(HEADINGS, cells, strict=True)
    )
    return "  ".join(placed).rstrip()


def forest(tops: Iterable[Task], now: float, stalled_s: float | None = None) -> str:
    """Draw tasks with `nodes` as trees below their sessions."""
    roots: dict[str, list[Task]] = {}
    for top in tops:
        key = top["requesterKey"] if top["parentTaskId"] is not None else top["rootKey"]
        roots.setdefault(visible(str(key), LABEL_CHARS_MAX), []).append(top)
    return "\n".join(
        line
        for key, below in roots.items()
        for line in (coloured(key, "1"), *_branches(below, "", now, stalled_s))
    )


def _branches(tasks: Sequence[Task], before: str, now: float, stalled_s: float | None) -> Iterator[str]:
    for task in tasks:
        is_last = task is tasks[-1]
        text = fitted(one_line(task, now, stalled_s), width() - len(before) - 4).rstrip()
        yield f"{before}{'└── ' if is_last else '├── '}{coloured(text, style(task))}"
        yield from _branches(task["nodes"], before + ("    " if is_last else "│   "), now, stalled_s)


def one_line(task: Task, now: float, stalled_s: float | None = None) -> str:
    """`running · AI research · 2m30s · 15.2k tok · web_fetch(example.com) 4s · t_7f3a`"""
    parts = (
        state(task, now, stalled_s),
        label(task, 40),
        runtime(task, now),
        "" if used(task) == UNKNOWN else f"{used(task)} tok",
        "" if cost(task) == "n/a" else cost(task),
        doing(task, now),
        task["taskId"],
    )
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
            return f"{when}  ! {ENDS.get(body['outcome'], body['outcome'])}: {body['error']}"
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
    return f"{missing}. Restart to apply: {found.restart(home)}."


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


def is_terminal() -> bool:
    """Whether keys can be read and the screen drawn."""
    return sys.stdin.isatty() and sys.stdout.isatty()
