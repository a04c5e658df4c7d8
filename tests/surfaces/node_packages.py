"""Packages of npm that tests run: installed outside of the repository, at an exact version, once."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

INSTALL_S = 400.0


def program(name: str) -> str:
    """Return where the program is, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} on PATH, to install and run packages of npm")
    return found


def installed(package: str, *more: str) -> Path:
    """Return a folder that has the packages in `node_modules`, installed now or by an earlier run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clutch-tests"
    cache.mkdir(parents=True, exist_ok=True)
    found = cache / "+".join(one.rpartition("/")[2] for one in (package, *more))
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test workers install one after the other
        if not found.exists():
            _install((package, *more), found)
    return found


def _install(packages: tuple[str, ...], to: Path) -> None:
    """Install under another name first: a folder with the final name is complete."""
    partial, named = to.with_name(f"{to.name}.partial"), " and ".join(packages)
    shutil.rmtree(partial, ignore_errors=True)
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(partial)]
    command = [program("npm"), "install", *options, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {named} within {INSTALL_S:g} s")
    if done.returncode:
        pytest.skip(f"npm could not install {named}: {done.stderr.strip()[-300:]}")
    partial.rename(to)
