"""What every runtime must keep, to be checked from any test framework.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_runtime(check): await check(MyRuntime)

Each check runs the real engine on a memory database and gives the runtime commands in its task. Whatever works
behind the runtime under test must obey them; `obey` does so for a plain function:

    clutch-test: echo WORDS       its final text is WORDS
    clutch-test: stream A B C     it says A, then B, then C, and its final text is all of them
    clutch-test: fail WORDS       it raises an error with these words
    clutch-test: wait             it works until it is cancelled

The newest command of a job counts. The store and the engine are ours, so a check that fails is about the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from clutch.core.authority import AgentGrant, root_rights
from clutch.core.authority import to_text as rights_text
from clutch.core.messages import Answer
from clutch.core.model import Outcome, Phase, Task, reason_text
from clutch.core.policy import Announcing, Life, Policy
from clutch.core.spawn import SpawnRequest
from clutch.engine.live import Bus, BusWatcher
from clutch.engine.services import BlockIds, Services
from clutch.engine.worker import Worker
from clutch.ports import Runtime, RuntimeJob
from clutch.store.sqlite import SqliteStore
from clutch.store.transaction import Row, Tx
from clutch.testing.models import ScriptedModel
from clutch.tools.registry import Tools
from clutch.transactions import control, messages, sessions, tasks
from clutch.transactions.spawn import Accepted, ChildRequest, spawn

#: Makes the runtime under test; called once for each check.
MakeRuntime: TypeAlias = Callable[[], Runtime]
Check: TypeAlias = Callable[[MakeRuntime], Awaitable[None]]

NAME = "tested"
PROMPT_S = 2.0  # from the commit of a kill or a steer to the end of the run
DEADLINE_S = 20.0  # for anything else; only a lost signal takes as long
TIMEOUT_S = 0.3
POLICY = Policy(life=Life(error_grace_s=0.05), announcing=Announcing(debounce_s=0.01))
MAIN = 1
_COMMAND = re.compile(r"clutch-test: (echo|stream|fail|wait) ?(.*)")


class NotConforming(AssertionError):
    """The runtime breaks a promise; the message says which."""


class ToldToFail(Exception):
    """What `obey` raises at `fail`."""


async def obey(job: RuntimeJob) -> str:
    """Does what the newest command of the job says."""
    verb, words = _COMMAND.findall(job.text)[-1]
    if verb == "stream":
        for word in words.split():
            job.say(word)
    elif verb == "fail":
        raise ToldToFail(words)
    elif verb == "wait":
        await asyncio.Event().wait()
    return str(words)


# ---- the checks --------------------------------------------------------------------------------------------


async def returns_its_last_words(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        task = await stage.ended(await stage.spawn("clutch-test: echo forty-two"))
        _must(task.outcome is Outcome.OK, f"it ended as {task.outcome}: {task.error}")
        _must((task.result or "").strip() == "forty-two", f"its result is {task.result!r}")


async def is_told_its_task_and_where_it_works(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        await stage.ended(await stage.spawn("clutch-test: echo hello"))
        (job,) = stage.runtime.jobs
        _must("clutch-test: echo hello" in job.text, f"its job was {job.text!r}")
        _must(job.session_key.startswith("agent:main:subagent:"), f"it works for {job.session_key!r}")
        _must(job.key.startswith(job.session_key), "its key names the session and the run")


async def streams_what_it_says(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        watcher = stage.bus.watch()
        await stage.ended(await stage.spawn("clutch-test: stream one two three"))
        heard = "".join(await _heard(watcher)).replace(" ", "")
        _must(heard.startswith("onetwothree"), f"watchers received {heard!r}")


async def reports_its_error_after_the_grace(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        task = await stage.ended(await stage.spawn("clutch-test: fail the disk is on fire"))
        _must(task.outcome is Outcome.ERROR, f"it ended as {task.outcome}")
        _must("the disk is on fire" in (task.error or ""), f"its error is {task.error!r}")
        lines = await stage.timeline(task.id)
        _must(any(line.startswith("error: ") for line in lines), f"there was no grace: {lines}")


async def ends_promptly_when_killed(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        task_id = await stage.working("clutch-test: wait")
        await stage.store.alone(control.kill, POLICY, task_id, "enough", "person")
        await stage.runtime.must_end(1)
        task = await stage.ended(task_id)
        _must(task.outcome is Outcome.KILLED, f"it ended as {task.outcome}")


async def ends_promptly_at_its_timeout(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        task_id = await stage.spawn("clutch-test: wait", run_timeout_s=TIMEOUT_S)
        task = await stage.ended(task_id)
        _must(task.outcome is Outcome.TIMEOUT, f"it ended as {task.outcome}: {task.error}")
        await stage.runtime.must_end(1)


async def hears_the_new_instruction_when_steered(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        task_id = await stage.working("clutch-test: wait")
        new = "clutch-test: echo changed"
        await stage.store.alone(messages.steer, POLICY, task_id, "steer:1", new, actor="person")
        await stage.runtime.must_end(1)
        task = await stage.ended(task_id)
        _must((task.result or "").strip() == "changed", f"its result is {task.result!r}")
        first, second = stage.runtime.jobs
        _must(new in second.text, f"its job was {second.text!r}")
        _must(first.key != second.key, "another instruction is another run")


async def stops_when_paused_and_starts_again_when_resumed(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        task_id = await stage.working("clutch-test: wait")
        await stage.store.alone(control.pause, POLICY, task_id, "person")
        await stage.runtime.must_end(1)
        await stage.until(lambda: stage.is_in(task_id, Phase.PAUSED))
        await stage.store.alone(control.resume, POLICY, task_id, "person")
        await stage.runtime.must_begin(2)
        first, second = stage.runtime.jobs
        _must(first.key == second.key, f"{first.key!r}, then {second.key!r}")
        await stage.store.alone(control.kill, POLICY, task_id, "enough", "person")
        await stage.runtime.must_end(2)


async def starts_again_under_the_same_key_after_a_crash(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        task_id = await stage.working("clutch-test: wait")
        await stage.crash()
        await stage.hire()
        await stage.runtime.must_begin(2)
        first, second = stage.runtime.jobs
        _must((first.key, first.text) == (second.key, second.text), f"{first.key!r}, then {second.key!r}")
        await stage.store.alone(control.kill, POLICY, task_id, "enough", "person")
        await stage.runtime.must_end(2)


async def goes_on_with_what_it_said_before(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        task_id = await stage.spawn("clutch-test: echo first")
        await stage.until(lambda: stage.is_in(task_id, Phase.COMPLETED))
        new = "clutch-test: echo second"
        await stage.store.alone(
            control.again, POLICY, task_id, "continue", "again:1", text=new, actor="person"
        )
        await stage.runtime.must_begin(2)
        task = await stage.ended(task_id)
        _must((task.result or "").strip() == "second", f"its result is {task.result!r}")
        said = [entry.text.strip() for entry in stage.runtime.jobs[1].transcript if isinstance(entry, Answer)]
        _must(said == ["first"], f"it is shown {said} as its own messages")


async def name_that_nobody_has_is_a_clear_error(make: MakeRuntime) -> None:
    async with _stage(make) as stage:
        task = await stage.ended(await stage.spawn("clutch-test: echo lost", runtime="nobody"))
        _must(task.outcome is Outcome.ERROR, f"it ended as {task.outcome}")
        error = task.error or ""
        _must("'nobody'" in error and NAME in error, f"its error is {error!r}")
        _must(stage.runtime.jobs == [], "another runtime did the work")


CHECKS: tuple[Check, ...] = (
    returns_its_last_words,
    is_told_its_task_and_where_it_works,
    streams_what_it_says,
    reports_its_error_after_the_grace,
    ends_promptly_when_killed,
    ends_promptly_at_its_timeout,
    hears_the_new_instruction_when_steered,
    stops_when_paused_and_starts_again_when_resumed,
    starts_again_under_the_same_key_after_a_crash,
    goes_on_with_what_it_said_before,
    name_that_nobody_has_is_a_clear_error,
)


async def conforms(make: MakeRuntime) -> None:
    """All checks. Raises NotConforming."""
    for check in CHECKS:
        await check(make)


def _must(condition: bool, words: str) -> None:
    if not condition:
        raise NotConforming(words)


async def _heard(watcher: BusWatcher) -> list[str]:
    """What was published so far."""
    words: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            async for live in watcher:
                if live.name == "assistant:text":
                    words.append(live.data)
    return words


# ---- the stage ---------------------------------------------------------------------------------------------


class _Watched:
    """The runtime under test, and when its runs began and ended."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.jobs: list[RuntimeJob] = []
        self.ended = 0
        self._changed = asyncio.Event()

    async def run(self, job: RuntimeJob) -> Answer:
        self.jobs.append(job)
        self._changed.set()
        try:
            return await self._runtime.run(job)
        finally:
            self.ended += 1
            self._changed.set()

    async def must_begin(self, times: int) -> None:
        await self._wait(lambda: len(self.jobs) >= times, DEADLINE_S, f"it was not started {times} times")

    async def must_end(self, times: int) -> None:
        await self._wait(
            lambda: self.ended >= times, PROMPT_S, f"it still runs {PROMPT_S:g} s after it was stopped"
        )

    async def _wait(self, is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()
        _must(is_so(), otherwise)


class _Now:
    def now(self) -> float:
        return time.time()


class _Stage:
    """A main session, a worker, and the runtime under test."""

    def __init__(self, store: SqliteStore, runtime: _Watched) -> None:
        self.store, self.runtime, self.bus = store, runtime, Bus()
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._worker: Worker | None = None
        store.listen(lambda _: self._changed.set())

    async def hire(self) -> None:
        model = ScriptedModel(lambda _: "heard")
        services = Services(
            self.store, model, Tools(), POLICY, BlockIds(), self.bus, runtimes={NAME: self.runtime}
        )
        self._worker = Worker(services, _Now(), has_leases=False)
        self._running = asyncio.create_task(self._worker.run())
        await self._worker.ready.wait()

    async def crash(self) -> None:
        """As if the process were killed: no goodbye."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def dismiss(self) -> None:
        if self._worker is not None and self._running is not None:
            await self._worker.stop()
            await asyncio.wait([self._running])

    async def spawn(self, text: str, *, run_timeout_s: float = 0.0, runtime: str = NAME) -> int:
        request = SpawnRequest(text, runtime=runtime, run_timeout_s=run_timeout_s)
        ids = BlockIds()
        order = ChildRequest("spawn:1", MAIN + 1, ids.uuid4(), request, 0)
        (answer,) = await self.store.tx(MAIN, spawn, POLICY, MAIN, MAIN, [order])
        if not isinstance(answer, Accepted):
            raise TypeError(f"the spawn was refused: {answer.error}")
        return answer.task_id

    async def working(self, text: str) -> int:
        task_id = await self.spawn(text)
        await self.runtime.must_begin(1)
        return task_id

    async def task(self, task_id: int) -> Task:
        return await self.store.read(_task, task_id)

    async def ended(self, task_id: int) -> Task:
        async def is_ended() -> bool:
            return (await self.task(task_id)).outcome is not None

        await self.until(is_ended)
        return await self.task(task_id)

    async def is_in(self, task_id: int, phase: Phase) -> bool:
        return (await self.task(task_id)).phase is phase

    async def timeline(self, task_id: int) -> list[str]:
        rows = await self.store.read(
            _rows, "SELECT reason, detail FROM events WHERE task_id = ? ORDER BY seq", task_id
        )
        return [reason_text(*row) for row in rows]

    async def until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Looks after every hint, and now and then: not every commit gives one."""
        ends_at = time.monotonic() + DEADLINE_S
        while not await is_so():
            _must(time.monotonic() < ends_at, f"nothing happened for {DEADLINE_S:g} s")
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await self._changed.wait()


def _rows(now: float, sql: str, *parameters: Any) -> Tx[list[Row]]:
    del now
    return list((yield sql, parameters))


def _task(now: float, task_id: int) -> Tx[Task]:
    del now
    rows = yield f"SELECT {tasks.COLUMNS} FROM tasks WHERE id = ?", (task_id,)  # noqa: S608 (constant columns)
    return tasks.from_row(rows[0])


@asynccontextmanager
async def _stage(make: MakeRuntime) -> AsyncIterator[_Stage]:
    async with SqliteStore(":memory:", _Now()) as store:
        rights = rights_text(root_rights(AgentGrant(depth_max=POLICY.limits.depth_max)))
        await store.alone(
            sessions.open_session, sessions.NewMain(MAIN, "agent:main:main", "main", rights, None, ".")
        )
        stage = _Stage(store, _Watched(make()))
        await stage.hire()
        try:
            yield stage
        finally:
            await stage.dismiss()
