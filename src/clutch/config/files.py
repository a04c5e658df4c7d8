"""Where a config is found, and how it is read: `clutch.json` in the state directory, or the file that was named.

A secret in a file that others can read is no secret, and a file that others can write is not one's own config: both
are refused, with the command that repairs it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clutch.config import json5
from clutch.config.reading import Problem, Reading
from clutch.config.settings import Settings
from clutch.errors import ConfigInvalid
from clutch.surfaces.address import CONFIG_FILE

BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Config:
    """`path` None: there is no file. `lines`: where each key is said."""

    settings: Settings = field(default_factory=Settings)
    path: Path | None = None
    lines: Mapping[str, int] = field(default_factory=dict)


def find(home: Path, named: Path | str | None) -> Path | None:
    """What was named must be there; in the state directory there may be none."""
    path = home / CONFIG_FILE if named is None else Path(named)
    return path if named is not None or os.path.lexists(path) else None


def load(home: Path, named: Path | str | None = None, environment: Mapping[str, str] | None = None) -> Config:
    """Raises ConfigInvalid with everything that is wrong."""
    path = find(home, named)
    if path is None:
        return Config()
    text, mode = _read(path)
    return read(text, path, mode, os.environ if environment is None else environment)


def read(text: str, path: Path, mode: int, environment: Mapping[str, str]) -> Config:
    try:
        root = json5.parse(text)
    except json5.Unreadable as error:
        raise _invalid(path, text, [Problem(error.at, "", error.rule)]) from error
    reading = Reading(path.absolute().parent, environment)
    found = reading.settings(root)
    problems = [*reading.problems, *_exposed(found.secrets, path, mode)]
    if problems:
        raise _invalid(path, text, problems)
    lines = {key: json5.line_and_column(text, at)[0] for key, at in found.places.items()}
    return Config(found.settings, path, lines)


def _exposed(secrets: Mapping[str, int], path: Path, mode: int) -> Iterator[Problem]:
    if mode & 0o077:
        for key, at in secrets.items():
            rule = f'a secret in a file that others can read: chmod 600 {path}, or write {{env: "NAME"}}'
            yield Problem(at, key, rule)


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
        rule = "belongs to somebody else"
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


def _invalid(path: Path, text: str, problems: list[Problem]) -> ConfigInvalid:
    lines = []
    for problem in sorted(problems, key=lambda one: one.at):
        line, column = json5.line_and_column(text, problem.at)
        key = f"{problem.key}: " if problem.key else ""
        lines.append(f"{path}:{line}:{column}: {key}{problem.rule}")
    return ConfigInvalid(str(path), lines)
