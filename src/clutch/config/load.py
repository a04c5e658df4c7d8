"""Turn a config file into settings, or into a list of everything that is wrong with it. Nothing is applied in part.

    JSON nodes ──walk──▶ ConfigEntry(key, place, value) … ──put, one by one──▶ Settings

The values are put one by one, because a setting checks a value when it is made: so each refusal has a place in the
file."""

from __future__ import annotations

import difflib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clutch.config import json5, types
from clutch.config.json5 import JsonNode, Member
from clutch.config.keys import (
    ALIASES,
    FORMS,
    REQUIRED,
    ROOT,
    SHORT_FORMS,
    Settings,
    To,
    Tree,
    catalogue,
    default_of,
    get,
    is_live,
    kind_at,
    put,
    tree_of,
)
from clutch.config.types import Kind, Plain
from clutch.core.attachments import is_state
from clutch.core.ids import nearest
from clutch.errors import ConfigInvalid, InvalidInput
from clutch.surfaces.discovery import CONFIG_FILE
from clutch.tools.sandbox.policy import is_beneath

SHOWN_MAX = 60
NUMBER_MAX = 2**53  # larger numbers of JSON are not exact
OFFERED_MAX = 12  # keys named where nothing is near


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    at: int
    key: str
    rule: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A value of the file. `key`: as it is named in its record; `path`: in full."""

    key: str
    path: str
    at: int
    to: To
    value: Any


@dataclass(frozen=True, slots=True)
class FromEnvironment:
    """A variable that is read when its value is needed, not when the file is read."""

    name: str
    into: str


@dataclass(frozen=True, slots=True)
class ParsedConfig:
    """`places`: where each key stands. `secrets`: keys whose secret stands in the file itself."""

    settings: Settings
    places: Mapping[str, int]
    secrets: Mapping[str, int]


class Broken(Exception):
    """A value was refused, and the problem is in the list."""


@dataclass(slots=True)
class ConfigReader:
    """Reads one file. `folder`: what relative paths start from."""

    folder: Path
    environment: Mapping[str, str]
    problems: list[ConfigProblem] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    secrets: dict[str, int] = field(default_factory=dict)

    def settings(self, root: JsonNode) -> ParsedConfig:
        """Return the file's values over the defaults. Meaningful only where `problems` stays empty."""
        settings = Settings()
        for said in self._of_form(Settings, root, ""):
            try:
                settings = put(settings, said.to.path, said.value)
            except InvalidInput as error:
                self._note(said.at, said.path, error.rule)
        for alias, key in ALIASES.items():
            if alias in self.places and key in self.places:
                self._note(self.places[alias], alias, f"says the same as {key}; leave one of them out")
        return ParsedConfig(settings, self.places, self.secrets)

    def _note(self, at: int, path: str, rule: str) -> None:
        self.problems.append(ConfigProblem(at, path, rule))

    def _refuse(self, node: JsonNode, path: str, rule: str) -> Broken:
        self._note(node.at, path, rule)
        return Broken(rule)

    # ---- objects -------------------------------------------------------------------------------------

    def _of_form(self, made: type, node: JsonNode, path: str) -> list[ConfigEntry]:
        return list(self._walk(made, tree_of(made), node, path, ""))

    def _walk(self, made: type, tree: Tree, node: JsonNode, path: str, inner: str) -> Iterator[ConfigEntry]:
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
            elif here in SHORT_FORMS and _is_short(member.node.value):
                short = {SHORT_FORMS[here]: Member(member.key_at, member.node)}
                node_ = replace(member.node, value=short)
                yield from self._walk(made, known, node_, here, _joined(inner, key))
            else:
                yield from self._walk(made, known, member.node, here, _joined(inner, key))

    def _said(self, made: type, key: str, path: str, to: To, member: Member) -> Iterator[ConfigEntry]:
        try:
            value = self._value(kind_at(made, key), member.node, path)
        except Broken:
            return
        yield ConfigEntry(key, path, member.node.at, to, value)

    def _record(self, made: type, node: JsonNode, path: str, **given: str) -> Any:
        """Raises Broken when all problems inside are in the list."""
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

    def _value(self, kind: Kind, node: JsonNode, path: str) -> Any:
        """Raises Broken."""
        match kind:
            case types.Maybe():
                return None if node.value is None else self._value(kind.kind, node, path)
            case types.Either(choice, other):
                is_word = isinstance(node.value, str) and node.value in choice.words
                return self._value(choice if is_word else other, node, path)
            case types.Record(made):
                return self._record(made, node, path)
            case types.Named(record, name):
                members = self._members(kind, node, path)
                named = [(key, one.node) for key, one in members.items()]
                return self._each(
                    named,
                    lambda key, one: self._record(record.made, one, _joined(path, key), **{name: key}),
                )
            case types.Many():
                return self._many(kind, node, path)
            case types.Table():
                return self._table(kind, node, path)
            case types.Secret():
                return self._secret(kind, node, path)
            case Plain.IDENTITY:
                return self._identity(node, path)
            case Plain.FOLDER:
                return self._folder(node, path)
            case _:
                try:
                    return _simple(kind, node.value)
                except ValueError as error:
                    rule = f"must be {types.in_words(kind)}, not {_shown(node)}{_near(kind, node)}"
                    raise self._refuse(node, path, rule) from error

    def _members(self, kind: Kind, node: JsonNode, path: str) -> Mapping[str, Member]:
        if not isinstance(node.value, Mapping):
            raise self._refuse(node, path, f"must be {types.in_words(kind)}, not {_shown(node)}")
        return node.value

    def _each(
        self, items: Iterable[tuple[str, JsonNode]], read: Callable[[str, JsonNode], Any]
    ) -> tuple[Any, ...]:
        """Read all items, also after one that is wrong, so that all problems are reported at once."""
        values, broken = [], None
        for name, node in items:
            try:
                values.append(read(name, node))
            except Broken as error:
                broken = error
        if broken is not None:
            raise broken
        return tuple(values)

    def _many(self, kind: types.Many, node: JsonNode, path: str) -> Any:
        if not isinstance(node.value, list):
            raise self._refuse(node, path, f"must be {types.in_words(kind)}, not {_shown(node)}")
        items = [(f"{path}[{number}]", item) for number, item in enumerate(node.value)]
        values = self._each(items, lambda where, item: self._value(kind.item, item, where))
        try:
            return kind.into(values)
        except InvalidInput as error:
            raise self._refuse(node, path, error.rule) from error

    def _table(self, kind: types.Table, node: JsonNode, path: str) -> Mapping[Any, Any]:
        members, names = self._members(kind, node, path), kind.names
        for key, member in members.items():
            if names is not None and key not in names.words:
                self._note(member.key_at, _joined(path, key), f"must be {types.in_words(names)}")
                raise Broken(path)
        items = [(_joined(path, key), one.node) for key, one in members.items()]
        values = self._each(items, lambda where, item: self._value(kind.item, item, where))
        keys = members if names is None else [names.words[key] for key in members]
        return MappingProxyType(dict(zip(keys, values, strict=True)))

    def _identity(self, node: JsonNode, path: str) -> str:
        """An object becomes the text that a prompt begins with."""
        if isinstance(node.value, str):
            return node.value
        self._members(Plain.IDENTITY, node, path)
        said = dict(self._table(types.Table(Plain.TEXT), node, path))
        name = said.pop("name", "").strip()
        if not name:
            raise self._refuse(node, path, "an identity that is an object needs a name")
        return "\n".join((f"You are {name}.", *(f"{key}: {value}" for key, value in said.items())))

    def _secret(self, kind: types.Secret, node: JsonNode, path: str) -> str | FromEnvironment:
        if isinstance(node.value, str):
            self.secrets[path] = node.at
            return node.value
        name = node.plain().get("env") if isinstance(node.value, Mapping) else None
        if not isinstance(name, str) or set(node.plain()) != {"env"}:
            given = "another object" if isinstance(node.value, Mapping) else f"a {type(node.value).__name__}"
            raise self._refuse(node, path, f"must be {types.in_words(kind)}, not {given}")
        if kind.later is not None:
            return FromEnvironment(name, kind.later)
        if name not in self.environment:
            raise self._refuse(node, path, f"there is no variable {name[:SHOWN_MAX]!r} in the environment")
        return self.environment[name]

    def _folder(self, node: JsonNode, path: str) -> str:
        """`~` is the user's home; a relative path starts in the folder of the file."""
        if not isinstance(node.value, str) or not node.value or "\0" in node.value:
            raise self._refuse(node, path, f"must be {Plain.FOLDER.value}, not {_shown(node)}")
        try:
            return str(self.folder / Path(node.value).expanduser())
        except RuntimeError as error:
            raise self._refuse(node, path, "there is no such user's home") from error


def _assigned(said: ConfigEntry) -> tuple[str, Any]:
    """Return a field and its value."""
    if isinstance(said.value, FromEnvironment):
        return said.value.into, said.value.name
    return said.to.path, said.value


def _simple(kind: Kind, value: Any) -> Any:
    """Raises ValueError."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= NUMBER_MAX
    match kind:
        case Plain.FLAG if isinstance(value, bool):
            return value
        case Plain.WHOLE | Plain.SIZE if is_number and isinstance(value, int):
            return value
        case Plain.NUMBER if is_number:
            return value
        case Plain.TEXT if isinstance(value, str):
            return value
        case types.Duration() if (
            is_number and 0 <= value * types.SECONDS_OF[kind.unit] <= types.DURATION_MAX_S
        ):
            return types.seconds_of(kind, value, kind.unit)
        case types.OneOf() if isinstance(value, str) and value in {**kind.words, **kind.hidden}:
            return {**kind.words, **kind.hidden}[value]
        case Plain.MONEY if is_number and isinstance(value, int) and value >= 0:
            return Decimal(value)
        case types.Duration() if isinstance(value, str) and (read := types.parse_duration(value)) is not None:
            return types.seconds_of(kind, read, "s")
        case Plain.SIZE if isinstance(value, str) and (size := types.parse_size(value)) is not None:
            return size
        case Plain.MONEY if isinstance(value, str) and (money := types.parse_money(value)) is not None:
            return money
    raise ValueError(f"no {kind}")


# ---- texts -------------------------------------------------------------------------------------------------


def _is_short(value: Any) -> bool:
    """Whether an object is written as one of its values: a text, null, or the name of a variable that has the text."""
    return value is None or isinstance(value, str) or (isinstance(value, Mapping) and set(value) == {"env"})


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(node: JsonNode) -> str:
    match node.value:
        case Mapping():
            return "an object"
        case list():
            return "a list"
        case word:
            text = json.dumps(word, ensure_ascii=False)
            return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _near(kind: Kind, node: JsonNode) -> str:
    words = list(kind.words) if isinstance(kind, types.OneOf) else []
    return suggestion(str(node.value), words)


def suggestion(word: str, known: Iterable[str]) -> str:
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""


def _did_you_mean(key: str, path: str, tree: Tree) -> str:
    """Suggest a key of the same object, else the same key of another one."""
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


# --------------------------------------------------------------------------------------------------
# Where the config is and how it is read: `clutch.json` in the state directory, or the file that was named.
#
# A config with secrets that other users can read, and a config that they can write, are refused with the command that
# repairs it: a config decides what agents may do, so only its owner may decide what it says.

BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Config:
    """`path` None: there is no file. `lines`: the line of each key."""

    settings: Settings = field(default_factory=Settings)
    path: Path | None = None
    lines: Mapping[str, int] = field(default_factory=dict)


def find(home: Path, named: Path | str | None) -> Path | None:
    """A file that was named must exist; the state directory may have none."""
    path = home / CONFIG_FILE if named is None else Path(named)
    return path if named is not None or os.path.lexists(path) else None


def load(home: Path, named: Path | str | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Raises ConfigInvalid with all problems of the file."""
    path = find(home, named)
    if path is None:
        return Config()
    text, mode = _read(path)
    return read(text, path, mode, os.environ if environment is None else environment)


def refuse_writable(path: Path, home: Path, workspaces: Iterable[str]) -> None:
    """Refuse a config that an agent could have written. Raises ConfigInvalid."""
    # In a workspace only files named `clutch.json` are read-only for agents, and only a state directory is hidden from
    # them; a link there can be replaced.
    place = Path(os.path.abspath(path))
    is_unhidden = place.parent == home.absolute() and not is_state({*_entries(home)})
    for workspace in map(os.path.realpath, workspaces):
        inside = [
            one for one in (place, *place.parents) if is_beneath(os.path.realpath(one.parent), workspace)
        ]
        is_inside = is_beneath(os.path.realpath(place), workspace)
        if any(one.is_symlink() for one in inside):
            rule = "is reached through a link in a workspace, where agents could replace it: name the file itself"
        elif is_inside and place.name != CONFIG_FILE:
            rule = f"lies in a workspace, where agents could write it: rename it to {CONFIG_FILE}, or move it elsewhere"
        elif is_inside and is_unhidden:
            rule = (
                "was in a workspace before its state directory was made, so an agent could have written it: "
                "read it, then name it with --config, or move the state directory out of the workspace"
            )
        else:
            continue
        raise ConfigInvalid(str(path), [f"{path}: {rule}"])


def _entries(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []


def read(text: str, path: Path, mode: int, environment: Mapping[str, str]) -> Config:
    try:
        root = json5.parse(text)
    except json5.Unreadable as error:
        raise _invalid(path, text, [ConfigProblem(error.at, "", error.rule)]) from error
    reading = ConfigReader(path.absolute().parent, environment)
    found = reading.settings(root)
    problems = [*reading.problems, *_exposed(found.secrets, path, mode)]
    if problems:
        raise _invalid(path, text, problems)
    lines = {key: json5.line_and_column(text, at)[0] for key, at in found.places.items()}
    return Config(found.settings, path, lines)


def _exposed(secrets: Mapping[str, int], path: Path, mode: int) -> Iterator[ConfigProblem]:
    if mode & 0o077:
        for key, at in secrets.items():
            rule = f'a secret in a file that others can read: chmod 600 {path}, or write {{env: "NAME"}}'
            yield ConfigProblem(at, key, rule)


def _read(path: Path) -> tuple[str, int]:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigInvalid(str(path), [f"{path}: is not a file"])
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigInvalid(str(path), [f"{path}: {error.strerror}"]) from error
    return _checked(path, content, status), stat.S_IMODE(status.st_mode)


def _checked(path: Path, content: bytes, status: os.stat_result) -> str:
    rule = None
    if status.st_uid not in (os.geteuid(), 0):
        rule = "belongs to another user"
    elif status.st_mode & 0o022:
        rule = f"others can write it: chmod 600 {path}"
    elif len(content) > BYTES_MAX:
        rule = f"has more than {BYTES_MAX} bytes"
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        text, rule = "", rule or f"is not UTF-8: byte {error.start + 1}"
    if rule is not None:
        raise ConfigInvalid(str(path), [f"{path}: {rule}"])
    return text


def _invalid(path: Path, text: str, problems: list[ConfigProblem]) -> ConfigInvalid:
    lines = []
    for problem in sorted(problems, key=lambda one: one.at):
        line, column = json5.line_and_column(text, problem.at)
        key = f"{problem.key}: " if problem.key else ""
        lines.append(f"{path}:{line}:{column}: {key}{problem.rule}")
    return ConfigInvalid(str(path), lines)


# --------------------------------------------------------------------------------------------------
# A file that changed while a process runs: which keys the process applies at once, and which need a restart.


@dataclass(frozen=True, slots=True)
class Reloaded:
    """`settings`: in effect now. `taken`: changed keys that were applied. `waiting`: those that need a restart."""

    settings: Settings
    taken: tuple[str, ...]
    waiting: tuple[str, ...]


def merged(old: Settings, new: Settings) -> Reloaded:
    differing = [key for key, to in ROOT.items() if get(old, to.path) != get(new, to.path)]
    waiting = tuple(key for key in differing if not is_live(key))
    for key in waiting:
        new = put(new, ROOT[key].path, get(old, ROOT[key].path))
    return Reloaded(new, tuple(key for key in differing if is_live(key)), waiting)
