"""Reaching files beneath one directory and nowhere else.

Guarded here: a path is walked component by component from an open directory, each opened relative to the
one before and never through a symlink. Between looking and opening nobody can swap a part for a link that
leads outside, because nothing is looked at by its whole path. `..`, absolute paths and NUL are refused.

Not guarded here: hard links made by somebody else, mounts inside the workspace, and what other programs of
the same user do. That needs a sandbox around the process.

Standard library only: `scan` imports this in a process that lives for one search.

A name that cannot stand in a line of output as it is (a newline, a colon, a quote) is shown as a JSON
string; `shown` writes it so, and a caller gives the decoded name back.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice

from clutch.tools.ignore import Ignored, rules_of

Parts = tuple[str, ...]

PATH_CHARS_MAX = 4096  # what the kernel takes
DEPTH_MAX = 64  # components; every walk holds and reopens them
ENTRIES_MAX = 20_000  # looked at in one walk: a large repository, not a whole disk
FILE_BYTES_MAX = 2 * 1024 * 1024  # larger files are data, not text for a model
LOCK_S = 5.0  # waiting for somebody who changes a file of the same folder

#: Version control, dependencies and caches: never what was asked for, and often most of the files.
# fmt: off
SKIPPED = frozenset((
    ".git", ".hg", ".svn", ".jj", "node_modules", "bower_components", "__pycache__", ".venv",
    "venv", ".tox", ".nox", ".eggs", ".cache", ".gradle", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".hypothesis", ".import_linter_cache", ".idea", ".terraform", ".next",
))
# fmt: on

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for somebody to write into it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Refused(Exception):
    """The file cannot be reached, or may not be; the message is for the model."""


class Kind(StrEnum):
    FILE = "file"
    DIRECTORY = "dir"
    SKIPPED = "skipped"  #: a directory that is listed and not entered
    SYMLINK = "symlink"
    OTHER = "other"  #: a pipe, a socket, a device
    BAD_NAME = "badname"  #: not UTF-8: it can be shown but not named in an argument


@dataclass(frozen=True, slots=True)
class Entry:
    parts: Parts
    kind: Kind
    size: int

    @property
    def path(self) -> str:
        return "/".join(self.parts)


@dataclass(slots=True)
class Budget:
    """What one walk may still look at, and what it had to leave out."""

    entries: int = ENTRIES_MAX
    until: float = field(default_factory=lambda: time.monotonic() + 8.0)
    unreadable: int = 0
    ignored: int = 0
    is_cut: bool = False

    def allows_more(self) -> bool:
        if self.entries > 0 and time.monotonic() < self.until:
            return True
        self.is_cut = True
        return False


def parts_of(path: str) -> Parts:
    """The components of a path an agent wrote. Raises Refused naming the rule it breaks."""
    if "\0" in path:
        raise Refused("path: must not contain NUL")
    if len(path) > PATH_CHARS_MAX:
        raise Refused(f"path: has {len(path)} characters, at most {PATH_CHARS_MAX} are allowed")
    if path.startswith("/"):
        raise Refused("path: must be relative to the workspace, not absolute")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise Refused("path: must not contain '..'; paths are relative to the workspace")
    if len(parts) > DEPTH_MAX:
        raise Refused(f"path: has {len(parts)} components, at most {DEPTH_MAX} are allowed")
    return parts


def shown(parts: Parts) -> str:
    """A path as it stands in a line of output: itself when nothing in it can be misread, else JSON."""
    path = "/".join(parts) or "."
    is_plain = path.isprintable() and path == path.strip() and not set(path) & set(':"\\')
    return path if is_plain else json.dumps(path)


@contextmanager
def directory(root: str, parts: Parts, *, create: bool = False) -> Iterator[int]:
    """An open descriptor of a directory beneath `root`. `create` makes what is missing."""
    here = _root(root)
    try:
        for depth, name in enumerate(parts):
            deeper = _enter(here, parts[: depth + 1], name, create=create)
            os.close(here)
            here = deeper
        yield here
    finally:
        os.close(here)


def _root(root: str) -> int:
    """The workspace itself was chosen by a person, so a link to it is followed."""
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"workspace: {(error.strerror or type(error).__name__).lower()}") from error


def _enter(here: int, parts: Parts, name: str, *, create: bool) -> int:
    try:
        if create:
            _make_directory(here, name)
        return os.open(name, _DIRECTORY, dir_fd=here)
    except OSError as error:
        raise Refused(_why(error, here, parts)) from error


def _make_directory(here: int, name: str) -> None:
    try:
        os.mkdir(name, dir_fd=here)
    except FileExistsError:
        return


@contextmanager
def opened(root: str, parts: Parts) -> Iterator[tuple[int, int]]:
    """A descriptor of a regular file beneath `root`, and its size."""
    if not parts:
        raise Refused("path: is a directory, not a file")
    with directory(root, parts[:-1]) as here:
        try:
            file = os.open(parts[-1], _FILE, dir_fd=here)
        except OSError as error:
            raise Refused(_why(error, here, parts)) from error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"path: {shown(parts)} is not a regular file")
        yield file, status.st_size
    finally:
        os.close(file)


def _why(error: OSError, here: int, parts: Parts) -> str:
    name = shown(parts)[:200]
    if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_symlink(here, parts[-1]):
        return f"path: {name} is a symlink; symlinks are not followed"
    return f"path: {name}: {(error.strerror or type(error).__name__).lower()}"


def _is_symlink(here: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
    except OSError:
        return False


@contextmanager
def locked(here: int) -> Iterator[None]:
    """Alone among those who change files of this folder, in every process: nobody's change is lost."""
    until = time.monotonic() + LOCK_S
    while not _lock(here):
        if time.monotonic() > until:
            raise Refused(f"path: somebody else has held its folder for {LOCK_S:g} s; try again")
        time.sleep(0.01)
    yield  # closing the folder frees it


def _lock(here: int) -> bool:
    try:
        fcntl.flock(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems lock no folders; a file is replaced in one step there too
        return True
    return True


def content(file: int) -> bytes:
    """The beginning of a file, up to the largest size that is read at all."""
    chunks = []
    left = FILE_BYTES_MAX
    while left and (chunk := os.read(file, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def lines_of(data: bytes) -> list[str] | None:
    """Lines as an editor numbers them; None when this is no text."""
    if b"\0" in data:
        return None
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def walk(
    root: str, top: Parts, budget: Budget, *, recursive: bool, with_ignored: bool = False
) -> Iterator[Entry]:
    """What lies beneath, nearest first, so that a cut listing still shows the shape of the whole.

    What a `.gitignore` leaves out is left out, unless `with_ignored`; then skipped folders are entered too,
    all but `.git`. `top` itself was asked for by name: no rule hides it."""
    waiting: deque[tuple[Parts, Ignored | None]] = deque([(top, None if with_ignored else _above(root, top))])
    while waiting:
        parts, ignored = waiting.popleft()
        try:
            entries = _entries(root, parts, budget)
        except Refused:
            if parts == top:
                raise
            budget.unreadable += 1  # gone, or closed to us, since it was listed
            continue
        if not with_ignored and any(entry.parts[-1] == ".gitignore" for entry in entries):
            ignored = _and_also(root, parts, ignored)
        for entry in entries:
            if not budget.allows_more():
                return
            budget.entries -= 1
            is_folder = entry.kind in (Kind.DIRECTORY, Kind.SKIPPED)
            if ignored is not None and ignored.leaves_out(entry.parts, is_folder):
                budget.ignored += 1
                continue
            is_entered = entry.kind is Kind.DIRECTORY or (
                with_ignored and entry.kind is Kind.SKIPPED and entry.parts[-1] != ".git"
            )
            if recursive and is_entered and len(entry.parts) < DEPTH_MAX:
                waiting.append((entry.parts, ignored))
            yield entry


def _above(root: str, top: Parts) -> Ignored | None:
    """The rules of the folders on the way to `top`; its own come with the walk."""
    ignored: Ignored | None = None
    for depth in range(len(top)):
        ignored = _and_also(root, top[:depth], ignored)
    return ignored


def _and_also(root: str, parts: Parts, above: Ignored | None) -> Ignored | None:
    try:
        with opened(root, (*parts, ".gitignore")) as (file, _):
            rules = rules_of(content(file).decode("utf-8", "surrogateescape"))
    except Refused:  # there is none, or it is no file
        return above
    return Ignored(len(parts), rules, above)


def _entries(root: str, parts: Parts, budget: Budget) -> list[Entry]:
    # One more than allowed, so that the walk notices that something was left out.
    with directory(root, parts) as here, os.scandir(here) as found:
        try:
            entries = [_entry(parts, item) for item in islice(found, budget.entries + 1)]
        except OSError as error:
            raise Refused(_why(error, here, parts)) from error
    return sorted(entries, key=lambda entry: entry.parts)


def _entry(parts: Parts, item: os.DirEntry[str]) -> Entry:
    try:
        item.name.encode()
    except UnicodeEncodeError:
        name = os.fsencode(item.name).decode("utf-8", "replace")
        return Entry((*parts, name), Kind.BAD_NAME, 0)
    try:
        status = item.stat(follow_symlinks=False)
    except FileNotFoundError:  # gone since it was listed
        return Entry((*parts, item.name), Kind.OTHER, 0)
    return Entry((*parts, item.name), _kind(item.name, status.st_mode), status.st_size)


def _kind(name: str, mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.SKIPPED if name in SKIPPED else Kind.DIRECTORY
    return Kind.SYMLINK if stat.S_ISLNK(mode) else Kind.OTHER


def matches(parts: Parts, glob: str) -> bool:
    """`*.py` looks at the name, `src/**/*.py` at the whole path."""
    pattern = tuple(part for part in glob.split("/") if part)
    return _matches(parts[-1:] if len(pattern) == 1 else parts, pattern)


def _matches(parts: Parts, pattern: Parts) -> bool:
    """Which beginnings of the path each beginning of the pattern can stand for; no backtracking."""
    reached = {0}
    for word in pattern:
        if word == "**":
            reached = set(range(min(reached, default=len(parts) + 1), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and fnmatchcase(parts[at], word)}
    return len(parts) in reached
