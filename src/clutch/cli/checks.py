"""What `clutch doctor` looks at outside the tables: the state directory, its files, the gateway, clock and disk.

Each check is a look and a sentence. What can be put right without harm is put right by `mend`; nothing else here
changes anything.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from clutch.cli import screen
from clutch.core.shown import duration, size, typed
from clutch.errors import InvalidInput, UnsafeStateDirectory
from clutch.surfaces import address
from clutch.surfaces.address import GATEWAY_FILE, LOOPBACK, TOKEN_FILE

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
FREE_BYTES_MIN = 512 * 1024 * 1024  #: a log that cannot grow stops every write
AHEAD_S = 5.0  #: clocks are set by small steps all the time
REACH_S = 3.0  #: for a provider to take a connection
PERIODS_MAX = 3  #: of a loop that did not come round
#: Whatever else lies there belongs to tools and children, who have modes of their own.
PRIVATE_FILES = ("token*", GATEWAY_FILE, "clutch.db*", "clutch.json", "lock", "chat-history")


@dataclass(frozen=True, slots=True)
class Check:
    id: str
    is_ok: bool
    detail: str
    remedy: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "ok": self.is_ok, "detail": self.detail, "remedy": self.remedy}


def of_directory(home: Path) -> Iterator[Check]:
    """Who could read or change what it holds."""
    found = home.lstat()
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        yield Check(
            "state-directory", False, f"{home} is not a directory of your own", "name another: --state"
        )
        return
    is_private = stat.S_IMODE(found.st_mode) == DIRECTORY_MODE
    yield Check("state-directory", is_private, _mode(home, found), None if is_private else _fix(home))
    exposed = [path for path in _private(home) if path.lstat().st_mode & 0o077]
    words = ", ".join(f"{path.name} {stat.S_IMODE(path.lstat().st_mode):04o}" for path in exposed)
    told = f"readable by others: {words}" if exposed else "token, database and settings are yours alone"
    yield Check("permissions", not exposed, told, _fix(home) if exposed else None)


def _fix(home: Path) -> str:
    return command(home, "doctor", "--fix")


def command(home: Path, *words: str) -> str:
    """As it runs in every terminal of this user."""
    return typed(*words, state=address.named_state(home))


def _private(home: Path) -> list[Path]:
    found = {path for pattern in PRIVATE_FILES for path in home.glob(pattern)}
    return sorted(path for path in found if stat.S_ISREG(path.lstat().st_mode))


def _mode(path: Path, found: os.stat_result) -> str:
    return f"{path} has mode {stat.S_IMODE(found.st_mode):04o}"


def of_gateway(home: Path) -> Check:
    """Without one everything waits, which is no fault; a file that names a dead one is litter."""
    try:
        found = address.find(home)
    except UnsafeStateDirectory as error:
        return Check("gateway", False, str(error), _fix(home))
    if found is not None:
        return Check("gateway", True, f"{found.url}, pid {found.pid}, version {found.version}")
    if (home / GATEWAY_FILE).exists():
        return Check("gateway", False, f"{GATEWAY_FILE} names a gateway that is gone", _fix(home))
    return Check("gateway", True, "none runs")


def of_disk(home: Path) -> Check:
    free = shutil.disk_usage(home).free
    is_ok = free >= FREE_BYTES_MIN
    remedy = None if is_ok else f"make room: {command(home, 'gc', '--dry-run')}"
    return Check("disk", is_ok, f"{size(free)} free", remedy)


def of_clock(newest: float | None) -> Check:
    """`newest`: the last thing that happened, as it was written down."""
    ahead = (newest or 0.0) - screen.now()
    if ahead > AHEAD_S:
        told = f"the newest line of a timeline lies {duration(ahead)} in the future"
        return Check("clock", False, told, "set the clock of this machine, then wait as long")
    return Check("clock", True, "runs forward")


def of_pulses(home: Path, pulses: Mapping[str, Any]) -> Iterator[Check]:
    """Of the gateway: sweeper, heartbeat and couriers, as it says itself."""
    for name, beat in sorted(pulses.items()):
        late = max(0.0, screen.now() - (screen.at(beat["at"]) or 0.0))
        is_ok = late <= PERIODS_MAX * beat["everySeconds"]
        told = f"last came round {duration(late)} ago; at least every {duration(beat['everySeconds'])}"
        yield Check(name, is_ok, told, None if is_ok else begin_again(home))


def begin_again(home: Path) -> str:
    return f"stop the gateway and start it again: {command(home, 'serve')}"


class Endpoint(Protocol):
    """A provider of the config."""

    @property
    def name(self) -> str: ...

    @property
    def base_url(self) -> str: ...

    def key(self, environment: Mapping[str, str]) -> str: ...


def of_provider(provider: Endpoint, *, is_online: bool) -> Check:
    """Whether it has its key, and whether somebody listens: beyond this machine only when that was asked for."""
    about = f"provider {provider.name}"
    try:
        provider.key(os.environ)
    except InvalidInput as error:
        return Check(about, False, error.rule, "set it where the gateway is started")
    place = urlsplit(provider.base_url)
    if not place.hostname or (place.hostname not in LOOPBACK and not is_online):
        return Check(about, True, "has its key; not asked beyond this machine without --online")
    port = place.port or (443 if place.scheme == "https" else 80)
    try:
        socket.create_connection((place.hostname, port), timeout=REACH_S).close()
    except OSError as error:
        return Check(
            about, False, f"nobody answers at {place.hostname}:{port}: {error}", "start it, or change baseUrl"
        )
    return Check(about, True, f"answers at {place.hostname}:{port}")


def mend(home: Path) -> list[str]:
    """What was put right. Raises UnsafeStateDirectory: a folder that is not ours is not ours to change."""
    from clutch.wiring import make_private

    done = []
    was = stat.S_IMODE(home.lstat().st_mode)
    make_private(home)
    if was != DIRECTORY_MODE:
        done.append(f"{home} is yours alone now")
    for path in _private(home):
        if path.lstat().st_mode & 0o077:
            _make_private(path)
            done.append(f"{path.name} is yours alone now{_was_open(path)}")
    if address.find(home) is None and (home / GATEWAY_FILE).exists():
        held = address.claim(home)
        if held is not None:
            held.release()
            done.append(f"{GATEWAY_FILE} of a gateway that is gone was removed")
    return done


def _make_private(path: Path) -> None:
    """The file itself, whatever its name comes to mean meanwhile."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(file, FILE_MODE)
    finally:
        os.close(file)


def _was_open(path: Path) -> str:
    if not path.name.startswith("token"):
        return ""
    how = command(path.parent, "token", "--rotate") if path.name == TOKEN_FILE else "write another into it"
    return f"; whoever has read it can still use it: {how}"
