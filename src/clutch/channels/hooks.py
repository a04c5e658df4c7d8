"""Hooks: Python functions and webhooks that hear of a subagent's life, or are asked about it.

What they are told comes from the outbox, so it is at least once and under a stable key; a receiver that fails hears
it again, and so do the others of that hook. Each gets a few seconds, and none of them can stop a task.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from clutch.channels.posting import check_url, post
from clutch.core.hooks import Hook
from clutch.errors import InvalidInput
from clutch.ports import HookFailed

log = logging.getLogger(__name__)

GROUP = "clutch.hooks"  #: entry points of installed packages: the name of a hook and a function
TIMEOUT_S = 5.0  # a task waits for a spawning hook; nobody should wait longer for a stranger

#: Gets what happened as a dictionary, `event` and `key` with it. May be a plain function; then it runs in a thread.
Receiver: TypeAlias = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Webhook:
    """POSTs JSON. `events`: names of hooks; none = all. A 4xx is not tried again."""

    url: str  #: gets a POST of JSON
    events: tuple[str, ...] = ()  #: names of hooks; none = all
    headers: Mapping[str, str] | None = None  #: sent with every request

    def __post_init__(self) -> None:
        check_url("Webhook.url", self.url)

    async def __call__(self, told: dict[str, Any]) -> Any:
        return await post(self.url, told, self.headers or {}, str(told.get("key", "")))


class Hooks:
    """Whoever listens, by the name of the hook. A channel for what is told, and a counter for what is asked."""

    def __init__(self, webhooks: Sequence[Webhook] = (), timeout_s: float = TIMEOUT_S) -> None:
        self._receivers: dict[Hook, list[Receiver]] = {}
        self._timeout_s = timeout_s
        for webhook in webhooks:
            for name in webhook.events or tuple(Hook):
                self.add(name, webhook)

    @property
    def names(self) -> frozenset[Hook]:
        return frozenset(self._receivers)

    def add(self, name: str, receiver: Receiver) -> None:
        if name not in tuple(Hook):
            raise InvalidInput("hook", f"there is no {name[:64]!r}; there are {', '.join(Hook)}")
        self._receivers.setdefault(Hook(name), []).append(receiver)

    def add_installed(self) -> None:
        """Those of installed packages. One that cannot be loaded is left out: it must not keep Clutch from starting."""
        for point in entry_points(group=GROUP):
            try:
                self.add(point.name, point.load())
            except Exception:
                log.exception("hook left out", extra={"hook": point.name, "value": point.value})

    async def send(self, target: str, body: str, key: str) -> str | None:
        """Everybody is told, whoever fails; then the first failure that may pass is the row's."""
        told = json.loads(body) | {"event": target, "key": key}
        answers = await asyncio.gather(
            *(self._call(one, told) for one in self._receivers.get(Hook(target), ()))
        )
        failures = [answer for answer in answers if isinstance(answer, HookFailed)]
        passing = [failure for failure in failures if not failure.is_permanent]
        if passing:
            raise ConnectionError(str(passing[0]))
        if failures:
            raise PermissionError(str(failures[0]))
        return None

    async def ask(self, name: Hook, about: Mapping[str, Any]) -> list[Mapping[str, Any] | HookFailed]:
        """What each has to say; one that says nothing is left out."""
        told = {**about, "event": name}
        answers = await asyncio.gather(*(self._call(one, told) for one in self._receivers.get(name, ())))
        return [answer for answer in answers if isinstance(answer, Mapping | HookFailed)]

    async def _call(self, receiver: Receiver, told: dict[str, Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                if inspect.iscoroutinefunction(receiver) or isinstance(receiver, Webhook):
                    return await receiver(dict(told))
                answer = await asyncio.to_thread(receiver, dict(told))
                return await answer if inspect.isawaitable(answer) else answer
        except TimeoutError:
            return HookFailed(f"no answer within {self._timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - a hook is a stranger's code; nothing it raises may go further
            failed = HookFailed(f"{type(error).__name__}: {error}"[:200])
            failed.is_permanent = isinstance(error, PermissionError)
            return failed
