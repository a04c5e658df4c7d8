"""The command line: each command asks a running gateway, or reads its database."""

from __future__ import annotations

import codecs
import errno
import gc
import io
import os
import sys

INTERRUPTED = 130  #: exit code after Ctrl-C
#: New objects before the garbage collector runs; most commands create fewer.
YOUNG_MAX = 10_000


def main() -> None:
    """The command `clutch`. Ctrl-C exits without a traceback, also while modules are loading."""
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
        # Prevents a second attempt to write the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"clutch: what it prints cannot be written: {error.strerror}")


def _have_streams() -> None:
    """Replace closed streams by the null device, and print characters that stdout cannot encode as JSON escapes."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 (until the process ends)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("clutch", _numbered)
        sys.stdout.reconfigure(errors="clutch")


def _numbered(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "used for output only"
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    shown = "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
    return shown, error.end


def keep_what_is_loaded() -> None:
    """Exclude loaded code from garbage collection: a pass over it takes longer than most commands, and delays every
    request to a gateway."""
    gc.freeze()
    gc.set_threshold(YOUNG_MAX)
