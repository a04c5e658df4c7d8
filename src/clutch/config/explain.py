"""What is in effect for a key: its value, its default, its line in the file, what it may be, and what it means."""

from __future__ import annotations

import ast
import http.client
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import takewhile
from typing import Any, assert_never

from clutch.config import types
from clutch.config.keys import (
    ALIASES,
    FORMS,
    REQUIRED,
    ROOT,
    SHORT_FORMS,
    ConfigKey,
    Settings,
    To,
    Tree,
    catalogue,
    default_of,
    get,
    is_live,
    kind_at,
    tree_of,
)
from clutch.config.load import Config, merged, suggestion
from clutch.config.sources import ConfigSource
from clutch.config.types import Kind, Many, Maybe, Named, OneOf, Record
from clutch.core.redaction import redact
from clutch.core.views import ConfigFinding, ConfigReport, ConfigSetting, FindingState
from clutch.errors import ClutchError, ConfigInvalid, InvalidInput
from clutch.models.provider import KEY_VARIABLES
from clutch.surfaces.discovery import Loaded

# --------------------------------------------------------------------------------------------------
# The description of a setting: the `#:` comment at its field, read from the source, so that it is written once.

_BESIDE = re.compile(r"  #: (.*)$")
_ABOVE = re.compile(r"^\s*#: (.*)$")


def reason_of(owner: type, field: str) -> str:
    """Return the description of a field, empty where there is none. A config writes null for None."""
    return re.sub(r"\bNone\b", "null", _reasons(owner).get(field, ""))


@lru_cache(maxsize=64)
def _reasons(owner: type) -> Mapping[str, str]:
    source = textwrap.dedent(inspect.getsource(owner))
    lines = source.splitlines()
    (declared,) = ast.parse(source).body
    assert isinstance(declared, ast.ClassDef)
    found: dict[str, str] = {}
    for node in declared.body:
        name = _declared(node)
        if name is not None:
            beside = _BESIDE.search(lines[(node.end_lineno or node.lineno) - 1])
            reason = _above(lines[: node.lineno - 1]) if beside is None else beside[1]
            found |= {name: reason} if reason else {}
    return found


def _above(lines: Sequence[str]) -> str:
    """Return the comment at the end of these lines, however many lines it has."""
    matches = list(takewhile(bool, map(_ABOVE.match, reversed(lines))))
    return " ".join(one[1] for one in reversed(matches) if one)


def _declared(node: ast.stmt) -> str | None:
    """Return the name of a field of a dataclass or of a member of an enum."""
    match node:
        case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
            return name
        case _:
            return None


_ITEM = re.compile(r"\[([0-9]+)\](?:\.|$)")
_NOTHING = object()
#: Settings that a session keeps from when it was opened.
NEW_SESSIONS_ONLY = frozenset({"agents.defaults.workspace", "agents.list[].workspace"})
PART_CHARS_MIN = 3  #: fewer letters match half of all keys


@dataclass(frozen=True, slots=True)
class Explained:
    """Values as they would be written. `line` None: the key is not in the file."""

    key: str
    value: Any
    default: Any
    is_required: bool
    line: int | None
    may_be: str
    reason: str
    choices: tuple[tuple[str, str], ...]  #: each word with what it means
    is_live: bool
    is_for_new: bool  #: sessions that exist keep the value they were opened with


def explain(config: Config, wanted: str) -> tuple[Explained, ...]:
    """Explain the key, every key below it, or all keys with these letters. Raises InvalidInput for an unknown one."""
    found = tuple(_explained(config, entry, key) for entry, key in _meant(wanted))
    if not found:
        near = suggestion(wanted, {one.key for one in catalogue()} | _sections())
        raise InvalidInput("KEY", f"{wanted[:80]!r} is not known{near}")
    return found


def said(config: Config) -> dict[str, Any]:
    """Return every key of the file with its value; secrets are masked."""
    return {key: explain(config, key)[0].value for key in config.lines}


def _meant(wanted: str) -> Iterator[tuple[ConfigKey, str]]:
    """Yield entries with the key as it was asked for: `agents.list[0].model` is in the entry `agents.list[].model`."""
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


def _explained(config: Config, entry: ConfigKey, key: str) -> Explained:
    value = _now(Settings, config.settings, key)
    is_required = entry.default is REQUIRED
    default = None if is_required else types.shown(entry.kind, entry.default)
    line = config.lines.get(key)
    other = {**ALIASES, **{key: alias for alias, key in ALIASES.items()}}.get(key, "")
    return Explained(
        key=key,
        value=default if value is _NOTHING else types.shown(entry.kind, value),
        default=default,
        is_required=is_required,
        line=config.lines.get(other) if line is None else line,
        may_be=types.in_words(entry.kind),
        reason=reason_of(entry.owner, entry.field),
        choices=tuple(_choices(entry.kind)),
        is_live=entry.is_live,
        is_for_new=entry.key in NEW_SESSIONS_ONLY,
    )


def _choices(kind: Kind) -> Iterator[tuple[str, str]]:
    match kind:
        case Maybe(inner):
            yield from _choices(inner)
        case OneOf(words):
            for word, value in words.items():
                yield word, reason_of(type(value), value.name) if isinstance(value, Enum) else ""
        case _:
            pass


def _now(made: type, settings: Any, key: str) -> Any:
    """Return the value in effect, `_NOTHING` where the file has no such record."""
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


# --------------------------------------------------------------------------------------------------
# The keys as a JSON schema, for editors that complete keys and mark errors.

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ENV = {
    "type": "object",
    "properties": {"env": {"type": "string"}},
    "required": ["env"],
    "additionalProperties": False,
}
Schema = dict[str, Any]


def schema() -> Schema:
    return {"$schema": DIALECT, "title": "clutch.json", **_object(Settings, tree_of(Settings), "", "")}


def _object(made: type, tree: Tree, inner: str, path: str) -> Schema:
    described = {}
    for key, known in tree.items():
        here = f"{inner}.{key}" if inner else key
        if isinstance(known, To):
            described[key] = _described(made, here, path)
        else:
            described[key] = _or_short(made, here, path, _object(made, known, here, path))
    required = [
        key
        for key, to in FORMS[made].items()
        if made is not Settings and "." not in to.path and default_of(made, to.path) is REQUIRED
    ]
    return {
        "type": "object",
        "properties": described,
        "additionalProperties": False,
        **({"required": required} if required and not inner else {}),
    }


def _or_short(made: type, key: str, path: str, whole: Schema) -> Schema:
    if path or key not in SHORT_FORMS:
        return whole
    return {"anyOf": [whole, _described(made, f"{key}.{SHORT_FORMS[key]}", path)]}


def _described(made: type, key: str, path: str) -> Schema:
    entry = next(one for one in catalogue() if one.key == path + key)
    reason = reason_of(entry.owner, entry.field)
    default = None if entry.default is REQUIRED else types.shown(entry.kind, entry.default)
    return {
        **_schema(kind_at(made, key), path + key),
        **({"description": reason} if reason else {}),
        **({"default": json.loads(json.dumps(default))} if default not in (None, "…") else {}),
    }


def _schema(kind: Kind, path: str) -> Schema:
    match kind:
        case types.Plain():
            return _PLAIN[kind]
        case types.Duration():
            return {"anyOf": [{"type": "number", "minimum": 0}, _text(f"(?=.){types.DURATION}")]}
        case types.Secret():
            return {"anyOf": [{"type": "string"}, _ENV]}
        case types.OneOf():
            return {"enum": [str(word) for word in (*kind.words, *kind.hidden)]}
        case types.Either(choice, other):
            return {"anyOf": [_schema(choice, path), _schema(other, path)]}
        case types.Many():
            return {"type": "array", "items": _schema(kind.item, f"{path}[]")}
        case types.Table(item, names):
            named = {} if names is None else {"propertyNames": _schema(names, path)}
            return {"type": "object", "additionalProperties": _schema(item, path), **named}
        case types.Record(made):
            return _object(made, tree_of(made), "", f"{path}.")
        case types.Named(record):
            return {"type": "object", "additionalProperties": _schema(record, f"{path}.NAME")}
        case types.Maybe():
            return {"anyOf": [_schema(kind.kind, path), {"type": "null"}]}
        case _:
            assert_never(kind)


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$"}


_WHOLE = {"type": "integer", "minimum": 0}
_NAMED = {"type": "object", "additionalProperties": {"type": "string"}, "required": ["name"]}
_PLAIN: Mapping[types.Plain, Schema] = {
    types.Plain.FLAG: {"type": "boolean"},
    types.Plain.WHOLE: _WHOLE,
    types.Plain.NUMBER: {"type": "number", "minimum": 0},
    types.Plain.SIZE: {"anyOf": [_WHOLE, _text(types.SIZE)]},
    types.Plain.MONEY: {"anyOf": [_WHOLE, _text(types.MONEY)]},
    types.Plain.TEXT: {"type": "string"},
    types.Plain.FOLDER: {"type": "string"},
    types.Plain.IDENTITY: {"anyOf": [{"type": "string"}, _NAMED]},
}


# --------------------------------------------------------------------------------------------------
# The file that `clutch init` writes: a model that this machine can use, and the rest as comments to try.
#
# An API key stays in the environment: it is not copied into the file. Ollama is looked for on loopback only.

OLLAMA = ("127.0.0.1", 11434)
PATIENCE_S = 0.5  # a server on this machine answers in a hundredth of it
TAGS_BYTES_MAX = 256 * 1024

#: A model to begin with; the first whose key is there is taken.
MODELS: Mapping[str, str] = {
    "anthropic": "anthropic:claude-sonnet-4-5",
    "openai": "openai:gpt-5-mini",
    "google": "google:gemini-2.5-flash",
    "openrouter": "openrouter:anthropic/claude-sonnet-4.5",
    "mistral": "mistral:mistral-small-latest",
    "groq": "groq:openai/gpt-oss-120b",
}


@dataclass(frozen=True, slots=True)
class StarterModel:
    model: str
    because: str


NOTHING = StarterModel(
    "offline", "no provider key in the environment and no Ollama here: the demo model, not an LLM"
)


def choices(environment: Mapping[str, str], ollama: tuple[str, int] = OLLAMA) -> tuple[StarterModel, ...]:
    """Return the models that this machine can use, the likeliest first; never empty."""
    keys = [
        StarterModel(model, f"{KEY_VARIABLES[provider]} is set")
        for provider, model in MODELS.items()
        if environment.get(KEY_VARIABLES[provider], "").strip()
    ]
    local = [StarterModel(f"ollama:{name}", "Ollama runs on this machine") for name in _local_models(*ollama)]
    return (*keys, *local, NOTHING)


def key_variable(model: str) -> str | None:
    """Return the environment variable that has the key of a well-known provider."""
    return KEY_VARIABLES.get(model.partition(":")[0])


def _local_models(host: str, port: int) -> list[str]:
    """Return the models of a local Ollama, empty where none answers."""
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/api/tags")
        said = json.loads(connection.getresponse().read(TAGS_BYTES_MAX))
        names = [str(one["name"]) for one in said["models"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []
    finally:
        connection.close()
    return [name for name in names if name.isprintable() and 0 < len(name) <= 100]


def starter(chosen: StarterModel, others: tuple[StarterModel, ...]) -> str:
    """Return a config that is valid as it is, and also with every comment removed."""
    rest = "".join(f"      // {json.dumps(one.model)}: {one.because}\n" for one in others if one != chosen)
    return (
        _TEXT.replace("@MODEL@", json.dumps(chosen.model))
        .replace("@BECAUSE@", chosen.because)
        .replace("@OTHERS@\n", rest)
    )


_TEXT = """\
// The config of Clutch, in JSON5: comments, keys without quotes and a last comma are fine.
// A number with a unit is a text: "15m", "1h30m", "500ms", "8MB", "0.50" (dollars).
//   clutch config check           is it right?
//   clutch config explain KEY     what holds, where it is said, and why
//   clutch config schema          for your editor
{
  agents: {
    defaults: {
      model: @MODEL@, // @BECAUSE@
@OTHERS@
      // workspace: "~/notes", // where the file tools work; without it, where the gateway was started
      subagents: {
        // model: "openai:gpt-5-mini", // a cheaper one for children
        // maxChildrenPerAgent: 5,
        // maxSpawnDepth: 1, // 2: children may have children
        // runTimeoutSeconds: "15m",
      },
    },
    // list: [{ id: "research", identity: "You are Ada, a careful researcher." }],
  },

  // What may be spent; without it there is no limit.
  budget: {
    // dayUsd: "5.00",
    // rootTokens: 2000000,
  },

  models: {
    providers: {
      // A key comes from its usual variable. Another place, or an endpoint of your own:
      // lab: { baseUrl: "http://127.0.0.1:8000/v1", adapter: "direct", apiKey: { env: "LAB_API_KEY" } },
    },
  },

  // Commands and file tools run in a sandbox and see the workspace only.
  sandbox: {
    // network: true,
  },

  mcp: {
    servers: {
      // Web search, for example:
      // search: { url: "https://mcp.example.com/search", headers: { Authorization: { env: "SEARCH_TOKEN" } } },
    },
  },
}
"""


# --------------------------------------------------------------------------------------------------
# What of the config file is in force in a running process, what is not and why, and what to do about each.

VALUE_CHARS_MAX = 200
#: Settings that are not secret by type, but may contain secrets: texts and addresses.
MASKED = frozenset({"args", "baseUrl", "identity", "instructions", "prompt", "url"})
MASK = "***"


def masked(key: str, value: Any) -> Any:
    """Return a value as `types.shown` has it, without texts that may contain a secret."""
    if key.rpartition(".")[2].partition("[")[0] in MASKED and value:
        return MASK
    match value:
        case dict():
            return {name: masked(name, inner) for name, inner in value.items()}
        case list():
            return [masked("", inner) for inner in value]
        case _:
            return value


def report(source: ConfigSource, loaded: Loaded, check: str, restart: str) -> ConfigReport:
    """`check`, `restart`: the commands that validate the file and that start the process again."""
    findings = tuple(_findings(source, loaded, check, restart))
    return ConfigReport(
        file=str(source.file),
        exists=source.file.exists(),
        settings=tuple(_in_force(source.settings)),
        findings=findings,
        from_program=source.given_names,
    )


def _in_force(settings: Settings) -> Iterator[ConfigSetting]:
    usual = Settings()
    for key, to in ROOT.items():
        if get(settings, to.path) != get(usual, to.path):
            yield ConfigSetting(key, _value_text(key, settings), _value_text(key, usual), not is_live(key))


def _findings(source: ConfigSource, loaded: Loaded, check: str, restart: str) -> Iterator[ConfigFinding]:
    try:
        wanted = source.read()
    except ConfigInvalid as error:
        for problem in error.problems:
            remedy = f"correct it, then validate the file: {check}"
            yield ConfigFinding(None, FindingState.INVALID, redact(problem).text, None, None, remedy)
        return
    except ClutchError as error:
        yield ConfigFinding(None, FindingState.INVALID, redact(str(error)).text, None, None, check)
        return
    if loaded.error and loaded.is_current:
        detail = redact(loaded.error).text
        yield ConfigFinding(None, FindingState.REFUSED, detail, None, None, f"correct it: {check}")
    changed = merged(source.settings, wanted)
    for key in changed.waiting:
        detail = "changed in the file; this setting is read at a start only"
        yield _differs(key, FindingState.NEEDS_RESTART, detail, (source.settings, wanted), restart)
    for key in changed.taken:
        if loaded.follows and not loaded.error:
            detail, remedy = "changed in the file a moment ago", "none: the gateway loads it within seconds"
        elif loaded.error:
            detail, remedy = "the file is not loaded as a whole", "correct what was refused"
        else:
            detail, remedy = (
                "changed in the file; the program that runs the gateway does not reload it",
                restart,
            )
        yield _differs(key, FindingState.NOT_LOADED, detail, (source.settings, wanted), remedy)


def _differs(
    key: str, state: FindingState, detail: str, values: tuple[Settings, Settings], remedy: str
) -> ConfigFinding:
    """`values`: in force, and in the file."""
    in_force, in_file = (_value_text(key, one) for one in values)
    return ConfigFinding(key, state, detail, in_force, in_file, remedy)


def _value_text(key: str, settings: Settings) -> str:
    """Return the value as it would be written; secrets are masked, and of records only the names are shown."""
    held = get(settings, ROOT[key].path)
    kind = kind_at(Settings, key)
    kind = kind.kind if isinstance(kind, Maybe) and held is not None else kind
    match kind:
        case Named(_, name):
            shown: Any = [getattr(one, name) for one in held]
        case Many(Record()):
            items = held.values() if hasattr(held, "values") else held
            shown = [getattr(one, "id", "…") for one in items]
        case _:
            shown = masked(key, types.shown(kind, held))
    text = redact(json.dumps(shown, ensure_ascii=False)).text
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
