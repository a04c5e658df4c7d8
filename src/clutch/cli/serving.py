"""`clutch serve`: a gateway that is a program, until it is told to stop, is drained, or is idle in the background.

The first SIGTERM or Ctrl-C stops it: no new claims, turns stop at their next step, everything is handed over. The
second one does not wait.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clutch.cli import journal
from clutch.cli.asking import answering, home_of, print_object, say
from clutch.cli.garbage import collect_rarely, share_one_heap
from clutch.errors import ClutchError
from clutch.gateway.leaving import Leaving

if TYPE_CHECKING:
    from clutch.wiring import Clutch

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOOK_S = 2.0  # after a change of the config

log = logging.getLogger("clutch.serve")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was said on the command line; None = as the config has it."""

    state: Path | None
    database: str | None
    model: str | None
    workspace: Path | None
    host: str | None
    port: int | None
    config: Path | None
    is_headless: bool
    is_background: bool


def serve(wishes: Wishes, *, as_json: bool) -> None:
    with answering("serve", as_json=as_json):
        if not wishes.is_background:
            journal.to_terminal()
        share_one_heap()
        asyncio.run(_serve(wishes, as_json=as_json))


async def _serve(wishes: Wishes, *, as_json: bool) -> None:
    home, is_background = home_of(wishes.state), wishes.is_background
    clutch = _clutch(wishes, home)
    rules = clutch.policy.serving
    leaving = clutch.leaving = Leaving(clutch, rules.idle_exit_s if is_background else None)
    _stop_on_signals(leaving)
    async with clutch:
        collect_rarely()
        if is_background:
            journal.to_file(home, rules.log_bytes_max)
        tell = log.info if is_background else say
        _greet(clutch, home, tell, is_background=is_background)
        if as_json:
            print_object("serve", {"url": clutch.url, "state": str(home)})
        if clutch.url is None and is_background:
            leaving.stop("another gateway answers here")  # nobody could tell this one to stop
        following = asyncio.create_task(_follow_config(clutch, tell))
        await _until_told(leaving)
        following.cancel()
        tell(f"Stopping: {leaving.why}. Turns end at their next step; a second signal does not wait.")


def _clutch(wishes: Wishes, home: Path) -> Clutch:
    from clutch.wiring import Clutch

    return Clutch(
        embedded=True,
        state=home,
        database=wishes.database,
        model=wishes.model,
        workspace=wishes.workspace,
        host=wishes.host,
        port=wishes.port,
        config=wishes.config,
        headless=wishes.is_headless,
    )


def _greet(clutch: Clutch, home: Path, tell: Callable[[str], None], *, is_background: bool) -> None:
    if clutch.url is None:
        tell(f"Another gateway answers for {home}; this one works for the same database.")
        return
    tell(f"Listening at {clutch.url}; state in {home}.{'' if is_background else ' Ctrl-C stops it.'}")
    if clutch.listening.is_remote:
        tell(f"Other machines reach it at {clutch.listening.host}, without encryption: TLS is your proxy's.")


async def _follow_config(clutch: Clutch, tell: Callable[[str], None]) -> None:
    """A file that was changed is read again: by itself soon, on SIGHUP at once. A wrong one changes nothing."""
    hang_up, seen = asyncio.Event(), clutch.config_stamp()
    if not sys.stdin.isatty():  # where there is a terminal, its end is meant
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hang_up.set)
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(hang_up.wait(), LOOK_S)
        stamp = await asyncio.to_thread(clutch.config_stamp)
        if stamp != seen or hang_up.is_set():
            seen = stamp
            hang_up.clear()
            await _reload(clutch, tell)


async def _reload(clutch: Clutch, tell: Callable[[str], None]) -> None:
    try:
        found = await clutch.reload()
    except ClutchError as error:
        tell(f"The config was not taken, what held before holds:\n{error}")
        return
    tell(f"The config was read again: {', '.join(found.taken) or 'nothing'} changed.")
    if found.waiting:
        tell(f"At the next start: {', '.join(found.waiting)}.")


async def _until_told(leaving: Leaving) -> None:
    watching = asyncio.create_task(leaving.watch())
    try:
        await leaving.told.wait()
    finally:
        watching.cancel()


def _stop_on_signals(leaving: Leaving) -> None:
    loop = asyncio.get_running_loop()

    def told(one: signal.Signals) -> None:
        leaving.stop(one.name)
        for each in SIGNALS:
            loop.remove_signal_handler(each)

    for one in SIGNALS:
        loop.add_signal_handler(one, told, one)
