"""Start a gateway in the background for a command that needs one: one per state directory, whoever is first.

Two commands may start one at the same moment: the lock of the state directory lets one of the two live, and both
commands talk to that. Standard library only; the gateway itself is `clutch serve`, in a process of its own that
outlives its starter, its terminal and a Ctrl-C there.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from clutch.core.shown import typed, visible
from clutch.errors import NoGateway
from clutch.surfaces import address
from clutch.surfaces.address import CONFIG_FILE, TOKEN_FILE, Address

NO_START = "CLUTCH_NO_START"  #: in the environment: no command starts a gateway
START_S = 30.0
PAUSE_S = 0.02
TAIL_BYTES, TAIL_CHARS_MAX = 4096, 500


def may_start(home: Path, *, is_new_work: bool = False) -> bool:
    """`is_new_work`: the command brings something to do, and does not ask about what must be there already.

    A directory with a token and no database had its gateway on PostgreSQL: only its owner knows where."""
    if os.environ.get(NO_START):
        return False
    if has_store(home) or (home / CONFIG_FILE).exists():
        return True
    return is_new_work and not (home / TOKEN_FILE).exists()


def has_store(home: Path) -> bool:
    """A look that loads no database."""
    return (home / "clutch.db").exists()


def start(home: Path) -> Address:
    """The gateway that answers now, started by this process or by another one. Raises NoGateway."""
    remedy = typed("serve", state=address.named_state(home))  # in the foreground it says all of it
    with TemporaryFile() as said:  # it has a log of its own as soon as the directory is known to be its own
        process, was_owned = _spawned(home, said), False
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if (found := address.find(home)) is not None:
                return found
            if process.poll() is not None:
                if is_owned(home):
                    was_owned = True  # by one that is about to answer, or that is leaving
                elif was_owned:
                    process, was_owned = _spawned(home, said), False
                else:
                    raise NoGateway(f"a gateway was started and ended at once: {_last_words(said)}", remedy)
            time.sleep(PAUSE_S)
        raise NoGateway(f"no gateway answers for {home} after {START_S:.0f} s: {_last_words(said)}", remedy)


def _spawned(home: Path, said: IO[bytes]) -> subprocess.Popen[bytes]:
    """`-P`: whatever lies in the directory we stand in is no module of ours."""
    return subprocess.Popen(  # noqa: S603 - our own command, in our own words
        [sys.executable, "-P", "-m", "clutch", "serve", "--background", "--state", str(home.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        start_new_session=True,
    )


def is_owned(home: Path) -> bool:
    """Somebody holds the lock of the state directory: about to answer, or about to leave."""
    try:
        lock = os.open(home / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _last_words(said: IO[bytes]) -> str:
    said.seek(max(0, os.fstat(said.fileno()).st_size - TAIL_BYTES))
    lines = said.read().decode("utf-8", "replace").splitlines()
    return visible(
        next((line for line in reversed(lines) if line.strip()), "it said nothing"), TAIL_CHARS_MAX
    )
