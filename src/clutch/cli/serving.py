"""`clutch serve`: a gateway in the foreground, until it is told to stop.

The first SIGTERM or Ctrl-C drains: no new claims, turns stop at their next step, everything is handed over.
The second one does not wait.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from clutch.cli.asking import answering, home_of, print_object, say

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(
    state: Path | None,
    *,
    database: str | None,
    model: str | None,
    workspace: Path | None,
    port: int,
    as_json: bool,
) -> None:
    with answering("serve", as_json=as_json):
        asyncio.run(_serve(home_of(state), database, model, workspace, port, as_json=as_json))


async def _serve(
    home: Path, database: str | None, model: str | None, workspace: Path | None, port: int, *, as_json: bool
) -> None:
    from clutch.wiring import Clutch

    stop = _stop_on_signals()
    async with Clutch(state=home, database=database, model=model, workspace=workspace, port=port) as clutch:
        if clutch.url is None:
            say(f"Another gateway answers for {home}; this one works for the same database.")
        else:
            say(f"Listening at {clutch.url}; state in {home}. Ctrl-C stops it.")
        if as_json:
            print_object("serve", {"url": clutch.url, "state": str(home)})
        await stop.wait()
        say("Stopping: turns end at their next step. Once more to stop at once.")


def _stop_on_signals() -> asyncio.Event:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def told() -> None:
        stop.set()
        for one in SIGNALS:
            loop.remove_signal_handler(one)

    for one in SIGNALS:
        loop.add_signal_handler(one, told)
    return stop
