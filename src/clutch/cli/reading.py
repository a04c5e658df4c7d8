"""Where what is shown comes from: the gateway if one runs, else its store, read beside whoever owns it.

Both give the same objects. Of the store only reads are possible, and that nobody works is said on stderr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from clutch.cli.asking import home_of, say
from clutch.errors import NoGateway, NotFound
from clutch.surfaces.address import named_state
from clutch.surfaces.client import Client, Declined, connect, session_path, task_path
from clutch.surfaces.starting import has_store

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Followed:
    """What is meant, by a name that means the same later. A main session has no end."""

    name: str
    is_over: bool = False


def _as_task(task: Object) -> Followed:
    return Followed(task["taskId"], task["outcome"] is not None)


class Source(Protocol):
    client: Client | None  #: None: nobody is there to do anything

    def tasks(self, **wanted: Any) -> Object: ...

    def task(self, target: str) -> Object: ...

    def tree(self, target: str) -> Object: ...

    def transcript(self, target: str, after: int = 0) -> Object: ...

    def followed(self, target: str) -> Followed: ...

    def result(self, target: str) -> Object: ...

    def why(self, target: str) -> Object: ...

    def replay(self, target: str, after: int = 0) -> Object: ...

    def inbox(self) -> Object: ...

    def usage(self, by: str) -> Object: ...

    def session_transcript(self, key: str, after: int = 0) -> Object: ...


class Gateway:
    def __init__(self, client: Client) -> None:
        self.client: Client | None = client
        self._client = client

    def tasks(self, **wanted: Any) -> Object:
        return self._get("/v1/tasks", **wanted)

    def task(self, target: str) -> Object:
        return self._get(task_path(target))

    def tree(self, target: str) -> Object:
        return self._get(task_path(target, "tree"))

    def transcript(self, target: str, after: int = 0) -> Object:
        return self._get(session_path(target, "transcript"), after=after)

    def followed(self, target: str) -> Followed:
        try:
            return _as_task(self.task(target))
        except Declined as error:
            if error.code != "not_found":
                raise
            return Followed(target)

    def result(self, target: str) -> Object:
        return self._get(task_path(target, "result"))

    def why(self, target: str) -> Object:
        return self._get(task_path(target, "why"))

    def replay(self, target: str, after: int = 0) -> Object:
        return self._get(task_path(target, "replay"), after=after)

    def inbox(self) -> Object:
        return self._get("/v1/inbox")

    def usage(self, by: str) -> Object:
        return self._get("/v1/usage", by=by)

    def session_transcript(self, key: str, after: int = 0) -> Object:
        return self._get(f"/v1/sessions/{quote(key, safe='')}/transcript", after=after)

    def _get(self, path: str, **query: Any) -> Object:
        got: Object = self._client.get(path, **query)
        return got


class Beside:
    """`look(fn, *args)` runs a transaction that only reads."""

    def __init__(self, look: Callable[..., Any], state: str | None) -> None:
        from clutch.core.authority import EVERY_SCOPE, OperatorCaller
        from clutch.gateway.reads import standpoint

        self.client: Client | None = None
        self._look, self._state = look, state
        self._who = standpoint(OperatorCaller(EVERY_SCOPE))

    def tasks(self, **wanted: Any) -> Object:
        from clutch.gateway import reads

        recent, phase, _ = wanted.pop("recentMinutes"), wanted.pop("phase"), wanted.pop("numbered", None)
        asked = reads.Filter(**wanted, recent_minutes=recent, phase=reads.phase_named(phase))
        got: Object = self._look(reads.tasks, self._who, asked)
        return got

    def task(self, target: str) -> Object:
        return self._read("task", self._who, target)

    def tree(self, target: str) -> Object:
        return self._read("tree", self._who, target)

    def transcript(self, target: str, after: int = 0) -> Object:
        return self._read("session_transcript", self._who, target, after)

    def followed(self, target: str) -> Followed:
        try:
            return _as_task(self.task(target))
        except NotFound:
            return Followed(target)

    def result(self, target: str) -> Object:
        return self._read("result", self._who, target)

    def why(self, target: str) -> Object:
        return self._read("why", self._who, target, False, self._state)

    def replay(self, target: str, after: int = 0) -> Object:
        return self._read("replay", self._who, target, after)

    def inbox(self) -> Object:
        return self._read("inbox", self._who)

    def usage(self, by: str) -> Object:
        return self._read("usage", by)

    def session_transcript(self, key: str, after: int = 0) -> Object:
        return self._read("session_transcript", self._who, key, after)

    def _read(self, name: str, *args: Any) -> Object:
        from clutch.gateway import reads

        got: Object = self._look(getattr(reads, name), *args)
        return got


@contextmanager
def source(state: Path | None) -> Iterator[Source]:
    """Raises NoGateway when there is neither."""
    home = home_of(state)
    try:
        client = connect(home)
    except NoGateway as error:
        if not has_store(home):
            nothing = (
                f"no gateway serves {home}, and nothing is kept there yet; start one with `{error.remedy}`"
            )
            raise NoGateway(nothing, error.remedy) from error
        from clutch.looking import looking_at

        say(f"No gateway runs: this is what {home} holds; nobody works on it.")
        with looking_at(home) as look:
            yield Beside(look, named_state(home))
        return
    yield Gateway(client)
