"""A question that outlives its gateway: one that died is started again, one that was stopped is waited for.

Whoever waits for something durable does not lose it with the process that worked on it. What is asked must be
harmless to ask twice: a read, or a write with its key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import typer

from clutch.cli import INTERRUPTED
from clutch.cli.asking import command_for, gateway, home_of, say
from clutch.errors import NoGateway
from clutch.surfaces import address, starting
from clutch.surfaces.client import Client, connect

T = TypeVar("T")

LOOK_S = 0.5
AWAY_S = 60.0  #: a restart takes seconds; longer, and nobody is about to bring it back


@dataclass(slots=True)
class Line:
    state: Path | None
    client: Client

    def ask(self, question: Callable[[Client], T]) -> T:
        """Raises NoGateway when none comes back."""
        while True:
            try:
                return question(self.client)
            except NoGateway:
                self.client = _found_again(self.state)


def _found_again(state: Path | None) -> Client:
    home, deadline = home_of(state), time.monotonic() + AWAY_S
    say("The gateway is gone; looking for it again. Nothing is lost.")
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        try:
            found = gateway(state) if address.has_died(home) and starting.may_start(home) else connect(home)
        except NoGateway:
            continue
        say(f"Connected again (pid {found.address.pid}).")
        return found
    serve = command_for(state, "serve")
    raise NoGateway(f"no gateway came back within {AWAY_S:.0f} s; start one with `{serve}`", serve)


@contextmanager
def resumable(state: Path | None, *words: str) -> Iterator[None]:
    """Ctrl-C ends the watching and nothing else: `words` are the command that goes on with it."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nIt goes on without you. To watch it again: `{command_for(state, *words)}`.")
        raise typer.Exit(INTERRUPTED) from None
