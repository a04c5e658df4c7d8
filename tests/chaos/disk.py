"""A small disk for a database server, so that it can be filled.

Root can mount a file system of a fixed size; another process unmounts it when this one ends, however it dies. Without
the right to mount, the disk is a plain directory and cannot be filled.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Final

DISK_BYTES: Final = 384 * 1024 * 1024
BLOCK_BYTES: Final = 4096

_KEEPER: Final = """
trap '' PIPE INT TERM
mount -t tmpfs -o "size=$2" clutch-chaos "$1" || exit 1
echo ready
read -r wish
umount -l "$1"
"""


class Disk:
    """A directory of limited size. `can_fill` False: the system does not let this user mount one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fill = directory / "fill"
        directory.mkdir(parents=True)
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "sh", str(directory), str(DISK_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        self.can_fill = self._keeper.stdout.readline() == "ready\n"

    def fill(self) -> None:
        """Take every block that is left. The server writes at the same time, so the size of the rest is not known."""
        size, end = DISK_BYTES, 0
        with self._fill.open("wb") as file:
            while size >= BLOCK_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), end, size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
                else:
                    end += size

    def free(self) -> None:
        self._fill.unlink(missing_ok=True)

    def close(self) -> None:
        self._keeper.communicate("end\n")
