"""What a git repository says of itself, read without git: git runs what a repository names, and this must not.

Every file looked at may be a stranger's work. What it names is a claim, and whoever uses it checks where it lies.
"""

from __future__ import annotations

import glob
import os
import re
import struct
from collections.abc import Iterator
from itertools import islice

from clutch.tools.sandbox.box import MIB, is_beneath

FOLDERS_MAX = 2000  # looked at in `modules`
INDEX_BYTES_MAX = 64 * MIB
_GITLINK = b"\0\0\xe0\0"  # the mode of a submodule in the index
_AFTER_MODE = struct.Struct("!12x20xH")  # user, group, size; the commit; flags
_EXTENDED = 0x4000  # two more bytes of flags


def trees_of(root: str) -> Iterator[str]:
    """What git enters from the repository in `root`: `.git` of its submodules and worktrees, and the folders of
    submodules that are not there yet. `.gitmodules` is not asked: it is a file that an agent may have emptied."""
    for folder in _gitlinks(f"{root}/.git/index"):
        place = f"{root}/{folder}"
        yield f"{place}/.git" if os.path.lexists(f"{place}/.git") else place
    for folder, folders, files in islice(os.walk(f"{root}/.git/modules"), FOLDERS_MAX):
        if "HEAD" in files:
            folders[:] = [name for name in folders if name == "modules"]
            if worktree := re.search(r"(?m)^\s*worktree\s*=\s*(.+?)\s*$", _line(f"{folder}/config")):
                yield os.path.normpath(f"{folder}/{worktree[1]}/.git")
    for entry in glob.iglob(f"{glob.escape(root)}/.git/worktrees/*/gitdir"):
        yield _line(entry)


def _gitlinks(index: str) -> Iterator[str]:
    """Found by their mode, because reading a large index entry by entry takes long. Where the same bytes stand for
    something else, what follows is no folder."""
    data = _data(index, INDEX_BYTES_MAX)
    at = data.find(_GITLINK)
    while 0 <= at < len(data) - len(_GITLINK) - _AFTER_MODE.size:
        begin = at + len(_GITLINK)
        (flags,) = _AFTER_MODE.unpack_from(data, begin)
        begin += _AFTER_MODE.size + (2 if flags & _EXTENDED else 0)
        if name := data[begin : data.find(b"\0", begin)]:
            yield os.fsdecode(name)
        at = data.find(_GITLINK, at + 1)


def worktree_entry(root: str) -> str | None:
    """What a repository keeps about its worktree `root`: the directory `.git/worktrees/NAME`.

    `.git` of a worktree is a file that names it, and an agent may have written that file. So the place named
    must name this workspace in turn, which only git did."""
    named = os.path.realpath(_line(f"{root}/.git").removeprefix("gitdir: "))
    common, folder = os.path.split(os.path.dirname(named))
    is_mutual = folder == "worktrees" and names_worktree(named, root)
    return named if is_mutual and not is_beneath(common, root) else None


def names_worktree(entry: str, root: str) -> bool:
    return os.path.realpath(_line(f"{entry}/gitdir")) == f"{root}/.git"


def _line(path: str) -> str:
    return _data(path, 4096).decode("utf-8", "replace").strip().replace("\0", "")


def _data(path: str, size: int) -> bytes:
    """Nothing, where there is no such file. A pipe there must not keep us waiting."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, size)
    except OSError:
        return b""
    finally:
        os.close(file)
