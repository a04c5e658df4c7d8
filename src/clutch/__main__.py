"""`python -m clutch` is the command `clutch`."""

from __future__ import annotations

import sys

if not sys.flags.safe_path:
    # The folder it is started in, where agents may write: nothing of ours is to be found there.
    del sys.path[0]

from clutch.cli import main

main()
