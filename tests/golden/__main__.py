"""`python -m tests.golden [FILE ...]`: rewrites the golden files on purpose. Read the diff before committing it."""

from __future__ import annotations

import sys

from tests.golden.contract import FILES, FOLDER

for name in sys.argv[1:] or FILES:
    (FOLDER / name).write_text(FILES[name](), encoding="utf-8")
