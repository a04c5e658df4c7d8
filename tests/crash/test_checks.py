"""A gateway that is killed with -9 while a check runs: the next one repeats that check, and no other."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

PROGRAM = """
import asyncio, json, sys
from clutch import Answer, Clutch, TaskCheck

state, work, act = sys.argv[1:]
asked = 0

class Model:
    async def ask(self, request, on_delta):
        global asked
        asked += 1
        return Answer("done")

async def main():
    async with Clutch(state=state, models=Model(), workspace=work) as c:
        if act == "start":
            await c.spawn("work", label="one", checks=[
                TaskCheck(command="echo ran >> first"),
                TaskCheck(command="echo ran >> second; echo started > started; test -e go || sleep 600"),
            ])
            await asyncio.Event().wait()
        (task,) = await c.tasks()
        result = await task
        info = await task.info()
        print(json.dumps([result.outcome, info.checks.text, asked]), flush=True)

asyncio.run(main())
"""


def test_a_killed_gateway_repeats_the_check_that_was_running(tmp_path: Path) -> None:
    work, state = tmp_path / "work", tmp_path / "state"
    work.mkdir()
    os.mkfifo(work / "started")
    said = os.open(work / "started", os.O_RDONLY | os.O_NONBLOCK)
    words = [sys.executable, "-c", PROGRAM, str(state), str(work)]
    try:
        with subprocess.Popen([*words, "start"]) as process:
            try:
                assert select.select([said], [], [], PATIENCE_S)[0], "the second check did not start"
            finally:
                process.kill()
        (work / "go").touch()
        done = subprocess.run(
            [*words, "look"], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
    finally:
        os.close(said)
    assert json.loads(done.stdout) == ["ok", "checked 2/2", 0]
    assert ((work / "first").read_text(), (work / "second").read_text()) == ("ran\n", "ran\nran\n")
