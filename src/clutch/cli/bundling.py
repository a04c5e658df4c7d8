"""`clutch doctor --bundle FILE`: what somebody who helps wants to know, in one archive, without secrets.

Versions, the doctor's report, the settings and how tasks stand. No transcript, no result, no token; of everything
else whatever looks like a secret is taken out, and names that people gave are left out.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from clutch import __version__
from clutch.cli.reading import source
from clutch.config import explaining, files
from clutch.core.redaction import redact
from clutch.errors import ClutchError, ConfigInvalid, InvalidInput
from clutch.surfaces.address import CONFIG_FILE

LIMIT = 200
#: Words of people and models, and names that they gave.
LEFT_OUT = ("label", "error", "currentTool", "evidence", "sessionKey", "requesterKey", "rootKey")
#: Settings that are nobody's secret by their kind, and in which people put some: words of their own, and addresses.
MASKED = frozenset({"args", "baseUrl", "identity", "prompt", "url"})
MASK = "***"


def write(path: Path, home: Path, report: dict[str, Any]) -> None:
    """Raises InvalidInput where it cannot be written."""
    parts = {
        "doctor.json": _json(report),
        "versions.json": _json(_versions()),
        "tasks.jsonl": "".join(_json(task) for task in _tasks(home)),
    }
    if (home / CONFIG_FILE).is_file():
        parts[CONFIG_FILE] = _json(_said(home))
    with os.fdopen(_made(path), "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, text in parts.items():
            _add(archive, name, redact(text).text)


def _made(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInput("--bundle", f"{path} cannot be made: {error.strerror}") from error


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    body = text.encode()
    about = tarfile.TarInfo(f"clutch-doctor/{name}")
    about.size, about.mode = len(body), 0o600
    archive.addfile(about, io.BytesIO(body))


def _said(home: Path) -> dict[str, Any]:
    """The config key by key: it knows which of them are secrets, and its comments are nobody's business."""
    try:
        return {key: _masked(key, value) for key, value in explaining.said(files.load(home)).items()}
    except ConfigInvalid as error:
        return {"problems": error.problems}


def _masked(key: str, value: Any) -> Any:
    if key.rpartition(".")[2].partition("[")[0] in MASKED and value:
        return MASK
    match value:
        case dict():
            return {name: _masked(name, inner) for name, inner in value.items()}
        case list():
            return [_masked("", inner) for inner in value]
        case _:
            return value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _versions() -> dict[str, Any]:
    packages = {one.name: one.version for one in distributions()}
    return {
        "clutch": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
    }


def _tasks(home: Path) -> list[dict[str, Any]]:
    wanted = {"root": None, "phase": None, "limit": LIMIT, "recentMinutes": None, "undelivered": False}
    try:
        with source(home) as here:
            page = here.tasks(**wanted)
    except ClutchError:
        return []
    return [{name: value for name, value in task.items() if name not in LEFT_OUT} for task in page["tasks"]]
