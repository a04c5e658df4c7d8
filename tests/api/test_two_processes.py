"""Two workers of one web application on one state directory: real processes, started at the same moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

#: Opens the state directory, works on a task, says what it is, and ends when its input ends.
WORKER = """
import asyncio, json, logging, sys
from clutch import Clutch, StateDirectoryInUse
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)

async def main():
    c = Clutch(sys.argv[1], workspace=sys.argv[2])
    if sys.argv[3] == "tool":
        @c.tool
        def dice() -> int:
            "Four."
            return 4
    try:
        async with c:
            result = await (await c.spawn("question: sizes"))
            print(json.dumps({"is_client": c.is_client, "ok": result.is_ok}), flush=True)
            await asyncio.to_thread(sys.stdin.read)
    except StateDirectoryInUse as error:
        print(json.dumps({"error": str(error)}), flush=True)

asyncio.run(main())
"""


def worker(state: Path, how: str = "plain") -> subprocess.Popen[str]:
    place = state.with_name("workspace")
    place.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(state), str(place), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def said(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate(timeout=PATIENCE_S)[1]
    found: dict[str, object] = json.loads(line)
    return found


def test_the_second_worker_is_a_client_and_says_whose(tmp_path: Path) -> None:
    workers = [worker(tmp_path / "state") for _ in range(2)]
    heard = [said(one) for one in workers]
    assert [one["ok"] for one in heard] == [True, True]
    assert sorted(bool(one["is_client"]) for one in heard) == [False, True]
    client = next(n for n, one in enumerate(heard) if one["is_client"])
    ends = {n: workers[n].communicate(timeout=PATIENCE_S)[1] for n in (client, 1 - client)}
    assert f"{tmp_path / 'state'} is owned by the gateway at http://" in ends[client]
    assert f"(pid {workers[1 - client].pid}): this program is its client" in ends[client]
    assert ends[1 - client] == ""
    assert [one.returncode for one in workers] == [0, 0]


@pytest.mark.parametrize("first", ["plain", "tool"])
def test_the_error_of_a_second_worker_with_tools_names_the_ways_out(tmp_path: Path, first: str) -> None:
    owner = worker(tmp_path / "state", first)
    assert said(owner) == {"is_client": False, "ok": True}
    second = worker(tmp_path / "state", "tool")
    error = str(said(second)["error"])
    assert f"(pid {owner.pid})" in error
    assert f"This program brings @c.tool, which the owner of {tmp_path / 'state'} cannot call" in error
    for way in ('Clutch(database="postgresql://…")', "a state directory of its own", "Clutch.connect(state)"):
        assert way in error
    for one in (second, owner):
        one.communicate(timeout=PATIENCE_S)
        assert one.returncode == 0
