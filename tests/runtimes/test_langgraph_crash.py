"""A graph of LangGraph in a real process that is killed with -9: a node that has finished does not run again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

#: `first`, then `second`, which kills the process on its first attempt. The checkpoints are a file, and writing one
#: takes longer than starting the next node: as on a disk or a database.
PROGRAM = """
import asyncio, os, pickle, signal, sys
from pathlib import Path
from typing import TypedDict
from clutch import Clutch
from clutch.runtimes.langgraph import from_graph
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

folder, options = Path(sys.argv[1]), dict(word.split("=") for word in sys.argv[2:])
saved, ran = folder / "checkpoints", folder / "ran"


class FileSaver(InMemorySaver):
    def __init__(self):
        super().__init__()
        if saved.exists():
            storage, writes, blobs = pickle.loads(saved.read_bytes())
            for thread, spaces in storage.items():
                self.storage[thread].update(spaces)
            self.writes.update(writes)
            self.blobs.update(blobs)

    async def aput(self, *args):
        made = await super().aput(*args)
        await self.write()
        return made

    async def aput_writes(self, *args):
        await super().aput_writes(*args)
        await self.write()

    async def write(self):
        for _ in range(200):
            await asyncio.sleep(0)
        storage = {thread: dict(spaces) for thread, spaces in self.storage.items()}
        saved.with_suffix(".new").write_bytes(pickle.dumps((storage, dict(self.writes), dict(self.blobs))))
        saved.with_suffix(".new").replace(saved)


class State(TypedDict, total=False):
    said: str


def note(name):
    with ran.open("a") as file:
        file.write(name + "\\n")


async def first(state):
    note("first")
    return {"said": "one"}


async def second(state):
    is_new = "second" not in ran.read_text()
    note("second")
    if is_new:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"said": state["said"] + " two"}


graph = StateGraph(State)
graph.add_node("first", first)
graph.add_node("second", second)
graph.add_edge(START, "first")
graph.add_edge("first", "second")


async def main():
    compiled = graph.compile(checkpointer=FileSaver())
    c = Clutch(state=folder / "state", workspace=folder, serve=False)
    c.runtime("graph")(
        from_graph(compiled, to_input=lambda job: {}, to_result=lambda state: state["said"], **options)
    )
    async with c:
        task = await c.spawn("count", runtime="graph", idempotency_key="one")
        print((await task).text)


asyncio.run(main())
"""


def program(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "ran"),
    [((), ["first", "second", "second"]), (("durability=async",), ["first", "second", "first", "second"])],
    ids=["default", "async"],
)
def test_finished_node_does_not_run_again_after_kill_9(
    tmp_path: Path, options: tuple[str, ...], ran: list[str]
) -> None:
    """The option of LangGraph that keeps fewer promises is still there, and shows that the test can fail."""
    killed = program(tmp_path, *options)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = program(tmp_path, *options)
    assert done.stdout == "one two\n", done.stderr
    assert (tmp_path / "ran").read_text().splitlines() == ran
