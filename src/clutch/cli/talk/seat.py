"""A person at a terminal: keys as they are typed, and a wake-up when there is news, in one loop.

While it is open the terminal gives every key at once and echoes none; however it ends, it is as it was before.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from clutch.cli.talk.typing import Key, Keyboard, Text

ESCAPE_S = 0.05  #: an Escape with nothing after it for so long is the key, not the beginning of another
PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Output is not touched: a line end stays a line end."""
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file, termios.TCSANOW)  # what was typed ahead is kept
        mode = termios.tcgetattr(file)
        mode[0] &= ~(termios.IXON | termios.ICRNL)
        mode[3] &= ~(termios.ISIG | termios.IEXTEN)
        termios.tcsetattr(file, termios.TCSANOW, mode)
        sys.stdout.write(PASTE_ON)
        yield
    finally:
        sys.stdout.write(PASTE_OFF)
        sys.stdout.flush()
        termios.tcsetattr(file, termios.TCSADRAIN, before)


@dataclass(slots=True)
class Seat:
    wakes: int | None = None  #: readable when there is news
    keyboard: Keyboard = field(default_factory=Keyboard)

    def wait(self, timeout_s: float | None = None) -> Iterator[Key | Text]:
        """Until a key was pressed, there is news or the time is over. A terminal that is gone says end of file."""
        sources = [sys.stdin.fileno(), *([] if self.wakes is None else [self.wakes])]
        timeout = ESCAPE_S if self.keyboard.is_waiting else timeout_s
        ready, _, _ = select.select(sources, [], [], timeout)
        if sys.stdin.fileno() in ready:
            try:
                raw = os.read(sys.stdin.fileno(), 4096)
            except OSError:
                raw = b""
            yield from self.keyboard.feed(raw) if raw else (Key.END_OF_FILE,)
        elif not ready:
            yield from self.keyboard.give_up()


@contextmanager
def whole_screen() -> Iterator[None]:
    """What stood on the terminal before stands there again afterwards."""
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def leave_on_hangup() -> None:
    """The terminal was closed: the talk ends, the work goes on."""
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(0))
