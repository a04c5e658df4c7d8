"""A parsed file becomes settings, or a list of everything that is wrong with it. Nothing is half taken.

    nodes ──walk──▶ Said(key, place, value) … ──put, one by one──▶ Settings

One by one, because a setting that refuses a value says so when it is made; so the refusal has a place in the file.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, assert_never

from clutch.config import kinds, units
from clutch.config.catalogue import REQUIRED, Tree, catalogue, default_of, kind_at, tree_of
from clutch.config.json5 import Member, Node
from clutch.config.keys import ALIASES, FORMS, To
from clutch.config.kinds import Kind
from clutch.config.settings import Settings, put
from clutch.core.keys import nearest
from clutch.errors import InvalidInput

SHOWN_MAX = 60
NUMBER_MAX = 2**53  # beyond it numbers of JSON are no longer exact
OFFERED_MAX = 12  # keys named where nothing is near


@dataclass(frozen=True, slots=True)
class Problem:
    at: int
    key: str
    rule: str


@dataclass(frozen=True, slots=True)
class Said:
    """`key` as it is written in its form, `path` in full."""

    key: str
    path: str
    at: int
    to: To
    value: Any


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """Looked up when it is needed, not when the file is read."""

    name: str
    into: str


@dataclass(frozen=True, slots=True)
class Found:
    """`places`: where each key is said. `secrets`: keys whose secret stands in the file itself."""

    settings: Settings
    places: Mapping[str, int]
    secrets: Mapping[str, int]


class Broken(Exception):
    """A value was refused; the problem is noted already."""


@dataclass(slots=True)
class Reading:
    """Of one file. `folder`: what relative paths start from."""

    folder: Path
    environment: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    secrets: dict[str, int] = field(default_factory=dict)

    def settings(self, root: Node) -> Found:
        """What it says over the defaults. Meaningful only where `problems` stays empty."""
        settings = Settings()
        for said in self._of_form(Settings, root, ""):
            try:
                settings = put(settings, said.to.path, said.value)
            except InvalidInput as error:
                self._note(said.at, said.path, error.rule)
        for alias, key in ALIASES.items():
            if alias in self.places and key in self.places:
                self._note(self.places[alias], alias, f"says the same as {key}; leave one of them out")
        return Found(settings, self.places, self.secrets)

    def _note(self, at: int, path: str, rule: str) -> None:
        self.problems.append(Problem(at, path, rule))

    def _refuse(self, node: Node, path: str, rule: str) -> Broken:
        self._note(node.at, path, rule)
        return Broken(rule)

    # ---- objects -------------------------------------------------------------------------------------

    def _of_form(self, made: type, node: Node, path: str) -> list[Said]:
        return list(self._walk(made, tree_of(made), node, path, ""))

    def _walk(self, made: type, tree: Tree, node: Node, path: str, inner: str) -> Iterator[Said]:
        if not isinstance(node.value, Mapping):
            self._note(node.at, path or "the whole file", f"must be an object, not {_shown(node)}")
            return
        for key, member in node.value.items():
            here, known = _joined(path, key), tree.get(key)
            if known is None:
                self._note(member.key_at, here, f"not known{_did_you_mean(key, here, tree)}")
            elif isinstance(known, To):
                self.places[here] = member.key_at
                yield from self._said(made, _joined(inner, key), here, known, member)
            else:
                yield from self._walk(made, known, member.node, here, _joined(inner, key))

    def _said(self, made: type, key: str, path: str, to: To, member: Member) -> Iterator[Said]:
        try:
            value = self._value(kind_at(made, key), member.node, path)
        except Broken:
            return
        yield Said(key, path, member.node.at, to, value)

    def _record(self, made: type, node: Node, path: str, **given: str) -> Any:
        """Raises Broken, when everything wrong inside is noted."""
        before = len(self.problems)
        said = self._of_form(made, node, path)
        if len(self.problems) > before:
            raise Broken(path)
        values: dict[str, Any] = given | dict(_assigned(one) for one in said)
        try:
            return made(**values)
        except TypeError as error:
            raise self._refuse(node, path, f"lacks {_missing(made, values)}") from error
        except InvalidInput as error:
            blamed = next((one for one in said if error.field.split(".")[-1] in (one.key, one.to.path)), None)
            at, where = (node.at, path) if blamed is None else (blamed.at, blamed.path)
            self._note(at, where, error.rule)
            raise Broken(path) from error

    # ---- values --------------------------------------------------------------------------------------

    def _value(self, kind: Kind, node: Node, path: str) -> Any:
        """Raises Broken."""
        match kind:
            case kinds.Maybe():
                return None if node.value is None else self._value(kind.kind, node, path)
            case kinds.Either(choice, other):
                is_word = isinstance(node.value, str) and node.value in choice.words
                return self._value(choice if is_word else other, node, path)
            case kinds.Record(made):
                return self._record(made, node, path)
            case kinds.Named(record, name):
                members = self._members(kind, node, path)
                named = [(key, one.node) for key, one in members.items()]
                return self._each(
                    named,
                    lambda key, one: self._record(record.made, one, _joined(path, key), **{name: key}),
                )
            case kinds.Many():
                return self._many(kind, node, path)
            case kinds.Table():
                return self._table(kind, node, path)
            case kinds.Secret():
                return self._secret(kind, node, path)
            case kinds.Folder():
                return self._folder(node, path)
            case _:
                try:
                    return _simple(kind, node.value)
                except ValueError as error:
                    rule = f"must be {kinds.in_words(kind)}, not {_shown(node)}{_near(kind, node)}"
                    raise self._refuse(node, path, rule) from error

    def _members(self, kind: Kind, node: Node, path: str) -> Mapping[str, Member]:
        if not isinstance(node.value, Mapping):
            raise self._refuse(node, path, f"must be {kinds.in_words(kind)}, not {_shown(node)}")
        return node.value

    def _each(self, items: Iterable[tuple[str, Node]], read: Callable[[str, Node], Any]) -> tuple[Any, ...]:
        """All of them are looked at, also after one that is wrong."""
        values, broken = [], None
        for name, node in items:
            try:
                values.append(read(name, node))
            except Broken as error:
                broken = error
        if broken is not None:
            raise broken
        return tuple(values)

    def _many(self, kind: kinds.Many, node: Node, path: str) -> Any:
        if not isinstance(node.value, list):
            raise self._refuse(node, path, f"must be {kinds.in_words(kind)}, not {_shown(node)}")
        items = [(f"{path}[{number}]", item) for number, item in enumerate(node.value)]
        values = self._each(items, lambda where, item: self._value(kind.item, item, where))
        try:
            return kind.into(values)
        except InvalidInput as error:
            raise self._refuse(node, path, error.rule) from error

    def _table(self, kind: kinds.Table, node: Node, path: str) -> Mapping[Any, Any]:
        members, names = self._members(kind, node, path), kind.names
        for key, member in members.items():
            if names is not None and key not in names.words:
                self._note(member.key_at, _joined(path, key), f"must be {kinds.in_words(names)}")
                raise Broken(path)
        items = [(_joined(path, key), one.node) for key, one in members.items()]
        values = self._each(items, lambda where, item: self._value(kind.item, item, where))
        keys = members if names is None else [names.words[key] for key in members]
        return MappingProxyType(dict(zip(keys, values, strict=True)))

    def _secret(self, kind: kinds.Secret, node: Node, path: str) -> str | FromEnvironment:
        if isinstance(node.value, str):
            self.secrets[path] = node.at
            return node.value
        name = node.plain().get("env") if isinstance(node.value, Mapping) else None
        if not isinstance(name, str) or set(node.plain()) != {"env"}:
            given = "another object" if isinstance(node.value, Mapping) else f"a {type(node.value).__name__}"
            raise self._refuse(node, path, f"must be {kinds.in_words(kind)}, not {given}")
        if kind.later is not None:
            return FromEnvironment(name, kind.later)
        if name not in self.environment:
            raise self._refuse(node, path, f"there is no variable {name[:SHOWN_MAX]!r} in the environment")
        return self.environment[name]

    def _folder(self, node: Node, path: str) -> str:
        """`~` is one's home; anything relative starts where the file is."""
        if not isinstance(node.value, str) or not node.value or "\0" in node.value:
            raise self._refuse(node, path, f"must be {kinds.in_words(kinds.Folder())}, not {_shown(node)}")
        try:
            return str(self.folder / Path(node.value).expanduser())
        except RuntimeError as error:
            raise self._refuse(node, path, "there is no such user's home") from error


def _assigned(said: Said) -> tuple[str, Any]:
    """The field and what it gets."""
    if isinstance(said.value, FromEnvironment):
        return said.value.into, said.value.name
    return said.to.path, said.value


def _simple(kind: Kind, value: Any) -> Any:
    """Raises ValueError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= NUMBER_MAX
    match kind:
        case kinds.Flag() if isinstance(value, bool):
            return value
        case kinds.Whole() | kinds.Size() if is_number and isinstance(value, int):
            return value
        case kinds.Number() if is_number:
            return value
        case kinds.Duration() if (
            is_number and 0 <= value * units.SECONDS_OF[kind.unit] <= units.DURATION_MAX_S
        ):
            return kinds.seconds_of(kind, value, kind.unit)
        case kinds.Text() if isinstance(value, str):
            return value
        case kinds.Choice() if isinstance(value, str) and value in {**kind.words, **kind.hidden}:
            return {**kind.words, **kind.hidden}[value]
        case kinds.Money() if is_number and isinstance(value, int) and value >= 0:
            return Decimal(value)
        case kinds.Duration() | kinds.Size() | kinds.Money() if isinstance(value, str):
            return _measured(kind, value)
    raise ValueError(f"no {type(kind).__name__}")


def _measured(kind: kinds.Duration | kinds.Size | kinds.Money, text: str) -> Any:
    match kind:
        case kinds.Duration():
            seconds = units.parse_duration(text)
            read: Any = None if seconds is None else kinds.seconds_of(kind, seconds, "s")
        case kinds.Size():
            read = units.parse_size(text)
        case kinds.Money():
            read = units.parse_money(text)
        case _:
            assert_never(kind)
    if read is None:
        raise ValueError(text)
    return read


# ---- words -------------------------------------------------------------------------------------------------


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(node: Node) -> str:
    match node.value:
        case Mapping():
            return "an object"
        case list():
            return "a list"
        case word:
            text = json.dumps(word, ensure_ascii=False)
            return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _near(kind: Kind, node: Node) -> str:
    words = list(kind.words) if isinstance(kind, kinds.Choice) else []
    return suggestion(str(node.value), words)


def suggestion(word: str, known: Iterable[str]) -> str:
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def _did_you_mean(key: str, path: str, tree: Tree) -> str:
    """A key beside it; else the same key elsewhere."""
    near = suggestion(key, tree)
    if near:
        return near
    elsewhere = [one.key for one in catalogue() if one.key.split(".")[-1].lower() == key.lower()]
    closest = difflib.get_close_matches(path[: 2 * SHOWN_MAX], elsewhere, n=1, cutoff=0.0)
    return (
        f"; did you mean {closest[0]}?"
        if closest
        else f"; here may be {', '.join(sorted(tree)[:OFFERED_MAX])}"
    )


def _missing(made: type, values: Mapping[str, Any]) -> str:
    lacking = [
        key
        for key, to in FORMS[made].items()
        if to.path not in values and default_of(made, to.path) is REQUIRED
    ]
    return ", ".join(lacking)
