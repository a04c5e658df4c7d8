"""Files of a workspace that a user mentions with `@path` in a message to the gateway (`core.mentions` has the rule).

A browser may ask for any name. So a file is opened as the file tools open it (`workspace`): beneath the workspace of
the agent, without absolute paths, `..` and symlinks, and not in a state directory of Clutch. Files are read in a
thread: a disk may be slow."""

from __future__ import annotations

import asyncio
import os
import stat

from clutch.core import attachments
from clutch.errors import InvalidInput
from clutch.tools.workspace import (
    DirectoryEntry,
    FileAccessError,
    Kind,
    Parts,
    WalkLimit,
    directory,
    opened,
    parts_of,
    walk,
)

NAMES_MAX = 20  # offered at once
LOOKED_AT_MAX = 4000  # entries of a workspace that are searched for a name


class WorkspaceMentions:
    async def with_files(self, text: str, root: str) -> str:
        if not attachments.mentioned(text):
            return text
        return await asyncio.to_thread(attachments.with_files, text, lambda name: _read(root, name))

    async def names(self, root: str, prefix: str) -> list[str]:
        return await asyncio.to_thread(names, root, prefix)


def _read(root: str, name: str) -> bytes | None:
    try:
        parts = parts_of(name)
    except FileAccessError:
        return None  # no path beneath the workspace, as `@/components/x` in a text about code: plain text
    try:
        return _content(root, parts)
    except (FileAccessError, OSError) as error:
        if _is_missing(error):
            return None
        said = error.strerror if isinstance(error, OSError) else str(error).removeprefix("path: ")
        raise InvalidInput(f"@{name}", said or type(error).__name__) from error


def _content(root: str, parts: Parts) -> bytes | None:
    """None: a folder."""
    if not parts:
        return None
    with directory(root, parts[:-1]) as here:
        if stat.S_ISDIR(os.stat(parts[-1], dir_fd=here, follow_symlinks=False).st_mode):
            return None
    with opened(root, parts) as (file, _):
        chunks, left = [], attachments.FILE_BYTES_MAX + 1
        while left and (chunk := os.read(file, left)):
            chunks.append(chunk)
            left -= len(chunk)
    return b"".join(chunks)


def _is_missing(error: Exception) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, FileNotFoundError | NotADirectoryError) and "symlink" not in str(error)


def names(root: str, prefix: str) -> list[str]:
    """Return files and folders whose path begins with the prefix, then files anywhere whose name does.

    What `.gitignore` names is found only by its path. Raises InvalidInput for a path outside of the workspace."""
    folder, _, start = prefix.rpartition("/")
    try:
        found = dict.fromkeys(_in_folder(root, parts_of(folder), start))
        if start and not folder and not prefix.startswith("/"):
            found |= dict.fromkeys(_anywhere(root, start))
    except FileAccessError as error:
        if _is_missing(error):
            return []
        raise InvalidInput("prefix", str(error).removeprefix("path: ")) from error
    return list(found)[:NAMES_MAX]


def _in_folder(root: str, parts: Parts, start: str) -> list[str]:
    here = walk(root, parts, WalkLimit(LOOKED_AT_MAX), recursive=False, with_ignored=True)
    named = [entry for entry in here if attachments.completes(entry.parts[-1], start)]
    return [_name(entry) for entry in named if _may_mention(root, entry)][:NAMES_MAX]


def _anywhere(root: str, start: str) -> list[str]:
    wanted, found = start.casefold(), []
    for entry in walk(root, (), WalkLimit(LOOKED_AT_MAX), recursive=True):
        is_named = entry.kind is Kind.FILE and entry.parts[-1].casefold().startswith(wanted)
        if is_named and attachments.is_mentionable(entry.path):
            found.append(entry.path)
        if len(found) == NAMES_MAX:
            break
    return found


def _may_mention(root: str, entry: DirectoryEntry) -> bool:
    """A folder is offered if it can be entered: a state directory of Clutch cannot."""
    if not attachments.is_mentionable(entry.path):
        return False
    if entry.kind not in (Kind.DIRECTORY, Kind.SKIPPED):
        return entry.kind is Kind.FILE
    try:
        with directory(root, entry.parts):
            return True
    except FileAccessError:
        return False


def _name(entry: DirectoryEntry) -> str:
    return entry.path if entry.kind is Kind.FILE else f"{entry.path}/"
