"""One virtual environment per peer below `build/peers`, made from its lock file when it is first needed.

Only making one needs the network. The lock files are written by `make lock-peers`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from benchmarks.peers.registry import PEERS, Peer
from benchmarks.report import say

ROOT: Final = Path(__file__).resolve().parents[2]
LOCKS: Final = Path(__file__).parent / "locks"
_BUILD: Final = ROOT / "build" / "peers"
_STAMP: Final = ".lock-sha256"
_LAST_LINES: Final = 3

#: No telemetry, no traces, and no way out: what respects a proxy meets a closed port, loopback needs none.
_QUIET: Final[Mapping[str, str]] = {
    "OPENAI_API_KEY": "none",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "AGNO_TELEMETRY": "false",
    "OTEL_SDK_DISABLED": "true",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
    "PYTHONWARNINGS": "ignore",
}


class NotInstalled(Exception):
    """The environment of a peer could not be made."""


def python_of(peer: Peer) -> str:
    """The interpreter of this peer's environment. Raises NotInstalled with the reason."""
    if peer.is_ours:
        return sys.executable
    directory, lock = _BUILD / peer.name, LOCKS / f"{peer.name}.lock"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    stamp = directory / _STAMP
    if not stamp.is_file() or stamp.read_text() != wanted:
        say(f"peers: installing {lock.name} into build/peers/{peer.name}")
        _install(directory, lock)
        stamp.write_text(wanted)
    return str(directory / "bin" / "python")


def _install(directory: Path, lock: Path) -> None:
    """With uv, which is fast; where only pip knows the way to an index, with pip."""
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory, with_pip=True)
    python, uv = str(directory / "bin" / "python"), str(Path(sys.executable).with_name("uv"))
    by_uv = [uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", str(lock)]
    by_pip = [python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)]
    if subprocess.run(by_uv, check=False, capture_output=True).returncode == 0:
        return
    tried = subprocess.run(by_pip, check=False, capture_output=True, text=True)
    if tried.returncode != 0:
        last = " ".join(tried.stderr.strip().splitlines()[-_LAST_LINES:])
        raise NotInstalled(f"{lock.name} cannot be installed, which needs a package index: {last}")


def environ(home: Path) -> dict[str, str]:
    """A clean environment with a home of its own, the same for Clutch and for its peers."""
    inherited = {
        name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ
    }
    return {**inherited, **_QUIET, "HOME": str(home), "PYTHONPATH": str(ROOT)}


def versions(peer: Peer) -> dict[str, str]:
    """Of its packages, from its lock file."""
    if peer.is_ours:
        return {name: metadata.version(name) for name in peer.packages}
    pinned = dict(
        line.split(" ")[0].split("==")
        for line in (LOCKS / f"{peer.name}.lock").read_text().splitlines()
        if "==" in line and not line.startswith((" ", "#"))
    )
    return {name: pinned[name] for name in peer.packages}


def all_versions() -> dict[str, dict[str, str]]:
    return {name: versions(peer) for name, peer in PEERS.items()}
