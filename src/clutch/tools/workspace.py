"""Access to files beneath one directory and nowhere else.

Checked here: a path is opened component by component, each relative to the open directory before it and never through a
symlink. No path is resolved as a whole, so no process can swap a component for a link that leads outside between a
check and its use. `..`, absolute paths and NUL are refused. Each folder on the way is checked for what
`core.attachments` recognises: a state directory of Clutch is not entered, and nothing is written in a repository or
a skill.

Not checked here: hard links made by another program, mounts inside the workspace, and other programs of the same user.
That needs a sandbox around the process.

Standard library only: `search` imports this in a process that lives for one search.

A name that would be ambiguous in a line of output (a newline, a colon, a quote) is shown as a JSON string by `shown`; a
caller passes the decoded name."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice

from clutch.core import attachments

# --------------------------------------------------------------------------------------------------
# Which paths a `.gitignore` leaves out: git's own rules, without git.
#
#     # comment          blank lines and comments say nothing
#     name               a file or folder of that name, at any depth
#     name/              only a folder
#     /name, a/name      with a slash before the end: from the folder of this `.gitignore`
#     *  ?  [a-z]        within one name; `**` as a whole name is any number of folders
#     !name              taken back; the last rule that matches decides
#     \!  \#  \          an escaped character stands for itself
#
# Deeper files win over those above. A folder that is left out is not entered: nothing in it can be taken back. Matching
# does not backtrack, because an agent may have written the rules. git compares bytes; so does this, as characters of
# Latin-1.

Parts = tuple[str, ...]

RULES_MAX = 2000  # of one file: each is tried for each path
# fmt: off
_CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@\\[-`{-~", "space": " \\t\\n\\r\\x0b\\x0c",
    "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}
# fmt: on


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """`segments`: None stands for `**`. A rule with `by_name` looks at the last part of a path only."""

    segments: tuple[re.Pattern[str] | None, ...]
    is_negative: bool
    folders_only: bool
    by_name: bool

    def matches(self, parts: Parts, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        return _pattern_matches(self.segments, parts[-1:] if self.by_name else parts)


@dataclass(frozen=True, slots=True)
class Ignored:
    """The rules of one `.gitignore`, those that win first, and of the folders above it."""

    depth: int  #: how many parts the folder of this file has
    rules: tuple[IgnoreRule, ...]
    above: Ignored | None = None

    def leaves_out(self, parts: Parts, is_folder: bool) -> bool:
        """Whether this path itself is left out; its folders were checked before."""
        encoded = tuple(_bytewise(part) for part in parts)
        here: Ignored | None = self
        while here is not None:
            for rule in here.rules:
                if rule.matches(encoded[here.depth :], is_folder):
                    return not rule.is_negative
            here = here.above
        return False


def rules_of(text: str) -> tuple[IgnoreRule, ...]:
    """The rules of a file, the last first: it decides."""
    lines = text.removeprefix("\ufeff").split("\n")[:RULES_MAX]
    rules = (_rule(line.removesuffix("\r")) for line in lines)
    return tuple(rule for rule in rules if rule is not None)[::-1]


def _rule(line: str) -> IgnoreRule | None:
    pattern = _without_trailing_spaces(line)
    if not pattern or line.startswith("#"):
        return None
    is_negative = pattern.startswith("!")
    pattern = pattern[is_negative:]
    folders_only = pattern.endswith("/")
    pattern = pattern[: len(pattern) - folders_only]
    by_name = "/" not in pattern
    segments = _segments(_bytewise(pattern).removeprefix("/"))
    return None if segments is None else IgnoreRule(segments, is_negative, folders_only, by_name)


def _without_trailing_spaces(line: str) -> str:
    kept = line.rstrip(" ")
    escapes = len(kept) - len(kept.rstrip("\\"))
    return kept + " " if escapes % 2 and kept != line else kept


def _bytewise(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


def _pattern_matches(segments: Sequence[re.Pattern[str] | None], parts: Parts) -> bool:
    """Compute which beginnings of the path each beginning of the rule matches; no backtracking."""
    reached = {0}
    for place, segment in enumerate(segments):
        if segment is None:
            # At the end `**` matches what is in the folder, not the folder.
            least = min(reached, default=len(parts)) + (place == len(segments) - 1)
            reached = set(range(least, len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and segment.fullmatch(parts[at])}
    return len(parts) in reached


@lru_cache(maxsize=4096)
def _segments(pattern: str) -> tuple[re.Pattern[str] | None, ...] | None:
    """None: a pattern that can match nothing, such as one with an open bracket."""
    found: list[re.Pattern[str] | None] = []
    try:
        for symbols in _split(list(_symbols(pattern))):
            is_any_depth = len(symbols) >= 2 and all(symbol == "*" for symbol in symbols)
            found.append(None if is_any_depth else re.compile(_expression(symbols), re.DOTALL))
    except ValueError:
        return None
    return tuple(found)


def _split(symbols: list[str]) -> Iterator[list[str]]:
    at = 0
    for place, symbol in enumerate(symbols):
        if symbol == "/":
            yield symbols[at:place]
            at = place + 1
    yield symbols[at:]


def _expression(symbols: list[str]) -> str:
    """Every `*` but the last matches as little as possible, in an atomic group: linear time for any rule."""
    first, *rest = ("".join(piece) for piece in _pieces(symbols))
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + ".*" + last


def _pieces(symbols: list[str]) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    for symbol in symbols:
        if symbol == "*":
            pieces.append([])
        else:
            pieces[-1].append(symbol)
    return pieces


def _symbols(pattern: str) -> Iterator[str]:
    """Yield `*` and `/` as they are, everything else as a regular expression for one character."""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        match char:
            case "*" | "/":
                yield char
            case "?":
                yield "."
            case "\\":
                if at == len(pattern):
                    raise ValueError("a backslash escapes nothing")
                escaped = pattern[at]
                yield escaped if escaped == "/" else re.escape(escaped)
                at += 1
            case "[":
                expression, at = _bracket(pattern, at)
                yield expression
            case _:
                yield re.escape(char)


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    """Return the expression for a bracket, and the place after it."""
    is_negative = pattern[at : at + 1] in ("!", "^")
    at += is_negative
    inside: list[str] = []
    start = at
    while pattern[at : at + 1] != "]" or at == start:
        piece, at = _class_or_range(pattern, at)
        inside.append(piece)
    return f"[{'^' if is_negative else ''}{''.join(inside)}]", at + 1


def _class_or_range(pattern: str, at: int) -> tuple[str, int]:
    if pattern.startswith("[:", at):
        end = pattern.find("]", at + 2)
        if end > 0 and pattern[end - 1] == ":" and end - 1 >= at + 2:
            return _class(pattern[at + 2 : end - 1]), end + 1
    low, at = _character(pattern, at)
    if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
        high, at = _character(pattern, at + 1)
        if low <= high:
            return f"{re.escape(low)}-{re.escape(high)}", at
    return re.escape(low), at


def _class(name: str) -> str:
    if name not in _CLASSES:
        raise ValueError("an unknown class")
    return _CLASSES[name]


def _character(pattern: str, at: int) -> tuple[str, int]:
    at += pattern[at : at + 1] == "\\"
    if at >= len(pattern):
        raise ValueError("a bracket is open")
    return pattern[at], at + 1


PATH_CHARS_MAX = 4096  # what the kernel takes
DEPTH_MAX = 64  # components; every walk holds and reopens them
ENTRIES_MAX = 20_000  # looked at in one walk: a large repository, not a whole disk
FILE_BYTES_MAX = 2 * 1024 * 1024  # larger files are data, not text for a model
LOCK_S = 5.0  # waiting for another change of a file in the same folder

#: Version control, dependencies and caches: rarely wanted, and often most of the files.
# fmt: off
SKIPPED = frozenset((
    ".git", ".hg", ".svn", ".jj", "node_modules", "bower_components", "__pycache__", ".venv",
    "venv", ".tox", ".nox", ".eggs", ".cache", ".gradle", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", ".hypothesis", ".import_linter_cache", ".idea", ".terraform", ".next",
))
# fmt: on

#: Whether `agents.md` may be the file `AGENTS.md`: so it is on macOS, unless the volume was made otherwise.
IGNORES_CASE = sys.platform == "darwin"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileAccessError(Exception):
    """The file cannot be reached, or may not be; the message is for the model."""


class Kind(StrEnum):
    FILE = "file"
    DIRECTORY = "dir"
    SKIPPED = "skipped"  #: a directory that is listed and not entered
    SYMLINK = "symlink"
    OTHER = "other"  #: a pipe, a socket, a device
    BAD_NAME = "badname"  #: not UTF-8: it can be shown but not named in an argument


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    parts: Parts
    kind: Kind
    size: int

    @property
    def path(self) -> str:
        return "/".join(self.parts)


@dataclass(slots=True)
class WalkLimit:
    """What one walk may still read, and what it left out."""

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
    """Return the components of a path that an agent wrote. Raises FileAccessError naming the rule it breaks."""
    if "\0" in path:
        raise FileAccessError("path: must not contain NUL")
    if len(path) > PATH_CHARS_MAX:
        raise FileAccessError(f"path: has {len(path)} characters, at most {PATH_CHARS_MAX} are allowed")
    if path.startswith("/"):
        raise FileAccessError("path: must be relative to the workspace, not absolute")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise FileAccessError("path: must not contain '..'; paths are relative to the workspace")
    if len(parts) > DEPTH_MAX:
        raise FileAccessError(f"path: has {len(parts)} components, at most {DEPTH_MAX} are allowed")
    return parts


def shown(parts: Parts) -> str:
    """Return a path for a line of output: as it is where it is unambiguous, else as JSON."""
    path = "/".join(parts) or "."
    is_plain = path.isprintable() and path == path.strip() and not set(path) & set(':"\\')
    return path if is_plain else json.dumps(path)


@contextmanager
def directory(root: str, parts: Parts, *, create: bool = False, changes: str | None = None) -> Iterator[int]:
    """Open a directory beneath `root`. `create`: make missing folders. `changes`: the file in it to be written."""
    here = _root(root)
    try:
        _refuse_state(here, ())
        for depth, name in enumerate(parts):
            if changes is not None:
                _refuse_change(here, parts[:depth], name)
            deeper = _enter(here, parts[: depth + 1], name, create=create)
            os.close(here)
            here = deeper
            _refuse_state(here, parts[: depth + 1])
        if changes is not None:
            _refuse_change(here, parts, changes)
        yield here
    finally:
        os.close(here)


def _refuse_state(here: int, parts: Parts) -> None:
    if _is_regular(here, attachments.LOCK) and attachments.is_state(_regular(here)):
        place = f"path: {shown(parts)[:200]}" if parts else "workspace:"
        raise FileAccessError(f"{place} is a state directory of Clutch, which no agent may see")


def _refuse_change(here: int, parts: Parts, name: str) -> None:
    """Refuse to make or change `name` in a folder that is protected, or that it would make so."""
    path = shown((*parts, name))[:200]
    name = attachments.without_case(name) if IGNORES_CASE else name
    present = {mark for mark in attachments.MARKS if _mode_of(here, mark) is not None}
    if attachments.is_state(_regular(here) | {name}):
        raise FileAccessError(f"path: {path} would make a state directory of Clutch, which no agent may see")
    if attachments.is_repository(present | {name}):
        raise FileAccessError(f"path: {path} lies in a git repository, which is read-only for agents")
    if parts and attachments.SKILL in present:
        raise FileAccessError(f"path: {path} lies in a skill, which is read-only for agents")


def _regular(here: int) -> set[str]:
    return {name for name in (attachments.LOCK, *attachments.STATE_FILES) if _is_regular(here, name)}


def _is_regular(here: int, name: str) -> bool:
    mode = _mode_of(here, name)
    return mode is not None and stat.S_ISREG(mode)


def _mode_of(here: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
    except OSError:
        return None


def _root(root: str) -> int:
    # The operator chose the workspace, so a link to the workspace itself is followed.
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FileAccessError(f"workspace: {(error.strerror or type(error).__name__).lower()}") from error


def _enter(here: int, parts: Parts, name: str, *, create: bool) -> int:
    try:
        if create:
            _make_directory(here, name)
        return os.open(name, _DIRECTORY, dir_fd=here)
    except OSError as error:
        raise FileAccessError(_why(error, here, parts)) from error


def _make_directory(here: int, name: str) -> None:
    try:
        os.mkdir(name, dir_fd=here)
    except FileExistsError:
        return


@contextmanager
def opened(root: str, parts: Parts) -> Iterator[tuple[int, int]]:
    """Open a regular file beneath `root`, and return its descriptor and size."""
    if not parts:
        raise FileAccessError("path: is a directory, not a file")
    with directory(root, parts[:-1]) as here:
        try:
            file = os.open(parts[-1], _FILE, dir_fd=here)
        except OSError as error:
            raise FileAccessError(_why(error, here, parts)) from error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise FileAccessError(f"path: {shown(parts)} is not a regular file")
        yield file, status.st_size
    finally:
        os.close(file)


def _why(error: OSError, here: int, parts: Parts) -> str:
    name = shown(parts)[:200]
    if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_symlink(here, parts[-1]):
        return f"path: {name} is a symlink; symlinks are not followed"
    return f"path: {name}: {(error.strerror or type(error).__name__).lower()}"


def _is_symlink(here: int, name: str) -> bool:
    mode = _mode_of(here, name)
    return mode is not None and stat.S_ISLNK(mode)


@contextmanager
def locked(here: int) -> Iterator[None]:
    """Lock a folder against changes of its files by any other call, in every process, so that no change is lost."""
    until = time.monotonic() + LOCK_S
    while not _lock(here):
        if time.monotonic() > until:
            raise FileAccessError(f"path: another process has held its folder for {LOCK_S:g} s; try again")
        time.sleep(0.01)
    yield  # closing the folder unlocks it


def _lock(here: int) -> bool:
    try:
        fcntl.flock(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems cannot lock folders; a file is still replaced in one step
        return True
    return True


def content(file: int) -> bytes:
    """Return the beginning of a file, up to the largest size that is read."""
    chunks = []
    left = FILE_BYTES_MAX
    while left and (chunk := os.read(file, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def lines_of(data: bytes) -> list[str] | None:
    """Return lines as an editor numbers them, None for a binary file."""
    if b"\0" in data:
        return None
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def walk(
    root: str, top: Parts, budget: WalkLimit, *, recursive: bool, with_ignored: bool = False
) -> Iterator[DirectoryEntry]:
    """Yield what lies beneath, nearest first, so that a cut listing still shows the shape of the tree.

    Ignored files are left out unless `with_ignored`, which also enters skipped folders except `.git`. No rule hides
    `top` itself: it was named."""
    waiting: deque[tuple[Parts, Ignored | None]] = deque([(top, None if with_ignored else _above(root, top))])
    while waiting:
        parts, ignored = waiting.popleft()
        try:
            entries = _entries(root, parts, budget)
        except FileAccessError:
            if parts == top:
                raise
            budget.unreadable += 1  # removed since it was listed, or not readable
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
    """Return the rules of the folders above `top`; the walk reads its own."""
    ignored: Ignored | None = None
    for depth in range(len(top)):
        ignored = _and_also(root, top[:depth], ignored)
    return ignored


def _and_also(root: str, parts: Parts, above: Ignored | None) -> Ignored | None:
    try:
        with opened(root, (*parts, ".gitignore")) as (file, _):
            rules = rules_of(content(file).decode("utf-8", "surrogateescape"))
    except FileAccessError:  # there is none, or it is no file
        return above
    return Ignored(len(parts), rules, above)


def _entries(root: str, parts: Parts, budget: WalkLimit) -> list[DirectoryEntry]:
    # One more than allowed, so that the walk notices that something was left out.
    with directory(root, parts) as here, os.scandir(here) as found:
        try:
            entries = [_entry(parts, item) for item in islice(found, budget.entries + 1)]
        except OSError as error:
            raise FileAccessError(_why(error, here, parts)) from error
    return sorted(entries, key=lambda entry: entry.parts)


def _entry(parts: Parts, item: os.DirEntry[str]) -> DirectoryEntry:
    try:
        item.name.encode()
    except UnicodeEncodeError:
        name = os.fsencode(item.name).decode("utf-8", "replace")
        return DirectoryEntry((*parts, name), Kind.BAD_NAME, 0)
    try:
        status = item.stat(follow_symlinks=False)
    except FileNotFoundError:  # gone since it was listed
        return DirectoryEntry((*parts, item.name), Kind.OTHER, 0)
    return DirectoryEntry((*parts, item.name), _kind(item.name, status.st_mode), status.st_size)


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
    """Compute which beginnings of the path each beginning of the pattern matches; no backtracking."""
    reached = {0}
    for word in pattern:
        if word == "**":
            reached = set(range(min(reached, default=len(parts) + 1), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and fnmatchcase(parts[at], word)}
    return len(parts) in reached
