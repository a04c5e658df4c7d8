"""Many tasks at once: all of them, each as it ends, or one for every item of a list.

`map` is durable without a record of its own: the key of an item's task is made of the map's name, the item's key and
the attempt. The same map again finds what has ended, waits for what is under way and starts what is missing.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from clutch.core.model import Outcome
from clutch.errors import InvalidInput
from clutch.gateway.handles import Task, TaskResult

T = TypeVar("T")
V = TypeVar("V")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
#: Trying again may help. What was killed stays killed.
WORTH_A_RETRY = frozenset({Outcome.ERROR, Outcome.TIMEOUT, Outcome.LOST})
KEY_CHARS_MAX = 100


async def gather(*tasks: Task[V]) -> list[TaskResult[V]]:
    """The results of all of them, in this order, whatever they are. Raises InvalidInput."""
    check_tasks(tasks, Task)
    return list(await asyncio.gather(*(task.result() for task in tasks)))


async def as_completed(tasks: Iterable[Task[V]]) -> AsyncIterator[tuple[Task[V], TaskResult[V]]]:
    """Each with its result, as they end. Raises InvalidInput."""
    check_tasks(tasks := list(tasks), Task)
    ended: asyncio.Queue[Task[V]] = asyncio.Queue()
    waits: dict[Task[V], asyncio.Future[TaskResult[V]]] = {}
    for task in tasks:
        waits[task] = asyncio.ensure_future(task.result())
        waits[task].add_done_callback(partial(_put, ended, task))
    try:
        for _ in range(len(waits)):
            task = await ended.get()
            yield task, waits[task].result()
    finally:
        for wait in waits.values():
            wait.cancel()


def _put(ended: asyncio.Queue[T], one: T, _: object) -> None:
    ended.put_nowait(one)


def check_tasks(tasks: Iterable[object], kind: type) -> None:
    """Who comes from asyncio gives a list, or what was not awaited yet. Raises InvalidInput."""
    for wrong in (one for one in tasks if not isinstance(one, kind)):
        if asyncio.iscoroutine(wrong):
            wrong.close()
        what = f"is a {type(wrong).__name__} and no task"
        raise InvalidInput(
            "tasks", f"{what}: gather(*tasks) or as_completed(tasks), each of `await c.spawn(…)`"
        )


def check_map(name: str, in_flight: int, retries: int) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidInput("name", "must be letters a-z, digits, dots, _ and -, at most 60")
    if in_flight < 1:
        raise InvalidInput("in_flight", "must be at least 1")
    if retries < 0:
        raise InvalidInput("retries", "must not be negative")


def keys_of(items: Sequence[T], key: Callable[[T], str]) -> list[str]:
    """Raises InvalidInput when two items could not be told apart."""
    known: dict[str, int] = {}
    for place, item in enumerate(items):
        text = str(key(item))
        first = known.setdefault(text, place)
        if first != place:
            raise InvalidInput("key", f"items {first} and {place} have the same key, {text[:80]!r}")
    return list(known)


def spawn_key(name: str, key: str, attempt: int) -> str:
    """Printable and short, whatever the item's key is."""
    if len(key) > KEY_CHARS_MAX or not key.isprintable() or not key.strip():
        key = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return f"map:{name}:{attempt}:{key}"


async def map_all(
    count: int, in_flight: int, retries: int, spawn: Callable[[int, int], Awaitable[Task[Any]]]
) -> list[TaskResult[Any]]:
    """`spawn(item, attempt)`. At most `in_flight` at once; the first that cannot be started stops the rest."""
    results: dict[int, TaskResult[Any]] = {}
    places: Iterator[int] = iter(range(count))

    async def work() -> None:
        for place in places:
            for attempt in range(retries + 1):
                results[place] = await (await spawn(place, attempt))
                if results[place].outcome not in WORTH_A_RETRY:
                    break

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(in_flight, count)):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[place] for place in range(count)]
