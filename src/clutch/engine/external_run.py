"""Foreign code at work for a run, beside the turn that accompanies it.

While the user is asked there is no turn: the run is parked, holds no slot, and may be resumed by any worker. The code
itself waits in this process for the answer. It is memory and may be lost: a worker that resumes the run and finds no
code at work starts it again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol

from clutch.contain import BackgroundTasks, contained
from clutch.core.messages import Answer, Call, Result, Results, whole
from clutch.core.text.tasks import storable
from clutch.engine.live import result_detail, tool_detail
from clutch.ports import SUBAGENT_CALL, HumanQuestion, Runtime, RuntimeJob, Verdict


class Tell(Protocol):
    def __call__(self, name: str, data: object = None, detail: Mapping[str, Any] | None = None) -> None: ...


class ExternalRun:
    """`tell` publishes live events. `news` is set when there is something for the turn to do."""

    def __init__(self, runtime: Runtime, job: RuntimeJob, run_id: int, tell: Tell) -> None:
        self.run_id, self._tell = run_id, tell
        self.news = asyncio.Event()
        self.is_paused = False
        self.asked: deque[tuple[Call | HumanQuestion, asyncio.Future[Verdict]]] = deque()
        self._said: list[str] = []
        self._has_spoken = False
        self._done: list[tuple[Call, str, bool]] = []
        self._open: list[Call] = []
        self._began: dict[int, float] = {}  #: by the identity of the call
        self._shown: Call | None = None
        told = replace(
            job,
            say=self._say,
            think=self._think,
            begin=self._begin,
            end=self._end,
            ask=self._ask,
            ask_human=self._ask,
        )
        self._tasks = BackgroundTasks()
        self._work = self._tasks.call(_run(runtime, told), f"clutch-run-{run_id}")
        self._work.add_done_callback(lambda _: self.news.set())
        self._keeper: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self._work.done()

    def result(self) -> Answer:
        """The answer of code that is over. Raises what the code raised."""
        return whole(self._work.result())

    def journal(self) -> tuple[Answer, Results] | None:
        """The calls that have ended since the last call of this function, and the text before them."""
        if not self._done:
            return None
        calls = tuple(call for call, _, _ in self._done)
        gave = tuple(
            Result(i, call.name, storable(text), bad) for i, (call, text, bad) in enumerate(self._done)
        )
        said = Answer("".join(self._said), calls, stop="tools")
        self._said, self._done = [], []
        return whole(said), Results(gave)

    def spoke(self) -> bool:
        """Whether the code has reported anything since the last call of this function."""
        has_spoken, self._has_spoken = self._has_spoken, False
        return has_spoken

    def changed(self) -> tuple[Call | None] | None:
        """The call that the code makes now, if that has changed since the last call of this function."""
        # A subagent of the code is itself a call, which lasts as long as what it does.
        working = [call for call in self._open if call.name != SUBAGENT_CALL] or self._open
        now = working[0] if working else None
        if now is self._shown:
            return None
        self._shown = now
        return (now,)

    def hear(self, call: Call | HumanQuestion, verdict: Verdict) -> None:
        """Answer a call or a question that is in `asked`."""
        for one in self.asked:
            if one[0] is call:
                self.asked.remove(one)
                if not one[1].done():
                    one[1].set_result(verdict)
                return

    async def stop(self) -> str:
        """Cancel the code and wait for its end. Returns the text of code that ended with an answer all the same."""
        if self._keeper is not asyncio.current_task():
            self._leave_keeper()
        self._work.cancel()
        await asyncio.wait([self._work])
        is_answered = not self._work.cancelled() and self._work.exception() is None
        return self.result().text if is_answered else ""

    def keep(self, keeping: Coroutine[Any, Any, None]) -> None:
        """Start what watches the code while no turn accompanies it."""
        self._keeper = self._tasks.call(keeping, f"clutch-parked-run-{self.run_id}")

    def take_up(self) -> None:
        self._leave_keeper()
        self.news.set()

    def _leave_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()

    def pause(self) -> None:
        """Stop the code now, because it has no steps; a resume starts it again."""
        self.is_paused = True
        self.news.set()

    # ---- what the code reports -----------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._said.append(text)
        self._live("assistant:text", text)

    def _think(self, text: str) -> None:
        self._live("assistant:thinking", text)

    def _begin(self, call: Call) -> None:
        self._open.append(call)
        self._has_spoken = True
        self._began[id(call)] = time.monotonic()
        self._tell("tool:start", call.name, tool_detail(call.args, call.id or call.name))

    def _live(self, name: str, text: str) -> None:
        self._has_spoken = True
        self._tell(name, text)

    def _end(self, call: Call, text: str, failed: bool) -> None:
        now = time.monotonic()
        took = result_detail(text, failed=failed, seconds=now - self._began.pop(id(call), now))
        self._tell("tool:end", call.name, {**tool_detail(call.args, call.id or call.name), **took})
        self._open = [one for one in self._open if one is not call and (not call.id or one.id != call.id)]
        self._done.append((call, text, failed))
        self.news.set()

    async def _ask(self, call: Call | HumanQuestion) -> Verdict:
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.asked.append((call, answer))
        self.news.set()
        return await answer


async def _run(runtime: Runtime, job: RuntimeJob) -> Answer:
    with contained():
        return await runtime.run(job)


async def stop_all(external_runs: dict[int, ExternalRun]) -> None:
    """At the end of a worker."""
    while external_runs:
        _, external = external_runs.popitem()
        await external.stop()
