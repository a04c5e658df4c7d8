"""Notices when the event loop of a gateway is blocked, and says by what.

An async tool that calls something slow without `await` stops the whole gateway: no turn continues and no request is
answered, so the gateway cannot say what is wrong. A thread of its own looks for a sign of life of the loop, and writes
down where the loop stands (`blocked.json` in the state directory) for the commands that find it silent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from clutch.logs import logger
from clutch.surfaces.discovery import BLOCKED_FILE

log = logger(__name__)

BEAT_S: Final = 1.0
#: A loop that is only busy runs again within milliseconds; the longest pauses measured under load were below a second.
BLOCKED_S: Final = 3.0
REMEDY: Final = (
    "call it with `await asyncio.to_thread(…)`, or make the tool a plain `def`, which runs in a thread"
)
_LIBRARIES: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@contextmanager
def watching(home: Path) -> Iterator[None]:
    """Watch the running loop of this thread until the end of the block."""
    watchdog = _Watchdog(home, asyncio.get_running_loop(), threading.get_ident())
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()


class _Watchdog:
    def __init__(self, home: Path, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        self._file, self._loop, self._thread_id = home / BLOCKED_FILE, loop, thread_id
        self._beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="clutch-watchdog", daemon=True)

    def start(self) -> None:
        self._file.unlink(missing_ok=True)
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join(BEAT_S)

    def _beat(self) -> None:
        self._beats += 1
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    # The rest runs in the watchdog's own thread.

    def _watch(self) -> None:
        """Count the looks without a beat, not the seconds: a process that was frozen is not blocked."""
        seen, looks, is_reported = self._beats, 0, False
        while not self._stopped.wait(BEAT_S):
            if self._beats == seen:
                looks += 1
                if looks * BEAT_S >= BLOCKED_S and not is_reported:
                    is_reported = True
                    self._report(looks * BEAT_S)
                continue
            seen, looks = self._beats, 0
            if is_reported:
                is_reported = False
                self._forget()

    def _forget(self) -> None:
        log.warning("Event loop runs again")
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s not removed: %s", self._file, error)

    def _report(self, silent_s: float) -> None:
        where = _place(sys._current_frames().get(self._thread_id))
        log.warning("Event loop blocked for %.0f s by %s: %s", silent_s, where, REMEDY)
        said = {"since": time.time() - silent_s, "where": where, "pid": os.getpid()}
        try:
            file = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(file, "w", encoding="utf-8") as writing:
                json.dump(said, writing)
        except OSError as error:
            log.warning("%s not written: %s", self._file, error)


def _place(frame: FrameType | None) -> str:
    """The innermost function that belongs to no library: the one that should not have waited there."""
    innermost = frame
    while frame is not None and frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen")):
        frame = frame.f_back
    found = frame or innermost
    if found is None:
        return "an unknown function"
    return f"{found.f_code.co_qualname} ({found.f_code.co_filename}:{found.f_lineno})"
