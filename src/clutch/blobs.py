"""Blob stores beside the database: a directory that all machines share, or an S3-compatible store (extra `s3`).

The credentials, the region and the endpoint of an object store are the usual AWS_… variables of the environment."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from clutch.core.attachments import BlobIdentity
from clutch.core.validation import check
from clutch.errors import InvalidInput
from clutch.ports import Blobs, FilesFailed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

KEY: Final = "files.store"

#: A database row beyond this slows backups and replication; an object store takes the larger ones.
DATABASE_BYTES_MAX: Final = 1024 * 1024

#: Written at each release of a session and read by the machine that resumes it: some seconds on a usual network.
SESSION_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileStoreSettings:
    """Where machines that share a PostgreSQL database find each other's files."""

    #: Store for files that are too large for the database: a directory that all machines share, or s3://BUCKET/PREFIX.
    store: str | None = None
    #: Files up to this size are stored in the database itself.
    database_bytes_max: int = DATABASE_BYTES_MAX
    #: What is stored of the files that one session wrote; a session that resumes elsewhere reads which are missing.
    session_bytes_max: int = SESSION_BYTES_MAX

    def __post_init__(self) -> None:
        check(self)


def large_blobs(settings: FileStoreSettings) -> Blobs | None:
    """Return the store for large files. Raises InvalidInput for an address that names none."""
    if settings.store is None:
        return None
    if "://" in settings.store:
        return ObjectBlobs(settings.store)
    return DirectoryBlobs(Path(settings.store))


class SizedBlobs:
    """Small contents in one store, large ones in another."""

    def __init__(self, small: Blobs, large: Blobs | None, small_bytes_max: int) -> None:
        self._small, self._large, self._bytes_max = small, large, small_bytes_max
        self._all = [small] if large is None else [small, large]

    async def put(self, key: str, content: bytes) -> None:
        if len(content) <= self._bytes_max:
            return await self._small.put(key, content)
        if self._large is None:
            rule = f"{len(content)} bytes are too large for the database (files.databaseMaxBytes {self._bytes_max})"
            raise FilesFailed(f"{key}: {rule}; set {KEY} to a shared directory or s3://BUCKET/PREFIX")
        await self._large.put(key, content)

    async def get(self, key: str) -> bytes | None:
        for blobs in self._all:
            if (content := await blobs.get(key)) is not None:
                return content
        return None

    async def keys(self, folder: str) -> list[str]:
        return sorted({key for blobs in self._all for key in await blobs.keys(folder)})

    async def delete(self, folder: str) -> None:
        for blobs in self._all:
            await blobs.delete(folder)


class FleetBlobs:
    """The keys of one fleet in a store that others may share: `IDENTITY/KEY`.

    Earlier versions wrote `KEY` alone. Only files of tasks that are as old as that are looked for there: of any other
    number it would be the file of another fleet."""

    def __init__(self, blobs: Blobs, fleet: BlobIdentity) -> None:
        self._blobs, self._fleet = blobs, fleet

    async def put(self, key: str, content: bytes) -> None:
        await self._blobs.put(self._fleet.key(key), content)

    async def get(self, key: str) -> bytes | None:
        content = await self._blobs.get(self._fleet.key(key))
        if content is None and self._fleet.may_be_older(key):
            content = await self._blobs.get(key)
        return content

    async def keys(self, folder: str) -> list[str]:
        found = set(await self._blobs.keys(folder)) if self._fleet.may_be_older(folder) else set()
        known = await self._blobs.keys(self._fleet.key(folder))
        return sorted(found.union(key.removeprefix(self._fleet.key("")) for key in known))

    async def delete(self, folder: str) -> None:
        await self._blobs.delete(self._fleet.key(folder))
        if self._fleet.may_be_older(folder):
            await self._blobs.delete(folder)


class DirectoryBlobs:
    """Each key is a file beneath one directory; a name is quoted, so that no key leads out of it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, key: str, content: bytes) -> None:
        with _failing(key):
            await asyncio.to_thread(self._put, self._path(key), content)

    async def get(self, key: str) -> bytes | None:
        with _failing(key):
            return await asyncio.to_thread(self._get, self._path(key))

    async def keys(self, folder: str) -> list[str]:
        with _failing(folder):
            return await asyncio.to_thread(self._keys, folder)

    async def delete(self, folder: str) -> None:
        with _failing(folder), suppress(FileNotFoundError):
            await asyncio.to_thread(shutil.rmtree, self._path(folder))

    def _path(self, key: str) -> Path:
        return self._root.joinpath(*(_quoted(part) for part in key.split("/")))

    def _put(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        part = path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            with part.open("xb") as stream:
                os.fchmod(stream.fileno(), 0o600)
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _get(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def _keys(self, folder: str) -> list[str]:
        around = self._path(folder)
        found = (path for path in around.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted("/".join((folder, *map(unquote, path.relative_to(around).parts))) for path in found)


def _quoted(part: str) -> str:
    """A part that begins with a dot would hide, or lead upwards."""
    name = quote(part, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name


class ObjectBlobs:
    """`url` is s3://BUCKET/PREFIX. The library is loaded with the first call."""

    def __init__(self, url: str) -> None:
        if not url.startswith("s3://") or not url.removeprefix("s3://").partition("/")[0]:
            raise InvalidInput(KEY, f"must be a directory or s3://BUCKET/PREFIX, not {url[:80]}")
        self._url = url
        self._store: ObjectStore | None = None

    async def put(self, key: str, content: bytes) -> None:
        with _failing(key):
            await (await self._library()).put_async(self._store, key, content)

    async def get(self, key: str) -> bytes | None:
        with _failing(key):
            library = await self._library()
            try:
                found = await library.get_async(self._store, key)
            except FileNotFoundError:
                return None
            return bytes(await found.bytes_async())

    async def keys(self, folder: str) -> list[str]:
        with _failing(folder):
            found = await (await self._library()).list(self._store, prefix=folder).collect_async()
            return sorted(one["path"] for one in found)

    async def delete(self, folder: str) -> None:
        if found := await self.keys(folder):
            with _failing(folder):
                await (await self._library()).delete_async(self._store, found)

    async def _library(self) -> Any:
        if self._store is None:
            self._store = await asyncio.to_thread(_opened, self._url)
        import obstore

        return obstore


def _opened(url: str) -> ObjectStore:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise FilesFailed("an object store needs the extra `s3`: pip install 'clutch-agents[s3]'") from error
    return from_url(url)


@contextmanager
def _failing(key: str) -> Iterator[None]:
    """The library of object stores has a base class of its own for errors; a disk has OSError."""
    try:
        yield
    except FilesFailed:
        raise
    except Exception as error:
        raise FilesFailed(f"{key}: {type(error).__name__}: {str(error)[:200]}") from error
