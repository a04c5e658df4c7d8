"""Product files that one spawn and one HTTP kill run through, recorded from an embedded Clutch.

A profile function sees every call of Python code; it is installed before the Clutch opens, so that the store's threads
have it too. Each action is done once unrecorded first: imports and the start of the gateway are not part of it.
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from clutch import Announcing, Clutch, Policy, Task
from clutch.core.messages import Answer
from clutch.ports import ModelRequest, OnDelta
from tests.house.figures import NOT_PRODUCT, PRODUCT
from tests.patience import PATIENCE_S

# Other work of the gateway runs in the store's threads meanwhile, and not in every one of these requests.
KILLS = 5

PROMPT = Policy(announcing=Announcing(debounce_s=0.01))

_is_request: ContextVar[bool] = ContextVar("is_request", default=False)


class Recorder:
    """Code that was called while it is on; of one request, only what runs for it."""

    def __init__(self) -> None:
        self.is_on = self.is_request_only = False
        self._called: set[CodeType] = set()
        self._beside: deque[CodeType] = deque()
        self._loop_thread = threading.get_ident()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self.is_on or event != "call":
            return
        if not self.is_request_only or _is_request.get():
            self._called.add(frame.f_code)
        elif threading.get_ident() != self._loop_thread:
            self._beside.append(frame.f_code)
        if frame.f_code is _recorded.__code__:
            # The request resumes: what the store's threads did until now was what it waited for. What they do after
            # its last wait is for others.
            while self._beside:
                self._called.add(self._beside.popleft())

    def files(self) -> set[str]:
        """Files of the functions that were called since the last time, relative to the product folder."""
        called, self._called = self._called, set()
        self._beside.clear()
        functions = (
            code for code in called if code.co_flags & inspect.CO_OPTIMIZED
        )  # no module or class bodies
        paths = (Path(code.co_filename) for code in functions)
        inside = (path.relative_to(PRODUCT) for path in paths if path.is_relative_to(PRODUCT))
        return {path.as_posix() for path in inside if path.parts[0] != NOT_PRODUCT}

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


class Waits:
    """A model that never answers."""

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets this event")


def record() -> tuple[set[str], set[str]]:
    """The files of a spawn and of a kill."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_spawn_walk(Path(folder) / "spawn")), asyncio.run(
            _kill_walk(Path(folder) / "kill")
        )


async def _spawn_walk(folder: Path) -> set[str]:
    """From the call of spawn until the result is delivered and the task completed."""
    recorder = Recorder()
    with recorder.installed():
        async with Clutch(
            state=folder / "state", workspace=folder, policy=PROMPT, embedded=True, serve=False
        ) as c:
            for _ in range(2):
                recorder.files()
                recorder.is_on = True
                await (await c.spawn("say hello", notify_parent=True))
                await c.wait_idle()
                recorder.is_on = False
    return recorder.files()


async def _kill_walk(folder: Path) -> set[str]:
    """From the entry of the ASGI app to its response. The child is paused, so that none of its turns ends meanwhile."""
    recorder = Recorder()
    recorder.is_request_only = True
    with recorder.installed(), _recorded_requests(recorder):
        async with Clutch(state=folder / "state", workspace=folder, embedded=True, models=Waits()) as c:
            walks = []
            for _ in range(KILLS + 1):
                task = await c.spawn("wait", notify_parent=True)
                await _idle(c)
                await task.pause()
                await _idle(c)
                recorder.files()
                await asyncio.to_thread(_request_kill, c.url or "", folder / "state", task)
                walks.append(recorder.files())
    return set.intersection(*walks[1:])


async def _idle(c: Clutch) -> None:
    """Until the store has done nothing for a moment."""
    before = -1
    while before != c.stats.batches:
        before = c.stats.batches
        await asyncio.sleep(0.1)


@contextmanager
def _recorded_requests(recorder: Recorder) -> Iterator[None]:
    """Around the entry of the ASGI app, which is uvicorn's and stays where it is when the product is rearranged."""
    cycle: Any = RequestResponseCycle
    run_asgi = cycle.run_asgi
    cycle.run_asgi = lambda *request: _recorded(recorder, run_asgi(*request))
    try:
        yield
    finally:
        cycle.run_asgi = run_asgi


async def _recorded(recorder: Recorder, request: Awaitable[None]) -> None:
    _is_request.set(True)
    recorder.is_on = True
    try:
        await request
    finally:
        recorder.is_on = False


def _request_kill(url: str, state: Path, task: Task[Any]) -> None:
    line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    token = (state / "token").read_text(encoding="utf-8").strip()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    line.request("POST", f"/v1/tasks/{task.id}/kill", b"{}", headers)
    response = line.getresponse()
    body = response.read()
    line.close()
    assert response.status == 200, body
    assert task.id.encode() in body, body
