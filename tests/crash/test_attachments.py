"""A process that is killed with -9 while it makes the files of a child: the next one makes them, and only once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, signal, sys
from clutch import Clutch
from clutch.core.messages import Answer, Call, Input
from clutch.tools import task_files

where, state, work = sys.argv[1:]
write = task_files.write

def dies(folder, name, content):
    if where == "before": os.kill(os.getpid(), signal.SIGKILL)
    write(folder, name, content)
    if where == "between": os.kill(os.getpid(), signal.SIGKILL)
    if where == "after" and name == task_files.MANIFEST: os.kill(os.getpid(), signal.SIGKILL)

task_files.write = dies

class Model:
    async def ask(self, request, on_delta):
        first = next(said for said in request.transcript if isinstance(said, Input)).text
        answers = sum(isinstance(said, Answer) for said in request.transcript)
        if first == "go":
            if answers: return Answer("sent" if answers == 1 else request.transcript[-1].text)
            files = [{"name": "a", "content": "tulip"}, {"name": "b", "content": "rose"}]
            return Answer("", (Call("sessions_spawn", {"task": "smell", "attachments": files}),), stop="tools")
        if not answers: return Answer("", (Call("read", {"path": "/task/in/a"}),), stop="tools")
        return Answer(request.transcript[-1].results[0].text)

async def main():
    async with Clutch(state=state, workspace=work, models=Model()) as c:
        await c.say("go", idempotency_key="once")
        replies = [await c.reply(), await c.reply()]
        print("TOLD", "tulip" in replies[1])
        await c.wait_idle()

asyncio.run(main())
"""


def run(tmp_path: Path, where: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "work").mkdir(exist_ok=True)
    words = [sys.executable, "-c", PROGRAM, where, str(tmp_path / "state"), str(tmp_path / "work")]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=os.environ)


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_contents_of_files_survive_kill_9_until_they_are_on_disk(tmp_path: Path, where: str) -> None:
    killed = run(tmp_path, where)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    whole = run(tmp_path, "nowhere")
    assert "TOLD True" in whole.stdout, whole.stderr
    with closing(sqlite3.connect(tmp_path / "state" / "clutch.db")) as database:
        assert database.execute("SELECT COUNT(*) FROM tasks").fetchall() == [(1,)]
        (asked,) = database.execute("SELECT body FROM messages WHERE kind = 'answer' AND body LIKE '%spawn%'")
    assert "rose" not in asked[0], "the child read the other one aloud; this one nobody may keep"
    assert "sha256" in asked[0]
