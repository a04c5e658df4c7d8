"""What every turn of one worker shares: the adapters that wiring chose, and the policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from clutch.core import choosing, context
from clutch.core.admission import SpawnRequest
from clutch.core.agents import OnInvalidModel
from clutch.core.hooks import Hook
from clutch.core.messages import Usage
from clutch.core.policy import Policy
from clutch.engine import typed
from clutch.engine.bus import Bus
from clutch.engine.changes import Changes
from clutch.engine.context import Documents, Surroundings
from clutch.engine.errands import Errand
from clutch.engine.ids import Ids
from clutch.engine.pulse import Pulses
from clutch.errors import InvalidInput
from clutch.ports import (
    Channel,
    Hooks,
    Lives,
    ModelRequest,
    Models,
    Prices,
    Runtime,
    TaskFiles,
    Toolbox,
    Workspaces,
)
from clutch.store.door import Door

log = logging.getLogger(__name__)


class NoPrices:
    """Nobody knows what anything costs."""

    def cost(self, model: str, usage: Usage) -> Decimal | None:
        del model, usage
        return None

    def tokens(self, request: ModelRequest) -> int:
        return (len(request.system) + context.size(request.transcript)) // context.BYTES_PER_TOKEN

    def window(self, model: str) -> int | None:
        del model
        return None


@dataclass(slots=True)
class Kit:
    door: Door
    models: Models
    toolbox: Toolbox
    policy: Policy
    ids: Ids
    bus: Bus
    prices: Prices = field(default_factory=NoPrices)
    surroundings: Surroundings | None = None
    checklists: Documents | None = (
        None  #: what a heartbeat reads; without it only an event is a reason for one
    )
    runtimes: Mapping[str, Runtime] = field(default_factory=lambda: MappingProxyType({}))
    hooks: Hooks | None = None
    channels: Mapping[str, Channel] = field(default_factory=lambda: MappingProxyType({}))
    workspaces: Workspaces | None = None  #: without it no child gets a workspace of its own
    files: TaskFiles | None = None  #: without it no child is given files, and none hands any over
    lives: Lives | None = None
    refresh: Callable[[], Awaitable[None]] | None = (
        None  #: before each turn: tools of others may have changed
    )
    #: Loads what a model needs, in a thread: an import of seconds on the event loop would cost the lease.
    prepare: Callable[[str], Awaitable[None]] | None = None
    check_model: Callable[[str], None] | None = None  #: raises InvalidInput for one that cannot be asked
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    turns: dict[int, asyncio.Task[None]] = field(default_factory=dict)  #: under way here, by session
    worker_id: int = 0  #: under which they are
    #: turns of others that have ended: session, fence
    rested: set[tuple[int, int]] = field(default_factory=set)
    pulses: Pulses = field(default_factory=Pulses)
    errands: dict[int, Errand] = field(default_factory=dict)  #: foreign code at work here, by session
    _changes: Changes | None = None

    @property
    def changes(self) -> Changes:
        if self._changes is None:
            self._changes = Changes(self.door, self.policy.work.tick_s)
        return self._changes

    async def prepared(self, model: str) -> None:
        if self.prepare is None:
            return
        try:
            await self.prepare(model)
        except Exception:
            log.exception("not everything was loaded; the first call says what is missing")

    def wanted(self, args: Mapping[str, Any]) -> SpawnRequest:
        """Arguments of a spawn, checked for form and for what there is here. Raises InvalidInput.

        Every door comes through here, so all say the same of the same arguments."""
        request = self.toolbox.spawn_request(args)
        if request.output_schema is not None:
            typed.check_form(request.output_schema)
        names = None if request.tools is None else [spec.name for spec in self.toolbox.specs()]
        choosing.check(request, self.policy, names, self.runtimes)
        if request.idempotency_key is not None:
            request = replace(request, digest=choosing.digest(request))
        request = choosing.settled(self._with_model(request), self.policy)
        return replace(request, is_asked_about=True) if Hook.SPAWNING in self.policy.hooks else request

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
        return request

    def around(self) -> Surroundings:
        """Without any given: prompts from the store alone, no documents of the workspace."""
        if self.surroundings is None:
            self.surroundings = Surroundings(self.door, self.policy.context, agents=self.policy.agents)
        return self.surroundings
