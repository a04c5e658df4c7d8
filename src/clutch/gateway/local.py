"""The port of a program that has the engine in its own process: every verb through the desk, like all surfaces."""

from __future__ import annotations

import json
from typing import Any

from clutch.core.authority import EVERY_SCOPE, OperatorCaller
from clutch.engine.kit import Kit
from clutch.errors import NotFound
from clutch.gateway import reads
from clutch.gateway.checks import task_number
from clutch.gateway.desk import Desk
from clutch.gateway.handles import TaskResult
from clutch.gateway.objects import Object
from clutch.gateway.waiting import Waiting
from clutch.ports import FilesFailed
from clutch.protocol.targets import Standpoint

PROGRAM = OperatorCaller(EVERY_SCOPE, "api")  #: whoever embeds Clutch may do everything
AS_PROGRAM = Standpoint(PROGRAM, "api")


class Local:
    def __init__(self, kit: Kit, waiting: Waiting, desk: Desk) -> None:
        self._kit, self._waiting, self._desk = kit, waiting, desk

    async def ended(self, task_id: str) -> TaskResult[Any]:
        ended = await self._waiting.end_of(task_number(task_id))
        value = None if ended.value is None else json.loads(ended.value)
        return TaskResult(ended.outcome, ended.text, ended.error, value, ended.files)

    async def info(self, task_id: str) -> Object:
        return await self._kit.door.read(reads.known, task_number(task_id))

    async def why(self, task_id: str) -> Object:
        return await self._kit.door.read(reads.why, AS_PROGRAM, task_id)

    async def read_file(self, task_id: str, name: str) -> bytes:
        try:
            if self._kit.files is not None:
                return await self._kit.files.read(task_number(task_id), name)
        except FilesFailed as error:
            raise NotFound(f"{name[:80]!r} of {task_id}: {error}") from error
        raise NotFound("no files are kept here")

    async def act(self, verb: str, task_id: str, **said: Any) -> Object:
        done: Object = await getattr(self._desk, verb)(PROGRAM, task_id, **said)
        return done
