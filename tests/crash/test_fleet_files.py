"""A task with files in a fleet: real gateways with a state directory each, on one PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clutch import Clutch
from clutch.core.text.prompts import UNSAVED
from clutch.testing.providers import Behaviour, Providers, Reply, Silence, Text, ToolCall, WireRequest, turns
from tests.crash.files_gateway import gateway
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


class Story:
    """The model writes a file, asks the user, writes another one and thinks until its machine is dead. Then it reads
    all of them."""

    def __init__(self) -> None:
        self.is_home_dead = False
        self.thinks = asyncio.Event()
        self.last: list[str] = []

    def __call__(self, request: WireRequest) -> Behaviour:
        said = turns(request)
        match sum(turn.role in ("assistant", "call") for turn in said):
            case 0:
                return _calls("write", path="saved.txt", text="before the question")
            case 1:
                return _calls("ask_human", question="Continue?")
            case 2:
                return _calls("write", path="late.txt", text="after it")
            case 3 if not self.is_home_dead:
                self.thinks.set()
                return Silence()
            case 3:
                self.last = [turn.text for turn in said]
                names = ("saved.txt", "late.txt", "/task/in/given.md")
                return Reply([ToolCall("read", (json.dumps({"path": name}),)) for name in names])
            case _:
                return Reply([Text("\n".join(turn.text for turn in said[-3:]))])


def _calls(name: str, **args: str) -> Reply:
    return Reply([ToolCall(name, (json.dumps(args),))])


@asynccontextmanager
async def home_process(
    dsn: str, state: Path, url: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    words = ("-m", "tests.crash.files_gateway", dsn, str(state), url)
    pipe = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        assert started.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            yield started, (await started.stdout.readline()).decode().strip()
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


@pytest.mark.slow
async def test_task_works_where_its_files_are_and_elsewhere_is_told_what_is_missing(
    postgres_dsn: str, tmp_path: Path
) -> None:
    story = Story()
    async with (
        Providers(story) as server,
        gateway(postgres_dsn, str(tmp_path / "other"), server.openai_url) as other,
        home_process(postgres_dsn, tmp_path / "home", server.openai_url) as (home, task_id),
    ):
        await _answer(other)
        async with asyncio.timeout(PATIENCE_S):
            await story.thinks.wait()
        # The other gateway was idle, and the answer reached it first.
        assert list((tmp_path / "home").glob("workspaces/*/*/late.txt"))
        assert not list((tmp_path / "other").glob("workspaces/*/*"))
        story.is_home_dead = True
        home.send_signal(signal.SIGKILL)
        task = await other.get(task_id)
        result = await task.result(timeout=PATIENCE_S)
        why = str(await task.why())
    assert "before the question" in (result.text or "")
    assert "given at home" in (result.text or "")
    assert "after it" not in (result.text or "")
    (note,) = [text for text in story.last if "resumed on another machine" in text]
    assert "late.txt" in note
    assert UNSAVED not in note, "no command has run"
    assert "saved.txt" not in note
    assert "late.txt" in why


async def _answer(clutch: Clutch) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not (asked := await clutch.inbox()):  # noqa: ASYNC110 - another process asks
            await asyncio.sleep(0.05)
    await clutch.answer(asked[0], "answer", "yes")
