"""The client outside: it writes down every task that it was told is accepted, before anybody goes on.

    victim ──socket──▶ this process: append, fsync ──▶ its acknowledgement; only then the victim goes on

It outlives the victims that tell it, and what it has acknowledged outlives itself: `client.log` in the
directory of the story, where the checks read it. One process is enough for many stories.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.trust.processes import start

LEDGER: Final = "client.log"
_SOCKET: Final = "client.sock"


class Ledger:
    """Appends what it has not yet written; back when it is on disk."""

    def __init__(self, sync: Callable[[int], None] = os.fsync) -> None:
        self._sync = sync
        self._lock = threading.Lock()
        self._written: set[tuple[str, str, str]] = set()

    def accepted(self, directory: str, by: str, tasks: Sequence[str]) -> None:
        with self._lock:
            if fresh := [task for task in tasks if (directory, by, task) not in self._written]:
                with (Path(directory) / LEDGER).open("ab", buffering=0) as file:
                    file.write(b"".join(_line(accepted_by=by, task=task) for task in fresh))
                    self._sync(file.fileno())
                self._written.update((directory, by, task) for task in fresh)


def _line(**what: object) -> bytes:
    return (json.dumps(what, separators=(",", ":")) + "\n").encode()


class Teller:
    """The victim's side."""

    def __init__(self, address: str, directory: Path) -> None:
        self._directory = str(directory)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)

    def accepted(self, by: str, tasks: Sequence[str]) -> None:
        """Back when it is on disk. ConnectionError: the client is gone."""
        if tasks:
            self._socket.sendall(_line(directory=self._directory, by=by, tasks=tasks))
            if not self._socket.recv(1):
                raise ConnectionResetError("the client is gone")

    def close(self) -> None:
        self._socket.close()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    ledger = Ledger()


class _Listener(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.ledger.accepted(**json.loads(line))
                self.wfile.write(b".")
        except ConnectionError:
            pass  # the victim died while it was told


@contextmanager
def client_process() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address, and the process: it ends with the block, or with us."""
    with tempfile.TemporaryDirectory(prefix="clutch-client-") as directory:
        address = str(Path(directory) / _SOCKET)
        with start("tests.trust.kills.client", address, stdin=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            try:
                yield address, process
            finally:
                process.kill()


def main() -> None:
    with _Server(sys.argv[1], _Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()  # the process that started this one has died


if __name__ == "__main__":
    main()
