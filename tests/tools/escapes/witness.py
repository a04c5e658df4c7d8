"""A small world around a box, and what has become of it: everything is looked at from outside.

There is a secret in a file, in another workspace, in the environment; there are listeners on TCP, UDP and unix
sockets; there is a process that must live. `harms` names all that an escape would leave behind.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

CANARY = "canary-4f1c9d27"


@dataclass(slots=True)
class World:
    base: Path
    marker: str = field(default_factory=lambda: f"marker{secrets.token_hex(8)}")
    listeners: dict[str, socket.socket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("workspace", "outside/home/.ssh", "other"):
            (self.base / name).mkdir(parents=True)
        for name in ("token", "other/secret", "outside/home/.ssh/id"):
            (self.base / name).write_text(CANARY, encoding="utf-8")
        self.git("init", "-q")
        (self.base / "workspace" / "module").mkdir()
        self.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
        self._listen("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self._listen("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self._listen("unix", socket.AF_UNIX, socket.SOCK_STREAM, f"/tmp/{self.marker}.socket")  # noqa: S108
        self._listen("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.marker}")
        self.sentinel = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.before = self._files()

    sentinel: subprocess.Popen[bytes] = field(init=False)
    before: dict[str, bytes] = field(init=False)

    @property
    def workspace(self) -> str:
        return str(self.base / "workspace")

    def git(self, *words: str) -> None:
        """As the user does, outside any box."""
        command = ["git", "--no-optional-locks", "-C", self.workspace, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def filled(self, script: str) -> str:
        places = {
            "token": str(self.base / "token"),
            "other": str(self.base / "other"),
            "outside": str(self.base / "outside"),
            "port": str(self.listeners["tcp"].getsockname()[1]),
            "udp": str(self.listeners["udp"].getsockname()[1]),
            "unix": f"/tmp/{self.marker}.socket",  # noqa: S108
            "abstract": self.marker,
            "sentinel": str(self.sentinel.pid),
            "python": sys.executable,
            "marker": self.marker,
        }
        for name, value in places.items():
            script = script.replace("{" + name + "}", value)
        return script

    def harms(self, said: str) -> list[str]:
        found = []
        if CANARY in said:
            found.append("a secret was read")
        if "ESCAPED" in said.split():
            found.append("a forbidden call succeeded")
        readable = select.select(list(self.listeners.values()), [], [], 0)[0]
        found += [f"somebody reached {name}" for name, one in self.listeners.items() if one in readable]
        if self.sentinel.poll() is not None:
            found.append("a process outside was ended")
        if self._files() != self.before:
            found.append("a file outside was changed")
        if survivors := processes_with(self.marker):
            found.append(f"processes outlived their command: {survivors}")
        if any(Path(place, self.marker).exists() for place in ("/tmp", "/dev/shm")):  # noqa: S108
            found.append("something was left in shared memory")
        return found

    def close(self) -> None:
        self.sentinel.kill()
        self.sentinel.communicate()
        for listener in self.listeners.values():
            listener.close()
        for place in (f"/tmp/{self.marker}.socket", f"/tmp/{self.marker}", f"/dev/shm/{self.marker}"):  # noqa: S108
            Path(place).unlink(missing_ok=True)
        for pid in processes_with(self.marker):
            os.kill(pid, 9)

    def _listen(self, name: str, family: int, kind: int, address: object) -> None:
        listener = socket.socket(family, kind)
        listener.bind(address)  # type: ignore[arg-type] # each family has its own kind of address
        if kind == socket.SOCK_STREAM:
            listener.listen()
        self.listeners[name] = listener

    def _files(self) -> dict[str, bytes]:
        """All but what lies in the workspace, of which only the repository is looked at: git runs what it names."""
        beyond = [path for path in self.base.rglob("*") if not path.is_relative_to(self.workspace)]
        watched = [*beyond, *Path(self.workspace, ".git").rglob("*")]
        return {str(path): path.read_bytes() for path in watched if path.is_file()}


def processes_with(marker: str) -> list[int]:
    """Processes with this word on their command line, in any namespace."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = path.read_bytes()
        except OSError:  # ended since it was listed
            continue
        if marker.encode() in said and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found
