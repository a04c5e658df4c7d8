"""A session's own way to queue announces, set with `/queue <mode> [debounce:2s cap:25 drop:old]`.

Stored as JSON with the session; what it does not say is as configured.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache

from clutch.core.policy import Announcing, Drop, QueueMode

USAGE = (
    f"/queue <{'|'.join(mode.value for mode in QueueMode)}|default>"
    f" [debounce:2s cap:25 drop:{'|'.join(drop.value for drop in Drop)}]"
)
DEFAULT = "default"
DEBOUNCE_MAX_S = 3600.0  # longer is not a debounce but a way to lose letters
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}


def parse(words: str) -> str | None:
    """What is stored for these words; None: as configured again. Raises ValueError, which says how to write it."""
    first, *rest = words.split() or [""]
    mode = "followup" if first == "direct" else first
    if mode == DEFAULT and not rest:
        return None
    if mode not in {known.value for known in QueueMode}:
        raise ValueError(f"there is no queue mode {first[:40]!r}. Usage: {USAGE}")
    said: dict[str, object] = {"mode": mode}
    for word in rest:
        name, _, value = word.partition(":")
        said[name] = _option(name, value)
    return json.dumps(said)


def _option(name: str, value: str) -> object:
    match name:
        case "debounce" if (found := _DURATION.fullmatch(value)) and _seconds(found) <= DEBOUNCE_MAX_S:
            return _seconds(found)
        case "cap" if value.isascii() and value.isdigit() and 1 <= int(value[:6]) <= 1000:
            return int(value)
        case "drop" if value in {known.value for known in Drop}:
            return value
    raise ValueError(f"{name[:40]}:{value[:40]} is not an option of the queue. Usage: {USAGE}")


def _seconds(found: re.Match[str]) -> float:
    return float(found[1]) * _SECONDS[found[2]]


def applied(rules: Announcing, stored: str | None) -> Announcing:
    """Asked at every turn of a session; few sessions have a way of their own."""
    return rules if stored is None else _changed(rules, stored)


@lru_cache(maxsize=256)
def _changed(rules: Announcing, stored: str) -> Announcing:
    said = json.loads(stored)
    return replace(
        rules,
        mode=QueueMode(said["mode"]),
        debounce_s=said.get("debounce", rules.debounce_s),
        cap=said.get("cap", rules.cap),
        drop=Drop(said.get("drop", rules.drop)),
    )
