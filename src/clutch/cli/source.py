"""Where what is shown comes from: the gateway if one runs, else its store, read beside whoever owns it.

Both give the same objects. Of the store only reads are possible, and that nobody works is said on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import typer

from clutch.cli import INTERRUPTED
from clutch.cli.output import command_for, gateway, home_of, say, say_unloaded
from clutch.errors import NoGateway, NotFound
from clutch.surfaces import discovery
from clutch.surfaces.discovery import blocked, has_store, named_state
from clutch.surfaces.http_client import Declined, GatewayClient, connect, session_path, task_path

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Followed:
    """What is meant, by a name that means the same later. A main session has no end. `failed`: the task, if it did."""

    name: str
    is_over: bool = False
    failed: Object | None = None


def _as_task(task: Object) -> Followed:
    is_over = task["outcome"] is not None
    return Followed(task["taskId"], is_over, task if is_over and task["error"] is not None else None)


class Source(Protocol):
    client: GatewayClient | None  #: None: nobody is there to do anything

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


class GatewaySource:
    def __init__(self, client: GatewayClient) -> None:
        self.client: GatewayClient | None = client
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


class OfflineSource:
    """`look(fn, *args)` runs a transaction that only reads."""

    def __init__(self, look: Callable[..., Any], state: str | None) -> None:
        from clutch.api.reads import standpoint
        from clutch.core.authority import EVERY_SCOPE, OperatorCaller

        self.client: GatewayClient | None = None
        self._look, self._state = look, state
        self._who = standpoint(OperatorCaller(EVERY_SCOPE))

    def tasks(self, **wanted: Any) -> Object:
        from clutch.api import reads

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
        from clutch.api import reads

        got: Object = self._look(getattr(reads, name), *args)
        return got


@contextmanager
def source(state: Path | None) -> Iterator[Source]:
    """The gateway, or the store where none runs or its event loop is blocked. Raises NoGateway without either."""
    home = home_of(state)
    found = _client_or_notice(home)
    if isinstance(found, GatewayClient):
        say_unloaded(home, found.address)
        yield GatewaySource(found)
        return
    from clutch.offline_reader import looking_at

    say(found)
    with looking_at(home) as look:
        yield OfflineSource(look, named_state(home))


def _client_or_notice(home: Path) -> GatewayClient | str:
    """Whom to ask, or why the store is read instead."""
    try:
        client = connect(home)
    except NoGateway as error:
        if has_store(home):
            return f"Gateway not running. Showing the last saved state of {home}."
        nothing = f"no gateway serves {home}, and nothing is kept there yet; start one with `{error.remedy}`"
        raise NoGateway(nothing, error.remedy) from error
    why = blocked(home) if has_store(home) else None
    return client if why is None else f"The gateway does not answer: {why}. Showing the last saved state."


# --------------------------------------------------------------------------------------------------
# A question that outlives its gateway: one that died is started again, one that was stopped is waited for.
#
# Whoever waits for something durable does not lose it with the process that worked on it. What is asked must be
# harmless to ask twice: a read, or a write with its key.

T = TypeVar("T")

LOOK_S = 0.5
AWAY_S = 60.0  #: a restart takes seconds; longer, and nobody is about to bring it back


@dataclass(slots=True)
class GatewayConnection:
    state: Path | None
    client: GatewayClient

    def ask(self, question: Callable[[GatewayClient], T]) -> T:
        """Raises NoGateway when none comes back."""
        while True:
            try:
                return question(self.client)
            except NoGateway:
                self.client = _found_again(self.state)


def _found_again(state: Path | None) -> GatewayClient:
    home, deadline = home_of(state), time.monotonic() + AWAY_S
    say("The gateway is gone; looking for it again. Nothing is lost.")
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        try:
            found = (
                gateway(state) if discovery.has_died(home) and discovery.may_start(home) else connect(home)
            )
        except NoGateway:
            continue
        say(f"Connected again (pid {found.address.pid}).")
        return found
    serve = command_for(state, "serve")
    raise NoGateway(f"no gateway came back within {AWAY_S:.0f} s; start one with `{serve}`", serve)


@contextmanager
def resumable(state: Path | None, *words: str) -> Iterator[None]:
    """Ctrl-C ends the watching and nothing else: `words` are the command that goes on with it."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nIt goes on without you. To watch it again: `{command_for(state, *words)}`.")
        raise typer.Exit(INTERRUPTED) from None
