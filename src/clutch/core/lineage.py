"""Who descends from whom, when all that is left is what each one says about its parent.

Clutch itself writes parent and depth down when a child is born. Records of other systems may lack both, name a
parent that is gone, or name each other in a circle.
"""

from __future__ import annotations

from collections.abc import Mapping


def untangled(parent_of: Mapping[str, str]) -> dict[str, str]:
    """The same without the links that would close a circle, in the order they are given."""
    kept: dict[str, str] = {}
    for name, parent in parent_of.items():
        if name not in ancestors(parent, kept) and name != parent:
            kept[name] = parent
    return kept


def ancestors(name: str, parent_of: Mapping[str, str]) -> tuple[str, ...]:
    """Nearest first. Ends where a circle would begin again."""
    chain: list[str] = []
    seen = {name}
    while (above := parent_of.get(name)) is not None and above not in seen:
        chain.append(above)
        seen.add(above)
        name = above
    return tuple(chain)


def depth(name: str, parent_of: Mapping[str, str]) -> int:
    """0 for whoever has no parent."""
    return len(ancestors(name, parent_of))
