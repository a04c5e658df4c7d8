"""A tool call in a few words: its name and the one argument that tells most about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clutch.core.shown import visible

ARGUMENT_MAX = 60
#: What a call is about, in the order of how much it tells.
_TELLING = ("path", "url", "command", "query", "pattern", "label", "sessionKey", "target", "question", "task")


def main_argument(args: Mapping[str, Any]) -> str:
    """Empty if there is none. Of an address only the host: what follows may be long or secret."""
    texts = {name: value for name, value in args.items() if isinstance(value, str) and value.strip()}
    name = next((name for name in _TELLING if name in texts), next(iter(texts), ""))
    text = texts.get(name, "").strip()
    if text.startswith(("http://", "https://")):
        text = text.split("/", 3)[2].rpartition("@")[2].partition("?")[0]
    return visible(text, ARGUMENT_MAX)


def in_words(name: str, argument: str) -> str:
    return f"{name}({argument})" if argument else name
