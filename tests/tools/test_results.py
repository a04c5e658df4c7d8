"""Large tool results of a session: how many bytes are kept, and what the model reads when there are more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clutch.ports import ToolFailed
from clutch.tools.task_files import LocalResultFiles

pytestmark = pytest.mark.anyio


async def test_a_session_keeps_a_limited_number_of_bytes(tmp_path: Path) -> None:
    results = LocalResultFiles(tmp_path / "results", bytes_max=100)
    await results.keep(1, "a.txt", "x" * 60)
    with pytest.raises(
        ToolFailed, match="the large results of this session may have 100 bytes, 60 are in use"
    ):
        await results.keep(1, "b.txt", "é" * 21)
    assert os.listdir(results.path(1)) == ["a.txt"]
    await results.keep(1, "a.txt", "y" * 100)  # in place of the earlier one
    await results.keep(2, "b.txt", "z" * 100)
    assert (os.stat(f"{results.path(1)}/a.txt").st_size, await results.kept()) == (100, [1, 2])
