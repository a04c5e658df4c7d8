"""The lower edge of a terminal: words scroll by above it; a line that tells how things stand and the line being typed
stay at the bottom.

Words are wrapped and written out line by line; of what is on its way only the last, unfinished line is drawn anew.
Everything that comes from others passes `plain` first. Nothing here knows keys or agents.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import TextIO

from clutch.cli import screen
from clutch.cli.screen import columns, plain
from clutch.cli.talk.editor import Editor

#: Characters. No terminal is so wide, and a longer line is not measured for each piece that is cut off it.
LINE_MAX = 1000
ROWS_MAX = 8  #: of what is being typed; more scrolls
BELL = "\a"


class Window:
    def __init__(
        self, editor: Editor, prompt: str, out: TextIO | None = None, width: Callable[[], int] | None = None
    ) -> None:
        self._editor, self._prompt = editor, prompt
        self._out = out or sys.stdout
        self._width = width or (lambda: shutil.get_terminal_size().columns)
        self.status = ""
        self._unfinished = ""
        self._above = 0  #: rows between the top of what is drawn and the cursor

    def say(self, text: str, style: str = "") -> None:
        """Whole lines; what was unfinished is finished first."""
        self._wipe()
        self._finish()
        self._unfinished = plain(text) + "\n"
        self._write_lines(style)
        self._draw()

    def stream(self, piece: str) -> None:
        """A piece of words that are still coming."""
        self._wipe()
        self._unfinished += plain(piece)
        self._write_lines()
        self._draw()

    def end_stream(self) -> None:
        self._wipe()
        self._finish()
        self._draw()

    def redraw(self) -> None:
        self._wipe()
        self._draw()

    def clear(self) -> None:
        """Before leaving: nothing of ours stays at the bottom."""
        self._wipe()
        self._finish()
        self._out.flush()

    def ring(self) -> None:
        self._out.write(BELL)
        self._out.flush()

    # ---- drawing -------------------------------------------------------------------------------------

    def _room(self) -> int:
        return max(10, self._width() - 1)

    def _write_lines(self, style: str = "") -> None:
        while (line := self._whole_line()) is not None:
            self._out.write(screen.coloured(line, style) + "\r\n")

    def _finish(self) -> None:
        if self._unfinished:
            self._out.write(self._unfinished + "\r\n")
            self._unfinished = ""

    def _whole_line(self) -> str | None:
        """Off the beginning of what is unfinished: up to its line end, or as much as fits."""
        line, ended, rest = self._unfinished.partition("\n")
        if len(line) <= LINE_MAX and columns(line) <= self._room():
            if not ended:
                return None
            self._unfinished = rest
            return line
        fits = _fitting(line, self._room())
        cut = line.rfind(" ", 0, fits)
        cut = fits if cut <= 0 else cut
        self._unfinished = line[cut:].lstrip(" ") + ended + rest
        return line[:cut]

    def _wipe(self) -> None:
        up = f"\x1b[{self._above}A" if self._above else ""
        self._out.write(f"\r{up}\x1b[J")
        self._above = 0

    def _draw(self) -> None:
        rows = [self._unfinished] if self._unfinished else []
        if self.status:
            rows.append(screen.coloured(screen.fitted(plain(self.status), self._room()).rstrip(), "2"))
        typed, row, column = self._typed_rows()
        self._above = len(rows) + row
        below = len(typed) - 1 - row
        self._out.write("\r\n".join([*rows, *typed]))
        up = f"\x1b[{below}A" if below else ""
        self._out.write(f"{up}\r" + (f"\x1b[{column}C" if column else ""))
        self._out.flush()

    def _typed_rows(self) -> tuple[list[str], int, int]:
        """What is being typed, the row of the cursor and its column. A long line is shown around the cursor."""
        editor = self._editor
        lines = editor.text.split("\n")
        row = editor.text.count("\n", 0, editor.at)
        place = editor.at - (editor.text.rfind("\n", 0, editor.at) + 1)
        first = max(0, row - ROWS_MAX + 1)
        shown = [
            (self._prompt if number == 0 else " " * columns(self._prompt), line)
            for number, line in enumerate(lines)
        ][first : first + ROWS_MAX]
        room = self._room() - columns(self._prompt)
        begin = 0
        while columns(lines[row][begin:place]) >= room:
            begin += 1
        rows = [
            before + (_cut(line[begin:], room) if number == row - first else _cut(line, room))
            for number, (before, line) in enumerate(shown)
        ]
        return rows, row - first, columns(self._prompt) + columns(lines[row][begin:place])


def _fitting(text: str, room: int) -> int:
    """How many characters of it fit."""
    wide = 0
    for count, character in enumerate(text):
        wide += columns(character)
        if wide > room:
            return max(1, count)
    return len(text)


def _cut(text: str, room: int) -> str:
    return text[: _fitting(text, room)] if columns(text) > room else text
