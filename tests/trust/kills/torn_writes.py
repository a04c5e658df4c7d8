"""SQLite's file layer with a process that dies inside a commit: half a page written, or written and not synced.

Only the write-ahead log is watched: a commit is a write and a sync there, and nothing else. Registered as the
default of this process, so it must be done before the first connection is opened.
"""

from __future__ import annotations

from typing import Final

import apsw

from tests.trust.kills.points import Points

_BASE: Final = "unix"
_LOG_SUFFIX: Final = "-wal"


class TearingDisk(apsw.VFS):
    def __init__(self, points: Points) -> None:
        self._points = points
        super().__init__("clutch-tearing", _BASE, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        filename = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        if filename.endswith(_LOG_SUFFIX):
            return _Log(self._points, name, flags)
        return apsw.VFSFile(_BASE, name, flags)


class _Log(apsw.VFSFile):
    def __init__(self, points: Points, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._points = points
        super().__init__(_BASE, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        half = len(data) // 2
        super().xWrite(data[:half], offset)
        self._points.reach("commit:torn")
        super().xWrite(data[half:], offset + half)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._points.reach("commit:unsynced")
        super().xSync(flags)
