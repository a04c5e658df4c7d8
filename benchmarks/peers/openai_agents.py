"""OpenAI Agents SDK with one `SQLiteSession` per agent in one file.

It has no background children: the parent's tool runs the child with `Runner.run`, calls of one answer at once. A
session keeps what each turn of the loop ended with. Resume: the same runs again with the same sessions; a child whose
session ends with an answer is not run again. The library leaves it to the program to know which runs were open.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from benchmarks import w_job
from benchmarks.peers import job
from benchmarks.peers.worker import Job, serve

_TURNS_MAX: Final = 10_000  # the default of 10 would end a long walk
_SYSTEM: Final = "Do what you are asked with the tools you have, then answer briefly."


class OpenAIAgentsAdapter:
    def __init__(self, model: OpenAIChatCompletionsModel, work: w_job.Work, file: Path) -> None:
        self._model, self._file = model, file
        self._child = _child(model, work)

    def _parent(self, name: str) -> Agent:
        """Its children have sessions of their own, named after its session and their tasks."""

        @function_tool
        async def survey(task: str) -> str:
            """Give a task to a child of your own."""
            session = self._session(f"{name}:{hashlib.sha256(task.encode()).hexdigest()}")
            known = await session.get_items()
            answer = known[-1] if known and known[-1].get("role") == "assistant" else None
            if answer is not None:
                return "".join(part["text"] for part in answer["content"])
            # With a session that has the task already, the run goes on from what it holds.
            ended = await Runner.run(
                self._child, [] if known else task, session=session, max_turns=_TURNS_MAX
            )
            return str(ended.final_output)

        return Agent(name="parent", instructions=_SYSTEM, model=self._model, tools=[survey])

    async def fan_out(self, session: str, count: int) -> str:
        return await self._run(self._parent(session), session, w_job.fan_out(count))

    async def resume(self, session: str, count: int) -> str:
        known = await self._session(session).get_items()
        return await self._run(self._parent(session), session, None if known else w_job.fan_out(count))

    async def walk(self, session: str, steps: int) -> str:
        return await self._run(self._child, session, job.walk(steps))

    async def _run(self, agent: Agent, name: str, text: str | None) -> str:
        session = self._session(name)
        ended = await Runner.run(agent, [] if text is None else text, session=session, max_turns=_TURNS_MAX)
        return str(ended.final_output)

    def _session(self, name: str) -> SQLiteSession:
        return SQLiteSession(name, self._file)


def _child(model: OpenAIChatCompletionsModel, work: w_job.Work) -> Agent:
    @function_tool
    async def look_up(item: int) -> str:
        """What is known of an item."""
        return work.look_up(item)

    @function_tool
    async def record(item: int, text: str) -> str:
        """Keep a note on an item."""
        return work.record(item, text)

    return Agent(name="surveyor", instructions=_SYSTEM, model=model, tools=[look_up, record])


@asynccontextmanager
async def opened(known: Job) -> AsyncIterator[OpenAIAgentsAdapter]:
    set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=known.url, api_key="none")
    model = OpenAIChatCompletionsModel(w_job.MODEL, openai_client=client)
    yield OpenAIAgentsAdapter(model, known.tools(), known.state / "sessions.db")


if __name__ == "__main__":
    serve(opened)
