"""What of the config file is in force in a running process, what is not and why, and what to do about each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from clutch.config import types
from clutch.config.keys import ROOT, Settings, get, is_live, kind_at
from clutch.config.load import merged
from clutch.config.sources import ConfigSource
from clutch.config.types import Many, Maybe, Named, Record
from clutch.core.redaction import redact
from clutch.core.views import ConfigFinding, ConfigReport, ConfigSetting, FindingState
from clutch.errors import ClutchError, ConfigInvalid
from clutch.surfaces.discovery import Loaded

VALUE_CHARS_MAX = 200
#: Settings that are not secret by type, but may contain secrets: texts and addresses.
MASKED = frozenset({"args", "baseUrl", "identity", "prompt", "url"})
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
            yield ConfigSetting(key, _text(key, settings), _text(key, usual), not is_live(key))


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
    in_force, in_file = (_text(key, one) for one in values)
    return ConfigFinding(key, state, detail, in_force, in_file, remedy)


def _text(key: str, settings: Settings) -> str:
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
