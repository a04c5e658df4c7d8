"""Agents whose models do what the test tells them, one answer at a time: main, its children, theirs."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

from clutch.core.messages import Answer, Call, Results, Usage
from clutch.core.policy import Policy
from clutch.core.spawn import SpawnRequest
from clutch.engine.services import Services
from clutch.engine.spawn import spawn_all
from clutch.ports import ModelRequest
from clutch.transactions.spawn import Accepted, ChildRequest
from tests.engine.conftest import Build
from tests.engine.house import POLICY, House, opening
from tests.patience import PATIENCE_S

FREE = replace(POLICY, control=replace(POLICY.control, steer_interval_s=0.0))


class Family:
    def __init__(self, house: House, services: Services) -> None:
        self.house, self.services = house, services
        self.ids = {"main": house.main}
        self._wishes: dict[str, asyncio.Queue[Answer | str]] = defaultdict(asyncio.Queue)
        self._told: dict[str, asyncio.Queue[str]] = defaultdict(asyncio.Queue)
        house.model.script = self._answer

    async def _answer(self, request: ModelRequest) -> Answer | str:
        """The last word of what a child was first told is its name."""
        name, last = opening(request).split()[-1], request.transcript[-1]
        name = name if name in self.ids else "main"
        if isinstance(last, Results):
            self._told[name].put_nowait(last.results[0].text)
        if name == "main" and isinstance(last, Results):
            return "so be it"
        return await self._wishes[name].get()

    async def child(self, label: str, parent: str = "main", **asked: Any) -> int:
        """Accepted, and its model is asked for the first time."""
        ids = self.services.ids
        self.ids[label] = 0  # its model may be asked before we hear that it was accepted
        order = ChildRequest(
            f"spawn:{label}", ids.next(), ids.uuid4(), SpawnRequest(f"be {label}", label, **asked), 0
        )
        (got,) = await spawn_all(self.services, self.ids[parent], self.house.main, None, [order])
        assert isinstance(got, Accepted), got
        self.ids[label] = got.task_id
        await self.house.until_asked(f"be {label}")
        return got.task_id

    def says(self, name: str, words: str) -> None:
        """Its last words, whenever its model is asked next."""
        self._wishes[name].put_nowait(words)

    async def hears(self, name: str, tool: str, /, **args: Any) -> str:
        """Its model calls the tool; what it is told."""
        call = Answer("", (Call(tool, args),), Usage(10, 5), "scripted", "tools")
        self._wishes[name].put_nowait(call)
        if name == "main":
            await self.house.say("you are main")
        async with asyncio.timeout(PATIENCE_S):
            return await self._told[name].get()

    async def uses(self, name: str, tool: str, /, **args: Any) -> Any:
        return json.loads(await self.hears(name, tool, **args))

    def nobody_waits(self) -> None:
        """Every model that is asked from now on ends its run."""
        for name in self.ids:
            for _ in range(10):
                self._wishes[name].put_nowait(f"{name} is done")


async def family(build: Build, policy: Policy = FREE) -> Family:
    async def nobody(request: ModelRequest) -> str:
        return ""

    house = await build(nobody, policy)
    worker = await house.hire()
    return Family(house, worker.services)
