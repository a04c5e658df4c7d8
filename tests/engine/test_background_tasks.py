"""The owner of background tasks: nothing outlives it, no exception is lost, no cancellation is swallowed."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from clutch.contain import BackgroundTasks

pytestmark = pytest.mark.anyio


async def forever(started: asyncio.Event | None = None) -> None:
    if started is not None:
        started.set()
    await asyncio.Event().wait()


async def fail(text: str) -> None:
    raise ValueError(text)


async def _ended(tasks: BackgroundTasks, work: Coroutine[Any, Any, None], name: str) -> None:
    is_over = asyncio.Event()

    async def reported() -> None:
        try:
            await work
        finally:
            is_over.set()

    tasks.start(reported(), name)
    await is_over.wait()
    await asyncio.sleep(0)  # the callbacks of a task run after its end


async def test_tasks_end_with_the_block() -> None:
    async with BackgroundTasks() as tasks:
        task = tasks.call(forever(), "forever")
        await asyncio.sleep(0)
        assert not task.done()
    assert task.cancelled()


async def test_close_waits_for_cleanups_that_await() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            steps.append("cleaned")

    tasks = BackgroundTasks()
    tasks.start(work(), "work")
    await asyncio.sleep(0)
    await tasks.close()
    assert steps == ["cleaned"]


async def test_task_without_another_reference_is_kept() -> None:
    async with BackgroundTasks() as tasks:
        done = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0)
            gc.collect()
            done.set()

        tasks.start(work(), "work")
        gc.collect()
        await done.wait()


async def test_exception_nobody_reads_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        async with BackgroundTasks() as tasks:
            await _ended(tasks, fail("it broke"), "reload config")
        gc.collect()
    (record,) = caplog.records
    assert record.name == "clutch.tasks"
    assert record.getMessage() == "Background task 'reload config' failed: ValueError: it broke"
    assert record.exc_info


async def test_exception_raised_by_the_cancellation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        try:
            await forever()
        finally:
            await fail("cleanup broke")

    with caplog.at_level(logging.ERROR):
        async with BackgroundTasks() as tasks:
            tasks.start(work(), "work")
            await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == [
        "Background task 'work' failed: ValueError: cleanup broke"
    ]


async def test_exception_of_a_call_belongs_to_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    async with BackgroundTasks() as tasks:
        task = tasks.call(fail("for the caller"), "call")
        with pytest.raises(ValueError, match="for the caller"):
            await task
    assert not caplog.records


async def test_failed_task_leaves_its_siblings_alone() -> None:
    async with BackgroundTasks() as tasks:
        other = tasks.call(forever(), "other")
        await _ended(tasks, fail("broken"), "broken")
        assert not other.done()


async def test_cancellation_during_close_is_raised_after_the_tasks_have_ended() -> None:
    may_end, is_cancelled = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            is_cancelled.set()
            await may_end.wait()
            raise

    async with BackgroundTasks() as outer:
        tasks = BackgroundTasks()
        task = tasks.call(stubborn(), "stubborn")
        await asyncio.sleep(0)
        closing = outer.call(tasks.close(), "close")
        await is_cancelled.wait()
        for _ in range(3):
            closing.cancel()
            await asyncio.sleep(0)
        assert not closing.done()
        may_end.set()
        await asyncio.wait([closing])
        assert task.cancelled()
        assert closing.cancelled()


async def test_cancellation_of_the_block_passes_and_ends_the_tasks() -> None:
    started: asyncio.Event = asyncio.Event()
    inner: list[asyncio.Task[None]] = []

    async def block() -> None:
        async with BackgroundTasks() as tasks:
            inner.append(tasks.call(forever(started), "inner"))
            await forever()

    async with BackgroundTasks() as outer:
        task = outer.call(block(), "block")
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert inner[0].cancelled()


async def test_close_ends_a_task_that_has_not_begun() -> None:
    ran = False

    async def work() -> None:
        nonlocal ran
        ran = True

    tasks = BackgroundTasks()
    task = tasks.call(work(), "work")
    await tasks.close()
    assert task.cancelled()
    assert not ran


async def test_nothing_starts_once_the_close_has_begun() -> None:
    refused: list[str] = []
    tasks = BackgroundTasks()

    async def work() -> None:
        try:
            await forever()
        finally:
            try:
                tasks.start(forever(), "late")
            except RuntimeError as error:
                refused.append(str(error))

    tasks.start(work(), "work")
    await asyncio.sleep(0)
    await tasks.close()
    assert refused == ["cannot start the task 'late': its owner is closed"]
    with pytest.raises(RuntimeError, match="owner is closed"):
        await tasks.call(forever(), "later")


async def test_task_may_close_its_own_owner() -> None:
    tasks = BackgroundTasks()
    other = tasks.call(forever(), "other")
    await tasks.call(tasks.close(), "close")
    assert other.cancelled()
    await tasks.close()
