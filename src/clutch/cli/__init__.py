"""The command line: each command asks a running gateway, or reads its database."""

from __future__ import annotations

import codecs
import errno
import gc
import io
import os
import sys

INTERRUPTED = 130  #: exit code after Ctrl-C
#: Objects before somebody looks for garbage among them; most commands never make that many.
YOUNG_MAX = 10_000


def main() -> None:
    """The command `clutch`. Ctrl-C is no error at any moment, also not while Python is still loading."""
    try:
        gc.disable()
        _have_streams()
        from clutch.cli.app import run

        keep_what_is_loaded()
        gc.enable()
        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        # What is left of it is not tried again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"clutch: what it prints cannot be written: {error.strerror}")


def _have_streams() -> None:
    """A stream that was closed takes what it gets, and one without some letters shows their numbers as JSON does."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 (until the process ends)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("clutch", _numbered)
        sys.stdout.reconfigure(errors="clutch")


def _numbered(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "nothing is read here"
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    shown = "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
    return shown, error.end


def keep_what_is_loaded() -> None:
    """No code that was loaded is ever garbage: looking through all of it takes longer than most commands, and makes
    everybody wait who asks a gateway at that moment."""
    gc.freeze()
    gc.set_threshold(YOUNG_MAX)
