"""Of several processes of a machine that make the same files, one at a time.

A gateway that stood still for longer than its lease is taken for dead, and another one does its work; then it goes on
where it was. Without this it would remove what the other has made, from under a child that works there already.
"""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 20.0  #: within the time that a spawn is given for its side work
_PAUSE_S = 0.05


@contextmanager
def alone(file: int) -> Iterator[None]:
    """Locked also while its process stands still. Raises TimeoutError. It blocks, and wants a thread."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not _is_locked(file):
        if time.monotonic() > give_up_at:
            raise TimeoutError(errno.ETIMEDOUT, "another process is making it and does not go on")
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
