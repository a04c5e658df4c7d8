"""Pydantic AI with the `DBOSDurability` capability, DBOS on SQLite.

The parent runs in a DBOS workflow; its tool starts one child workflow per task and waits for it. Model calls are DBOS
steps by the capability, tools are `DBOS.step` as its documentation asks. Resume: `DBOS.launch` recovers open workflows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from dbos import DBOS, DBOSConfig, SetWorkflowID
from openai import AsyncOpenAI
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks import w_job
from benchmarks.peers import job
from benchmarks.peers.worker import Job, serve

_SYSTEM: Final = "Do what you are asked with the tools you have, then answer briefly."
_NO_LIMIT: Final = UsageLimits(request_limit=None)  # the default of 50 would end a long walk


class PydanticAIAdapter:
    def __init__(self, model: OpenAIChatModel, work: w_job.Work) -> None:
        surveyor = Agent(model, name="surveyor", instructions=_SYSTEM, capabilities=[DBOSDurability()])
        parent = Agent(model, name="parent", instructions=_SYSTEM, capabilities=[DBOSDurability()])

        @surveyor.tool_plain
        @DBOS.step()
        async def look_up(item: int) -> str:
            """What is known of an item."""
            return work.look_up(item)

        @surveyor.tool_plain
        @DBOS.step()
        async def record(item: int, text: str) -> str:
            """Keep a note on an item."""
            return work.record(item, text)

        @DBOS.workflow()
        async def child(task: str) -> str:
            return (await surveyor.run(task, usage_limits=_NO_LIMIT)).output

        @parent.tool_plain
        async def survey(task: str) -> str:
            """Give a task to a child of your own."""
            return await (await DBOS.start_workflow_async(child, task)).get_result()

        @DBOS.workflow()
        async def delegate(text: str) -> str:
            return (await parent.run(text, usage_limits=_NO_LIMIT)).output

        self._child, self._delegate = child, delegate

    async def fan_out(self, session: str, count: int) -> str:
        with SetWorkflowID(session):
            return await self._delegate(w_job.fan_out(count))

    async def resume(self, session: str, count: int) -> str:
        del count
        return await (await DBOS.retrieve_workflow_async(session)).get_result()

    async def walk(self, session: str, steps: int) -> str:
        with SetWorkflowID(session):
            return await self._child(job.walk(steps))


@asynccontextmanager
async def opened(known: Job) -> AsyncIterator[PydanticAIAdapter]:
    config = DBOSConfig(
        name="bench",
        system_database_url=f"sqlite:///{known.state / 'dbos.sqlite'}",
        run_admin_server=False,
        enable_otlp=False,
    )
    DBOS(config=config)
    client = AsyncOpenAI(base_url=known.url, api_key="none")
    adapter = PydanticAIAdapter(
        OpenAIChatModel(w_job.MODEL, provider=OpenAIProvider(openai_client=client)), known.tools()
    )
    DBOS.launch()
    try:
        yield adapter
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    serve(opened)
