"""Real processes that are ended: with -9 right after `accepted`, with SIGTERM in the middle of twenty turns."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Twenty children that each use a tool and then wait for `go`; `patient` answers at once.
PROGRAM = """
import asyncio, json, os, signal, sys
from clutch import Clutch, Policy
from clutch.cli.serve import _stop_on_signals
from clutch.api.gateway import Leaving
from clutch.core.messages import Answer, Call, Results
from clutch.core.policy import Limits, Work, Lane

act, state, is_patient = sys.argv[1], sys.argv[2], sys.argv[3] == "patient"
work = Work(lanes={Lane.MAIN: 4, Lane.SUBAGENT: 40}, stop_s=1.0)
policy = Policy(limits=Limits(children_max=40, retained_max=80), work=work)
begun = 0

class Model:
    async def ask(self, request, on_delta):
        global begun
        if "subagent" not in request.key: return Answer("heard")
        if not any(isinstance(one, Results) for one in request.transcript):
            return Answer("", (Call("count", {}),), stop="tools")
        begun += 1
        if begun == 20: print("ALL IN A TURN", flush=True)
        if not is_patient: await asyncio.Event().wait()
        return Answer("done")

async def main():
    c = Clutch(state=state, models=Model(), policy=policy, workspace=os.path.dirname(state))
    leaving = Leaving(c)
    _stop_on_signals(leaving)
    @c.tool(name="count")
    async def count() -> str:
        "count"
        with open(os.path.dirname(state) + "/counted", "a") as file: file.write("x")
        return "counted"
    async with c:
        if act == "spawn":
            for n in range(20):
                await c.spawn(f"child {n}", label=f"child {n}", idempotency_key=str(n), notify_parent=True)
        if act == "accept":
            task = await c.spawn("child", label="the one", notify_parent=True)
            print(task.id, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if act == "list":
            found = await c.tasks()
            print(json.dumps([one.label for one in found]), flush=True)
        if act == "finish":
            await c.wait_idle()
            return
        await leaving.told.wait()

asyncio.run(main())
"""


@contextmanager
def program(act: str, state: Path, how: str = "patient") -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", PROGRAM, act, str(state), how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if not said:
        assert process.stderr is not None
        pytest.fail(process.stderr.read()[-2000:])
    return said


def rows(state: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(state / "clutch.db")) as database:
        return database.execute(sql).fetchall()


@pytest.mark.scenario(2)
def test_a_task_accepted_just_before_kill_9_is_listed_after_the_restart_and_runs(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with program("accept", state) as killed:
        task_id = line(killed)
        assert killed.wait(30) == -signal.SIGKILL
    assert task_id.startswith("t_")
    with program("list", state, "hangs") as listing:
        assert "the one" in json.loads(line(listing))
    with program("finish", state) as finishing:
        assert finishing.wait(60) == 0, finishing.stderr and finishing.stderr.read()
    assert rows(state, "SELECT label, outcome FROM tasks") == [("the one", "ok")]


@pytest.mark.scenario(214)
def test_sigterm_in_the_middle_of_twenty_turns_fails_nothing_and_all_go_on(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with program("spawn", state, "hangs") as stopped:
        assert line(stopped) == "ALL IN A TURN"
        os.kill(stopped.pid, signal.SIGTERM)
        assert stopped.wait(30) == 0, stopped.stderr and stopped.stderr.read()
    assert rows(state, "SELECT DISTINCT phase, reason FROM tasks") == [("paused", "restart")]
    assert rows(state, "SELECT id FROM sessions WHERE owner IS NOT NULL") == []
    assert rows(state, "SELECT id FROM workers") == []
    with program("finish", state) as finishing:
        assert finishing.wait(60) == 0, finishing.stderr and finishing.stderr.read()
    assert rows(state, "SELECT COUNT(*), outcome FROM tasks GROUP BY outcome") == [(20, "ok")]
    assert rows(state, "SELECT DISTINCT crashes, failures FROM runs") == [(0, 0)]
    assert (tmp_path / "counted").read_text() == "x" * 20, "no step was repeated"
