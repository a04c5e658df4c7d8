"""The pages of docs/reference, written from the code: commands with their options, errors and exit codes, the
state machine of a task, settings.

python -m tests.docs.reference      # writes them anew
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import clutch
from clutch import errors
from clutch.api.problems import STATUS
from clutch.cli.app import app
from clutch.cli.output import OF_CODE, Exit
from clutch.core.model import LETTER_MOVES
from clutch.core.run import RUN_MOVES
from tests.docs.http_page import http_page
from tests.docs.logs_page import logs_page
from tests.docs.phases import INTRODUCTION, LETTERS, RUNS, matrix, mermaid, moves
from tests.docs.python_page import python_page
from tests.docs.settings_page import settings_page

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
AGAIN = "Written from the code by `python -m tests.docs.reference`; do not edit.\n"
MEANINGS = {
    "invalid_input": "A value breaks a rule: `field` and `rule` say which.",
    "unauthorized": "The token is missing or invalid.",
    "forbidden": "A limit, a right or the state of the task does not allow it: `rule` says which.",
    "not_found": "The target does not exist: `candidates` lists similar ones.",
    "method_not_allowed": "The path has other methods: see the header `Allow`.",
    "ambiguous": "The target matches several: `candidates` lists some of them.",
    "already_finished": "The task has ended: `continue` and `retry` start a new attempt.",
    "plan_changed": "The plan or question has changed meanwhile: read it again.",
    "idempotency_conflict": "The key was used before for another request.",
    "gone": "The cursor is older than the stored events.",
    "too_large": "The body is too large.",
    "wrong_host": "The request names a host that is not in `gateway.allowedHosts`.",
    "rate_limited": "Too many requests: wait for `retryAfterSeconds`.",
    "internal": "An error inside Clutch: the log of the gateway says more.",
    "turn_failed": "The turn of an agent failed (chat completions): `message` has the reason.",
    "unavailable": "No gateway, or it cannot answer now: it drains, or its database is busy or in use.",
}


def commands_page() -> str:
    return "\n".join(["# Commands", "", AGAIN, *_group(typer.main.get_command(app), "clutch")]) + "\n"


def _group(group: Any, name: str) -> Iterator[str]:
    for word, command in sorted(group.commands.items()):
        if getattr(command, "hidden", False):
            continue
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield from _command(command, f"{name} {word}")
            yield from _group(command, f"{name} {word}")
        else:
            yield from _command(command, f"{name} {word}")


def _command(command: Any, name: str) -> Iterator[str]:
    places = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option"]
    yield f"## `{' '.join([name, *(_place(param) for param in places)])}`"
    yield ""
    yield inspect.cleandoc(command.help or "")
    yield ""
    shown = [*places, *(param for param in options if not getattr(param, "hidden", False))]
    rows = [(_spelled(param), _told(param)) for param in shown if _told(param)]
    if rows:
        yield "| | |\n|---|---|"
        yield from (f"| {spelled} | {told} |" for spelled, told in rows)
        yield ""


def _place(param: Any) -> str:
    return _metavar(param) if param.required else f"[{_metavar(param)}]"


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _spelled(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{_metavar(param)}`"
    return ", ".join(f"`{opt}`" for opt in (*param.opts, *param.secondary_opts))


def _told(param: Any) -> str:
    choices = param.type_descriptor.choices
    listed = f" One of {', '.join(f'`{one}`' for one in choices)}." if choices else ""
    return ((getattr(param, "help", None) or "").replace("|", "\\|") + listed).strip()


def errors_page() -> str:
    return "\n".join(["# Errors", "", AGAIN, *_codes(), *_exits(), *_exceptions()]) + "\n"


def _codes() -> Iterator[str]:
    yield 'Every surface reports an error as `{"error": {"code", "message", "field"?, "rule"?, "remedy"?, …}}`.'
    yield ""
    yield "| Code | HTTP | Exit code | Meaning |"
    yield "|---|---|---|---|"
    for code, status in STATUS.items():
        yield f"| `{code}` | {status} | {OF_CODE.get(code, Exit.ERROR).value} | {MEANINGS[code]} |"
    yield ""


def _exits() -> Iterator[str]:
    yield "## Exit codes"
    yield ""
    yield " · ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit)
    yield ""


def _exceptions() -> Iterator[str]:
    yield "## In Python"
    yield ""
    yield "Classes marked * can be imported from `clutch`, the others from `clutch.errors`."
    yield ""
    public = {name: getattr(clutch, name) for name in clutch.__all__}
    for name, kind in {**vars(errors), **public}.items():
        if inspect.isclass(kind) and issubclass(kind, errors.ClutchError):
            bases = "" if kind is errors.ClutchError else f" ({kind.__bases__[0].__name__})"
            mark = "*" if name in public else ""
            yield f"- `{name}`{mark}{bases}: {_linked(' '.join(inspect.cleandoc(kind.__doc__ or '').split()))}"


def _linked(text: str) -> str:
    """Turn the name of a page, as error texts have it, into a link from a page of docs/reference."""
    return re.sub(r"`docs/([\w/-]+?)([\w-]+)\.md`", r"[\2](../\1\2.md)", text)


def lifecycle_page() -> str:
    phases = ["# Phases and events of a task", "", AGAIN, _drawn(mermaid()), INTRODUCTION, *matrix(), ""]
    return "\n".join([*phases, LETTERS, _drawn(moves(LETTER_MOVES)), RUNS, _drawn(moves(RUN_MOVES))])


def _marked(lines: list[str]) -> list[str]:
    return [*lines[:2], AGAIN, *(_linked(line) for line in lines[2:])]


def _drawn(diagram: str) -> str:
    return f"```mermaid\n{diagram}```\n"


PAGES = {
    "cli.md": commands_page,
    "errors.md": errors_page,
    "http.md": lambda: "\n".join(_marked(http_page())) + "\n",
    "lifecycle.md": lifecycle_page,
    "logs.md": logs_page,
    "python.md": lambda: "\n".join(_marked(python_page())) + "\n",
    "settings.md": settings_page,
}

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file, write in PAGES.items():
        (FOLDER / file).write_text(write(), encoding="utf-8")
