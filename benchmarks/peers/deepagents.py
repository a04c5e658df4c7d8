"""Deep Agents with `AsyncSqliteSaver` and `durability="sync"`.

The parent has one custom subagent; the `task` tool starts it, calls of one answer at once. Every agent also has the
middleware that the library always adds (todo list, virtual files, summaries), which is part of what it costs.
Resume: as in LangGraph, with no input on the same thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from deepagents import create_deep_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks import w_job
from benchmarks.peers import job
from benchmarks.peers.worker import Job, serve

_STEPS_MAX: Final = 10_000  # of a graph
_SYSTEM: Final = "Do what you are asked with the tools you have, then answer briefly."


class DeepAgentsAdapter:
    def __init__(self, model: ChatOpenAI, work: w_job.Work, saver: AsyncSqliteSaver) -> None:
        tools = _tools(work)
        surveyor = {
            "name": "surveyor",
            "description": "Surveys one item.",
            "system_prompt": _SYSTEM,
            "tools": tools,
        }
        self._parent = create_deep_agent(model, [], subagents=[surveyor], checkpointer=saver)
        self._walker = create_deep_agent(model, tools, checkpointer=saver)

    async def fan_out(self, session: str, count: int) -> str:
        return await _invoke(self._parent, session, w_job.fan_out(count))

    async def resume(self, session: str, count: int) -> str:
        del count
        return await _invoke(self._parent, session, None)

    async def walk(self, session: str, steps: int) -> str:
        return await _invoke(self._walker, session, job.walk(steps))


async def _invoke(graph: Any, session: str, text: str | None) -> str:
    config = {"configurable": {"thread_id": session}, "recursion_limit": _STEPS_MAX}
    given = None if text is None else {"messages": [HumanMessage(text)]}
    state = await graph.ainvoke(given, config, durability="sync")
    return str(state["messages"][-1].content)


def _tools(work: w_job.Work) -> list[Any]:
    @tool
    async def look_up(item: int) -> str:
        """What is known of an item."""
        return work.look_up(item)

    @tool
    async def record(item: int, text: str) -> str:
        """Keep a note on an item."""
        return work.record(item, text)

    return [look_up, record]


@asynccontextmanager
async def opened(known: Job) -> AsyncIterator[DeepAgentsAdapter]:
    model = ChatOpenAI(model=w_job.MODEL, base_url=known.url, api_key="none")
    async with AsyncSqliteSaver.from_conn_string(str(known.state / "checkpoints.db")) as saver:
        yield DeepAgentsAdapter(model, known.tools(), saver)


if __name__ == "__main__":
    serve(opened)
