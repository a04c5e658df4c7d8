"""The tools `read`, `list`, `search` and `write`: files of one workspace, as text for a model.

What is guarded: `workspace` opens nothing outside, `scan` bounds what an expression may cost, and here every
answer has a size. Files are read up to 2 MiB, listings and searches end after 20,000 entries or 8 seconds
and say so. Blocking work runs in threads. Not guarded: see `workspace`; a sandbox is a layer of its own.

Every answer is made of lines. A line of `list` is a kind or a size, two spaces and a path; a line of
`search` is `path:line: text`; notices stand in parentheses on the last line.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, TypeVar

from pydantic import Field

from clutch.ports import ToolContext, ToolFailed
from clutch.tools import scan
from clutch.tools.arguments import Arguments
from clutch.tools.workspace import (
    FILE_BYTES_MAX,
    Budget,
    Entry,
    Kind,
    Parts,
    Refused,
    content,
    directory,
    lines_of,
    matches,
    opened,
    parts_of,
    shown,
    walk,
)

READ_CHARS_MAX = 64 * 1024  # one answer; a model that wants more asks for the next lines
LINE_CHARS_MAX = 1000

Path = Annotated[str, Field(description="Relative to the workspace.", min_length=1)]
Glob = Annotated[
    str, Field(description="Only these: '*.py' by name, 'src/**/*.py' by path.", min_length=1, max_length=200)
]


class ReadArguments(Arguments):
    path: Path
    start: int = Field(1, description="First line, from 1. Negative: that many lines from the end.")
    limit: int = Field(400, ge=1, le=5000, description="How many lines.")


class ListArguments(Arguments):
    path: Path = "."
    recursive: bool = False
    glob: Glob | None = None
    limit: int = Field(500, ge=1, le=2000, description="How many entries.")


class SearchArguments(Arguments):
    pattern: str = Field(description="A Python regular expression.", min_length=1, max_length=1000)
    path: Path = "."
    glob: Glob | None = None
    recursive: bool = True
    limit: int = Field(100, ge=1, le=500, description="How many matching lines.")
    per_file: int = Field(20, ge=1, le=500, description="How many matching lines of one file.")


class WriteArguments(Arguments):
    path: Path
    text: str


async def read(arguments: ReadArguments, context: ToolContext) -> str:
    """Read a text file with line numbers."""
    return await _in_thread(_read, arguments, context.workspace)


async def list_files(arguments: ListArguments, context: ToolContext) -> str:
    """List a folder with sizes. Version control, dependencies and caches are named but not entered."""
    return await _in_thread(_list, arguments, context.workspace)


async def search(arguments: SearchArguments, context: ToolContext) -> str:
    """Search text files by a regular expression, line by line. Answers `path:line: text`."""
    return await _in_thread(_search, arguments, context.workspace)


async def write(arguments: WriteArguments, context: ToolContext) -> str:
    """Write a text file, making the folders it needs. An existing file is replaced in one step."""
    return await _in_thread(_write, arguments, context.workspace)


A = TypeVar("A")


async def _in_thread(work: Callable[[A, str], str], arguments: A, root: str) -> str:
    try:
        return await asyncio.to_thread(work, arguments, root)
    except Refused as error:
        raise ToolFailed(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Page:
    """The lines asked for, within what one answer may hold."""

    first: int
    lines: list[str]
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.lines) - 1


def _read(arguments: ReadArguments, root: str) -> str:
    parts = parts_of(arguments.path)
    with opened(root, parts) as (file, size):
        lines = lines_of(content(file))
    if lines is None:
        return f"({shown(parts)} is binary: {size} bytes, not shown)"
    page = _page(lines, arguments)
    span = f"lines {page.first}-{page.last}" if page.lines else f"no line from {page.first} on;"
    notices = [f"{shown(parts)}: {span} of {page.total}, {size} bytes"]
    if size > FILE_BYTES_MAX:
        notices.append(f"only the first {FILE_BYTES_MAX} bytes were read")
    if page.last < page.total:
        notices.append(f"go on with start={page.last + 1}")
    numbered = [f"{number:>6}  {line}" for number, line in enumerate(page.lines, page.first)]
    return "\n".join([*numbered, f"({'; '.join(notices)})"])


def _page(lines: list[str], arguments: ReadArguments) -> _Page:
    start = arguments.start
    first = max(1, len(lines) + 1 + start) if start < 0 else max(1, start)
    chosen: list[str] = []
    chars = 0
    for line in lines[first - 1 : first - 1 + arguments.limit]:
        chosen.append(line if len(line) <= LINE_CHARS_MAX else line[:LINE_CHARS_MAX] + "…")
        chars += len(chosen[-1])
        if chars > READ_CHARS_MAX:
            break
    return _Page(first, chosen, len(lines))


def _list(arguments: ListArguments, root: str) -> str:
    budget = Budget()
    entries = [
        entry
        for entry in walk(root, parts_of(arguments.path), budget, recursive=arguments.recursive)
        if arguments.glob is None or matches(entry.parts, arguments.glob)
    ]
    notices = [f"{len(entries)} entries"]
    if len(entries) > arguments.limit:
        notices.append(f"the first {arguments.limit} are shown: narrow it with path or glob")
    if budget.unreadable:
        notices.append(f"{budget.unreadable} folders could not be read")
    if budget.is_cut:
        notices.append("not everything was looked at")
    return "\n".join([*map(_line, entries[: arguments.limit]), f"({'; '.join(notices)})"])


def _line(entry: Entry) -> str:
    what = str(entry.size) if entry.kind is Kind.FILE else entry.kind
    return f"{what:>10}  {shown(entry.parts)}"


def _search(arguments: SearchArguments, root: str) -> str:
    question = scan.Question(root=root, alarm_s=scan.ALARM_S, **arguments.model_dump())
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module; the question goes by stdin
            [sys.executable, "-P", "-m", scan.__name__],
            input=json.dumps(asdict(question)).encode(),
            capture_output=True,
            timeout=question.alarm_s + 5,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"search: no answer within {question.alarm_s + 5} s") from error
    if done.returncode == -signal.SIGALRM:
        raise Refused(
            f"pattern: took longer than {question.alarm_s} s; use fewer nested or repeated quantifiers, "
            "or narrow the search with path and glob"
        )
    if done.returncode:
        raise Refused(f"search: ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
    answer = json.loads(done.stdout)
    if answer["failed"]:
        raise Refused(answer["text"])
    return str(answer["text"])


def _write(arguments: WriteArguments, root: str) -> str:
    parts = parts_of(arguments.path)
    data = arguments.text.encode()
    if not parts:
        raise Refused("path: is a directory, not a file")
    if len(data) > FILE_BYTES_MAX:
        raise Refused(f"text: has {len(data)} bytes, at most {FILE_BYTES_MAX} are allowed")
    if any(part.casefold() == ".git" for part in parts):
        # A hook or a config written there runs as the user at the next git command.
        raise Refused("path: nothing is written inside .git")
    with directory(root, parts[:-1], create=True) as here:
        try:
            _replace(here, parts, data)
        except OSError as error:
            raise Refused(f"path: {shown(parts)[:200]}: {str(error.strerror).lower()}") from error
    return f"wrote {shown(parts)} ({len(data)} bytes)"


def _replace(here: int, parts: Parts, data: bytes) -> None:
    """A reader sees the old file or the new one, whole; so does the next boot after a power cut."""
    name = parts[-1]
    mode = _mode(here, parts)
    # A random name: a late call of a dead owner must not write into the file of the one that took over.
    temporary = f".{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o666, dir_fd=here)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            if mode is not None:
                os.fchmod(file, mode)
            os.fsync(file)
        os.replace(temporary, name, src_dir_fd=here, dst_dir_fd=here)
    except BaseException:
        os.unlink(temporary, dir_fd=here)
        raise
    os.fsync(here)


def _mode(here: int, parts: Parts) -> int | None:
    """The permissions to keep; None for a new file."""
    try:
        status = os.stat(parts[-1], dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise Refused(f"path: {shown(parts)[:200]} is a symlink; symlinks are not followed")
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"path: {shown(parts)[:200]} is not a regular file")
    return stat.S_IMODE(status.st_mode) & 0o777
