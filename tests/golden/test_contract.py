"""The public contract is what the golden files beside this test say.

Also golden, and compared elsewhere: `docs/reference/cli.md` (commands and options) and `errors.md` (error codes,
HTTP statuses, exit codes, exceptions) by `tests/docs/test_pages.py`; `docs/reference/settings.md` (config keys and
defaults) by `tests/docs/test_settings_page.py`; slash commands by `tests/docs/test_commands_page.py`.
"""

from __future__ import annotations

import sys
from difflib import unified_diff

import pytest

from tests.golden.contract import FILES, FOLDER, REMEDY

SHOWN = 200  #: lines of a difference
#: The simulation is deterministic for one event loop. Another version of asyncio takes its tasks in another order.
SEEDS, SEEDS_PYTHON = "seeds.txt", (3, 11)


@pytest.mark.parametrize("name", FILES)
def test_the_contract_is_unchanged(name: str) -> None:
    if name == SEEDS and sys.version_info[:2] != SEEDS_PYTHON:
        pytest.skip("the seeds are recorded with the event loop of Python 3.11")
    kept, made = (FOLDER / name).read_text(encoding="utf-8"), FILES[name]()
    changed = list(unified_diff(kept.splitlines(), made.splitlines(), f"golden/{name}", "now", lineterm=""))
    more = f"\n... and {len(changed) - SHOWN} lines more" if len(changed) > SHOWN else ""
    shown = "\n".join(changed[:SHOWN]) + more
    assert not changed, f"{shown}\n\nIf this is meant: {REMEDY} {name}"
    assert kept == made
