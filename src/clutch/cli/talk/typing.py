"""Bytes from a terminal as keys: a character, or the name of a key. A paste is one text, whatever is in it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


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


class Text(NamedTuple):
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

    def feed(self, raw: bytes) -> Iterator[Key | Text]:
        self._pending += self._decoder.decode(raw)
        while self._pending:
            found = self._next()
            if found is None:
                return
            length, key = found
            self._pending = self._pending[length:]
            if key is not None:
                yield key

    def give_up(self) -> Iterator[Key | Text]:
        """Nothing came after it: an Escape is an Escape."""
        pending, self._pending = self._pending, ""
        if pending:
            yield Key.ESCAPE

    def _next(self) -> tuple[int, Key | Text | None] | None:
        """How much of it one key takes. None: it is not whole yet."""
        text = self._pending
        if text.startswith(PASTE_BEGIN):
            end = text.find(PASTE_END)
            if end < 0:
                return None
            return end + len(PASTE_END), Text(_clean(text[len(PASTE_BEGIN) : end]))
        if text[0] == "\x1b":
            if _BEGUN.fullmatch(text):
                return None
            sequence = _SEQUENCE.match(text)
            whole = sequence[0] if sequence else text[:1]
            return len(whole), _NAMED.get(whole)
        if text[0] in _NAMED:
            return 1, _NAMED[text[0]]
        return 1, Text(text[0]) if text[0].isprintable() else None


def _clean(text: str) -> str:
    """What a paste may bring along: lines, and what can be seen."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ").split("\n")
    return "\n".join("".join(one for one in line if one.isprintable()) for line in lines)
