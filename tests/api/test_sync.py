"""Clutch without an event loop: in a thread of its own, and Ctrl-C ends the waiting only."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clutch import ClutchError, TaskFailed
from clutch.sync import Clutch
from tests.surfaces.served import FAST, served

TALK = "agent:main:chat:talk"
SLOW = """
import asyncio, sys, threading
from clutch import Policy
from clutch.core.policy import Work
from clutch.sync import Clutch

class Never:
    async def ask(self, request, on_delta):
        started.set()
        await asyncio.sleep(60)

started = threading.Event()
with Clutch(state=sys.argv[1], models=Never(), policy=Policy(work=Work(stop_s=0.05))) as c:
    task = c.spawn("something long")
    started.wait()
    try:
        print(task.id, flush=True)
        task.result()
    except KeyboardInterrupt:
        print(task.status(), flush=True)
print("left", flush=True)
"""


def test_the_same_things_are_done_without_an_event_loop(tmp_path: Path) -> None:
    """As the client of a gateway: the other half of the surface is tested with the async one."""
    with served(tmp_path / "state", policy=FAST) as owner, Clutch(state=tmp_path / "state") as c:
        task = c.spawn("say hello", label="greeter")
        assert "say hello" in str(task.result(timeout=20).text)
        assert (task.status(), task.done(), task.why().task.label) == ("done", True, "greeter")
        assert list(task.stream()) == [task.result().raise_for_outcome().text]
        killed = c.spawn("stream one")
        assert next(killed.stream()) == "word "
        assert killed.kill("enough").stopped == (killed.id,)
        assert killed.kill().already_finished == (killed.id,)
        with pytest.raises(TaskFailed, match="killed: enough"):
            killed.result().raise_for_outcome()
        slow = c.spawn("slow one")
        with pytest.raises(TimeoutError):
            slow.result(timeout=0.05)
        owner.let_go()
        assert {ended.id for ended, _ in c.as_completed([task, slow])} == {task.id, slow.id}
        assert [one.is_ok for one in c.gather(task, slow)] == [True, True]
        said = [str(one.text)[-5:] for one in c.map(["a", "b"], lambda item: f"say {item}", name="two")]
        assert said == ["say a", "say b"]
        assert c.get(task.id).info().label == "greeter"
        assert [one.id for one in c.tasks(label="greeter")] == [task.id]
        c.say("hello there", session=TALK)
        assert c.reply(session=TALK) == "heard: hello there"
        c.wait_idle(session=TALK)
    with pytest.raises(ClutchError, match="with Clutch"):
        c.spawn("too late")
    assert "clutch" not in [thread.name for thread in threading.enumerate()]


def test_one_that_cannot_be_opened_says_why_and_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ClutchError), Clutch(state=tmp_path / "state"):
        raise AssertionError
    assert "clutch" not in [thread.name for thread in threading.enumerate()]


def test_ctrl_c_ends_the_waiting_and_not_the_work(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, str(tmp_path / "state")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("t_")
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "running\n"
        assert process.stdout.readline() == "left\n"
        assert process.wait(20) == 0
