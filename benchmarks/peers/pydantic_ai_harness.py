"""Pydantic AI Harness: `SubAgents` with task control, `DelegationTasks` in a directory, `SqliteStepStore`.

The model starts children in the background. The program owns waking: it waits for the children and runs the parent
again, whose first request has all reports. Resume: the parent's history from the step store with `continue_run`, the
tasks from the owner's directory. The owner reports an interrupted task as
cancelled, and the parent's model resumes it with `delegate_task(resume=...)`, as the documentation describes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from openai import AsyncOpenAI
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.run import AgentRunResult
from pydantic_ai_harness import StepPersistence, SubAgent, SubAgents
from pydantic_ai_harness.step_persistence import SqliteStepStore, continue_run
from pydantic_ai_harness.subagents import DelegationReports, DelegationTasks, TaskControl

from benchmarks import w_job
from benchmarks.peers import job
from benchmarks.peers.worker import Job, serve

_SYSTEM: Final = "Do what you are asked with the tools you have, then answer briefly."
_NO_LIMIT: Final = UsageLimits(request_limit=None)  # the default of 50 would end a long walk


class HarnessAdapter:
    def __init__(
        self, model: OpenAIChatModel, work: w_job.Work, store: SqliteStepStore, tasks: DelegationTasks
    ) -> None:
        self._store, self._tasks = store, tasks
        self._surveyor = _surveyor(model, work)
        steps = StepPersistence(store=store, agent_name="parent")
        children = SubAgents(agents=[SubAgent(self._surveyor)], task_control=TaskControl())
        self._parent = Agent(model, name="parent", instructions=_SYSTEM, capabilities=[steps, children])
        walking = StepPersistence(store=store, agent_name="walker")
        self._walker = _surveyor(model, work, walking)

    async def fan_out(self, session: str, count: int) -> str:
        return await self._run(session, w_job.fan_out(count), None)

    async def resume(self, session: str, count: int) -> str:
        history = await self._history(session)
        return await self._run(session, None if history else w_job.fan_out(count), history)

    async def _history(self, session: str) -> list[ModelMessage] | None:
        """Of the parent's last run that got as far as a snapshot."""
        runs = await self._store.list_runs(conversation_id=session)
        for run in reversed([run for run in runs if run.agent_name == "parent"]):
            with suppress(LookupError):
                return await continue_run(self._store, run_id=run.run_id)
        return None

    async def _run(self, session: str, text: str | None, history: list[ModelMessage] | None) -> str:
        """Run the parent, and again when its children have ended, until no report is left for it."""
        while True:
            ended = await self._turn(session, text, history)
            await self._tasks.wait_children(None)
            if not self._tasks.reports(conversation_id=session):
                return str(ended.output)
            text, history = None, ended.all_messages()

    async def _turn(
        self, session: str, text: str | None, history: list[ModelMessage] | None
    ) -> AgentRunResult[str]:
        reports = DelegationReports(self._tasks, conversation_id=session, priority="asap")
        with self._tasks.bind():
            return await self._parent.run(
                text,
                message_history=history,
                conversation_id=session,
                capabilities=[reports],
                usage_limits=_NO_LIMIT,
            )

    async def walk(self, session: str, steps: int) -> str:
        ended = await self._walker.run(job.walk(steps), conversation_id=session, usage_limits=_NO_LIMIT)
        return str(ended.output)


def _surveyor(model: OpenAIChatModel, work: w_job.Work, *capabilities: StepPersistence) -> Agent:
    surveyor = Agent(
        model,
        name="surveyor",
        description="Surveys one item.",
        instructions=_SYSTEM,
        capabilities=capabilities,
    )

    @surveyor.tool_plain
    async def look_up(item: int) -> str:
        """What is known of an item."""
        return work.look_up(item)

    @surveyor.tool_plain
    async def record(item: int, text: str) -> str:
        """Keep a note on an item."""
        return work.record(item, text)

    return surveyor


@asynccontextmanager
async def opened(known: Job) -> AsyncIterator[HarnessAdapter]:
    client = AsyncOpenAI(base_url=known.url, api_key="none")
    model = OpenAIChatModel(w_job.MODEL, provider=OpenAIProvider(openai_client=client))
    store = SqliteStepStore(database=known.state / "steps.db")
    tasks = DelegationTasks(directory=known.state / "tasks", step_store=store)
    async with tasks.opened():
        yield HarnessAdapter(model, known.tools(), store, tasks)


if __name__ == "__main__":
    serve(opened)
