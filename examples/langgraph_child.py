"""A LangGraph graph as a child: it becomes durable, listed, steered, killed and awaited like every other task.

    pip install langgraph
    python langgraph_child.py

    drafting (attempt 1)
    drafting (attempt 2)
    ok: Release notes, second draft: faster exports, fewer clicks.

The graph stays as it is: LangGraph decides which node runs next, Clutch decides about the life of the task. With a
checkpointer on disk (`langgraph-checkpoint-sqlite`) a finished node does not run again after `kill -9`, and
`interrupt(...)` in a node asks a person through the inbox of Clutch.
"""

from __future__ import annotations

import asyncio
from typing import Literal, TypedDict

from langgraph.graph import END, START, StateGraph

from clutch import Clutch, RuntimeJob
from clutch.runtimes.langgraph import from_graph


class Draft(TypedDict, total=False):
    topic: str
    attempt: int
    text: str


def draft(state: Draft) -> Draft:
    # A real model: text = ChatAnthropic(model="claude-sonnet-4-5").invoke(state["topic"]).text
    attempt = state.get("attempt", 0) + 1
    print(f"drafting (attempt {attempt})")
    ordinal = {1: "first", 2: "second"}[attempt]
    return {"attempt": attempt, "text": f"{state['topic']}, {ordinal} draft: faster exports, fewer clicks."}


def is_good(state: Draft) -> Literal["again", "done"]:
    return "done" if state["attempt"] >= 2 else "again"


builder = StateGraph(Draft)
builder.add_node("draft", draft)
builder.add_edge(START, "draft")
builder.add_conditional_edges("draft", is_good, {"again": "draft", "done": END})
graph = builder.compile()


def to_input(job: RuntimeJob) -> Draft:
    """Make the first state of the graph from the prompt of the task."""
    return {"topic": job.text.splitlines()[-1]}


async def main() -> None:
    clutch = Clutch("langgraph-state")
    clutch.runtime("writer")(from_graph(graph, to_input=to_input, to_result=lambda state: state["text"]))
    async with clutch:
        task = await clutch.spawn("Release notes", runtime="writer")
        result = await task
        print(f"{result.outcome}: {result.error or result.text}")


if __name__ == "__main__":
    asyncio.run(main())
