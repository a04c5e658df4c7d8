"""The tools `read`, `list`, `search`, `write` and `edit`: files of one workspace, as text for a model.

`workspace` opens nothing outside, `search` bounds what an expression may cost, and here every answer has a limit. Files
are read up to 2 MiB, listings and searches end after 20,000 entries or 8 seconds and say so. The sandbox around the
process is a layer of its own.

Every function blocks and takes checked arguments. `run` is the only entry, so that a process of its own can serve it;
therefore this imports the standard library and its neighbours only.

Every answer consists of lines. A line of `list` is a kind or a size, two spaces and a path; a line of `search` is
`path:line: text`; notices are in parentheses on the last line."""

from __future__ import annotations

import difflib
import json
import os
import re
import secrets
import signal
import stat
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clutch.core import attachments
from clutch.core.text.format import counted
from clutch.tools import search as search_tools
from clutch.tools.import_guard import python_command
from clutch.tools.sandbox.bubblewrap import python_inside
from clutch.tools.sandbox.policy import is_beneath
from clutch.tools.workspace import (
    FILE_BYTES_MAX,
    IGNORES_CASE,
    DirectoryEntry,
    FileAccessError,
    Kind,
    Parts,
    WalkLimit,
    content,
    directory,
    lines_of,
    locked,
    matches,
    opened,
    parts_of,
    shown,
    walk,
)

# --------------------------------------------------------------------------------------------------
# Edits of a text: all of them or none, and a short diff of the result. No I/O.
#
# An `old` must occur exactly once in the result of the edits before it, unless all places are meant: a model with an
# outdated copy gets an error instead of changing the wrong place.

NEAREST_LINES_MAX = 2000  # compared with a text that was not found
DIFF_LINE_CHARS_MAX = 160
PLACES_MAX = 100  # counted; a larger count says no more
DIFF_LINES_MAX = 60  # shown; enough to recognise the change
CHANGED_LINES_MAX = 2000  # between the first and the last change; comparing more takes too long
CONTEXT_LINES = 2
INSPECTED_BYTES_MAX = 32 * 1024  # of a file that is checked against a schema


@dataclass(frozen=True, slots=True)
class TextEdit:
    old: str
    new: str
    all: bool = False


class EditFailed(FileAccessError):
    """An edit does not fit the text; the message names it and is for the model."""


def edited(text: str, edits: Sequence[TextEdit]) -> str:
    """Raises EditFailed, with nothing changed, for the first edit that does not fit."""
    for number, edit in enumerate(edits, 1):
        problem = _problem(text, edit)
        if problem:
            raise EditFailed(f"edits: number {number} of {len(edits)} {problem}; nothing was written")
        text = text.replace(edit.old, edit.new)
    return text


def _problem(text: str, edit: TextEdit) -> str | None:
    if not edit.old:
        return "has an empty old; name the text to replace, or use write for a new file"
    if edit.old == edit.new:
        return "changes nothing: old and new are the same"
    found = _count(text, edit.old)
    if not found:
        return f"was found 0 times{_nearest(text, edit.old)}"
    if found > 1 and not edit.all:
        return f"was found {found} times; name more of the text around it, or set all"
    return None


def _count(text: str, old: str) -> int:
    """Count the places of a text. Two that overlap count twice: either could be meant."""
    found = 0
    at = text.find(old)
    while at >= 0 and found < PLACES_MAX:
        found += 1
        at = text.find(old, at + 1)
    return found


def _nearest(text: str, old: str) -> str:
    wanted = next((line.strip() for line in old.split("\n") if line.strip()), "")[:DIFF_LINE_CHARS_MAX]
    lines = [line.strip()[:DIFF_LINE_CHARS_MAX] for line in text.split("\n")[:NEAREST_LINES_MAX]]
    close = difflib.get_close_matches(wanted, lines, n=1, cutoff=0.5)
    if not close:
        return "; no line is like it"
    number = lines.index(close[0]) + 1
    reason = " (the rest or the white space differs)" if close[0] == wanted else ""
    return f"; the nearest line is {number}: {close[0]}{reason}"


def diff(before: str, after: str) -> str:
    """Return the changed lines as a unified diff without its head."""
    old, new = before.split("\n"), after.split("\n")
    start = max(0, _common(old, new) - CONTEXT_LINES)
    end = max(0, min(_common(old[::-1], new[::-1]), len(old) - start, len(new) - start) - CONTEXT_LINES)
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    if len(old) + len(new) > CHANGED_LINES_MAX:
        return f"({len(old)} line{'' if len(old) == 1 else 's'} became {len(new)} from line {start + 1} on)"
    lines = list(difflib.unified_diff(old, new, n=CONTEXT_LINES, lineterm=""))[2:]
    shown = [_moved(line, start)[:DIFF_LINE_CHARS_MAX] for line in lines[:DIFF_LINES_MAX]]
    left = len(lines) - len(shown)
    return "\n".join([*shown, *([f"({left} more lines of the diff)"] if left else [])])


def _common(one: list[str], other: list[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next(
        (count for count, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other))
    )


def _moved(line: str, lines: int) -> str:
    """Return the head of a hunk with its lines counted from the beginning of the file."""
    if not line.startswith("@@"):
        return line
    return re.sub(r"([-+])(\d+)", lambda found: f"{found[1]}{int(found[2]) + lines}", line)


READ_CHARS_MAX = 64 * 1024  # one answer; a model that wants more asks for the next lines
LINE_CHARS_MAX = 1000


def run(name: str, args: Mapping[str, Any], root: str) -> str:
    """Run one call of a file tool. Raises ToolFailed with a text for the model."""
    try:
        return FUNCTIONS[name](root, **args)
    except FileAccessError as error:
        from clutch.ports import ToolFailed  # its import costs more than the call, and most calls succeed

        raise ToolFailed(str(error)) from error


def read(root: str, path: str, start: int = 1, limit: int = 400) -> str:
    parts = parts_of(path)
    with opened(root, parts) as (file, size):
        lines = lines_of(content(file))
    if lines is None:
        return f"({shown(parts)} is binary: {counted(size, 'byte')}, not shown)"
    first = max(1, len(lines) + 1 + start) if start < 0 else max(1, start)
    page = _page(lines[first - 1 : first - 1 + limit])
    last = first + len(page) - 1
    span = f"lines {first}-{last}" if page else f"no line from {first} on;"
    notices = [f"{shown(parts)}: {span} of {len(lines)}, {counted(size, 'byte')}"]
    if size > FILE_BYTES_MAX:
        notices.append(f"only the first {FILE_BYTES_MAX} bytes were read")
    if last < len(lines):
        notices.append(f"continue with start={last + 1}")
    numbered = [f"{number:>6}  {line}" for number, line in enumerate(page, first)]
    return "\n".join([*numbered, f"({'; '.join(notices)})"])


def _page(lines: list[str]) -> list[str]:
    """Return the lines, each cut, up to the limit of one answer."""
    chosen: list[str] = []
    chars = 0
    for line in lines:
        chosen.append(line if len(line) <= LINE_CHARS_MAX else line[:LINE_CHARS_MAX] + "…")
        chars += len(chosen[-1])
        if chars > READ_CHARS_MAX:
            break
    return chosen


def list_files(
    root: str,
    path: str = ".",
    *,
    recursive: bool = False,
    glob: str | None = None,
    ignored: bool = False,
    limit: int = 500,
) -> str:
    """List a folder completely, or a tree without what `.gitignore` names."""
    budget = WalkLimit()
    found = walk(root, parts_of(path), budget, recursive=recursive, with_ignored=ignored or not recursive)
    entries = [entry for entry in found if glob is None or matches(entry.parts, glob)]
    notices = [counted(len(entries), "entry", "entries")]
    if len(entries) > limit:
        notices.append(f"the first {limit} are shown: narrow it with path or glob")
    if budget.ignored:
        notices.append(f"{counted(budget.ignored, 'ignored entry', 'ignored entries')} left out")
    if budget.unreadable:
        notices.append(f"{budget.unreadable} folders could not be read")
    if budget.is_cut:
        notices.append("not everything was looked at")
    return "\n".join([*map(_line, entries[:limit]), f"({'; '.join(notices)})"])


def _line(entry: DirectoryEntry) -> str:
    what = str(entry.size) if entry.kind is Kind.FILE else entry.kind
    return f"{what:>10}  {shown(entry.parts)}"


def search(root: str, **args: Any) -> str:
    """Search in a process of its own; the module `search` explains why."""
    question = search_tools.SearchRequest(root=root, alarm_s=search_tools.ALARM_S, **args)
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module; the question goes by stdin
            python_command(search_tools.__name__),
            input=json.dumps(asdict(question)).encode(),
            capture_output=True,
            timeout=question.alarm_s + 5,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FileAccessError(f"search: no answer within {question.alarm_s + 5} s") from error
    if done.returncode == -signal.SIGALRM:
        raise FileAccessError(
            f"pattern: took longer than {question.alarm_s} s; use fewer nested or repeated quantifiers, "
            "or narrow the search with path and glob"
        )
    if done.returncode:
        raise FileAccessError(
            f"search: ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}"
        )
    answer = json.loads(done.stdout)
    if answer["failed"]:
        raise FileAccessError(answer["text"])
    return str(answer["text"])


def inspect(root: str, path: str, pattern: str | None = None, text: bool = False) -> str:
    """What checks ask about a file, as JSON. A missing file is an answer; a path that may not be read is an error."""
    parts, said = parts_of(path), None
    try:
        with opened(root, parts) as (file, size):
            if text and size <= INSPECTED_BYTES_MAX:
                said = content(file).decode("utf-8", "replace")
    except FileAccessError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        return json.dumps({"bytes": None})
    if pattern is None:
        return json.dumps({"bytes": size, "text": said})
    found = search(root, pattern=pattern, path=path, limit=1)
    return json.dumps({"bytes": size, "matches": "\n" in found})  # a line for the match, and the notice


def write(root: str, path: str, text: str) -> str:
    parts = _writable(root, path)
    data = _bounded(text)
    with directory(root, parts[:-1], create=True, changes=parts[-1]) as here, locked(here):
        _replace(here, parts, data)
    return f"wrote {shown(parts)} ({counted(len(data), 'byte')})"


def edit(root: str, path: str, edits: Sequence[Mapping[str, Any]]) -> str:
    """Apply edits. A file whose lines all end in CR LF is edited without the CR, as `read` shows it."""
    parts = _writable(root, path)
    # The lock is held from reading to replacing: two edits at once of one file both count.
    with directory(root, parts[:-1], changes=parts[-1]) as here, locked(here):
        before = _text(root, parts)
        is_dos = "\r\n" in before and before.count("\r\n") == before.count("\n")
        plain = before.replace("\r\n", "\n") if is_dos else before
        after = edited(plain, [TextEdit(**each) for each in edits])
        _replace(here, parts, _bounded(after.replace("\n", "\r\n") if is_dos else after))
    return f"edited {shown(parts)}\n{diff(plain, after)}"


def _text(root: str, parts: Parts) -> str:
    with opened(root, parts) as (file, size):
        data = content(file)
    if size > FILE_BYTES_MAX:
        raise FileAccessError(
            f"path: {shown(parts)} has {size} bytes, at most {FILE_BYTES_MAX} can be edited"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FileAccessError(
            f"path: {shown(parts)} is not UTF-8 text; it can only be written anew"
        ) from error


def _writable(root: str, path: str, *, ignores_case: bool = IGNORES_CASE) -> Parts:
    parts = parts_of(path)
    if not parts:
        raise FileAccessError("path: is a directory, not a file")
    # Instructions, configs and repositories decide what programs do outside the sandbox: no agent may write them.
    judged = [attachments.without_case(part) for part in parts] if ignores_case else parts
    if (end := attachments.read_only_part(judged)) is not None:
        raise FileAccessError(
            f"path: {shown(parts[:end])[:200]} is read-only for agents; a person must change it"
        )
    # A module that an agent wrote there would run with all rights of the gateway.
    real = os.path.realpath(root)
    spelled = str.casefold if ignores_case else str
    if any(is_beneath(spelled("/".join((real, *parts))), spelled(place)) for place in python_inside(real)):
        raise FileAccessError(
            f"path: {shown(parts)[:200]} lies in the Python of Clutch, which is read-only for agents"
        )
    return parts


def _bounded(text: str) -> bytes:
    data = text.encode()
    if len(data) > FILE_BYTES_MAX:
        raise FileAccessError(f"text: has {len(data)} bytes, at most {FILE_BYTES_MAX} are allowed")
    return data


def _replace(here: int, parts: Parts, data: bytes) -> None:
    try:
        _replaced(here, parts, data)
    except OSError as error:
        raise FileAccessError(f"path: {shown(parts)[:200]}: {str(error.strerror).lower()}") from error


def _replaced(here: int, parts: Parts, data: bytes) -> None:
    """Replace a file in one step: a reader, and the next boot after a power cut, sees the old file or the new one."""
    name = parts[-1]
    mode = _mode(here, parts)
    # A random name: a late call of a worker that counts as dead must not write into the file of its successor.
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
    """Return the permissions to keep, None for a new file."""
    try:
        status = os.stat(parts[-1], dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise FileAccessError(f"path: {shown(parts)[:200]} is a symlink; symlinks are not followed")
    if not stat.S_ISREG(status.st_mode):
        raise FileAccessError(f"path: {shown(parts)[:200]} is not a regular file")
    return stat.S_IMODE(status.st_mode) & 0o777


FUNCTIONS: Mapping[str, Callable[..., str]] = {
    "read": read,
    "list": list_files,
    "search": search,
    "inspect": inspect,
    "write": write,
    "edit": edit,
}
