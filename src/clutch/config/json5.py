"""JSON5 with places: every value has its position in the text, and a key that occurs twice is an error.

`pyjson5` reads escapes and numbers, but reports no positions. So this module follows brackets, commas and keys, and
passes each single word to `pyjson5`. It is stricter than JSON5 in one thing: a key without quotes has no escapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import pyjson5

DEPTH_MAX = 32  # no config nests a third as deep
SHOWN_MAX = 40

_SPACE = re.compile(r"(?:[\s\ufeff]+|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r""""(?:[^"\\\n\r]|\\(?:\r\n|.))*"|'(?:[^'\\\n\r]|\\(?:\r\n|.))*'""", re.DOTALL)
_NAME = re.compile(r"[^\W\d][\w$]*|\$[\w$]*")
_BARE = re.compile(r"[^\s\ufeff,:\[\]{}\"'/]+")


class Unreadable(Exception):
    """The text is not JSON5 from position `at` on."""

    def __init__(self, at: int, rule: str) -> None:
        super().__init__(rule)
        self.at, self.rule = at, rule


@dataclass(frozen=True, slots=True)
class Member:
    key_at: int
    node: JsonNode


@dataclass(frozen=True, slots=True)
class JsonNode:
    """`value`: None, bool, int, float, str, a list of nodes or members by their key."""

    at: int
    value: Value

    def plain(self) -> Any:
        match self.value:
            case Mapping() as members:
                return {key: member.node.plain() for key, member in members.items()}
            case list() as items:
                return [item.plain() for item in items]
            case word:
                return word


Value: TypeAlias = "bool | int | float | str | list[JsonNode] | Mapping[str, Member] | None"


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Both counted from 1, in characters."""
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1


def parse(text: str) -> JsonNode:
    """Raises Unreadable."""
    reader = _Reader(text)
    node = reader.value(depth=0)
    if reader.peek():
        reader.fail("here the text should end: there is more after the value")
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def fail(self, rule: str, at: int | None = None) -> NoReturn:
        raise Unreadable(self._at if at is None else at, rule)

    def peek(self) -> str:
        """Return the next character after white space and comments; empty at the end."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        if self._text.startswith("/*", self._at):
            self.fail("this comment has no end: */ is missing")
        return self._text[self._at : self._at + 1]

    def value(self, depth: int) -> JsonNode:
        first, at = self.peek(), self._at
        if depth > DEPTH_MAX:
            self.fail(f"nests deeper than {DEPTH_MAX}")
        if first == "{":
            return JsonNode(at, self._object(depth))
        if first == "[":
            return JsonNode(at, self._array(depth))
        return JsonNode(at, self._word(self._token(first)))

    def _token(self, first: str) -> str:
        if not first:
            self.fail("a value is missing: the text ends here")
        found = (_STRING if first in "\"'" else _BARE).match(self._text, self._at)
        if found is None:
            self.fail(
                "this text has no closing quote"
                if first in "\"'"
                else f"a value should be here, not {first!r}"
            )
        self._at = found.end()
        return found[0]

    def _word(self, token: str) -> Any:
        at = self._at - len(token)
        try:
            return pyjson5.decode(token)
        except (pyjson5.Json5Exception, ValueError):
            if token[0] in "\"'":
                self.fail("there is a broken escape in this text", at)
            self.fail(f"{token[:SHOWN_MAX]!r} is no value; a text has quotes around it", at)

    def _object(self, depth: int) -> Mapping[str, Member]:
        opened = self._at
        self._at += 1
        members: dict[str, Member] = {}
        while self.peek() != "}":
            key_at, key = self._at, self._key(opened)
            if key in members:
                line, _ = line_and_column(self._text, members[key].key_at)
                self.fail(f"{key[:SHOWN_MAX]!r} is said twice, first in line {line}", key_at)
            if self.peek() != ":":
                self.fail(f"a colon should follow the key {key[:SHOWN_MAX]!r}")
            self._at += 1
            members[key] = Member(key_at, self.value(depth + 1))
            self._separated("}", opened)
        self._at += 1
        return members

    def _key(self, opened: int) -> str:
        first = self.peek()
        if first and first in "\"'":
            return str(self._word(self._token(first)))
        found = _NAME.match(self._text, self._at)
        if found is None:
            self._unless_ended("}", opened)
            self.fail(f"a key should be here, not {first!r}")
        self._at = found.end()
        return found[0]

    def _array(self, depth: int) -> list[JsonNode]:
        opened = self._at
        self._at += 1
        items: list[JsonNode] = []
        while self.peek() != "]":
            self._unless_ended("]", opened)
            items.append(self.value(depth + 1))
            self._separated("]", opened)
        self._at += 1
        return items

    def _separated(self, closing: str, opened: int) -> None:
        found = self.peek()
        if found == ",":
            self._at += 1
        elif found != closing:
            self._unless_ended(closing, opened)
            self.fail(f"a comma or {closing} should be here, not {found!r}")

    def _unless_ended(self, closing: str, opened: int) -> None:
        if not self.peek():
            line, column = line_and_column(self._text, opened)
            self.fail(
                f"the text ends, but what was opened in line {line}, column {column} lacks its {closing}"
            )
