"""What holds for a key, and why: its value now, its default, where it is said, what it may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from clutch.config import kinds
from clutch.config.catalogue import REQUIRED, Entry, catalogue, kind_at
from clutch.config.files import Config
from clutch.config.keys import ALIASES, FORMS, To
from clutch.config.kinds import Choice, Kind, Many, Maybe, Named, Record
from clutch.config.reading import suggestion
from clutch.config.reasons import reason_of
from clutch.config.settings import Settings, get
from clutch.errors import InvalidInput

_ITEM = re.compile(r"\[([0-9]+)\](?:\.|$)")
_NOTHING = object()
PART_CHARS_MIN = 3  #: fewer letters are in every second key


@dataclass(frozen=True, slots=True)
class Explained:
    """Values as they would be written. `line` None: it is not said in the file."""

    key: str
    value: Any
    default: Any
    is_required: bool
    line: int | None
    may_be: str
    reason: str
    choices: tuple[tuple[str, str], ...]  #: each word with what it means
    is_live: bool


def explain(config: Config, wanted: str) -> tuple[Explained, ...]:
    """The key, every key below it, or all that have these letters. Raises InvalidInput for one there is not."""
    found = tuple(_explained(config, entry, key) for entry, key in _meant(wanted))
    if not found:
        near = suggestion(wanted, {one.key for one in catalogue()} | _sections())
        raise InvalidInput("KEY", f"{wanted[:80]!r} is not known{near}")
    return found


def said(config: Config) -> dict[str, Any]:
    """Every key that the file says, with its value; secrets stay secret."""
    return {key: explain(config, key)[0].value for key in config.lines}


def _meant(wanted: str) -> Iterator[tuple[Entry, str]]:
    """With the key as it was meant: `agents.list[0].model` is `agents.list[].model`."""
    for entry in catalogue():
        pattern = re.escape(entry.key).replace("NAME", r".+?").replace(r"\[\]", r"\[[0-9]*\]")
        if found := re.fullmatch(pattern, wanted):
            yield entry, found[0]
            return
    below = [one for one in catalogue() if one.key.startswith((f"{wanted}.", f"{wanted}["))]
    alike = [
        one for one in catalogue() if len(wanted) >= PART_CHARS_MIN and wanted.lower() in one.key.lower()
    ]
    for entry in below or alike:
        yield entry, entry.key


def _sections() -> set[str]:
    return {entry.key.rpartition(".")[0] for entry in catalogue()}


def _explained(config: Config, entry: Entry, key: str) -> Explained:
    value = _now(Settings, config.settings, key)
    is_required = entry.default is REQUIRED
    default = None if is_required else kinds.shown(entry.kind, entry.default)
    line = config.lines.get(key)
    other = {**ALIASES, **{key: alias for alias, key in ALIASES.items()}}.get(key, "")
    return Explained(
        key=key,
        value=default if value is _NOTHING else kinds.shown(entry.kind, value),
        default=default,
        is_required=is_required,
        line=config.lines.get(other) if line is None else line,
        may_be=kinds.in_words(entry.kind),
        reason=reason_of(entry.owner, entry.field),
        choices=tuple(_choices(entry.kind)),
        is_live=entry.is_live,
    )


def _choices(kind: Kind) -> Iterator[tuple[str, str]]:
    match kind:
        case Maybe(inner):
            yield from _choices(inner)
        case Choice(words):
            for word, value in words.items():
                yield word, reason_of(type(value), value.name) if isinstance(value, Enum) else ""
        case _:
            pass


def _now(made: type, settings: Any, key: str) -> Any:
    """What holds; nothing, where no such record was said."""
    form = FORMS[made]
    for known, to in form.items():
        if key == known:
            return get(settings, to.path)
        if key.startswith((f"{known}.", f"{known}[")):
            return _within(kind_at(made, known), to, settings, key.removeprefix(known))
    return _NOTHING


def _within(kind: Kind, to: To, settings: Any, rest: str) -> Any:
    held = get(settings, to.path)
    match kind:
        case Maybe(inner):
            return _NOTHING if held is None else _within(inner, to, settings, rest)
        case Record(made):
            return _now(made, held, rest.removeprefix("."))
        case Many(Record(made)):
            items = list(held.values()) if hasattr(held, "values") else list(held)
            found = _ITEM.match(rest)
            at = len(items) if found is None else int(found[1])
            return _now(made, items[at], rest[found.end() :]) if found and at < len(items) else _NOTHING
        case Named(Record(made), name):
            one = next((one for one in held if rest.startswith(f".{getattr(one, name)}.")), None)
            return _NOTHING if one is None else _now(made, one, rest[len(getattr(one, name)) + 2 :])
        case _:
            return _NOTHING
