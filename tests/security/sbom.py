"""What is in an installation, for programs that look for known weaknesses: a CycloneDX document, made from the lock.

python -m tests.security.sbom      # writes build/sbom.json
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from clutch import __version__

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
FILE = ROOT / "build" / "sbom.json"

_PINNED = re.compile(r"^([a-z0-9][a-z0-9.-]*)(?:\[[^\]]*\])?==([^ ;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def document(lock: str) -> dict[str, Any]:
    found = list(_PINNED.finditer(lock))
    ends = [*(one.start() for one in found[1:]), len(lock)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": _component("clutch-agents", __version__, "application")},
        "components": [
            _component(one[1], one[2], "library")
            | {"externalReferences": [_files(one, lock[one.end() : end])]}
            for one, end in zip(found, ends, strict=True)
        ],
    }


def _component(name: str, version: str, kind: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _files(one: re.Match[str], rest: str) -> dict[str, Any]:
    """The hashes are those of files, of which an installation takes one."""
    hashes = [{"alg": "SHA-256", "content": digest} for digest in _HASH.findall(rest)]
    return {"type": "distribution", "url": f"https://pypi.org/project/{one[1]}/{one[2]}/", "hashes": hashes}


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(document(LOCK.read_text()), indent=1) + "\n")
    print(FILE.relative_to(ROOT))
