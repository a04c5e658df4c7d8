"""The process that reads and writes files for an agent: `python -m clutch.tools.file_worker`, in a sandbox.

It answers one request after the other, each a JSON text after its length, on stdin and stdout, and ends when stdin
does. `files` carries the requests out. It imports the standard library and its neighbours only: a worker must be cheap
to start, because a hung one is killed and replaced.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Container
from enum import StrEnum
from typing import Any, BinaryIO

from clutch.tools import files

LENGTH = struct.Struct("!I")
CHANGES = ("write", "edit")
PR_SET_PDEATHSIG = 1
#: Paths that Python needs for a search, which is a process of its own; those that exist are readable.
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/dev/null", "/dev/urandom")


class WorkerMode(StrEnum):
    SANDBOXED = "sandboxed"  #: a sandbox isolates the worker, or it runs without one
    CAREFUL = "careful"  #: it runs without a sandbox and refuses to change the workspace
    WRITABLE = "writable"  #: the worker confines itself to a workspace that it may change
    READABLE = "readable"  #: the worker confines itself to a workspace that it may read


def frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def serve(root: str, requests: BinaryIO, answers: BinaryIO, *, refused: Container[str] = ()) -> None:
    """`refused`: tools that this worker does not run."""
    while header := requests.read(LENGTH.size):
        request = json.loads(requests.read(LENGTH.unpack(header)[0]))
        is_refused = request["name"] in refused
        answer = {"failed": "workspace: is read-only here"} if is_refused else _answer(request, root)
        answers.write(frame(answer))
        answers.flush()


def _answer(request: dict[str, Any], root: str) -> dict[str, Any]:
    try:
        return {"text": files.run(request["name"], request["args"], root)}
    except Exception as error:  # noqa: BLE001 - one request failed; the next one may succeed
        # Recognised by its name, because importing ToolFailed costs more than most requests.
        is_for_model = type(error).__name__ == "ToolFailed"
        return {"failed": str(error) if is_for_model else f"{type(error).__name__}: {error}"[:500]}


def confine(root: str, is_writable: bool, python: list[str]) -> None:
    """Confine this process by Landlock and seccomp, where there is no bubblewrap. All modules are imported before."""
    import ctypes

    from clutch.tools.sandbox import policy, seccomp

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    readable = [path for path in (*python, *SYSTEM) if os.path.exists(path)]
    policy.confine([root] if is_writable else [], readable if is_writable else [*readable, root])
    filter_bytes = seccomp.program(sockets=False)
    if filter_bytes is not None:
        seccomp.apply_here(filter_bytes)


def main() -> None:
    root, mode, *python = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not look like an answer
    if mode in (WorkerMode.WRITABLE, WorkerMode.READABLE):
        confine(root, mode == WorkerMode.WRITABLE, python)
    serve(root, sys.stdin.buffer, answers, refused=CHANGES if mode == WorkerMode.CAREFUL else ())


if __name__ == "__main__":
    main()
