"""A program on a leash, with all it starts: a program of its own, run as `python -I -S leash.py LINE PROGRAM ...`.

LINE is an open file whose other end the gateway holds. When the gateway closes it, or dies, everything ends;
also what has left the process group, because orphans become children of the leash (Linux). When the program ends by
itself, what it left behind dies too.

It knows only the standard library and no other file of Clutch: start-up is all it costs.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

PR_SET_CHILD_SUBREAPER = 36
KILL_S = 5.0
NOT_STARTED = 127


def main(line: int, command: list[str]) -> int:
    os.set_inheritable(line, False)
    adopt_orphans()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        program = os.posix_spawnp(command[0], command, os.environ)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return NOT_STARTED
    code = None
    while code is None and line not in select.select([line, woken], [], [])[0]:
        os.read(woken, 512)
        code = reaped(program)
    end_all()
    return 1 if code is None else code


def adopt_orphans() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reaped(program: int) -> int | None:
    """The exit code of the program, once it has ended; others are only taken from the table."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == program:
                code = os.waitstatus_to_exitcode(ended[1]) % 256
    return code


def end_all() -> None:
    """Until no process is left: one that was just being started is found at the next look."""
    if sys.platform != "linux":
        os.killpg(0, signal.SIGKILL)
    ends_at = time.monotonic() + KILL_S
    while (below := descendants()) and time.monotonic() < ends_at:
        for number in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
                parents.setdefault(parent, []).append(int(name))
    found = [os.getpid()]
    for number in found:
        found += parents.get(number, ())
    return found[1:]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
