"""Where the gateway of a state directory is found, and the secrets that open it: `gateway.json` and `token`.

Whoever serves holds the kernel's lock on `gateway.json`, so the death of the process frees it, however it
died. A file without that lock is stale: its port may belong to anybody by now, and nobody sends a token there.
A token is read only from a regular file of one's own that nobody else can read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from clutch.errors import UnsafeStateDirectory

GATEWAY_FILE = "gateway.json"
#: Its token opens everything; those in `token.read`, `token.read+write` … open what they name.
TOKEN_FILE = "token"  # noqa: S105 (the name of the file)
TOKEN_BYTES = 32
CONFIG_FILE = "clutch.json"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_BYTES_MAX = 4096
_CLAIM_TRIES, _CLAIM_PAUSE_S = 25, 0.02  # whoever only looks holds the lock for a moment, too


def default_state_directory() -> Path:
    """`$CLUTCH_HOME`, else `$XDG_STATE_HOME/clutch`, else `~/.local/state/clutch`."""
    if home := os.environ.get("CLUTCH_HOME"):
        return Path(home)
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state) / "clutch" if state else Path.home() / ".local" / "state" / "clutch"


def named_state(home: Path) -> str | None:
    """As a printed command names it. None: every terminal of this user finds it, whatever its environment says."""
    return None if home == Path.home() / ".local" / "state" / "clutch" else str(home.absolute())


@dataclass(frozen=True, slots=True)
class Address:
    """What stands in `gateway.json`."""

    url: str
    pid: int
    version: str
    started_at: str

    def to_json(self) -> str:
        said = {"url": self.url, "pid": self.pid, "version": self.version, "startedAt": self.started_at}
        return json.dumps(said) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """None: half written, or not ours."""
        try:
            said = json.loads(text)
            found = cls(str(said["url"]), int(said["pid"]), str(said["version"]), str(said["startedAt"]))
        except (ValueError, TypeError, KeyError):
            return None
        return found if urlsplit(found.url).hostname in LOOPBACK else None


class Claim:
    """The right to serve a state directory, held from `claim` to `release`."""

    def __init__(self, home: Path, file: int) -> None:
        self._path, self._file = home / GATEWAY_FILE, file

    def publish(self, address: Address) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, address.to_json().encode(), 0)

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def claim(home: Path) -> Claim | None:
    """None: somebody else serves this directory."""
    for _ in range(_CLAIM_TRIES):
        file = os.open(home / GATEWAY_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if _is_locked_now(file) and _is_same(file, home / GATEWAY_FILE):
            os.fchmod(file, 0o600)
            os.ftruncate(file, 0)
            return Claim(home, file)
        os.close(file)
        time.sleep(_CLAIM_PAUSE_S)
    return None


def _is_locked_now(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(file: int, path: Path) -> bool:
    """Whoever stopped meanwhile took the name away; a lock on a file without a name is none."""
    try:
        return os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def find(home: Path) -> Address | None:
    """The gateway that serves this directory now. Raises UnsafeStateDirectory."""
    try:
        with _own_file(home / GATEWAY_FILE) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return Address.from_json(os.pread(file, _BYTES_MAX, 0).decode("utf-8", "replace"))
            return None
    except FileNotFoundError:
        return None


def has_died(home: Path) -> bool:
    """Whoever served is gone and did not leave by itself: that takes the file along."""
    return (home / GATEWAY_FILE).exists() and find(home) is None


def read_token(path: Path) -> str:
    """Raises FileNotFoundError, UnsafeStateDirectory."""
    with _own_file(path) as file:
        return os.pread(file, _BYTES_MAX, 0).decode("ascii", "replace").strip()


def ensure_token(home: Path) -> None:
    """Made once, by whoever holds the claim."""
    try:
        if read_token(home / TOKEN_FILE):
            return
    except FileNotFoundError:
        pass
    rotate_token(home)


def rotate_token(home: Path) -> None:
    """Another one from now on: the old one opens nothing, and whoever is inside by it is shown out."""
    path = home / TOKEN_FILE
    fresh = home / f".{TOKEN_FILE}.new"
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w") as made:
        os.fchmod(file, 0o600)
        made.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
    fresh.replace(path)


@contextmanager
def _own_file(path: Path) -> Iterator[int]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeStateDirectory(f"{path} is a symbolic link; remove it, and start again") from error
        if error.errno == errno.ENOTDIR:
            raise UnsafeStateDirectory(
                f"{path.parent} is not a directory; name another with --state"
            ) from error
        raise
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise UnsafeStateDirectory(f"{path} is not a file of your own; remove it, and start again")
        if found.st_mode & 0o077:
            raise UnsafeStateDirectory(
                f"{path} can be read by others; `chmod 600 {path}`, or better remove it"
            )
        yield file
    finally:
        os.close(file)
