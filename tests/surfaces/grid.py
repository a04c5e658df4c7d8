"""A terminal of fixed size with a real `clutch` in it, for programs that draw the whole screen.

The grid understands what Textual writes and refuses every other control sequence, so that a text that reaches the
terminal as a command fails the test. It answers like a terminal that can show a repaint at once, and counts them."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from clutch.cli.output import columns
from tests.patience import PATIENCE_S

_TOKEN = re.compile(r"\x1b\[([<>?=]?)([0-9;:]*)(\$?[A-Za-z])|(.)", re.DOTALL)
_CUT_OFF = re.compile(r"\x1b(\[[<>?=]?[0-9;:]*\$?|\]2?2?;?[a-z]*)?\Z")
REPAINT = "2026"  #: the mode that a program sets around a repaint
#: Cursor, line wrap, second screen, focus, paste, resize reports, repaint.
_MODES = frozenset({"7", "25", "1049", "1004", "2004", "2048", REPAINT})
POINTER = "\x1b]22;default\a"  #: the shape of the mouse pointer, which Textual sets even without a mouse
CLEARED_STYLE = ("", "0")


class Grid:
    def __init__(self, width: int, height: int) -> None:
        self.repaints = 0
        self.colours: set[str] = set()  #: SGR codes of colours that were used
        self.answers = ""  #: what a terminal types by itself
        self._rest = ""
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._cells = [[" "] * width for _ in range(height)]
        self._dim = [[False] * width for _ in range(height)]
        self._is_dim = False
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._cells]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def is_dim(self, words: str) -> bool:
        """Whether the first place of these words is drawn dim."""
        row = next(place for place, line in enumerate(self.lines) if words in line)
        return self._dim[row][self.lines[row].index(words)]

    def write(self, text: str) -> None:
        text = self._rest + text
        self._rest = found[0] if (found := _CUT_OFF.search(text)) else ""
        text = text.replace(POINTER, "")
        for prefix, number, verb, character in _TOKEN.findall(text.removesuffix(self._rest)):
            if character:
                self._put(character)
            else:
                self._command(prefix, number, verb)

    def _command(self, prefix: str, number: str, verb: str) -> None:
        match prefix, verb:
            case "?", "h" | "l":
                assert number in _MODES, number
                self.repaints += (number, verb) == (REPAINT, "h")
            case "?", "$p":
                self.answers += f"\x1b[?{number};{2 if number == REPAINT else 0}$y"
            case ">" | "<", "u":
                pass  # how keys are reported
            case "", "H":
                row, _, column = (number or "1;1").partition(";")
                self._row, self._column = int(row) - 1, int(column or 1) - 1
            case "", "m":
                self._style(number)
            case _:
                raise AssertionError(f"unknown control sequence {prefix}{number}{verb}")

    def _style(self, number: str) -> None:
        for code in number.split(";"):
            if code in CLEARED_STYLE:
                self._is_dim = False
            elif code == "2":
                self._is_dim = True
            elif re.fullmatch(r"3[0-8]|4[0-8]|9\d|10\d", code):
                self.colours.add(code)

    def _put(self, character: str) -> None:
        if character == "\n":
            self._row, self._column = self._row + 1, 0
        elif character == "\r":
            self._column = 0
        elif character != "\a":
            assert character.isprintable(), ascii(character)
            cells = [character, ""][: columns(character)]
            if self._row < self.height and self._column + len(cells) <= self.width:
                self._cells[self._row][self._column : self._column + len(cells)] = cells
                self._dim[self._row][self._column] = self._is_dim
            self._column += len(cells)


class GridTerminal:
    def __init__(self, file: int, process: subprocess.Popen[bytes], grid: Grid) -> None:
        self._file, self._process, self.grid = file, process, grid
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def type(self, *keys: str) -> None:
        for one in keys:
            os.write(self._file, one.encode())

    def until(self, is_there: Callable[[Grid], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_there(self.grid):
            assert time.monotonic() < deadline, f"never {what}:\n{self.grid.text}"
            assert self._process.poll() is None, f"it has ended:\n{self.grid.text}"
            self.read(0.2)

    def shows(self, *words: str) -> None:
        """Wait until all of these words are on the screen at once."""
        self.until(lambda grid: all(one in grid.text for one in words), f"showed {words}")

    def hides(self, words: str) -> None:
        self.until(lambda grid: words not in grid.text, f"hid {words!r}")

    def row(self, words: str) -> str:
        """Return the line with these words."""
        return next(line for line in self.grid.lines if words in line)

    def resize(self, width: int, height: int) -> None:
        self.grid.resize(width, height)
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._process.send_signal(signal.SIGWINCH)

    def ended(self) -> int:
        """Its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"does not end:\n{self.grid.text}"
            self.read(0.1)
        return self._process.returncode

    def read(self, wait_s: float) -> None:
        if not select.select([self._file], [], [], wait_s)[0]:
            return
        try:
            piece = os.read(self._file, 65536)
        except OSError:  # the other side is closed
            return
        self.grid.write(self._decoder.decode(piece))
        if self.grid.answers:
            self.type(self.grid.answers)
            self.grid.answers = ""


@contextmanager
def full_screen(
    *words: object, state: Path, size: tuple[int, int] = (80, 24), env: Mapping[str, str] | None = None
) -> Iterator[GridTerminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    given = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "CLUTCH_NO_START": "1", **(env or {})}
    left_out = ("NO_COLOR", "COLUMNS", "LINES", "TERM_PROGRAM")
    process = subprocess.Popen(
        [sys.executable, "-m", "clutch", *map(str, words), "--state", str(state)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**{name: value for name, value in os.environ.items() if name not in left_out}, **given},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield GridTerminal(ours, process, Grid(*size))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(ours)
