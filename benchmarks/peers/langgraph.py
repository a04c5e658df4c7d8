"""LangGraph with `AsyncSqliteSaver` and `durability="sync"`, the mode that its documentation names for crashes.

A parent graph sends every task to a node that runs the child's graph (the map-reduce idiom, `Send`); the child's graph
inherits the checkpointer. Resume: the graph is invoked with no input on the same thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send

from benchmarks import w_job
from benchmarks.peers import job
from benchmarks.peers.worker import Job, serve

_STEPS_MAX: Final = 10_000  # of a graph; the default of 25 would end a long walk
_DURABILITY: Final = "sync"


class Child(TypedDict):
    call: dict[str, Any]


class LangGraphAdapter:
    def __init__(self, parent: Any, child: Any) -> None:
        self._parent, self._child = parent, child

    async def fan_out(self, session: str, count: int) -> str:
        return await _invoke(self._parent, session, w_job.fan_out(count))

    async def resume(self, session: str, count: int) -> str:
        del count
        return await _invoke(self._parent, session, None)

    async def walk(self, session: str, steps: int) -> str:
        return await _invoke(self._child, session, job.walk(steps))


async def _invoke(graph: Any, session: str, text: str | None) -> str:
    config = {"configurable": {"thread_id": session}, "recursion_limit": _STEPS_MAX}
    given = None if text is None else {"messages": [HumanMessage(text)]}
    state = await graph.ainvoke(given, config, durability=_DURABILITY)
    return str(state["messages"][-1].content)


def _child(model: ChatOpenAI, work: w_job.Work) -> Any:
    @tool
    async def look_up(item: int) -> str:
        """What is known of an item."""
        return work.look_up(item)

    @tool
    async def record(item: int, text: str) -> str:
        """Keep a note on an item."""
        return work.record(item, text)

    tools = [look_up, record]
    asking = model.bind_tools(tools)

    async def ask(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await asking.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    return graph


def _parent(model: ChatOpenAI, child: Any) -> Any:
    @tool
    def survey(task: str) -> str:
        """Give a task to a child of your own."""
        return task

    asking = model.bind_tools([survey])

    async def ask(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await asking.ainvoke(state["messages"])]}

    def send(state: MessagesState) -> list[Send] | str:
        calls = state["messages"][-1].tool_calls
        return [Send("child", {"call": call}) for call in calls] or END

    async def run(state: Child) -> dict[str, list[AnyMessage]]:
        call = state["call"]
        ended = await child.ainvoke({"messages": [HumanMessage(call["args"]["task"])]})
        return {"messages": [ToolMessage(ended["messages"][-1].content, tool_call_id=call["id"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("child", run)
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", send, ["child", END])
    graph.add_edge("child", "ask")
    return graph


@asynccontextmanager
async def opened(known: Job) -> AsyncIterator[LangGraphAdapter]:
    model = ChatOpenAI(model=w_job.MODEL, base_url=known.url, api_key="none")
    async with AsyncSqliteSaver.from_conn_string(str(known.state / "checkpoints.db")) as saver:
        child = _child(model, known.tools())
        parent = _parent(model, child.compile())
        yield LangGraphAdapter(parent.compile(checkpointer=saver), child.compile(checkpointer=saver))


if __name__ == "__main__":
    serve(opened)
