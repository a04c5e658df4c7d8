"""The lifetime of a sandbox: what is guarded in it, and its end when a state directory appears in a folder it shows.

Mounts are fixed when a program starts. A directory that is covered later stays readable for a program that has opened
it meanwhile. So a program that sees a new state directory is ended, and the next start hides the directory.

- A state directory that Clutch makes is announced. Every running sandbox is listed in a folder of the user, in a file
  that is locked while it runs. The maker of a state directory looks there when the directory can be recognised and
  before it holds a secret (`wait_until_hidden`): it asks for the end of each sandbox that shows the directory, and
  waits for it. A sandbox is listed before its folders are walked: either the walk finds the directory, or the maker
  finds the sandbox.
- One that appears otherwise (moved, copied, made in a container) is found by walking the folders again. The pause
  between two walks is a multiple of what the last one took."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from clutch.errors import UnsafeStateDirectory
from clutch.logs import logger
from clutch.tools.sandbox.bubblewrap import ProtectedMount
from clutch.tools.sandbox.policy import SandboxPolicy, is_beneath
from clutch.tools.sandbox.protected_files import (
    SurveyFailed,
    findings,
    guarding,
    guards_of,
    locked_note,
    noted,
    walked_folders,
)

log = logger(__name__)

DRAIN_S = 5.0
PERIOD_S = 0.25  # between two looks for an announcement
WALK_PAUSE_S = 1.0  # between two walks of a folder, at least
WALK_PAUSE_FACTOR = 50  # ... and as many times what a walk takes: 2 % of a core
WALK_PAUSE_MAX_S = 120.0  # ... but no longer: in this time a running program can read what was moved in
WAIT_S = 15.0  # until a maker gives up; a gateway ends its sandbox within half a second
POLL_S = 0.02
REQUEST = ".state"  # suffix of the link by which a maker asks for the end of a listed sandbox


# Bubblewrap, and so everything that uses these two, runs on Linux only.
if sys.platform == "linux":
    _process_handle, _send_signal = os.pidfd_open, signal.pidfd_send_signal
else:

    def _process_handle(pid: int) -> int:
        raise NotImplementedError("there are no handles of processes")

    def _send_signal(handle: int, number: int) -> None:
        raise NotImplementedError("there are no handles of processes")


class FirstProcess:
    """The first process of a sandbox. Bubblewrap reports the end of the command while other processes of the sandbox
    are still being ended; when its first process is gone, so is every other."""

    def __init__(self) -> None:
        self._reader, self.info_fd = os.pipe()
        os.set_blocking(self._reader, False)
        self._handle: int | None = None

    def is_known(self) -> bool:
        """Whether bubblewrap has started it. It is held by a descriptor, because its number may be used again."""
        if self._handle is None:
            with suppress(BlockingIOError, ProcessLookupError, ValueError):
                self._handle = _process_handle(json.loads(os.read(self._reader, 4096))["child-pid"])
        return self._handle is not None

    def kill(self) -> None:
        if self._handle is not None:
            with suppress(ProcessLookupError):
                _send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end, after bubblewrap has ended. Without a sandbox there is nothing to wait for. Blocks."""
        if self.is_known() and self._handle is not None:
            select.select([self._handle], [], [], DRAIN_S)

    def close(self) -> None:
        for file in (self._reader, self.info_fd, self._handle):
            if file is not None:
                os.close(file)


# --------------------------------------------------------------------------------------------------
# The list of running sandboxes of a user, in which the maker of a state directory looks.


def listing() -> str:
    """Return the folder of the list: the same for all programs of a user, whatever their state directories are."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"{state}/clutch-sandboxes"


@dataclass(frozen=True, slots=True)
class ListEntry:
    """`path` and `file`: of the locked file. None where no list can be written: then only the walks find."""

    policy: SandboxPolicy
    path: str | None = None
    file: int = -1

    def write(self, hidden: list[str] | None) -> None:
        """`hidden`: None until the folders are walked."""
        if self.path is not None:
            text = json.dumps({"shown": self.policy.shown, "hidden": hidden}).encode()
            os.pwrite(self.file, text.ljust(os.fstat(self.file).st_size), 0)

    def announced(self) -> str | None:
        """Return the state directory for which a maker wants this sandbox to end."""
        with suppress(OSError):
            return None if self.path is None else os.readlink(f"{self.path}{REQUEST}")
        return None


@contextmanager
def listed(policy: SandboxPolicy) -> Iterator[ListEntry]:
    """List a sandbox for as long as the block runs."""
    try:
        path, file = locked_note(listing(), json.dumps({"shown": policy.shown, "hidden": None}))
    except OSError as error:
        log.warning(
            "%s cannot be written (%s): new state directories are found late", listing(), error.strerror
        )
        yield ListEntry(policy)
        return
    try:
        yield ListEntry(policy, path, file)
    finally:
        _remove(path)
        os.close(file)


def wait_until_hidden(state: Path) -> None:
    """Wait until no sandbox of this user shows a state directory that was made or opened, ending those that do.

    Blocks. Raises UnsafeStateDirectory."""
    path, ends_at = os.path.realpath(state), time.monotonic() + WAIT_S
    while showing(path):
        if time.monotonic() > ends_at:
            raise UnsafeStateDirectory(
                f"{path} lies in a folder that a program in a sandbox sees, and the program did not end within "
                f"{WAIT_S:g} s; stop the gateway that runs it, or use a state directory outside its workspaces"
            )
        time.sleep(POLL_S)


def showing(path: str) -> list[str]:
    """Return the list entries of the sandboxes that show `path`, a real path. Each is asked to end."""
    try:
        names = os.listdir(listing())
    except OSError:
        return []
    entries = [
        f"{listing()}/{name}" for name in names if not name.startswith(".") and not name.endswith(REQUEST)
    ]
    return [entry for entry in entries if _shows(entry, path)]


def _shows(entry: str, path: str) -> bool:
    with suppress(FileNotFoundError), open(entry, "rb") as stream:
        with suppress(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _remove(entry)  # its gateway was killed, and the sandbox with it
            return False
        try:
            note = json.loads(stream.read())
        except ValueError:  # is being written
            return True
        if not any(is_beneath(path, root) for root in note["shown"]):
            return False
        if note["hidden"] is None:  # its folders are being walked
            return True
        if any(is_beneath(path, hidden) for hidden in note["hidden"]):
            return False
        with suppress(FileExistsError):
            os.symlink(path, f"{entry}{REQUEST}")
        return True
    return False


def _remove(entry: str) -> None:
    for path in (entry, f"{entry}{REQUEST}"):
        with suppress(OSError):
            os.unlink(path)


# --------------------------------------------------------------------------------------------------
# Walks: which state directories lie in a folder. Sandboxes that show the same folder share them.


@dataclass(slots=True)
class _Walk:
    lock: Lock = field(default_factory=Lock)
    began: float = float("-inf")
    ended: float = float("-inf")
    found: tuple[str, ...] = ()  #: state directories

    def is_due(self, now: float) -> bool:
        pause = max(WALK_PAUSE_S, WALK_PAUSE_FACTOR * (self.ended - self.began))
        return now - self.ended >= min(pause, WALK_PAUSE_MAX_S)


_walks: dict[str, _Walk] = {}


def new_state(policy: SandboxPolicy, hidden: tuple[str, ...], since: float) -> str | None:
    """Return a state directory in a shown folder that is not hidden, as of the last walk after `since`. Blocks."""
    for root in walked_folders(policy):
        walk = _walks.setdefault(root, _Walk())
        with walk.lock:
            if walk.is_due(time.monotonic()):
                walk.began = time.monotonic()
                walk.found = tuple(_states(root))
                walk.ended = time.monotonic()
            found = walk.found if walk.began >= since else ()
        for path in found:
            if not any(is_beneath(path, other) for other in hidden):
                return path
    return None


def _states(root: str) -> Iterator[str]:
    try:
        yield from (found.path for found in findings(root) if found.is_hidden)
    except (
        SurveyFailed
    ):  # it is one itself, or has more folders than can be walked: the next start is refused
        yield root


# --------------------------------------------------------------------------------------------------
# One running sandbox.


class RunningSandbox:
    """`guards`: its mounts. `first`: to be given to bubblewrap."""

    def __init__(self, entry: ListEntry, guards: tuple[ProtectedMount, ...], first: FirstProcess) -> None:
        self.guards, self.first = guards, first
        self._entry = entry
        self._hidden = tuple(guard.path for guard in guards if guard.is_hidden)
        self._since = time.monotonic()

    async def exposed(self) -> str:
        """Wait until it shows a state directory, end it, and return why. The caller ends its own process."""
        walk_at = time.monotonic() + WALK_PAUSE_S
        while True:
            await asyncio.sleep(PERIOD_S)
            found = self._entry.announced()
            if found is None and time.monotonic() >= walk_at:
                found = await asyncio.to_thread(new_state, self._entry.policy, self._hidden, self._since)
                walk_at = time.monotonic() + WALK_PAUSE_S
            # While bubblewrap makes the sandbox there is nothing to end yet. Seatbelt has no first process: the caller
            # ends the process group.
            if found is not None and (sys.platform != "linux" or self.first.is_known()):
                self.first.kill()
                return (
                    f"{found} became a state directory of Clutch, which no agent may see; "
                    "it is hidden when the program starts again"
                )


@contextmanager
def running_sandbox(policy: SandboxPolicy, *, is_sandboxed: bool = True) -> Iterator[RunningSandbox]:
    """Lasts as long as the sandbox. Blocks: walks the workspace. Raises ToolFailed.

    Without a sandbox (`is_sandboxed` false) the command is only known to this process, and nothing is hidden."""
    entering = listed(policy) if is_sandboxed else nullcontext(ListEntry(policy))
    with closing(FirstProcess()) as first, entering as entry:
        found = guards_of(policy) if is_sandboxed else ()
        with guarding(policy, found) as guards, noted(policy, guards):
            entry.write([guard.path for guard in guards if guard.is_hidden])
            yield RunningSandbox(entry, guards, first)
