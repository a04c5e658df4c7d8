"""The words a person types."""

from __future__ import annotations

import sys

INTERRUPTED = 130  #: exit code after Ctrl-C


def main() -> None:
    """The command `clutch`. Ctrl-C is no error at any moment, also not while Python is still loading."""
    try:
        from clutch.cli.app import run

        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
