"""The lower edge of a terminal: words scroll by above it; a line that tells how things stand and the line being typed
stay at the bottom.

Words are wrapped and written out line by line; of what is on its way only the last, unfinished line is drawn anew.
Everything that comes from others passes `plain` first. Nothing here knows keys or agents."""

from __future__ import annotations

import codecs
import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TextIO

from clutch.cli import output
from clutch.cli.output import columns, plain

# --------------------------------------------------------------------------------------------------
# Bytes from a terminal as keys: a character, or the name of a key. A paste is one text, whatever is in it.


class Key(StrEnum):
    ENTER = "enter"
    NEWLINE = "newline"  #: Alt-Enter
    TAB = "tab"
    BACKSPACE = "backspace"
    DELETE = "delete"
    LEFT = "left"
    RIGHT = "right"
    UP = "up"
    DOWN = "down"
    HOME = "home"
    END = "end"
    WORD_LEFT = "word-left"
    WORD_RIGHT = "word-right"
    ERASE_WORD = "erase-word"
    ERASE_BEFORE = "erase-before"
    ERASE_AFTER = "erase-after"
    INTERRUPT = "interrupt"
    END_OF_FILE = "end-of-file"
    REDRAW = "redraw"
    ESCAPE = "escape"


class TypedText(NamedTuple):
    """Typed or pasted; only a paste has several lines."""

    text: str


PASTE_BEGIN, PASTE_END = "\x1b[200~", "\x1b[201~"
_NAMED: Final = {
    "\r": Key.ENTER,
    "\n": Key.ENTER,
    "\t": Key.TAB,
    "\x7f": Key.BACKSPACE,
    "\x08": Key.BACKSPACE,
    "\x01": Key.HOME,
    "\x02": Key.LEFT,
    "\x03": Key.INTERRUPT,
    "\x04": Key.END_OF_FILE,
    "\x05": Key.END,
    "\x06": Key.RIGHT,
    "\x0b": Key.ERASE_AFTER,
    "\x0c": Key.REDRAW,
    "\x0e": Key.DOWN,
    "\x10": Key.UP,
    "\x15": Key.ERASE_BEFORE,
    "\x17": Key.ERASE_WORD,
    "\x1b\r": Key.NEWLINE,
    "\x1b\n": Key.NEWLINE,
    "\x1bb": Key.WORD_LEFT,
    "\x1bf": Key.WORD_RIGHT,
    "\x1b\x7f": Key.ERASE_WORD,
    "\x1b[A": Key.UP,
    "\x1b[B": Key.DOWN,
    "\x1b[C": Key.RIGHT,
    "\x1b[D": Key.LEFT,
    "\x1bOA": Key.UP,
    "\x1bOB": Key.DOWN,
    "\x1bOC": Key.RIGHT,
    "\x1bOD": Key.LEFT,
    "\x1b[H": Key.HOME,
    "\x1b[F": Key.END,
    "\x1b[1~": Key.HOME,
    "\x1b[4~": Key.END,
    "\x1b[3~": Key.DELETE,
    "\x1b[1;5C": Key.WORD_RIGHT,
    "\x1b[1;5D": Key.WORD_LEFT,
    "\x1b[13;2u": Key.NEWLINE,  # Shift-Enter, where the terminal tells it
}
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[A-Za-z]|[^\[O])", re.DOTALL)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")


@dataclass(slots=True)
class Keyboard:
    """What was read and is not a whole key yet is kept until more comes, or until nothing comes."""

    _pending: str = ""
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    @property
    def is_waiting(self) -> bool:
        return bool(self._pending) and not self._pending.startswith(PASTE_BEGIN)

    def feed(self, raw: bytes) -> Iterator[Key | TypedText]:
        self._pending += self._decoder.decode(raw)
        while self._pending:
            found = self._next()
            if found is None:
                return
            length, key = found
            self._pending = self._pending[length:]
            if key is not None:
                yield key

    def give_up(self) -> Iterator[Key | TypedText]:
        """Nothing came after it: an Escape is an Escape."""
        pending, self._pending = self._pending, ""
        if pending:
            yield Key.ESCAPE

    def _next(self) -> tuple[int, Key | TypedText | None] | None:
        """How much of it one key takes. None: it is not whole yet."""
        text = self._pending
        if text.startswith(PASTE_BEGIN):
            end = text.find(PASTE_END)
            if end < 0:
                return None
            return end + len(PASTE_END), TypedText(_clean(text[len(PASTE_BEGIN) : end]))
        if text[0] == "\x1b":
            if _BEGUN.fullmatch(text):
                return None
            sequence = _SEQUENCE.match(text)
            whole = sequence[0] if sequence else text[:1]
            return len(whole), _NAMED.get(whole)
        if text[0] in _NAMED:
            return 1, _NAMED[text[0]]
        return 1, TypedText(text[0]) if text[0].isprintable() else None


def _clean(text: str) -> str:
    """What a paste may bring along: lines, and what can be seen."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ").split("\n")
    return "\n".join("".join(one for one in line if one.isprintable()) for line in lines)


# --------------------------------------------------------------------------------------------------
# A person at a terminal: keys as they are typed, and a wake-up when there is news, in one loop.
#
# While it is open the terminal gives every key at once and echoes none; however it ends, it is as it was before.

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
class Terminal:
    wakes: int | None = None  #: readable when there is news
    keyboard: Keyboard = field(default_factory=Keyboard)

    def wait(self, timeout_s: float | None = None) -> Iterator[Key | TypedText]:
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


# --------------------------------------------------------------------------------------------------
# A few lines of text being typed, with history and completion. It knows keys and no terminal.

#: What may take the place of the last word before the cursor.
Complete = Callable[[str], Sequence[str]]

_LAST_WORD = re.compile(r"\S*\Z")
_WORD_BEFORE = re.compile(r"\S+\s*\Z")
_WORD_AFTER = re.compile(r"\s*\S*")


class Submitted(NamedTuple):
    text: str


class Candidates(NamedTuple):
    """Several would fit."""

    words: tuple[str, ...]


def _nothing(before: str) -> Sequence[str]:
    del before
    return ()


@dataclass(slots=True)
class Editor:
    """`at`: the place of the cursor in `text`."""

    history: list[str] = field(default_factory=list)
    complete: Complete = _nothing
    text: str = ""
    at: int = 0
    _back: int = 0  #: how far up in the history; 0 = what is being typed
    _draft: str = ""

    def press(self, key: Key | TypedText) -> Submitted | Candidates | Key | None:
        """A key that means nothing here is given back to whoever asks."""
        match key:
            case TypedText(typed):
                self._insert(typed)
            case Key.ENTER:
                return self._enter()
            case Key.NEWLINE:
                self._insert("\n")
            case Key.TAB:
                return self._complete()
            case Key.UP | Key.DOWN:
                self._go_vertically(-1 if key is Key.UP else 1)
            case Key.END_OF_FILE if self.text:
                self._cut(self.at, self.at + 1)
            case Key.INTERRUPT if self.text:
                self._set("")
            case Key.INTERRUPT | Key.END_OF_FILE | Key.ESCAPE | Key.REDRAW:
                return key
            case _:
                self._edit(key)
        return None

    def _edit(self, key: Key) -> None:
        begin, end = self._line()
        match key:
            case Key.LEFT:
                self.at = max(0, self.at - 1)
            case Key.RIGHT:
                self.at = min(len(self.text), self.at + 1)
            case Key.HOME:
                self.at = begin
            case Key.END:
                self.at = end
            case Key.WORD_LEFT:
                self.at = self._word_before()
            case Key.WORD_RIGHT:
                self.at = self._word_after()
            case Key.BACKSPACE:
                self._cut(max(0, self.at - 1), self.at)
            case Key.DELETE:
                self._cut(self.at, self.at + 1)
            case Key.ERASE_WORD:
                self._cut(self._word_before(), self.at)
            case Key.ERASE_BEFORE:
                self._cut(begin, self.at)
            case Key.ERASE_AFTER:
                self._cut(self.at, end)
            case _:
                pass

    def _insert(self, typed: str) -> None:
        self.text = self.text[: self.at] + typed + self.text[self.at :]
        self.at += len(typed)

    def _cut(self, begin: int, end: int) -> None:
        self.text = self.text[:begin] + self.text[end:]
        self.at = begin

    def _set(self, text: str) -> None:
        self.text, self.at = text, len(text)

    def _line(self) -> tuple[int, int]:
        """Where the line of the cursor begins and ends."""
        end = self.text.find("\n", self.at)
        return self.text.rfind("\n", 0, self.at) + 1, len(self.text) if end < 0 else end

    def _word_before(self) -> int:
        found = _WORD_BEFORE.search(self.text[: self.at])
        return found.start() if found else 0

    def _word_after(self) -> int:
        found = _WORD_AFTER.match(self.text, self.at)
        return found.end() if found else len(self.text)

    def _enter(self) -> Submitted | None:
        """A backslash at the end of the line goes on in the next one."""
        if self.text[: self.at].endswith("\\"):
            self._cut(self.at - 1, self.at)
            self._insert("\n")
            return None
        done = self.text
        if done.strip() and (not self.history or self.history[-1] != done):
            self.history.append(done)
        self._set("")
        self._back, self._draft = 0, ""
        return Submitted(done)

    def _go_vertically(self, by: int) -> None:
        """Within several lines from one to the next; at their edge through the history."""
        begin, end = self._line()
        column = self.at - begin
        if by < 0 and begin > 0:
            above = self.text.rfind("\n", 0, begin - 1) + 1
            self.at = min(above + column, begin - 1)
        elif by > 0 and end < len(self.text):
            below = self.text.find("\n", end + 1)
            self.at = min(end + 1 + column, len(self.text) if below < 0 else below)
        else:
            self._recall(self._back - by)

    def _recall(self, back: int) -> None:
        if not 0 <= back <= len(self.history):
            return
        if self._back == 0:
            self._draft = self.text
        self._back = back
        self._set(self.history[-back] if back else self._draft)

    def _complete(self) -> Candidates | None:
        before = self.text[: self.at]
        word = _LAST_WORD.search(before)
        # A name may be made to harm a terminal.
        found = [one for one in self.complete(before) if one.isprintable()]
        if word is None or not found:
            return None
        longest = _shared_beginning(found)
        if len(found) == 1 and not longest.endswith("/"):
            longest += " "
        if len(longest) > len(word[0]):
            self._cut(word.start(), self.at)
            self._insert(longest)
            return None
        return Candidates(tuple(found))


def _shared_beginning(words: Sequence[str]) -> str:
    first, last = min(words), max(words)
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((place for place, (one, other) in pairs if one != other), min(len(first), len(last)))]


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
            self._out.write(output.coloured(line, style) + "\r\n")

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
            rows.append(output.coloured(output.fitted(plain(self.status), self._room()).rstrip(), "2"))
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
