"""Numbered schema files (`NNNN*.sql`), applied forward only, each in one transaction.

The version stands in `meta(name, value)`, which this module creates itself. Statements end with `;` at the
end of a line, so a trigger body cannot be written in these files. Knows no database: the steps are
generators, and the stores run them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clutch.errors import SchemaTooNew, StoreError
from clutch.store.dialect import Dialect, schema_text
from clutch.store.door import Tx

#: the product's own schema
SCHEMA: Final = Path(__file__).parent / "schema"

META: Final = "CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value TEXT)"

_NAME: Final = re.compile(r"(\d{4}).*\.sql")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_END: Final = re.compile(r";[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    statements: tuple[str, ...]


def load(directory: Path, dialect: Dialect) -> tuple[Migration, ...]:
    """All files in order. Numbers run 1, 2, 3, …: a gap is a file that was forgotten."""
    files = _files(directory)
    versions = [int(file.name[:4]) for file in files]
    if versions != list(range(1, len(files) + 1)):
        raise ValueError(f"schema files in {directory} must be numbered 0001, 0002, …; found {versions}")
    return tuple(
        Migration(version, statements(file.read_text(encoding="utf-8"), dialect))
        for version, file in zip(versions, files, strict=True)
    )


def _files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if _NAME.fullmatch(file.name))


def statements(text: str, dialect: Dialect) -> tuple[str, ...]:
    pieces = (piece.strip() for piece in _END.split(_COMMENT.sub("", text)))
    return tuple(schema_text(piece, dialect) for piece in pieces if piece)


def missing(now: float, migrations: Sequence[Migration]) -> Tx[Sequence[Migration]]:
    """What is still to be applied. Refuses a schema this version does not know."""
    yield META, ()
    return migrations[(yield from _version(now, len(migrations))) :]


def check_current(now: float, directory: Path) -> Tx[None]:
    """For whoever only reads, and asks for nothing that may not be there. Raises SchemaTooNew, StoreError."""
    known = len(_files(directory))
    version = yield from _version(now, known)
    if version < known:
        raise StoreError(
            f"the database has schema version {version}, this Clutch reads {known}; "
            "the next gateway brings it up to date"
        )


def _version(now: float, known: int) -> Tx[int]:
    del now
    rows = yield "SELECT value FROM meta WHERE name = 'schema_version'", ()
    version = int(rows[0][0]) if rows else 0
    if version > known:
        raise SchemaTooNew(
            f"the database has schema version {version}, this Clutch knows up to {known}; "
            "upgrade Clutch, or restore a backup made before the newer one ran"
        )
    return version


def apply(now: float, migration: Migration) -> Tx[None]:
    del now
    for statement in migration.statements:
        yield statement, ()
    yield (
        "INSERT INTO meta(name, value) VALUES('schema_version', ?) "
        "ON CONFLICT(name) DO UPDATE SET value = excluded.value",
        (str(migration.version),),
    )
