"""The short form of the campaign of moves: movers, gateways and the server are killed, and the story lives once."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.trust.kills.moves import MOVE_POINTS
from tests.trust.processes import ROOT

pytestmark = pytest.mark.slow


def killed(*words: str) -> Any:
    """Its processes are forked, so it needs one without threads."""
    command = [sys.executable, "-m", "tests.trust.kills.moves", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_story_that_is_moved_under_kills_lives_once_and_loses_nothing() -> None:
    total = killed("--kills", "14", "--seed", "1")
    assert total["failures"] == []
    assert (total["ok"], total["lost"], total["twice"], total["lived_twice"]) == (True, 0, 0, 0)
    assert [point for point in MOVE_POINTS if not total["by_point"][point]] == []
    assert total["accepted"] == 19 * total["stories"]
