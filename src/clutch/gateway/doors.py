"""The doors of a gateway: all that a program asks of one, wherever it runs.

`local.Gateway` answers in the process that has the engine, `surfaces.remote.Remote` asks another process over HTTP.
Which of the two is chosen once, when a `Clutch` is opened; whoever goes through these doors cannot tell. Answers are
the objects every surface shows.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple, Protocol

from clutch.gateway.handles import Event, Question, TaskResult
from clutch.gateway.objects import Object
from clutch.gateway.reads import Filter
from clutch.gateway.spawns import OnFullWord
from clutch.protocol.questions import Decision


class Known(NamedTuple):
    """What a handle on a task shows without asking."""

    task_id: str
    label: str
    session_key: str


class Doors(Protocol):
    # ---- one task ------------------------------------------------------------------------------------

    async def ended(self, task_id: str) -> TaskResult[Any]:
        """Waits for it."""
        ...

    async def known(self, task_id: str) -> Known: ...

    async def info(self, task_id: str) -> Object: ...

    async def why(self, task_id: str) -> Object: ...

    async def read_file(self, task_id: str, name: str) -> bytes: ...

    async def act(self, verb: str, task_id: str, **said: Any) -> Object:
        """A verb of `Desk`, with its arguments."""
        ...

    # ---- many ----------------------------------------------------------------------------------------

    async def spawn(self, args: Mapping[str, Any], session: str, on_full: OnFullWord | None) -> Object:
        """Arguments as `sessions_spawn` takes them, and its answer, whatever it is.

        Raises InvalidInput only for what is no argument of it: `session`, `on_full`; Draining."""
        ...

    async def tasks(self, asked: Filter) -> list[Known]: ...

    def events(self) -> AsyncGenerator[Event, None]: ...

    async def questions(self) -> list[Question]: ...

    async def answer(self, question: Question, decision: Decision, text: str) -> None: ...

    # ---- main sessions -------------------------------------------------------------------------------

    async def say(self, text: str, session: str, key: str | None) -> str: ...

    async def command(self, line: str, session: str, key: str | None) -> str: ...

    async def notify(self, text: str, session: str) -> bool: ...

    async def wake(self, session: str) -> None: ...

    async def heard(self, channel: str, thread: str, text: str, account: str, key: str | None) -> None: ...

    async def reply(self, session: str) -> str: ...

    async def settled(self, session: str) -> None: ...
