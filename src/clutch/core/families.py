"""The order of tasks in every list: families stand where the first of their tasks does, children below their parent."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
Name = Callable[[T], Hashable]


def in_families(items: Sequence[T], own: Name[T], above: Name[T]) -> list[tuple[int, T]]:
    """Return each item with its level below the top of its family; `own` and `above` name it and its parent.

    The list is in the order of urgency already. A family therefore moves up to its most urgent member, so that an
    active child of a finished parent precedes other finished tasks. An item without its parent in the list is on top.
    Imported tasks can be each other's parents: they and what is below them come last, each on top.
    """
    known = {own(item): item for item in items}
    below: dict[Hashable, list[T]] = {}
    for item in items:
        below.setdefault(above(item), []).append(item)
    found = [(item, _top(item, known, own, above)) for item in items]
    tops = dict.fromkeys(top for _, top in found if top is not None)
    placed = [one for top in tops for one in _walk(known[top], below, own)]
    return placed + [(0, item) for item, top in found if top is None]


def _top(item: T, known: dict[Hashable, T], own: Name[T], above: Name[T]) -> Hashable | None:
    """Return the name of the uppermost listed ancestor. None: there is a circle above it."""
    seen = {own(item)}
    while (parent := known.get(above(item))) is not None:
        if own(parent) in seen:
            return None
        seen.add(own(parent))
        item = parent
    return own(item)


def _walk(top: T, below: dict[Hashable, list[T]], own: Name[T]) -> Iterator[tuple[int, T]]:
    # Without recursion: a chain of tasks may be deeper than Python's stack.
    waiting = [(0, top)]
    while waiting:
        level, item = waiting.pop()
        yield level, item
        waiting += [(level + 1, child) for child in reversed(below.get(own(item), []))]
