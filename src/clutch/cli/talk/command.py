"""`clutch chat`: finds the gateway or starts one, opens the session, and gives the talk to whoever is there."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import typer

from clutch.cli.asking import answering, command_for, gateway, home_of, say
from clutch.cli.line import Line
from clutch.cli.talk.ear import session_path
from clutch.cli.talk.notices import Notices
from clutch.errors import ClutchError

MAIN_SESSION = "agent:main:main"


def chat(state: Path | None, session: str | None, agent: str | None, *, as_json: bool) -> None:
    with answering("chat", as_json=as_json):
        key = session or (f"agent:{agent}:main" if agent else MAIN_SESSION)
        client = gateway(state, is_new_work=True)
        if as_json or not _is_terminal():
            from clutch.cli.talk import piped

            inbox = command_for(state, "inbox")
            raise typer.Exit(piped.chat(Line(state, client), key, Path.cwd(), inbox, as_json=as_json))
        from clutch.cli.talk.chatting import Chatting

        client.post(session_path(key, "replies"), {"waitSeconds": 0})  # opens it
        say(f"Talking to {key}. /help tells the keys; Ctrl-D leaves, work goes on.")
        talk = Chatting(home_of(state), key, Path.cwd(), _notices(state))
        talk.run()


def attach(state: Path | None, target: str) -> None:
    """Without a terminal: what `clutch logs -f` prints."""
    if not _is_terminal():
        from clutch.cli import showing

        return showing.logs(state, target, follows=True, as_json=False)
    with answering("attach", as_json=False):
        from clutch.cli.talk.attaching import Attaching

        Attaching(home_of(state), gateway(state), target, _notices(state)).run()


def _notices(state: Path | None) -> Notices:
    """As the config has it. One that cannot be read is the gateway's to complain about."""
    from clutch.config import files

    command = partial(command_for, state)
    try:
        return Notices(command, files.load(home_of(state)).settings.policy.notify)
    except ClutchError:
        return Notices(command)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
