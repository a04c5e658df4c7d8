"""The Tasks extension for the official Python client, which has the extension point but not the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.session import ClientSession
from mcp_types import (
    CallToolResult,
    CancelTaskRequestParams,
    GetTaskRequestParams,
    Request,
    RequestParams,
    Result,
)
from pydantic import ConfigDict

from tests.patience import PATIENCE_S

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_S = 0.05
ENDED = frozenset({"completed", "failed", "cancelled"})


class Shown(Result):
    """Any answer of the extension, with the names of the wire."""

    model_config = ConfigDict(extra="allow")

    result_type: str

    @property
    def said(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Created(Shown):
    result_type: Literal["task"]


class GetTask(Request[GetTaskRequestParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: GetTaskRequestParams
    name_param = "taskId"


class UpdateParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any]


class UpdateTask(Request[UpdateParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateParams
    name_param = "taskId"


class CancelTask(Request[CancelTaskRequestParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: CancelTaskRequestParams
    name_param = "taskId"


class Tasks(ClientExtension):
    """`call_tool` returns the result of the task. To read the task itself, see `start`."""

    identifier = EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._finish)]

    async def _finish(self, task: Created, context: ClaimContext) -> CallToolResult:
        ended = await until(context.session, task.said["taskId"], *ENDED)
        return CallToolResult.model_validate(ended["result"], by_name=False)


async def start(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool and return the task that it answers with."""
    found = await client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(found, Created), found
    return found.said


async def get(session: ClientSession, task: str) -> dict[str, Any]:
    asked = GetTask(params=GetTaskRequestParams(task_id=task))
    return (await session.send_request(asked, Shown)).said


async def until(session: ClientSession, task: str, *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        found = await get(session, task)
        while found["status"] not in statuses:
            await asyncio.sleep(POLL_S)
            found = await get(session, task)
        return found


async def update(session: ClientSession, task: str, responses: Mapping[str, Any]) -> None:
    params = UpdateParams(task_id=task, input_responses=dict(responses))
    await session.send_request(UpdateTask(params=params), Shown)


async def cancel(session: ClientSession, task: str) -> None:
    await session.send_request(CancelTask(params=CancelTaskRequestParams(task_id=task)), Shown)
