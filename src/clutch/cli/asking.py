"""Ask the gateway, say what came of it: words on stderr, data on stdout, one exit code for each kind of end.

`with answering("kill", as_json=…)` around a command turns every failure into a message, an object for whoever
reads objects, and an exit code. Nothing here knows what a command means.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

import typer

from clutch import __version__
from clutch.cli.screen import plain
from clutch.core.shown import plain_json, typed
from clutch.errors import ClutchError, ConfigInvalid, NoGateway
from clutch.surfaces import address, starting
from clutch.surfaces.address import default_state_directory
from clutch.surfaces.client import Client, Declined, connect


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
    """What to type next, with the state directory as it was named here."""
    return typed(*words, state=None if state is None else str(state))


def home_of(state: Path | None) -> Path:
    return default_state_directory() if state is None else state


def gateway(state: Path | None, *, is_new_work: bool = False) -> Client:
    """The one that runs, else one started in the background. Raises NoGateway, UnsafeStateDirectory."""
    home = home_of(state)
    found = address.find(home)
    if found is None and starting.may_start(home, is_new_work=is_new_work):
        _check_config(home)
        found = starting.start(home)
        say(f"Started a gateway in the background (pid {found.pid}); `{command_for(state, 'stop')}` ends it.")
    client = connect(home)
    if client.address.version != __version__:
        say(
            f"Note: the gateway is Clutch {client.address.version}, this is {__version__}."
            f" `{command_for(state, 'drain')}`, and the next command starts one of this version."
        )
    return client


def _check_config(home: Path) -> None:
    """What is wrong with it is better said here than by a process without a terminal. Raises ConfigInvalid."""
    if (home / address.CONFIG_FILE).exists():
        from clutch.config import files  # much to load, but a gateway is about to be started

        files.load(home)


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
        from clutch.surfaces.problems import problem_of  # much to load, and most commands succeed

        said = problem_of(error).to_json()["error"]
        raise _failed(command, said, OF_CODE.get(said["code"], Exit.ERROR), as_json) from error


def _failed(command: str, said: Mapping[str, Any], code: Exit, as_json: bool) -> typer.Exit:
    say(f"clutch {command.replace('.', ' ')}: {said.get('message', 'failed')}")
    if said.get("candidates") and said["code"] == "not_found":
        say("There are, newest first:")
    for candidate in said.get("candidates", ()):
        say(f"  {candidate}")
    if "remedy" in said and said["remedy"] not in said["message"]:
        say(f"Try: {said['remedy']}")
    if as_json:
        print_object(command, {"error": dict(said)}, is_ok=False)
    return typer.Exit(code)


def say(words: str) -> None:
    """To the person."""
    typer.echo(plain(words), err=True)


def print_object(command: str, body: Mapping[str, Any], *, is_ok: bool = True) -> None:
    """To the program that reads."""
    said = {"schema": f"clutch.{command}/1", "ok": is_ok, **body}
    print(plain_json(json.dumps(said, ensure_ascii=False)), flush=True)


def print_text(text: str) -> None:
    """A child's own words are data; what would move the cursor is shown instead of done."""
    print(plain(text), flush=True)


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
