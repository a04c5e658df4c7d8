"""Writes down the public names of Python as text: signatures, fields, members; nothing about where they are defined."""

from __future__ import annotations

import dataclasses
import dis
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import clutch.sync
import clutch.testing

INLINE_MAX = 3  #: parameters in one line


def api() -> str:
    return "\n".join((*_module("clutch"), *_module("clutch.testing"), *_module("clutch.sync"))) + "\n"


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"# {name}"
    for public in sorted(getattr(module, "__all__", None) or _own(module)):
        value = getattr(module, public)
        if inspect.isclass(value):
            yield from _class(public, value)
        elif callable(value):
            yield f"def {public}{signature(value)}"
        else:
            yield public
        yield ""


def _own(module: Any) -> list[str]:
    found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return [name for name, one in found.items() if inspect.isclass(one) and one.__module__ == module.__name__]


def _class(name: str, kind: type) -> Iterator[str]:
    known = [base for base in kind.__bases__ if base not in _ours(base) or hasattr(clutch, base.__name__)]
    bases = ", ".join(base.__name__ for base in known if base is not object)
    yield f"class {name}{f'({bases})' if bases else ''}"
    if issubclass(kind, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in kind)
        return
    fields = {one.name for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for member in sorted({*names(kind), *_instance_attributes(kind)} - fields):
        yield from (f"    {line}" for line in _member(kind, member))


def names(kind: type) -> Iterator[str]:
    yield "__init__"
    for base in _ours(kind):
        yield from (one for one in (*vars(base), *inspect.get_annotations(base)) if not one.startswith("_"))


def _instance_attributes(kind: type) -> Iterator[str]:
    """Yield the public attributes that constructors assign."""
    for base in _ours(kind):
        if (made := vars(base).get("__init__")) is not None:
            steps = [one for one in dis.get_instructions(made) if one.opname == "STORE_ATTR"]
            yield from (one.argval for one in steps if not one.argval.startswith("_"))


def _ours(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.startswith("clutch")]


def _member(kind: type, name: str) -> Iterator[str]:
    value = inspect.getattr_static(kind, name, None)
    if name == "__init__" and not inspect.isfunction(value):
        return
    if isinstance(value, property):
        yield f"{name}: {plain(inspect.signature(value.fget or len).return_annotation)}"
    elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
        word = "async def" if inspect.iscoroutinefunction(getattr(kind, name)) else "def"
        yield f"{word} {name}{signature(getattr(kind, name))}"
    else:
        notes = [inspect.get_annotations(base).get(name) for base in _ours(kind)]
        yield f"{name}{next((f': {plain(note)}' for note in notes if note), '')}"


def signature(function: Callable[..., Any]) -> str:
    made = inspect.signature(function)
    said = [*_parameters(made), *_unpacked(function, made)]
    listed = (
        ", ".join(said)
        if len(said) <= INLINE_MAX
        else "".join(f"\n        {one}," for one in said) + "\n    "
    )
    return f"({listed}) -> {plain(made.return_annotation)}"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    before: object = None
    for name, one in signature.parameters.items():
        if one.kind is one.KEYWORD_ONLY and before not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            yield "*"
        before = one.kind
        default = "" if one.default is one.empty else f" = {default_text(one.default)}"
        if name != "self":
            yield f"{one.replace(annotation=one.empty, default=one.empty)}: {plain(one.annotation)}{default}"


def default_text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(default_text, value)))}}}"
    if inspect.isfunction(value):
        return "..."
    return value.__name__ if inspect.isclass(value) else repr(value)


def _unpacked(function: Any, signature: inspect.Signature) -> Iterator[str]:
    """Yield the keys of `**options: Unpack[TypedDict]`, which are parameters to a caller."""
    known = inspect.unwrap(function).__globals__
    for name in re.findall(r"Unpack\[(\w+)\]", str(signature)):
        for key, note in sorted(known[name].__annotations__.items()):
            yield f"{key}: {plain(getattr(note, '__forward_arg__', note))}"


def plain(what: Any) -> str:
    """Return an annotation without the modules it names."""
    if what is inspect.Signature.empty or what is None:
        return "None"
    text = what if isinstance(what, str) else what.__name__ if inspect.isclass(what) else str(what)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text)
