"""How many examples a test runs: a quarter in `make test`, all of them in `make trust`.

A property made with Hypothesis is found by its marker; any other test that uses `scaled` carries `@pytest.mark.scaled`.
"""

from __future__ import annotations

import os

from hypothesis import settings

IS_FULL = os.environ.get("TEST_EXAMPLES") == "full"


def scaled(count: int) -> int:
    return count if IS_FULL else count // 4


def examples(count: int) -> settings:
    """Decorate a property that needs another number of examples than the default of 100."""
    return settings(max_examples=scaled(count))
