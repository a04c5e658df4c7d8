"""A terminal's display: understands what Clutch and prompt_toolkit write, and refuses every other control sequence."""

from __future__ import annotations

import re
from collections.abc import Callable

from clutch.cli.output import columns

_CUT_OFF = re.compile(r"\x1b(\[[0-9;?]*)?\Z")
_TOKEN = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|(.)", re.DOTALL)
WRAP = "7"
#: Modes that a program may switch: cursor keys, line wrap, blinking, cursor, second screen, bracketed paste.
_MODES = ("1", WRAP, "12", "25", "1049", "2004")


class Display:
    """`rows` are all lines since the beginning, those that scrolled away first; `row` and `column` are the cursor.

    Without `may_wrap`, a line that the terminal would have to wrap is an error."""

    def __init__(self, width: int = 80, *, may_wrap: bool = True) -> None:
        self.width, self._may_wrap, self._wraps = width, may_wrap, True
        self._cut_off = ""
        self.rows: list[list[str]] = [[]]
        self.row = self.column = 0
        self.bells = 0
        self._moves: dict[str, Callable[[int], None]] = {
            "A": lambda count: self._move(-count, 0),
            "B": lambda count: self._move(count, 0),
            "C": lambda count: self._move(0, count),
            "D": lambda count: self._move(0, -count),
        }

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def write(self, text: str) -> None:
        text = self._cut_off + text
        self._cut_off = found[0] if (found := _CUT_OFF.search(text)) else ""
        for private, number, verb, character in _TOKEN.findall(text.removesuffix(self._cut_off)):
            if character:
                self._put(character)
            elif private:
                assert number in _MODES, number
                assert verb in "hl", verb
                self._wraps = verb == "h" if number == WRAP else self._wraps
            else:
                self._command(number, verb)

    def _command(self, number: str, verb: str) -> None:
        match verb:
            case "A" | "B" | "C" | "D":
                self._moves[verb](int(number or 1))
            case "J" if number in ("", "0"):
                del self.rows[self.row + 1 :]
                del self.rows[self.row][self.column :]
            case "K" if number in ("", "0"):
                del self.rows[self.row][self.column :]
            case "H" if not number:
                self.row = self.column = 0
            case "m":
                pass
            case _:
                raise AssertionError(f"unknown control sequence {number}{verb}")

    def _move(self, down: int, right: int) -> None:
        self.row = min(max(0, self.row + down), len(self.rows) - 1)
        self.column = min(max(0, self.column + right), self.width - 1)

    def _put(self, character: str) -> None:
        match character:
            case "\r":
                self.column = 0
            case "\n":
                self.row += 1
                if self.row == len(self.rows):
                    self.rows.append([])
            case "\b":
                self.column = max(0, self.column - 1)
            case "\a":
                self.bells += 1
            case _:
                assert character.isprintable(), ascii(character)
                self._print(character)

    def _print(self, character: str) -> None:
        """A wide character fills its second cell with an empty string."""
        cells = [character, ""][: columns(character)] or [character]
        if self.column + len(cells) > self.width:
            assert self._may_wrap, f"the line would wrap: {self.lines[self.row]}"
            assert self._wraps, f"the line would be cut off: {self.lines[self.row]}"
            self._put("\r")
            self._put("\n")
        row = self.rows[self.row]
        row += [" "] * (self.column - len(row))
        row[self.column : self.column + len(cells)] = cells
        self.column += len(cells)
