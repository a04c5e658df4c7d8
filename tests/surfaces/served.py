"""A Clutch in a thread of its own, reached through its socket like from another terminal; and its models."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from clutch import Clutch, Policy
from clutch.api.slash import CHAT_OPERATOR
from clutch.core.ids import parse_task_id
from clutch.core.messages import Answer, Call, Input, Results
from clutch.core.policy import Limits
from clutch.engine.actions import TaskActions
from clutch.ports import Delta, DeltaKind, ModelRequest, Models, OnDelta
from clutch.surfaces.discovery import read_private
from clutch.surfaces.http_client import GatewayClient, connect
from tests.patience import PATIENCE_S
from tests.policies import QUICK

T = TypeVar("T")

#: Room for many children, and steering as often as a test likes.
FAST = replace(
    QUICK,
    limits=Limits(children_max=100, retained_max=200),
    control=replace(QUICK.control, steer_interval_s=0.0),
)
#: Prints where it is served, then waits to be killed.
A_PROGRAM = """
import asyncio, sys
from clutch import Clutch
async def main():
    async with Clutch(state=sys.argv[1]) as c:
        print(c.url, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""

#: What these tasks make the model call before it answers.
CALLS = {
    "ask me": Call("ask_human", {"question": "Which one?", "choices": ["a", "b"]}),
    "ask openly": Call("ask_human", {"question": "What is it called?"}),
    "run it": Call("shell", {"command": "touch ran"}),
    "look around": Call("list", {}),
}


class Slow:
    """Answers `slow …` only when it is let go, makes the call of `CALLS`, and says everything else again.

    `stream …` writes until it is let go. `stubborn …` does not end when it is cancelled, but only when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.is_stubborn = False
        self.calls: list[str] = []  #: the last message of each request

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> Answer:
        told = [message.text for message in request.transcript if isinstance(message, Input)]
        last = told[-1].rpartition("\n")[2]
        self.calls.append(last)
        if last.startswith("slow"):
            await self.go.wait()
        written = ""
        while last.startswith("stream") and not (written and self.go.is_set()):
            written += "word "
            on_delta(Delta(DeltaKind.TEXT, "word "))
            await asyncio.sleep(0.01)
        if written:
            return Answer(written, model="slow")
        if last.startswith("stubborn"):
            self.is_stubborn = True
            try:
                await self.go.wait()
            finally:
                await self.go.wait()
        if last in CALLS and not any(isinstance(one, Results) for one in request.transcript):
            return Answer("", (CALLS[last],), model="slow")
        return Answer(f"heard: {told[-1]}", model="slow")


@dataclass(frozen=True, slots=True)
class Heard:
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])


@dataclass(frozen=True, slots=True)
class Served:
    clutch: Clutch
    loop: asyncio.AbstractEventLoop
    home: Path
    models: Any

    @property
    def port(self) -> int:
        assert self.clutch.url is not None
        return int(self.clutch.url.rpartition(":")[2])

    @property
    def client(self) -> GatewayClient:
        return connect(self.home)

    @property
    def token(self) -> str:
        return read_private(self.home / "token")

    def run(self, ask: Coroutine[Any, Any, T]) -> T:
        """Inside the process that owns the state."""
        return asyncio.run_coroutine_threadsafe(ask, self.loop).result(PATIENCE_S)

    def let_go(self) -> None:
        """The slow ones may answer now."""
        self.loop.call_soon_threadsafe(self.models.go.set)

    def pause_between_two_runs(self, task: str) -> None:
        """A steer cuts the run, and the task is paused before the next one begins; the surfaces wait for that."""

        async def act(number: int) -> None:
            verbs = TaskActions(self.clutch.services)
            await verbs.steer(CHAT_OPERATOR, number, "slow elsewhere")
            await verbs.pause(CHAT_OPERATOR, number)

        self.run(act(parse_task_id(task) or 0))

    def raw(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Heard:
        """A request as it is written here; `authorization=None` leaves the token out. `_` stands for `-`."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        wanted: dict[str, str | None] = {"authorization": f"Bearer {self.token}", **headers}
        sent = {name.replace("_", "-"): value for name, value in wanted.items() if value is not None}
        try:
            line.request(method, path, body, sent)
            answer = line.getresponse()
            return Heard(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            line.close()

    def post(self, path: str, body: Any, **headers: str | None) -> Heard:
        return self.raw("POST", path, json.dumps(body).encode(), content_type="application/json", **headers)


@contextmanager
def served(
    home: Path, models: Models | None = None, policy: Policy = QUICK, **options: Any
) -> Iterator[Served]:
    """Entered in its own thread; leaving it here stops it there."""
    is_up, stop = threading.Event(), asyncio.Event()
    made: list[Served] = []

    async def live() -> None:
        answering = models or Slow()
        # On the fixed port the gateway of a test that runs at the same time could take the place of one that stopped.
        given = {"port": 0, "workspace": home.parent, **options}
        async with Clutch(state=home, models=answering, policy=policy, **given) as c:
            made.append(Served(c, asyncio.get_running_loop(), home, answering))
            is_up.set()
            await stop.wait()

    with ThreadPoolExecutor(1) as pool:
        living = pool.submit(asyncio.run, live())
        living.add_done_callback(lambda _: is_up.set())
        assert is_up.wait(PATIENCE_S)
        try:
            if made:
                yield made[0]
        finally:
            if made:
                made[0].loop.call_soon_threadsafe(stop.set)
            living.result(PATIENCE_S)


def write_token(path: Path, token: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(token)
