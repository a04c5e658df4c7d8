"""A file that changed while a process runs: what it may take over at once, and what has to wait for a restart."""

from __future__ import annotations

from dataclasses import dataclass

from clutch.config.keys import ROOT, is_live
from clutch.config.settings import Settings, get, put


@dataclass(frozen=True, slots=True)
class Reloaded:
    """`settings`: what holds now. `taken` and `waiting`: the keys that differ from before."""

    settings: Settings
    taken: tuple[str, ...]
    waiting: tuple[str, ...]


def merged(old: Settings, new: Settings) -> Reloaded:
    differing = [key for key, to in ROOT.items() if get(old, to.path) != get(new, to.path)]
    waiting = tuple(key for key in differing if not is_live(key))
    for key in waiting:
        new = put(new, ROOT[key].path, get(old, ROOT[key].path))
    return Reloaded(new, tuple(key for key in differing if is_live(key)), waiting)
