"""`clutch stop` and `clutch drain`: end the gateway of a state directory, and wait until it has gone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clutch.cli.asking import answering, home_of, print_object, say
from clutch.core.shown import visible
from clutch.errors import NoGateway
from clutch.surfaces import address
from clutch.surfaces.client import Client, connect
from clutch.surfaces.starting import is_owned

GONE_WITHIN_S = 60.0  #: a stop gives its turns a few seconds each; longer, and something hangs
PAUSE_S = 0.1
DRAIN_LOOK_S = 0.5
SHOWN_MAX = 5


def stop(state: Path | None, *, as_json: bool) -> None:
    with answering("stop", as_json=as_json):
        home = home_of(state)
        client = _found(home)
        if client is not None:
            client.post("/v1/stop")
            _until_gone(home, client)
        _say_ended("stop", home, client, as_json=as_json)


def drain(state: Path | None, *, timeout_s: float | None, as_json: bool) -> None:
    """Shows what it waits for whenever that changes."""
    with answering("drain", as_json=as_json):
        home = home_of(state)
        client = _found(home)
        if client is not None:
            _drained(home, client, timeout_s)
            _until_gone(home, client)
        _say_ended("drain", home, client, as_json=as_json)


def _found(home: Path) -> Client | None:
    return None if address.find(home) is None else connect(home)


def _drained(home: Path, client: Client, timeout_s: float | None) -> None:
    """Until it stops; also when somebody else makes it stop."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    shown = ""
    while address.find(home) == client.address or (address.find(home) is None and is_owned(home)):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            said = client.post("/v1/drain", {} if left is None else {"timeoutSeconds": left})
        except NoGateway:
            return
        if said["status"] == "stopping":
            return
        if (words := _waits_for(said["waitingFor"])) != shown:
            say(shown := words)
        time.sleep(DRAIN_LOOK_S)


def _waits_for(waiting: list[Mapping[str, Any]]) -> str:
    if not waiting:
        return "nothing left to wait for"
    named = [
        f"{visible(one['label'] or one['sessionKey'], 40)} ({one['phase'] or 'turn'})" for one in waiting
    ]
    more = f" and {len(named) - SHOWN_MAX} more" if len(named) > SHOWN_MAX else ""
    return f"waiting for {len(named)}: {', '.join(named[:SHOWN_MAX])}{more}"


def _until_gone(home: Path, client: Client) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while address.find(home) == client.address:
        if time.monotonic() > deadline:
            pid = client.address.pid
            raise NoGateway(f"the gateway (pid {pid}) was told to stop, and still is there", f"kill -9 {pid}")
        time.sleep(PAUSE_S)


def _say_ended(command: str, home: Path, client: Client | None, *, as_json: bool) -> None:
    """That none runs is what was wanted."""
    status, pid = ("none", None) if client is None else ("stopped", client.address.pid)
    if as_json:
        print_object(command, {"status": status, "pid": pid, "state": str(home)})
    else:
        say(f"no gateway runs for {home}" if pid is None else f"stopped (pid {pid})")
