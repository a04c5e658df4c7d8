"""A few lines of text being typed, with history and completion. It knows keys and no terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clutch.cli.talk.typing import Key, Text

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

    def press(self, key: Key | Text) -> Submitted | Candidates | Key | None:
        """A key that means nothing here is given back to whoever asks."""
        match key:
            case Text(typed):
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
