"""What is handed on at a release: both archives, what is in them, where they come from, their hashes, and a signature.

python -m tests.security.release [--key FILE]      # make release [KEY=FILE]; writes dist/

Whoever builds the same commit gets the same bytes, so a signature can be checked twice: by its key, and by building.
ssh-keygen signs; it is wherever git is. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.security import sbom

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
NAMESPACE = "clutch-release"  #: a signature for something else is none for this


def build(root: Path, dist: Path, commit: str, epoch: int) -> None:
    """The same files for the same commit, whoever builds it and when."""
    dist.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(dist), "-t", "sdist", "-t", "wheel"]
    made = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise SystemExit(f"hatchling could not build it:\n{made.stderr}")
    lock = (root / sbom.LOCK.name).read_text()
    _write(dist / "sbom.json", sbom.document(lock))
    _write(
        dist / "provenance.json",
        {
            "commit": commit,
            "sourceDateEpoch": epoch,
            "lockSha256": hashlib.sha256(lock.encode()).hexdigest(),
            "python": platform.python_version(),
            "hatchling": version("hatchling"),
        },
    )
    (dist / SUMS).write_text("".join(f"{_sha256(one)}  {one.name}\n" for one in _files(dist)))


def sign(dist: Path, key: Path) -> None:
    """With a key of ssh; asks its own passphrase at the terminal."""
    (dist / SIGNATURE).unlink(missing_ok=True)
    command = [
        "/usr/bin/env",
        "ssh-keygen",
        "-q",
        "-Y",
        "sign",
        "-f",
        str(key),
        "-n",
        NAMESPACE,
        str(dist / SUMS),
    ]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"not signed: ssh-keygen does not take {key}")


def _files(dist: Path) -> list[Path]:
    return sorted(one for one in dist.iterdir() if not one.name.startswith(SUMS))


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _write(file: Path, said: object) -> None:
    file.write_text(json.dumps(said, indent=1) + "\n")


def _git(*words: str) -> str:
    return subprocess.run(
        ["/usr/bin/env", "git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make release", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--key", type=Path, help="a private key of ssh")
    key: Path | None = parser.parse_args().key
    if changed := _git("status", "--porcelain"):
        raise SystemExit(f"a release is made of a commit, and these files are in none:\n{changed}")
    for old in DIST.glob("*"):
        old.unlink()
    build(ROOT, DIST, _git("rev-parse", "HEAD"), int(_git("log", "-1", "--format=%ct")))
    if key is not None:
        sign(DIST, key.expanduser())
    print("\n".join(str(one.relative_to(ROOT)) for one in sorted(DIST.iterdir())))
    if key is None:
        print("Not signed: `make release KEY=~/.ssh/id_ed25519` does that.", file=sys.stderr)


if __name__ == "__main__":
    main()
