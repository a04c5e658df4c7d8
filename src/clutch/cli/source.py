"""The source of what commands show: the running gateway, or the store, read beside the process that owns it.

Both return the same objects. The store can only be read, and a message on stderr says that no gateway runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import typer

from clutch.cli import INTERRUPTED
from clutch.cli.output import command_for, gateway, home_of, say, say_unloaded
from clutch.errors import NoGateway, NotFound
from clutch.surfaces import discovery
from clutch.surfaces.discovery import blocked, has_store, named_state
from clutch.surfaces.http_client import (
    Declined,
    GatewayClient,
    connect,
    schedule_path,
    session_path,
    task_path,
)

Object = dict[str, Any]
DEMO_TASK = "question: sizes"  #: what a task with the demo model can do alone; a survey needs subagents (`clutch chat`)
MAIN_SESSION = "agent:main:main"


@dataclass(frozen=True, slots=True)
class Followed:
    """A task or a main session by a name that stays valid. A main session never ends. `failed` is a failed task."""

    name: str
    is_over: bool = False
    failed: Object | None = None


def _as_task(task: Object) -> Followed:
    is_over = task["outcome"] is not None
    return Followed(task["taskId"], is_over, task if is_over and task["error"] is not None else None)


class Source(Protocol):
    client: GatewayClient | None  #: None: no gateway is there to act
    is_fresh: bool  #: no gateway has ever served this state directory

    def tasks(self, **wanted: Any) -> Object: ...

    def task(self, target: str) -> Object: ...

    def tree(self, target: str) -> Object: ...

    def transcript(self, target: str, after: int = 0) -> Object: ...

    def followed(self, target: str) -> Followed: ...

    def result(self, target: str) -> Object: ...

    def why(self, target: str) -> Object: ...

    def replay(self, target: str, after: int = 0) -> Object: ...

    def timeline(self, target: str) -> Object: ...

    def inbox(self) -> Object: ...

    def nodes(self) -> Object: ...

    def schedules(self, name: str | None = None) -> Object: ...

    def usage(self, by: str, hours: float | None, utc_offset_minutes: int) -> Object: ...

    def decisions(self) -> Any: ...


class GatewaySource:
    is_fresh = False

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

    def timeline(self, target: str) -> Object:
        return self._get(task_path(target, "timeline"), subtree=True)

    def inbox(self) -> Object:
        return self._get("/v1/inbox")

    def nodes(self) -> Object:
        return self._get("/v1/nodes")

    def schedules(self, name: str | None = None) -> Object:
        return self._get("/v1/schedules" if name is None else schedule_path(name))

    def usage(self, by: str, hours: float | None, utc_offset_minutes: int) -> Object:
        period = {} if hours is None else {"hours": hours}
        return self._get("/v1/usage", by=by, utcOffsetMinutes=utc_offset_minutes, **period)

    def decisions(self) -> Any:
        raise AssertionError("a gateway answers for its files itself")

    def _get(self, path: str, **query: Any) -> Object:
        got: Object = self._client.get(path, **query)
        return got


class OfflineSource:
    """`look(fn, *args)` runs a read transaction on the store."""

    def __init__(self, look: Callable[..., Any], state: str | None, *, is_fresh: bool = False) -> None:
        from clutch.api import reads
        from clutch.core.authority import EVERY_SCOPE, OperatorCaller

        self.client: GatewayClient | None = None
        self.is_fresh = is_fresh
        self._look, self._state, self._reads = look, state, reads
        self._who = reads.standpoint(OperatorCaller(EVERY_SCOPE))

    def tasks(self, **wanted: Any) -> Object:
        for name in ("numbered", "numberedAfter"):
            wanted.pop(name, None)
        changed = {
            "recent_minutes": wanted.pop("recentMinutes", None),
            "recent_count": wanted.pop("recentCount", 0),
            "phase": self._reads.phase_named(wanted.get("phase")),
            "state": self._reads.state_named(wanted.get("state")),
        }
        asked = self._reads.Filter(**{**wanted, **changed})
        return self._read(self._reads.tasks, self._who, asked)

    def task(self, target: str) -> Object:
        return self._read(self._reads.task, self._who, target)

    def tree(self, target: str) -> Object:
        return self._read(self._reads.tree, self._who, target)

    def transcript(self, target: str, after: int = 0) -> Object:
        return self._read(self._reads.session_transcript, self._who, target, after)

    def followed(self, target: str) -> Followed:
        try:
            return _as_task(self.task(target))
        except NotFound:
            return Followed(target)

    def result(self, target: str) -> Object:
        return self._read(self._reads.result, self._who, target)

    def why(self, target: str) -> Object:
        return self._read(self._reads.why, self._who, target, False, self._state)

    def replay(self, target: str, after: int = 0) -> Object:
        return self._read(self._reads.replay, self._who, target, after)

    def timeline(self, target: str) -> Object:
        return self._read(self._reads.tree_timeline, self._who, target, True)

    def inbox(self) -> Object:
        return self._read(self._reads.inbox, self._who)

    def nodes(self) -> Object:
        return self._read(self._reads.nodes)

    def schedules(self, name: str | None = None) -> Object:
        from clutch.api import schedules

        return self._read(schedules.listed) if name is None else self._read(schedules.one, name)

    def usage(self, by: str, hours: float | None, utc_offset_minutes: int) -> Object:
        return self._read(self._reads.usage, by, hours, utc_offset_minutes)

    def decisions(self) -> Any:
        """What people have decided about agent files and skills, as `core.definitions.Decisions`."""
        from clutch.transactions.definitions import decisions

        return self._look(decisions)

    def _read(self, fn: Callable[..., Any], *args: Any) -> Object:
        got: Object = self._look(fn, *args)
        return got


def messages(read: Callable[[int], Object], after: int = 0) -> Iterator[Object]:
    """Yield the messages of a transcript after a number; `read` returns one page."""
    page: Object = {"next": after}
    while page["next"] is not None:
        page = read(page["next"])
        yield from page["messages"]


@contextmanager
def source(state: Path | None, database: str | None = None) -> Iterator[Source]:
    """Yield the gateway, or the store where no gateway runs or its event loop is blocked. `database`: the address of a
    PostgreSQL, which is read without a gateway.

    A state directory that was never used reads as empty. Raises NoGateway for one whose database is elsewhere."""
    if database is not None:
        from clutch.offline_reader import looking_at_server

        with looking_at_server(database) as look:
            yield OfflineSource(look, None)
        return
    home = home_of(state)
    found = _client_or_notice(home, state)
    if isinstance(found, GatewayClient):
        say_unloaded(home, found.address)
        yield GatewaySource(found)
        return
    from clutch.core.move import refusal
    from clutch.offline_reader import looking_at, looking_at_nothing
    from clutch.transactions.read.move import move_record

    say(found)
    is_fresh = discovery.is_fresh(home)
    with looking_at_nothing() if is_fresh else looking_at(home) as look:
        if (why := refusal(look(move_record), str(home))) is not None:
            say(f"Not the current state: {why}.")
        yield OfflineSource(look, named_state(home), is_fresh=is_fresh)


def _client_or_notice(home: Path, state: Path | None) -> GatewayClient | str:
    """Return the client, or the message that says why the store is read instead."""
    try:
        client = connect(home)
    except NoGateway as error:
        if has_store(home):
            return f"Gateway not running. Showing the last saved state of {home}."
        if discovery.is_fresh(home):
            return f"No tasks yet in {home}. {first_steps(home, state)}"
        elsewhere = f"gateway not running for {home}, whose database is not there; start it: `{error.remedy}`"
        raise NoGateway(elsewhere, error.remedy) from error
    why = blocked(home) if has_store(home) else None
    return client if why is None else f"The gateway does not answer: {why}. Showing the last saved state."


def first_steps(home: Path, state: Path | None) -> str:
    """Return what to type on a fresh machine."""
    if (home / discovery.CONFIG_FILE).exists():
        return f"Start one: `{command_for(state, 'run', '--wait', 'Say hello')}`."
    first = f"Start one: `{command_for(state, 'run', '--wait', DEMO_TASK)}`"
    return f"{first} (demo model, no API key), or choose a model: `{command_for(state, 'init')}`."


# --------------------------------------------------------------------------------------------------
# A request that survives the gateway: a crashed gateway is started again, a stopped one is waited for.
#
# The request may be sent twice, so it must be a read or a write with an idempotency key.

T = TypeVar("T")

LOOK_S = 0.5
AWAY_S = 60.0  #: a restart takes seconds; after this time none is expected


@dataclass(slots=True)
class GatewayConnection:
    state: Path | None
    client: GatewayClient

    def ask(self, question: Callable[[GatewayClient], T]) -> T:
        """Return the answer to the question. Raises NoGateway when no gateway comes back."""
        while True:
            try:
                return question(self.client)
            except NoGateway:
                self.client = _found_again(self.state)


def _found_again(state: Path | None) -> GatewayClient:
    home, deadline = home_of(state), time.monotonic() + AWAY_S
    say("The gateway does not answer; reconnecting. No work is lost.")
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        try:
            found = (
                gateway(state) if discovery.has_died(home) and discovery.may_start(home) else connect(home)
            )
        except NoGateway:
            continue
        say(f"Reconnected (pid {found.address.pid}).")
        return found
    serve = command_for(state, "serve")
    raise NoGateway(f"no gateway came back within {AWAY_S:.0f} s; start one with `{serve}`", serve)


@contextmanager
def resumable(state: Path | None, *words: str) -> Iterator[None]:
    """Let Ctrl-C end only the watching; `words` are the command that resumes it."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\nThe task continues. To watch it again: `{command_for(state, *words)}`.")
        raise typer.Exit(INTERRUPTED) from None
