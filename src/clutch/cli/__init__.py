"""The words a person types."""

from __future__ import annotations

import gc
import sys

INTERRUPTED = 130  #: exit code after Ctrl-C
YOUNG_MAX = (
    10_000  #: objects before somebody looks for garbage among them; most commands never make that many
)


def main() -> None:
    """The command `clutch`. Ctrl-C is no error at any moment, also not while Python is still loading."""
    try:
        gc.disable()
        from clutch.cli.app import run

        keep_what_is_loaded()
        gc.enable()
        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def keep_what_is_loaded() -> None:
    """No code that was loaded is ever garbage: looking through all of it takes longer than most commands, and makes
    everybody wait who asks a gateway at that moment."""
    gc.freeze()
    gc.set_threshold(YOUNG_MAX)
