"""`python -m clutch` is the command `clutch`."""

from __future__ import annotations

from clutch.cli import main

main()
