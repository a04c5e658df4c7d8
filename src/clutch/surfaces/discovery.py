"""The address and the token of the gateway of a state directory: `gateway.json` and `token`.

The gateway holds the kernel's lock on `gateway.json`, which is freed when its process dies, however it dies. A file
without that lock is stale: its port may belong to another program by now, and no client sends a token there. A token is
read only from a regular file that belongs to the user and that no other user can read."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self
from urllib.parse import urlsplit

from clutch.core.text.format import typed, visible
from clutch.errors import NoGateway, UnsafeStateDirectory

# --------------------------------------------------------------------------------------------------
# Which config a running gateway has loaded, and what of the file it has not.
#
# It is published in `gateway.json`, which every command compares with the file, and in the problems of the health
# path: a config which was refused is never only in a log. Standard library only.

PROBLEM = "config-loaded"  #: its name among the problems of a gateway and the checks of `doctor`
ERROR_CHARS_MAX = 400  #: `gateway.json` is read in one piece


@dataclass(frozen=True, slots=True)
class Loaded:
    """`stamp`: of the file the gateway looked at last. `error`: why it keeps the config it had before.

    `waiting`: keys that differ from what is loaded and need a restart. `follows`: a change is loaded by itself."""

    file: str
    stamp: tuple[int, ...] | None = None
    error: str = ""
    waiting: tuple[str, ...] = ()
    follows: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "stamp": None if self.stamp is None else list(self.stamp),
            "error": visible(self.error, ERROR_CHARS_MAX),
            "waiting": list(self.waiting),
            "follows": self.follows,
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        stamp = said["stamp"]
        return cls(
            str(said["file"]),
            None if stamp is None else tuple(map(int, stamp)),
            str(said["error"]),
            tuple(map(str, said["waiting"])),
            bool(said["follows"]),
        )

    @property
    def is_current(self) -> bool:
        """The file has not changed since the gateway looked at it."""
        return stamp_of(Path(self.file)) == self.stamp

    @property
    def is_pending(self) -> bool:
        """The gateway has not looked at the changed file yet and does so within seconds."""
        return self.follows and not self.error and not self.waiting and not self.is_current

    @property
    def missing(self) -> str | None:
        """What of the file is not loaded, and why; None: all of it is loaded."""
        if self.error:
            return f"Config not loaded; the gateway keeps the previous one: {self.error}"
        if self.waiting:
            return f"Config partly loaded: {', '.join(self.waiting)} changed"
        return None if self.is_current else f"Config not loaded: {self.file} has changed"


def stamp_of(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes when the file changes; None: there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


GATEWAY_FILE = "gateway.json"
BLOCKED_FILE = "blocked.json"  #: written by the watchdog of a gateway whose event loop is blocked
#: Its token has all scopes; those in `token.read`, `token.read+write` … have the scopes in their names.
TOKEN_FILE = "token"  # noqa: S105 (the name of the file)
TOKEN_BYTES = 32
CONFIG_FILE = "clutch.json"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_BYTES_MAX = 64 * 1024  # more than a path and an error of the config, each character escaped
_READ_TRIES, _READ_PAUSE_S = 3, 0.002
_CLAIM_TRIES, _CLAIM_PAUSE_S = 25, 0.02  # a client that only reads holds the lock for a moment, too


def default_state_directory() -> Path:
    """`$CLUTCH_HOME`, else `$XDG_STATE_HOME/clutch`, else `~/.local/state/clutch`."""
    if home := os.environ.get("CLUTCH_HOME"):
        return Path(home)
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state) / "clutch" if state else Path.home() / ".local" / "state" / "clutch"


def named_state(home: Path) -> str | None:
    """Return the state directory as printed commands name it. None: every terminal of this user finds it by default."""
    return None if home == Path.home() / ".local" / "state" / "clutch" else str(home.absolute())


@dataclass(frozen=True, slots=True)
class Address:
    """The content of `gateway.json`."""

    url: str
    pid: int
    version: str
    started_at: str
    is_background: bool = False  #: a command started it, and may start another in its place
    config: Loaded | None = field(default=None, compare=False)  #: changes while it runs
    workspace: str | None = None  #: where its main agent works; None: not known

    def restart(self, home: Path) -> str:
        """Return the command that starts it again with another config."""
        if self.config is not None and not self.config.follows:
            return f"end the program that serves it (pid {self.pid})"
        stop = f"`{typed('stop', state=named_state(home))}`"
        return stop if self.is_background else f"{stop}, then `{typed('serve', state=named_state(home))}`"

    def to_json(self) -> str:
        said = {"url": self.url, "pid": self.pid, "version": self.version, "startedAt": self.started_at}
        loaded = None if self.config is None else self.config.to_json()
        more = {"background": self.is_background, "config": loaded, "workspace": self.workspace}
        return json.dumps({**said, **more}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Parse the file. None: half written, or not ours."""
        try:
            said = json.loads(text)
            config = None if said.get("config") is None else Loaded.from_json(said["config"])
            found = cls(
                str(said["url"]),
                int(said["pid"]),
                str(said["version"]),
                str(said["startedAt"]),
                bool(said.get("background")),
                config,
                None if said.get("workspace") is None else str(said["workspace"]),
            )
        except (ValueError, TypeError, KeyError):
            return None
        return found if urlsplit(found.url).hostname in LOOPBACK else None


class Claim:
    """The right to serve a state directory, held from `claim` to `release`."""

    def __init__(self, home: Path, file: int) -> None:
        self._path, self._file = home / GATEWAY_FILE, file
        self.address: Address | None = None  #: what was published

    def publish(self, address: Address) -> None:
        """Write the address, also repeatedly. One padded write: a reader never finds an empty file."""
        size = os.fstat(self._file).st_size
        os.pwrite(self._file, address.to_json().encode().ljust(size), 0)
        self.address = address

    def publish_config(self, config: Loaded) -> None:
        """Publish which config is loaded now."""
        if self.address is not None:
            self.publish(replace(self.address, config=config))

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def claim(home: Path) -> Claim | None:
    """Take the right to serve a directory. None: another gateway has it."""
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
    """Whether the locked file still has its name: a gateway that stopped meanwhile has removed it."""
    try:
        return os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def find(home: Path) -> Address | None:
    """Return the gateway that serves this directory now. Raises UnsafeStateDirectory."""
    try:
        with _own_file(home / GATEWAY_FILE) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _published(file)
            return None
    except FileNotFoundError:
        return None


def _published(file: int) -> Address | None:
    """A gateway writes it when it begins to serve, and again when its config changes: a torn read is repeated."""
    for _ in range(_READ_TRIES):
        found = Address.from_json(os.pread(file, _BYTES_MAX, 0).decode("utf-8", "replace"))
        if found is not None:
            return found
        time.sleep(_READ_PAUSE_S)
    return None


def has_died(home: Path) -> bool:
    """Whether the last gateway died: one that stops by itself removes the file."""
    return (home / GATEWAY_FILE).exists() and find(home) is None


def read_private(path: Path) -> str:
    """Read a file that only its owner can read. Raises FileNotFoundError, UnsafeStateDirectory."""
    with _own_file(path) as file:
        return os.pread(file, _BYTES_MAX, 0).decode("ascii", "replace").strip()


def ensure_token(home: Path) -> None:
    """Create the token once; the caller holds the claim."""
    try:
        if read_private(home / TOKEN_FILE):
            return
    except FileNotFoundError:
        pass
    rotate_token(home)


def rotate_token(home: Path) -> None:
    """Replace the token: requests with the old one are refused, and those under way are ended."""
    write_private(home / TOKEN_FILE, secrets.token_urlsafe(TOKEN_BYTES))


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner can read; a reader finds the old text or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w") as made:
        os.fchmod(file, 0o600)
        made.write(f"{text}\n")
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


def blocked(home: Path) -> str | None:
    """Say for how long the loop of the gateway that serves `home` has been blocked, and by what. None: it is not."""
    try:
        said = json.loads((home / BLOCKED_FILE).read_text(encoding="utf-8"))
        seconds, where, pid = time.time() - float(said["since"]), str(said["where"]), int(said["pid"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    serving = find(home)
    if serving is None or serving.pid != pid:
        return None  # left behind by a gateway that was killed meanwhile
    return f"the event loop of the gateway (pid {pid}) has been blocked for {seconds:.0f} s by {where}"


# --------------------------------------------------------------------------------------------------
# Start a gateway in the background for a command that needs one; there is one per state directory.
#
# Two commands may start one at the same moment: the lock of the state directory lets one of the two live, and both
# commands use that one. Standard library only; the gateway itself is `clutch serve`, in a process of its own that
# outlives its starter, its terminal and a Ctrl-C there.

NO_START = "CLUTCH_NO_START"  #: in the environment: no command starts a gateway
START_S = 30.0
PAUSE_S = 0.02
TAIL_BYTES, TAIL_CHARS_MAX = 4096, 500


def may_start(home: Path, *, is_new_work: bool = False) -> bool:
    """Whether a command may start a gateway. `is_new_work`: it brings work, and does not read what must exist already.

    A directory with a token and no database had its gateway on PostgreSQL: only its owner knows where."""
    if os.environ.get(NO_START):
        return False
    if has_store(home) or (home / CONFIG_FILE).exists():
        return True
    return is_new_work and is_fresh(home)


def has_store(home: Path) -> bool:
    """Whether there is a database; loads no database library."""
    return (home / "clutch.db").exists()


def is_fresh(home: Path) -> bool:
    """Whether no gateway has ever served this directory: the first one makes a database, or on PostgreSQL a token."""
    return not has_store(home) and not (home / TOKEN_FILE).exists()


def start(home: Path) -> Address:
    """Start a gateway and return the one that answers, started by this process or another. Raises NoGateway."""
    remedy = typed("serve", state=named_state(home))  # in the foreground it prints the whole error
    with TemporaryFile() as said:  # the gateway logs to its own file once it owns the directory
        process, was_owned = _spawned(home, said), False
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if (found := find(home)) is not None:
                return found
            if process.poll() is not None:
                if is_owned(home):
                    was_owned = True  # by a gateway that starts or stops
                elif was_owned:
                    process, was_owned = _spawned(home, said), False
                else:
                    raise NoGateway(f"a gateway was started and ended at once: {_last_words(said)}", remedy)
            time.sleep(PAUSE_S)
        raise NoGateway(f"no gateway answers for {home} after {START_S:.0f} s: {_last_words(said)}", remedy)


def _spawned(home: Path, said: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the process. `-P`: no module is loaded from the current directory."""
    return subprocess.Popen(  # noqa: S603 - our own command and arguments
        [sys.executable, "-P", "-m", "clutch", "serve", "--background", "--state", str(home.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        start_new_session=True,
    )


def is_owned(home: Path) -> bool:
    """Whether a process holds the lock of the state directory: a gateway that starts or stops."""
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
