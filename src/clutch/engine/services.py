"""What every turn of one worker shares: the adapters that wiring chose, and the policy."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from clutch.contain import contained
from clutch.core import authority, compaction, ids, spawn
from clutch.core.agents import OnInvalidModel
from clutch.core.definitions import Decisions, Proposal
from clutch.core.delivery import LOCAL_CHANNEL
from clutch.core.devices import PushKey, Subscription
from clutch.core.messages import Usage
from clutch.core.model import Definition, Hook, ToolOffer
from clutch.core.policy import Policy
from clutch.core.run import SHELL
from clutch.core.spawn import SpawnRequest
from clutch.core.traces import TraceIds
from clutch.core.views import ConfigReport
from clutch.engine import output_schema
from clutch.engine.external_run import ExternalRun
from clutch.engine.live import Bus, Changes, Pulses
from clutch.engine.prompt import Documents, Surroundings
from clutch.errors import (
    ConstraintViolated,
    InvalidInput,
    StoreError,
    StoreLost,
    StoreRefused,
    StoreUnreadable,
)
from clutch.logs import logger
from clutch.ports import (
    Channel,
    Hooks,
    Lives,
    Mentions,
    ModelRequest,
    Models,
    OperatorNotice,
    Prices,
    ResultFiles,
    Runtime,
    SessionFiles,
    Skills,
    TaskFiles,
    Toolbox,
    Workspaces,
)
from clutch.store.transaction import Database
from clutch.transactions import definitions, mcp_tools, push, workers
from clutch.transactions.sessions import NewMain

# --------------------------------------------------------------------------------------------------
# New numbers and new secrets. Numbers come from a block the database gave to this process alone.

BLOCK_BITS = 31  # ids of one process; 2^22 process starts still fit a double's 53 bits
NONCES = 64  # read at a time: asking the system for each took a tenth of the event loop's time


class Ids(Protocol):
    def take_block(self, number: int) -> None: ...

    def next(self) -> int: ...

    def uuid4(self) -> str: ...

    def nonce(self) -> str: ...


class BlockIds:
    def __init__(self) -> None:
        self._next = 0
        self._nonces: list[str] = []

    def take_block(self, number: int) -> None:
        self._next = number << BLOCK_BITS

    def next(self) -> int:
        self._next += 1
        return self._next

    def uuid4(self) -> str:
        return str(uuid.uuid4())

    def nonce(self) -> str:
        if not self._nonces:
            digits = os.urandom(16 * NONCES).hex()
            self._nonces = [digits[at : at + 32] for at in range(0, len(digits), 32)]
        return self._nonces.pop()


log = logger(__name__)


class NoPrices:
    """No prices: every cost is unknown."""

    def cost(self, model: str, usage: Usage) -> Decimal | None:
        del model, usage
        return None

    def tokens(self, request: ModelRequest) -> int:
        return (len(request.system) + compaction.size(request.transcript)) // compaction.BYTES_PER_TOKEN

    def window(self, model: str) -> int | None:
        del model
        return None


#: Ticks between two looks while hints of other processes arrive: only one that died after its commit sends none.
HEARING_TICKS: Final = 5


@dataclass(slots=True)
class Services:
    db: Database
    models: Models
    toolbox: Toolbox
    policy: Policy
    ids: Ids
    bus: Bus
    prices: Prices = field(default_factory=NoPrices)
    surroundings: Surroundings | None = None
    skills: Skills | None = None  #: without it no agent has skills
    definitions: Skills | None = None  #: agent files and skills, for people; without it there are none
    checklists: Documents | None = (
        None  #: what a heartbeat reads; without it only an event is a reason for one
    )
    runtimes: Mapping[str, Runtime] = field(default_factory=lambda: MappingProxyType({}))
    hooks: Hooks | None = None
    channels: Mapping[str, Channel] = field(default_factory=lambda: MappingProxyType({}))
    workspaces: Workspaces | None = None  #: without it no child gets a workspace of its own
    files: TaskFiles | None = None  #: without it no child is given files, and none hands any over
    mentions: Mentions | None = None  #: without it `@path` in a message is plain text
    traces: TraceIds | None = None  #: without it MCP servers and ACP agents get no trace context
    results: ResultFiles | None = None  #: without it the middle of a large tool result is lost
    session_files: SessionFiles | None = None  #: without it no other machine works on this database
    lives: Lives | None = None
    new_push_key: Callable[[], PushKey] | None = None  #: without it no device is notified
    refresh: Callable[[], Awaitable[None]] | None = (
        None  #: before each turn: tools of others, agent files and skills may have changed
    )
    #: Loads what a model needs, in a thread: an import of seconds on the event loop would cost the lease.
    prepare: Callable[[str], Awaitable[None]] | None = None
    check_model: Callable[[str], None] | None = None  #: raises InvalidInput for one that cannot be asked
    #: `provider:model` of a bare name, where only one provider offers it
    whole_model: Callable[[str], str] = str
    now: Callable[[], float] = time.time  #: the clock of its worker
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    turns: dict[int, asyncio.Task[None]] = field(default_factory=dict)  #: under way here, by session
    worker_id: int = 0  #: under which they are
    is_draining: bool = False  #: an operator took this node out of service: no claims
    is_leaving: bool = (
        False  #: this gateway finishes its work and stops: no new work from outside or from schedules
    )
    #: turns of others that have ended: session, fence
    rested: set[tuple[int, int]] = field(default_factory=set)
    pulses: Pulses = field(default_factory=Pulses)
    problems: Callable[[], Sequence[OperatorNotice]] = (
        tuple  #: what the operator should know of this process now
    )
    #: what of the config file is in force; None: this process does not know a config
    config_report: Callable[[], ConfigReport | None] = lambda: None
    external_runs: dict[int, ExternalRun] = field(
        default_factory=dict
    )  #: foreign code at work here, by session
    frozen_s: Callable[[], float] = lambda: 0.0  #: how long this process has been frozen so far
    _thawed_s: float = 0.0  #: of which its runs have got back
    _thawing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changes: Changes | None = None

    @property
    def changes(self) -> Changes:
        if self._changes is None:
            self._changes = Changes(self.db, self.policy.work.tick_s)
        return self._changes

    @property
    def look_s(self) -> float:
        """The time between two looks of a loop that waits for a hint."""
        return self.policy.work.tick_s * (HEARING_TICKS if self.db.is_hearing else 1)

    async def thaw(self) -> None:
        """Before a deadline is judged: the time in which this process was frozen does not count. Raises StoreError."""
        async with self._thawing:
            frozen_s = self.frozen_s()
            if frozen_s > self._thawed_s:
                await self.db.alone(workers.thaw, self.policy, self.worker_id, frozen_s - self._thawed_s)
                self._thawed_s = frozen_s

    async def prepared(self, model: str) -> None:
        if self.prepare is None:
            return
        try:
            with contained():
                await self.prepare(model)
        except Exception:
            log.exception("Model %s not loaded in advance; its first call loads it", model)

    def wanted(self, args: Mapping[str, Any]) -> SpawnRequest:
        """Check the arguments of a spawn: their form, and whether what they name exists here. Raises InvalidInput.

        All surfaces call this, so all answer the same arguments alike."""
        request = self.toolbox.spawn_request(args)
        if request.output_schema is not None:
            output_schema.check_form(request.output_schema)
        self._check_checks(request)
        names = None if request.tools is None else [spec.name for spec in self.toolbox.specs()]
        spawn.check(request, self.policy, names, self.runtimes)
        if request.idempotency_key is not None:
            request = replace(request, digest=spawn.digest(request))
        request = spawn.settled(self._with_model(request), self.policy)
        return replace(request, is_asked_about=True) if Hook.SPAWNING in self.policy.hooks else request

    async def wanted_anew(self, args: Mapping[str, Any]) -> SpawnRequest:
        """As `wanted`, outside of a turn: an agent or a tool that is new here is looked for first."""
        named = args.get("agentId")
        is_new = isinstance(named, str) and named not in spawn.known_agents(self.policy)
        if self.refresh is not None and (is_new or args.get("tools") is not None):
            await self.refresh()  # tools of others can be named too
        return self.wanted(args)

    def _check_checks(self, request: SpawnRequest) -> None:
        """Whether what the checks need exists here. Raises InvalidInput."""
        shell = next((spec for spec in self.toolbox.specs() if spec.name == SHELL), None)
        for number, one in enumerate(request.checks):
            if one.schema is not None:
                output_schema.check_form(json.dumps(one.schema), f"checks[{number}].schema")
            if one.command is not None and (shell is None or shell.needs_approval):
                why = (
                    "there is no shell here"
                    if shell is None
                    else "the shell needs approval for each command here"
                )
                raise InvalidInput(f"checks[{number}].command", f"cannot run: {why}; leave the check out")

    def _with_model(self, request: SpawnRequest) -> SpawnRequest:
        if request.model is None or self.check_model is None:
            return request
        try:
            self.check_model(request.model)
        except InvalidInput as error:
            if self.policy.defaults.subagents.on_invalid_model is OnInvalidModel.ERROR:
                raise
            warning = f"{error}; the child gets the model it would have without"
            return replace(request, model=None, warnings=(*request.warnings, warning))
        return replace(request, model=self.whole_model(request.model))

    @property
    def starts_slots(self) -> bool:
        return not (self.is_draining or self.is_leaving)

    def new_main(self, key: str, agent_id: str) -> NewMain:
        """A main session as it is opened where there is none of this key."""
        rights = authority.to_text(authority.root_rights(self.policy.grant(agent_id)))
        workspace = self.policy.workspace_of(agent_id) or "."
        return NewMain(self.ids.next(), key, agent_id, rights, f"{LOCAL_CHANNEL}:{key}", workspace)

    def around(self) -> Surroundings:
        """The builder of system prompts; by default from the store alone, without documents of the workspace."""
        if self.surroundings is None:
            self.surroundings = Surroundings(self.db, lambda: self.policy, skills=self.skills)
        return self.surroundings


# --------------------------------------------------------------------------------------------------
# How long this process was frozen: stopped by a signal, or suspended with its machine.
#
# A thread beats. While the process is frozen no thread of it runs, so the beats have a gap. A blocked event loop
# leaves no gap: the process works, and its time counts.

BEAT_S = 0.5
GAP_S = 2.0  # a shorter one may be a busy machine


class FreezeWatch:
    """`now`: the clock by which deadlines are kept.

    A jump of that clock looks like a freeze and is treated as one: no run has worked in that time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._beat_at, self._total_s = now, now(), 0.0
        self._lock, self._stopped = threading.Lock(), threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="clutch-freeze-watch", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def total_s(self) -> float:
        """Seconds since the start, including a freeze that ended after the last beat."""
        with self._lock:
            self._beat()
            return self._total_s

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_S):
            self.total_s()

    def _beat(self) -> None:
        now = self._now()
        gap_s = now - self._beat_at
        if gap_s > BEAT_S + GAP_S:
            self._total_s += gap_s - BEAT_S
        self._beat_at = now


@contextmanager
def freeze_watch(now: Callable[[], float]) -> Iterator[Callable[[], float]]:
    """Watch this process for freezes; yields the function that returns the seconds so far."""
    watch = FreezeWatch(now)
    watch.start()
    try:
        yield watch.total_s
    finally:
        watch.stop()


# --------------------------------------------------------------------------------------------------
# After a lost connection it is unknown whether a transaction was committed; asking again with the same key is safe.

T = TypeVar("T")

LOST_TRIES_MAX = 5  # with a tick between them; a database that stays away longer is the caller's to handle


async def surely(tick_s: float, ask: Callable[[], Awaitable[T]]) -> T:
    for _ in range(LOST_TRIES_MAX - 1):
        try:
            return await ask()
        except StoreLost:
            await asyncio.sleep(tick_s)
    return await ask()


async def patiently(services: Services, call: Callable[[], Awaitable[T]], *, is_once: bool = False) -> T:
    """Call until the store answers; a busy or lost store is tried again at the next tick.

    Raises StoreError while the worker stops: the worker that buries this one does what is left. `is_once`: what was
    committed must not be committed again, so a StoreLost is raised, too, unless nothing was sent. A cancelled turn ends
    with the error."""
    while True:
        try:
            return await call()
        except (StoreUnreadable, StoreRefused, ConstraintViolated):
            raise  # waiting does not help
        except StoreError as error:
            if services.stopping.is_set() or (is_once and (_may_be_committed(error) or is_cancelled())):
                raise
            say_unavailable(services, error)
            await asyncio.sleep(services.policy.work.tick_s)


def _may_be_committed(error: StoreError) -> bool:
    return isinstance(error, StoreLost) and not error.is_unsent


def is_cancelled() -> bool:
    """Whether the store gave an error in the place of a cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def say_unavailable(services: Services, error: StoreError) -> None:
    log.warning("Database not available: %s (next try in %g s)", error, services.policy.work.tick_s)


# --------------------------------------------------------------------------------------------------
# The approvals of MCP tools, in the store.


class StoredSubscriptions:
    """Implements the port `Subscriptions`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def key(self) -> PushKey | None:
        return await self._db.read(push.key)

    async def find(self, device: str) -> Subscription | None:
        return await self._db.read(push.find, device)

    async def forget(self, device: str) -> None:
        await self._db.alone(push.forget, [device])

    async def is_current(self, key: str) -> bool:
        return await self._db.read(push.is_current, key)


class StoredFilePins:
    """Implements `FilePins` of `agents/catalogue.py`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def known(self) -> Decisions:
        return await self._services.db.read(definitions.decisions)

    async def propose(self, proposals: Sequence[Proposal]) -> None:
        services = self._services
        asked = (services.policy, proposals, [services.ids.next() for _ in proposals])
        await surely(services.policy.work.tick_s, lambda: services.db.alone(definitions.propose, *asked))


class StoredPins:
    """Implements `ToolPins` of `tools/mcp/definitions.py`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def stamp(self) -> int:
        return await self._services.db.read(mcp_tools.stamp)

    async def approved(self) -> Mapping[str, Mapping[str, Definition]]:
        return await self._services.db.read(mcp_tools.approved)

    async def see(self, server: str, tools: Mapping[str, Definition]) -> None:
        services = self._services
        await surely(services.policy.work.tick_s, lambda: services.db.alone(mcp_tools.see, server, tools))

    async def ask(self, server: str, offers: Sequence[ToolOffer]) -> Mapping[str, str]:
        services = self._services
        asked = (services.policy, server, offers, [services.ids.next() for _ in offers])
        rejected = await surely(
            services.policy.work.tick_s, lambda: services.db.alone(mcp_tools.ask_pin, *asked)
        )
        return {tool: f"{ids.question_id(number)}, hash {seen}" for tool, (number, seen) in rejected.items()}
