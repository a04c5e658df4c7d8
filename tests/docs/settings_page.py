"""The page `docs/reference/settings.md`, made from the table of keys. `tests.docs.reference` writes it."""

from __future__ import annotations

import json
import re
from itertools import groupby

from clutch.config import types
from clutch.config.explain import reason_of
from clutch.config.keys import REQUIRED, ConfigKey, catalogue

HEAD = """# Every setting

Generated from the code (`python -m tests.docs.reference`). [The config](../how-to/configure.md) explains how a config
is written, and `clutch config explain KEY` shows the value in effect. `[]` stands for any item of a list, `NAME` for
any name.
A running gateway applies keys marked ↻ when it reads its file again; the others need a restart.
"""
CELL_CHARS_MAX = 60
_BRIEF = re.compile(r': (?:bytes, or )?a text like "[^"]*" or "[^"]*"')  # explained once, in the guide


def settings_page() -> str:
    parts = [HEAD]
    for section, entries in groupby(catalogue(), key=lambda entry: _section(entry.key)):
        parts.append(f"\n## {section}\n\n| key | default | may be | what it is |\n|---|---|---|---|\n")
        parts += [_row(entry) for entry in entries]
    return "".join(parts)


def _section(key: str) -> str:
    first, *rest = key.split(".")
    return f"{first}.{rest[0].removesuffix('[]')}" if first == "agents" else first


def _row(entry: ConfigKey) -> str:
    cells = [
        f"`{entry.key}`{' ↻' if entry.is_live else ''}",
        _default(entry),
        _BRIEF.sub("", types.in_words(entry.kind)),
        reason_of(entry.owner, entry.field),
    ]
    return f"| {' | '.join(cells)} |\n"


def _default(entry: ConfigKey) -> str:
    if entry.default is REQUIRED:
        return "required"
    shown = types.shown(entry.kind, entry.default)
    if shown is None or shown == "…":
        return ""
    text = json.dumps(shown, ensure_ascii=False)
    return f"`{text}`" if len(text) <= CELL_CHARS_MAX else f"`{text[:CELL_CHARS_MAX]}…`"
