"""The locked packages against known vulnerabilities. Somebody else keeps that list, so this needs the network.

python -m tests.security.audit      # make audit

An audit that could not be made is no good news: it ends with an error that says so, and what to do.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = "https://pypi.org/pypi/pip/json"  #: pip-audit asks there for each package
PATIENCE_S = 10.0
OFFLINE = """\
NOT AUDITED: {host} keeps the list of known vulnerabilities and cannot be reached from here ({why}).
Run `make audit` on a machine with the network, such as CI. What needs nobody else was checked: every package is
locked to one version with its hashes (tests/security/test_supply.py)."""
FOUND = """\
Something was found, or pip-audit could not be fetched or answered (see above). `make lock ARGS=--upgrade` takes newer
versions; then audit again."""


def unreachable(url: str = LIST) -> str | None:
    """Why the list cannot be asked; None: it can."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S):  # noqa: S310 (ours)
            return None
    except (OSError, urllib.error.URLError) as error:
        return str(getattr(error, "reason", error))


def main(url: str = LIST) -> int:
    why = unreachable(url)
    if why is not None:
        print(OFFLINE.format(host=url.split("/")[2], why=why), file=sys.stderr)
        return 1
    # Strict: a package that the list does not answer for would be skipped, and an audit of nothing be a success.
    lock = str(ROOT / "requirements.lock")
    asks = ["pip-audit", "--strict", "--require-hashes", "--disable-pip", "--requirement", lock]
    uv = str(Path(sys.executable).parent / "uv")
    code = subprocess.run([uv, "tool", "run", "--quiet", *asks], check=False).returncode
    if code:
        print(FOUND, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
