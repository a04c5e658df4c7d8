"""What is known of every key of the table: its kind, the field it sets, and what that is without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, TypeAlias, get_type_hints

from clutch.config import kinds
from clutch.config.keys import FORMS, To, is_live
from clutch.config.kinds import Kind, Many, Maybe, Named, Record
from clutch.config.settings import Settings, get


@dataclass(frozen=True, slots=True)
class Entry:
    """`key`: in full, `[]` for any item of a list and `NAME` for any name. `owner`: the class that has the field."""

    key: str
    kind: Kind
    owner: type
    field: str
    default: Any  #: of the field itself; REQUIRED: there is none

    @property
    def is_live(self) -> bool:
        return is_live(self.key)


REQUIRED = object()
Tree: TypeAlias = "Mapping[str, To | Tree]"


@lru_cache(maxsize=16)
def tree_of(made: type) -> Tree:
    """Dotted keys as objects in objects."""
    tree: dict[str, Any] = {}
    for key, to in FORMS[made].items():
        *folders, last = key.split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = to
    return tree


@lru_cache(maxsize=512)
def kind_at(made: type, key: str) -> Kind:
    """Of a key of a form."""
    to = FORMS[made][key]
    if to.kind is not None:
        return to.kind
    owner, field, hint = _field_of(made, to.path)
    del owner
    return kinds.kind_of(hint, key, field)


def _field_of(made: type, path: str) -> tuple[type, str, Any]:
    """The class that declares it, its name there, and its type. A part of a mapping is the mapping's."""
    first, *rest = path.split(".")
    owner, name, hint = made, first, get_type_hints(made)[first]
    for part in rest:
        if hasattr(hint, "__dataclass_fields__"):
            owner, name, hint = hint, part, get_type_hints(hint)[part]
        else:
            hint = hint.__args__[1]
    return owner, name, hint


@lru_cache(maxsize=1)
def catalogue() -> tuple[Entry, ...]:
    """Every key there is, those of records after the key that holds them."""
    return tuple(_entries(Settings, ""))


def _entries(made: type, prefix: str) -> Iterator[Entry]:
    defaults = Settings() if made is Settings else None
    for key, to in FORMS[made].items():
        owner, field, _ = _field_of(made, to.path)
        kind = kind_at(made, key)
        default = get(defaults, to.path) if defaults is not None else default_of(owner, field)
        yield Entry(prefix + key, kind, owner, field, default)
        record, infix = record_in(kind)
        if record is not None:
            yield from _entries(record.made, f"{prefix}{key}{infix}.")


def record_in(kind: Kind) -> tuple[Record | None, str]:
    """The record that a value is or holds, and what stands between its key and theirs."""
    match kind:
        case Maybe():
            return record_in(kind.kind)
        case Record():
            return kind, ""
        case Named(record):
            return record, ".NAME"
        case Many(Record() as record):
            return record, "[]"
        case _:
            return None, ""


def default_of(owner: type, field: str) -> Any:
    found = next(one for one in fields(owner) if one.name == field)
    if found.default is not MISSING:
        return found.default
    return REQUIRED if found.default_factory is MISSING else found.default_factory()
