"""A real pseudo-terminal with a real `clutch` in it: what it shows is read, keys are typed."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.surfaces.display import Display

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    def __init__(self, file: int, process: subprocess.Popen[bytes], columns: int) -> None:
        self._file, self._process = file, process
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._written = ""
        self._from = 0
        self.display = Display(columns)

    @property
    def shown(self) -> str:
        """Everything that was ever written, without what moves the cursor."""
        return _ESCAPES.sub("", self._written)

    def type(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def until(self, words: str) -> None:
        """Wait for text that was printed after the text waited for last."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.shown.find(words, self._from)) < 0:
            assert time.monotonic() < deadline, f"never showed {words!r}:\n{self.display.text[-3000:]}"
            self._read(0.2)
        self._from = found + len(words)

    def until_row(self, pattern: str) -> None:
        """Wait until a whole row of the display matches: rows that are redrawn are written piece by piece."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(re.fullmatch(pattern, line) for line in self.display.lines):
            assert time.monotonic() < deadline, f"no row like {pattern!r}:\n{self.display.text[-3000:]}"
            self._read(0.2)

    def hang_up(self) -> None:
        """Close the terminal; the process goes on without one."""
        os.close(self._file)
        self._file = -1

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def _read(self, wait_s: float) -> bool:
        ready, _, _ = select.select([self._file] if self._file >= 0 else [], [], [], wait_s)
        if not ready:
            return False
        try:
            piece = os.read(self._file, 65536)
        except OSError:  # the other side is closed
            return False
        text = self._decoder.decode(piece)
        self._written += text
        self.display.write(text)
        return bool(piece)

    def ended(self) -> int:
        """Its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"does not end:\n{self.display.text[-3000:]}"
            self._read(0.1)
        # What was written last may arrive after the end of the process; a closed terminal ends this at once.
        while self._read(1.0):
            pass
        return self._process.returncode


def environment(**changes: str) -> dict[str, str]:
    """Without the size that a parallel run of the tests gives to its workers: the terminal has its own."""
    return {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | changes


@contextmanager
def terminal(*words: object, state: Path, columns: int = 80, cwd: Path | None = None) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "clutch", *map(str, words), "--state", str(state)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env=environment(TERM="xterm", NO_COLOR="1", CLUTCH_NO_START="1"),
        start_new_session=True,
    )
    os.close(theirs)
    person = Terminal(ours, process, columns)
    try:
        yield person
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        person.close()
