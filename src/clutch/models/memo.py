"""Remembers what was made of an object, by its identity: a tool's schema is a mapping and has no hash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """For objects that do not change. It holds them, so an identity is never given to another one meanwhile."""

    def __init__(self, make: Callable[[K], V], *, kept_max: int) -> None:
        self._make = make
        self._kept_max = kept_max
        self._kept: dict[int, tuple[K, V]] = {}

    def __call__(self, thing: K) -> V:
        found = self._kept.get(id(thing))
        if found is not None:
            return found[1]
        value = self._make(thing)
        if len(self._kept) >= self._kept_max:
            self._kept.clear()
        self._kept[id(thing)] = (thing, value)
        return value
