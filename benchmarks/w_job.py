"""The job of `w1` and `w2`: one parent gives each item to a child; a child asks its model three times.

    parent   ask ─▶ N × sessions_spawn, sessions_yield ……………………… all findings ─▶ ask ─▶ last word
    child    ask ─▶ look_up ─▶ ask ─▶ record ─▶ ask ─▶ finding

What is said here is said by both sides: the server plays the model, the floor and Clutch do the work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

MODEL: Final = "bench-1"
LATENCY_S: Final = 0.2
CALLS_OF_CHILD: Final = 3
CALLS_OF_PARENT: Final = 2
IDEAL_S: Final = LATENCY_S * (CALLS_OF_CHILD + CALLS_OF_PARENT)

_FAN_OUT: Final = re.compile(r"Survey all (\d+) items")
_ITEM: Final = re.compile(r"Survey item (\d+)\b")
_FINDING: Final = re.compile(r"Item (\d+) has ")


def fan_out(count: int) -> str:
    return f"Survey all {count} items, each by a child of its own, and tell me when you have heard of all."


def task(item: int) -> str:
    return f"Survey item {item}: look it up, record what you saw, and say in one sentence what it has."


def finding(item: int) -> list[str]:
    """In pieces, as a model writes."""
    return [f"Item {item} has ", f"{item % 7} doors, ", "and all of ", "them are ", "painted green."]


def count_in(text: str) -> int | None:
    """How many children a parent was told to have; None: these are not the words to a parent."""
    found = _FAN_OUT.search(text)
    return int(found[1]) if found else None


def item_in(text: str) -> int:
    found = _ITEM.search(text)
    if found is None:
        raise ValueError(f"neither a parent's nor a child's task: {text[:200]!r}")
    return int(found[1])


def findings_in(text: str) -> list[int]:
    return [int(item) for item in _FINDING.findall(text)]


def expected_calls(children: int) -> int:
    return CALLS_OF_PARENT + CALLS_OF_CHILD * children


class Work:
    """The two tools. `effects` is a file to which every record is appended, if it is to be seen from outside."""

    def __init__(self, effects: Path | None = None) -> None:
        self._effects = effects
        self._records: dict[int, str] = {}

    def look_up(self, item: int) -> str:
        return f"item {item}: {item % 7} doors, painted green, last seen in hall {item % 13}"

    def record(self, item: int, text: str) -> str:
        self._records[item] = text
        if self._effects is not None:
            with self._effects.open("a") as file:
                file.write(f"{item}\n")
        return "recorded"

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        match name:
            case "look_up":
                return self.look_up(**arguments)
            case "record":
                return self.record(**arguments)
            case _:
                raise ValueError(f"there is no tool {name!r}")
